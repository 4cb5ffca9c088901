#pragma once

#include <luna/config/options.h>
#include <luna/nn/attention_layer.h>
#include <luna/nn/head_attention.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace luna::nn {

/// What a mechanism can do.
struct AttentionTraits {
  bool head_level = false;  ///< a function of q, k, v; else a whole layer
  bool causal = false;      ///< has a form in which t sees j <= t only
  bool cross = false;       ///< may attend to another sequence
  bool streams = false;     ///< its causal form has a state of constant size
  bool memory = false;      ///< carries a packed memory from layer to layer
};

/// One mechanism: what it is, and how to make it.
struct AttentionInfo {
  std::string name{};
  std::string summary{};
  AttentionTraits traits{};
  std::string publication{};
  std::vector<config::OptionInfo> options{};  ///< of all its forms, each once
  /// Empty unless head_level.
  std::function<std::shared_ptr<HeadAttention>(HeadShape,
                                               const config::OptionMap&)>
      make_heads{};
  std::function<std::shared_ptr<AttentionLayer>(const LayerShape&,
                                                const config::OptionMap&)>
      make_layer{};
};

/// Every mechanism, in the order of the documentation.
const std::vector<AttentionInfo>& attentions();

/// The mechanism of that name; an unknown one lists the known ones.
const AttentionInfo& find_attention(const std::string& name);

/// A head-level mechanism; an option that it does not read is an error.
std::shared_ptr<HeadAttention> make_head_attention(
    const std::string& name, HeadShape shape,
    const config::OptionMap& options = {});

/// A layer of any mechanism, in its causal form where the shape says so.
std::shared_ptr<AttentionLayer> make_attention_layer(
    const std::string& name, const LayerShape& shape,
    const config::OptionMap& options = {});

/// attentions() as JSON text: what luna::attentions() of the dispatcher gives.
std::string attentions_json();

}  // namespace luna::nn
