#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "ops/gathered_id.h"

// A batch laid out from a data set that lies on the device as flat arrays.
// Shapes are fixed and nothing waits for the host, so that a captured step can
// hold it.

namespace luna::ops {

struct GatherOptions {
  int64_t length = 0;      ///< of the rows that are made
  int64_t max_length = 0;  ///< cut sequences to this many ids; 0: not
  int64_t cls = -1;        ///< id in front of each row; -1: none
  int64_t pad = 0;         ///< id behind each row
  int64_t height = 0;      ///< of pictures, which `moves` shifts
  int64_t width = 0;
};

/// Rows [B,length] int64 and their lengths [B], of sequence
/// ids[offsets[s] ... offsets[s + 1]) for each s of `sequences` [B] int64.
/// moves [B,3] int64: flip, down, right of each picture.
std::tuple<at::Tensor, at::Tensor> gather_sequences(
    const at::Tensor& ids, const at::Tensor& offsets,
    const at::Tensor& sequences, const std::optional<at::Tensor>& moves,
    const GatherOptions& options);

/// The same sequences one after the other: one row [1,length] int64, filled up
/// with `pad`, their lengths [B], and where they start, see data::Packing,
/// [B+2]. Pictures are not moved. The row must be long enough.
struct Packed {
  at::Tensor row, lengths, starts;
};
Packed gather_packed(const at::Tensor& ids, const at::Tensor& offsets,
                     const at::Tensor& sequences, const GatherOptions& options);

/// What every backend checks first; allocates what it writes.
struct GatherCall {
  at::Tensor rows, lengths, starts;
  Gather gather;
};
GatherCall make_gather_call(const at::Tensor& ids, const at::Tensor& offsets,
                            const at::Tensor& sequences,
                            const std::optional<at::Tensor>& moves,
                            int64_t length, int64_t max_length, int64_t cls,
                            int64_t pad, int64_t height, int64_t width);
GatherCall make_packed_call(const at::Tensor& ids, const at::Tensor& offsets,
                            const at::Tensor& sequences, int64_t length,
                            int64_t max_length, int64_t cls, int64_t pad);

}  // namespace luna::ops
