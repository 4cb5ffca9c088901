#pragma once

#include <ATen/core/Generator.h>
#include <luna/config/options.h>
#include <luna/nn/head_attention.h>
#include <luna/ops/feature_map.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <string>

namespace luna::nn {

struct FeatureMapOptions {
  int64_t M = 8;
  int64_t L = 8;
  int64_t hidden = 64;
  bool shared_channels = false;
  bool nonneg = true;
  bool gated = false;
  bool ch_rms = false;
  bool per_head = false;
  bool normalize = false;
  std::string start = "random";
  double spread = 1.0;
  double lift = 0.0;
  double eps = 1e-6;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.M, {.name = "M", .help = "projections", .minimum = 1});
    visit(self.L, {.name = "L",
                   .help = "channels: functions psi of each projection",
                   .minimum = 1});
    visit(self.hidden, {.name = "hidden",
                        .help = "hidden width of psi; costs no time",
                        .minimum = 1});
    visit(self.shared_channels,
          {.name = "shared_channels",
           .help = "one hidden layer for all channels of psi"});
    visit(self.nonneg, {.name = "nonneg", .help = "ReLU on psi's output"});
    visit(self.gated,
          {.name = "gated", .help = "weigh keys by h(k) = softplus(a.k + c)"});
    visit(self.ch_rms,
          {.name = "ch_rms",
           .help = "scale each channel down to a root mean square of 0.1 over "
                   "the batch; not with causal"});
    visit(self.per_head,
          {.name = "per_head", .help = "projections of its own for each head"});
    visit(self.normalize,
          {.name = "normalize",
           .help = "scale q and k to a root mean square of 1 before phi"});
    visit(self.start,
          {.name = "start",
           .help = "of phi: random, as published; ramps: channels rise from "
                   "thresholds of their own, both ways; softmax: exponentials "
                   "of the coordinates (best with L = 1, M = twice the head "
                   "width)",
           .choices = {"random", "ramps", "softmax"}});
    visit(self.spread, {.name = "spread",
                        .help = "start of the projections: N(0,1) spread / "
                                "sqrt(head width)",
                        .minimum = 0});
    visit(self.lift,
          {.name = "lift",
           .help = "added to psi's output bias at the start; 1 keeps all of "
                   "its channels alive then",
           .minimum = 0});
    visit(self.eps, {.name = "eps",
                     .help = "sums of weights count as no less than this",
                     .minimum = 1e-12});
  }
};

/// Universal attention's learned feature map, and the mechanism it makes.
///
///   phi(x) = h(x) [psi_c(w_i . x + b_i)]_{i,c} / sqrt(M),   h = 1 unless gated
///
/// of x / rms(x) where `normalize` says so.
/// Parameters: projection [M,d] ([H,M,d] per head), projection_bias [M] or
/// [H,M], hidden_weight and hidden_bias [L,hidden] ([1,hidden] where shared),
/// output_weight [L,hidden], output_bias [L]; gated: gate_weight [d],
/// gate_bias []. They may stay float32 whatever the inputs' dtype.
/// Denominators, sums of phi(q).phi(k), count as no less than `eps`.
/// Start: projection N(0,1) spread/sqrt(d), its bias 0; psi as torch's Linear
/// does, its output bias `lift` higher; the gate at h = 1. Or, if `start` is
/// "ramps" or "softmax", as start_from_ramps or start_from_softmax does.
class FeatureMapImpl : public torch::nn::Cloneable<FeatureMapImpl>,
                       public HeadAttention {
 public:
  using Options = FeatureMapOptions;

  explicit FeatureMapImpl(HeadShape shape,
                          const FeatureMapOptions& options = {});
  explicit FeatureMapImpl(int64_t head_dim,
                          const FeatureMapOptions& options = {})
      : FeatureMapImpl(HeadShape{head_dim, 1}, options) {}

  void reset() override;
  void reset_parameters();

  /// phi(x), x [B,H,n,d] (or [...,d] without per_head and ch_rms).
  /// `mask` [B,n]: the tokens that ch_rms counts.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& mask = std::nullopt);

  /// u = w_i . x + b_i, x [B,H,n,d] -> [B,H,n,M].
  at::Tensor projections(const at::Tensor& x) const;

  std::tuple<at::Tensor, at::Tensor> attend(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const AttendOptions& options = {}) override;
  at::Tensor step(const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, at::Tensor state,
                  const StepOptions& options = {}) override;
  /// psi's table (luna::universal_table).
  at::Tensor prepare() override;

  /// The share of the features that are 0 for each of `samples` inputs drawn
  /// from N(0,1): at the start, those that a ReLU holds dead.
  double dead_features(int64_t samples = 4096,
                       std::optional<at::Generator> generator = std::nullopt);

  ops::FeatureMapParameters map_parameters() const;
  const FeatureMapOptions& options() const { return options_; }

  at::Tensor projection, projection_bias;
  at::Tensor hidden_weight, hidden_bias, output_weight, output_bias;
  at::Tensor gate_weight, gate_bias;  ///< undefined unless gated

  /// Is told of the queries and keys of each attend(), before phi scales them:
  /// for who looks at a model (train/feature_use.h). Empty: nobody does.
  std::function<void(const at::Tensor& query, const at::Tensor& key,
                     const AttendOptions& options)>
      watch{};

 private:
  at::Tensor scaled(const at::Tensor& x) const;
  at::Tensor features(const at::Tensor& x) const;
  at::Tensor gate(const at::Tensor& x) const;
  std::optional<at::Tensor> gated_weight(
      const at::Tensor& key, const std::optional<at::Tensor>& weight) const;

  HeadShape shape_;
  FeatureMapOptions options_;
};
TORCH_MODULE(FeatureMap);

/// Starts psi from what it becomes (docs/results/lra.md): channels that differ,
/// each zero up to a threshold of its own,
///
///   psi_c(u) = ReLU(+-u - t_c) / spread,   t_c = 0, 0, .5, .5, 1, ... (L = 8)
///
/// the thresholds evenly from 0 to twice `spread`, which is about how far u
/// goes, the sign in turns. One hidden unit is the ramp, or of a shared layer
/// one for each channel; the others wait with output weights of 0. Drawn over a
/// random start: the projections stay.
void start_from_ramps(FeatureMapImpl& map);

/// Starts phi from what softmax is instead of from chance: the projections are
/// twice the coordinates of x (and, if there is one psi, their negatives), then
/// orthogonal random directions, and psi_c is
/// exp(a_c u) with slopes a = 1, -1, 1/2, -1/2, 3/2, ..., drawn through
/// `hidden` equal steps from u = -4 to 4 and straight beyond them. To second
/// order phi(q).phi(k) then has the q_j k_j of exp(q.k), and all of it is
/// positive and alive. Random directions are from torch's default generator.
void start_from_softmax(FeatureMapImpl& map);

}  // namespace luna::nn
