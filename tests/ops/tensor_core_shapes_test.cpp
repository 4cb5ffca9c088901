// Shapes at the edges of what the GPU's tensor cores take (bfloat16, widths
// that are multiples of 8), which the other tests' few columns never reach.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/dropout.h"
#include "support/properties.h"

namespace luna::testing {
namespace {

class TensorCoreShapes : public OpTest {};
LUNA_ALL_CASES(TensorCoreShapes);

constexpr int64_t kWidth = 64;
void check(const Case& c, const PackSpec& spec) {
  SCOPED_TRACE(describe(spec));
  Random random(101);
  expect_matches(c, pack_problem(spec, random));
}
void check(const Case& c, const UnpackSpec& spec) {
  SCOPED_TRACE(describe(spec));
  Random random(102);
  expect_matches(c, unpack_problem(spec, random));
}
void check(const Case& c, const NestedSpec& spec) {
  SCOPED_TRACE(describe(spec));
  Random random(103);
  expect_matches(c, nested_problem(spec, random));
}

/// The reference knows no dropout; another dtype's kernels do.
void expect_same_mask_as_in_double(const Case& c, const Problem& problem) {
  const Arguments exact = rounded(problem.arguments, c.dtype);
  const Case wide{c.device, at::kDouble, 0, 0};
  const Results want = evaluate(problem.op, stored(exact, wide), {c.dtype});
  const Results got = evaluate(problem.op, stored(exact, c), {c.dtype});
  // A weight more or less would change far more than rounding does.
  const double tolerance = c.low_precision() ? 2e-2 : 1e-4;
  expect_close(got.outputs[0], want.outputs[0], tolerance, "output");
  for (const auto& [name, gradient] : want.gradients) {
    expect_close(got.gradients.at(name), gradient, tolerance, name);
  }
}

/// A sequence of NaNs among packed ones leaves the others' outputs and
/// gradients as they are, to the bit. Arguments lie along the tokens or have a
/// row for each sequence, and the output as the argument `like_output`.
void expect_sequences_apart(const Case& c, const Problem& problem,
                            const std::vector<int64_t>& lengths,
                            const std::set<std::string>& along_tokens,
                            const std::string& like_output) {
  const Arguments arguments = stored(problem.arguments, c);
  const Results want = evaluate(problem.op, arguments, {c.dtype});
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); begin += lengths[i++]) {
    if (lengths[i] == 0) continue;
    SCOPED_TRACE("NaN in sequence " + std::to_string(i));
    Arguments spoilt = arguments;
    for (const std::string& name : along_tokens) {
      spoilt[name] = arguments.at(name).clone();
      spoilt[name].narrow(2, begin, lengths[i]).fill_(NAN);
    }
    const Results got = evaluate(problem.op, spoilt, {c.dtype});
    const auto expect_others_same = [&](at::Tensor actual, at::Tensor expected,
                                        const std::string& name,
                                        const std::string& like) {
      const bool tokens = along_tokens.count(like) > 0;
      const int64_t dim = tokens ? 2 : 0;
      const int64_t first = tokens ? begin : static_cast<int64_t>(i);
      const int64_t count = tokens ? lengths[i] : 1;
      actual.narrow(dim, first, count).zero_();
      expected = expected.clone();
      expected.narrow(dim, first, count).zero_();
      expect_same(actual, expected, name);
    };
    EXPECT_TRUE(got.outputs[0].isnan().any().item<bool>());
    expect_others_same(got.outputs[0], want.outputs[0], "output", like_output);
    for (const auto& [name, gradient] : want.gradients) {
      expect_others_same(got.gradients.at(name), gradient, name, name);
    }
  }
}

TEST_P(TensorCoreShapes, SlotsOfPackAndUnpack) {
  for (int64_t l : {1, 15, 16, 17, 33, 64, 100, 128, 200, 256, 257}) {
    check(GetParam(), PackSpec{.batch = 1,
                               .heads = 1,
                               .l = l,
                               .m = 65,
                               .width = kWidth,
                               .value_width = kWidth});
    check(GetParam(), UnpackSpec{.batch = 1,
                                 .heads = 1,
                                 .n = 65,
                                 .l = l,
                                 .width = kWidth,
                                 .value_width = kWidth});
  }
  check(GetParam(), PackSpec{.batch = 1,
                             .heads = 1,
                             .l = 512,
                             .m = 5,
                             .width = kWidth,
                             .value_width = kWidth});
  check(GetParam(), UnpackSpec{.batch = 1,
                               .heads = 1,
                               .n = 5,
                               .l = 512,
                               .width = kWidth,
                               .value_width = kWidth});
}

