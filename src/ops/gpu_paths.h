#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Which kernels compute an op on a GPU: the limits that their bindings ask
// for, and the words for them that `luna info` and the log print.

namespace luna::ops {

/// Universal attention in which features never leave the chip: bfloat16 rows
/// and values of one width, on a Hopper GPU.
struct FusedShape {
  bool causal;
  int64_t width, projections;
  bool per_head;  ///< heads may have projections of their own
};
inline constexpr int64_t kFusedChannels = 8;
inline constexpr FusedShape kFusedShapes[] = {
    {false, 32, 8, true},  {false, 32, 16, true}, {false, 64, 8, true},
    {false, 64, 16, true}, {false, 128, 8, true}, {true, 64, 8, false},
};
constexpr bool fused_takes(const FusedShape& wanted, int64_t value_width,
                           int64_t channels) {
  for (const FusedShape& s : kFusedShapes) {
    if (s.causal == wanted.causal && s.width == wanted.width &&
        s.projections == wanted.projections &&
        (s.per_head || !wanted.per_head)) {
      return value_width == wanted.width && channels == kFusedChannels;
    }
  }
  return false;
}

/// Sequences of which a warpgroup takes a head whole, with width 64 and 8
/// projections: one launch each way, but no more warpgroups at work than there
/// are (sequence, head)s. Forward+backward of n tokens on an H200, beside the
/// other kernels, ms:
///
///            8 heads       32            128           65,536 tokens x 8
///   n = 128  .071 (.071)   .073 (.076)   .077 (.099)   .378 (.665)
///   n = 256                                            .364 (.500)
///   n = 512  .122 (.071)   .123 (.087)   .126 (.139)   .356 (.446)
inline constexpr int64_t kFusedShortTokens = 512;
inline constexpr int64_t kFusedShortTokensPerHead = 4;  ///< at most
constexpr bool fused_short_pays(int64_t heads, int64_t queries, int64_t keys) {
  const int64_t longer = queries > keys ? queries : keys;
  return queries > 0 && keys > 0 && longer <= kFusedShortTokens &&
         longer <= heads * kFusedShortTokensPerHead;
}

/// Columns of the tables of embeddings that a block has, backward.
inline constexpr int64_t kEmbedColumns = 64;

/// Features of which rounding errors average out in matrix products.
inline constexpr int64_t kProductFeatures = 16;

/// Nested attention's kernels for tensor cores: widths of rows and values,
/// multiples of 8, and slots up to these.
inline constexpr int64_t kSoftmaxMmaWidth = 128, kSoftmaxMmaSlots = 512;
/// Hopper's products by a warpgroup: rows and values up to this width,
/// multiples of 8, more slots than the first number; the backward up to the
/// second.
inline constexpr int64_t kSoftmaxWgmmaWidth = 64, kSoftmaxWgmmaLeastSlots = 32,
                         kSoftmaxWgmmaBackwardSlots = 256;
template <typename Size>
constexpr bool softmax_wgmma_takes(const Size& width) {
  return width % 8 == 0 && width >= 8 && width <= kSoftmaxWgmmaWidth;
}
/// Slots whose scores a block keeps, of a single token.
inline constexpr int64_t kUnpackTokenSlots = 4096;
inline constexpr int64_t kNestedMmaWidth = 64, kNestedMmaSlots = 128;

/// States' features, columns, projections and channels in steps that the copy
/// engine serves.
inline constexpr int64_t kSquareState = 64, kSquareProjections = 8,
                         kSquareChannels = 8;

struct GpuPath {
  std::string op, kernels, takes;
  bool part = false;  ///< of what the next row's kernels take
};
/// The first of an op's rows that takes a call computes it.
const std::vector<GpuPath>& gpu_paths();

/// For the log: what the op's first kernels take, where others are used.
std::string slower_path(std::string_view op);

}  // namespace luna::ops
