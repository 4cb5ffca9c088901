#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Safetensors: 8 bytes that hold the header's size, a JSON header, the tensors'
// bytes. docs/weights.md has the rules that are enforced.

namespace luna::io {

class MemoryMap;

/// What a file says of one tensor.
struct TensorEntry {
  std::string name{};
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes{};
  int64_t bytes = 0;
  int64_t offset = 0;  ///< of the first byte, from the start of the file
};

/// A safetensors file, opened and checked as a whole. Copies share the mapping.
class Safetensors {
 public:
  /// Throws ValueError that names file, tensor and field if any rule of the
  /// format is broken; Error with the system's reason if it cannot be read.
  static Safetensors open(const std::string& path);

  const std::string& path() const;
  /// In the order of the file's header.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  bool contains(const std::string& name) const;
  const TensorEntry& entry(const std::string& name) const;
  /// A view of the mapped file that keeps the mapping alive, read from disk
  /// when touched. Writing to it is safe and changes neither the file nor what
  /// another process sees, but it changes what a second call returns: clone
  /// what is to be trained. (A tensor that lies in the file at an address
  /// which does not fit its type is copied.)
  at::Tensor tensor(const std::string& name) const;

 private:
  const TensorEntry* find(const std::string& name) const;

  std::shared_ptr<MemoryMap> file_;
  std::vector<TensorEntry> entries_;
  std::vector<uint32_t> by_name_;  ///< indices of entries_, sorted by name
  std::map<std::string, std::string> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes the file atomically, the header in the order given. Tensors may lie
/// on any device and have any strides. Refused: two of one name, types the
/// format does not have, sparse tensors.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// The format's name of a type, such as "BF16"; throws if it has none.
std::string safetensors_dtype_name(at::ScalarType dtype);

}  // namespace luna::io