TEST_P(TensorCoreShapes, LengthsOfPackAndUnpack) {
  for (int64_t l : {16, 40, 100, 250}) {
    for (int64_t n : {0, 1, 63, 400}) {
      check(GetParam(), PackSpec{.batch = 1,
                                 .l = l,
                                 .m = n,
                                 .width = kWidth,
                                 .value_width = kWidth});
      check(GetParam(), UnpackSpec{.batch = 1,
                                   .n = n,
                                   .l = l,
                                   .width = kWidth,
                                   .value_width = kWidth});
    }
  }
}

TEST_P(TensorCoreShapes, BatchesAndHeadsOfPackAndUnpack) {
  for (int64_t l : {100, 256}) {
    PackSpec pack{.batch = 3,
                  .heads = 2,
                  .l = l,
                  .m = 130,
                  .width = kWidth,
                  .value_width = kWidth};
    UnpackSpec unpack{.batch = 3,
                      .heads = 2,
                      .n = 130,
                      .l = l,
                      .width = kWidth,
                      .value_width = kWidth};
    check(GetParam(), pack);
    check(GetParam(), unpack);
    pack.layout = unpack.layout = Layout::kHeadsInside;
    pack.shared_query = true;
    check(GetParam(), pack);
    check(GetParam(), unpack);
  }
}

TEST_P(TensorCoreShapes, LargeScoresOfPackAndUnpack) {
  // Softmax between a few keys, which change the running maximum often.
  const auto check_large = [](Problem problem) {
    problem.arguments.at("query") *= 4;
    problem.arguments.at("key") *= 4;
    expect_matches(GetParam(), problem);
  };
  for (int64_t l : {64, 200}) {
    Random random(105);
    check_large(pack_problem(
        {.l = l, .m = 200, .width = kWidth, .value_width = kWidth}, random));
    check_large(unpack_problem(
        {.n = 70, .l = l, .width = kWidth, .value_width = kWidth}, random));
  }
}

TEST_P(TensorCoreShapes, SameBitsTwice) {
  for (int64_t l : {40, 128, 250, 300}) {
    for (double p : {0.0, 0.3}) {
      Random random(106);
      expect_same_bits_twice(GetParam(), pack_problem({.l = l,
                                                       .m = 300,
                                                       .width = kWidth,
                                                       .value_width = kWidth,
                                                       .dropout_p = p},
                                                      random));
      expect_same_bits_twice(GetParam(), unpack_problem({.n = 300,
                                                         .l = l,
                                                         .width = kWidth,
                                                         .value_width = kWidth,
                                                         .dropout_p = p},
                                                        random));
    }
  }
}

TEST_P(TensorCoreShapes, WidthsOfPackAndUnpack) {
  for (auto [width, value_width] :
       {std::pair{8, 16}, {32, 32}, {64, 24}, {128, 128}}) {
    for (int64_t l : {9, 20, 33}) {
      check(GetParam(), PackSpec{.batch = 1,
                                 .l = l,
                                 .m = 70,
                                 .width = width,
                                 .value_width = value_width});
      check(GetParam(), UnpackSpec{.batch = 1,
                                   .n = 70,
                                   .l = l,
                                   .width = width,
                                   .value_width = value_width});
    }
  }
}

TEST_P(TensorCoreShapes, OptionsOfPackAndUnpack) {
  for (int64_t l : {16, 40, 100, 250}) {
    PackSpec pack{.l = l, .m = 70, .width = kWidth, .value_width = kWidth};
    UnpackSpec unpack{.n = 70, .l = l, .width = kWidth, .value_width = kWidth};
    for (Weight weight : {Weight::kBool, Weight::kFloatPerHead}) {
      if (l > 40 && weight == Weight::kFloatPerHead) continue;
      pack.weight = unpack.weight = weight;
      check(GetParam(), pack);
      check(GetParam(), unpack);
    }
    pack.weight = unpack.weight = Weight::kNone;
    if (l > 40) continue;
    pack.lengths_k = unpack.lengths_q = {40, 0, 1, 20};
    check(GetParam(), pack);
    pack.shared_query = true;
    check(GetParam(), pack);
    check(GetParam(), unpack);
    pack.lengths_k = unpack.lengths_q = {};
    check(GetParam(), pack);
    pack.layout = unpack.layout = Layout::kHeadsInside;
    check(GetParam(), pack);
    check(GetParam(), unpack);
  }
}

