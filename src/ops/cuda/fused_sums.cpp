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

Tensor image_of(const Features<float>& features) {
  const FeatureMap<float>& map = features.map();
  Tensor image = at::empty({fused_image_bytes(map.shape)},
                           at::device(at::kCUDA).dtype(at::kByte));
  fused_image(map, image.data_ptr(), c10::cuda::getCurrentCUDAStream());
  return image;
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
                          sums.query.size(2), {piece_length(sums.query, 192)});
  Tensor weight;
  const Tensor image = image_of(features);
  // One piece a sequence is the state itself.
  const Cut cut = keys.cut(0);
  const bool whole =
      cut.begin == nullptr && cut.per_sequence == 1 && !sums.state.has_value();
  Tensor parts =
      whole ? result.state
            : at::empty({cut.bound, heads, size}, result.state.options());
  fused_keys({features.map(),
              image.const_data_ptr(),
              keys.cut(0),
              heads,
              rows_of(sums.key),
              rows_of(sums.value),
              weight_of<float>(sums.key_weight, at::kFloat, weight),
              {},
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
  if (!whole) add_parts(add, stream);
  FusedQueries q = {features.map(),
                    image.const_data_ptr(),
                    queries.cut(0),
                    heads,
                    rows_of(sums.query),
                    rows_of(result.output),
                    result.state.const_data_ptr<float>(),
                    static_cast<float>(sums.eps),
                    nullptr,
                    0,
                    0};
  if (save) {
    q.denominator = result.denominator.data_ptr<float>();
    q.denominator_batch = result.denominator.stride(0);
    q.denominator_head = result.denominator.stride(1);
  }
  fused_queries(q, stream);
  return result;
}

std::optional<std::vector<Tensor>> fused_backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const Tensor& grad_output, const std::optional<Tensor>& grad_state,
    const Features<float>& features) {
  if (!applies(sums, features) || features.map().per_head) return std::nullopt;
  if (sums.key_weight.has_value() && sums.key_weight->is_floating_point()) {
    return std::nullopt;
  }
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const Tensor upstream = grad_output.stride(3) == 1 && in_words(grad_output)
                              ? grad_output
                              : grad_output.contiguous();
  const int64_t batch = sums.query.size(0), heads = sums.query.size(1);
  const auto options = saved.state.options();
  const auto piece = [](const Tensor& x, int64_t most) {
    return std::min(most, piece_length(x, 128));
  };
  const Sequences queries(
      sums.query, sums.cu_seqlens_q, batch, sums.query.size(2),
      {piece(sums.query, kFusedPiece), piece_length(sums.query, 128)});
  const Sequences keys(sums.key, sums.cu_seqlens_k, batch, sums.key.size(2),
                       {piece(sums.key, kFusedPiece)});
  const Tensor image = image_of(features);
  const Tensor state = saved.state.contiguous();
  const Tensor grad_query = at::empty(sums.query.sizes(), sums.query.options());
  const Tensor grad_key = at::empty(sums.key.sizes(), sums.key.options());
  const Tensor grad_value = at::empty(sums.value.sizes(), sums.value.options());
  const Tensor rows = at::empty({2, batch, heads, sums.query.size(2)}, options);
  const int64_t blocks = fused_blocks();
  const int64_t size = feature_sums_size(features.map());
  const Tensor partials = at::empty({2, 1, blocks, size}, options);

  FusedBackward b = {};
  b.keys = false;
  b.map = features.map();
  b.image = image.const_data_ptr();
  b.pieces = queries.cut(0);
  b.heads = heads;
  b.x = rows_of(sums.query);
  b.y = rows_of(upstream);
  b.grad_x = rows_of(grad_query);
  b.states = state.const_data_ptr<float>();
  b.eps = static_cast<float>(sums.eps);
  b.row = factor_of_rows<float>(saved.denominator);
  b.inverse = rows.data_ptr<float>();
  b.d = b.inverse + rows.stride(0);
  b.inverse_batch = rows.stride(1);
  b.inverse_head = rows.stride(2);
  b.parts = partials.data_ptr<float>();
  b.blocks = blocks;
  fused_backward(b, stream);

  // dS and dz: the same sum as over keys, of queries and gradients.
  const Cut cut = queries.cut(1);
  const Tensor grad_sums = at::empty(saved.state.sizes(), options);
  const bool whole =
      cut.begin == nullptr && cut.per_sequence == 1 && !grad_state.has_value();
  const Tensor parts =
      whole ? grad_sums : at::empty({cut.bound, heads, 64 * 65}, options);
  fused_keys(
      {features.map(), image.const_data_ptr(), cut, heads, rows_of(sums.query),
       rows_of(upstream), factor_of_rows<float>(rows[0]),
       factor_of_rows<float>(rows[1]), parts.data_ptr<float>()},
      stream);
  const Tensor start =
      grad_state.has_value() ? grad_state->contiguous() : Tensor();
  AddParts<float> add = {};
  add.pieces = cut;
  add.heads = heads;
  add.size = 64 * 65;
  add.parts = parts.data_ptr<float>();
  add.start = start.defined() ? start.const_data_ptr<float>() : nullptr;
  add.total = grad_sums.data_ptr<float>();
  if (!whole) add_parts(add, stream);

  Tensor weight;
  b.keys = true;
  b.pieces = keys.cut(0);
  b.x = rows_of(sums.key);
  b.y = rows_of(sums.value);
  b.grad_x = rows_of(grad_key);
  b.grad_y = rows_of(grad_value);
  b.states = grad_sums.const_data_ptr<float>();
  b.row = weight_of<float>(sums.key_weight, at::kFloat, weight);
  b.parts += partials.stride(0);
  fused_backward(b, stream);

  std::vector<Tensor> result = {grad_query, grad_key, grad_value};
  for (Tensor& x : features.gradients(partials)) {
    result.push_back(std::move(x));
  }
  result.push_back(at::empty({0}, sums.query.options()));
  result.push_back(sums.state.has_value()
                       ? grad_sums
                       : at::empty({0}, sums.query.options()));
  return result;
}

}  // namespace luna::cuda
