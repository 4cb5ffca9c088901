// embed on the GPU.

#include "ops/embed.h"

#include <torch/library.h>

#include "ops/cuda/aligned.h"
#include "ops/cuda/embed.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// What forward and backward read; contiguous copies are kept in `holders`.
Embed arguments(const Tensor& ids, const Tensor& tokens,
                const Tensor& positions, const OptionalTensor& mask,
                const OptionalTensor& seed, double dropout_p,
                const OptionalTensor& starts, std::vector<Tensor>& holders) {
  TORCH_CHECK_VALUE(tokens.size(1) % 2 == 0,
                    "embed: expected an even width, got ", tokens.size(1));
  const auto held = [&](const Tensor& x) {
    holders.push_back(aligned(x));
    return holders.back();
  };
  Embed args;
  args.count = ids.numel();
  args.batch = ids.size(0);
  args.length = ids.size(1);
  if (starts) {
    args.batch = starts->size(0) - 2;
    args.length = positions.size(0);
    args.starts = held(*starts).const_data_ptr<int64_t>();
  }
  args.width = tokens.size(1);
  args.vocabulary = tokens.size(0);
  args.ids = held(ids).const_data_ptr<int64_t>();
  if (mask) args.mask = held(*mask).const_data_ptr<bool>();
  args.dropout = row_dropout(dropout_p, seed);
  return args;
}

Tensor forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions,
               const OptionalTensor& mask, const OptionalTensor& seed,
               double dropout_p, const OptionalTensor& starts) {
  ops::check_embed(ids, tokens, positions, {mask, dropout_p, seed, starts});
  const c10::cuda::CUDAGuard guard(ids.device());
  std::vector<Tensor> holders;
  Embed args =
      arguments(ids, tokens, positions, mask, seed, dropout_p, starts, holders);
  const Tensor out =
      at::empty({ids.size(0), ids.size(1), args.width}, tokens.options());
  const auto held = [&](const Tensor& x) {
    return holders.emplace_back(aligned(x)).const_data_ptr<float>();
  };
  args.tokens = held(tokens);
  args.positions = held(positions);
  args.out = out.mutable_data_ptr<float>();
  embed_forward(args, c10::cuda::getCurrentCUDAStream());
  return out;
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_, const Tensor& ids,
                                    const Tensor& tokens,
                                    const Tensor& positions,
                                    const OptionalTensor& mask,
                                    const OptionalTensor& seed,
                                    double dropout_p,
                                    const OptionalTensor& starts) {
  const c10::cuda::CUDAGuard guard(ids.device());
  std::vector<Tensor> holders;
  Embed args =
      arguments(ids, tokens, positions, mask, seed, dropout_p, starts, holders);
  const Tensor grad = aligned(grad_);
  const Tensor grad_positions = positions.size(0) == args.length
                                    ? at::empty_like(positions)
                                    : at::zeros_like(positions);
  const int64_t numbers = embed_part_numbers(args);
  const Tensor partials =
      at::empty({embed_parts(args), numbers}, tokens.options());
  const Tensor grad_tokens = at::empty({numbers}, tokens.options());
  args.grad = grad.const_data_ptr<float>();
  args.grad_positions = grad_positions.mutable_data_ptr<float>();
  args.partials = partials.mutable_data_ptr<float>();
  args.grad_tokens = grad_tokens.mutable_data_ptr<float>();
  embed_backward(args, c10::cuda::getCurrentCUDAStream());
  return {grad_tokens.narrow(0, 0, tokens.numel()).view_as(tokens),
          grad_positions};
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_embed", forward);
  m.impl("_embed_backward", backward);
}

}  // namespace
}  // namespace luna::cuda
