#include "ops/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;
/// loss, correct, rows that count, and of each row the largest number m and
/// log Σ exp(z - m): their sum would lose digits where m is large.
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Signature = Four(const Tensor&, const Tensor&, int64_t, double);
using BackwardSignature = Tensor(const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, int64_t, double);

constexpr std::string_view kName = "cross_entropy";

Four call(const Tensor& logits, const Tensor& labels, int64_t ignored,
          double smoothing) {
  static const auto op = find_op<Signature>("luna::_cross_entropy");
  return op.call(logits, labels, ignored, smoothing);
}

class CrossEntropyFunction
    : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& logits,
      const Tensor& labels, int64_t ignored, double smoothing) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, correct, count, log_sums] =
        call(logits, labels, ignored, smoothing);
    ctx->save_for_backward({logits, labels, count, log_sums});
    ctx->saved_data["ignored"] = ignored;
    ctx->saved_data["smoothing"] = smoothing;
    ctx->mark_non_differentiable({correct, count, log_sums});
    return {loss, correct, count, log_sums};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    static const auto op =
        find_op<BackwardSignature>("luna::_cross_entropy_backward");
    const auto s = ctx->get_saved_variables();
    return {op.call(grads[0], s[0], s[1], s[2], s[3],
                    ctx->saved_data["ignored"].toInt(),
                    ctx->saved_data["smoothing"].toDouble()),
            Tensor(), Tensor(), Tensor()};
  }
};

Four autograd(const Tensor& logits, const Tensor& labels, int64_t ignored,
              double smoothing) {
  if (any_needs_grad({logits})) {
    const auto out =
        CrossEntropyFunction::apply(logits, labels, ignored, smoothing);
    return {out[0], out[1], out[2], out[3]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call(logits, labels, ignored, smoothing);
}

Tensor backward_autograd(const Tensor& grad, const Tensor& logits,
                         const Tensor& labels, const Tensor& count,
                         const Tensor& log_sums, int64_t ignored,
                         double smoothing) {
  refuse_double_backward(kName, {grad, logits});
  static const auto op =
      find_op<BackwardSignature>("luna::_cross_entropy_backward");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(grad, logits, labels, count, log_sums, ignored, smoothing);
}

Four cpu(const Tensor& logits, const Tensor& labels, int64_t ignored,
         double smoothing) {
  check_cross_entropy(logits, labels, smoothing);
  const Tensor z = logits.to(at::kFloat), most = z.amax(-1);
  const Tensor log_sums = (z - most.unsqueeze(1)).exp().sum(-1).log();
  const Tensor counts = labels.ne(ignored);
  const Tensor of_label =
      z.gather(1, labels.masked_fill(~counts, 0).unsqueeze(1)).squeeze(1);
  Tensor rows = log_sums + (1 - smoothing) * (most - of_label);
  // 0 times an infinite number is none.
  if (smoothing > 0) rows = rows + smoothing * (most - z.mean(-1));
  const Tensor count = counts.sum().to(at::kFloat);
  return {rows.masked_fill(~counts, 0).sum() / count,
          (z.argmax(-1).eq(labels)).sum().to(at::kFloat), count,
          at::stack({most, log_sums}, 1)};
}

Tensor backward_cpu(const Tensor& grad, const Tensor& logits,
                    const Tensor& labels, const Tensor& count,
                    const Tensor& log_sums, int64_t ignored, double smoothing) {
  const Tensor counts = labels.ne(ignored).unsqueeze(1);
  Tensor rows = (logits.to(at::kFloat) - log_sums.narrow(1, 0, 1) -
                 log_sums.narrow(1, 1, 1))
                    .exp() -
                smoothing / static_cast<double>(logits.size(1));
  const Tensor at = labels.unsqueeze(1).masked_fill(~counts, 0);
  rows.scatter_add_(1, at, at::full_like(at, smoothing - 1, rows.options()));
  return (rows.masked_fill(~counts, 0) * (grad / count))
      .to(logits.scalar_type());
}

Four meta(const Tensor& logits, const Tensor&, int64_t, double) {
  const auto options = logits.options().dtype(at::kFloat);
  const auto number = [&] { return at::empty({}, options); };
  return {number(), number(), number(),
          at::empty({logits.size(0), 2}, options)};
}

Tensor backward_meta(const Tensor&, const Tensor& logits, const Tensor&,
                     const Tensor&, const Tensor&, int64_t, double) {
  return at::empty_like(logits);
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "_cross_entropy(Tensor logits, Tensor labels, int ignored, float "
      "smoothing) -> (Tensor loss, Tensor correct, Tensor count, Tensor "
      "log_sums)",
      tags);
  m.def(
      "_cross_entropy_backward(Tensor grad, Tensor logits, Tensor labels, "
      "Tensor count, Tensor log_sums, int ignored, float smoothing) -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_cross_entropy", cpu);
  m.impl("_cross_entropy_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_cross_entropy", meta);
  m.impl("_cross_entropy_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(luna, Autograd, m) {
  m.impl("_cross_entropy", autograd);
  m.impl("_cross_entropy_backward", backward_autograd);
}

}  // namespace

void check_cross_entropy(const Tensor& logits, const Tensor& labels,
                         double smoothing) {
  TORCH_CHECK_TYPE(
      logits.scalar_type() == at::kFloat ||
          logits.scalar_type() == at::kBFloat16 ||
          logits.scalar_type() == at::kHalf,
      kName, ": expected logits of dtype float32, bfloat16 or float16, got ",
      logits.scalar_type());
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) >= 1, kName,
                    ": expected logits [rows, classes], got ", logits.sizes());
  TORCH_CHECK_TYPE(labels.scalar_type() == at::kLong, kName,
                   ": expected labels of dtype int64, got ",
                   labels.scalar_type());
  TORCH_CHECK_VALUE(labels.dim() == 1 && labels.size(0) == logits.size(0),
                    kName, ": expected labels [", logits.size(0), "], got ",
                    labels.sizes());
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing < 1, kName,
                    ": expected smoothing from 0 to below 1, got ", smoothing);
}

CrossEntropy cross_entropy(const Tensor& logits, const Tensor& labels,
                           const CrossEntropyOptions& o) {
  const auto [loss, correct, count, log_sums] =
      call(logits, labels, o.ignored, o.smoothing);
  return {loss, correct};
}

}  // namespace luna::ops
