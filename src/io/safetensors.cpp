#include "luna/io/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "io/safetensors_header.h"
#include "io/strict_json.h"
#include "luna/io/memory_map.h"

namespace luna::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors hold little-endian numbers");

/// Another byte in a bool is undefined behaviour for whoever reads it.
void check_bools(const std::byte* data, int64_t bytes, const std::string& path,
                 const std::string& name) {
  const auto* bad = std::find_if(data, data + bytes, [](std::byte b) {
    return std::to_integer<int>(b) > 1;
  });
  TORCH_CHECK_VALUE(bad == data + bytes, path, ": tensor ", in_quotes(name),
                    ": data: expected 0 or 1 for BOOL, got ",
                    std::to_integer<int>(*bad), " at element ", bad - data);
}

}  // namespace

Safetensors Safetensors::open(const std::string& path) {
  Safetensors opened;
  opened.file_ = MemoryMap::open(path);
  SafetensorsHeader header =
      read_header({opened.file_->data(), opened.file_->size()}, path);
  opened.entries_ = std::move(header.entries);
  opened.by_name_ = std::move(header.by_name);
  opened.metadata_ = std::move(header.metadata);
  return opened;
}

const std::string& Safetensors::path() const { return file_->path(); }

const TensorEntry* Safetensors::find(const std::string& name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](uint32_t i, const std::string& n) { return entries_[i].name < n; });
  if (found == by_name_.end() || entries_[*found].name != name) return nullptr;
  return &entries_[*found];
}

bool Safetensors::contains(const std::string& name) const {
  return find(name) != nullptr;
}

const TensorEntry& Safetensors::entry(const std::string& name) const {
  const TensorEntry* found = find(name);
  TORCH_CHECK_VALUE(found != nullptr, path(), ": expected a tensor ",
                    in_quotes(name), ", got a file without it");
  return *found;
}

at::Tensor Safetensors::tensor(const std::string& name) const {
  const TensorEntry& e = entry(name);
  const at::TensorOptions options(e.dtype);
  if (e.bytes == 0) return at::empty(e.sizes, options);
  std::byte* data = file_->data() + e.offset;
  if (e.dtype == at::kBool) check_bools(data, e.bytes, path(), name);
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(e.dtype) != 0) {
    at::Tensor copy = at::empty(e.sizes, options);
    std::memcpy(copy.data_ptr(), data, static_cast<size_t>(e.bytes));
    return copy;
  }
  return at::from_blob(
      data, e.sizes, [keep = file_](void*) {}, options);
}

}  // namespace luna::io
