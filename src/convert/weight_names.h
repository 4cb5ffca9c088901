// What a weight is called here and there.
#pragma once

#include <string>
#include <string_view>

namespace luna::convert {

enum class Family { kBert, kVit };

/// The name that transformers has for our parameter, without the "bert." or
/// "vit." in front.
std::string their_name(Family family, std::string_view ours);

/// What transformers 5 calls a tensor of a file, without "bert." or "vit.":
/// files before it say LayerNorm.gamma and .beta; a decoder may be the
/// embedding (`tied`) and has the bias of the predictions.
std::string canonical_name(Family family, std::string_view theirs, bool tied);

/// Whether a tensor is no weight: buffers that older files carry.
bool is_buffer(std::string_view canonical);

/// `canonical` as a file of that architecture has it.
std::string with_prefix(Family family, const std::string& architecture,
                        const std::string& canonical);

}  // namespace luna::convert
