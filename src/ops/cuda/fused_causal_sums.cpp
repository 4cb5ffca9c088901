#include "ops/cuda/fused_causal_sums.h"

#include <limits>

#include "ops/cuda/fused_causal.h"
#include "ops/cuda/fused_tensors.h"
#include "ops/cuda/linear_sums.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 64;  // of a tile

bool applies(const ops::LinearSums& sums, const Features<float>& features) {
  const auto& map = features.map();
  return sums.causal && sums.query.scalar_type() == at::kBFloat16 &&
         ops::fused_takes({true, map.width, map.projections, map.per_head},
                          sums.value.size(3), map.shape.channels) &&
         sums.query.numel() / 64 < std::numeric_limits<int32_t>::max() / 2 &&
         reinterpret_cast<uintptr_t>(map.table) % 16 == 0 &&
         causal_fits(map.shape);
}

const float* data_or_null(const Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

/// What both directions read.
struct Problem {
  Problem(const ops::LinearSums& sums, const Features<float>& features,
          int64_t workers)
      : map(features.map()),
        query(readable(sums.query)),
        key(readable(sums.key)),
        value(readable(sums.value)),
        query_rows(map_of(query)),
        key_rows(map_of(key)),
        value_rows(map_of(value)),
        sequences(query, sums.cu_seqlens_q, query.size(0), query.size(2),
                  {kTokens}),
        tiles{sequences.cut(0), static_cast<int>(query.size(1)),
              static_cast<int>(workers)},
        eps(static_cast<float>(sums.eps)),
        weight(weight_of<float>(sums.key_weight, at::kFloat, weight_holder)),
        options(query.options().dtype(at::kFloat)),
        stream(c10::cuda::getCurrentCUDAStream()) {
    if (sums.state.has_value()) start = sums.state->contiguous();
    const Cut& cut = tiles.tiles;
    const int64_t all = cut.bound * tiles.heads;
    const int64_t run = (all + workers - 1) / workers;
    has_work = all > 0;
    // No run hands anything on.
    whole = cut.begin == nullptr && has_work && run % cut.per_sequence == 0;
    if (has_work && !whole) {
      parts = at::empty({tiles.workers, kFusedPart}, options);
    }
  }

  /// What stands before each run, to `parts`; the keys' features, where they
  /// are wanted.
  void sum_keys(const Tensor& results, const Rows& key_features) const {
    if (has_work && (parts.defined() || key_features.data != nullptr)) {
      causal_key_sums({key_rows, value_rows, map, tiles, weight, key_features,
                       parts_data()},
                      stream);
    }
    scan(false, start, results);
  }
  void scan(bool backwards, const Tensor& from, const Tensor& results) const {
    if (whole) return;
    causal_scan({tiles, backwards, parts_data(), data_or_null(from),
                 results.defined() ? results.data_ptr<float>() : nullptr},
                stream);
  }
  float* parts_data() const {
    return parts.defined() ? parts.data_ptr<float>() : nullptr;
  }

  const FeatureMap<float>& map;
  Tensor query, key, value;
  CUtensorMap query_rows, key_rows, value_rows;
  Sequences sequences;
  FusedTiles tiles;
  float eps;
  Tensor weight_holder, start, parts;
  Factor<float> weight;
  at::TensorOptions options;
  cudaStream_t stream;
  bool has_work, whole;
};

}  // namespace

std::optional<ops::LinearSumsResult> causal_forward_sums(
    const ops::LinearSums& sums, const Features<float>& features, bool save) {
  if (!applies(sums, features)) return std::nullopt;
  const Problem p(sums, features, causal_forward_workers());
  auto result = ops::empty_result(sums, features.width(), save);
  p.sum_keys(result.state, {});
  if (!p.has_work) return result;
  CausalForward f = {};
  f.query = p.query_rows;
  f.key = p.key_rows;
  f.value = p.value_rows;
  f.out = rows_of(result.output);
  f.map = p.map;
  f.tiles = p.tiles;
  f.weight = p.weight;
  f.parts = data_or_null(p.parts);
  f.start = data_or_null(p.start);
  f.results = result.state.data_ptr<float>();
  f.eps = p.eps;
  if (save) {
    f.denominator = result.denominator.data_ptr<float>();
    f.denominator_batch = result.denominator.stride(0);
    f.denominator_head = result.denominator.stride(1);
  }
  causal_forward(f, p.stream);
  return result;
}

