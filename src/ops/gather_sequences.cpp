#include "ops/gather_sequences.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/dispatch.h"

namespace luna::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Signature = Two(const Tensor&, const Tensor&, const Tensor&,
                      const OptionalTensor&, int64_t, int64_t, int64_t, int64_t,
                      int64_t, int64_t);
using PackedSignature = Three(const Tensor&, const Tensor&, const Tensor&,
                              int64_t, int64_t, int64_t, int64_t);

constexpr std::string_view kName = "gather_sequences";
/// Starts lie in a block's shared memory.
constexpr int64_t kMostPacked = 4096;

/// Writes `rows` rows.
GatherCall make_call(int64_t rows, const Tensor& ids, const Tensor& offsets,
                     const Tensor& sequences, const OptionalTensor& moves,
                     int64_t length, int64_t max_length, int64_t cls,
                     int64_t pad, int64_t height, int64_t width) {
  const auto expect = [&](const char* name, const Tensor& x,
                          at::ScalarType dtype, int64_t dims) {
    TORCH_CHECK_TYPE(x.scalar_type() == dtype, kName, ": expected ", name,
                     " of dtype ", dtype, ", got ", x.scalar_type());
    TORCH_CHECK_VALUE(x.dim() == dims && x.is_contiguous(), kName,
                      ": expected ", name, " contiguous of rank ", dims,
                      ", got ", x.sizes(), " with strides ", x.strides());
    check_same_device(kName, name, x, "ids", ids);
  };
  expect("ids", ids, at::kByte, 1);
  expect("offsets", offsets, at::kLong, 1);
  expect("sequences", sequences, at::kLong, 1);
  if (moves) {
    expect("moves", *moves, at::kLong, 2);
    check_size(kName, "moves", *moves, 0, sequences.size(0), "sequences");
    check_size(kName, "moves", *moves, 1, 3, "flip, down, right");
    TORCH_CHECK_VALUE(height > 0 && width > 0, kName,
                      ": expected height and width > 0 with moves, got ",
                      height, " and ", width);
  }
  TORCH_CHECK_VALUE(length >= 1, kName, ": expected length >= 1, got ", length);
  GatherCall call{at::empty({rows, length}, sequences.options()),
                  at::empty_like(sequences),
                  {},
                  {}};
  call.gather = {ids.const_data_ptr<uint8_t>(),
                 offsets.const_data_ptr<int64_t>(),
                 sequences.const_data_ptr<int64_t>(),
                 moves ? moves->const_data_ptr<int64_t>() : nullptr,
                 sequences.size(0),
                 length,
                 max_length,
                 cls,
                 pad,
                 height,
                 width,
                 call.rows.mutable_data_ptr<int64_t>(),
                 call.lengths.mutable_data_ptr<int64_t>()};
  return call;
}

Two gather_cpu(const Tensor& ids, const Tensor& offsets,
               const Tensor& sequences, const OptionalTensor& moves,
               int64_t length, int64_t max_length, int64_t cls, int64_t pad,
               int64_t height, int64_t width) {
  const GatherCall call =
      make_gather_call(ids, offsets, sequences, moves, length, max_length, cls,
                       pad, height, width);
  const Gather& g = call.gather;
  at::parallel_for(0, g.batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      g.lengths[row] = gathered_length(g, row);
      for (int64_t column = 0; column < g.length; ++column) {
        g.rows[row * g.length + column] = gathered_id(g, row, column);
      }
    }
  });
  return {call.rows, call.lengths};
}

Two gather_meta(const Tensor&, const Tensor&, const Tensor& sequences,
                const OptionalTensor&, int64_t length, int64_t, int64_t,
                int64_t, int64_t, int64_t) {
  return {
      at::empty_symint({sequences.sym_size(0), length}, sequences.options()),
      at::empty_like(sequences)};
}

Three packed_cpu(const Tensor& ids, const Tensor& offsets,
                 const Tensor& sequences, int64_t length, int64_t max_length,
                 int64_t cls, int64_t pad) {
  const GatherCall call =
      make_packed_call(ids, offsets, sequences, length, max_length, cls, pad);
  const Gather& g = call.gather;
  for (int64_t i = 0; i < g.batch; ++i) {
    g.starts[i + 1] = g.lengths[i] = gathered_length(g, i);
  }
  add_up_starts(g, g.starts);
  at::parallel_for(0, g.length, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      g.rows[t] = packed_id(g, g.starts, t);
    }
  });
  return {call.rows, call.lengths, call.starts};
}

Three packed_meta(const Tensor&, const Tensor&, const Tensor& sequences,
                  int64_t length, int64_t, int64_t, int64_t) {
  return {at::empty({1, length}, sequences.options()),
          at::empty_like(sequences),
          at::empty_symint({sequences.sym_size(0) + 2}, sequences.options())};
}

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "_gather_packed(Tensor ids, Tensor offsets, Tensor sequences, "
      "int length, int max_length, int cls, int pad) "
      "-> (Tensor row, Tensor lengths, Tensor starts)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_gather_sequences(Tensor ids, Tensor offsets, Tensor sequences, "
      "Tensor? moves, int length, int max_length, int cls, int pad, "
      "int height, int width) -> (Tensor rows, Tensor lengths)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("_gather_sequences", gather_cpu);
  m.impl("_gather_packed", packed_cpu);
}

TORCH_LIBRARY_IMPL(luna, Meta, m) {
  m.impl("_gather_sequences", gather_meta);
  m.impl("_gather_packed", packed_meta);
}

}  // namespace

GatherCall make_gather_call(const Tensor& ids, const Tensor& offsets,
                            const Tensor& sequences,
                            const OptionalTensor& moves, int64_t length,
                            int64_t max_length, int64_t cls, int64_t pad,
                            int64_t height, int64_t width) {
  return make_call(sequences.size(0), ids, offsets, sequences, moves, length,
                   max_length, cls, pad, height, width);
}

GatherCall make_packed_call(const Tensor& ids, const Tensor& offsets,
                            const Tensor& sequences, int64_t length,
                            int64_t max_length, int64_t cls, int64_t pad) {
  TORCH_CHECK_VALUE(sequences.dim() == 1 && sequences.size(0) <= kMostPacked,
                    "gather_packed: expected at most ", kMostPacked,
                    " sequences, got ", sequences.sizes());
  GatherCall call = make_call(1, ids, offsets, sequences, {}, length,
                              max_length, cls, pad, 0, 0);
  call.starts = at::empty({sequences.size(0) + 2}, sequences.options());
  call.gather.starts = call.starts.mutable_data_ptr<int64_t>();
  return call;
}

Packed gather_packed(const Tensor& ids, const Tensor& offsets,
                     const Tensor& sequences, const GatherOptions& o) {
  static const auto op = find_op<PackedSignature>("luna::_gather_packed");
  auto [row, lengths, starts] =
      op.call(ids, offsets, sequences, o.length, o.max_length, o.cls, o.pad);
  return {row, lengths, starts};
}

Two gather_sequences(const Tensor& ids, const Tensor& offsets,
                     const Tensor& sequences, const OptionalTensor& moves,
                     const GatherOptions& o) {
  static const auto op = find_op<Signature>("luna::_gather_sequences");
  return op.call(ids, offsets, sequences, moves, o.length, o.max_length, o.cls,
                 o.pad, o.height, o.width);
}

}  // namespace luna::ops
