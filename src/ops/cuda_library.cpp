#include <luna/ops/cuda_library.h>

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

namespace luna::ops {
namespace {

/// Asks the driver, not CUDA's run time: a machine without a GPU has neither.
std::string why_no_device() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return "no CUDA driver (libcuda.so.1)";
  using Init = int (*)(unsigned);
  using Count = int (*)(int*);
  const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<Count>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != 0 ||
      count(&devices) != 0 || devices == 0) {
    return "no CUDA device";
  }
  return "";
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
