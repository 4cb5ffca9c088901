#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <string>
#include <vector>

#include "luna/bench/results.h"

namespace luna::bench {

/// Shapes of one race.
struct Work {
  std::int64_t batch = 1;
  std::int64_t heads = 8;
  std::int64_t length = 1024;
  std::int64_t width = 64;
  std::int64_t packed_length = 16;
  bool causal = false;
  c10::ScalarType dtype = c10::kFloat;
};

/// What all contenders of a race are given: leaves that need gradients.
struct Inputs {
  at::Tensor query, key, value;  ///< [B,H,n,d]
  at::Tensor out_gradient;       ///< [B,H,n,d]

  /// Of those that the mode needs: forward does without out_gradient.
  std::int64_t bytes(Mode mode) const;
};

Inputs make_inputs(const Work& work);

/// The same numbers in the shapes of another work: leaves of their own over
/// shared memory.
Inputs reshape(const Inputs& inputs, const Work& work);

/// A mechanism or a peer, ready to run on its inputs.
struct Contender {
  std::string name;
  std::function<at::Tensor()> attend;
  std::vector<at::Tensor> leaves;  ///< that get a gradient
};

/// `name`: a mechanism of the registry, kPlainFormula or kSdpaPair.
Contender make_contender(const std::string& name, const Work& work,
                         const Inputs& inputs);

/// Why `name` cannot be run on this work with this much memory; else empty.
std::string obstacle(const std::string& name, const Work& work, Mode mode,
                     std::int64_t memory);

/// To be raced: one call without gradients, or a call and its backward.
Contestant contestant(const Contender& contender, Mode mode,
                      const at::Tensor& out_gradient);

}  // namespace luna::bench
