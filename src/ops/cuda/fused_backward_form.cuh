#pragma once

#include "ops/cuda/fused_piece_sums.cuh"

namespace luna::cuda::fused {

/// What the kernels of a width have in shared memory. Warpgroups share a
/// projection, or each has its own head's, which leaves less room. `Source`
/// says where tiles come from.
template <int kNumbers, int kHalves, bool kPerHead,
          typename Source = OneSide<2>, bool kWindows = false>
struct Form {
  static constexpr int kGroups = kNumbers > 64 || kHalves == 2 ? 2
                                 : kNumbers < 64               ? 4
                                 : kPerHead                    ? 2
                                                               : 3;
  using Rows = Block<kNumbers>;
  static constexpr bool kAhead = kNumbers <= 64;  // there are two stages
  static constexpr bool kSlopesKept = kNumbers == 64 && kHalves == 1;
  using BackwardStages = Stages<2, kAhead ? 2 : 1, kNumbers, 0, Source>;
  using ProjectionRows = ProjectionRowsOf<kNumbers, kHalves>;
  using Control = typename BackwardStages::Control;
  using Pieces = PieceSums<kGroups, kHalves, false, kWindows>;
  static constexpr int kHeadSums =
      static_cast<int>(fused_head_sums(kNumbers, kHalves* kProjections));
  static constexpr int kProjectionBytes =
      (kPerHead ? kGroups : 1) * ProjectionRows::Rows::kBytes;

  /// A half's phi (queries), or its state in another order (keys).
  static constexpr int kExtraBytes =
      Rows::kBytes > kTileBytes ? Rows::kBytes : kTileBytes;
  static constexpr int kCopies = kGroups * kHalves;
  static constexpr int kExtra = kGroups * BackwardStages::kBytes;
  static constexpr int kState = kExtra + kCopies * kExtraBytes;
  static constexpr int kSlopes = kState + kCopies * Rows::kBytes;  // du
  static constexpr int kLast = kSlopes + kCopies * kNarrowBytes;
  static constexpr int kProjection = kLast + kGroups * kNarrowBytes;
  static constexpr int kBack = kProjection + kProjectionBytes;
  static constexpr int kZ = kBack + kProjectionBytes;
  static constexpr int kPieceControl = kZ + kCopies * kFeatures * 4;
  static constexpr int kControl =
      kPieceControl +
      aligned(static_cast<int>(sizeof(typename Pieces::Control)));
  static constexpr int kTable =
      kControl + aligned(kGroups * static_cast<int>(sizeof(Control)));

  static int rows(const TableShape& shape) {
    return Pieces::rows_in(shape, kSharedBytes - kTable);
  }
  static size_t memory(const TableShape& shape) {
    return kTable + Pieces::bytes(shape, rows(shape));
  }
};

}  // namespace luna::cuda::fused
