#pragma once

#include <ATen/ATen.h>
#include <luna/ops/feature_map.h>

#include <cmath>
#include <memory>
#include <vector>

#include "ops/cpu/rows.h"
#include "ops/cpu/simd/psi.h"
#include "ops/feature_parameters.h"

// Where linear attention's features come from: given as they are, or made of
// a token's row by universal attention's feature map. Both are read a tile of
// tokens at a time, so that features never reach memory, and take a tile of
// gradients back.

namespace luna::cpu {

/// Features that are the tensor's rows themselves.
template <typename T>
class GivenFeatures {
 public:
  struct Sink {};
  class Scratch {
   public:
    Scratch(const GivenFeatures& features, int64_t tokens)
        : rows_(tokens * features.width()) {}

   private:
    friend class GivenFeatures;
    std::vector<T> rows_;
  };

  GivenFeatures(const at::Tensor& x, const at::Tensor& grad)
      : rows_(x), grad_(grad.defined() ? Rows<T>(grad) : Rows<T>()) {}
  explicit GivenFeatures(const Rows<T>& rows) : rows_(rows) {}

  int64_t width() const { return rows_.width(); }

  Tile<T> forward(int64_t batch, int64_t head, int64_t first, int64_t count,
                  Scratch& scratch) const {
    return rows_.read(batch, head, first, count, scratch.rows_.data());
  }

  /// Takes the gradient of the tile that forward() gave last.
  void backward(int64_t batch, int64_t head, int64_t first, int64_t count,
                Scratch&, const T* grad, int64_t stride, Sink&) const {
    grad_.write(batch, head, first, count, grad, stride);
  }

 private:
  Rows<T> rows_, grad_;
};

/// The six parameters in the form the kernels read.
template <typename T>
class PreparedParameters {
 public:
  PreparedParameters(const ops::FeatureMapParameters& parameters,
                     const at::Tensor& table, bool nonneg);

  int64_t width() const { return width_; }
  int64_t projections() const { return projections_; }
  int64_t channels() const { return layout_.channels; }
  int64_t features() const { return projections_ * layout_.channels; }
  int64_t padded() const { return padded_; }
  const ops::UniversalTableLayout& layout() const { return layout_; }
  const PsiTable<T>& psi() const { return psi_; }
  T factor() const { return factor_; }
  bool nonneg() const { return nonneg_; }
  bool per_head() const { return heads_ > 1 || per_head_; }
  int64_t head_of(int64_t head) const { return per_head_ ? head : 0; }
  int64_t heads() const { return heads_; }
  /// W [M, d]; its transpose [d, padded]; b [padded].
  const T* weight(int64_t head) const {
    return weight_.const_data_ptr<T>() + head_of(head) * projections_ * width_;
  }
  const T* transposed(int64_t head) const {
    return transposed_.data() + head_of(head) * width_ * padded_;
  }
  const T* bias(int64_t head) const {
    return bias_.data() + head_of(head) * padded_;
  }

 private:
  at::Tensor table_, weight_;
  ops::UniversalTableLayout layout_;
  PsiTable<T> psi_;
  bool nonneg_, per_head_;
  int64_t heads_, projections_, width_, padded_;
  T factor_;
  std::vector<T> transposed_, bias_;
};

/// Gradients of the six parameters, summed over tokens: in T for a while, then
/// in double. One a thread's share of the work; added up in a fixed order.
template <typename T>
class ParameterSums {
 public:
  explicit ParameterSums(const PreparedParameters<T>& parameters);

  T* segments() { return recent_.data(); }
  T* weight(int64_t head) { return recent_.data() + weight_at(head); }
  T* bias(int64_t head) { return weight(head) + projections_ * width_; }
  /// `tokens` more have been added: moves the sums to double now and then.
  void count(int64_t tokens) {
    tokens_ += tokens;
    if (tokens_ >= kTokensInT) flush();
  }
  /// The gradients of the six, shaped and typed as they are: all parts added
  /// up, in order.
  static std::vector<at::Tensor> gradients(
      std::vector<ParameterSums> parts, const PreparedParameters<T>& prepared,
      const ops::FeatureMapParameters& parameters);

 private:
  static constexpr int64_t kTokensInT = 4096;
  void flush();
  std::vector<at::Tensor> from_total(
      const PreparedParameters<T>& prepared,
      const ops::FeatureMapParameters& parameters) const;
  int64_t weight_at(int64_t head) const {
    return segment_numbers_ +
           (per_head_ ? head : 0) * projections_ * (width_ + 1);
  }

  bool per_head_;
  int64_t segment_numbers_, projections_, width_, tokens_ = 0;
  std::vector<T> recent_;
  std::vector<double> total_;
};

/// Features phi(x) of a tensor's rows x.
template <typename T>
class UniversalFeatures {
 public:
  using Sink = ParameterSums<T>;
  class Scratch {
   public:
    Scratch(const UniversalFeatures& features, int64_t tokens);

   private:
    friend class UniversalFeatures;
    // Not set to 0: a step of a few heads would spend its time on that.
    std::unique_ptr<T[]> numbers_;
    std::unique_ptr<int32_t[]> segment_;
    T *x_, *u_, *du_, *phi_, *dx_;
    Tile<T> input_{};
  };

  UniversalFeatures(const PreparedParameters<T>& parameters,
                    const at::Tensor& x, const at::Tensor& grad)
      : parameters_(parameters),
        rows_(x),
        grad_(grad.defined() ? Rows<T>(grad) : Rows<T>()) {}
  UniversalFeatures(const PreparedParameters<T>& parameters,
                    const Rows<T>& rows)
      : parameters_(parameters), rows_(rows) {}

  int64_t width() const { return parameters_.features(); }
  Tile<T> forward(int64_t batch, int64_t head, int64_t first, int64_t count,
                  Scratch& scratch) const;
  void backward(int64_t batch, int64_t head, int64_t first, int64_t count,
                Scratch& scratch, const T* grad, int64_t stride,
                Sink& sink) const;

 private:
  const PreparedParameters<T>& parameters_;
  Rows<T> rows_, grad_;
};

}  // namespace luna::cpu
