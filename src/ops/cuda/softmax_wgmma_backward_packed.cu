// The backward of packed sequences.

#include "ops/cuda/softmax_wgmma_backward.cuh"

namespace luna::cuda::softmax_wgmma {

template void launch_backward<true>(const BackwardArgs&, cudaStream_t);

}  // namespace luna::cuda::softmax_wgmma
