#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <initializer_list>
#include <optional>

#include "ops/checks.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/sequences.h"
#include "ops/dropout.h"

// From tensors to what the kernels read.

namespace luna::cuda {

inline Scalar scalar_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Scalar::kFloat;
    case at::kDouble:
      return Scalar::kDouble;
    case at::kHalf:
      return Scalar::kHalf;
    default:
      return Scalar::kBFloat16;
  }
}

/// x [batch, heads, length, width], unit last stride.
inline Rows rows_of(const at::Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1),
          x.stride(2), scalar_of(x)};
}
/// x [batch, heads, width].
inline Rows token_rows_of(const at::Tensor& x) {
  return rows_of(x.unsqueeze(2));
}

/// For seeds that are int64 [2] and contiguous.
inline RowDropoutRule row_dropout(double p,
                                  const std::optional<at::Tensor>& seed) {
  if (p == 0) return {};
  return {seed->const_data_ptr<int64_t>(), ops::dropout_threshold(p),
          static_cast<float>(1 / (1 - p))};
}

/// Gradients come with any strides.
inline at::Tensor with_unit_stride(const at::Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1 ? x : x.contiguous();
}

/// key_weight [batch, length] or [batch, heads, length], in `dtype`; `holder`
/// keeps the copy alive.
template <typename T>
Factor<T> weight_of(const std::optional<at::Tensor>& weight,
                    at::ScalarType dtype, at::Tensor& holder) {
  if (!weight.has_value()) return {};
  holder = weight->to(dtype).contiguous();
  const bool per_head = holder.dim() == 3;
  return {holder.const_data_ptr<T>(), holder.stride(0),
          per_head ? holder.stride(1) : 0};
}

/// One number a row: [batch, heads, length] contiguous.
template <typename T>
Factor<T> factor_of_rows(const at::Tensor& x) {
  return {x.const_data_ptr<T>(), x.stride(0), x.stride(1)};
}

/// A batch of sequences, or packed ones, cut into pieces of several sizes.
/// For packed ones a small kernel looks at the offsets on the device.
class Sequences {
 public:
  Sequences(const at::Tensor& like, const std::optional<at::Tensor>& cu_seqlens,
            int64_t batch, int64_t length, std::initializer_list<int64_t> sizes)
      : length_(length) {
    TORCH_INTERNAL_ASSERT(sizes.size() <= SequencePlan::kCuts);
    for (int64_t size : sizes) sizes_[cuts_++] = size;
    sequences_ = cu_seqlens.has_value() ? cu_seqlens->size(0) - 1 : batch;
    if (!cu_seqlens.has_value()) return;
    plan_ =
        at::empty({cuts_ + 1, sequences_ + 1}, like.options().dtype(at::kLong));
    const at::Tensor offsets = cu_seqlens->contiguous();
    SequencePlan plan = {};
    plan.cu_seqlens = offsets.const_data_ptr();
    plan.is_int64 = offsets.scalar_type() == at::kLong;
    plan.sequences = sequences_;
    plan.total = length;
    plan.begin = plan_.data_ptr<int64_t>();
    plan.cuts = cuts_;
    for (int i = 0; i < cuts_; ++i) {
      plan.sizes[i] = sizes_[i];
      plan.firsts[i] = plan.begin + (i + 1) * (sequences_ + 1);
    }
    plan_sequences(plan, c10::cuda::getCurrentCUDAStream());
  }

  int64_t count() const { return sequences_; }
  Cut cut(int i) const {
    Cut cut;
    cut.sequences = sequences_;
    cut.length = length_;
    cut.size = sizes_[i];
    cut.per_sequence = (length_ + cut.size - 1) / cut.size;
    if (plan_.defined()) {
      cut.begin = plan_.const_data_ptr<int64_t>();
      cut.first = cut.begin + (i + 1) * (sequences_ + 1);
      cut.bound = cut.per_sequence + sequences_;
    } else {
      cut.bound = cut.per_sequence * sequences_;
    }
    return cut;
  }

 private:
  int64_t sequences_ = 0, length_;
  int cuts_ = 0;
  int64_t sizes_[SequencePlan::kCuts] = {};
  at::Tensor plan_;
};

/// Calls `body` with float or double, whichever `query` is computed in.
template <typename Body>
auto dispatch_compute(const at::Tensor& query, Body body) {
  return query.scalar_type() == at::kDouble ? body.template operator()<double>()
                                            : body.template operator()<float>();
}

/// A gradient [batch, heads, length] in the shape and dtype of the weight.
inline at::Tensor like_weight(const at::Tensor& gradient,
                              const at::Tensor& weight) {
  return (weight.dim() == 2 ? gradient.sum(1) : gradient)
      .to(weight.scalar_type());
}

}  // namespace luna::cuda
