#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace luna::io {

/// A type as the format names it and as LibTorch has it.
struct SafetensorsDtype {
  const char* name;
  at::ScalarType dtype;  ///< Undefined: LibTorch has none
  /// Elements that the format counts in one LibTorch element (F4: 2, packed
  /// along the last dimension).
  int64_t packed = 1;
};

/// Null if the format has no such name.
const SafetensorsDtype* find_dtype(const std::string& name);
/// Null if the format has no such type.
const SafetensorsDtype* find_dtype(at::ScalarType dtype);
/// All names, for messages.
std::string dtype_names();

}  // namespace luna::io
