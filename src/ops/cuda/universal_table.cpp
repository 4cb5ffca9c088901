#include "ops/cuda/universal_table.h"

#include <torch/library.h>

#include "ops/cuda/tensors.h"
#include "ops/feature_parameters.h"

namespace luna::cuda {
namespace {

using at::Tensor;

Tensor universal_table(const Tensor& hidden_weight, const Tensor& hidden_bias,
                       const Tensor& output_weight, const Tensor& output_bias) {
  ops::check_psi("universal_table", hidden_weight, hidden_bias, output_weight,
                 output_bias);
  const c10::cuda::CUDAGuard guard(output_bias.device());
  const auto dtype = ops::compute_dtype(output_bias);
  const auto prepared = [&](const Tensor& x) {
    return x.to(dtype).contiguous();
  };
  const Tensor w = prepared(hidden_weight), b = prepared(hidden_bias),
               o = prepared(output_weight), c = prepared(output_bias);
  const auto layout = ops::table_layout(w, o);
  Tensor table = at::empty({layout.size()}, c.options());
  dispatch_compute(output_bias, [&]<typename T>() {
    build_table<T>(TableShape(layout),
                   {w.const_data_ptr<T>(), b.const_data_ptr<T>(),
                    o.const_data_ptr<T>(), c.const_data_ptr<T>()},
                   table.data_ptr<T>(), c10::cuda::getCurrentCUDAStream());
  });
  return table;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("universal_table", universal_table);
}

}  // namespace
}  // namespace luna::cuda
