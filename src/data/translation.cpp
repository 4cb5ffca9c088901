#include "luna/data/translation.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <luna/io/safetensors.h>

#include <algorithm>
#include <filesystem>

namespace luna::data {
namespace {

constexpr const char* kNames[] = {"source", "source_offsets", "target",
                                  "target_offsets"};

template <class T>
at::Tensor as_tensor(const std::vector<T>& values) {
  const auto type = c10::CppTypeToScalarType<T>::value;
  return at::from_blob(const_cast<T*>(values.data()), {std::ssize(values)},
                       type)
      .clone();
}

/// Refuses offsets and ids that do not fit each other.
void check_side(const std::string& where, const at::Tensor& ids,
                const at::Tensor& offsets, int64_t vocabulary) {
  TORCH_CHECK_VALUE(
      ids.dim() == 1 && ids.scalar_type() == at::kInt && offsets.dim() == 1 &&
          offsets.scalar_type() == at::kLong && offsets.numel() >= 1,
      where, ": expected rows of int32 ids and int64 offsets, ", "got ",
      ids.scalar_type(), " ", ids.sizes(), " and ", offsets.scalar_type(), " ",
      offsets.sizes());
  const int64_t* at = offsets.const_data_ptr<int64_t>();
  const int64_t count = offsets.numel();
  TORCH_CHECK_VALUE(at[0] == 0 && at[count - 1] == ids.numel() &&
                        std::is_sorted(at, at + count),
                    where, "_offsets: expected a rising row from 0 to ",
                    ids.numel(), ", got another");
  const int32_t* id = ids.const_data_ptr<int32_t>();
  const auto bad = std::find_if(id, id + ids.numel(), [&](int32_t i) {
    return i < 0 || i >= vocabulary;
  });
  TORCH_CHECK_VALUE(bad == id + ids.numel(), where, ": expected ids from 0 to ",
                    vocabulary - 1, ", the tokenizer's, got ",
                    bad == id + ids.numel() ? 0 : *bad);
}

std::span<const int32_t> row(const at::Tensor& ids, const at::Tensor& offsets,
                             int64_t index) {
  const int64_t* at = offsets.const_data_ptr<int64_t>() + index;
  return {ids.const_data_ptr<int32_t>() + at[0],
          static_cast<size_t>(at[1] - at[0])};
}

}  // namespace

TranslationSpecials translation_specials(const std::string& where,
                                         const text::Bpe& tokenizer) {
  const auto id_of = [&](const char* token) {
    const auto id = tokenizer.find(token);
    TORCH_CHECK_VALUE(id.has_value(), where,
                      ": expected the tokens <pad>, <s> ",
                      "and </s> in the vocabulary, got none for ", token);
    return *id;
  };
  return {id_of("<pad>"), id_of("<s>"), id_of("</s>")};
}

TranslationData::TranslationData(at::Tensor source, at::Tensor source_offsets,
                                 at::Tensor target, at::Tensor target_offsets)
    : source_(std::move(source)),
      source_offsets_(std::move(source_offsets)),
      target_(std::move(target)),
      target_offsets_(std::move(target_offsets)) {}

TranslationData TranslationData::encode(const ParallelText& text,
                                        const text::Bpe& tokenizer,
                                        int64_t max_tokens, int64_t& too_long) {
  std::vector<int32_t> source, target;
  std::vector<int64_t> source_offsets{0}, target_offsets{0};
  too_long = 0;
  for (const auto& [from, to] : text.pairs()) {
    const std::vector<int32_t> a = tokenizer.encode(from);
    const std::vector<int32_t> b = tokenizer.encode(to);
    if (max_tokens > 0 && std::max(std::ssize(a), std::ssize(b)) > max_tokens) {
      ++too_long;
      continue;
    }
    source.insert(source.end(), a.begin(), a.end());
    target.insert(target.end(), b.begin(), b.end());
    source_offsets.push_back(std::ssize(source));
    target_offsets.push_back(std::ssize(target));
  }
  return {as_tensor(source), as_tensor(source_offsets), as_tensor(target),
          as_tensor(target_offsets)};
}

TranslationData TranslationData::open(const std::string& folder,
                                      const std::string& split,
                                      int64_t vocabulary) {
  const std::string path =
      (std::filesystem::path(folder) / (split + ".safetensors")).string();
  TORCH_CHECK_VALUE(std::filesystem::exists(path), path,
                    ": expected a split that luna data translation wrote, got "
                    "no such file");
  const auto file = io::Safetensors::open(path);
  for (const char* name : kNames) {
    TORCH_CHECK_VALUE(file.contains(name), path, ": expected a tensor ", name,
                      ", got none");
  }
  TranslationData data(file.tensor(kNames[0]), file.tensor(kNames[1]),
                       file.tensor(kNames[2]), file.tensor(kNames[3]));
  check_side(path + ": source", data.source_, data.source_offsets_, vocabulary);
  check_side(path + ": target", data.target_, data.target_offsets_, vocabulary);
  TORCH_CHECK_VALUE(
      data.source_offsets_.numel() == data.target_offsets_.numel(), path,
      ": target_offsets: expected ", data.source_offsets_.numel(),
      " of them, got ", data.target_offsets_.numel());
  return data;
}

void TranslationData::save(const std::string& path) const {
  io::write_safetensors(path, {{kNames[0], source_},
                               {kNames[1], source_offsets_},
                               {kNames[2], target_},
                               {kNames[3], target_offsets_}});
}

TranslationData TranslationData::some(std::span<const int64_t> indices) const {
  std::vector<int32_t> source, target;
  std::vector<int64_t> source_offsets{0}, target_offsets{0};
  for (const int64_t i : indices) {
    const TranslationPair pair = (*this)[i];
    source.insert(source.end(), pair.source.begin(), pair.source.end());
    target.insert(target.end(), pair.target.begin(), pair.target.end());
    source_offsets.push_back(std::ssize(source));
    target_offsets.push_back(std::ssize(target));
  }
  return {as_tensor(source), as_tensor(source_offsets), as_tensor(target),
          as_tensor(target_offsets)};
}

TaskInfo translation_info(int64_t vocabulary) {
  return {.task = kTranslationTask,
          .vocabulary = vocabulary,
          .pairs = true,
          .metric = "bleu"};
}

TranslationDataset::TranslationDataset(const std::string& where,
                                       TranslationData data,
                                       text::Bpe tokenizer)
    : pairs_(std::move(data)),
      tokenizer_(std::move(tokenizer)),
      specials_(translation_specials(where, tokenizer_)),
      info_(translation_info(tokenizer_.size())) {
  for (int64_t i = 0; i < pairs_.size(); ++i) {
    const auto [source, target] = pairs_[i];
    longest_ = std::max({longest_, std::ssize(source), std::ssize(target)});
  }
}

Sample TranslationDataset::operator[](int64_t index) const {
  return {.tokens = pairs_[index].source};
}

TranslationPair TranslationData::operator[](int64_t index) const {
  TORCH_CHECK_INDEX(index >= 0 && index < size(),
                    "TranslationData: expected an index from 0 to ", size() - 1,
                    ", got ", index);
  return {row(source_, source_offsets_, index),
          row(target_, target_offsets_, index)};
}

}  // namespace luna::data
