#include <c10/util/Exception.h>
#include <luna/data/listops.h>

#include <array>
#include <string>

namespace luna::data {

namespace {

constexpr std::array<std::string_view, kListOpsSymbols> kNames = {
    "0", "1", "2",    "3",    "4",    "5",   "6", "7",
    "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};

}  // namespace

std::string listops_text(std::span<const uint8_t> ids) {
  std::string text;
  for (const uint8_t id : ids) {
    TORCH_CHECK_VALUE(id < kListOpsSymbols, "listops_text: expected ids below ",
                      kListOpsSymbols + 0, ", got ", id + 0);
    if (!text.empty()) text += ' ';
    text += kNames[id];
  }
  return text;
}

std::vector<uint8_t> listops_ids(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  std::vector<uint8_t> ids;
  size_t end = 0;
  for (size_t begin = 0; (begin = text.find_first_not_of(kBlank, end)) !=
                         std::string_view::npos;) {
    end = std::min(text.find_first_of(kBlank, begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    if (name == "(" || name == ")") continue;
    const auto* found = std::find(kNames.begin(), kNames.end(), name);
    TORCH_CHECK_VALUE(found != kNames.end(),
                      "listops_ids: expected a digit, [MIN, [MAX, [MED, [SM "
                      "or ] at character ",
                      begin, ", got ", name);
    ids.push_back(static_cast<uint8_t>(found - kNames.begin()));
  }
  return ids;
}

}  // namespace luna::data
