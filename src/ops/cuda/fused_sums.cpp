#include "ops/cuda/fused_sums.h"

#include <algorithm>

#include "ops/cuda/fused.h"
#include "ops/cuda/linear_sums.h"

namespace luna::cuda {
namespace {

using at::Tensor;

/// Rows that 16-byte words can be copied from.
bool in_words(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
         x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && x.stride(2) % 8 == 0;
}

bool applies(const ops::LinearSums& sums, const Features<float>& features) {
  const auto& map = features.map();
  return sums.query.scalar_type() == at::kBFloat16 && !sums.causal &&
         map.width == 64 && map.projections == 8 && map.shape.channels == 8 &&
         sums.value.size(3) == 64 && in_words(sums.query) &&
         in_words(sums.key) && in_words(sums.value) &&
         reinterpret_cast<uintptr_t>(map.table) % 16 == 0 &&
         fused_fits(map.shape);
}

/// Tokens of a block's piece: about two blocks for each of an H200's
/// multiprocessors; a number of rounds of the block's warps.
int64_t piece_length(const Tensor& x, int64_t round) {
  const int64_t wanted = x.size(0) * x.size(1) * x.size(2) / 264;
  return std::clamp<int64_t>((wanted + round - 1) / round * round, round,
                             16 * 1024 / round * round);
}

}  // namespace

std::optional<ops::LinearSumsResult> fused_forward(
    const ops::LinearSums& sums, const Features<float>& features, bool save) {
  if (!applies(sums, features)) return std::nullopt;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  auto result = ops::empty_result(sums, features.width(), save);
  const int64_t heads = sums.query.size(1), batch = sums.query.size(0);
  const int64_t size = result.state.size(2) * result.state.size(3);
  const Sequences keys(sums.key, sums.cu_seqlens_k, batch, sums.key.size(2),
                       {piece_length(sums.key, 128)});
  const Sequences queries(sums.query, sums.cu_seqlens_q, batch,
                          sums.query.size(2),
                          {piece_length(sums.query, 192)});
  Tensor weight;
  Tensor parts =
      at::empty({keys.cut(0).bound, heads, size}, result.state.options());
  fused_keys({features.map(), keys.cut(0), heads, rows_of(sums.key),
              rows_of(sums.value),
              weight_of<float>(sums.key_weight, at::kFloat, weight),
              parts.data_ptr<float>()},
             stream);
  const Tensor start =
      sums.state.has_value() ? sums.state->contiguous() : Tensor();
  AddParts<float> add = {};
  add.pieces = keys.cut(0);
  add.heads = heads;
  add.size = size;
  add.parts = parts.data_ptr<float>();
  add.start = start.defined() ? start.const_data_ptr<float>() : nullptr;
  add.total = result.state.data_ptr<float>();
  add_parts(add, stream);
  FusedQueries q = {features.map(),       queries.cut(0),
                    heads,                rows_of(sums.query),
                    rows_of(result.output), result.state.const_data_ptr<float>(),
                    static_cast<float>(sums.eps), nullptr, 0, 0};
  if (save) {
    q.denominator = result.denominator.data_ptr<float>();
    q.denominator_batch = result.denominator.stride(0);
    q.denominator_head = result.denominator.stride(1);
  }
  fused_queries(q, stream);
  return result;
}

}  // namespace luna::cuda
