#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace luna::report {

/// 8192 -> "8,192".
std::string grouped(std::int64_t value);

/// Three significant digits, no exponent: 0.0123, 1.23, 123, 12,300.
std::string short_number(double value);

/// As short_number, but powers of 1,024 read 1K, 64K, 1M.
std::string short_length(double value);

/// A ratio: "12.3×", "0.42×".
std::string times(double ratio);

/// A difference: "+1.20", "−0.35", "0.00".
std::string signed_number(double value, int decimals);

/// Seconds: "42 s", "3 min 20 s", "5 h 12 min".
std::string duration(double seconds);

/// Bytes: "512 MiB", "2.4 GiB".
std::string memory_size(double bytes);

/// Text for HTML and SVG: & < > and quotes escaped.
std::string escape(std::string_view text);

/// Text for Markdown, on one line: what would be markup is escaped.
std::string escape_markdown(std::string_view text);

/// Columns the text takes on a terminal (code points; no wide characters).
std::size_t display_width(std::string_view text);

}  // namespace luna::report
