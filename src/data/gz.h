#pragma once

#include <string>
#include <string_view>

namespace luna::data {

/// The content of a gz file, of all its members. `where` starts the message if
/// it is no gz file, cut short or damaged.
std::string decode_gz(const std::string& where, std::string_view bytes);

}  // namespace luna::data
