#include "ops/embed.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/autograd.h"
#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/dropout_factors.h"
#include "ops/gpu_paths.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Signature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                         const OptionalTensor&, const OptionalTensor&, double,
                         const OptionalTensor&);
using BackwardSignature = Two(const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const OptionalTensor&,
                              const OptionalTensor&, double,
                              const OptionalTensor&);

constexpr std::string_view kName = "embed";
constexpr int64_t kMostSharedBytes = 200 * 1024;

class EmbedFunction : public torch::autograd::Function<EmbedFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx,
                        const Tensor& ids, const Tensor& tokens,
                        const Tensor& positions, const OptionalTensor& mask,
                        const OptionalTensor& seed, double dropout_p,
                        const OptionalTensor& starts) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({ids, tokens, positions, or_undefined(mask),
                            or_undefined(seed), or_undefined(starts)});
    ctx->saved_data["dropout_p"] = dropout_p;
    return embed(ids, tokens, positions, {mask, dropout_p, seed, starts});
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op = find_op<BackwardSignature>("luna::_embed_backward");
    const auto s = ctx->get_saved_variables();
    auto [tokens, positions] =
        op.call(grads[0], s[0], s[1], s[2], or_nullopt(s[3]), or_nullopt(s[4]),
                ctx->saved_data["dropout_p"].toDouble(), or_nullopt(s[5]));
    return {Tensor(), tokens,   positions, Tensor(),
            Tensor(), Tensor(), Tensor()};
  }
};

Tensor embed_autograd(const Tensor& ids, const Tensor& tokens,
                      const Tensor& positions, const OptionalTensor& mask,
                      const OptionalTensor& seed, double dropout_p,
                      const OptionalTensor& starts) {
  if (any_needs_grad({tokens, positions})) {
    return EmbedFunction::apply(ids, tokens, positions, mask, seed, dropout_p,
                                starts);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return embed(ids, tokens, positions, {mask, dropout_p, seed, starts});
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
                 const OptionalTensor& seed, double dropout_p,
                 const OptionalTensor& starts) {
  check_embed(ids, tokens, positions, {mask, dropout_p, seed, starts});
  const Tensor place =
      starts ? at::embedding(positions, places_of(*starts, ids.size(1)))
             : positions.narrow(0, 0, ids.size(1));
  return (at::embedding(tokens, ids) + place) *
         factors_of(ids, tokens.size(1), mask, seed, dropout_p);
}

Two backward_cpu(const Tensor& grad, const Tensor& ids, const Tensor& tokens,
                 const Tensor& positions, const OptionalTensor& mask,
                 const OptionalTensor& seed, double dropout_p,
                 const OptionalTensor& starts) {
  Tensor up = grad * factors_of(ids, tokens.size(1), mask, seed, dropout_p);
  const auto sums = [](const Tensor& rows, const Tensor& which, int64_t count) {
    return at::embedding_dense_backward(rows, which, count, -1, false);
  };
  if (starts) {
    const Tensor real = at::arange(ids.size(1), starts->options())
                            .lt((*starts)[starts->size(0) - 2]);
    up = up * real.unsqueeze(-1);
    return {sums(up, ids, tokens.size(0)),
            sums(up[0], places_of(*starts, ids.size(1)), positions.size(0))};
  }
  const Tensor grad_positions = at::zeros_like(positions);
  grad_positions.narrow(0, 0, ids.size(1)).copy_(up.sum(0));
  return {sums(up, ids, tokens.size(0)), grad_positions};
}

Tensor embed_meta(const Tensor& ids, const Tensor& tokens, const Tensor&,
                  const OptionalTensor&, const OptionalTensor&, double,
                  const OptionalTensor&) {
  return at::empty_symint(
      {ids.sym_size(0), ids.sym_size(1), tokens.sym_size(1)}, tokens.options());
}

Two backward_meta(const Tensor&, const Tensor&, const Tensor& tokens,
                  const Tensor& positions, const OptionalTensor&,
                  const OptionalTensor&, double, const OptionalTensor&) {
  return {at::empty_like(tokens), at::empty_like(positions)};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "_embed(Tensor ids, Tensor tokens, Tensor positions, Tensor? mask, "
      "Tensor? seed, float dropout_p, Tensor? starts) -> Tensor",
      tags);
  m.def(
      "_embed_backward(Tensor grad, Tensor ids, Tensor tokens, "
      "Tensor positions, Tensor? mask, Tensor? seed, float dropout_p, "
      "Tensor? starts) -> (Tensor, Tensor)",
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
                 const Tensor& positions, const EmbedOptions& o) {
  TORCH_CHECK_VALUE(ids.dim() == 2 && ids.scalar_type() == at::kLong, kName,
                    ": expected ids [batch, length] of dtype int64, got ",
                    ids.sizes(), " ", ids.scalar_type());
  const int64_t places = o.starts ? 1 : ids.size(1);
  TORCH_CHECK_VALUE(
      tokens.dim() == 2 && positions.dim() == 2 &&
          tokens.size(1) == positions.size(1) && positions.size(0) >= places,
      kName, ": expected tokens [ids, width] and positions [at least ", places,
      ", width], got ", tokens.sizes(), " and ", positions.sizes());
  TORCH_CHECK_VALUE(!o.mask || (o.mask->scalar_type() == at::kBool &&
                                o.mask->sizes() == ids.sizes()),
                    kName, ": expected mask ", ids.sizes(),
                    " of dtype bool, got ",
                    o.mask ? o.mask->sizes() : at::IntArrayRef());
  TORCH_CHECK_VALUE(
      !o.starts ||
          (ids.size(0) == 1 && !o.mask && o.starts->dim() == 1 &&
           o.starts->size(0) >= 2 && o.starts->scalar_type() == at::kLong),
      kName,
      ": expected starts [sequences + 2] of dtype int64, ids [1, tokens] and "
      "no mask, got ids ",
      ids.sizes(), o.mask ? ", a mask" : "");
  if (o.starts) check_same_device(kName, "starts", *o.starts, "ids", ids);
  check_dropout(kName, o.dropout_p, o.seed, tokens);
}

Tensor places_of(const Tensor& starts, int64_t tokens) {
  const Tensor token = at::arange(tokens, starts.options());
  const Tensor sequence =
      at::searchsorted(starts, token, /*out_int32=*/false, /*right=*/true) - 1;
  return (token - starts.index_select(0, sequence))
      .masked_fill(sequence.ge(starts.size(0) - 2), 0);
}

bool embed_is_fused(const Tensor& ids, const Tensor& tokens,
                    const Tensor& positions) {
  const int64_t width = tokens.size(1);
  const int64_t of_block = std::min(width, kEmbedColumns);
  return ids.is_cuda() && tokens.scalar_type() == at::kFloat &&
         positions.scalar_type() == at::kFloat && width % 2 == 0 &&
         width <= 1024 && tokens.size(0) * of_block * 4 <= kMostSharedBytes;
}

Tensor embed(const Tensor& ids, const Tensor& tokens, const Tensor& positions,
             const EmbedOptions& o) {
  static const auto op = find_op<Signature>("luna::_embed");
  return op.call(ids, tokens, positions, o.mask, o.seed, o.dropout_p, o.starts);
}

}  // namespace luna::ops
