// Versions of luna and of the LibTorch it was built against.
#pragma once

namespace luna {

const char* version();        // "0.1.0"
const char* torch_version();  // "2.11.0"

}  // namespace luna
