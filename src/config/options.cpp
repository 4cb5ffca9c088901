#include <c10/util/Exception.h>
#include <luna/config/options.h>

#include <algorithm>
#include <numeric>
#include <sstream>

namespace luna::config {
namespace {

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

/// Letters to add, drop, change, or swap with their neighbour.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      next[j] = std::min({changed, row[j] + 1, next[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        next[j] = std::min(next[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(row, next);
  }
  return row[b.size()];
}

std::string range_text(const OptionInfo& info) {
  std::ostringstream text;
  text << info.name;
  if (info.minimum) text << " >= " << *info.minimum;
  if (info.minimum && info.maximum) text << " and";
  if (info.maximum) text << " <= " << *info.maximum;
  return text.str();
}

}  // namespace

std::string to_string(const OptionValue& value) {
  std::ostringstream text;
  std::visit([&](const auto& held) { text << std::boolalpha << held; }, value);
  return text.str();
}

std::string type_name(const OptionValue& value) {
  static const char* const names[] = {"bool", "integer", "number", "string"};
  return names[value.index()];
}

std::string known_and_nearest(const std::string& name,
                              const std::vector<std::string>& known) {
  if (known.empty()) return "none";
  const auto nearest = std::min_element(
      known.begin(), known.end(), [&](const auto& a, const auto& b) {
        return edit_distance(name, a) < edit_distance(name, b);
      });
  // Farther than a slip or two it is another word.
  const size_t slips = std::max<size_t>(1, (name.size() + 1) / 3);
  if (edit_distance(name, *nearest) > slips) return join(known);
  return join(known) + " (nearest: " + *nearest + ")";
}

void check_option_names(const std::string& owner,
                        const std::vector<OptionInfo>& known,
                        const OptionMap& values) {
  std::vector<std::string> names;
  for (const auto& info : known) names.push_back(info.name);
  for (const auto& [name, value] : values) {
    TORCH_CHECK_VALUE(
        std::find(names.begin(), names.end(), name) != names.end(), owner,
        ": expected an option that it reads, got ", name, "; it reads ",
        known_and_nearest(name, names));
  }
}

void check_option_value(const std::string& owner, const OptionInfo& info,
                        const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    TORCH_CHECK_VALUE(info.choices.empty() ||
                          std::find(info.choices.begin(), info.choices.end(),
                                    *text) != info.choices.end(),
                      owner, ": expected ", info.name, " to be one of ",
                      known_and_nearest(*text, info.choices), ", got ", *text);
    return;
  }
  const double number = std::visit(
      [](const auto& held) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(held)>>) {
          return static_cast<double>(held);
        } else {
          return 0.0;
        }
      },
      value);
  // Written so that NaN is out of range too.
  const bool fits = (!info.minimum || number >= *info.minimum) &&
                    (!info.maximum || number <= *info.maximum);
  TORCH_CHECK_VALUE(fits, owner, ": expected ", range_text(info), ", got ",
                    to_string(value));
}

OptionValue convert_option(const std::string& owner, const std::string& name,
                           const OptionValue& value, const OptionValue& like) {
  if (value.index() == like.index()) return value;
  if (std::holds_alternative<double>(like) &&
      std::holds_alternative<int64_t>(value)) {
    return static_cast<double>(std::get<int64_t>(value));
  }
  const bool integer = std::holds_alternative<int64_t>(like);
  TORCH_CHECK_TYPE(false, owner, ": expected ", name, " to be ",
                   integer ? "an " : "a ", type_name(like), ", got the ",
                   type_name(value), " ", to_string(value));
}

}  // namespace luna::config
