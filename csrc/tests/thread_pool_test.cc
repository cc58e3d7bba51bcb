#include "../thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>

#if defined(__linux__)
#include <sched.h>
#endif

#include "check.h"
#include "values.h"

namespace headrace::tests {
namespace {

using std::chrono::steady_clock;

// Waits for a condition that other threads bring about; false if they do not within 20 seconds.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// How often each piece of one job ran.
std::vector<int> CountRuns(ThreadPool& pool, int num_pieces) {
  std::vector<std::atomic<int>> runs(num_pieces);
  pool.Run(num_pieces, [&](int piece, int) { runs[piece].fetch_add(1, std::memory_order_relaxed); });
  return {runs.begin(), runs.end()};
}

TEST("thread_pool: every piece runs exactly once, for every number of threads and pieces") {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    CHECK_EQ(pool.num_threads(), num_threads);
    for (int num_pieces = 0; num_pieces <= 70; ++num_pieces) {
      CHECK(CountRuns(pool, num_pieces) == std::vector<int>(num_pieces, 1), "threads", num_threads, "pieces",
            num_pieces);
    }
  }
}

TEST("thread_pool: each thread begins with its own share of neighbouring pieces") {
  ThreadPool pool(3);
  std::vector<int> thread_of(6, -1);
  std::atomic<int> num_begun{0};
  std::atomic<bool> all_begun{true};
  pool.Run(6, [&](int piece, int thread) {
    thread_of[piece] = thread;
    if (piece % 2 == 1) return;
    num_begun.fetch_add(1);  // nobody goes on, to others' shares, before all have begun
    if (!Eventually([&] { return num_begun.load() == 3; })) all_begun.store(false);
  });
  CHECK(all_begun.load());
  for (int thread = 0; thread < 3; ++thread) CHECK_EQ(thread_of[2 * thread], thread);
}

// Small jobs before large ones: a worker that is late for the small one must not take a piece of it when the large
// one is being prepared.
TEST("thread_pool: many tiny jobs of changing size each run every piece exactly once") {
  constexpr int kSizes[] = {2, 64, 3, 17, 2, 200, 5};
  for (int num_threads = 2; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    std::vector<std::atomic<int>> runs(200);
    for (int job = 0; job < 100000; ++job) {
      const int num_pieces = kSizes[job % std::size(kSizes)];
      for (auto& count : runs) count.store(0, std::memory_order_relaxed);
      pool.Run(num_pieces, [&](int piece, int) { runs[piece].fetch_add(1, std::memory_order_relaxed); });
      for (int piece = 0; piece < static_cast<int>(runs.size()); ++piece) {
        CHECK_EQ(runs[piece].load(), piece < num_pieces ? 1 : 0, "threads", num_threads, "job", job, "piece", piece);
      }
    }
  }
}

TEST("thread_pool: what pieces wrote is there when the job returns, without further synchronisation") {
  ThreadPool pool(3);
  std::vector<int> values(257);
  for (int job = 1; job <= 2000; ++job) {
    pool.Run(static_cast<int>(values.size()), [&](int piece, int) { values[piece] += piece + job; });
    // the next job reads on other threads what this one wrote
  }
  for (int piece = 0; piece < static_cast<int>(values.size()); ++piece) {
    CHECK_EQ(values[piece], 2000 * piece + 2000 * 2001 / 2, "piece", piece);
  }
}

TEST("thread_pool: a thread's number is its own while it runs a piece") {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> was_shared{false}, was_out_of_range{false};
  for (int job = 0; job < 200; ++job) {
    pool.Run(100, [&](int, int thread) {
      if (thread < 0 || thread >= 4) {
        was_out_of_range = true;
        return;
      }
      if (inside[thread].fetch_add(1) != 0) was_shared = true;
      inside[thread].fetch_sub(1);
    });
  }
  CHECK(!was_shared.load());
  CHECK(!was_out_of_range.load());
}

TEST("thread_pool: threads that fell asleep are woken, all of them") {
  for (int num_threads = 2; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    for (int round = 0; round < 5; ++round) {
      // idle for much longer than workers spin; being idle is the subject, so there is no condition to wait for
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      std::atomic<int> num_present{0};
      std::atomic<bool> all_came{true};
      pool.Run(num_threads, [&](int, int) {
        num_present.fetch_add(1);
        if (!Eventually([&] { return num_present.load() == num_threads; })) all_came = false;
      });
      CHECK(all_came.load(), "threads", num_threads, "round", round);
    }
  }
}

TEST("thread_pool: a thread held up in one piece leaves the others to the rest") {
  ThreadPool pool(2);
  constexpr int kPieces = 50;
  std::atomic<int> num_others{0};
  std::atomic<bool> others_finished{true};
  pool.Run(kPieces, [&](int piece, int) {
    if (piece > 0) {
      num_others.fetch_add(1);
    } else if (!Eventually([&] { return num_others.load() == kPieces - 1; })) {
      others_finished = false;
    }
  });
  CHECK(others_finished.load());
}

TEST("thread_pool: callers may change from job to job") {
  ThreadPool pool(2);
  std::atomic<int> total{0};
  for (int caller = 0; caller < 8; ++caller) {
    std::thread([&] {
      for (int job = 0; job < 50; ++job) pool.Run(9, [&](int piece, int) { total.fetch_add(piece); });
    }).join();
  }
  CHECK_EQ(total.load(), 8 * 50 * 36);
}

TEST("thread_pool: pools end at once whether their threads are spinning, asleep or just starting") {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(1 + round % 4);
    if (round % 3 == 0) pool.Run(8, [](int, int) {});
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

#if defined(__linux__)
// The CPUs the calling thread may use.
std::vector<int> AllowedCpus() {
  cpu_set_t allowed;
  CHECK_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

// What each thread of a pool may use, gathered by the threads themselves.
std::vector<std::vector<int>> CpusOfThreads(ThreadPool& pool) {
  std::vector<std::vector<int>> cpus(pool.num_threads());
  std::atomic<int> num_present{0};
  pool.Run(pool.num_threads(), [&](int, int thread) {
    cpus[thread] = AllowedCpus();
    num_present.fetch_add(1);
    Eventually([&] { return num_present.load() == pool.num_threads(); });  // so that nobody takes two pieces
  });
  return cpus;
}

TEST("thread_pool: pinned workers keep to their CPU, and the caller to those it had") {
  const std::vector<int> allowed = AllowedCpus();
  ThreadPool pool(3);
  std::vector<int> wanted;
  for (int thread = 0; thread < 3; ++thread) wanted.push_back(allowed[thread % allowed.size()]);
  CHECK_EQ(pool.PinWorkers(wanted), "");
  const auto found = CpusOfThreads(pool);
  CHECK(found[0] == allowed);
  for (int thread = 1; thread < 3; ++thread) CHECK(found[thread] == std::vector<int>{wanted[thread]}, thread);
  CHECK(CountRuns(pool, 70) == std::vector<int>(70, 1));
}

TEST("thread_pool: CPUs that the process may not use are refused, and no worker is moved") {
  const std::vector<int> allowed = AllowedCpus();
  ThreadPool pool(2);
  for (const int cpu : {-1, CPU_SETSIZE - 1, CPU_SETSIZE, 1 << 30}) {
    if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) continue;
    const std::vector<int> cpus = {allowed[0], cpu};
    CHECK(pool.PinWorkers(cpus).find("may use") != std::string::npos, cpu);
  }
  CHECK(CpusOfThreads(pool)[1] == allowed);
}

TEST("thread_pool: a pool takes as many CPUs as it has threads") {
  ThreadPool pool(2);
  const std::vector<int> cpus(3, AllowedCpus()[0]);
  for (const int count : {0, 1, 3}) {
    CHECK(pool.PinWorkers(std::span(cpus).first(count)).find("each of the 2 threads") != std::string::npos, count);
  }
}
#endif

}  // namespace
}  // namespace headrace::tests
