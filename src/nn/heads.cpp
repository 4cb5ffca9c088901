#include "nn/heads.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>

#include "ops/linear.h"

namespace luna::nn {
namespace {

void check_sequence(const std::string& layer, const char* name,
                    const at::Tensor& x, int64_t embed_dim) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == embed_dim, layer,
                    ": expected ", name, " [batch, length, ", embed_dim,
                    "], got ", x.sizes());
}

void check_mask(const std::string& layer, const char* name,
                const std::optional<at::Tensor>& mask, int64_t batch,
                int64_t length) {
  if (!mask) return;
  TORCH_CHECK_VALUE(
      mask->dim() == 2 && mask->size(0) == batch && mask->size(1) == length,
      layer, ": expected ", name, " [", batch, ", ", length, "], got ",
      mask->sizes());
  TORCH_CHECK_TYPE(
      mask->scalar_type() == at::kBool || mask->is_floating_point(), layer,
      ": expected ", name,
      " of bool (true = takes part) or float weights, got ",
      mask->scalar_type());
}

}  // namespace

void check_shape(const std::string& layer, const LayerShape& shape) {
  TORCH_CHECK_VALUE(shape.embed_dim >= 1 && shape.num_heads >= 1 &&
                        shape.embed_dim % shape.num_heads == 0,
                    layer, ": expected embed_dim to be a multiple of the ",
                    "number of heads, got ", shape.embed_dim, " and ",
                    shape.num_heads, " heads");
}

void check_input(const std::string& layer, int64_t embed_dim,
                 const at::Tensor& x, const LayerInput& input) {
  check_sequence(layer, "x", x, embed_dim);
  const auto& keys = input.context ? *input.context : x;
  if (input.context) {
    check_sequence(layer, "context", keys, embed_dim);
    TORCH_CHECK_VALUE(keys.size(0) == x.size(0), layer,
                      ": expected context of batch ", x.size(0), " (x's), got ",
                      keys.size(0));
  }
  check_mask(layer, "key_mask", input.key_mask, keys.size(0), keys.size(1));
  check_mask(layer, "query_mask", input.query_mask, x.size(0), x.size(1));
  const auto starts =
      input.cu_seqlens_q ? input.cu_seqlens_q : input.cu_seqlens_k;
  const auto sequences = starts ? starts->numel() - 1 : x.size(0);
  if (!input.memory) return;
  const auto& memory = *input.memory;
  const bool shared =
      memory.dim() == 2 || (memory.dim() == 3 && memory.size(0) == 1);
  TORCH_CHECK_VALUE(
      memory.dim() >= 2 && memory.dim() <= 3 && memory.size(-1) == embed_dim &&
          (shared || memory.size(0) == sequences),
      layer, ": expected memory [", sequences, ", length, ", embed_dim,
      "], or [length, ", embed_dim, "] for all, got ", memory.sizes());
  check_mask(layer, "memory_mask", input.memory_mask, sequences,
             memory.size(-2));
}

void check_step(const std::string& layer, int64_t embed_dim,
                const at::Tensor& x, const StreamState& state, size_t least) {
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == embed_dim, layer,
                    ": expected a token x [batch, ", embed_dim, "], got ",
                    x.sizes());
  TORCH_CHECK_VALUE(state.tensors.size() >= least, layer,
                    ": expected the state that forward returned (", least,
                    " tensors), got ", state.tensors.size(), " tensors");
}

std::optional<at::Tensor> key_starts(const LayerInput& input) {
  if (input.cu_seqlens_k || input.context) return input.cu_seqlens_k;
  return input.cu_seqlens_q;
}

std::vector<at::Tensor> project(const at::Tensor& x,
                                const std::vector<torch::nn::Linear>& layers) {
  std::vector<at::Tensor> weights, biases;
  for (const auto& layer : layers) {
    weights.push_back(layer->weight);
    biases.push_back(layer->bias);
  }
  return ops::linears(x, weights, biases);
}

at::Tensor split_heads(const at::Tensor& x, int64_t num_heads) {
  return x.unflatten(-1, at::IntArrayRef{num_heads, x.size(-1) / num_heads})
      .transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

namespace {

thread_local JointSeeds* joint_seeds = nullptr;

at::Tensor draw_words(at::IntArrayRef sizes, const c10::Device& device) {
  return at::randint(std::numeric_limits<int64_t>::max(), sizes,
                     at::dtype(at::kLong).device(device));
}

}  // namespace

std::optional<at::Tensor> draw_seed(const at::Tensor& x, double dropout_p) {
  if (dropout_p == 0) return std::nullopt;
  if (joint_seeds != nullptr && x.is_cuda()) {
    return joint_seeds->next(x.device());
  }
  return draw_words({2}, x.device());
}

JointSeeds::JointSeeds() : outer_(joint_seeds) { joint_seeds = this; }
JointSeeds::~JointSeeds() { joint_seeds = outer_; }

at::Tensor JointSeeds::next(const c10::Device& device) {
  constexpr int64_t kAtOnce = 32;
  if (!seeds_.defined() || seeds_.device() != device || used_ == kAtOnce) {
    seeds_ = draw_words({kAtOnce, 2}, device);
    used_ = 0;
  }
  return seeds_[used_++];
}

void start_nested_projections(torch::nn::Module& layer) {
  at::NoGradGuard no_grad;
  for (const auto& child : layer.named_children()) {
    auto& linear = *child.value()->as<torch::nn::Linear>();
    const bool out = child.key() == "out_proj";
    torch::nn::init::xavier_uniform_(linear.weight, out ? 1 : std::sqrt(0.5));
    linear.bias.zero_();
  }
}

}  // namespace luna::nn
