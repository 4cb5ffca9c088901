#pragma once

#include <luna/data/batch.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace luna::train {

/// Makes the batches of step after step in a thread of its own, two steps
/// ahead of who takes them.
class Prefetch {
 public:
  /// `make` gives the batches of a step; steps `first` to `end` - 1.
  using Make = std::function<std::vector<data::Batch>(int64_t step)>;
  Prefetch(Make make, int64_t first, int64_t end);
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// The batches of the next step. Rethrows what `make` threw.
  std::vector<data::Batch> next();
  /// How long next() waited, in all.
  double waited() const { return waited_; }

 private:
  void work(int64_t first, int64_t end);

  Make make_;
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<std::vector<data::Batch>> ready_{};
  std::exception_ptr error_{};
  bool stop_ = false;
  double waited_ = 0.0;
  std::thread thread_{};
};

}  // namespace luna::train
