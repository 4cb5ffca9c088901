#include "data/blocks.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace luna::data {

namespace {

/// The state that the threads of one call share.
struct Shared {
  std::mutex mutex{};
  std::condition_variable changed{};
  int64_t next = 0;  ///< first item that no thread has taken
  int64_t done = 0;
  int running = 0;
  std::exception_ptr error{};
};

}  // namespace

void for_each_block(int64_t total, int64_t block, int threads,
                    const std::function<void(int64_t, int64_t)>& work,
                    const GenerateProgress& progress) {
  if (threads <= 0) {
    threads =
        static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }
  const int64_t blocks = (total + block - 1) / block;
  threads = static_cast<int>(std::min<int64_t>(threads, blocks));

  Shared shared;
  shared.running = threads;
  const auto run = [&] {
    std::unique_lock lock(shared.mutex);
    while (shared.next < total && !shared.error) {
      const int64_t first = shared.next;
      const int64_t last = std::min(first + block, total);
      shared.next = last;
      lock.unlock();
      std::exception_ptr error;
      try {
        work(first, last);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      shared.done += last - first;
      if (error && !shared.error) shared.error = error;
      shared.changed.notify_one();
    }
    --shared.running;
    shared.changed.notify_one();
  };

  std::vector<std::jthread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(run);
  std::unique_lock lock(shared.mutex);
  int64_t reported = 0;
  const auto news = [&] {
    return progress && !shared.error && shared.done > reported;
  };
  while (true) {
    shared.changed.wait(lock, [&] { return shared.running == 0 || news(); });
    if (!news()) break;
    reported = shared.done;
    lock.unlock();
    std::exception_ptr error;
    try {
      progress(reported, total);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) shared.error = error;
  }
  lock.unlock();
  pool.clear();
  if (shared.error) std::rethrow_exception(shared.error);
}

}  // namespace luna::data
