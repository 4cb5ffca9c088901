#include "luna/report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace luna::report {

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double rounded = std::stod(fmt::format("{:.2e}", value));
  if (rounded == 0) return "0";
  const int exponent =
      static_cast<int>(std::floor(std::log10(std::abs(rounded)) + 1e-9));
  if (exponent >= 2) return grouped(std::llround(rounded));
  return fmt::format("{:.{}f}", rounded, std::min(2 - exponent, 9));
}

std::string short_length(double value) {
  constexpr double kKilo = 1024;
  if (value >= kKilo * kKilo && std::fmod(value, kKilo * kKilo) == 0) {
    return fmt::format("{:.0f}M", value / (kKilo * kKilo));
  }
  if (value >= kKilo && std::fmod(value, kKilo) == 0) {
    return fmt::format("{:.0f}K", value / kKilo);
  }
  return short_number(value);
}

std::string times(double ratio) {
  // Below 1 two digits tell enough: 0.95×, 0.013×.
  return (ratio < 0.995 ? fmt::format("{:#.2g}", ratio) : short_number(ratio)) +
         "×";
}

std::string signed_number(double value, int decimals) {
  const std::string digits = fmt::format("{:.{}f}", std::abs(value), decimals);
  const bool zero = digits.find_first_not_of("0.") == std::string::npos;
  return (zero ? "" : value < 0 ? "−" : "+") + digits;
}

std::string duration(double seconds) {
  const std::int64_t s = std::llround(seconds);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

std::string memory_size(double bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  return bytes < kGiB ? short_number(bytes / kMiB) + " MiB"
                      : short_number(bytes / kGiB) + " GiB";
}

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string escape_markdown(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (std::string_view("\\`*_[]<>|#").find(c) != std::string_view::npos) {
      out += '\\';
    }
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(),
      [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace luna::report
