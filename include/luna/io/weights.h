#pragma once

#include <map>
#include <string>
#include <vector>

#include "luna/io/safetensors.h"

namespace luna::io {

/// A model's tensors, from one safetensors file or from the shards that a
/// model.safetensors.index.json names.
class Weights {
 public:
  explicit Weights(std::vector<Safetensors> files);

  /// All tensors, file by file.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// What the files say, together.
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  bool contains(const std::string& name) const;
  /// As Safetensors::tensor.
  at::Tensor tensor(const std::string& name) const;
  const std::vector<Safetensors>& files() const { return files_; }

 private:
  std::vector<Safetensors> files_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, size_t> file_of_;
  std::map<std::string, std::string> metadata_;
};

/// Opens a .safetensors file, a model.safetensors.index.json, or a folder that
/// holds model.safetensors or such an index. The index must name every tensor
/// of every shard, and each must be where it says. Pickled weights (.bin, .pt)
/// are refused with the way to convert them: reading them could run code.
Weights open_weights(const std::string& path);

}  // namespace luna::io
