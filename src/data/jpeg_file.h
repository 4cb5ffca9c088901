#pragma once

#include <luna/data/pixels.h>

#include <string>

namespace luna::data {

/// A JPEG in RGB. `bytes` are the file's, `path` its name for messages.
Pixels decode_jpeg_rgb(const std::string& bytes, const std::string& path);

}  // namespace luna::data
