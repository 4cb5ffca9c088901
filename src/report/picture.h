#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace luna::report {

/// A grey picture, a byte a pixel, as the address "data:image/png;base64,…".
std::string picture_address(const std::vector<std::uint8_t>& pixels,
                            std::int64_t height, std::int64_t width);

}  // namespace luna::report
