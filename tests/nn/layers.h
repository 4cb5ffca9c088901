#pragma once

// Small layers of every registered mechanism, in float64, and inputs for them.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <luna/nn/attention_registry.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "support/random.h"

namespace luna::nn::testing {

using luna::testing::Random;

constexpr int64_t kWidth = 12, kHeads = 3, kMemory = 4;

/// A mechanism as encoders use it, or as decoders do.
struct Form {
  std::string name;
  bool causal;
};
inline void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name << (form.causal ? "_causal" : "");
}

using Wanted = std::function<bool(const nn::AttentionTraits&)>;

inline std::vector<Form> forms(bool causal, const Wanted& wanted) {
  std::vector<Form> all;
  for (const auto& info : nn::attentions()) {
    if (causal && !info.traits.causal) continue;
    if (wanted(info.traits)) all.push_back({info.name, causal});
  }
  return all;
}

inline std::vector<Form> all_forms() {
  const Wanted any = [](const auto&) { return true; };
  auto all = forms(false, any);
  for (const auto& form : forms(true, any)) all.push_back(form);
  return all;
}

inline std::string name_of(const ::testing::TestParamInfo<Form>& info) {
  return info.param.name + (info.param.causal ? "_causal" : "");
}

/// A layer with its module: LibTorch has no one base of both.
struct Layer {
  std::shared_ptr<nn::AttentionLayer> attention;
  std::shared_ptr<torch::nn::Module> module;
  nn::AttentionTraits traits;

  explicit Layer(const Form& form, const config::OptionMap& options = {})
      : attention(nn::make_attention_layer(
            form.name, {kWidth, kHeads, form.causal}, options)),
        module(nn::as_module(attention)),
        traits(nn::find_attention(form.name).traits) {
    module->to(at::kDouble);
  }

  nn::AttentionLayer* operator->() const { return attention.get(); }
};

/// Biases and gates start at 0: make them count. Small numbers, so that rff's
/// kernel, which can be negative, stays clear of denominators near 0.
inline void randomize(torch::nn::Module& module, uint64_t seed) {
  at::NoGradGuard no_grad;
  Random random(seed);
  for (auto& parameter : module.named_parameters()) {
    parameter.value().copy_(random.normal(parameter.value().sizes(), 0.25));
  }
}

/// What the layer needs beside x.
inline nn::LayerInput input_for(const Layer& layer, uint64_t seed = 5) {
  nn::LayerInput input;
  if (layer.traits.memory) {
    input.memory = Random(seed).normal({kMemory, kWidth});
  }
  return input;
}

/// [B,n] bool: the first lengths[i] of row i.
inline at::Tensor mask_of(const std::vector<int64_t>& lengths, int64_t n) {
  return at::arange(n).unsqueeze(0).lt(at::tensor(lengths).unsqueeze(1));
}

inline void expect_near(const at::Tensor& actual, const at::Tensor& expected,
                        double tolerance = 1e-10) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  if (actual.numel() == 0) return;
  ASSERT_TRUE(actual.isfinite().all().item<bool>()) << actual;
  EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance)
      << "expected numbers up to " << expected.abs().max().item<double>();
}

/// What `call` says when it fails, or "" where it does not.
inline std::string failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// `call` fails with an error of that kind, whose message has all the parts.
template <class Error>
void expect_failure(const std::function<void()>& call,
                    const std::vector<std::string>& parts) {
  EXPECT_THROW(call(), Error);
  const auto message = failure(call);
  for (const auto& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "no \"" << part << "\" in: " << message;
  }
}

}  // namespace luna::nn::testing
