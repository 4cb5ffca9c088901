#include "support/properties.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace luna::testing {
namespace {

using at::Tensor;

/// Leaves that need gradients, of the given names (of all, if none is given).
Arguments leaves_of(const Arguments& arguments,
                    const std::set<std::string>& names = {}) {
  Arguments leaves = arguments;
  for (auto& [name, tensor] : leaves) {
    if (!tensor.is_floating_point()) continue;
    if (!names.empty() && !names.count(name)) continue;
    tensor = tensor.detach().requires_grad_();
  }
  return leaves;
}

Tensors with_gradients(const Arguments& arguments) {
  Tensors inputs;
  for (const auto& [name, tensor] : arguments) {
    if (tensor.requires_grad()) inputs.push_back(tensor);
  }
  return inputs;
}

Tensors differentiable(const Tensors& outputs) {
  Tensors result;
  for (const Tensor& output : outputs) {
    if (output.requires_grad()) result.push_back(output);
  }
  return result;
}

void expect_agree(const Case& c, const Results& actual,
                  const Results& expected) {
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < actual.outputs.size(); ++i) {
    expect_close(actual.outputs[i], expected.outputs[i], c.agreement(),
                 "output " + std::to_string(i));
  }
  const double largest = largest_norm(expected.gradients);
  for (const auto& [name, gradient] : expected.gradients) {
    const Tensor& got = actual.gradients.at(name);
    ASSERT_EQ(got.sizes(), gradient.sizes()) << name;
    EXPECT_LE(relative_error(got, gradient, 0.1 * largest), 2 * c.gradient)
        << "gradient of " << name;
  }
}

}  // namespace

void expect_same_bits_twice(const Case& c, const Problem& problem) {
  const Arguments arguments = stored(problem.arguments, c);
  const Results first = evaluate(problem.op, arguments);
  for (int again = 0; again < 3; ++again) {
    expect_same(evaluate(problem.op, arguments), first);
  }
}

void expect_stride_zero_gradients(const Case& c, const Problem& problem) {
  const Arguments leaves = leaves_of(stored(problem.arguments, c));
  const Tensors inputs = with_gradients(leaves);
  const Tensor output = problem.op(leaves)[0];
  const Tensor one = at::ones({}, output.options());
  const Tensors got = torch::autograd::grad(
      {output}, inputs, {one.expand_as(output)}, /*retain_graph=*/true,
      /*create_graph=*/false, /*allow_unused=*/true);
  const Tensors want = torch::autograd::grad(
      {output}, inputs, {at::ones_like(output.detach())},
      /*retain_graph=*/std::nullopt, /*create_graph=*/false,
      /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
    if (got[i].defined()) {
      expect_same(got[i], want[i], "gradient " + std::to_string(i));
    }
  }
  // And some strides that are neither contiguous nor 0.
  const Tensors sums = torch::autograd::grad(
      {problem.op(leaves)[0].transpose(1, 2).reshape({-1}).sum()}, inputs, {},
      /*retain_graph=*/std::nullopt, /*create_graph=*/false,
      /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (sums[i].defined()) {
      expect_same(sums[i], want[i], "gradient " + std::to_string(i));
    }
  }
}

void expect_each_gradient_alone(const Case& c, const Problem& problem) {
  const Arguments arguments = stored(problem.arguments, c);
  const Results all = evaluate(problem.op, arguments);
  for (const auto& [name, gradient] : all.gradients) {
    SCOPED_TRACE("only " + name);
    const Function op = [&problem, &arguments,
                         &only = name](const Arguments& leaves) {
      Arguments mixed = arguments;
      mixed[only] = leaves.at(only);
      return problem.op(mixed);
    };
    const Results alone = evaluate(op, {{name, arguments.at(name)}});
    EXPECT_LE(relative_error(alone.gradients.at(name), gradient,
                             0.1 * largest_norm(all.gradients)),
              c.gradient)
        << name;
  }
}

void expect_each_output_alone(const Case& c, const Problem& problem) {
  const size_t outputs = problem.op(stored(problem.arguments, c)).size();
  for (size_t i = 0; i < outputs; ++i) {
    SCOPED_TRACE("only output " + std::to_string(i));
    // The first place of the results is that of the op's own dtype.
    auto only = [i](const Function& f) -> Function {
      return [f, i](const Arguments& a) -> Tensors {
        Tensor kept = f(a)[i];
        if (i == 0) return {kept};
        return {a.at("query").detach(), kept};
      };
    };
    expect_matches(
        c, {problem.arguments, only(problem.op), only(problem.reference)});
  }
}

