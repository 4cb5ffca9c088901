#include "support/problems.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>
#include <stdexcept>

#include "support/reference.h"

namespace luna::testing {
namespace {

using at::Tensor;

int64_t total(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

/// [batch,length], [batch,heads,length] or nothing; some of it zero. Float
/// weights keep the first key of each sequence: whether a plain sum over
/// weights of 0 alone has a gradient is left open.
std::optional<Tensor> draw_weight(Random& random, Weight kind, int64_t batch,
                                  int64_t heads, int64_t length,
                                  const std::vector<int64_t>& firsts) {
  if (kind == Weight::kNone) return std::nullopt;
  std::vector<int64_t> sizes{batch, length};
  if (kind == Weight::kBoolPerHead || kind == Weight::kFloatPerHead) {
    sizes.insert(sizes.begin() + 1, heads);
  }
  const Tensor kept = random.coins(sizes, 0.7);
  if (kind == Weight::kBool || kind == Weight::kBoolPerHead) return kept;
  for (int64_t first : firsts) {
    if (first < length) kept.select(-1, first).fill_(true);
  }
  return random.uniform(sizes, 0.2, 2.0) * kept;
}

std::vector<int64_t> firsts_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> firsts{0};
  for (int64_t length : lengths) firsts.push_back(firsts.back() + length);
  return firsts;
}

void put_optional(Arguments& arguments, const std::string& name,
                  const std::optional<Tensor>& tensor) {
  if (tensor) arguments[name] = *tensor;
}

/// A sum over earlier keys whose normaliser is well above 0.
Tensor draw_state(Random& random, int64_t batch, int64_t heads, int64_t width,
                  int64_t value_width) {
  return at::cat({random.normal({batch, heads, width, value_width}),
                  random.uniform({batch, heads, width, 1}, 0.5, 2.0)},
                 -1);
}

Arguments relayout_all(const Arguments& arguments, Layout layout) {
  Arguments result;
  for (const auto& [name, tensor] : arguments) {
    result[name] = relayout(tensor, layout);
  }
  return result;
}

Tensor seed_of(const Arguments& arguments) { return arguments.at("seed"); }

template <typename Options, typename Spec>
Options linear_options(const Arguments& a, const Spec& spec) {
  Options options;
  options.key_weight = find(a, "key_weight");
  options.cu_seqlens_q = find(a, "cu_seqlens_q");
  options.cu_seqlens_k = find(a, "cu_seqlens_k");
  options.causal = spec.causal;
  options.eps = spec.eps;
  options.state = find(a, "state");
  return options;
}

/// The parts of a linear or universal problem that do not depend on features.
template <typename Spec>
Arguments draw_linear(const Spec& spec, Random& random, int64_t features) {
  Arguments a;
  const bool packed = !spec.lengths_q.empty();
  const int64_t batch = packed ? 1 : spec.batch;
  const int64_t m = packed ? total(spec.lengths_k) : spec.m;
  a["value"] = random.normal({batch, spec.heads, m, spec.value_width});
  put_optional(a, "key_weight",
               draw_weight(random, spec.weight, batch, spec.heads, m,
                           firsts_of(spec.lengths_k)));
  if (packed) {
    const auto dtype = random.coin() ? at::kInt : at::kLong;
    a["cu_seqlens_q"] = cumulative(spec.lengths_q, dtype);
    a["cu_seqlens_k"] = cumulative(spec.lengths_k, dtype);
  }
  if (spec.state) {
    a["state"] = draw_state(
        random, packed ? static_cast<int64_t>(spec.lengths_q.size()) : batch,
        spec.heads, features, spec.value_width);
  }
  return a;
}

/// The least distance of an argument of psi from a knot, and of psi from 0,
/// as a share of the terms that are added up there.
double knot_margin(const Tensor& x, const ops::FeatureMapParameters& p,
                   bool nonneg) {
  if (x.numel() == 0) return 1.0;
  const ops::FeatureMapParameters sizes{
      p.projection.abs(),  p.projection_bias.abs(), p.hidden_weight.abs(),
      p.hidden_bias.abs(), p.output_weight.abs(),   p.output_bias.abs()};
  const Tensor u = reference::project(x, p);
  const Tensor u_size = reference::project(x.abs(), sizes);
  auto widen = [](const Tensor& t) { return t.unsqueeze(-1).unsqueeze(-1); };
  const Tensor a = widen(u) * p.hidden_weight + p.hidden_bias;
  const Tensor a_size = widen(u_size) * sizes.hidden_weight + sizes.hidden_bias;
  double margin = (a.abs() / a_size).min().item<double>();
  if (nonneg) {
    const Tensor share =
        reference::psi(u, p).abs() / reference::psi(u_size, sizes);
    margin = std::min(margin, share.min().item<double>());
  }
  return margin;
}

/// The denominators of all rows that see a key.
Tensor denominators(const Arguments& a, const UniversalSpec& spec) {
  const auto p = parameters_of(a);
  auto options = linear_options<ops::LinearAttentionOptions>(a, spec);
  options.normalize = false;
  if (options.state) {
    const Tensor last = options.state->narrow(3, spec.value_width, 1);
    options.state = at::cat({last, last}, 3);
  }
  return std::get<0>(reference::linear_attention(
      reference::feature_map(a.at("query"), p, spec.nonneg),
      reference::feature_map(a.at("key"), p, spec.nonneg),
      at::ones_like(a.at("value").narrow(3, 0, 1)), options));
}

bool well_conditioned(const Arguments& a, const UniversalSpec& spec) {
  const auto p = parameters_of(a);
  if (knot_margin(a.at("query"), p, spec.nonneg) < 2e-6 ||
      knot_margin(a.at("key"), p, spec.nonneg) < 2e-6) {
    return false;
  }
  const Tensor den = denominators(a, spec).abs();
  return !((den != 0) & (den < 0.05)).any().item<bool>();
}

}  // namespace

Tensor relayout(const Tensor& x, Layout layout) {
  const bool integers = at::isIntegralType(x.scalar_type(), false);
  if (layout == Layout::kContiguous || integers || x.dim() == 0) return x;
  if (layout == Layout::kHeadsInside) {
    if (x.dim() != 4) return x;
    return x.transpose(1, 2).contiguous().transpose(1, 2);
  }
  const double around =
      x.is_floating_point() ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  std::vector<int64_t> pad;
  for (int64_t i = 0; i < x.dim(); ++i) pad.insert(pad.end(), {1, 2});
  Tensor result = at::constant_pad_nd(x, pad, around);
  for (int64_t i = 0; i < x.dim(); ++i) {
    result = result.narrow(i, 1, x.size(i));
  }
  return result;
}

ops::FeatureMapParameters parameters_of(const Arguments& a) {
  return {a.at("projection"),  a.at("projection_bias"), a.at("hidden_weight"),
          a.at("hidden_bias"), a.at("output_weight"),   a.at("output_bias")};
}

void put(Arguments& a, const ops::FeatureMapParameters& p) {
  a["projection"] = p.projection;
  a["projection_bias"] = p.projection_bias;
  a["hidden_weight"] = p.hidden_weight;
  a["hidden_bias"] = p.hidden_bias;
  a["output_weight"] = p.output_weight;
  a["output_bias"] = p.output_bias;
}

Problem linear_problem(const LinearSpec& spec, Random& random) {
  Arguments a = draw_linear(spec, random, spec.width);
  const int64_t batch = a["value"].size(0), m = a["value"].size(2);
  const int64_t n = spec.lengths_q.empty() ? spec.n : total(spec.lengths_q);
  auto features = [&](int64_t length) {
    const std::vector<int64_t> sizes{batch, spec.heads, length, spec.width};
    return spec.normalize ? random.uniform(sizes, 0.05, 1.5)
                          : random.normal(sizes);
  };
  a["query"] = features(n);
  a["key"] = features(m);
  auto call = [spec](auto&& attention, const Arguments& x) -> Tensors {
    auto options = linear_options<ops::LinearAttentionOptions>(x, spec);
    options.normalize = spec.normalize;
    auto [output, state] =
        attention(x.at("query"), x.at("key"), x.at("value"), options);
    return {output, state};
  };
  return {
      a,
      [=](const Arguments& x) {
        return call(ops::linear_attention, relayout_all(x, spec.layout));
      },
      [=](const Arguments& x) { return call(reference::linear_attention, x); }};
}

Problem universal_problem(const UniversalSpec& spec, Random& random,
                          at::ScalarType dtype) {
  const FeatureMapSizes& sizes = spec.sizes;
  Arguments a;
  for (int attempt = 0;; ++attempt) {
    a = draw_linear(spec, random, sizes.projections * sizes.channels);
    const int64_t batch = a["value"].size(0), m = a["value"].size(2);
    const int64_t n = spec.lengths_q.empty() ? spec.n : total(spec.lengths_q);
    a["query"] = random.normal({batch, spec.heads, n, sizes.width});
    a["key"] = random.normal({batch, spec.heads, m, sizes.width});
    put(a, random_parameters(random, sizes));
    // Signed features get a bias that keeps most denominators above 0.
    if (!spec.nonneg) a["output_bias"] += 1.5;
    a = rounded(a, dtype);
    if (dtype == at::kDouble || well_conditioned(a, spec)) break;
    if (attempt > 500) throw std::runtime_error("no well-conditioned draw");
  }
  auto options_of = [spec](const Arguments& x) {
    auto options = linear_options<ops::UniversalAttentionOptions>(x, spec);
    options.nonneg = spec.nonneg;
    return options;
  };
  return {a,
          [=](const Arguments& given) -> Tensors {
            const Arguments x = relayout_all(given, spec.layout);
            const auto p = parameters_of(x);
            auto options = options_of(x);
            if (spec.table) {
              options.table =
                  ops::universal_table(p.hidden_weight, p.hidden_bias,
                                       p.output_weight, p.output_bias);
            }
            auto [output, state] = ops::universal_attention(
                x.at("query"), x.at("key"), x.at("value"), p, options);
            return {output, state};
          },
          [=](const Arguments& x) -> Tensors {
            auto [output, state] = reference::universal_attention(
                x.at("query"), x.at("key"), x.at("value"), parameters_of(x),
                options_of(x));
            return {output, state};
          }};
}

Problem feature_map_problem(const FeatureMapSpec& spec, Random& random,
                            at::ScalarType dtype) {
  Arguments a;
  for (int attempt = 0;; ++attempt) {
    std::vector<int64_t> sizes = spec.leading;
    sizes.push_back(spec.sizes.width);
    a["x"] = random.normal(sizes);
    put(a, random_parameters(random, spec.sizes));
    a = rounded(a, dtype);
    if (dtype == at::kDouble ||
        knot_margin(a["x"], parameters_of(a), spec.nonneg) > 2e-6) {
      break;
    }
    if (attempt > 500) throw std::runtime_error("no well-conditioned draw");
  }
  return {a,
          [=](const Arguments& given) -> Tensors {
            const Arguments x = relayout_all(given, spec.layout);
            const auto p = parameters_of(x);
            ops::FeatureMapOptions options{.nonneg = spec.nonneg};
            if (spec.table) {
              options.table =
                  ops::universal_table(p.hidden_weight, p.hidden_bias,
                                       p.output_weight, p.output_bias);
            }
            return {ops::feature_map(x.at("x"), p, options)};
          },
          [=](const Arguments& x) -> Tensors {
            return {reference::feature_map(x.at("x"), parameters_of(x),
                                           spec.nonneg)};
          }};
}

Problem pack_problem(const PackSpec& spec, Random& random) {
  const bool packed = !spec.lengths_k.empty();
  const int64_t sequences =
      packed ? static_cast<int64_t>(spec.lengths_k.size()) : spec.batch;
  const int64_t batch = packed ? 1 : spec.batch;
  const int64_t m = packed ? total(spec.lengths_k) : spec.m;
  Arguments a;
  a["query"] = random.normal(
      {spec.shared_query ? 1 : sequences, spec.heads, spec.l, spec.width});
  a["key"] = random.normal({batch, spec.heads, m, spec.width});
  a["value"] = random.normal({batch, spec.heads, m, spec.value_width});
  put_optional(a, "key_weight",
               draw_weight(random, spec.weight, batch, spec.heads, m, {}));
  if (packed) {
    a["cu_seqlens_k"] =
        cumulative(spec.lengths_k, random.coin() ? at::kInt : at::kLong);
  }
  a["seed"] = at::tensor({random.integer(0, 1 << 30), random.integer(0, 99)},
                         at::kLong);
  auto call = [spec](auto&& attention, const Arguments& x) -> Tensors {
    return {attention(x.at("query"), x.at("key"), x.at("value"),
                      {.key_weight = find(x, "key_weight"),
                       .cu_seqlens_k = find(x, "cu_seqlens_k"),
                       .scale = spec.scale,
                       .dropout_p = spec.dropout_p,
                       .seed = seed_of(x)})};
  };
  return {
      a,
      [=](const Arguments& x) {
        return call(ops::pack_attention, relayout_all(x, spec.layout));
      },
      [=](const Arguments& x) { return call(reference::pack_attention, x); }};
}

Problem unpack_problem(const UnpackSpec& spec, Random& random) {
  const bool packed = !spec.lengths_q.empty();
  const int64_t sequences =
      packed ? static_cast<int64_t>(spec.lengths_q.size()) : spec.batch;
  const int64_t batch = packed ? 1 : spec.batch;
  const int64_t n = packed ? total(spec.lengths_q) : spec.n;
  Arguments a;
  a["query"] = random.normal({batch, spec.heads, n, spec.width});
  a["key"] = random.normal({sequences, spec.heads, spec.l, spec.width});
  a["value"] = random.normal({sequences, spec.heads, spec.l, spec.value_width});
  put_optional(
      a, "key_weight",
      draw_weight(random, spec.weight, sequences, spec.heads, spec.l, {}));
  if (packed) {
    a["cu_seqlens_q"] =
        cumulative(spec.lengths_q, random.coin() ? at::kInt : at::kLong);
  }
  a["seed"] = at::tensor({random.integer(0, 1 << 30), random.integer(0, 99)},
                         at::kLong);
  auto call = [spec](auto&& attention, const Arguments& x) -> Tensors {
    return {attention(x.at("query"), x.at("key"), x.at("value"),
                      {.key_weight = find(x, "key_weight"),
                       .cu_seqlens_q = find(x, "cu_seqlens_q"),
                       .scale = spec.scale,
                       .dropout_p = spec.dropout_p,
                       .seed = seed_of(x)})};
  };
  return {
      a,
      [=](const Arguments& x) {
        return call(ops::unpack_attention, relayout_all(x, spec.layout));
      },
      [=](const Arguments& x) { return call(reference::unpack_attention, x); }};
}

Problem nested_problem(const NestedSpec& spec, Random& random) {
  const bool packed = !spec.lengths.empty();
  const int64_t sequences =
      packed ? static_cast<int64_t>(spec.lengths.size()) : spec.batch;
  const int64_t batch = packed ? 1 : spec.batch, heads = spec.heads;
  const int64_t n = packed ? total(spec.lengths) : spec.n;
  Arguments a;
  for (const char* name : {"query", "pack_key", "key"}) {
    a[name] = random.normal({batch, heads, n, spec.width});
  }
  a["value"] = random.normal({batch, heads, n, spec.value_width});
  a["packed_query"] = random.normal(
      {spec.shared_query ? 1 : sequences, heads, spec.l, spec.width});
  if (spec.mask) a["packed_mask"] = random.coins({sequences, spec.l}, 0.7);
  if (packed) {
    a["cu_seqlens"] =
        cumulative(spec.lengths, random.coin() ? at::kInt : at::kLong);
  }
  if (spec.state) {
    a["key_state"] = random.normal({sequences, heads, spec.width, spec.l});
    a["value_state"] =
        random.normal({sequences, heads, spec.l, spec.value_width});
    a["count"] = at::empty({sequences}, at::kLong);
    for (int64_t s = 0; s < sequences; ++s) {
      a["count"][s] = random.integer(0, 9);
    }
  }
  a["seed"] = at::tensor({random.integer(0, 1 << 30), random.integer(0, 99)},
                         at::kLong);
  auto call = [spec](auto&& attention, const Arguments& x) -> Tensors {
    auto [output, key_state, value_state, count] = attention(
        x.at("query"), x.at("pack_key"), x.at("key"), x.at("value"),
        x.at("packed_query"),
        ops::NestedCausalAttentionOptions{.packed_mask = find(x, "packed_mask"),
                                          .cu_seqlens = find(x, "cu_seqlens"),
                                          .activation = spec.activation,
                                          .scale = spec.scale,
                                          .dropout_p = spec.dropout_p,
                                          .seed = seed_of(x),
                                          .key_state = find(x, "key_state"),
                                          .value_state = find(x, "value_state"),
                                          .count = find(x, "count")});
    return {output, key_state, value_state, count};
  };
  return {a,
          [=](const Arguments& x) {
            return call(ops::nested_causal_attention,
                        relayout_all(x, spec.layout));
          },
          [=](const Arguments& x) {
            return call(reference::nested_causal_attention, x);
          }};
}

}  // namespace luna::testing
