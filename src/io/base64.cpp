#include "io/base64.h"

#include <c10/util/Exception.h>

namespace luna::io {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      const char byte = i + j < bytes.size() ? bytes[i + j] : '\0';
      group = group << 8 | static_cast<std::uint8_t>(byte);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::vector<std::uint8_t> from_base64(std::string_view text) {
  TORCH_CHECK_VALUE(text.size() % 4 == 0,
                    "from_base64: expected a multiple of 4 characters, got ",
                    text.size());
  const std::size_t padding = text.ends_with("==")  ? 2
                              : text.ends_with("=") ? 1
                                                    : 0;
  std::vector<std::uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const std::size_t digit = pad ? 0 : kDigits.find(text[i]);
    TORCH_CHECK_VALUE(digit != std::string_view::npos,
                      "from_base64: expected a digit of base64 at ", i,
                      ", got code ", static_cast<int>(text[i]));
    group = group << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) {
      bytes.push_back(static_cast<std::uint8_t>(group >> shift & 255));
    }
    group = 0;
  }
  for (std::size_t i = 0; i < padding; ++i) bytes.pop_back();
  return bytes;
}

}  // namespace luna::io
