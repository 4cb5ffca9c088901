#include <c10/util/Exception.h>
#include <luna/convert/glue_data.h>
#include <luna/data/token_dataset.h>

#include <algorithm>
#include <numeric>

#include "data/order.h"
#include "data/subsets.h"

namespace luna::convert {
namespace {

constexpr double kHeldOut = 0.1;
/// Of the choice of `samples`: the same for every run.
constexpr uint64_t kChoiceSeed = 1;

using Examples = std::vector<data::GlueExample>;

std::vector<int64_t> at_most(std::vector<int64_t> indices, int64_t samples) {
  if (samples == 0 || samples >= std::ssize(indices)) return indices;
  std::vector<int64_t> chosen;
  for (const int64_t place :
       data::permutation(std::ssize(indices), kChoiceSeed, 0)) {
    if (std::ssize(chosen) == samples) break;
    chosen.push_back(indices[place]);
  }
  return chosen;
}

std::shared_ptr<data::Dataset> tokenise(const Examples& examples,
                                        const std::vector<int64_t>& indices,
                                        const data::TaskInfo& info,
                                        const text::WordPiece& tokenizer,
                                        const text::EncodeOptions& options,
                                        int64_t vocabulary) {
  auto split = std::make_shared<data::TokenDataset>(info);
  std::vector<int32_t> tokens;
  for (const int64_t index : indices) {
    const data::GlueExample& example = examples[index];
    const text::Encoding encoding =
        example.second
            ? tokenizer.encode(example.first, *example.second, options)
            : tokenizer.encode(example.first, options);
    tokens.resize(encoding.ids.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(encoding.ids[i] +
                                       vocabulary * encoding.type_ids[i]);
    }
    const bool scores = info.classes == 1;
    split->add(tokens, scores ? 0 : static_cast<int64_t>(example.label),
               example.second ? example.first + " / " + *example.second
                              : example.first,
               scores ? example.label : 0);
  }
  return split;
}

}  // namespace

data::TaskInfo glue_info(const data::GlueTask& task,
                         const models::BertConfig& bert) {
  TORCH_CHECK_VALUE(!task.pairs() || bert.token_types >= 2, task.name,
                    ": expected a model with two token types for pairs, got ",
                    bert.token_types);
  return {.task = task.name,
          .vocabulary = bert.vocabulary * bert.token_types,
          .classes = std::max<int64_t>(1, std::ssize(task.classes)),
          .metric = task.metrics.front()};
}

data::Splits open_glue(const std::string& name, const std::string& folder,
                       const text::WordPiece& tokenizer,
                       const models::BertConfig& bert,
                       const GlueDataOptions& options) {
  const data::GlueTask& task = data::find_glue_task(name);
  const data::TaskInfo info = glue_info(task, bert);
  TORCH_CHECK_VALUE(tokenizer.size() <= bert.vocabulary,
                    "open_glue: expected a tokenizer of at most vocab_size = ",
                    bert.vocabulary, " tokens, got ", tokenizer.size());
  const std::string train_file = data::find_glue_file(task, folder, "train");
  const std::string test_file =
      data::find_glue_file(task, folder, "validation");
  const Examples train = data::read_glue(task, train_file).examples;
  const Examples test = data::read_glue(task, test_file).examples;
  const auto [kept, held] = data::hold_out(name, std::ssize(train), kHeldOut);
  std::vector<int64_t> all(test.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  text::EncodeOptions encode;
  encode.max_length = options.max_length > 0
                          ? std::min(options.max_length, bert.positions)
                          : bert.positions;
  const auto split = [&](const Examples& examples,
                         const std::vector<int64_t>& indices) {
    return tokenise(examples, at_most(indices, options.samples), info,
                    tokenizer, encode, bert.vocabulary);
  };
  return {.train = split(train, kept),
          .validation = split(train, held),
          .test = split(test, all),
          .source = train_file + ", " + test_file};
}

}  // namespace luna::convert
