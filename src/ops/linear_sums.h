#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "ops/heads.h"

// What linear_attention and universal_attention have in common: their
// arguments but the features, and the shapes of what the forward keeps.

namespace luna::ops {

struct LinearSums {
  at::Tensor query, key, value;
  std::optional<at::Tensor> key_weight, cu_seqlens_q, cu_seqlens_k;
  bool causal = false;
  bool normalize = true;
  double eps = 1e-6;
  std::optional<at::Tensor> state;

  bool packed() const { return cu_seqlens_q.has_value(); }
  /// B, or S where packed.
  c10::SymInt sequences() const {
    return packed() ? cu_seqlens_q->sym_size(0) - 1 : query.sym_size(0);
  }
};

/// What the forward gives: the op's results, and for the backward the
/// denominators [B,H,n] and, where causal, the state at each segment's start
/// [segments,H,F,dv+1]. The last two are empty unless `save`.
struct LinearSumsResult {
  at::Tensor output, state, denominator, segment_states;
};

/// Tokens between two saved states: so many that the states are no larger
/// than the queries.
inline c10::SymInt segment_length(const c10::SymInt& features,
                                  const c10::SymInt& value_width) {
  const c10::SymInt least = features * (value_width + 1) / 16 / 64 * 64;
  return least.max(1024);
}

/// Rows of `segment_states`: enough for any split into sequences.
inline c10::SymInt segment_rows(const LinearSums& sums,
                                const c10::SymInt& features) {
  const c10::SymInt length = segment_length(features, sums.value.sym_size(3));
  const c10::SymInt n = sums.query.sym_size(2);
  const c10::SymInt each = (n + length - 1) / length;
  return sums.packed() ? each + sums.sequences()
                       : each * sums.query.sym_size(0);
}

/// Every check but the features' own; value checks where the device is a CPU.
void check_linear_sums(std::string_view op, const LinearSums& sums,
                       const c10::SymInt& features);

/// The same for one token: query, key [B,H,d], value [B,H,dv],
/// state [B,H,F,dv+1], key_weight [B] or [B,H].
void check_linear_step(std::string_view op, const at::Tensor& query,
                       const at::Tensor& key, const at::Tensor& value,
                       const at::Tensor& state,
                       const std::optional<at::Tensor>& key_weight, double eps,
                       const c10::SymInt& features);

/// Results of the right shapes, uninitialised.
LinearSumsResult empty_result(const LinearSums& sums,
                              const c10::SymInt& features, bool save);

}  // namespace luna::ops
