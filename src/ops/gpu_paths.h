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

/// Features of which rounding errors average out in matrix products.
inline constexpr int64_t kProductFeatures = 16;

/// Nested attention's kernels for tensor cores: widths of rows and values,
/// multiples of 8, and slots up to these.
inline constexpr int64_t kSoftmaxMmaWidth = 128, kSoftmaxMmaSlots = 512;
/// Hopper's products by a warpgroup: rows and values of this width, more slots
/// than the first number; the backward up to the second.
inline constexpr int64_t kSoftmaxWgmmaWidth = 64, kSoftmaxWgmmaLeastSlots = 32,
                         kSoftmaxWgmmaBackwardSlots = 256;
inline constexpr int64_t kNestedMmaWidth = 64, kNestedMmaSlots = 128;

/// States' features, columns, projections and channels in steps that the copy
/// engine serves.
inline constexpr int64_t kSquareState = 64, kSquareProjections = 8,
                         kSquareChannels = 8;

struct GpuPath {
  std::string op, kernels, takes;
};
/// The first of an op's rows that takes a call computes it.
const std::vector<GpuPath>& gpu_paths();

/// For the log: what the op's first kernels take, where others are used.
std::string slower_path(std::string_view op);

}  // namespace luna::ops
