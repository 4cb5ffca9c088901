#pragma once

#include <luna/train/feature_use.h>

#include <optional>
#include <string>
#include <vector>

namespace luna::report {

/// The scalar functions psi_c that a layer of universal attention learnt,
/// sampled where u is.
struct LearnedPsi {
  std::string layer{};  ///< "layers.0.attention"
  /// train::kQuantiles quantiles as the run found them on data; of a run that
  /// did not look, those of a standard normal number: a guess.
  std::vector<double> u{};
  std::optional<train::FeatureUse> use{};    ///< what the run found
  std::vector<std::vector<double>> now{};    ///< [channel][u]
  std::vector<std::vector<double>> start{};  ///< at step 0; may be empty
  std::vector<bool> live{};                  ///< not zero at all of u
  double live_share = 0;    ///< of channel and u where psi is not zero
  double knots_inside = 0;  ///< share of the knots between the first and last u
  /// |now - start| / |start| over u; negative without a start.
  double change = -1;
};

/// Where u is taken to be without a look at data: quantiles of a standard
/// normal number, and, to draw a start from softmax, 161 steps from -4 to 4.
std::vector<double> normal_u();
std::vector<double> even_u();

/// Every feature map among the weights of `model`, a safetensors file, beside
/// its start in `start` (a file of the same names, or empty: none). `uses`:
/// what was found on data, of some of them; `assumed`: u of the others.
std::vector<LearnedPsi> learned_psi(
    const std::string& model, const std::string& start, bool nonneg,
    const std::vector<train::FeatureUse>& uses = {},
    const std::vector<double>& assumed = normal_u());

}  // namespace luna::report
