#include "ops/cuda/train_step.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/gather_sequences.h"
#include "ops/judge_step.h"

namespace luna::cuda {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> gather(const Tensor& ids, const Tensor& offsets,
                                  const Tensor& sequences,
                                  const std::optional<Tensor>& moves,
                                  int64_t length, int64_t max_length,
                                  int64_t cls, int64_t pad, int64_t height,
                                  int64_t width) {
  const c10::cuda::CUDAGuard guard(ids.device());
  const ops::GatherCall call =
      ops::make_gather_call(ids, offsets, sequences, moves, length, max_length,
                            cls, pad, height, width);
  gather_sequences(call.gather, c10::cuda::getCurrentCUDAStream());
  return {call.rows, call.lengths};
}

std::tuple<Tensor, Tensor, Tensor> packed(const Tensor& ids,
                                          const Tensor& offsets,
                                          const Tensor& sequences,
                                          int64_t length, int64_t max_length,
                                          int64_t cls, int64_t pad) {
  const c10::cuda::CUDAGuard guard(ids.device());
  const ops::GatherCall call = ops::make_packed_call(
      ids, offsets, sequences, length, max_length, cls, pad);
  gather_packed(call.gather, c10::cuda::getCurrentCUDAStream());
  return {call.rows, call.lengths, call.starts};
}

Tensor judge(Tensor& meter, const Tensor& loss, const Tensor& norm,
             const Tensor& correct, double samples, double clip, double limit) {
  ops::check_judge_step(meter, loss, norm, correct);
  const c10::cuda::CUDAGuard guard(meter.device());
  const Tensor verdict = at::empty({3}, loss.options());
  judge_step({meter.mutable_data_ptr<double>(),
              loss.const_data_ptr<float>(),
              norm.const_data_ptr<float>(),
              correct.const_data_ptr<float>(),
              {samples, clip, limit},
              verdict.mutable_data_ptr<float>()},
             c10::cuda::getCurrentCUDAStream());
  return verdict;
}

TORCH_LIBRARY_IMPL(luna, CUDA, m) {
  m.impl("_gather_sequences", gather);
  m.impl("_gather_packed", packed);
  m.impl("_judge_step", judge);
}

}  // namespace
}  // namespace luna::cuda
