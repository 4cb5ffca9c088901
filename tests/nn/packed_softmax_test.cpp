// softmax of packed sequences by the flash kernels of a GPU, which take
// bfloat16 and float16 alone.

#include <luna/nn/softmax_attention.h>

#include "nn/packed_softmax.h"
#include "support/check.h"
#include "support/device.h"
#include "support/random.h"

#include <ATen/ATen.h>

namespace luna::nn {
namespace {

using luna::testing::expect_close;
using luna::testing::expect_same;
using luna::testing::Random;

struct Call {
  at::Tensor query, key, value, output{};
  std::vector<at::Tensor> gradients() const {
    return {query.grad(), key.grad(), value.grad()};
  }
};

// Sequences of 70, 0, 1 and 129 tokens
const std::vector<int64_t> kStarts{0, 70, 70, 71, 200};
// Of 5, 0, 66 and 79: those of another language
const std::vector<int64_t> kOtherStarts{0, 5, 5, 71, 150};

enum class Form { kSelf, kCausal, kCross };

Call attend(const at::TensorOptions& as, double dropout, Form form) {
  Random random(1);
  const auto& key_starts = form == Form::kCross ? kOtherStarts : kStarts;
  const auto draw = [&](int64_t tokens) {
    return random.normal({1, 2, tokens, 32})
        .to(at::kBFloat16)
        .to(as)
        .requires_grad_();
  };
  Call call{draw(kStarts.back()), draw(key_starts.back()),
            draw(key_starts.back())};
  SoftmaxAttention softmax(HeadShape{32, 2}, SoftmaxAttentionOptions{dropout});
  AttendOptions options;
  options.cu_seqlens_q = at::tensor(kStarts, at::kLong).to(as.device());
  options.cu_seqlens_k = at::tensor(key_starts, at::kLong).to(as.device());
  options.longest = 130;
  options.causal = form == Form::kCausal;
  call.output =
      std::get<0>(softmax->attend(call.query, call.key, call.value, options));
  call.output.backward(
      Random(2).normal(call.output.sizes()).to(at::kBFloat16).to(as));
  return call;
}

class PackedSoftmax : public luna::testing::DeviceTest {};

TEST_P(PackedSoftmax, IsOneCallForEachSequence) {
  const auto there = at::device(device()).dtype(at::kBFloat16);
  for (const Form form : {Form::kSelf, Form::kCausal, Form::kCross}) {
    const auto expected = attend(at::dtype(at::kDouble), 0, form);
    const auto actual = attend(there, 0, form);
    expect_close(actual.output.cpu(), expected.output, 1e-2, "output");
    for (size_t i = 0; i < 3; ++i) {
      expect_close(actual.gradients()[i].cpu(), expected.gradients()[i], 2e-2,
                   "gradient " + std::to_string(i));
    }
  }
}

TEST_P(PackedSoftmax, GivesTheSameBitsTwice) {
  const auto there = at::device(device()).dtype(at::kBFloat16);
  for (const Form form : {Form::kSelf, Form::kCausal, Form::kCross}) {
    at::manual_seed(3);
    const auto first = attend(there, 0.3, form);
    at::manual_seed(3);
    const auto second = attend(there, 0.3, form);
    expect_same(second.output, first.output, "output");
    for (size_t i = 0; i < 3; ++i) {
      expect_same(second.gradients()[i], first.gradients()[i], "gradients");
    }
    EXPECT_FALSE(at::equal(attend(there, 0.3, form).output, first.output))
        << "nothing was dropped";
  }
}

TEST_P(PackedSoftmax, TakesWhatTheKernelsTake) {
  AttendOptions options;
  const auto takes = [&](int64_t width, at::ScalarType type) {
    const auto x =
        at::zeros({1, 2, 10, width}, at::device(device()).dtype(type));
    return packed_softmax_takes(x, x, x, options);
  };
  EXPECT_FALSE(takes(32, at::kBFloat16)) << "no longest length";
  options.longest = 10;
  EXPECT_EQ(takes(32, at::kBFloat16), device().is_cuda());
  EXPECT_EQ(takes(32, at::kHalf), device().is_cuda());
  EXPECT_FALSE(takes(12, at::kBFloat16));
  EXPECT_FALSE(takes(32, at::kFloat));
  options.key_weight = at::ones({1, 10});
  EXPECT_FALSE(takes(32, at::kBFloat16));
}

LUNA_EVERY_DEVICE(PackedSoftmax);

}  // namespace
}  // namespace luna::nn
