#include "ops/cuda/fused_sums.h"

#include <algorithm>
#include <limits>

#include "ops/cuda/fused_short.h"
#include "ops/cuda/fused_tensors.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 64;  // of a tile

bool applies(const ops::LinearSums& sums, const Features<float>& features) {
  const auto& map = features.map();
  const auto fits = [](int64_t x) {
    return x < std::numeric_limits<int32_t>::max() / 2;
  };
  return sums.query.scalar_type() == at::kBFloat16 && !sums.causal &&
         ops::fused_takes({false, map.width, map.projections, map.per_head},
                          sums.value.size(3), map.shape.channels) &&
         fits(sums.query.numel() / map.width) &&
         fits(sums.key.numel() / map.width) &&
         reinterpret_cast<uintptr_t>(map.table) % 16 == 0 && fused_fits(map);
}

/// Whether the kernels for short sequences apply where `applies`.
bool is_short(const ops::LinearSums& sums, const FeatureMap<float>& map) {
  return !sums.packed() && !sums.state.has_value() &&
         ops::fused_short_pays(sums.query.size(0) * sums.query.size(1),
                               sums.query.size(2), sums.key.size(2)) &&
         fused_short_fits(map);
}
FusedHeads heads_of(const Tensor& query, const Tensor& key, int64_t workers) {
  return {static_cast<int>(query.size(0)), static_cast<int>(query.size(1)),
          static_cast<int>(workers), static_cast<int>(query.size(2)),
          static_cast<int>(key.size(2))};
}

FusedTiles tiles_of(const Sequences& side, int64_t heads, int64_t workers) {
  return {side.cut(0), static_cast<int>(heads), static_cast<int>(workers)};
}
bool has_work(const FusedTiles& t) { return t.tiles.bound * t.heads > 0; }

/// Parts of states over the tiles, and whether they must be added up.
struct Parts {
  Parts(const FusedTiles& tiles, const FeatureMap<float>& map,
        const std::optional<Tensor>& given, const at::TensorOptions& options)
      : tiles(tiles),
        width(static_cast<int>(map.width)),
        halves(static_cast<int>(map.projections / 8)),
        parts(at::empty({2 * tiles.workers, halves, fused_part(width)},
                        options)) {
    if (given.has_value()) start = given->contiguous();
    const Cut& cut = tiles.tiles;
    const int64_t run =
        (cut.bound * tiles.heads + tiles.workers - 1) / tiles.workers;
    within_runs = cut.begin == nullptr && cut.per_sequence > 0 &&
                  run % cut.per_sequence == 0 && !start.defined();
  }
  void add(const Tensor& states, cudaStream_t stream) const {
    if (within_runs || states.numel() == 0) return;
    fused_add({tiles, width, halves, parts.const_data_ptr<float>(),
               start.defined() ? start.const_data_ptr<float>() : nullptr,
               states.data_ptr<float>()},
              stream);
  }
  FusedTiles tiles;
  int width, halves;
  Tensor parts, start;
  bool within_runs;
};

}  // namespace

