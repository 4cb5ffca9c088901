#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace luna::io {

std::string base64(std::string_view bytes);
/// Throws ValueError for what is no base64.
std::vector<std::uint8_t> from_base64(std::string_view text);

}  // namespace luna::io
