// A pool that hands out work in small numbered pieces.
//
// Each thread has a share of neighbouring pieces to begin with, so that it reads long stretches of memory, and finds
// in its own caches what it wrote for the same rows an operation before. Whoever is done with its share takes pieces
// of another's, so a core that is busy elsewhere delays one piece and not the whole operation. Results must not
// depend on who computes a piece: pieces write disjoint outputs.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace headrace {

class ThreadPool {
 public:
  // `num_threads` counts the caller: 1 means that no thread is started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(tickets_.size()); }

  // Keeps each thread on a CPU of its own: thread t on cpus[t], but not thread 0. That is the caller, and whatever it
  // starts later, other processes included, would inherit its one CPU; cpus[0] is left free for it instead. Returns
  // what is wrong, or an empty string. Not while a job runs.
  std::string PinWorkers(std::span<const int> cpus);

  // Calls body(piece, thread) once for each piece in [0, num_pieces), thread in [0, num_threads()), and
  // returns when all are done. One caller at a time. `body` must not throw.
  template <typename Body>
  void Run(int num_pieces, const Body& body) {
    RunErased(num_pieces, [](const void* context, int piece, int thread) {
      (*static_cast<const Body*>(context))(piece, thread);
    }, &body);
  }

 private:
  using Call = void (*)(const void* context, int piece, int thread);

  void RunErased(int num_pieces, Call call, const void* context);
  void WorkerLoop(int thread);
  void TakePieces(uint32_t epoch, int thread);

  // The first of the pieces that are a thread's to begin with; its share ends where the next thread's begins.
  int ShareBegin(int num_pieces, int thread) const {
    return static_cast<int>(int64_t{num_pieces} * thread / num_threads());
  }

  // Epoch in the upper half, number of unclaimed pieces of a share in the lower. Each on a cache line of its own.
  struct alignas(64) Ticket {
    std::atomic<uint64_t> value{0};
  };

  // The job. Its fields may be read while the next job is being written; a reader uses them only after it
  // has claimed a piece of the epoch it read them for, which proves that they were still that epoch's: a job
  // with a piece left is not over. So the claim itself must rest on nothing but the ticket.
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int> num_pieces_{0};
  std::vector<Ticket> tickets_;  // of each thread's share
  alignas(64) std::atomic<int> num_finished_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace headrace
