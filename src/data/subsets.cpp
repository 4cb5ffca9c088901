#include "data/subsets.h"

#include <c10/util/Exception.h>
#include <luna/data/memory_dataset.h>

#include <algorithm>

#include "data/order.h"

namespace luna::data {
namespace {

/// Of the validation splits; never change it: published numbers hang on it.
constexpr uint64_t kHoldOutSeed = 2021;

}  // namespace

std::shared_ptr<Dataset> subset(const Dataset& data,
                                std::span<const int64_t> indices) {
  auto out = std::make_shared<MemoryDataset>(data.info());
  int64_t ids = 0;
  for (const int64_t index : indices) {
    const Sample sample = data[index];
    ids += std::ssize(sample.ids) + std::ssize(sample.second);
  }
  out->reserve(std::ssize(indices), ids);
  for (const int64_t index : indices) out->add(data[index]);
  return out;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> hold_out(int64_t size,
                                                               double share) {
  TORCH_CHECK_VALUE(size >= 2,
                    "hold_out: expected at least 2 samples in train, one of "
                    "them for validation, got ",
                    size);
  const auto count = std::max<int64_t>(
      1, static_cast<int64_t>(share * static_cast<double>(size) + 1e-9));
  const std::vector<int64_t> order = permutation(size, kHoldOutSeed, 0);
  std::vector<int64_t> held(order.begin(), order.begin() + count);
  std::vector<int64_t> kept(order.begin() + count, order.end());
  std::sort(held.begin(), held.end());
  std::sort(kept.begin(), kept.end());
  return {kept, held};
}

std::shared_ptr<Dataset> at_most(std::shared_ptr<Dataset> data, int64_t samples,
                                 uint64_t seed) {
  if (samples == 0 || samples >= data->size()) return data;
  std::vector<int64_t> chosen = permutation(data->size(), seed, 0);
  chosen.resize(samples);
  std::sort(chosen.begin(), chosen.end());
  return subset(*data, chosen);
}

}  // namespace luna::data
