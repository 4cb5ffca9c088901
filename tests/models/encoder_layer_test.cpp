// A layer computes what somebody reads of it, and that is the same.

#include <ATen/ATen.h>
#include <luna/models/encoder_layer.h>
#include <luna/nn/attention_registry.h>

#include "models/packed_models.h"
#include "models/small_models.h"
#include "support/operations.h"

namespace luna::models::testing {
namespace {

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

LayerState state_of(const Part& part, int64_t batch, int64_t n,
                    int64_t memories) {
  Random random(7);
  LayerState state{random.normal({batch, n, 12})};
  if (nn::find_attention(part.attention).traits.memory) {
    state.memory = random.normal({memories, 4, 12});
  }
  return state;
}

TEST(EncoderLayer, FirstRowsAreThoseOfAll) {
  for (const auto& part : parts()) {
    for (const bool pre_norm : {true, false}) {
      SCOPED_TRACE(part.attention + (part.options.empty() ? "" : ", ch_rms"));
      auto layer = layer_of(part, pre_norm);
      const auto state = state_of(part, 3, 6, 3);
      const auto lengths = at::tensor({6, 1, 4}, at::kLong).unsqueeze(1);
      Masks masks;
      masks.x = at::arange(6).lt(lengths);
      const auto all = layer(state, masks);
      const auto first = layer(state, masks, Wanted{Rows::kFirst, true});
      expect_near(first.x, all.x.narrow(1, 0, 1));
      if (all.memory) expect_near(*first.memory, *all.memory);
    }
  }
}

TEST(EncoderLayer, FirstRowsOfPackedSequencesAreThoseOfAll) {
  for (const auto& part : parts()) {
    if (!part.options.empty()) continue;  // cannot be packed
    for (const bool pre_norm : {true, false}) {
      SCOPED_TRACE(part.attention);
      auto layer = layer_of(part, pre_norm);
      const auto state = state_of(part, 1, 14, 4);
      const auto starts = at::tensor({0, 5, 6, 10, 14}, at::kLong);
      Masks masks;  // sequences of 5, 1 and 4, a filler of 4
      masks.packed = data::Packing{starts, 5};
      const auto all = layer(state, masks);
      const auto first = layer(state, masks, Wanted{Rows::kFirst, true});
      expect_near(first.x, all.x.index_select(1, starts.narrow(0, 0, 3)));
      if (all.memory) expect_near(*first.memory, *all.memory);
    }
  }
}

TEST(EncoderLayer, AMemoryThatIsReadAloneIsNotUnpacked) {
  for (const bool packed : {false, true}) {
    SCOPED_TRACE(packed);
    const Part part = {"nested"};
    auto layer = layer_of(part, false);
    const auto state =
        packed ? state_of(part, 1, 8, 3) : state_of(part, 2, 8, 2);
    Masks masks;
    if (packed) {
      masks.packed = data::Packing{at::tensor({0, 5, 7, 8}, at::kLong), 5};
    }
    const auto all = layer(state, masks);
    const luna::testing::OperationCount count;
    const auto none = layer(state, masks, Wanted{Rows::kNone, true});
    EXPECT_EQ(count.by_name().count("luna::pack_attention"), 1) << count.text();
    EXPECT_EQ(count.by_name().count("luna::unpack_attention"), 0)
        << count.text();
    expect_near(*none.memory, *all.memory);
  }
}

}  // namespace
}  // namespace luna::models::testing
