// embed on the GPU.

#include "ops/embed.h"

#include <torch/library.h>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/embed.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// What forward and backward read; contiguous copies are kept in `holders`.
Embed arguments(const Tensor& ids, const Tensor& tokens,
                const OptionalTensor& mask, const OptionalTensor& seed,
                double dropout_p, std::vector<Tensor>& holders) {
  TORCH_CHECK_VALUE(tokens.size(1) % 2 == 0,
                    "embed: expected an even width, got ", tokens.size(1));
  const auto held = [&](const Tensor& x) {
    holders.push_back(x.contiguous());
    return holders.back();
  };
  Embed args;
  args.batch = ids.size(0);
  args.length = ids.size(1);
  args.width = tokens.size(1);
  args.vocabulary = tokens.size(0);
  args.ids = held(ids).const_data_ptr<int64_t>();
  if (mask) args.mask = held(*mask).const_data_ptr<bool>();
  args.dropout = row_dropout(dropout_p, seed);
  return args;
}

Tensor forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions,
               const OptionalTensor& mask, const OptionalTensor& seed,
               double dropout_p) {
  ops::check_embed(ids, tokens, positions, mask, dropout_p, seed);
  const c10::cuda::CUDAGuard guard(ids.device());
  std::vector<Tensor> holders;
  Embed args = arguments(ids, tokens, mask, seed, dropout_p, holders);
  const Tensor out =
      at::empty({args.batch, args.length, args.width}, tokens.options());
  args.tokens = tokens.const_data_ptr<float>();
  args.positions = positions.const_data_ptr<float>();
  args.out = out.mutable_data_ptr<float>();
  embed_forward(args, c10::cuda::getCurrentCUDAStream());
  return out;
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_, const Tensor& ids,
                                    const Tensor& tokens,
                                    const Tensor& positions,
                                    const OptionalTensor& mask,
                                    const OptionalTensor& seed,
                                    double dropout_p) {
  const c10::cuda::CUDAGuard guard(ids.device());
  std::vector<Tensor> holders;
  Embed args = arguments(ids, tokens, mask, seed, dropout_p, holders);
  const Tensor grad = grad_.contiguous();
  const Tensor grad_positions = positions.size(0) == args.length
                                    ? at::empty_like(positions)
                                    : at::zeros_like(positions);
  const Tensor partials = at::empty(
      {embed_blocks(args), args.vocabulary, args.width}, tokens.options());
  args.grad = grad.const_data_ptr<float>();
  args.grad_positions = grad_positions.mutable_data_ptr<float>();
  args.partials = partials.mutable_data_ptr<float>();
  embed_backward(args, c10::cuda::getCurrentCUDAStream());
  const Tensor grad_tokens = at::empty_like(tokens);
  sum_parts(args.partials, partials.size(0), tokens.numel(),
            grad_tokens.mutable_data_ptr<float>(),
            c10::cuda::getCurrentCUDAStream());
  return {grad_tokens, grad_positions};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_embed", forward);
  m.impl("_embed_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
