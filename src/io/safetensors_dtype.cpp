#include "io/safetensors_dtype.h"

#include <c10/util/Exception.h>

#include <array>

#include "luna/io/safetensors.h"

namespace luna::io {
namespace {

using at::ScalarType;

constexpr std::array<SafetensorsDtype, 22> kDtypes = {{
    {"F64", ScalarType::Double},
    {"F32", ScalarType::Float},
    {"F16", ScalarType::Half},
    {"BF16", ScalarType::BFloat16},
    {"I64", ScalarType::Long},
    {"I32", ScalarType::Int},
    {"I16", ScalarType::Short},
    {"I8", ScalarType::Char},
    {"U64", ScalarType::UInt64},
    {"U32", ScalarType::UInt32},
    {"U16", ScalarType::UInt16},
    {"U8", ScalarType::Byte},
    {"BOOL", ScalarType::Bool},
    {"C64", ScalarType::ComplexFloat},
    {"F8_E4M3", ScalarType::Float8_e4m3fn},
    {"F8_E4M3FNUZ", ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2", ScalarType::Float8_e5m2},
    {"F8_E5M2FNUZ", ScalarType::Float8_e5m2fnuz},
    {"F8_E8M0", ScalarType::Float8_e8m0fnu},
    {"F4", ScalarType::Float4_e2m1fn_x2, 2},
    {"F6_E2M3", ScalarType::Undefined},
    {"F6_E3M2", ScalarType::Undefined},
}};

}  // namespace

const SafetensorsDtype* find_dtype(const std::string& name) {
  for (const SafetensorsDtype& d : kDtypes) {
    if (name == d.name) return &d;
  }
  return nullptr;
}

const SafetensorsDtype* find_dtype(at::ScalarType dtype) {
  for (const SafetensorsDtype& d : kDtypes) {
    if (dtype == d.dtype && dtype != ScalarType::Undefined) return &d;
  }
  return nullptr;
}

std::string dtype_names() {
  std::string names;
  for (const SafetensorsDtype& d : kDtypes) {
    if (d.dtype == ScalarType::Undefined) continue;
    names += names.empty() ? "" : ", ";
    names += d.name;
  }
  return names;
}

std::string safetensors_dtype_name(at::ScalarType dtype) {
  const SafetensorsDtype* found = find_dtype(dtype);
  TORCH_CHECK_VALUE(found != nullptr,
                    "safetensors_dtype_name: expected one of ", dtype_names(),
                    ", got ", c10::toString(dtype));
  return found->name;
}

}  // namespace luna::io