std::optional<ops::LinearSumsResult> fused_forward(
    const ops::LinearSums& sums, const Features<float>& features, bool save) {
  if (!applies(sums, features)) return std::nullopt;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  auto result = ops::empty_result(sums, features.width(), save);
  const int64_t batch = sums.query.size(0), heads = sums.query.size(1);
  const Tensor query = readable(sums.query), key = readable(sums.key),
               value = readable(sums.value);
  Tensor weight;
  const FeatureMap<float>& map = features.map();
  if (is_short(sums, map)) {
    FusedShort s = {};
    s.query = map_of(query);
    s.key = map_of(key);
    s.value = map_of(value);
    s.out = rows_of(result.output);
    s.map = map;
    s.heads = heads_of(query, key, fused_short_workers());
    s.weight = weight_of<float>(sums.key_weight, at::kFloat, weight);
    s.states = result.state.data_ptr<float>();
    s.eps = static_cast<float>(sums.eps);
    if (save) {
      s.denominator = result.denominator.data_ptr<float>();
      s.denominator_batch = result.denominator.stride(0);
      s.denominator_head = result.denominator.stride(1);
    }
    fused_short(s, stream);
    return result;
  }
  const Sequences keys(key, sums.cu_seqlens_k, batch, key.size(2), {kTokens});
  const Sequences queries(query, sums.cu_seqlens_q, batch, query.size(2),
                          {kTokens});
  const FusedTiles key_tiles = tiles_of(keys, heads, fused_keys_workers(map));
  const Parts parts(key_tiles, map, sums.state, result.state.options());
  if (has_work(key_tiles)) {
    fused_keys({map_of(key), map_of(value), features.map(), key_tiles,
                weight_of<float>(sums.key_weight, at::kFloat, weight),
                parts.parts.data_ptr<float>(), result.state.data_ptr<float>()},
               stream);
  }
  parts.add(result.state, stream);
  FusedQueries q = {map_of(query),
                    rows_of(result.output),
                    features.map(),
                    tiles_of(queries, heads, fused_queries_workers(map)),
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
  if (has_work(q.tiles)) fused_queries(q, stream);
  return result;
}

std::optional<std::vector<Tensor>> fused_backward_sums(
    const ops::LinearSums& sums, const ops::LinearSumsResult& saved,
    const Tensor& grad_output, const std::optional<Tensor>& grad_state,
    const Features<float>& features) {
  if (!applies(sums, features)) return std::nullopt;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const int64_t batch = sums.query.size(0), heads = sums.query.size(1);
  const Tensor query = readable(sums.query), key = readable(sums.key),
               value = readable(sums.value), upstream = readable(grad_output);
  const auto options = saved.state.options();
  const Sequences queries(query, sums.cu_seqlens_q, batch, query.size(2),
                          {kTokens});
  const Sequences keys(key, sums.cu_seqlens_k, batch, key.size(2), {kTokens});
  const Tensor state = saved.state.contiguous();
  const auto [grad_query, grad_key, grad_value] =
      ops::empty_like_heads(sums.query, sums.key, sums.value);
  const FeatureMap<float>& map = features.map();
  const int64_t workers = fused_backward_workers(map);
  // In one launch both sides have the same sums.
  const bool one_launch = is_short(sums, map) && !grad_state.has_value();
  const int64_t sets = one_launch ? 1 : 2;
  const Tensor grad_sums =
      at::empty(one_launch ? at::IntArrayRef({0}) : state.sizes(), options);
  const Tensor partials =
      at::empty({sets, 1, fused_blocks(), feature_sums_size(map)}, options);
  Tensor head_sums;
  if (map.per_head) {
    head_sums = at::zeros(
        {sets, workers, heads, fused_head_sums(map.width, map.projections)},
        options);
  }

  FusedBackward q = {};
  q.rows = one_launch ? fused_short_backward_pieces(map)
                      : fused_backward_pieces(map);
  const Tensor pieces = cut_pieces(map, q.rows, query, key, one_launch, stream);
  q.pieces = pieces.data_ptr<uint8_t>();
  q.map = map;
  q.eps = static_cast<float>(sums.eps);
  q.sums = partials.data_ptr<float>();
  if (map.per_head) q.head_sums = head_sums.data_ptr<float>();

  FusedBackward k = q;
  k.x = map_of(key);
  k.y = map_of(value);
  k.grad_x = rows_of(grad_key);
  k.grad_y = rows_of(grad_value);
  Tensor weight, grad_weight;
  k.row = weight_of<float>(sums.key_weight, at::kFloat, weight);
  if (sums.key_weight.has_value() && sums.key_weight->is_floating_point()) {
    grad_weight = at::empty({batch, heads, key.size(2)}, options);
    k.grad_weight = grad_weight.data_ptr<float>();
    k.grad_weight_batch = grad_weight.stride(0);
    k.grad_weight_head = grad_weight.stride(1);
  }

  q.x = map_of(query);
  q.y = map_of(upstream);
  q.grad_x = rows_of(grad_query);
  q.states = state.const_data_ptr<float>();
  q.row = factor_of_rows<float>(saved.denominator);
  if (one_launch) {
    fused_short_backward({q, k, heads_of(query, key, workers)}, stream);
  } else {
    q.tiles = tiles_of(queries, heads, workers);
    const Parts parts(q.tiles, map, grad_state, options);
    q.parts = parts.parts.data_ptr<float>();
    q.results = grad_sums.data_ptr<float>();
    fused_backward(false, q, stream);
    parts.add(grad_sums, stream);

    k.tiles = tiles_of(keys, heads, workers);
    k.states = grad_sums.const_data_ptr<float>();
    k.sums += partials.stride(0);
    k.pieces += pieces.stride(0);
    if (map.per_head) k.head_sums += head_sums.stride(0);
    fused_backward(true, k, stream);
  }

  std::vector<Tensor> result = {grad_query, grad_key, grad_value};
  for (Tensor& x : features.gradients(partials, Knots::kAll)) {
    result.push_back(std::move(x));
  }
  if (map.per_head) {  // partials have nothing of these
    const Tensor total =
        head_sums.sum(at::IntArrayRef({0, 1}), false, at::kDouble);
    const int64_t weights = map.projections * map.width;
    result[3] = total.narrow(1, 0, weights)
                    .reshape_as(result[3])
                    .to(result[3].scalar_type());
    result[4] = total.narrow(1, weights, 4 * map.projections)
                    .reshape({heads, 4, map.projections})
                    .sum(1)
                    .to(result[4].scalar_type());
  }
  const Tensor none = at::empty({0}, query.options());
  result.push_back(grad_weight.defined()
                       ? like_weight(grad_weight, *sums.key_weight)
                       : none);
  result.push_back(sums.state.has_value() ? grad_sums : none);
  return result;
}

}  // namespace luna::cuda
