#include "train/packing.h"

#include <c10/util/Exception.h>

namespace luna::train {

bool keeps_black(const TrainConfig& config) {
  return config.model.black != "padding" || config.data.augment;
}

bool packs(const TrainConfig& config, const c10::Device& device,
           const std::string& refused, bool much_padding) {
  TORCH_CHECK_VALUE(config.pack != "on" || refused.empty(),
                    "train: pack = on: expected what can be packed, got ",
                    refused);
  if (config.pack != "auto") return config.pack == "on";
  // In float32 softmax has no kernel for packed sequences that can be recorded.
  const bool recordable =
      config.model.attention != "softmax" || config.autocast == "bf16";
  return device.is_cuda() && refused.empty() && much_padding && recordable;
}

}  // namespace luna::train
