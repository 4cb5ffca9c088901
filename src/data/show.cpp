#include "luna/data/show.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/data/listops.h>
#include <luna/data/needles.h>

#include <algorithm>
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

void check_picture(const TaskInfo& info, std::span<const uint8_t> ids) {
  TORCH_CHECK_VALUE(
      info.height > 0 && std::ssize(ids) == info.height * info.width,
      "show: expected a picture, got ", ids.size(), " ids of ", info.task);
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
  check_picture(info, ids);
  std::string text;
  for (int64_t y = 0; y < info.height; y += 2) {
    for (int64_t x = 0; x < info.width; ++x) {
      const int upper = ids[y * info.width + x];
      const int lower = y + 1 < info.height ? ids[(y + 1) * info.width + x] : 0;
      text += fmt::format("\033[38;2;{0};{0};{0}m\033[48;2;{1};{1};{1}m▀",
                          upper, lower);
    }
    text += "\033[0m\n";
  }
  return text;
}

std::string picture_letters(const TaskInfo& info,
                            std::span<const uint8_t> ids) {
  check_picture(info, ids);
  constexpr std::string_view kLetters = " .:-=+*#%@";
  std::string text;
  for (int64_t y = 0; y < info.height; ++y) {
    std::string line;
    for (int64_t x = 0; x < info.width; ++x) {
      line.append(2, kLetters[ids[y * info.width + x] * kLetters.size() / 256]);
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
               .channels = 1};
  sheet.bytes.assign(sheet.height * sheet.width, kGapShade);
  for (int64_t i = 0; i < std::ssize(indices); ++i) {
    const std::span<const uint8_t> picture = data[indices[i]].ids;
    check_picture(info, picture);
    const int64_t top = i / columns * step_y + kGap;
    const int64_t left = i % columns * step_x + kGap;
    for (int64_t y = 0; y < info.height * kScale; ++y) {
      for (int64_t x = 0; x < info.width * kScale; ++x) {
        sheet.bytes[(top + y) * sheet.width + left + x] =
            picture[y / kScale * info.width + x / kScale];
      }
    }
  }
  return encode_png(sheet);
}

}  // namespace luna::data
