// Versions of luna and of the LibTorch it was built against.
#pragma once

namespace luna {

const char* version();  // "0.1.0"
/// "85ad43b1c2d3", with "-dirty" where files were changed; "" outside of git.
const char* commit();
const char* torch_version();  // "2.11.0"

}  // namespace luna
