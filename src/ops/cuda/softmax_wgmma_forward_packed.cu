// The forward of packed sequences.

#include "ops/cuda/softmax_wgmma_forward.cuh"

namespace luna::cuda::softmax_wgmma {

template void launch_forward<true>(const ForwardArgs&, cudaStream_t);

}  // namespace luna::cuda::softmax_wgmma
