#pragma once

#include <luna/data/pixels.h>

#include <string>

namespace luna::data {

/// The very bytes of a PNG with 8 bits a channel and no palette. An error
/// names the file.
Pixels read_png(const std::string& path);

/// Any PNG in RGB: palettes looked up, 16 bits cut to 8, alpha dropped.
/// `bytes` are the file's, `path` its name for messages.
Pixels decode_png_rgb(const std::string& bytes, const std::string& path);

/// The bytes of a PNG file: grey (1 channel) or RGB (3).
std::string encode_png(const Pixels& pixels);

}  // namespace luna::data
