#include "luna/bench/contenders.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "luna/bench/plain_formula.h"
#include "luna/nn/attention_registry.h"
#include "luna/nn/feature_map.h"
#include "luna/ops.h"

namespace luna::bench {
namespace {

std::vector<at::Tensor> leaves_of(const Inputs& in) {
  return {in.query, in.key, in.value};
}

Contender head_level(const nn::AttentionInfo& info, const Work& work,
                     const Inputs& in) {
  const auto heads = info.make_heads({work.width, work.heads}, {});
  std::vector<at::Tensor> leaves = leaves_of(in);
  for (const at::Tensor& p : nn::as_module(heads)->parameters()) {
    leaves.push_back(p);
  }
  const nn::AttendOptions options{.causal = work.causal};
  return {
      info.name,
      [heads, in, options] {
        return std::get<0>(heads->attend(in.query, in.key, in.value, options));
      },
      leaves};
}

at::Tensor packed_query(const Work& work) {
  return at::randn({1, work.heads, work.packed_length, work.width},
                   at::TensorOptions(work.dtype))
      .requires_grad_();
}

Contender nested(const Work& work, const Inputs& in) {
  const at::Tensor packed = packed_query(work);
  std::vector<at::Tensor> leaves = leaves_of(in);
  leaves.push_back(packed);
  if (work.causal) {
    return {"nested",
            [packed, in] {
              return std::get<0>(ops::nested_causal_attention(
                  in.query, in.key, in.key, in.value, packed));
            },
            leaves};
  }
  return {"nested",
          [packed, in] {
            const at::Tensor memory =
                ops::pack_attention(packed, in.key, in.value);
            return ops::unpack_attention(in.query, memory, memory);
          },
          leaves};
}

Contender sdpa_pair(const Work& work, const Inputs& in) {
  const at::Tensor packed = packed_query(work);
  std::vector<at::Tensor> leaves = leaves_of(in);
  leaves.push_back(packed);
  return {std::string(kSdpaPair),
          [packed, in, batch = work.batch] {
            const at::Tensor memory = at::scaled_dot_product_attention(
                packed.expand({batch, -1, -1, -1}), in.key, in.value);
            return at::scaled_dot_product_attention(in.query, memory, memory);
          },
          leaves};
}

Contender plain(const Work& work, const Inputs& in) {
  nn::FeatureMap map(work.width);
  map->to(work.dtype);
  std::vector<at::Tensor> leaves = leaves_of(in);
  for (const at::Tensor& p : map->parameters()) leaves.push_back(p);
  return {std::string(kPlainFormula),
          [map, in] {
            return plain_formula(in.query, in.key, in.value,
                                 map->map_parameters());
          },
          leaves};
}

}  // namespace

std::int64_t Inputs::bytes(Mode mode) const {
  const std::size_t needed =
      query.nbytes() + key.nbytes() + value.nbytes() +
      (mode == Mode::kForward ? 0 : out_gradient.nbytes());
  return static_cast<std::int64_t>(needed);
}

Inputs make_inputs(const Work& work) {
  at::manual_seed(0);  // the same numbers in every run
  const auto draw = [&] {
    return at::randn({work.batch, work.heads, work.length, work.width},
                     at::TensorOptions(work.dtype));
  };
  return {draw().requires_grad_(), draw().requires_grad_(),
          draw().requires_grad_(), draw()};
}

Inputs reshape(const Inputs& in, const Work& work) {
  const auto shaped = [&](const at::Tensor& t) {
    return t.detach().view({work.batch, work.heads, work.length, work.width});
  };
  return {shaped(in.query).requires_grad_(), shaped(in.key).requires_grad_(),
          shaped(in.value).requires_grad_(), shaped(in.out_gradient)};
}

Contender make_contender(const std::string& name, const Work& work,
                         const Inputs& inputs) {
  if (name == kPlainFormula) return plain(work, inputs);
  if (name == kSdpaPair) return sdpa_pair(work, inputs);
  if (name == "nested") return nested(work, inputs);
  return head_level(nn::find_attention(name), work, inputs);
}

std::string obstacle(const std::string& name, const Work& work, Mode mode,
                     std::int64_t memory) {
  if (name == kPlainFormula || name == kSdpaPair) {
    if (work.causal) return "it has no causal form";
  } else {
    const nn::AttentionInfo& info = nn::find_attention(name);
    if (work.causal && !info.traits.causal) return "it has no causal form";
    if (!info.traits.head_level && name != "nested") {
      return "it is a whole layer, with no form on heads";
    }
  }
  if (name == kPlainFormula) {
    const nn::FeatureMap map(work.width);
    const std::int64_t bytes = plain_formula_bytes(
        work.batch * work.heads * work.length, map->map_parameters(),
        mode == Mode::kForwardBackward);
    if (bytes > memory / 2) {
      return fmt::format(
          "it needs about {:.1f} GB, more than half of this machine's {:.1f}",
          static_cast<double>(bytes) * 1e-9,
          static_cast<double>(memory) * 1e-9);
    }
  }
  return "";
}

Contestant contestant(const Contender& contender, Mode mode,
                      const at::Tensor& out_gradient) {
  // The result is dropped after the clock has stopped.
  const auto result = std::make_shared<at::Tensor>();
  const auto attend = contender.attend;
  if (mode == Mode::kForward) {
    return {contender.name,
            [attend, result] {
              const c10::AutoGradMode no_gradients(false);
              *result = attend();
            },
            [result] { result->reset(); }};
  }
  return {contender.name,
          [attend, result, out_gradient] {
            const c10::AutoGradMode with_gradients(true);
            *result = attend();
            result->backward(out_gradient);
          },
          [result, leaves = contender.leaves] {
            result->reset();
            for (const at::Tensor& leaf : leaves) leaf.mutable_grad().reset();
          }};
}

}  // namespace luna::bench
