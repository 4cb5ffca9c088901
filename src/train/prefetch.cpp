#include "train/prefetch.h"

#include <chrono>
#include <utility>

namespace luna::train {
namespace {

constexpr size_t kAhead = 2;

}  // namespace

Prefetch::Prefetch(Make make, int64_t first, int64_t end)
    : make_(std::move(make)), thread_([=, this] { work(first, end); }) {}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetch::work(int64_t first, int64_t end) {
  try {
    for (int64_t step = first; step < end; ++step) {
      std::vector<data::Batch> batches = make_(step);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < kAhead; });
      if (stop_) return;
      ready_.push_back(std::move(batches));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

std::vector<data::Batch> Prefetch::next() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_; });
  waited_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  if (ready_.empty()) std::rethrow_exception(error_);
  std::vector<data::Batch> batches = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batches;
}

}  // namespace luna::train
