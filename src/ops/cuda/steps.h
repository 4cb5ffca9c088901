#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/features.h"
#include "ops/cuda/rows.h"

namespace luna::cuda {

/// One token a head: S += w k [v, 1]^T, out = q S / guarded(q z).
template <typename T>
struct Step {
  int64_t batch, heads, features, width;
  Rows query, key, value, out;  ///< row stride unused
  Factor<T> weight;             ///< row 0
  T* state;
  bool normalize;
  T eps;
};
template <typename T>
void advance_states(const Step<T>& args, cudaStream_t stream);
/// The same of the features of query and key.
template <typename T>
void advance_states(const Step<T>& args, const FeatureMap<T>& map,
                    cudaStream_t stream);

/// The same of states for which there are kernels of their own; `map` null:
/// features are given. False where these are none.
bool advance_square_states(const Step<float>& args,
                           const FeatureMap<float>* map, cudaStream_t stream);

}  // namespace luna::cuda
