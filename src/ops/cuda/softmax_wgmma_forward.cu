#include "ops/cuda/softmax_wgmma_forward.cuh"

#include "ops/cuda/fused.h"
#include "ops/cuda/softmax_wgmma.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace softmax_wgmma {
namespace {

template <Extras kExtras, int kGroups, int kBlocks>
void pack_forward(const ForwardArgs& args, cudaStream_t stream) {
  using Form = PackForwardForm<kGroups, kExtras>;
  static_assert(kBlocks * Form::kMemory <= kMemoryLimit);
  const SoftmaxProblem<float>& p = args.a.problem;
  const dim3 grid(
      static_cast<unsigned>(p.tokens.bound * p.heads),
      static_cast<unsigned>((p.slots + Form::kSlots - 1) / Form::kSlots));
  const auto kernel = pack_forward_kernel<kGroups, kBlocks, kExtras>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(Form::kMemory));
  kernel<<<grid, Form::kThreads, Form::kMemory, stream>>>(args);
  check_launch("softmax_wgmma_forward, pack");
}

template <Extras kExtras>
void unpack_forward(const ForwardArgs& args, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = args.a.problem;
  const int tiles = static_cast<int>((p.slots + kRows - 1) / kRows);
  const size_t memory = UnpackForm::memory(tiles, p.weight.data != nullptr);
  const auto kernel = unpack_forward_kernel<kExtras>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(memory));
  kernel<<<static_cast<unsigned>(p.tokens.bound * p.heads),
           UnpackForm::kThreads, memory, stream>>>(args, tiles);
  check_launch("softmax_wgmma_forward, unpack");
}

template <Extras kExtras>
void run(const ForwardArgs& args, cudaStream_t stream) {
  const SoftmaxProblem<float>& p = args.a.problem;
  if (!p.pack) {
    unpack_forward<kExtras>(args, stream);
  } else if (p.slots <= 64) {
    pack_forward<kExtras, 1, 3>(args, stream);
  } else if (p.slots <= 128) {
    pack_forward<kExtras, 2, 2>(args, stream);
  } else {
    pack_forward<kExtras, 4, 1>(args, stream);
  }
}

}  // namespace
}  // namespace softmax_wgmma

bool softmax_wgmma_fits(const SoftmaxProblem<float>& p) {
  using softmax_wgmma::has_strides;
  using softmax_wgmma::kWidth;
  if (p.slots <= ops::kSoftmaxWgmmaLeastSlots ||
      p.slots > ops::kSoftmaxMmaSlots || p.depth != kWidth ||
      p.width != kWidth || p.tokens.begin != nullptr || !(p.scale > 0)) {
    return false;
  }
  const int64_t batch = p.tokens.sequences, tokens = p.tokens.length;
  const int64_t keys = p.pack ? tokens : p.slots;
  if (!has_strides(p.key, batch, p.heads, keys) ||
      !has_strides(p.value, batch, p.heads, keys) ||
      !has_strides(p.query, p.shared_slots ? 1 : batch, p.heads,
                   p.pack ? p.slots : tokens)) {
    return false;
  }
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major == 9;
}

void softmax_wgmma_forward(const SoftmaxForward<float>& a,
                           cudaStream_t stream) {
  using namespace softmax_wgmma;
  const SoftmaxProblem<float>& p = a.problem;
  if (p.tokens.bound == 0) return;
  const int64_t batch = p.tokens.sequences;
  const int64_t keys = p.pack ? p.tokens.length : p.slots;
  ForwardArgs args = {};
  args.key = fused_rows(p.key, batch, p.heads, keys);
  args.value = fused_rows(p.value, batch, p.heads, keys);
  args.a = a;
  if (!p.pack) {
    args.query = fused_rows(p.query, batch, p.heads, p.tokens.length);
  }
  with_extras(p, [&]<Extras kExtras>() { run<kExtras>(args, stream); });
}

}  // namespace luna::cuda
