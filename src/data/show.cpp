#include "luna/data/show.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/data/listops.h>
#include <luna/data/needles.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "data/png_file.h"

namespace luna::data {
namespace {

/// Bytes of the UTF-8 character at the front that may be printed; 0 if there
/// is none.
size_t printable_length(std::span<const uint8_t> bytes) {
  const uint8_t first = bytes[0];
  if (first < 0x80) {
    return first >= 0x20 && first != 0x7f ? 1 : first == '\n' ? 1 : 0;
  }
  const int length = std::countl_one(first);
  if (length < 2 || length > 4 || std::ssize(bytes) < length) return 0;
  uint32_t code = first & (0x7fu >> length);
  for (int i = 1; i < length; ++i) {
    if ((bytes[i] & 0xc0) != 0x80) return 0;
    code = code << 6 | (bytes[i] & 0x3fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[length] || code > 0x10ffff || surrogate) return 0;
  // Marks that turn the direction of what follows.
  if ((code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
    return 0;
  return length;
}

/// Marked digits in brackets: 3 1 [4] 1 5.
std::string needles_text(std::span<const uint8_t> ids) {
  std::string text;
  for (const uint8_t id : ids) {
    text += text.empty() ? "" : " ";
    text += id < kFirstNeedle ? fmt::format("{}", id)
                              : fmt::format("[{}]", id - kFirstNeedle);
  }
  return text;
}

Pixels picture_of(const TaskInfo& info, std::span<const uint8_t> ids) {
  TORCH_CHECK_VALUE(info.height > 0 && std::ssize(ids) == picture_size(info),
                    "show: expected a picture, got ", ids.size(), " ids of ",
                    info.task);
  return from_planes(ids, info.height, info.width, info.channels);
}

/// A pixel's red, green and blue.
std::array<int, 3> colour_at(const Pixels& picture, int64_t y, int64_t x) {
  if (y >= picture.height) return {};
  const uint8_t* const first =
      picture.bytes.data() + (y * picture.width + x) * picture.channels;
  if (picture.channels == 1) return {*first, *first, *first};
  return {first[0], first[1], first[2]};
}

}  // namespace

std::string printable_text(std::span<const uint8_t> bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = printable_length(bytes);
    if (length > 0) {
      text.append(bytes.begin(), bytes.begin() + length);
    } else {
      text += fmt::format("\\x{:02x}", bytes[0]);
    }
    bytes = bytes.subspan(std::max<size_t>(length, 1));
  }
  return text;
}

std::string sequence_text(const TaskInfo& info, std::span<const uint8_t> ids) {
  if (info.vocabulary == 256) return printable_text(ids);
  if (info.task == "listops") return listops_text(ids);
  if (info.task == "needles") return needles_text(ids);
  return fmt::format("{}", fmt::join(ids, " "));
}

std::string picture_blocks(const TaskInfo& info, std::span<const uint8_t> ids) {
  const Pixels picture = picture_of(info, ids);
  std::string text;
  for (int64_t y = 0; y < info.height; y += 2) {
    for (int64_t x = 0; x < info.width; ++x) {
      const auto upper = colour_at(picture, y, x);
      const auto lower = colour_at(picture, y + 1, x);
      text += fmt::format("\033[38;2;{}m\033[48;2;{}m▀", fmt::join(upper, ";"),
                          fmt::join(lower, ";"));
    }
    text += "\033[0m\n";
  }
  return text;
}

std::string picture_letters(const TaskInfo& info,
                            std::span<const uint8_t> ids) {
  const Pixels picture = picture_of(info, ids);
  constexpr std::string_view kLetters = " .:-=+*#%@";
  std::string text;
  for (int64_t y = 0; y < info.height; ++y) {
    std::string line;
    for (int64_t x = 0; x < info.width; ++x) {
      const auto [red, green, blue] = colour_at(picture, y, x);
      const int mean = (red + green + blue) / 3;
      line.append(2, kLetters[mean * kLetters.size() / 256]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string contact_sheet(const Dataset& data,
                          std::span<const int64_t> indices) {
  constexpr int64_t kScale = 3, kGap = 2;
  constexpr uint8_t kGapShade = 255;
  TORCH_CHECK_VALUE(!indices.empty(),
                    "contact_sheet: expected pictures, got none");
  const TaskInfo& info = data.info();
  const auto columns =
      static_cast<int64_t>(std::ceil(std::sqrt(indices.size())));
  const int64_t rows = (std::ssize(indices) + columns - 1) / columns;
  const int64_t step_y = info.height * kScale + kGap;
  const int64_t step_x = info.width * kScale + kGap;
  Pixels sheet{.height = rows * step_y + kGap,
               .width = columns * step_x + kGap,
               .channels = info.channels};
  sheet.bytes.assign(sheet.height * sheet.width * sheet.channels, kGapShade);
  for (int64_t i = 0; i < std::ssize(indices); ++i) {
    const Pixels picture = picture_of(info, data[indices[i]].ids);
    const int64_t top = i / columns * step_y + kGap;
    const int64_t left = i % columns * step_x + kGap;
    for (int64_t y = 0; y < info.height * kScale; ++y) {
      for (int64_t x = 0; x < info.width * kScale; ++x) {
        const int64_t from = y / kScale * info.width + x / kScale;
        const int64_t to = (top + y) * sheet.width + left + x;
        std::copy_n(picture.bytes.begin() + from * info.channels, info.channels,
                    sheet.bytes.begin() + to * info.channels);
      }
    }
  }
  return encode_png(sheet);
}

}  // namespace luna::data
