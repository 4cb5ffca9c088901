#include <luna/ops/cuda_library.h>

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace luna::ops {
namespace {

/// Looks for the driver and a device's file. Nothing is initialised: that costs
/// time, and tools like compute-sanitizer must come first.
std::string why_no_device() {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return "no CUDA driver (libcuda.so.1)";
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    const bool numbered = name.rfind("nvidia", 0) == 0 && name.size() > 6 &&
                          name[6] >= '0' && name[6] <= '9';
    if (numbered || name == "dxg") return "";
  }
  return "no CUDA device (/dev/nvidia0)";
}

/// The file beside the library that holds this function.
std::string beside_libluna(const char* name) {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&beside_libluna), &info) == 0 ||
      info.dli_fname == nullptr) {
    return name;
  }
  const std::string own = info.dli_fname;
  return own.substr(0, own.rfind('/') + 1) + name;
}

CudaLibrary load() {
  const char* wish = std::getenv("LUNA_CUDA");
  if (wish != nullptr && std::string_view(wish) == "off") {
    return {false, "LUNA_CUDA=off"};
  }
  std::string why = why_no_device();
  if (!why.empty()) return {false, why};
  const std::string path = beside_libluna("libluna_cuda.so");
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* error = dlerror();
    return {false, error != nullptr ? error : path + " cannot be loaded"};
  }
  return {true, ""};
}

// With libluna, before any op is called: its kernels register themselves, and
// libtorch_cuda with it.
[[maybe_unused]] const bool kLoaded = cuda_library().loaded;

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = load();
  return library;
}

}  // namespace luna::ops
