#pragma once

#include <luna/nn/head_attention.h>

#include <tuple>

// Causal linear attention whose sums forget, as RFA's gate has it
// (arXiv 2103.02143): with features q, k [B,H,n,F], v [B,H,n,dv] and gates
// g = sigmoid(s), s [B,H,n],
//
//   S_t = g_t S_{t-1} + (1 - g_t) k_t [v_t, 1]^T      [F, dv + 1]
//   out_t = q_t S_t[:, :dv] / guard(q_t S_t[:, dv])
//
// Chunk by chunk, in time and memory linear in n, of plain tensor operations.

namespace luna::nn {

/// -> out [B,H,n,dv], S_n. A key whose weight is 0 neither enters the sums nor
/// makes them forget.
std::tuple<at::Tensor, at::Tensor> attend_gated(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& gate, const AttendOptions& options, double eps);

/// One token: query, key [B,H,F], value [B,H,dv], gate [B,H]; advances `state`
/// in place.
at::Tensor step_gated(const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value, const at::Tensor& gate,
                      at::Tensor state, const StepOptions& options, double eps);

}  // namespace luna::nn