TEST_P(TensorCoreShapes, DropoutOfPackAndUnpack) {
  for (int64_t l : {16, 40, 100, 250, 300}) {
    for (Weight weight : {Weight::kNone, Weight::kBool}) {
      Random random(104);
      expect_same_mask_as_in_double(GetParam(),
                                    pack_problem({.l = l,
                                                  .m = 200,
                                                  .width = kWidth,
                                                  .value_width = kWidth,
                                                  .weight = weight,
                                                  .dropout_p = 0.3},
                                                 random));
      expect_same_mask_as_in_double(GetParam(),
                                    unpack_problem({.n = 200,
                                                    .l = l,
                                                    .width = kWidth,
                                                    .value_width = kWidth,
                                                    .weight = weight,
                                                    .dropout_p = 0.3},
                                                   random));
    }
  }
}

/// Kernels differ by slots on a GPU alone; on a CPU many only take long.
int64_t most_slots(const Case& c) { return c.device == at::kCPU ? 40 : 512; }

TEST_P(TensorCoreShapes, PackedSequencesOfPackAndUnpack) {
  const auto check_both = [](int64_t l, Weight weight,
                             const std::vector<int64_t>& lengths) {
    PackSpec pack{.l = l,
                  .width = kWidth,
                  .value_width = kWidth,
                  .weight = weight,
                  .lengths_k = lengths};
    UnpackSpec unpack{.l = l,
                      .width = kWidth,
                      .value_width = kWidth,
                      .weight = weight,
                      .lengths_q = lengths};
    if (weight != Weight::kNone) {
      pack.shared_query = true;
      pack.layout = unpack.layout = Layout::kHeadsInside;
    }
    check(GetParam(), pack);
    check(GetParam(), unpack);
  };
  for (auto [l, weight] : {std::pair{40, Weight::kBool},
                           {64, Weight::kNone},
                           {65, Weight::kNone},
                           {128, Weight::kBoolPerHead},
                           {200, Weight::kNone},
                           {256, Weight::kBool},
                           {300, Weight::kNone}}) {
    if (l > most_slots(GetParam())) continue;
    check_both(l, weight, {1, 63, 64, 65, 130, 0, 200});
  }
  check_both(100, Weight::kNone, {0, 0});
  check_both(100, Weight::kNone, {0, 130, 0});
  check_both(100, Weight::kNone, {128});
}

/// Compared in both ways that need no reference.
void check_packed_dropout(const Case& c, int64_t heads, int64_t l,
                          Weight weight, double p,
                          const std::vector<int64_t>& lengths) {
  SCOPED_TRACE(fmt::format("l = {}, dropout {}", l, p));
  Random random(107);
  const Problem pack = pack_problem({.heads = heads,
                                     .l = l,
                                     .width = kWidth,
                                     .value_width = kWidth,
                                     .weight = weight,
                                     .lengths_k = lengths,
                                     .dropout_p = p},
                                    random);
  const Problem unpack = unpack_problem({.heads = heads,
                                         .l = l,
                                         .width = kWidth,
                                         .value_width = kWidth,
                                         .weight = weight,
                                         .lengths_q = lengths,
                                         .dropout_p = p},
                                        random);
  expect_same_mask_as_in_double(c, pack);
  expect_same_mask_as_in_double(c, unpack);
  expect_same_bits_twice(c, pack);
  expect_same_bits_twice(c, unpack);
}

TEST_P(TensorCoreShapes, DropoutOfPackedSequences) {
  for (int64_t l : {40, 100, 250, 300}) {
    if (l > most_slots(GetParam())) continue;
    for (Weight weight : {Weight::kNone, Weight::kBool}) {
      check_packed_dropout(GetParam(), 2, l, weight, 0.3,
                           {1, 63, 64, 65, 200, 0, 777});
    }
  }
}

// So many heads that a piece has several hundred tokens.
TEST_P(TensorCoreShapes, LongPackedSequences) {
  if (GetParam().device == at::kCPU) GTEST_SKIP() << "pieces are the GPU's";
  for (int64_t l : {100, 250}) {
    for (double p : {0.0, 0.3}) {
      check_packed_dropout(GetParam(), 32, l, Weight::kNone, p,
                           {1500, 700, 0, 1000, 129});
    }
  }
}

