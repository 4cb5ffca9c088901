#pragma once

#include <luna/models/model_config.h>

namespace luna::models {

/// What the config's mechanism is built with: its attention_options, and the
/// model's attention_dropout where it has a map to drop from.
config::OptionMap attention_options(const ModelConfig& config);

/// Whether a memory keeps no more rows than the sequence has tokens. The
/// encoder sees to it, once for all layers: they are told not to.
bool take_dynamic_projection(config::OptionMap& options);

/// Those of the options that attention which is not causal reads.
config::OptionMap without_causal_options(const std::string& attention,
                                         const config::OptionMap& options);

/// Why attention with these options cannot read packed sequences; empty if it
/// can.
std::string packing_refused(const std::string& attention,
                            const config::OptionMap& options);

/// Whether what a row gets depends on no other row's query.
bool rows_are_apart(const config::OptionMap& options);

/// Those of the options that one form of a mechanism reads.
template <class Options>
config::OptionMap read_by(const config::OptionMap& options) {
  config::OptionMap read;
  for (const auto& info : config::describe_options<Options>()) {
    const auto found = options.find(info.name);
    if (found != options.end()) read.insert(*found);
  }
  return read;
}

}  // namespace luna::models
