#include "ops/cuda/fused_backward.cuh"

namespace luna::cuda::fused {

template void launch_backward<32, true>(bool, const FusedBackward&,
                                        cudaStream_t);
template void launch_backward<64, true>(bool, const FusedBackward&,
                                        cudaStream_t);
template void launch_backward<128, true>(bool, const FusedBackward&,
                                         cudaStream_t);

}  // namespace luna::cuda::fused
