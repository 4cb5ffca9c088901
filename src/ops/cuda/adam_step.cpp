// adam_step on the GPU.

#include "ops/adam_step.h"

#include <torch/library.h>

#include "ops/autograd.h"
#include "ops/cuda/adam_step.h"
#include "ops/cuda/tensors.h"

namespace luna::cuda {
namespace {

using at::Tensor;

Tensor norm(at::TensorList tensors) {
  TORCH_CHECK_VALUE(ops::are_few(tensors),
                    "norm_of_few: expected few contiguous float32 tensors");
  const c10::cuda::CUDAGuard guard(tensors[0].device());
  NormOfFew args;
  for (const Tensor& tensor : tensors) {
    args.x[args.tensors.count] = tensor.const_data_ptr<float>();
    args.tensors.add(tensor.numel());
  }
  const auto options = tensors[0].options();
  const Tensor parts = at::empty({args.tensors.chunks}, options),
               total = at::empty({}, options);
  args.parts = parts.mutable_data_ptr<float>();
  args.norm = total.mutable_data_ptr<float>();
  norm_of_few(args, c10::cuda::getCurrentCUDAStream());
  return total;
}

void adam(at::TensorList parameters, at::TensorList gradients,
          at::TensorList first, at::TensorList second, const Tensor& updates,
          const Tensor& lr, const Tensor& scale, const Tensor& skip,
          double beta1, double beta2, double eps, double weight_decay,
          bool decoupled) {
  for (const at::TensorList& list : {parameters, gradients, first, second}) {
    TORCH_CHECK_VALUE(list.size() == parameters.size() && ops::are_few(list),
                      "adam_step_of_few: expected few contiguous float32 "
                      "tensors, as many of each kind");
  }
  const c10::cuda::CUDAGuard guard(parameters[0].device());
  AdamOfFew args;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TORCH_CHECK_VALUE(gradients[i].numel() == parameters[i].numel() &&
                          first[i].numel() == parameters[i].numel() &&
                          second[i].numel() == parameters[i].numel(),
                      "adam_step_of_few: expected gradients and moments of "
                      "the parameters' sizes");
    args.parameter[i] = parameters[i].mutable_data_ptr<float>();
    args.gradient[i] = gradients[i].const_data_ptr<float>();
    args.first[i] = first[i].mutable_data_ptr<float>();
    args.second[i] = second[i].mutable_data_ptr<float>();
    args.tensors.add(parameters[i].numel());
  }
  args.updates = updates.const_data_ptr<float>();
  args.lr = lr.const_data_ptr<float>();
  args.scale = scale.const_data_ptr<float>();
  args.skip = skip.const_data_ptr<float>();
  args.beta1 = beta1;
  args.beta2 = beta2;
  args.eps = static_cast<float>(eps);
  args.weight_decay = static_cast<float>(weight_decay);
  args.decoupled = decoupled;
  adam_of_few(args, c10::cuda::getCurrentCUDAStream());
  for (const at::TensorList& list : {parameters, first, second}) {
    for (const Tensor& tensor : list) ops::mark_written(tensor);
  }
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_norm_of_few", norm);
  m.impl("_adam_step_of_few", adam);
}

}  // namespace
}  // namespace luna::cuda
