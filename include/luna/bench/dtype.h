#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace luna::bench {

/// float32, bfloat16, float16, float64.
const std::vector<std::string>& dtype_names();

/// The dtype of that name; an unknown one lists the known ones.
c10::ScalarType parse_dtype(const std::string& name);

}  // namespace luna::bench
