#pragma once

#include "ops/cuda/rows.h"
#include "ops/cuda/softmax.h"

// What nested_causal_attention needs beside linear_sums.h. Maps are
// [batch, heads, length, slots], T, contiguous.

namespace luna::cuda {

template <typename T>
struct NestedMaps {
  Cut tiles;  ///< of 64 tokens
  int64_t heads, length, slots;
  const int64_t* count;  ///< tokens before each sequence's first; null: none
  const bool* mask;      ///< [sequences, slots]; null: all take part
  T scale;
  bool elu;
  SoftmaxDropout pack_dropout, unpack_dropout;
};

/// inverse[batch, t] = 1 / position; new_count = count + length. Null: not
/// wanted.
template <typename T>
void positions(const NestedMaps<T>& maps, T* inverse, int64_t* new_count,
               cudaStream_t stream);
/// a = dropped omega(a); slope (or null): its derivative.
template <typename T>
void activate(const NestedMaps<T>& maps, T* a, T* slope, cudaStream_t stream);
/// w = dropped softmax of scale / position * u.
template <typename T>
void slot_softmax(const NestedMaps<T>& maps, const T* u, T* w,
                  cudaStream_t stream);
/// From dw to the gradient of u, over u.
template <typename T>
void slot_softmax_backward(const NestedMaps<T>& maps, T* u, const T* dw,
                           cudaStream_t stream);
/// a = (a + b) * slope.
template <typename T>
void add_and_multiply(int64_t numbers, T* a, const T* b, const T* slope,
                      cudaStream_t stream);

/// One token a head: a_j = omega(scale p_j . pack_key), keys += key a^T,
/// values += a value^T; w = softmax over slots of scale / t (query keys), t the
/// token's position; out = w values / t.
template <typename T>
struct NestedStep {
  int64_t batch, heads, slots, depth, width;
  Rows query, pack_key, key, value, out;  ///< row stride unused
  Rows packed_query;                      ///< batch stride 0 where shared
  Rows key_state, value_state;            ///< T
  const bool* mask;
  int64_t* count;  ///< [batch], below 2^31; one more afterwards
  T scale;
  bool elu;
};
template <typename T>
void nested_step(const NestedStep<T>& args, cudaStream_t stream);

}  // namespace luna::cuda
