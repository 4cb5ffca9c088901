#pragma once

// Random calls of every op, with the reference of each: what the tests of one
// op and the sweep over all of them share.

#include <luna/ops.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/check.h"
#include "support/random.h"

// Options are named where they are set and left out where they are not.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace luna::testing {

enum class Weight { kNone, kBool, kFloat, kBoolPerHead, kFloatPerHead };

/// How the op's tensors lie in memory (the numbers stay the same).
enum class Layout {
  kContiguous,
  kHeadsInside,  ///< [B,n,H,d] memory seen as [B,H,n,d]
  kSliced,       ///< a window of a larger tensor that is NaN around it
};

/// Packed where `lengths_q` is not empty: batch, n and m then follow from it.
struct LinearSpec {
  int64_t batch = 2, heads = 2, n = 6, m = 6, width = 4, value_width = 3;
  Weight weight = Weight::kNone;
  std::vector<int64_t> lengths_q = {}, lengths_k = {};
  bool causal = false, normalize = true, state = false;
  double eps = 1e-6;
  Layout layout = Layout::kContiguous;
};

struct UniversalSpec {
  int64_t batch = 2, heads = 2, n = 6, m = 6, value_width = 3;
  FeatureMapSizes sizes = {};
  Weight weight = Weight::kNone;
  std::vector<int64_t> lengths_q = {}, lengths_k = {};
  bool causal = false, nonneg = true, state = false;
  double eps = 1e-6;
  bool table = false;  ///< build it apart and hand it over
  Layout layout = Layout::kContiguous;
};

/// A guard whose reciprocal float16 can hold, so that the plain formula in
/// float16 has a gradient to compare with.
inline double eps_for(at::ScalarType dtype) {
  return dtype == at::kHalf ? 1e-3 : 1e-6;
}

struct FeatureMapSpec {
  std::vector<int64_t> leading = {2, 2, 6};  ///< x is [leading..., width]
  FeatureMapSizes sizes = {};
  bool nonneg = true, table = false;
  Layout layout = Layout::kContiguous;
};

struct PackSpec {
  int64_t batch = 2, heads = 2, l = 3, m = 6, width = 4, value_width = 3;
  Weight weight = Weight::kNone;
  std::vector<int64_t> lengths_k = {};
  bool shared_query = false;
  std::optional<double> scale = {};
  double dropout_p = 0.0;  ///< the reference knows no dropout
  Layout layout = Layout::kContiguous;
};

struct UnpackSpec {
  int64_t batch = 2, heads = 2, n = 6, l = 3, width = 4, value_width = 3;
  Weight weight = Weight::kNone;
  std::vector<int64_t> lengths_q = {};
  std::optional<double> scale = {};
  double dropout_p = 0.0;
  Layout layout = Layout::kContiguous;
};

struct NestedSpec {
  int64_t batch = 2, heads = 2, n = 6, l = 3, width = 4, value_width = 3;
  bool mask = false;
  std::vector<int64_t> lengths = {};
  bool shared_query = false, state = false;
  std::string activation = "softplus";
  std::optional<double> scale = {};
  double dropout_p = 0.0;
  Layout layout = Layout::kContiguous;
};

/// Draws again until no number lies so near a knot of psi, or a denominator so
/// near 0, that rounding in `dtype` could change a gradient by more than its
/// tolerance; then arguments are rounded as `dtype` stores them.
Problem universal_problem(const UniversalSpec& spec, Random& random,
                          at::ScalarType dtype = at::kDouble);
Problem feature_map_problem(const FeatureMapSpec& spec, Random& random,
                            at::ScalarType dtype = at::kDouble);
Problem linear_problem(const LinearSpec& spec, Random& random);
Problem pack_problem(const PackSpec& spec, Random& random);
Problem unpack_problem(const UnpackSpec& spec, Random& random);
Problem nested_problem(const NestedSpec& spec, Random& random);

ops::FeatureMapParameters parameters_of(const Arguments& arguments);
void put(Arguments& arguments, const ops::FeatureMapParameters& parameters);

/// One line that tells which case failed.
std::string describe(const LinearSpec& spec);
std::string describe(const UniversalSpec& spec);
std::string describe(const FeatureMapSpec& spec);
std::string describe(const PackSpec& spec);
std::string describe(const UnpackSpec& spec);
std::string describe(const NestedSpec& spec);

at::Tensor relayout(const at::Tensor& tensor, Layout layout);

}  // namespace luna::testing
