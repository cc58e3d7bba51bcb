#include "thread_pool.h"

#include <cerrno>
#include <chrono>
#include <cstring>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

// Longer than the gap between two operations of a step, shorter than a scheduler's time slice: a worker
// that finds nothing for this long sleeps, so that an idle server costs no CPU.
constexpr auto kSpinTime = std::chrono::microseconds(100);
constexpr int kSpinsPerClockRead = 64;

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `epoch` differs from `seen` or the time is up; returns whether it changed.
bool SpinForChange(const std::atomic<uint32_t>& epoch, uint32_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if (epoch.load(std::memory_order_acquire) != seen) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

#if defined(__linux__)
// What keeps threads from being put on `cpus`, or an empty string. A thread may not leave the CPUs its process was
// started on: the system would let it go wherever no cpuset forbids, beyond what taskset or a supervisor meant.
std::string PlacementProblem(std::span<const int> cpus) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return std::string("the CPUs of this process cannot be read: ") + std::strerror(errno);
  }
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) {
      return "CPU " + std::to_string(cpu) + " is not one that this process may use";
    }
  }
  return {};
}

int PlaceOn(pthread_t thread, int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return pthread_setaffinity_np(thread, sizeof(one), &one);
}
#endif

}  // namespace

ThreadPool::ThreadPool(int num_threads) : tickets_(num_threads > 1 ? num_threads : 1) {
  workers_.reserve(num_threads > 1 ? num_threads - 1 : 0);
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::string ThreadPool::PinWorkers(std::span<const int> cpus) {
  if (static_cast<int>(cpus.size()) != num_threads()) {
    return "there must be a CPU for each of the " + std::to_string(num_threads()) + " threads, not " +
           std::to_string(cpus.size());
  }
#if defined(__linux__)
  if (std::string problem = PlacementProblem(cpus); !problem.empty()) return problem;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const int error = PlaceOn(workers_[i].native_handle(), cpus[i + 1]);
    if (error == 0) continue;
    return "thread " + std::to_string(i + 1) + " cannot be kept on CPU " + std::to_string(cpus[i + 1]) + ": " +
           std::strerror(error);
  }
  return {};
#else
  return "threads can be kept on CPUs on Linux alone";
#endif
}

void ThreadPool::RunErased(int num_pieces, Call call, const void* context) {
  if (num_pieces <= 1 || workers_.empty()) {
    for (int piece = 0; piece < num_pieces; ++piece) call(context, piece, 0);
    return;
  }
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_pieces_.store(num_pieces, std::memory_order_relaxed);
  num_finished_.store(0, std::memory_order_relaxed);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  for (int thread = 0; thread < num_threads(); ++thread) {
    const int count = ShareBegin(num_pieces, thread + 1) - ShareBegin(num_pieces, thread);
    tickets_[thread].value.store(static_cast<uint64_t>(epoch) << 32 | static_cast<uint32_t>(count),
                                 std::memory_order_release);
  }
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();

  TakePieces(epoch, 0);
  while (num_finished_.load(std::memory_order_acquire) != num_pieces) Pause();
}

void ThreadPool::TakePieces(uint32_t epoch, int thread) {
  const Call call = call_.load(std::memory_order_relaxed);
  const void* context = context_.load(std::memory_order_relaxed);
  const int num_pieces = num_pieces_.load(std::memory_order_relaxed);
  for (int turn = 0; turn < num_threads(); ++turn) {  // its own share first, then the others'
    const int owner = (thread + turn) % num_threads();
    std::atomic<uint64_t>& value = tickets_[owner].value;
    uint64_t ticket = value.load(std::memory_order_acquire);
    for (;;) {
      const int num_left = static_cast<int>(ticket & 0xffffffffu);
      if (static_cast<uint32_t>(ticket >> 32) != epoch || num_left == 0) break;
      if (!value.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      call(context, ShareBegin(num_pieces, owner + 1) - num_left, thread);
      num_finished_.fetch_add(1, std::memory_order_acq_rel);
      ticket = value.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    if (!SpinForChange(epoch_, seen)) {
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      epoch_.wait(seen, std::memory_order_seq_cst);
      num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (stopping_.load()) return;
    seen = epoch_.load(std::memory_order_acquire);
    TakePieces(seen, thread);
  }
}

}  // namespace headrace
