#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <luna/convert/vit_folder.h>
#include <luna/io/atomic.h>
#include <luna/io/safetensors.h>
#include <luna/io/text_file.h>

#include <nlohmann/json.hpp>

#include "convert/hugging_face_config.h"

namespace luna::convert {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kArchitecture = "ViTForImageClassification";

double attention_dropout(const config::OptionMap& options) {
  const auto found = options.find("dropout");
  if (found == options.end()) return 0;
  const auto* const whole = std::get_if<int64_t>(&found->second);
  return whole != nullptr ? static_cast<double>(*whole)
                          : std::get<double>(found->second);
}

Json config_json(const models::VitConfig& vit) {
  const models::EncoderLayerOptions& layer = vit.layer;
  return {{"model_type", "vit"},
          {"hidden_size", layer.width},
          {"num_hidden_layers", vit.layers},
          {"num_attention_heads", layer.heads},
          {"intermediate_size", layer.ffn},
          {"hidden_act",
           layer.activation == "gelu_tanh" ? "gelu_new" : layer.activation},
          {"hidden_dropout_prob", layer.dropout},
          {"attention_probs_dropout_prob",
           attention_dropout(layer.attention_options)},
          {"initializer_range", 0.02},
          {"layer_norm_eps", layer.norm_eps},
          {"image_size", vit.image_size},
          {"patch_size", vit.patch_size},
          {"num_channels", vit.channels},
          {"qkv_bias", true},
          {"dtype", "float32"}};
}

Json processor_json(const models::VitConfig& vit,
                    const data::ImageProcessorOptions& processor) {
  return {{"image_processor_type", "ViTImageProcessor"},
          {"do_resize", true},
          {"size", {{"height", vit.image_size}, {"width", vit.image_size}}},
          {"resample", static_cast<int>(processor.resample)},
          {"do_rescale", processor.rescale_factor.has_value()},
          {"rescale_factor", processor.rescale_factor.value_or(1)},
          {"do_normalize", processor.normalize},
          {"image_mean", processor.mean},
          {"image_std", processor.std}};
}

}  // namespace

void write_vit_folder(const std::string& folder, const models::Vit& vit,
                      const std::vector<std::string>& labels,
                      const data::ImageProcessorOptions& processor) {
  const models::VitConfig& config = vit->config();
  TORCH_CHECK_VALUE(std::ssize(labels) == config.classes,
                    "write_vit_folder: expected ", config.classes,
                    " labels, one a class, got ", labels.size());
  HuggingFaceConfig known;
  known.family = Family::kVit;
  known.architecture = kArchitecture;
  known.vit = config;
  known.labels = labels;
  io::NamedTensors tensors;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    tensors.emplace_back(with_prefix(Family::kVit, kArchitecture,
                                     their_name(Family::kVit, name)),
                         tensor.detach());
  };
  for (const auto& item : vit->named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : vit->named_buffers()) add(item.key(), item.value());
  io::AtomicFolder out(folder);
  io::write_safetensors(out.file("model.safetensors"), tensors,
                        {{"format", "pt"}});
  io::write_text(out.file("config.json"),
                 change_config(config_json(config).dump(), known));
  io::write_text(out.file("preprocessor_config.json"),
                 processor_json(config, processor).dump(2) + "\n");
  out.commit();
}

}  // namespace luna::convert
