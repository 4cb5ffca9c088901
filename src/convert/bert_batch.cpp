#include <ATen/ATen.h>
#include <luna/convert/bert_batch.h>

#include <algorithm>

namespace luna::convert {

models::BertInput make_bert_batch(const text::WordPiece& tokenizer,
                                  const std::vector<Text>& texts,
                                  int64_t max_length) {
  text::EncodeOptions options;
  options.max_length = max_length;
  std::vector<text::Encoding> rows;
  int64_t longest = 0;
  for (const auto& [first, second] : texts) {
    rows.push_back(second ? tokenizer.encode(first, *second, options)
                          : tokenizer.encode(first, options));
    longest = std::max(longest, std::ssize(rows.back().ids));
  }
  const auto shape = {std::ssize(rows), longest};
  auto ids = at::full(shape, tokenizer.pad_id(), at::kLong);
  auto type_ids = at::zeros(shape, at::kLong);
  auto mask = at::zeros(shape, at::kBool);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto count = std::ssize(rows[i].ids);
    const auto row = static_cast<int64_t>(i);
    std::ranges::copy(rows[i].ids, ids[row].data_ptr<int64_t>());
    std::ranges::copy(rows[i].type_ids, type_ids[row].data_ptr<int64_t>());
    mask[row].narrow(0, 0, count).fill_(true);
  }
  return {ids, type_ids, mask};
}

}  // namespace luna::convert
