#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace luna::report {

std::string base64(const std::vector<std::uint8_t>& bytes);
/// Throws ValueError for what is no base64.
std::vector<std::uint8_t> from_base64(std::string_view text);

}  // namespace luna::report
