#include <cudaTypedefs.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/cuda/fused.h"

namespace luna::cuda {
namespace {

/// From the driver that is loaded already; nothing is linked to it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = {};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    throw std::runtime_error(
        "luna: expected a driver with cuTensorMapEncodeTiled, "
        "got none");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap fused_rows(const Rows& rows, int64_t batch, int64_t heads,
                       int64_t length, int64_t width, int64_t tile_width) {
  static const auto encode = encoder();
  CUtensorMap map = {};
  constexpr cuuint64_t kBytes = 2;
  const auto numbers = static_cast<cuuint64_t>(width);
  const cuuint64_t sizes[4] = {numbers, static_cast<cuuint64_t>(length),
                               static_cast<cuuint64_t>(heads),
                               static_cast<cuuint64_t>(batch)};
  if (length * heads * batch == 0) return map;  // nobody reads it
  // A dimension of one may have any stride, 0 too, which is refused.
  const auto stride = [&](int64_t step, int64_t size) {
    return kBytes * (size == 1 ? numbers : static_cast<cuuint64_t>(step));
  };
  const cuuint64_t strides[3] = {stride(rows.row, length),
                                 stride(rows.head, heads),
                                 stride(rows.batch, batch)};
  const bool narrow = (tile_width == 0 ? width : tile_width) < 64;
  const cuuint32_t box[4] = {narrow ? 32u : 64u, 64, 1, 1};
  const cuuint32_t every[4] = {1, 1, 1, 1};
  // Autograd's threads may have no context yet; this gives them one.
  int device = 0;
  cudaGetDevice(&device);
  cudaSetDevice(device);
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, rows.data, sizes, strides, box,
      every, CU_TENSOR_MAP_INTERLEAVE_NONE,
      narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(
        "luna: expected rows that the copy engine can read, "
        "got strides " +
        std::to_string(rows.batch) + ", " + std::to_string(rows.head) + ", " +
        std::to_string(rows.row));
  }
  return map;
}

}  // namespace luna::cuda
