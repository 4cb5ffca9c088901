#pragma once

#include <string>
#include <vector>

namespace luna::report {

/// The scalar functions psi_c that a layer of universal attention learnt,
/// sampled over a range of u.
struct LearnedPsi {
  std::string layer{};                       ///< "layers.0.attention"
  std::vector<double> u{};                   ///< from -4 to 4
  std::vector<std::vector<double>> now{};    ///< [channel][u]
  std::vector<std::vector<double>> start{};  ///< at step 0; may be empty
  std::vector<bool> live{};                  ///< not zero all over the range
  double live_share = 0;    ///< of channel and u where psi is not zero
  double knots_inside = 0;  ///< share of the knots that lie in the range
  /// |now - start| / |start| over the range; negative without a start.
  double change = -1;
};

/// Every feature map among the weights of `model`, a safetensors file, beside
/// its start in `start` (a file of the same names, or empty: none).
std::vector<LearnedPsi> learned_psi(const std::string& model,
                                    const std::string& start, bool nonneg);

}  // namespace luna::report
