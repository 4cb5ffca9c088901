#include "luna/distill/row_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/autograd.h"

namespace luna::distill {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A block of rows: what teacher and student make of them.
struct Block {
  Tensor teacher{};  ///< [B,H,r,n]
  Tensor kernel{};   ///< phi(q) phi(k)^T, 0 for padding
  Tensor sum{};      ///< of a row of the kernel: [B,H,r,1]
  Tensor share{};    ///< kernel / sum
};

/// 1 for real tokens, shaped to be multiplied to keys or to rows.
struct Real {
  Tensor keys, rows;  ///< [B,1,1,n], [B,1,n,1]
  Tensor count;       ///< real rows of all heads
};

Real real_tokens(const Rows& rows) {
  const auto& q = rows.query;
  const auto options = rows.query_map.options().requires_grad(false);
  const Tensor mask = rows.mask ? rows.mask->to(rows.query_map.scalar_type())
                                : at::ones({q.size(0), q.size(2)}, options);
  return {mask.unsqueeze(1).unsqueeze(2), mask.unsqueeze(1).unsqueeze(3),
          mask.sum() * q.size(1)};
}

Block block_of(const Rows& rows, const Real& real, int64_t first,
               int64_t count) {
  const double scale = 1 / std::sqrt(static_cast<double>(rows.query.size(-1)));
  Tensor scores = at::matmul(rows.query.narrow(2, first, count),
                             rows.key.transpose(-1, -2)) *
                  scale;
  if (rows.mask) {
    scores = scores.masked_fill(real.keys.eq(0),
                                -std::numeric_limits<double>::infinity());
  }
  Block block{.teacher =
                  at::softmax(scores, -1).to(rows.query_map.scalar_type())};
  block.kernel = at::matmul(rows.query_map.narrow(2, first, count),
                            rows.key_map.transpose(-1, -2));
  if (rows.mask) block.kernel = block.kernel * real.keys;
  // A row without any similarity has shares of 0.
  block.sum =
      block.kernel.sum(-1, true).clamp_min(std::numeric_limits<float>::min());
  block.share = block.kernel / block.sum;
  return block;
}

template <class Visit>
void each_block(const Rows& rows, const Real& real, Visit&& visit) {
  const int64_t n = rows.query.size(2);
  for (int64_t first = 0; first < n; first += rows.block) {
    const int64_t count = std::min(rows.block, n - first);
    visit(first, count, block_of(rows, real, first, count));
  }
}

/// [B,H,r,n]: what each entry adds to the loss, rows of padding 0. Shares
/// above 1 are there only with features of either sign.
Tensor loss_terms(const Block& block, const Tensor& rows) {
  return block.teacher * block.share.clamp(kLeastShare, 1.0).log() * -rows;
}

Tensor pull_of(const Block& block, double floor) {
  if (floor > 0) {
    const Tensor pull = block.teacher / ((block.share + floor) * block.sum);
    // Rows without any similarity: nothing to divide by.
    return at::where(block.sum.gt(1e-30), pull, 0.0);
  }
  const Tensor counted = block.teacher * block.share.gt(kLeastShare);
  return at::where(counted.gt(0), counted / block.kernel, 0.0);
}

struct RowCrossEntropy : torch::autograd::Function<RowCrossEntropy> {
  /// The gradient is ready when the loss is: a block's rows are read once.
  static Tensor forward(AutogradContext* context, const Tensor& query_map,
                        const Tensor& key_map, const Tensor& query,
                        const Tensor& key, const std::optional<Tensor>& mask,
                        int64_t block_rows, double floor) {
    const Rows rows{query, key, query_map, key_map, mask, block_rows, floor};
    const Real real = real_tokens(rows);
    Tensor loss = at::zeros({}, query_map.options());
    Tensor key_gradient = at::zeros_like(key_map);
    std::vector<Tensor> query_gradients;
    each_block(
        rows, real, [&](int64_t first, int64_t count, const Block& block) {
          const Tensor weight = real.rows.narrow(2, first, count);
          loss = loss + loss_terms(block, weight).sum();
          // -d loss / d kernel, the sum held fast
          const Tensor pull = pull_of(block, floor) * weight;
          Tensor gradient = (pull * block.share).sum(-1, true) - pull;
          if (mask) gradient = gradient * real.keys;
          query_gradients.push_back(at::matmul(gradient, key_map));
          key_gradient =
              key_gradient + at::matmul(gradient.transpose(-1, -2),
                                        query_map.narrow(2, first, count));
        });
    context->save_for_backward(
        {at::cat(query_gradients, 2) / real.count, key_gradient / real.count});
    return loss / real.count;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {
        saved[0] * gradients[0], saved[1] * gradients[0], {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor row_cross_entropy(const Rows& rows) {
  return RowCrossEntropy::apply(rows.query_map, rows.key_map, rows.query,
                                rows.key, rows.mask, rows.block,
                                rows.gradient_floor);
}

Tensor row_divergence(const Rows& rows) {
  const at::NoGradGuard no_grad;
  const Real real = real_tokens(rows);
  Tensor total = at::zeros({rows.query.size(1)}, rows.query_map.options());
  each_block(rows, real, [&](int64_t first, int64_t count, const Block& block) {
    const Tensor weight = real.rows.narrow(2, first, count);
    // 0 log 0 = 0
    const Tensor entropy = at::xlogy(block.teacher, block.teacher) * weight;
    total = total + (loss_terms(block, weight) + entropy).sum({0, 2, 3});
  });
  return total * rows.query.size(1) / real.count;
}

}  // namespace luna::distill
