#include "luna/version.h"

#include <torch/version.h>

namespace luna {

const char* version() { return LUNA_VERSION; }

const char* torch_version() { return TORCH_VERSION; }

}  // namespace luna
