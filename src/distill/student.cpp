#include "luna/distill/student.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <cmath>

#include "luna/nn/feature_map.h"
#include "luna/nn/linear_attention.h"
#include "luna/nn/rff_attention.h"
#include "luna/nn/softmax_attention.h"
#include "nn/heads.h"

namespace luna::distill {
namespace {

using at::Tensor;
using Attention = nn::MultiHeadAttentionImpl;

std::shared_ptr<Attention> attention_of(const models::EncoderLayer& layer) {
  auto attention = std::dynamic_pointer_cast<Attention>(layer->attention());
  TORCH_CHECK_VALUE(attention,
                    "Student: expected head-level attention in every layer");
  return attention;
}

/// phi of a mechanism that has one.
Tensor features(nn::HeadAttention& heads, const Tensor& x) {
  if (auto* map = dynamic_cast<nn::FeatureMapImpl*>(&heads)) {
    return map->forward(x);
  }
  if (auto* map = dynamic_cast<nn::LinearAttentionImpl*>(&heads)) {
    return map->forward(x);
  }
  if (auto* map = dynamic_cast<nn::RffAttentionImpl*>(&heads)) {
    return map->forward(x);
  }
  TORCH_CHECK_VALUE(false,
                    "Student: expected a mechanism with a feature map "
                    "(universal, linear, rff)");
}

Tensor project(const torch::nn::Linear& linear, const Tensor& x,
               int64_t heads) {
  return nn::split_heads(at::linear(x, linear->weight, linear->bias), heads);
}

/// A head's part of a projection, the basis put behind it.
void fold_into(const torch::nn::Linear& from, const torch::nn::Linear& to,
               const Tensor& basis, const Tensor& shift) {
  const int64_t heads = basis.size(0);
  const Tensor weight = from->weight.unflatten(0, at::IntArrayRef{heads, -1});
  const Tensor bias = from->bias.unflatten(0, at::IntArrayRef{heads, -1});
  to->weight.copy_(at::matmul(basis, weight).flatten(0, 1));
  to->bias.copy_(
      (at::matmul(basis, bias.unsqueeze(-1)).squeeze(-1) + shift).flatten());
}

}  // namespace

LayerStudent::LayerStudent(std::shared_ptr<Attention> teacher,
                           std::shared_ptr<Attention> student, bool bases)
    : teacher_(std::move(teacher)), student_(std::move(student)) {
  const nn::LayerShape& shape = teacher_->options().shape;
  const auto width = shape.embed_dim, heads = shape.num_heads;
  for (const auto& item :
       nn::as_module(student_->heads())->named_parameters()) {
    parameters_.emplace_back(item.key(), item.value());
  }
  // Features of either sign make rows that no logarithm can be taken of.
  const bool positive =
      dynamic_cast<nn::RffAttentionImpl*>(student_->heads().get()) == nullptr;
  if (!bases || !positive) return;
  const auto options = teacher_->q_proj->weight.options().requires_grad(false);
  const int64_t d = width / heads;
  for (Tensor* basis : {&query_basis_, &key_basis_}) {
    *basis = at::eye(d, options).repeat({heads, 1, 1}).requires_grad_();
  }
  for (Tensor* shift : {&query_shift_, &key_shift_}) {
    *shift = at::zeros({heads, d}, options).requires_grad_();
  }
  parameters_.emplace_back("query_basis", query_basis_);
  parameters_.emplace_back("query_shift", query_shift_);
  parameters_.emplace_back("key_basis", key_basis_);
  parameters_.emplace_back("key_shift", key_shift_);
}

void LayerStudent::add_moments(const Tensor& x,
                               const std::optional<Tensor>& mask,
                               Moments& moments) const {
  const int64_t heads = teacher_->options().shape.num_heads;
  // [H,tokens,d]
  const auto real = [&](const torch::nn::Linear& linear) {
    const Tensor all = project(linear, x, heads).transpose(1, 2);
    const Tensor tokens = mask ? all.index({*mask}) : all.flatten(0, 1);
    return tokens.to(at::kDouble).transpose(0, 1);
  };
  const Tensor q = real(teacher_->q_proj), k = real(teacher_->k_proj);
  const auto add = [](Tensor& sum, const Tensor& more) {
    sum = sum.defined() ? sum + more : more;
  };
  add(moments.query, at::matmul(q.transpose(1, 2), q));
  add(moments.key, at::matmul(k.transpose(1, 2), k));
  add(moments.key_sum, k.sum(1));
  moments.tokens += static_cast<double>(q.size(1));
}

void LayerStudent::balance(const Moments& moments) const {
  const at::NoGradGuard no_grad;
  const Tensor mean = (moments.key_sum / moments.tokens).cpu();
  const int64_t d = mean.size(-1);
  // Directions that never occur must not divide by 0.
  const Tensor least = 1e-4 * at::eye(d, mean.options());
  const Tensor q = (moments.query / moments.tokens).cpu() + least;
  const Tensor k = (moments.key / moments.tokens).cpu() + least -
                   mean.unsqueeze(-1) * mean.unsqueeze(-2);
  const Tensor of_q = at::linalg_cholesky(q), of_k = at::linalg_cholesky(k);
  const auto [u, s, v] = at::linalg_svd(at::matmul(of_q.transpose(1, 2), of_k));
  const Tensor root = s.sqrt().unsqueeze(-1);
  // A q and B k with A^T B = 1 / sqrt d
  const double scale = std::pow(static_cast<double>(d), -0.25);
  const Tensor a = at::matmul(v, of_k.transpose(1, 2)) / root;
  const Tensor b = at::linalg_inv(a).transpose(1, 2);
  query_basis_.copy_(a * scale);
  key_basis_.copy_(b * scale);
  // What all keys have in common changes no softmax row.
  key_shift_.copy_(at::matmul(b, mean.unsqueeze(-1)).squeeze(-1) * -scale);
}

Tensor LayerStudent::in_basis(const Tensor& heads, const Tensor& matrix,
                              const Tensor& shift) const {
  if (!matrix.defined()) return heads;
  return at::matmul(heads, matrix.transpose(-1, -2)) + shift.unsqueeze(1);
}

Rows LayerStudent::rows(const Tensor& x,
                        const std::optional<Tensor>& mask) const {
  const int64_t heads = teacher_->options().shape.num_heads;
  Rows rows;
  rows.query = project(teacher_->q_proj, x, heads).detach();
  rows.key = project(teacher_->k_proj, x, heads).detach();
  rows.mask = mask;
  rows.query_map = features(*student_->heads(),
                            in_basis(rows.query, query_basis_, query_shift_));
  rows.key_map =
      features(*student_->heads(), in_basis(rows.key, key_basis_, key_shift_));
  return rows;
}

Tensor LayerStudent::loss(const Tensor& x, const std::optional<Tensor>& mask,
                          StageOneLoss kind, double gradient_floor) const {
  if (kind == StageOneLoss::kRows) {
    Rows compared = rows(x, mask);
    compared.gradient_floor = gradient_floor;
    return row_cross_entropy(compared);
  }
  const int64_t heads = teacher_->options().shape.num_heads;
  const Tensor q = project(teacher_->q_proj, x, heads).detach(),
               k = project(teacher_->k_proj, x, heads).detach(),
               v = project(teacher_->v_proj, x, heads).detach();
  nn::AttendOptions options;
  options.key_weight = mask;
  options.query_mask = mask;
  const Tensor wanted =
      std::get<0>(teacher_->heads()->attend(q, k, v, options)).detach();
  const Tensor given = std::get<0>(student_->heads()->attend(
      in_basis(q, query_basis_, query_shift_),
      in_basis(k, key_basis_, key_shift_), v, options));
  const Tensor error = (given - wanted).square();
  if (!mask) return error.mean();
  const Tensor real = mask->unsqueeze(1).unsqueeze(-1).to(error.scalar_type());
  return (error * real).sum() / (real.sum() * heads * v.size(-1));
}

Tensor LayerStudent::divergence(const Tensor& x,
                                const std::optional<Tensor>& mask) const {
  const at::NoGradGuard no_grad;
  return row_divergence(rows(x, mask));
}

Tensor LayerStudent::alive(const Tensor& x) const {
  const at::NoGradGuard no_grad;
  return rows(x, {}).key_map.ne(0).any(3).any(2).any(0);
}

void LayerStudent::hold_up(double least) const {
  const auto* map = dynamic_cast<nn::FeatureMapImpl*>(student_->heads().get());
  if (map == nullptr || !map->options().nonneg) return;
  const at::NoGradGuard no_grad;
  map->output_bias.clamp_min_(least);
}

void LayerStudent::fold() const {
  if (!query_basis_.defined()) return;
  const at::NoGradGuard no_grad;
  fold_into(teacher_->q_proj, student_->q_proj, query_basis_, query_shift_);
  fold_into(teacher_->k_proj, student_->k_proj, key_basis_, key_shift_);
}

Student::Student(std::shared_ptr<models::LayeredModel> teacher,
                 const models::LayeredModel& student, bool bases)
    : teacher_(std::move(teacher)) {
  const auto& layers = teacher_->layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto attention = attention_of(layers[i]);
    TORCH_CHECK_VALUE(
        dynamic_cast<nn::SoftmaxAttentionImpl*>(attention->heads().get()),
        "Student: expected a teacher with softmax attention, got another in "
        "layer ",
        i);
    layers_.emplace_back(attention, attention_of(student.layers()[i]), bases);
  }
}

