#include "luna/io/weights.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "io/strict_json.h"
#include "luna/io/memory_map.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// The index: {"metadata": anything, "weight_map": {tensor: shard}}.
class IndexHandler : public StrictJson {
 public:
  explicit IndexHandler(const std::string& path) : StrictJson(path) {}

  bool null() override { return skipped() || StrictJson::null(); }
  bool boolean(bool value) override {
    return skipped() || StrictJson::boolean(value);
  }
  bool number_integer(number_integer_t value) override {
    return skipped() || StrictJson::number_integer(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return skipped() || StrictJson::number_unsigned(value);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return skipped() || StrictJson::number_float(value, text);
  }

  bool string(string_t& value) override {
    if (skipped()) return true;
    if (!in_map_) refuse(in_quotes(value));
    check_shard(value);
    keep(192 + tensor_.size() + value.size());
    shard_of.emplace(std::move(tensor_), std::move(value));
    return true;
  }

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (in_metadata_) return check_depth();
    if (depth_ > 2 || field_ != "weight_map") refuse("an object");
    in_map_ = true;
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 1) {
      field_ = std::move(key);
      if (field_ != "weight_map" && field_ != "metadata") {
        refuse("index", "metadata and weight_map",
               "the key " + in_quotes(field_));
      }
      if (!fields_.insert(field_).second) {
        refuse(field_, "the key once", "it twice");
      }
      in_metadata_ = field_ == "metadata";
    } else if (in_map_) {
      tensor_ = std::move(key);
      if (shard_of.contains(tensor_)) {
        refuse(place(), "the tensor once", "it twice");
      }
    }
    return true;
  }

  bool end_object() override { return close(); }
  bool start_array(size_t) override {
    ++depth_;
    if (!in_metadata_ || depth_ == 1) refuse("an array");
    return check_depth();
  }
  bool end_array() override { return close(); }

  void check_complete() const {
    if (!fields_.contains("weight_map")) {
      refuse("weight_map", "it to be there", "none");
    }
    if (shard_of.empty()) refuse("weight_map", "a tensor", "none");
  }

  std::map<std::string, std::string> shard_of;

 protected:
  std::string place() const override {
    if (in_map_) return "weight_map: " + in_quotes(tensor_);
    return field_.empty() ? "index" : field_;
  }
  std::string expected() const override {
    return in_map_ ? "a file's name" : "an object";
  }

 private:
  bool skipped() const { return in_metadata_ && depth_ > 1; }

  bool check_depth() const {
    if (depth_ > 16) refuse(place(), "at most 16 levels", "more");
    return true;
  }

  bool close() {
    --depth_;
    if (depth_ == 1) in_map_ = in_metadata_ = false;
    return true;
  }

  /// Only a file beside the index, of the right kind: an index could name
  /// anything on the machine.
  void check_shard(const std::string& name) const {
    const bool plain = name.find('/') == std::string::npos &&
                       name.find('\\') == std::string::npos &&
                       name.find('\0') == std::string::npos;
    if (!plain || name.size() > 255 || name.starts_with('.') ||
        !name.ends_with(".safetensors")) {
      refuse(place(),
             "the name of a .safetensors file in the folder of the index",
             in_quotes(name));
    }
  }

  int depth_ = 0;
  bool in_map_ = false;
  bool in_metadata_ = false;
  std::string field_;
  std::string tensor_;
  std::set<std::string> fields_;
};

void refuse_pickle(const fs::path& path) {
  TORCH_CHECK_VALUE(
      false, path.string(),
      ": expected safetensors, got pickled weights, which can run code when "
      "they are read. Convert them where you trust them: python -c \"import "
      "sys, torch, safetensors.torch as s; w = torch.load(sys.argv[1], "
      "map_location='cpu', weights_only=True); s.save_file({k: "
      "v.contiguous().clone() for k, v in w.items()}, sys.argv[2])\" ",
      path.string(), " ", (path.parent_path() / kSingle).string());
}

bool has_pickle_name(const fs::path& path) {
  static const std::set<std::string> endings = {".bin",  ".pt",     ".pth",
                                                ".ckpt", ".pickle", ".pkl"};
  return endings.contains(path.extension().string());
}

