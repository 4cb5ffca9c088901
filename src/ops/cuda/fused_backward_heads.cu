#include "ops/cuda/fused_backward.cuh"

namespace luna::cuda::fused {

LUNA_BACKWARD(32, 1, true);
LUNA_BACKWARD(64, 1, true);
LUNA_BACKWARD(128, 1, true);

}  // namespace luna::cuda::fused
