#include "ops/cuda/fused_short_backward.cuh"

namespace luna::cuda {

int fused_short_backward_pieces(const FeatureMap<float>& map) {
  return map.per_head ? fused::ShortForm<true>::rows(map.shape)
                      : fused::ShortForm<false>::rows(map.shape);
}
void fused_short_backward(const FusedShortBackward& p, cudaStream_t stream) {
  if (p.queries.map.per_head) {
    fused::launch_short_backward<true>(p, stream);
  } else {
    fused::launch_short_backward<false>(p, stream);
  }
}

}  // namespace luna::cuda
