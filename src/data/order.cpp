#include "data/order.h"

#include <c10/util/Exception.h>
#include <luna/data/batch.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/random.h"

namespace luna::data {

std::vector<int64_t> permutation(int64_t size, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), int64_t{0});
  Random random(seed, stream);
  for (int64_t i = size - 1; i > 0; --i) {
    std::swap(order[i], order[random.below(static_cast<uint32_t>(i + 1))]);
  }
  return order;
}

DataOrder::DataOrder(int64_t size, int64_t batch, uint64_t seed)
    : size_(size), batch_(batch), seed_(seed) {
  TORCH_CHECK_VALUE(size >= 1 && size < int64_t{1} << 32,
                    "DataOrder: size: expected 1 to 2^32 - 1, got ", size);
  TORCH_CHECK_VALUE(batch >= 1, "DataOrder: batch: expected at least 1, got ",
                    batch);
}

const std::vector<int64_t>& DataOrder::permutation(int64_t epoch) {
  if (epoch != cached_epoch_) {
    cached_ = data::permutation(size_, seed_, epoch);
    cached_epoch_ = epoch;
  }
  return cached_;
}

std::vector<int64_t> DataOrder::batch(int64_t step) {
  TORCH_CHECK_VALUE(step >= 0,
                    "DataOrder::batch: step: expected 0 or more, got ", step);
  std::vector<int64_t> indices;
  indices.reserve(batch_);
  int64_t position = step * batch_;
  while (std::ssize(indices) < batch_) {
    const auto& order = permutation(position / size_);
    const int64_t from = position % size_;
    const int64_t count = std::min(size_ - from, batch_ - std::ssize(indices));
    indices.insert(indices.end(), order.begin() + from,
                   order.begin() + from + count);
    position += count;
  }
  return indices;
}

int64_t DataOrder::epoch(int64_t step) const { return step * batch_ / size_; }

}  // namespace luna::data