void Student::balance(const std::vector<data::Batch>& batches) {
  const at::NoGradGuard no_grad;
  std::vector<LayerStudent::Moments> moments(layers_.size());
  for (const data::Batch& batch : batches) {
    auto sums = moments.begin();
    each_layer(batch, [&](const LayerStudent& layer, const Tensor& x,
                          const std::optional<Tensor>& mask) {
      layer.add_moments(x, mask, *sums++);
    });
  }
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].balance(moments[i]);
}

bool Student::learns() const { return layers_.front().learns(); }

io::NamedTensors Student::parameters() const {
  io::NamedTensors all;
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (const auto& [name, tensor] : layers_[i].parameters()) {
      all.emplace_back(fmt::format("{}.{}", i, name), tensor);
    }
  }
  return all;
}

template <class Visit>
std::optional<Tensor> Student::each_layer(const data::Batch& batch,
                                          Visit&& visit) {
  models::LayeredModel::Attended attended;
  {
    const at::NoGradGuard no_grad;
    teacher_->eval();
    attended = teacher_->attended(batch);
  }
  // Rows are compared in float32, whatever the teacher was run in.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  for (size_t i = 0; i < layers_.size(); ++i) {
    visit(layers_[i], attended.x[i].to(at::kFloat), attended.mask);
  }
  return attended.mask;
}

