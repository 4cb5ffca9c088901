// A layer computes what somebody reads of it, and that is the same.

#include <ATen/ATen.h>
#include <luna/models/encoder_layer.h>
#include <luna/nn/attention_registry.h>

#include <map>

#include "models/packed_models.h"
#include "models/small_models.h"
#include "support/device.h"
#include "support/operations.h"

namespace luna::models::testing {
namespace {

using luna::testing::DeviceTest;

struct Part {
  std::string attention;
  config::OptionMap options{};
};

/// Every mechanism, and one whose rows depend on each other's queries.
std::vector<Part> parts() {
  std::vector<Part> all;
  for (const auto& info : nn::attentions()) all.push_back({info.name});
  all.push_back({"universal", {{"ch_rms", true}}});
  return all;
}

EncoderLayer layer_of(const Part& part, bool pre_norm) {
  auto config = small_config(part.attention);
  config.norm = pre_norm ? "pre" : "post";
  auto options = part.options;
  if (nn::find_attention(part.attention).traits.memory) {
    options["dynamic_projection"] = false;
  }
  EncoderLayer layer(EncoderLayerOptions(config, options));
  make_random(*layer);
  layer->eval();
  return layer;
}

/// Three sequences, padded or packed, and the memories that they need.
struct Input {
  LayerState state;
  Masks masks{};

  /// Each sequence's first row of a layer's x.
  at::Tensor first(const at::Tensor& x) const {
    return masks.packed
               ? x.index_select(1, masks.packed->starts.narrow(0, 0, 3))
               : x.narrow(1, 0, 1);
  }
};

Input input_of(const Part& part, bool packed) {
  Random random(7);
  Input input{{random.normal(packed ? std::vector<int64_t>{1, 14, 12}
                                    : std::vector<int64_t>{3, 6, 12})}};
  if (nn::find_attention(part.attention).traits.memory) {
    input.state.memory = random.normal({packed ? 4 : 3, 4, 12});
  }
  if (packed) {  // sequences of 5, 1 and 4, a filler of 4
    input.masks.packed =
        data::Packing{at::tensor({0, 5, 6, 10, 14}, at::kLong), 5};
  } else {
    const auto lengths = at::tensor({6, 1, 4}, at::kLong).unsqueeze(1);
    input.masks.x = at::arange(6).lt(lengths);
  }
  return input;
}

/// Of sum(rows * a fixed number each) + the same of the memory.
std::map<std::string, at::Tensor> gradients_of(EncoderLayer& layer,
                                               const at::Tensor& x,
                                               const at::Tensor& rows,
                                               const at::Tensor& memory) {
  layer->zero_grad();
  x.mutable_grad() = at::Tensor();
  const auto weighted = [](const at::Tensor& y) {
    return (y * at::arange(y.numel(), y.options()).cos().view_as(y)).sum();
  };
  auto loss = weighted(rows);
  if (memory.defined()) loss = loss + weighted(memory);
  loss.backward();
  std::map<std::string, at::Tensor> gradients = {{"x", x.grad().clone()}};
  for (const auto& entry : layer->named_parameters()) {
    const auto& gradient = entry.value().grad();
    if (gradient.defined()) gradients[entry.key()] = gradient.clone();
  }
  return gradients;
}

TEST(EncoderLayer, FirstRowsTeachAsTheyDoAmongAll) {
  for (const auto& part : parts()) {
    for (const bool packed : {false, true}) {
      if (packed && !part.options.empty()) continue;  // cannot be packed
      SCOPED_TRACE(part.attention + (packed ? ", packed" : ""));
      auto layer = layer_of(part, false);
      auto input = input_of(part, packed);
      input.state.x.requires_grad_();
      const auto learnt = [&](Rows rows) {
        const auto next = layer(input.state, input.masks, Wanted{rows, true});
        return gradients_of(layer, input.state.x,
                            rows == Rows::kFirst ? next.x : input.first(next.x),
                            next.memory.value_or(at::Tensor()));
      };
      const auto expected = learnt(Rows::kAll);
      const auto actual = learnt(Rows::kFirst);
      ASSERT_EQ(actual.size(), expected.size());
      for (const auto& [name, gradient] : expected) {
        SCOPED_TRACE(name);
        expect_near(actual.at(name), gradient);
      }
    }
  }
}

TEST(EncoderLayer, FirstRowsAreThoseOfAll) {
  for (const auto& part : parts()) {
    for (const bool packed : {false, true}) {
      if (packed && !part.options.empty()) continue;  // cannot be packed
      for (const bool pre_norm : {true, false}) {
        SCOPED_TRACE(part.attention + (packed ? ", packed" : "") +
                     (part.options.empty() ? "" : ", ch_rms"));
        auto layer = layer_of(part, pre_norm);
        const auto input = input_of(part, packed);
        const auto all = layer(input.state, input.masks);
        const auto first =
            layer(input.state, input.masks, Wanted{Rows::kFirst, true});
        expect_near(first.x, input.first(all.x));
        if (all.memory) expect_near(*first.memory, *all.memory);
      }
    }
  }
}

TEST(EncoderLayer, AMemoryThatIsReadAloneIsNotUnpacked) {
  for (const bool packed : {false, true}) {
    SCOPED_TRACE(packed);
    const Part part = {"nested"};
    auto layer = layer_of(part, false);
    const auto input = input_of(part, packed);
    const auto all = layer(input.state, input.masks);
    const luna::testing::OperationCount count;
    const auto none =
        layer(input.state, input.masks, Wanted{Rows::kNone, true});
    EXPECT_EQ(count.by_name().count("luna::pack_attention"), 1) << count.text();
    EXPECT_EQ(count.by_name().count("luna::unpack_attention"), 0)
        << count.text();
    expect_near(*none.memory, *all.memory);
  }
}

class EncoderLayerOnDevice : public DeviceTest {};

// Widths and slots that the fastest kernels of a GPU take.
TEST_P(EncoderLayerOnDevice, FirstRowsOfPackedSequencesInBfloat16) {
  const at::NoGradGuard no_grad;
  for (const auto& info : nn::attentions()) {
    SCOPED_TRACE(info.name);
    ModelConfig config = small_config(info.name);
    config.width = 128;
    config.heads = 2;
    config.norm = "post";
    config::OptionMap options;
    if (info.traits.memory) options["dynamic_projection"] = false;
    EncoderLayer layer(EncoderLayerOptions(config, options));
    make_random(*layer);
    layer->to(device(), at::kBFloat16);
    layer->eval();
    Random random(7);
    const auto at_device = [&](const at::Tensor& x) {
      return x.to(device(), at::kBFloat16);
    };
    LayerState state{at_device(random.normal({1, 340, 128}))};
    if (info.traits.memory) {
      state.memory = at_device(random.normal({4, 40, 128}));
    }
    const auto starts =
        at::tensor({0, 200, 201, 300, 340}, at::kLong).to(device());
    Masks masks;
    masks.packed = data::Packing{starts, 200};
    const auto all = layer(state, masks);
    const auto first = layer(state, masks, Wanted{Rows::kFirst, true});
    const auto wide = [](const at::Tensor& x) {
      return x.cpu().to(at::kFloat);
    };
    expect_near(wide(first.x),
                wide(all.x.index_select(1, starts.narrow(0, 0, 3))), 0.05);
    if (all.memory) expect_near(wide(*first.memory), wide(*all.memory), 0.05);
  }
}

LUNA_EVERY_DEVICE(EncoderLayerOnDevice);

}  // namespace
}  // namespace luna::models::testing
