// feature_map on the CPU: universal features, tile by tile, written out.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cpu/features.h"
#include "ops/feature_parameters.h"

namespace luna::cpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kTile = 64;
constexpr int64_t kTask = 16 * kTile;

// x [..., d] as [batch, heads, length, d] without a copy where strides allow.
Tensor as_heads(const Tensor& x, bool per_head) {
  if (x.dim() == 4) return x;
  if (x.dim() == 3) return x.unsqueeze(0);
  if (!per_head) return x.reshape({1, 1, -1, x.size(-1)});
  return x.reshape({-1, x.size(-3), x.size(-2), x.size(-1)});
}

struct Task {
  int64_t batch, head, begin, end;
};

std::vector<Task> tasks_over(const Tensor& x) {
  std::vector<Task> tasks;
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t t = 0; t < x.size(2); t += kTask) {
        tasks.push_back({b, h, t, std::min(x.size(2), t + kTask)});
      }
    }
  }
  return tasks;
}

template <typename T>
void forward_as(const Tensor& x, const PreparedParameters<T>& parameters,
                const Tensor& output) {
  const UniversalFeatures<T> features(parameters, x, Tensor());
  const Rows<T> rows(output);
  const auto tasks = tasks_over(x);
  at::parallel_for(
      0, static_cast<int64_t>(tasks.size()), 1,
      [&](int64_t begin, int64_t end) {
        typename UniversalFeatures<T>::Scratch scratch(features, kTile);
        for (int64_t i = begin; i < end; ++i) {
          const Task& task = tasks[i];
          for (int64_t t = task.begin; t < task.end; t += kTile) {
            const int64_t count = std::min(kTile, task.end - t);
            const Tile<T> phi =
                features.forward(task.batch, task.head, t, count, scratch);
            rows.write(task.batch, task.head, t, count, phi.data, phi.stride);
          }
        }
      });
}

template <typename T>
std::vector<Tensor> backward_as(const Tensor& grad, const Tensor& x,
                                const ops::FeatureMapParameters& parameters,
                                const PreparedParameters<T>& prepared,
                                const Tensor& grad_x) {
  const UniversalFeatures<T> features(prepared, x, grad_x);
  const Rows<T> rows(grad);
  const auto tasks = tasks_over(x);
  const int64_t total = static_cast<int64_t>(tasks.size());
  const int64_t groups =
      std::max<int64_t>(1, std::min<int64_t>(total, at::get_num_threads()));
  std::vector<ParameterSums<T>> sums(groups, ParameterSums<T>(prepared));
  at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
    typename UniversalFeatures<T>::Scratch scratch(features, kTile);
    std::vector<T> buffer(kTile * features.width());
    for (int64_t g = begin; g < end; ++g) {
      for (int64_t i = g * total / groups; i < (g + 1) * total / groups; ++i) {
        const Task& task = tasks[i];
        for (int64_t t = task.begin; t < task.end; t += kTile) {
          const int64_t count = std::min(kTile, task.end - t);
          features.forward(task.batch, task.head, t, count, scratch);
          const Tile<T> up =
              rows.read(task.batch, task.head, t, count, buffer.data());
          features.backward(task.batch, task.head, t, count, scratch, up.data,
                            up.stride, sums[g]);
        }
      }
    }
  });
  return ParameterSums<T>::gradients(std::move(sums), prepared, parameters);
}

Tensor forward(const Tensor& x, const Tensor& projection,
               const Tensor& projection_bias, const Tensor& hidden_weight,
               const Tensor& hidden_bias, const Tensor& output_weight,
               const Tensor& output_bias, bool nonneg,
               const OptionalTensor& table) {
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  ops::check_feature_input("feature_map", x);
  ops::check_feature_parameters("feature_map", "x", x, -3, p, table);
  auto sizes = x.sizes().vec();
  sizes.back() = projection.size(-2) * output_weight.size(0);
  const Tensor output = at::empty(sizes, x.options());
  const bool per_head = projection.dim() == 3;
  const Tensor rows = as_heads(x, per_head), out = as_heads(output, per_head);
  const Tensor built = ops::table_or_built(x, p, table);
  if (x.scalar_type() == at::kDouble) {
    forward_as(rows, PreparedParameters<double>(p, built, nonneg), out);
  } else {
    forward_as(rows, PreparedParameters<float>(p, built, nonneg), out);
  }
  return output;
}

std::vector<Tensor> backward(
    const Tensor& grad, const Tensor& x, const Tensor& projection,
    const Tensor& projection_bias, const Tensor& hidden_weight,
    const Tensor& hidden_bias, const Tensor& output_weight,
    const Tensor& output_bias, bool nonneg, const Tensor& table) {
  const ops::FeatureMapParameters p{projection,  projection_bias, hidden_weight,
                                    hidden_bias, output_weight,   output_bias};
  const Tensor grad_x = at::empty(x.sizes(), x.options());
  const bool per_head = projection.dim() == 3;
  const Tensor rows = as_heads(x, per_head),
               up = as_heads(grad.contiguous(), per_head),
               to = as_heads(grad_x, per_head);
  auto result =
      x.scalar_type() == at::kDouble
          ? backward_as(up, rows, p,
                        PreparedParameters<double>(p, table, nonneg), to)
          : backward_as(up, rows, p,
                        PreparedParameters<float>(p, table, nonneg), to);
  result.insert(result.begin(), grad_x);
  return result;
}

TORCH_LIBRARY_IMPL(luna, CPU, m) {
  m.impl("feature_map", forward);
  m.impl("feature_map_backward", backward);
}

}  // namespace
}  // namespace luna::cpu
