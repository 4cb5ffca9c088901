#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace luna::train {

/// Runs `forward_and_backward`, one of each, and says where its first NaN or
/// +inf came from, such as "layers.0.ffn.up (aten::addmm)". (-inf does not
/// count: masks are made of it.) A module is recognised by the parameter an
/// operation reads; what has none counts to the one before. Where the forward
/// pass is sound, it is the last module whose gradient is not. Empty if
/// everything was finite.
std::string first_non_finite(const torch::nn::Module& model,
                             const std::function<void()>& forward_and_backward);

}  // namespace luna::train
