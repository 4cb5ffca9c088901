#pragma once

#include <c10/core/Device.h>
#include <luna/train/train_config.h>

#include <string>

namespace luna::train {

/// Whether steps compute black pixels: not where they are padding. Moved
/// pictures have less of the rest than the host knows; there they are masked.
bool keeps_black(const TrainConfig& config);

/// Whether a run on `device` packs its sequences, as the config's `pack` says.
/// `refused`: why model or data cannot be packed, empty if they can; "on" is
/// an error then. `much_padding`: what else there would be, for "auto".
bool packs(const TrainConfig& config, const c10::Device& device,
           const std::string& refused, bool much_padding);

}  // namespace luna::train
