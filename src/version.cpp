#include "luna/version.h"

#include <torch/version.h>

#include "luna_commit.h"

namespace luna {

const char* version() { return LUNA_VERSION; }

const char* commit() { return LUNA_COMMIT; }

const char* torch_version() { return TORCH_VERSION; }

}  // namespace luna
