#include "ops/embed.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/dropout_factors.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Signature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                         const OptionalTensor&, const OptionalTensor&, double);
using BackwardSignature = Two(const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const OptionalTensor&,
                              const OptionalTensor&, double);

constexpr std::string_view kName = "embed";
constexpr int64_t kMostSharedBytes = 200 * 1024;

class EmbedFunction : public torch::autograd::Function<EmbedFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx,
                        const Tensor& ids, const Tensor& tokens,
                        const Tensor& positions, const OptionalTensor& mask,
                        const OptionalTensor& seed, double dropout_p) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward(
        {ids, tokens, positions, or_undefined(mask), or_undefined(seed)});
    ctx->saved_data["dropout_p"] = dropout_p;
    return embed(ids, tokens, positions, {mask, dropout_p, seed});
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op = find_op<BackwardSignature>("luna::_embed_backward");
    const auto s = ctx->get_saved_variables();
    auto [tokens, positions] =
        op.call(grads[0], s[0], s[1], s[2], or_nullopt(s[3]), or_nullopt(s[4]),
                ctx->saved_data["dropout_p"].toDouble());
    return {Tensor(), tokens, positions, Tensor(), Tensor(), Tensor()};
  }
};

Tensor embed_autograd(const Tensor& ids, const Tensor& tokens,
                      const Tensor& positions, const OptionalTensor& mask,
                      const OptionalTensor& seed, double dropout_p) {
  if (any_needs_grad({tokens, positions})) {
    return EmbedFunction::apply(ids, tokens, positions, mask, seed, dropout_p);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return embed(ids, tokens, positions, {mask, dropout_p, seed});
}

Tensor factors_of(const Tensor& ids, int64_t width, const OptionalTensor& mask,
                  const OptionalTensor& seed, double dropout_p) {
  const Tensor factors =
      dropout_factors({ids.size(0), ids.size(1), width}, seed, dropout_p,
                      DropoutMap::kEmbedding);
  return mask ? factors * mask->unsqueeze(-1) : factors;
}

Tensor embed_cpu(const Tensor& ids, const Tensor& tokens,
                 const Tensor& positions, const OptionalTensor& mask,
                 const OptionalTensor& seed, double dropout_p) {
  check_embed(ids, tokens, positions, mask, dropout_p, seed);
  return (at::embedding(tokens, ids) + positions.narrow(0, 0, ids.size(1))) *
         factors_of(ids, tokens.size(1), mask, seed, dropout_p);
}

Two backward_cpu(const Tensor& grad, const Tensor& ids, const Tensor& tokens,
                 const Tensor& positions, const OptionalTensor& mask,
                 const OptionalTensor& seed, double dropout_p) {
  const Tensor up =
      grad * factors_of(ids, tokens.size(1), mask, seed, dropout_p);
  const Tensor grad_positions = at::zeros_like(positions);
  grad_positions.narrow(0, 0, ids.size(1)).copy_(up.sum(0));
  return {at::embedding_dense_backward(up, ids, tokens.size(0), -1, false),
          grad_positions};
}

Tensor embed_meta(const Tensor& ids, const Tensor& tokens, const Tensor&,
                  const OptionalTensor&, const OptionalTensor&, double) {
  return at::empty_symint(
      {ids.sym_size(0), ids.sym_size(1), tokens.sym_size(1)}, tokens.options());
}

Two backward_meta(const Tensor&, const Tensor&, const Tensor& tokens,
                  const Tensor& positions, const OptionalTensor&,
                  const OptionalTensor&, double) {
  return {at::empty_like(tokens), at::empty_like(positions)};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "_embed(Tensor ids, Tensor tokens, Tensor positions, Tensor? mask, "
      "Tensor? seed, float dropout_p) -> Tensor",
      tags);
  m.def(
      "_embed_backward(Tensor grad, Tensor ids, Tensor tokens, "
      "Tensor positions, Tensor? mask, Tensor? seed, float dropout_p) "
      "-> (Tensor, Tensor)",
      tags);
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_embed", embed_cpu);
  m.impl("_embed_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_embed", embed_meta);
  m.impl("_embed_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) { m.impl("_embed", embed_autograd); }

}  // namespace

void check_embed(const Tensor& ids, const Tensor& tokens,
                 const Tensor& positions, const OptionalTensor& mask,
                 double dropout_p, const OptionalTensor& seed) {
  TORCH_CHECK_VALUE(ids.dim() == 2 && ids.scalar_type() == at::kLong, kName,
                    ": expected ids [batch, length] of dtype int64, got ",
                    ids.sizes(), " ", ids.scalar_type());
  TORCH_CHECK_VALUE(tokens.dim() == 2 && positions.dim() == 2 &&
                        tokens.size(1) == positions.size(1) &&
                        positions.size(0) >= ids.size(1),
                    kName,
                    ": expected tokens [ids, width] and positions [at least ",
                    ids.size(1), ", width], got ", tokens.sizes(), " and ",
                    positions.sizes());
  TORCH_CHECK_VALUE(
      !mask ||
          (mask->scalar_type() == at::kBool && mask->sizes() == ids.sizes()),
      kName, ": expected mask ", ids.sizes(), " of dtype bool, got ",
      mask ? mask->sizes() : at::IntArrayRef());
  check_dropout(kName, dropout_p, seed, tokens);
}

bool embed_is_fused(const Tensor& ids, const Tensor& tokens,
                    const Tensor& positions) {
  const int64_t width = tokens.size(1);
  return ids.is_cuda() && tokens.scalar_type() == at::kFloat &&
         positions.scalar_type() == at::kFloat && width % 2 == 0 &&
         width <= 1024 && tokens.numel() * 4 <= kMostSharedBytes;
}

Tensor embed(const Tensor& ids, const Tensor& tokens, const Tensor& positions,
             const EmbedOptions& o) {
  static const auto op = find_op<Signature>("luna::_embed");
  return op.call(ids, tokens, positions, o.mask, o.seed, o.dropout_p);
}

}  // namespace luna::ops