/// torch.save writes a zip archive, or before version 1.6 a bare pickle.
bool has_pickle_start(const MemoryMap& file) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<size_t>(file.size(), 9));
  const bool zip = start.starts_with("PK\x03\x04");
  const bool pickle =
      start.size() >= 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5;
  return (zip || pickle) && !start.ends_with('{');  // a header's first byte
}

Weights open_index(const fs::path& index) {
  const std::shared_ptr<MemoryMap> text = MemoryMap::open(index.string());
  IndexHandler handler(index.string());
  handler.parse({reinterpret_cast<const char*>(text->data()), text->size()});
  handler.check_complete();

  std::map<std::string, size_t> number_of;
  std::vector<Safetensors> shards;
  for (const auto& [tensor, shard] : handler.shard_of) {
    const auto [found, fresh] = number_of.try_emplace(shard, shards.size());
    if (fresh) {
      const fs::path path = index.parent_path() / shard;
      TORCH_CHECK_VALUE(fs::exists(path), index.string(),
                        ": weight_map: ", in_quotes(tensor),
                        ": expected the file ", in_quotes(shard),
                        " beside the index, got none");
      shards.push_back(Safetensors::open(path.string()));
    }
    TORCH_CHECK_VALUE(shards[found->second].contains(tensor), index.string(),
                      ": weight_map: ", in_quotes(tensor),
                      ": expected it in the file ", in_quotes(shard),
                      ", got a file without it");
  }
  for (const Safetensors& shard : shards) {
    const std::string name = fs::path(shard.path()).filename().string();
    for (const TensorEntry& entry : shard.entries()) {
      const auto listed = handler.shard_of.find(entry.name);
      TORCH_CHECK_VALUE(
          listed != handler.shard_of.end() && listed->second == name,
          shard.path(), ": tensor ", in_quotes(entry.name),
          ": expected only tensors that ", index.string(),
          " puts into this file, got one that it ",
          listed == handler.shard_of.end() ? "does not name"
                                           : "puts into another");
    }
  }
  return Weights(std::move(shards));
}

Weights open_folder(const fs::path& folder) {
  if (fs::exists(folder / kSingle)) {
    return open_weights((folder / kSingle).string());
  }
  if (fs::exists(folder / kIndex)) return open_index(folder / kIndex);
  std::optional<fs::path> pickle;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (has_pickle_name(entry.path())) pickle = entry.path();
  }
  if (pickle) refuse_pickle(*pickle);
  TORCH_CHECK_VALUE(false, folder.string(), ": expected ", kSingle, " or ",
                    kIndex, " in it, got a folder without either");
}

}  // namespace

Weights::Weights(std::vector<Safetensors> files) : files_(std::move(files)) {
  for (size_t i = 0; i < files_.size(); ++i) {
    const Safetensors& file = files_[i];
    for (const TensorEntry& entry : file.entries()) {
      TORCH_CHECK_VALUE(file_of_.emplace(entry.name, i).second, file.path(),
                        ": tensor ", in_quotes(entry.name),
                        ": expected it in one file, got it in two");
      entries_.push_back(entry);
    }
    for (const auto& [key, value] : file.metadata()) {
      const auto [known, fresh] = metadata_.emplace(key, value);
      TORCH_CHECK_VALUE(fresh || known->second == value, file.path(),
                        ": __metadata__: ", in_quotes(key), ": expected ",
                        in_quotes(known->second), " as in another shard, got ",
                        in_quotes(value));
    }
  }
}

bool Weights::contains(const std::string& name) const {
  return file_of_.contains(name);
}

at::Tensor Weights::tensor(const std::string& name) const {
  const auto found = file_of_.find(name);
  TORCH_CHECK_VALUE(found != file_of_.end(),
                    files_.empty() ? "weights" : files_.front().path(),
                    ": expected a tensor ", in_quotes(name),
                    ", got weights without it");
  return files_[found->second].tensor(name);
}

Weights open_weights(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return open_folder(path);
  if (path.ends_with(".json")) return open_index(path);
  const std::shared_ptr<MemoryMap> file = MemoryMap::open(path);
  if (has_pickle_name(path) || has_pickle_start(*file)) refuse_pickle(path);
  return Weights({Safetensors::open(path)});
}

}  // namespace luna::io
