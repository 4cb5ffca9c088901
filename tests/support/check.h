#pragma once

// An op against its reference, and against finite differences.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/cases.h"

namespace luna::testing {

/// The tensors of a call, by the names of the op's arguments.
using Arguments = std::map<std::string, at::Tensor>;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Arguments&)>;

struct Problem {
  Arguments arguments;  ///< float64 (and bool, int) on the CPU
  Function op;
  Function reference;
};

std::optional<at::Tensor> find(const Arguments& arguments,
                               const std::string& name);

/// As the case stores them: activations in its dtype, all else in float32 (or
/// float64), on its device.
Arguments stored(const Arguments& arguments, const Case& c);

/// What storing leaves of the numbers, in float64 on the CPU.
Arguments rounded(const Arguments& arguments, at::ScalarType dtype);

struct Results {
  Tensors outputs;
  Arguments gradients;  ///< of every floating argument
};

/// The fixed random numbers that output `index` is multiplied with below,
/// rounded to `dtype`, to be the same for all dtypes.
struct Draw {
  at::ScalarType dtype = at::kDouble;
  uint64_t number = 0;
};
at::Tensor cotangent(const at::Tensor& output, int64_t index, Draw draw = {});

/// Calls `function` and differentiates the sum of its outputs' products with
/// their cotangents.
Results evaluate(const Function& function, const Arguments& arguments,
                 Draw draw = {});

/// ||actual - expected|| / max(||expected||, floor); 0 for two zeros.
double relative_error(const at::Tensor& actual, const at::Tensor& expected,
                      double floor = 0.0);

double largest_norm(const Arguments& gradients);

void expect_close(const at::Tensor& actual, const at::Tensor& expected,
                  double tolerance, const std::string& what);
/// The same bits.
void expect_same(const at::Tensor& actual, const at::Tensor& expected,
                 const std::string& what);
void expect_same(const Results& actual, const Results& expected);
void expect_finite(const at::Tensor& tensor, const std::string& what);

/// Outputs and gradients of problem.op are those of problem.reference.
void expect_matches(const Case& c, const Problem& problem);
void expect_outputs_match(const Case& c, const Problem& problem);

/// Gradients are central differences of the outputs; arguments in float64.
void expect_finite_differences(const Function& function,
                               const Arguments& arguments,
                               double tolerance = 1e-6);

}  // namespace luna::testing
