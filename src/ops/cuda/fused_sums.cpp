#include "ops/cuda/fused_sums.h"

#include <algorithm>
#include <limits>

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
  const Sequences keys(key, sums.cu_seqlens_k, batch, key.size(2), {kTokens});
  const Sequences queries(query, sums.cu_seqlens_q, batch, query.size(2),
                          {kTokens});
  Tensor weight;
  const FeatureMap<float>& map = features.map();
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
  const Tensor grad_sums = at::empty(state.sizes(), options);
  const FeatureMap<float>& map = features.map();
  const int64_t workers = fused_backward_workers(map);
  const Tensor partials =
      at::empty({2, 1, fused_blocks(), feature_sums_size(map)}, options);
  Tensor head_sums;
  if (map.per_head) {
    head_sums = at::zeros(
        {2, workers, heads, fused_head_sums(map.width, map.projections)},
        options);
  }

  FusedBackward b = {};
  b.rows = fused_backward_pieces(map);
  const Tensor pieces = cut_pieces(map, b.rows, query, key, stream);
  b.pieces = pieces.data_ptr<uint8_t>();
  b.x = map_of(query);
  b.y = map_of(upstream);
  b.grad_x = rows_of(grad_query);
  b.map = map;
  b.tiles = tiles_of(queries, heads, workers);
  b.states = state.const_data_ptr<float>();
  b.eps = static_cast<float>(sums.eps);
  b.row = factor_of_rows<float>(saved.denominator);
  const Parts parts(b.tiles, map, grad_state, options);
  b.parts = parts.parts.data_ptr<float>();
  b.results = grad_sums.data_ptr<float>();
  b.sums = partials.data_ptr<float>();
  if (map.per_head) b.head_sums = head_sums.data_ptr<float>();
  fused_backward(false, b, stream);
  parts.add(grad_sums, stream);

  b.x = map_of(key);
  b.y = map_of(value);
  b.grad_x = rows_of(grad_key);
  b.grad_y = rows_of(grad_value);
  b.tiles = tiles_of(keys, heads, workers);
  b.states = grad_sums.const_data_ptr<float>();
  Tensor weight, grad_weight;
  b.row = weight_of<float>(sums.key_weight, at::kFloat, weight);
  if (sums.key_weight.has_value() && sums.key_weight->is_floating_point()) {
    grad_weight = at::empty({batch, heads, key.size(2)}, options);
    b.grad_weight = grad_weight.data_ptr<float>();
    b.grad_weight_batch = grad_weight.stride(0);
    b.grad_weight_head = grad_weight.stride(1);
  }
  b.sums += partials.stride(0);
  b.pieces += pieces.stride(0);
  if (map.per_head) b.head_sums += head_sums.stride(0);
  fused_backward(true, b, stream);

  std::vector<Tensor> result = {grad_query, grad_key, grad_value};
  for (Tensor& x : features.gradients(partials)) {
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
