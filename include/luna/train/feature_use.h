#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace luna::data {
class Dataset;
struct BatchOptions;
}  // namespace luna::data
namespace luna::models {
class Model;
}

namespace luna::train {

/// Quantiles of u that are kept: those of (i + 1/2) / kQuantiles.
inline constexpr std::int64_t kQuantiles = 101;

/// What a layer of universal attention makes of real tokens.
struct FeatureUse {
  struct Side {
    double live = 0;    ///< share of the features that are not 0
    double silent = 0;  ///< share of the tokens all of whose features are 0
  };
  std::string map{};        ///< the module: "layers.0.attention.feature_map"
  std::vector<double> u{};  ///< quantiles of the projections, of both sides
  Side query{}, key{};
};

/// Of every feature map of a classifier, on a few samples spread over the data,
/// a few hundred tokens of each. Empty without such maps, and of translators.
std::vector<FeatureUse> feature_use(models::Model& model,
                                    const data::Dataset& data,
                                    const data::BatchOptions& form);

}  // namespace luna::train
