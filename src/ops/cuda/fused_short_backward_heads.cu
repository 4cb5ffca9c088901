// The backward of short sequences where each head has its own projection.

#include "ops/cuda/fused_short_backward.cuh"

namespace luna::cuda::fused {

template void launch_short_backward<true>(const FusedShortBackward&,
                                          cudaStream_t);

}  // namespace luna::cuda::fused
