#include "support/check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support/random.h"

namespace luna::testing {
namespace {

using at::Tensor;

bool is_activation(const std::string& name) {
  static const std::set<std::string> names{"x",     "query",    "key",
                                           "value", "pack_key", "packed_query"};
  return names.count(name) > 0;
}

/// Root mean squares of errors, by the names of what they are errors of.
class Errors {
 public:
  void add(const std::string& name, double error) {
    squares_[name] += error * error;
    ++counts_[name];
  }
  double of(const std::string& name) const {
    return std::sqrt(squares_.at(name) / counts_.at(name));
  }

 private:
  std::map<std::string, double> squares_, counts_;
};

void add_errors(Errors& errors, const Results& actual,
                const Results& expected) {
  for (size_t i = 0; i < expected.outputs.size(); ++i) {
    errors.add("output " + std::to_string(i),
               relative_error(actual.outputs[i], expected.outputs[i]));
  }
  // Where a gradient cancels to nothing, what counts is the size of the terms.
  const double floor = 0.1 * largest_norm(expected.gradients);
  for (const auto& [name, gradient] : expected.gradients) {
    errors.add("gradient of " + name,
               relative_error(actual.gradients.at(name), gradient, floor));
  }
}

void expect_same_kind(const Case& c, const Results& actual,
                      const Results& expected) {
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < expected.outputs.size(); ++i) {
    const Tensor &got = actual.outputs[i], &want = expected.outputs[i];
    ASSERT_EQ(got.sizes(), want.sizes()) << "output " << i;
    EXPECT_EQ(got.device().type(), c.device);
    if (want.is_floating_point()) {
      EXPECT_EQ(got.scalar_type(), i == 0 ? c.dtype : c.wide_dtype());
    } else {
      EXPECT_EQ(got.scalar_type(), want.scalar_type());
      expect_same(got, want, "output " + std::to_string(i));
    }
  }
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_EQ(actual.gradients.at(name).sizes(), gradient.sizes()) << name;
  }
}

void compare(const Case& c, const Problem& problem, bool gradients) {
  const Arguments exact = rounded(problem.arguments, c.dtype);
  Arguments narrow = exact;
  for (auto& [name, tensor] : narrow) {
    if (tensor.is_floating_point()) tensor = tensor.to(c.dtype);
  }
  // In low precision some gradients of a few numbers come out right by luck,
  // the plain formula's or the op's: several draws tell what is usual.
  const uint64_t draws = gradients && c.low_precision() ? 4 : 1;
  Errors errors, yardstick;
  Results expected;
  for (uint64_t number = 0; number < draws; ++number) {
    auto run = [&](const Function& function, const Arguments& arguments) {
      if (!gradients) return Results{function(arguments), {}};
      return evaluate(function, arguments, {c.dtype, number});
    };
    expected = run(problem.reference, exact);
    const Results actual = run(problem.op, stored(exact, c));
    expect_same_kind(c, actual, expected);
    if (::testing::Test::HasFatalFailure()) return;
    add_errors(errors, actual, expected);
    if (c.low_precision()) {
      add_errors(yardstick, run(problem.reference, narrow), expected);
    }
  }
  auto expect = [&](const std::string& name, double tolerance) {
    // A yardstick that overflows itself excuses nothing.
    const double rough = c.low_precision() ? yardstick.of(name) : 0.0;
    if (std::isfinite(rough)) tolerance = std::max(tolerance, 2 * rough);
    EXPECT_LE(errors.of(name), tolerance) << name;
  };
  for (size_t i = 0; i < expected.outputs.size(); ++i) {
    expect("output " + std::to_string(i), c.forward);
  }
  for (const auto& [name, gradient] : expected.gradients) {
    expect("gradient of " + name, c.gradient);
  }
}

}  // namespace

std::optional<Tensor> find(const Arguments& arguments,
                           const std::string& name) {
  const auto found = arguments.find(name);
  if (found == arguments.end()) return std::nullopt;
  return found->second;
}

Arguments stored(const Arguments& arguments, const Case& c) {
  Arguments result;
  for (const auto& [name, tensor] : arguments) {
    const at::ScalarType dtype = !tensor.is_floating_point()
                                     ? tensor.scalar_type()
                                 : is_activation(name) ? c.dtype
                                                       : c.wide_dtype();
    result[name] = tensor.to(at::Device(c.device), dtype);
  }
  return result;
}

Arguments rounded(const Arguments& arguments, at::ScalarType dtype) {
  Arguments result = stored(arguments, {at::kCPU, dtype, 0, 0});
  for (auto& [name, tensor] : result) {
    if (tensor.is_floating_point()) tensor = tensor.to(at::kDouble);
  }
  return result;
}

