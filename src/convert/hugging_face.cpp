#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/convert/hugging_face.h>
#include <luna/io/atomic.h>
#include <luna/io/text_file.h>

#include <filesystem>
#include <map>

#include "convert/hugging_face_config.h"

namespace luna::convert {
namespace {

namespace fs = std::filesystem;

/// Files that go with a model from folder to folder as they are.
constexpr const char* kCompanions[] = {
    "tokenizer.json",    "tokenizer_config.json",
    "vocab.txt",         "special_tokens_map.json",
    "added_tokens.json", "preprocessor_config.json"};

/// The model's parameters, and the buffers that are saved with them.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(
    const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module.named_parameters()) {
    all.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    all.emplace_back(item.key(), item.value());
  }
  return all;
}

bool is_replaced(const std::string& ours, const OpenOptions& options) {
  const bool head = ours.starts_with("head.") || ours.starts_with("pooler.");
  return (options.classes > 0 && head) ||
         (options.attention &&
          ours.find(".attention.feature_map.") != std::string::npos);
}

std::string joined(const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  return fmt::format("; {} ({}): {}", title, names.size(),
                     fmt::join(names, ", "));
}

Family family_of(const models::Bert& bert) {
  return bert.is_empty() ? Family::kVit : Family::kBert;
}

}  // namespace

torch::nn::Module& HuggingFaceModel::module() const {
  if (bert_.is_empty()) return *vit_.ptr();
  return *bert_.ptr();
}

HuggingFaceModel HuggingFaceModel::open(const std::string& folder,
                                        const OpenOptions& options) {
  const std::string path = (fs::path(folder) / "config.json").string();
  TORCH_CHECK_VALUE(options.classes >= 0 && options.classes <= 1'000'000,
                    "HuggingFaceModel: expected classes from 0 to 1000000, "
                    "got ",
                    options.classes);
  std::string text = io::read_text(path);
  HuggingFaceModel model(io::open_weights(folder));
  HuggingFaceConfig config = read_config(path, text, model.weights_, options);
  if (options.attention || options.classes > 0) {
    text = change_config(text, config);
  }
  model.folder_ = folder;
  model.new_head_ = options.classes > 0;
  model.architecture_ = config.architecture;
  model.config_text_ = std::move(text);
  model.labels_ = std::move(config.labels);
  if (config.family == Family::kBert) {
    model.bert_ = models::Bert(config.bert);
  } else {
    model.vit_ = models::Vit(config.vit);
  }
  model.load_weights(options);
  model.module().eval();
  return model;
}

void HuggingFaceModel::load_weights(const OpenOptions& options) {
  at::NoGradGuard no_grad;
  const Family family = family_of(bert_);
  const bool tied = bert_.is_empty() || bert_->config().tied;
  std::map<std::string, std::string> file_name;  // by canonical name
  for (const io::TensorEntry& entry : weights_.entries()) {
    const std::string name = canonical_name(family, entry.name, tied);
    // What is called by its own name counts before what is tied to it.
    if (canonical_name(family, entry.name, false) == name) {
      file_name[name] = entry.name;
    } else {
      file_name.try_emplace(name, entry.name);
    }
  }
  std::vector<std::string> missing, wrong;
  std::map<std::string, bool> used;
  for (auto& [ours, tensor] : tensors_of(module())) {
    const std::string name = their_name(family, ours);
    const auto found = file_name.find(name);
    const bool replaced = is_replaced(ours, options);
    if (found == file_name.end()) {
      (replaced ? fresh_ : missing).push_back(replaced ? ours : name);
      continue;
    }
    const at::Tensor given = weights_.tensor(found->second);
    if (given.sizes() != tensor.sizes() || !given.is_floating_point()) {
      if (replaced) {
        fresh_.push_back(ours);
        continue;
      }
      wrong.push_back(
          fmt::format("{} (expected [{}], got {} [{}])", found->second,
                      fmt::join(tensor.sizes(), ", "),
                      io::safetensors_dtype_name(given.scalar_type()),
                      fmt::join(given.sizes(), ", ")));
    } else {
      tensor.copy_(given);
    }
    used[name] = true;
  }
  for (const io::TensorEntry& entry : weights_.entries()) {
    const std::string name = canonical_name(family, entry.name, tied);
    if (!used.contains(name) && !is_buffer(name)) unused_.push_back(entry.name);
  }
  TORCH_CHECK_VALUE(
      missing.empty() && wrong.empty(), folder_, ": expected the weights of ",
      architecture_, ", got other ones", joined("missing", missing),
      joined("of another shape or type", wrong), joined("unused", unused_));
}

void HuggingFaceModel::write(const std::string& folder) const {
  const Family family = family_of(bert_);
  const bool tied = bert_.is_empty() || bert_->config().tied;
  std::map<std::string, at::Tensor> ours;  // by canonical name
  for (const auto& [name, tensor] : tensors_of(module())) {
    ours[their_name(family, name)] = tensor.detach();
  }
  io::NamedTensors tensors;
  std::map<std::string, bool> written;
  for (const io::TensorEntry& entry : weights_.entries()) {
    const std::string name = canonical_name(family, entry.name, tied);
    const auto found = ours.find(name);
    // A base model's names have no prefix; those of one with a head do.
    const std::string written_as =
        new_head_ ? with_prefix(family, architecture_,
                                canonical_name(family, entry.name, false))
                  : entry.name;
    if (found == ours.end()) {
      tensors.emplace_back(written_as, weights_.tensor(entry.name));
    } else {
      tensors.emplace_back(written_as, found->second.to(entry.dtype));
      written[name] = true;
    }
  }
  for (const auto& [name, tensor] : ours) {
    if (written.contains(name)) continue;
    tensors.emplace_back(with_prefix(family, architecture_, name), tensor);
  }
  io::AtomicFolder out(folder);
  io::write_safetensors(out.file("model.safetensors"), tensors,
                        weights_.metadata());
  io::write_text(out.file("config.json"), config_text_);
  for (const char* name : kCompanions) {
    const fs::path from = fs::path(folder_) / name;
    if (fs::exists(from)) {
      io::write_text(out.file(name), io::read_text(from.string()));
    }
  }
  out.commit();
}

}  // namespace luna::convert
