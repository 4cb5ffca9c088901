#include "ops/cuda/fused_backward.cuh"

namespace luna::cuda::fused {

LUNA_BACKWARD(32, 2, false);
LUNA_BACKWARD(64, 2, false);
LUNA_BACKWARD(32, 2, true);
LUNA_BACKWARD(64, 2, true);

}  // namespace luna::cuda::fused
