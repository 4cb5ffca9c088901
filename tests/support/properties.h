#pragma once

// Properties that hold for several ops. Each takes a problem of the right kind
// (see the comments) and changes its arguments by their names.

#include <set>
#include <string>
#include <vector>

#include "support/problems.h"

namespace luna::testing {

/// The same call gives the same bits, gradients included.
void expect_same_bits_twice(const Case& c, const Problem& problem);

/// The gradients of output.sum(), whose own gradient has stride 0 everywhere,
/// are those of a contiguous tensor of ones.
void expect_stride_zero_gradients(const Case& c, const Problem& problem);

/// An argument's gradient does not depend on who else needs one.
void expect_each_gradient_alone(const Case& c, const Problem& problem);

/// Each output alone can be differentiated (others get no gradient).
void expect_each_output_alone(const Case& c, const Problem& problem);

/// Differentiating a gradient is an error, never a silent zero.
void expect_double_backward_refused(const Problem& problem);

/// A graph kept for a second backward gives the same gradients again, and a
/// call that needs no gradients gives the same outputs.
void expect_calls_can_be_repeated(const Case& c, const Problem& problem);

/// An input that is changed in place before the backward is an error, never a
/// wrong gradient.
void expect_changed_inputs_noticed(const Problem& problem,
                                   const std::vector<std::string>& names);

/// Activations of batch 1, expanded (stride 0) to a batch of 3.
void expect_expanded_batch_matches(const Case& c, const Problem& problem);

/// Output and gradients of query, key and value lie in memory as these do:
/// token after token for [B,n,H,d] seen as [B,H,n,d].
void expect_memory_order_kept(const Case& c, const Problem& problem);

/// Outputs up to a position stay when all tokens after it change, and pass no
/// gradient to those. Causal problems, batch first and n >= 2.
void expect_future_unseen(const Case& c, const Problem& problem,
                          const std::vector<std::string>& token_arguments);

/// Keys with key_weight false are as good as absent. No key_weight given yet.
void expect_masked_part_equals_removed(const Case& c, const Problem& problem);

/// Keys full of junk behind the sequence, masked, change nothing.
void expect_padding_changes_nothing(const Case& c, const Problem& problem);

/// The gradient of a [B,m] weight is that of a [B,H,m] one, summed over heads.
void expect_weight_gradient_sums_over_heads(const Case& c,
                                            const Problem& problem);

/// At weights of 0 the gradient is the one-sided derivative. float64, with a
/// float key_weight.
void expect_zero_weight_gradient(const Problem& problem);

/// Which arguments of a packed problem are cut by sequence, and how.
struct PackedArguments {
  std::set<std::string> query_tokens, key_tokens;  ///< along their length
  std::set<std::string> rows;        ///< one row each, or one shared by all
  std::vector<int64_t> output_dims;  ///< where the outputs are joined again
};

/// One packed call is as many calls, in outputs and in gradients.
void expect_packed_equals_separate(const Case& c, const Problem& problem,
                                   const PackedArguments& how);

/// Bytes of tensors that live on after `work`, and the most during it.
struct MemoryUse {
  int64_t kept = 0;
  int64_t peak = 0;
};
MemoryUse memory_use(const std::function<void()>& work);

/// Bytes that a call with gradients keeps beyond its inputs and outputs.
int64_t bytes_saved_for_backward(const Problem& problem, at::ScalarType dtype);

}  // namespace luna::testing