void expect_double_backward_refused(const Problem& problem) {
  const Arguments leaves = leaves_of(problem.arguments);
  const Tensors inputs = with_gradients(leaves);
  Tensor loss = at::zeros({}, at::kDouble);
  for (const Tensor& output : differentiable(problem.op(leaves))) {
    loss = loss + (output * output).sum();
  }
  auto twice = [&] {
    const Tensors once = torch::autograd::grad({loss}, inputs, {},
                                               /*retain_graph=*/true,
                                               /*create_graph=*/true);
    Tensor penalty = at::zeros({}, at::kDouble);
    for (const Tensor& gradient : once) {
      penalty = penalty + gradient.pow(2).sum();
    }
    torch::autograd::grad({penalty}, inputs, {}, std::nullopt, false,
                          /*allow_unused=*/true);
  };
  EXPECT_THROW(twice(), c10::Error);
}

void expect_calls_can_be_repeated(const Case& c, const Problem& problem) {
  const Arguments arguments = stored(problem.arguments, c);
  const Arguments leaves = leaves_of(arguments);
  const Tensors inputs = with_gradients(leaves);
  const Tensors outputs = problem.op(leaves);
  auto gradients = [&] {
    const Tensor loss = outputs[0].pow(2).sum();
    return torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true,
                                 /*create_graph=*/false,
                                 /*allow_unused=*/true);
  };
  const Tensors first = gradients(), second = gradients();
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(first[i].defined(), second[i].defined());
    if (first[i].defined()) expect_same(second[i], first[i], "second backward");
  }
  const Tensors without = problem.op(arguments);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_FALSE(without[i].requires_grad());
    expect_close(without[i], outputs[i].detach(), c.agreement(),
                 "output without gradients");
  }
}

void expect_changed_inputs_noticed(const Problem& problem,
                                   const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Arguments leaves = leaves_of(problem.arguments);
    const Tensors inputs = with_gradients(leaves);
    Tensor copy = leaves.at(name).clone();
    leaves[name] = copy;
    const Tensor loss = problem.op(leaves)[0].sum();
    copy.add_(1);
    EXPECT_THROW(torch::autograd::grad({loss}, inputs, {}, std::nullopt, false,
                                       /*allow_unused=*/true),
                 c10::Error)
        << name;
  }
}

void expect_expanded_batch_matches(const Case& c, const Problem& problem) {
  auto expanded = [](const Function& f) -> Function {
    return [f](const Arguments& given) {
      Arguments a = given;
      for (auto& [name, tensor] : a) {
        const bool leads = name != "cu_seqlens" && name != "seed";
        if (!leads || tensor.dim() == 0 || tensor.size(0) != 1) continue;
        if (name.find("projection") == 0 || name.find("hidden") == 0 ||
            name.find("output") == 0) {
          continue;
        }
        std::vector<int64_t> sizes = tensor.sizes().vec();
        sizes[0] = 3;
        tensor = tensor.expand(sizes);
      }
      return f(a);
    };
  };
  expect_matches(c, {problem.arguments, expanded(problem.op),
                     expanded(problem.reference)});
}

void expect_memory_order_kept(const Case& c, const Problem& problem) {
  for (const bool tokens_first : {false, true}) {
    Arguments a = stored(problem.arguments, c);
    const auto in_memory = [&](const Tensor& x) {
      return tokens_first ? x.transpose(1, 2) : x;
    };
    for (const char* name : {"query", "key", "value"}) {
      ASSERT_GT(std::min(a[name].size(1), a[name].size(2)), 1) << name;
      a[name] = in_memory(in_memory(a[name]).contiguous());
    }
    const Results results = evaluate(problem.op, a, {c.dtype});
    EXPECT_TRUE(in_memory(results.outputs[0]).is_contiguous());
    for (const char* name : {"query", "key", "value"}) {
      EXPECT_TRUE(in_memory(results.gradients.at(name)).is_contiguous())
          << name;
    }
  }
}

