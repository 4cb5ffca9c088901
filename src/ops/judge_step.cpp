#include "ops/judge_step.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;
using Signature = Tensor(Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         double, double, double);

constexpr std::string_view kName = "judge_step";

Tensor judge_cpu(Tensor& meter, const Tensor& loss, const Tensor& norm,
                 const Tensor& correct, double samples, double clip,
                 double limit) {
  check_judge_step(meter, loss, norm, correct);
  const Tensor verdict = at::empty({3}, loss.options());
  judge(meter.mutable_data_ptr<double>(),
        {*loss.const_data_ptr<float>(), *norm.const_data_ptr<float>(),
         *correct.const_data_ptr<float>()},
        {samples, clip, limit}, verdict.mutable_data_ptr<float>());
  return verdict;
}

Tensor judge_meta(Tensor&, const Tensor& loss, const Tensor&, const Tensor&,
                  double, double, double) {
  return at::empty({3}, loss.options());
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "_judge_step(Tensor(a!) meter, Tensor loss, Tensor norm, "
      "Tensor correct, float samples, float clip, float limit) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, CPU, m) { m.impl("_judge_step", judge_cpu); }

TORCH_LIBRARY_IMPL(luna, Meta, m) { m.impl("_judge_step", judge_meta); }

}  // namespace

void check_judge_step(const Tensor& meter, const Tensor& loss,
                      const Tensor& norm, const Tensor& correct) {
  TORCH_CHECK_TYPE(meter.scalar_type() == at::kDouble, kName,
                   ": expected meter of dtype float64, got ",
                   meter.scalar_type());
  TORCH_CHECK_VALUE(meter.is_contiguous() && meter.numel() == kMeterEntries,
                    kName, ": expected meter of shape [", int{kMeterEntries},
                    "], got ", meter.sizes());
  const auto scalar = [&](const char* name, const Tensor& x) {
    TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat, kName, ": expected ", name,
                     " of dtype float32, got ", x.scalar_type());
    TORCH_CHECK_VALUE(x.numel() == 1, kName, ": expected ", name,
                      " to be one number, got ", x.sizes());
    check_same_device(kName, name, x, "meter", meter);
  };
  scalar("loss", loss);
  scalar("norm", norm);
  scalar("correct", correct);
}

Tensor judge_step(Tensor meter, const Tensor& loss, const Tensor& norm,
                  const Tensor& correct, const StepRules& rules) {
  static const auto op = find_op<Signature>("luna::_judge_step");
  return op.call(meter, loss, norm, correct, rules.samples, rules.clip,
                 rules.limit);
}

}  // namespace luna::ops