Tensor cotangent(const Tensor& output, int64_t index, Draw draw) {
  return Random(77 + index + 1000 * draw.number)
      .normal(output.sizes())
      .to(draw.dtype)
      .to(output.options());
}

Results evaluate(const Function& function, const Arguments& arguments,
                 Draw draw) {
  Arguments leaves = arguments;
  Tensors inputs;
  for (auto& [name, tensor] : leaves) {
    if (!tensor.is_floating_point()) continue;
    tensor = tensor.detach().requires_grad_();
    inputs.push_back(tensor);
  }
  Results results;
  Tensors outputs, cotangents;
  for (const Tensor& output : function(leaves)) {
    if (output.requires_grad()) {
      outputs.push_back(output);
      cotangents.push_back(cotangent(output, results.outputs.size(), draw));
    }
    results.outputs.push_back(output.detach());
  }
  Tensors gradients(inputs.size());
  if (!outputs.empty()) {
    gradients = torch::autograd::grad(outputs, inputs, cotangents,
                                      /*retain_graph=*/std::nullopt,
                                      /*create_graph=*/false,
                                      /*allow_unused=*/true);
  }
  size_t i = 0;
  for (const auto& [name, tensor] : leaves) {
    if (!tensor.is_floating_point()) continue;
    const Tensor& gradient = gradients[i++];
    results.gradients[name] =
        gradient.defined() ? gradient : at::zeros_like(tensor.detach());
  }
  return results;
}

double relative_error(const Tensor& actual, const Tensor& expected,
                      double floor) {
  const Tensor want = expected.to(at::kCPU, at::kDouble);
  const Tensor got = actual.to(at::kCPU, at::kDouble);
  const double error = (got - want).norm().item<double>();
  if (error == 0.0) return 0.0;
  return error / std::max(want.norm().item<double>(), floor);
}

double largest_norm(const Arguments& gradients) {
  double largest = 0.0;
  for (const auto& [name, gradient] : gradients) {
    largest = std::max(largest, gradient.norm().item<double>());
  }
  return largest;
}

void expect_close(const Tensor& actual, const Tensor& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE(relative_error(actual, expected), tolerance) << what;
}

void expect_same(const Tensor& actual, const Tensor& expected,
                 const std::string& what) {
  EXPECT_TRUE(at::equal(actual.cpu(), expected.cpu()))
      << what << " differs by " << relative_error(actual, expected);
}

void expect_same(const Results& actual, const Results& expected) {
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < actual.outputs.size(); ++i) {
    expect_same(actual.outputs[i], expected.outputs[i],
                "output " + std::to_string(i));
  }
  for (const auto& [name, gradient] : expected.gradients) {
    expect_same(actual.gradients.at(name), gradient, "gradient of " + name);
  }
}

void expect_finite(const Tensor& tensor, const std::string& what) {
  const int64_t bad = at::isfinite(tensor).logical_not().sum().item<int64_t>();
  EXPECT_EQ(bad, 0) << what << ": NaN or Inf among " << tensor.numel();
}

void expect_matches(const Case& c, const Problem& problem) {
  compare(c, problem, /*gradients=*/true);
}

void expect_outputs_match(const Case& c, const Problem& problem) {
  compare(c, problem, /*gradients=*/false);
}

void expect_finite_differences(const Function& function,
                               const Arguments& arguments, double tolerance) {
  const Results results = evaluate(function, arguments);
  auto loss = [&](const Arguments& moved) {
    c10::NoGradGuard no_grad;
    double sum = 0.0;
    const Tensors outputs = function(moved);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].is_floating_point()) continue;
      sum += (outputs[i] * cotangent(outputs[i], i)).sum().item<double>();
    }
    return sum;
  };
  const double step = 1e-6;
  for (const auto& [name, gradient] : results.gradients) {
    Arguments moved = arguments;
    Tensor flat = moved[name].clone().view({-1});
    moved[name] = flat.view(arguments.at(name).sizes());
    Tensor numeric = at::zeros_like(flat);
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const double x = flat[i].item<double>();
      flat[i] = x + step;
      const double above = loss(moved);
      flat[i] = x - step;
      const double below = loss(moved);
      flat[i] = x;
      numeric[i] = (above - below) / (2 * step);
    }
    EXPECT_LE(relative_error(gradient.reshape({-1}), numeric, 1e-2), tolerance)
        << "gradient of " << name << "\nautograd: " << gradient.reshape({-1})
        << "\nnumeric: " << numeric;
  }
}

}  // namespace luna::testing