void expect_future_unseen(const Case& c, const Problem& problem,
                          const std::vector<std::string>& token_arguments) {
  const Arguments arguments = stored(problem.arguments, c);
  const int64_t n = arguments.at("query").size(2);
  const Tensor before = problem.op(arguments)[0];
  for (int64_t seen : {int64_t{1}, n / 2, n - 1}) {
    SCOPED_TRACE("positions seen: " + std::to_string(seen));
    Arguments changed = arguments;
    for (const std::string& name : token_arguments) {
      Tensor copy = arguments.at(name).clone();
      Tensor future =
          copy.narrow(name == "key_weight" ? -1 : 2, seen, n - seen);
      future.copy_(Random(5).uniform(future.sizes(), 0.5, 3.0));
      changed[name] = copy;
    }
    const Tensor after = problem.op(changed)[0];
    expect_close(after.narrow(2, 0, seen), before.narrow(2, 0, seen),
                 c.agreement(), "past outputs");
    EXPECT_GT(relative_error(after.narrow(2, seen, n - seen),
                             before.narrow(2, seen, n - seen)),
              1e-2);

    const Function past = [&](const Arguments& a) -> Tensors {
      return {problem.op(a)[0].narrow(2, 0, seen)};
    };
    const Results results = evaluate(past, arguments);
    for (const std::string& name : token_arguments) {
      const auto gradient = find(results.gradients, name);
      if (!gradient) continue;
      const int64_t dim = name == "key_weight" ? -1 : 2;
      EXPECT_EQ(
          gradient->narrow(dim, seen, n - seen).abs().max().item<double>(), 0.0)
          << name;
    }
  }
}

void expect_masked_part_equals_removed(const Case& c, const Problem& problem) {
  const Arguments arguments = stored(problem.arguments, c);
  const int64_t batch = arguments.at("key").size(0);
  const int64_t m = arguments.at("key").size(2);
  // The same for all samples, so that what is left is a rectangle.
  const Tensor kept = at::arange(m).remainder(3) != 1;
  const Tensor mask = kept.to(arguments.at("key").device());
  const Tensor index = mask.nonzero().squeeze(1);
  const Function masked = [&](const Arguments& given) {
    Arguments a = given;
    a["key_weight"] = mask.expand({batch, m}).contiguous();
    return problem.op(a);
  };
  const Function removed = [&](const Arguments& given) {
    Arguments a = given;
    for (const char* name : {"key", "value"}) {
      a[name] = a[name].index_select(2, index);
    }
    return problem.op(a);
  };
  const Results got = evaluate(masked, arguments);
  expect_agree(c, got, evaluate(removed, arguments));
  const Tensor gone = mask.logical_not().nonzero().squeeze(1);
  for (const char* name : {"key", "value"}) {
    const Tensor gradient = got.gradients.at(name).index_select(2, gone);
    EXPECT_EQ(gradient.abs().max().item<double>(), 0.0) << name;
  }
}

void expect_padding_changes_nothing(const Case& c, const Problem& problem) {
  const Arguments arguments = stored(problem.arguments, c);
  const Tensor& key = arguments.at("key");
  const int64_t batch = key.size(0), m = key.size(2), more = 5;
  const Function padded = [&](const Arguments& given) {
    Arguments a = given;
    for (const char* name : {"key", "value"}) {
      std::vector<int64_t> sizes = a[name].sizes().vec();
      sizes[2] = more;
      const Tensor junk = Random(9).normal(sizes, 50).to(a[name].options());
      a[name] = at::cat({a[name], junk}, 2);
    }
    const auto weight = find(a, "key_weight");
    const Tensor old =
        weight ? *weight : at::ones({batch, m}, key.options().dtype(at::kBool));
    std::vector<int64_t> sizes = old.sizes().vec();
    sizes.back() = more;
    a["key_weight"] = at::cat({old, at::zeros(sizes, old.options())}, -1);
    return problem.op(a);
  };
  expect_agree(c, evaluate(padded, arguments), evaluate(problem.op, arguments));
}

void expect_weight_gradient_sums_over_heads(const Case& c,
                                            const Problem& problem) {
  const Arguments shared = stored(problem.arguments, c);
  const Tensor weight = shared.at("key_weight");
  ASSERT_EQ(weight.dim(), 2);
  const int64_t heads = shared.at("key").size(1);
  Arguments per_head = shared;
  per_head["key_weight"] =
      weight.unsqueeze(1).repeat({1, heads, 1}).contiguous();
  const Results got = evaluate(problem.op, shared);
  const Results want = evaluate(problem.op, per_head);
  expect_close(got.outputs[0], want.outputs[0], c.agreement(), "output");
  expect_close(got.gradients.at("key_weight"),
               want.gradients.at("key_weight").sum(1), c.gradient,
               "gradient of key_weight");
}

