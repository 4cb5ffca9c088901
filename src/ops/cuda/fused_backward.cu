#include "ops/cuda/fused_backward.cuh"

namespace luna::cuda {
namespace {

/// Calls `body` with the form of the backward's kernels.
template <typename Body>
auto for_backward(const FeatureMap<float>& map, Body body) {
  return fused::for_form(map, [&]<int kNumbers, int kHalves>() {
    return map.per_head ? body.template operator()<kNumbers, kHalves, true>()
                        : body.template operator()<kNumbers, kHalves, false>();
  });
}

}  // namespace

bool fused_fits(const FeatureMap<float>& map) {
  const auto most = static_cast<size_t>(block_memory());
  return is_hopper() && map.shape.knots < 65536 &&
         fused::forward_memory(map) <= most &&
         for_backward(map, [&]<int kNumbers, int kHalves, bool kPerHead>() {
           using Form = fused::Form<kNumbers, kHalves, kPerHead>;
           return Form::rows(map.shape) >= fused_least_pieces(map.shape) &&
                  Form::memory(map.shape) <= most;
         });
}

int64_t fused_blocks() { return multiprocessors(); }
int64_t fused_backward_workers(const FeatureMap<float>& map) {
  return multiprocessors() *
         for_backward(map, [&]<int kNumbers, int kHalves, bool kPerHead>() {
           return fused::Form<kNumbers, kHalves, kPerHead>::kGroups;
         });
}

int fused_backward_pieces(const FeatureMap<float>& map) {
  return for_backward(map, [&]<int kNumbers, int kHalves, bool kPerHead>() {
    return fused::Form<kNumbers, kHalves, kPerHead>::rows(map.shape);
  });
}

void fused_backward(bool keys, const FusedBackward& p, cudaStream_t stream) {
  for_backward(p.map, [&]<int kNumbers, int kHalves, bool kPerHead>() {
    fused::launch_backward<kNumbers, kHalves, kPerHead>(keys, p, stream);
  });
}

}  // namespace luna::cuda
