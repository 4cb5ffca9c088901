#include "ops/cuda/fused_backward.cuh"

namespace luna::cuda {
namespace {

/// Calls `body` with the width and whether heads have projections of their own.
template <typename Body>
auto for_form(const FeatureMap<float>& map, Body body) {
  return fused::for_width(map.width, [&]<int kNumbers>() {
    return map.per_head ? body.template operator()<kNumbers, true>()
                        : body.template operator()<kNumbers, false>();
  });
}

}  // namespace

bool fused_fits(const FeatureMap<float>& map) {
  using fused::device_attribute;
  const auto most = static_cast<size_t>(
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         map.shape.knots < 65536 &&
         fused::forward_memory(map.shape, map.width) <= most &&
         for_form(map, [&]<int kNumbers, bool kPerHead>() {
           const fused::Form<kNumbers, kPerHead> form(map.shape);
           return static_cast<size_t>(form.total) <= most;
         });
}

int64_t fused_blocks() { return fused::multiprocessors(); }
int64_t fused_backward_workers(const FeatureMap<float>& map) {
  return fused::multiprocessors() *
         for_form(map, [&]<int kNumbers, bool kPerHead>() {
           return fused::Form<kNumbers, kPerHead>::kGroups;
         });
}

void fused_backward(bool keys, const FusedBackward& p, cudaStream_t stream) {
  for_form(p.map, [&]<int kNumbers, bool kPerHead>() {
    fused::launch_backward<kNumbers, kPerHead>(keys, p, stream);
  });
}

}  // namespace luna::cuda