void expect_zero_weight_gradient(const Problem& problem) {
  Arguments arguments = problem.arguments;
  Tensor weight = arguments.at("key_weight").clone();
  weight.select(-1, 1).zero_();
  weight.select(-1, weight.size(-1) - 1).zero_();
  arguments["key_weight"] = weight;
  const Results results = evaluate(problem.op, arguments);
  const Tensor gradient = results.gradients.at("key_weight");
  expect_finite(gradient, "gradient of key_weight");
  const double step = 1e-7;
  for (int64_t j : {int64_t{1}, weight.size(-1) - 1}) {
    Arguments moved = arguments;
    moved["key_weight"] = weight.clone();
    moved["key_weight"].select(-1, j)[0] = step;
    // The derivative of the same random product of outputs as in evaluate().
    auto loss = [&](const Arguments& a) {
      const Tensors outputs = problem.op(a);
      double sum = 0.0;
      for (size_t i = 0; i < outputs.size(); ++i) {
        sum += (outputs[i] * cotangent(outputs[i], i)).sum().item<double>();
      }
      return sum;
    };
    const double numeric = (loss(moved) - loss(arguments)) / step;
    const Tensor first = gradient.select(-1, j)[0];
    EXPECT_NEAR(first.sum().item<double>(), numeric,
                1e-4 * std::max(1.0, std::abs(numeric)))
        << "key " << j;
  }
}

void expect_packed_equals_separate(const Case& c, const Problem& problem,
                                   const PackedArguments& how) {
  const Arguments arguments = stored(problem.arguments, c);
  auto ends = [&](const char* name) {
    const auto cu = find(arguments, name);
    return cu ? cu->to(at::kCPU, at::kLong) : find(arguments, "cu_seqlens");
  };
  const auto q_ends = ends("cu_seqlens_q"), k_ends = ends("cu_seqlens_k");
  const int64_t sequences = (q_ends ? *q_ends : *k_ends).numel() - 1;
  const Function separate = [&](const Arguments& a) {
    std::vector<Tensors> parts(how.output_dims.size());
    for (int64_t s = 0; s < sequences; ++s) {
      Arguments one;
      auto cut = [s](const Tensor& tensor, const Tensor& cu, int64_t dim) {
        const int64_t start = cu[s].item<int64_t>();
        return tensor.narrow(dim, start, cu[s + 1].item<int64_t>() - start);
      };
      for (const auto& [name, tensor] : a) {
        const int64_t dim = name == "key_weight" ? -1 : 2;
        if (how.query_tokens.count(name)) {
          one[name] = cut(tensor, *q_ends, dim);
        } else if (how.key_tokens.count(name)) {
          one[name] = cut(tensor, *k_ends, dim);
        } else if (how.rows.count(name)) {
          one[name] = tensor.narrow(0, tensor.size(0) == 1 ? 0 : s, 1);
        } else if (name.find("cu_seqlens") != 0) {
          one[name] = tensor;
        }
      }
      const Tensors outputs = problem.op(one);
      for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(outputs[i]);
    }
    Tensors joined;
    for (size_t i = 0; i < parts.size(); ++i) {
      joined.push_back(at::cat(parts[i], how.output_dims[i]));
    }
    return joined;
  };
  expect_agree(c, evaluate(problem.op, arguments),
               evaluate(separate, arguments));
}

namespace {

class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t,
                         at::Device) override {
    const int64_t now = live_ += bytes;
    int64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  std::atomic<int64_t> live_{0}, peak_{0};
};

int64_t bytes(const Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

MemoryUse memory_use(const std::function<void()>& work) {
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  work();
  return {meter->live(), meter->peak()};
}

int64_t bytes_saved_for_backward(const Problem& problem, at::ScalarType dtype) {
  const Arguments leaves =
      leaves_of(stored(problem.arguments, {at::kCPU, dtype, 0, 0}));
  problem.op(leaves);  // whatever is set up once
  Tensors outputs;
  int64_t kept = memory_use([&] { outputs = problem.op(leaves); }).kept;
  for (const Tensor& output : outputs) kept -= bytes(output);
  return kept;
}

}  // namespace luna::testing
