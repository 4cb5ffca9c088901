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
using Signature = Two(const Tensor&, const Tensor&, const Tensor&,
                      const OptionalTensor&, int64_t, int64_t, int64_t, int64_t,
                      int64_t, int64_t);

constexpr std::string_view kName = "gather_sequences";

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
      g.lengths[row] = gathered_ids(g, row) + (g.cls >= 0 ? 1 : 0);
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

TORCH_LIBRARY_FRAGMENT(luna, m) {
  m.def(
      "_gather_sequences(Tensor ids, Tensor offsets, Tensor sequences, "
      "Tensor? moves, int length, int max_length, int cls, int pad, "
      "int height, int width) -> (Tensor rows, Tensor lengths)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(luna, CPU, m) { m.impl("_gather_sequences", gather_cpu); }

TORCH_LIBRARY_IMPL(luna, Meta, m) { m.impl("_gather_sequences", gather_meta); }

}  // namespace

GatherCall make_gather_call(const Tensor& ids, const Tensor& offsets,
                            const Tensor& sequences,
                            const OptionalTensor& moves, int64_t length,
                            int64_t max_length, int64_t cls, int64_t pad,
                            int64_t height, int64_t width) {
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
  GatherCall call{at::empty({sequences.size(0), length}, sequences.options()),
                  at::empty_like(sequences),
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

Two gather_sequences(const Tensor& ids, const Tensor& offsets,
                     const Tensor& sequences, const OptionalTensor& moves,
                     const GatherOptions& o) {
  static const auto op = find_op<Signature>("luna::_gather_sequences");
  return op.call(ids, offsets, sequences, moves, o.length, o.max_length, o.cls,
                 o.pad, o.height, o.width);
}

}  // namespace luna::ops
