#include "text/bleu_tokens.h"

#include "text/unicode.h"

namespace luna::text {
namespace {

void replace_all(std::string& text, std::string_view from,
                 std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
       at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_stop(char32_t c) { return c == '.' || c == ','; }

/// All ASCII punctuation but ' , - .
bool stands_alone(char32_t c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') ||
         (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
         (c >= ':' && c <= '@') || c == '/';
}

/// Where `first` and `second` hold for two neighbours, puts a space where the
/// flags say so, and goes on behind both: what a regular expression of two
/// groups replaces.
template <class First, class Second>
std::u32string space_pairs(const std::u32string& text, First first,
                           Second second, bool before, bool behind) {
  std::u32string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !first(text[i]) || !second(text[i + 1])) {
      result += text[i];
      continue;
    }
    if (before) result += U' ';
    result += text[i];
    result += U' ';
    result += text[++i];
    if (behind) result += U' ';
  }
  return result;
}

template <class Alone>
std::u32string space_out(const std::u32string& text, Alone alone) {
  std::u32string result;
  for (const char32_t c : text) {
    if (alone(c)) {
      result += {U' ', c, U' '};
    } else {
      result += c;
    }
  }
  return result;
}

std::u32string characters_of(std::string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) result += next_character(text, i);
  return result;
}

std::u32string tokenize_13a(std::string line) {
  replace_all(line, "<skipped>", "");
  replace_all(line, "&quot;", "\"");
  replace_all(line, "&amp;", "&");
  replace_all(line, "&lt;", "<");
  replace_all(line, "&gt;", ">");
  const auto other = [](char32_t c) { return !is_digit(c); };
  std::u32string text = characters_of(" " + line + " ");
  text = space_out(text, stands_alone);
  text = space_pairs(text, other, is_stop, false, true);
  text = space_pairs(text, is_stop, other, true, false);
  return space_pairs(
      text, is_digit, [](char32_t c) { return c == '-'; }, false, true);
}

std::u32string tokenize_international(std::string_view line) {
  const auto is = [](BleuClass kind) {
    return [kind](char32_t c) { return bleu_class_of(c) == kind; };
  };
  const auto other = [](char32_t c) {
    return bleu_class_of(c) != BleuClass::kNumber;
  };
  std::u32string text = characters_of(line);
  text = space_pairs(text, other, is(BleuClass::kPunctuation), false, true);
  text = space_pairs(text, is(BleuClass::kPunctuation), other, true, false);
  return space_out(text, is(BleuClass::kSymbol));
}

}  // namespace

std::string bleu_tokenize(std::string_view line, BleuTokens tokens) {
  if (tokens == BleuTokens::kNone) return std::string(line);
  std::u32string text;
  if (tokens == BleuTokens::k13a) {
    text = tokenize_13a(std::string(line));
  } else if (tokens == BleuTokens::kInternational) {
    text = tokenize_international(line);
  } else {
    text = space_out(characters_of(line), [](char32_t) { return true; });
  }
  std::string result;
  for (const char32_t c : text) append_utf8(c, result);
  return result;
}

}  // namespace luna::text