TEST_P(TensorCoreShapes, PackedSequencesDoNotMeet) {
  const std::vector<int64_t> lengths{70, 200, 0, 1, 130};
  for (int64_t l : {16, 40, 100, 250}) {
    if (l > most_slots(GetParam())) continue;
    for (double p : {0.0, 0.3}) {
      SCOPED_TRACE(fmt::format("l = {}, dropout {}", l, p));
      Random random(108);
      expect_sequences_apart(GetParam(),
                             pack_problem({.l = l,
                                           .width = kWidth,
                                           .value_width = kWidth,
                                           .lengths_k = lengths,
                                           .dropout_p = p},
                                          random),
                             lengths, {"key", "value"}, "query");
      expect_sequences_apart(GetParam(),
                             unpack_problem({.l = l,
                                             .width = kWidth,
                                             .value_width = kWidth,
                                             .lengths_q = lengths,
                                             .dropout_p = p},
                                            random),
                             lengths, {"query"}, "query");
    }
  }
}

// Narrower than a tile of the GPU's, whose other columns must count nothing.
TEST_P(TensorCoreShapes, NarrowRowsOfPackAndUnpack) {
  for (auto [width, value_width] :
       {std::pair{8, 8}, {8, 40}, {32, 32}, {56, 16}}) {
    for (int64_t l : {40, 100, 250}) {
      if (l > most_slots(GetParam())) continue;
      PackSpec pack{.l = l,
                    .m = 300,
                    .width = width,
                    .value_width = value_width,
                    .layout = Layout::kHeadsInside};
      UnpackSpec unpack{.n = 300,
                        .l = l,
                        .width = width,
                        .value_width = value_width,
                        .layout = Layout::kHeadsInside};
      check(GetParam(), pack);
      check(GetParam(), unpack);
      pack.dropout_p = unpack.dropout_p = 0.3;
      for (Weight weight : {Weight::kNone, Weight::kBool}) {
        pack.weight = unpack.weight = weight;
        Random random(109);
        const Problem packs = pack_problem(pack, random);
        const Problem unpacks = unpack_problem(unpack, random);
        expect_same_mask_as_in_double(GetParam(), packs);
        expect_same_mask_as_in_double(GetParam(), unpacks);
        expect_same_bits_twice(GetParam(), packs);
        expect_same_bits_twice(GetParam(), unpacks);
      }
      const std::vector<int64_t> lengths{70, 200, 0, 1, 130};
      Random random(110);
      expect_sequences_apart(GetParam(),
                             pack_problem({.l = l,
                                           .width = width,
                                           .value_width = value_width,
                                           .lengths_k = lengths},
                                          random),
                             lengths, {"key", "value"}, "query");
      expect_sequences_apart(GetParam(),
                             unpack_problem({.l = l,
                                             .width = width,
                                             .value_width = value_width,
                                             .lengths_q = lengths},
                                            random),
                             lengths, {"query"}, "query");
    }
  }
}

TEST_P(TensorCoreShapes, DropoutOfNestedCausal) {
  for (int64_t l : {16, 40}) {
    Random random(104);
    expect_same_mask_as_in_double(GetParam(),
                                  nested_problem({.n = 70,
                                                  .l = l,
                                                  .width = kWidth,
                                                  .value_width = kWidth,
                                                  .dropout_p = 0.3},
                                                 random));
  }
}

TEST_P(TensorCoreShapes, NestedCausal) {
  for (int64_t l : {1, 16, 17, 33, 65, 128}) {
    check(GetParam(), NestedSpec{.batch = 1,
                                 .heads = 1,
                                 .n = 50,
                                 .l = l,
                                 .width = kWidth,
                                 .value_width = kWidth});
  }
  for (int64_t n : {1, 16, 400}) {
    check(GetParam(),
          NestedSpec{
              .batch = 1, .n = n, .l = 16, .width = kWidth, .value_width = 32});
  }
  for (const char* activation : {"softplus", "elu"}) {
    NestedSpec spec{.n = 40,
                    .l = 24,
                    .width = 32,
                    .value_width = kWidth,
                    .mask = true,
                    .shared_query = true,
                    .state = true,
                    .activation = activation};
    check(GetParam(), spec);
    spec.lengths = {20, 0, 1, 33};
    check(GetParam(), spec);
    spec.layout = Layout::kHeadsInside;
    check(GetParam(), spec);
  }
}

}  // namespace
}  // namespace luna::testing