std::optional<std::vector<Tensor>> causal_backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const Tensor& grad_output, const std::optional<Tensor>& grad_state,
    const Features<float>& features) {
  if (!applies(sums, features)) return std::nullopt;
  const Problem p(sums, features, causal_backward_workers());
  const Tensor upstream = readable(grad_output);
  const auto [grad_query, grad_key, grad_value] =
      ops::empty_like_heads(sums.query, sums.key, sums.value);
  const Tensor partials =
      at::empty({2, 1, fused_blocks(), feature_sums_size(p.map)}, p.options);
  const Tensor denominator = saved.denominator.contiguous();
  const Tensor d = at::empty(denominator.sizes(), p.options);
  Tensor live, grad_start, grad_weight, grad_last;
  if (grad_state.has_value()) grad_last = grad_state->contiguous();
  if (sums.state.has_value()) {
    grad_start = at::empty(p.start.sizes(), p.options);
  } else if (sums.key_weight.has_value()) {
    live = at::empty({p.sequences.count(), p.query.size(1)},
                     p.options.dtype(at::kLong));
    first_live_keys<float>(p.tiles.tiles, p.tiles.heads, p.weight,
                           live.data_ptr<int64_t>(), p.stream);
  }

  CausalBackward b = {};
  b.rows = causal_backward_pieces(p.map.shape);
  const Tensor pieces =
      cut_pieces(p.map, b.rows, p.query, p.key, false, p.stream);
  b.pieces = pieces.data_ptr<uint8_t>();
  // Features are kept where gradients come later: the keys' in grad_key, the
  // queries' in grad_value, tile by tile read before it is written.
  p.sum_keys({}, rows_of(grad_key));
  b.x = p.query_rows;
  b.features = map_of(grad_key);
  b.value = p.value_rows;
  b.y = map_of(upstream);
  b.grad_x = rows_of(grad_query);
  b.features_out = rows_of(grad_value);
  b.map = p.map;
  b.tiles = p.tiles;
  b.weight = p.weight;
  b.denominator = denominator.const_data_ptr<float>();
  b.d = d.data_ptr<float>();
  b.row_batch = denominator.stride(0);
  b.row_head = denominator.stride(1);
  b.eps = p.eps;
  b.live = live.defined() ? live.const_data_ptr<int64_t>() : nullptr;
  b.parts = p.parts_data();
  b.start = data_or_null(p.start);
  b.sums = partials.data_ptr<float>();
  causal_backward(false, b, p.stream);

  b.features = map_of(grad_value);
  if (p.parts.defined()) {
    causal_query_sums({b.features,
                       b.y,
                       p.tiles,
                       {b.d, b.row_batch, b.row_head},
                       p.parts_data()},
                      p.stream);
  }
  p.scan(true, grad_last, grad_start);
  b.x = p.key_rows;
  b.grad_x = rows_of(grad_key);
  b.grad_value = rows_of(grad_value);
  b.start = data_or_null(grad_last);
  b.results = grad_start.defined() ? grad_start.data_ptr<float>() : nullptr;
  if (sums.key_weight.has_value() && sums.key_weight->is_floating_point()) {
    grad_weight = at::empty(denominator.sizes(), p.options);
    b.grad_weight = grad_weight.data_ptr<float>();
  }
  b.sums += partials.stride(0);
  b.pieces += pieces.stride(0);
  causal_backward(true, b, p.stream);

  std::vector<Tensor> result = {grad_query, grad_key, grad_value};
  for (Tensor& x : features.gradients(partials, Knots::kAll)) {
    result.push_back(std::move(x));
  }
  const Tensor none = at::empty({0}, p.query.options());
  result.push_back(grad_weight.defined()
                       ? like_weight(grad_weight, *sums.key_weight)
                       : none);
  result.push_back(grad_start.defined() ? grad_start : none);
  return result;
}

}  // namespace luna::cuda
