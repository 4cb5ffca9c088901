#pragma once

#include <luna/data/pixels.h>

#include <string>

namespace luna::report {

/// A picture as the address "data:image/png;base64,…".
std::string picture_address(const data::Pixels& picture);

}  // namespace luna::report
