#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <luna/nn/feature_map.h>
#include <luna/ops/universal_attention.h>
#include <luna/ops/universal_table.h>

#include <cmath>

#include "nn/channel_rms.h"
#include "nn/feature_attention.h"
#include "ops/feature_parameters.h"

namespace luna::nn {
namespace {

// softplus(c) = 1
const double kOpenGate = std::log(std::exp(1.0) - 1.0);

constexpr double kNormEps = 1e-6;

// prepare() is one tensor: the table, projection and projection_bias, the
// latter in the table's dtype, as the kernels read them; each starts at a
// multiple of so many numbers.
constexpr int64_t kAlignment = 8;

int64_t aligned(int64_t numbers) {
  return (numbers + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor padded(const at::Tensor& part, at::ScalarType dtype) {
  const auto flat = part.detach().to(dtype).flatten();
  const int64_t more = aligned(flat.numel()) - flat.numel();
  return more == 0 ? flat : at::constant_pad_nd(flat, {0, more});
}

/// Puts what prepare() gave in the place of the parameters; the table.
std::optional<at::Tensor> read_prepared(
    const std::optional<at::Tensor>& prepared, ops::FeatureMapParameters& p) {
  if (!prepared) return std::nullopt;
  int64_t first = 0;
  const auto next = [&](int64_t numbers) {
    const auto part = prepared->narrow(0, first, numbers);
    first += aligned(numbers);
    return part;
  };
  const auto table =
      next(ops::table_layout(p.hidden_weight, p.output_weight).size());
  p.projection = next(p.projection.numel()).view(p.projection.sizes());
  p.projection_bias =
      next(p.projection_bias.numel()).view(p.projection_bias.sizes());
  return table;
}

}  // namespace

FeatureMapImpl::FeatureMapImpl(HeadShape shape,
                               const FeatureMapOptions& options)
    : shape_(shape), options_(options) {
  TORCH_CHECK_VALUE(shape.head_dim >= 1 && shape.num_heads >= 1,
                    "FeatureMap: expected head_dim >= 1 and num_heads >= 1, "
                    "got ",
                    shape.head_dim, " and ", shape.num_heads);
  config::check_options("FeatureMap", options);
  FeatureMapImpl::reset();
}

void FeatureMapImpl::reset() {
  const auto [M, L, hidden] =
      std::tuple(options_.M, options_.L, options_.hidden);
  const auto d = shape_.head_dim;
  const auto trunks = options_.shared_channels ? 1 : L;
  std::vector<int64_t> projections{M};
  if (options_.per_head)
    projections.insert(projections.begin(), shape_.num_heads);
  auto projection_sizes = projections;
  projection_sizes.push_back(d);

  projection = register_parameter("projection", at::empty(projection_sizes));
  projection_bias =
      register_parameter("projection_bias", at::empty(projections));
  hidden_weight =
      register_parameter("hidden_weight", at::empty({trunks, hidden}));
  hidden_bias = register_parameter("hidden_bias", at::empty({trunks, hidden}));
  output_weight = register_parameter("output_weight", at::empty({L, hidden}));
  output_bias = register_parameter("output_bias", at::empty({L}));
  if (options_.gated) {
    gate_weight = register_parameter("gate_weight", at::empty({d}));
    gate_bias = register_parameter("gate_bias", at::empty({}));
  }
  reset_parameters();
}

void FeatureMapImpl::reset_parameters() {
  at::NoGradGuard no_grad;
  projection.normal_(
      0, options_.spread / std::sqrt(static_cast<double>(shape_.head_dim)));
  projection_bias.zero_();
  // As torch's Linear(1, hidden) and Linear(hidden, 1): U(+-1/sqrt(fan in)).
  const double bound = 1 / std::sqrt(static_cast<double>(options_.hidden));
  hidden_weight.uniform_(-1, 1);
  hidden_bias.uniform_(-1, 1);
  output_weight.uniform_(-bound, bound);
  output_bias.uniform_(-bound, bound).add_(options_.lift);
  if (options_.gated) {
    gate_weight.zero_();
    gate_bias.fill_(kOpenGate);
  }
  if (options_.start == "ramps") start_from_ramps(*this);
  if (options_.start == "softmax") start_from_softmax(*this);
}

ops::FeatureMapParameters FeatureMapImpl::map_parameters() const {
  return {projection,  projection_bias, hidden_weight,
          hidden_bias, output_weight,   output_bias};
}

at::Tensor FeatureMapImpl::prepare() {
  const auto table = ops::universal_table(hidden_weight, hidden_bias,
                                          output_weight, output_bias);
  const auto dtype = table.scalar_type();
  return at::cat({padded(table, dtype), padded(projection, dtype),
                  padded(projection_bias, dtype)});
}

at::Tensor FeatureMapImpl::scaled(const at::Tensor& x) const {
  if (!options_.normalize) return x;
  return at::rms_norm(x, {shape_.head_dim}, std::nullopt, kNormEps);
}

at::Tensor FeatureMapImpl::features(const at::Tensor& x) const {
  ops::FeatureMapOptions options;
  options.nonneg = options_.nonneg;
  return ops::feature_map(x, map_parameters(), options);
}

at::Tensor FeatureMapImpl::gate(const at::Tensor& x) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const auto dtype =
      at::promote_types(x.scalar_type(), gate_weight.scalar_type());
  return at::softplus(at::matmul(x.to(dtype), gate_weight.to(dtype)) +
                      gate_bias.to(dtype));
}

std::optional<at::Tensor> FeatureMapImpl::gated_weight(
    const at::Tensor& key, const std::optional<at::Tensor>& weight) const {
  if (!options_.gated) return weight;
  const auto open = gate(key);
  if (!weight) return open;
  const auto shared =
      weight->dim() < open.dim() ? weight->unsqueeze(1) : *weight;
  return shared.scalar_type() == at::kBool ? at::where(shared, open, 0.0)
                                           : open * shared;
}

at::Tensor FeatureMapImpl::forward(const at::Tensor& input,
                                   const std::optional<at::Tensor>& mask) {
  const auto x = scaled(input);
  auto phi = features(x);
  if (options_.ch_rms) phi = scale_channels(phi, options_.L, mask);
  if (options_.gated) phi = phi * gate(x).unsqueeze(-1).to(phi.scalar_type());
  return phi;
}

at::Tensor FeatureMapImpl::projections(const at::Tensor& x) const {
  return at::matmul(scaled(x), projection.transpose(-1, -2)) +
         projection_bias.unsqueeze(-2);
}

std::tuple<at::Tensor, at::Tensor> FeatureMapImpl::attend(
    const at::Tensor& given_query, const at::Tensor& given_key,
    const at::Tensor& value, const AttendOptions& options) {
  if (watch) watch(given_query, given_key, options);
  const auto query = scaled(given_query), key = scaled(given_key);
  const auto key_weight = gated_weight(key, options.key_weight);
  if (options_.ch_rms) {
    TORCH_CHECK_VALUE(!options.causal && !options.state,
                      "FeatureMap: expected neither causal nor a state with "
                      "ch_rms (a statistic of the whole batch, the future "
                      "included), got causal = ",
                      options.causal ? "true" : "false", ", state ",
                      options.state ? "given" : "not given");
    auto weighted = options;
    weighted.key_weight = key_weight;
    return attend_features(
        scale_channels(features(query), options_.L, options.query_mask),
        scale_channels(features(key), options_.L, options.key_weight), value,
        weighted, options_.eps);
  }
  ops::UniversalAttentionOptions universal;
  universal.key_weight = key_weight;
  universal.cu_seqlens_q = options.cu_seqlens_q;
  universal.cu_seqlens_k = options.cu_seqlens_k;
  universal.causal = options.causal;
  universal.nonneg = options_.nonneg;
  universal.eps = options_.eps;
  universal.state = options.state;
  auto parameters = map_parameters();
  universal.table = read_prepared(options.prepared, parameters);
  return ops::universal_attention(query, key, value, parameters, universal);
}

at::Tensor FeatureMapImpl::step(const at::Tensor& given_query,
                                const at::Tensor& given_key,
                                const at::Tensor& value, at::Tensor state,
                                const StepOptions& options) {
  const auto query = scaled(given_query), key = scaled(given_key);
  TORCH_CHECK_VALUE(!options_.ch_rms,
                    "FeatureMap: expected no step with ch_rms (a statistic of "
                    "the whole batch), got one");
  ops::UniversalAttentionStepOptions universal;
  universal.key_weight = gated_weight(key, options.key_weight);
  universal.nonneg = options_.nonneg;
  universal.eps = options_.eps;
  auto parameters = map_parameters();
  universal.table = read_prepared(options.prepared, parameters);
  return ops::universal_attention_step(query, key, value, std::move(state),
                                       parameters, universal);
}

double FeatureMapImpl::dead_features(int64_t samples,
                                     std::optional<at::Generator> generator) {
  at::NoGradGuard no_grad;
  const auto heads = options_.per_head ? shape_.num_heads : 1;
  const auto x = at::randn({1, heads, samples, shape_.head_dim}, generator,
                           projection.options().requires_grad(false));
  const auto alive = features(x).ne(0).any(2);
  return 1 - alive.to(at::kDouble).mean().item<double>();
}

}  // namespace luna::nn
