#include "ops/cuda/softmax_wgmma_forward.cuh"

#include "ops/cuda/softmax_wgmma.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {

bool softmax_wgmma_fits(const SoftmaxProblem<float>& p) {
  using namespace softmax_wgmma;
  if (p.slots <= ops::kSoftmaxWgmmaLeastSlots ||
      p.slots > ops::kSoftmaxMmaSlots || !ops::softmax_wgmma_takes(p.depth) ||
      !ops::softmax_wgmma_takes(p.width) || !(p.scale > 0)) {
    return false;
  }
  const Side tokens = tokens_of(p), slots = slots_of(p);
  const Side keys = p.pack ? tokens : slots;
  const Side queries =
      !p.pack ? tokens : (p.shared_slots ? shared(slots) : slots);
  if (!has_strides(p.key, keys, p.heads) ||
      !has_strides(p.value, keys, p.heads) ||
      !has_strides(p.query, queries, p.heads)) {
    return false;
  }
  return is_hopper();
}

void softmax_wgmma_forward(const SoftmaxForward<float>& a,
                           cudaStream_t stream) {
  using namespace softmax_wgmma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.tokens.length == 0) return;
  const Side tokens = tokens_of(p), keys = p.pack ? tokens : slots_of(p);
  ForwardArgs args = {};
  args.key = map_of(p.key, keys, p.heads, p.depth);
  args.value = map_of(p.value, keys, p.heads, p.width);
  args.a = a;
  if (!p.pack) args.query = map_of(p.query, tokens, p.heads, p.depth);
  if (p.tokens.begin == nullptr) {
    launch_forward<false>(args, stream);
  } else {
    launch_forward<true>(args, stream);
  }
}

}  // namespace luna::cuda
