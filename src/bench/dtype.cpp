#include "luna/bench/dtype.h"

#include <c10/util/Exception.h>

#include "luna/config/options.h"

namespace luna::bench {

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> names = {"float32", "bfloat16",
                                                 "float16", "float64"};
  return names;
}

c10::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return c10::kFloat;
  if (name == "bfloat16") return c10::kBFloat16;
  if (name == "float16") return c10::kHalf;
  if (name == "float64") return c10::kDouble;
  TORCH_CHECK_VALUE(false, "dtype: expected one of ",
                    config::known_and_nearest(name, dtype_names()), ", got ",
                    name);
}

}  // namespace luna::bench
