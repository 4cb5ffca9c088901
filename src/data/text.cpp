#include <luna/data/memory_dataset.h>

#include "data/imdb.h"
#include "data/loaders.h"
#include "data/subsets.h"

namespace luna::data {
namespace {

std::shared_ptr<Dataset> as_dataset(const std::vector<Review>& reviews,
                                    const TaskInfo& info, int64_t max_length) {
  auto data = std::make_shared<MemoryDataset>(info);
  for (const Review& review : reviews) {
    data->add(
        {.ids = text_ids(review.text, max_length), .label = review.label});
  }
  return data;
}

}  // namespace

Splits load_text(const Task& task, const LoadOptions& options) {
  const Imdb imdb =
      read_imdb(task.name, options.folder, /*movies=*/false, options.progress);
  const int64_t length = kept_length(task, options);
  const auto whole = as_dataset(imdb.train, task.info, length);
  const auto [kept, held] = hold_out(whole->size(), 2000.0 / 25000);
  return {.train = subset(*whole, kept),
          .validation = subset(*whole, held),
          .test = as_dataset(imdb.test, task.info, length),
          .source = imdb.source};
}

}  // namespace luna::data