Tensor Student::loss(const data::Batch& batch, StageOneLoss kind,
                     double gradient_floor) {
  Tensor sum;
  each_layer(batch, [&](const LayerStudent& layer, const Tensor& x,
                        const std::optional<Tensor>& mask) {
    const Tensor one = layer.loss(x, mask, kind, gradient_floor);
    sum = sum.defined() ? sum + one : one;
  });
  return sum / static_cast<double>(layers_.size());
}

Student::Divergence Student::divergence(const data::Batch& batch) {
  std::vector<Tensor> all;
  int64_t tokens = 0;
  const auto mask =
      each_layer(batch, [&](const LayerStudent& layer, const Tensor& x,
                            const std::optional<Tensor>& real) {
        all.push_back(layer.divergence(x, real));
        tokens = x.size(0) * x.size(1);
      });
  return {at::stack(all),
          mask ? mask->sum().item<double>() : static_cast<double>(tokens)};
}

Tensor Student::alive(const data::Batch& batch) {
  std::vector<Tensor> all;
  each_layer(batch, [&](const LayerStudent& layer, const Tensor& x,
                        const std::optional<Tensor>&) {
    all.push_back(layer.alive(x));
  });
  return at::stack(all);
}

void Student::hold_up(double least) const {
  for (const LayerStudent& layer : layers_) layer.hold_up(least);
}

void Student::fold() const {
  for (const LayerStudent& layer : layers_) layer.fold();
}

}  // namespace luna::distill
