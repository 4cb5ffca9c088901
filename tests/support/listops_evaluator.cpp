#include "support/listops_evaluator.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace luna::testing {

namespace {

struct OpenList {
  std::string operation{};
  std::vector<int64_t> values{};
};

int64_t evaluate(OpenList list) {
  std::vector<int64_t>& values = list.values;
  if (values.empty()) throw std::runtime_error("a list without arguments");
  std::sort(values.begin(), values.end());
  const size_t count = values.size();
  if (list.operation == "[MIN") return values.front();
  if (list.operation == "[MAX") return values.back();
  if (list.operation == "[SM") {
    return std::accumulate(values.begin(), values.end(), int64_t{0}) % 10;
  }
  if (list.operation == "[MED") {
    if (count % 2 == 1) return values[count / 2];
    const double median = (static_cast<double>(values[count / 2 - 1]) +
                           static_cast<double>(values[count / 2])) /
                          2.0;
    return static_cast<int64_t>(median);
  }
  throw std::runtime_error("unknown operation " + list.operation);
}

}  // namespace

ListOpsReading read_listops(const std::string& text) {
  ListOpsReading reading;
  std::vector<OpenList> open;
  std::vector<int64_t> finished;
  const auto hand_up = [&](int64_t value) {
    (open.empty() ? finished : open.back().values).push_back(value);
  };
  std::istringstream symbols(text);
  for (std::string symbol; symbols >> symbol; ++reading.symbols) {
    if (symbol == "]") {
      if (open.empty()) throw std::runtime_error("] without a list");
      const OpenList list = open.back();
      open.pop_back();
      const auto args = static_cast<int64_t>(list.values.size());
      reading.least_args =
          reading.least_args == 0 ? args : std::min(reading.least_args, args);
      reading.most_args = std::max(reading.most_args, args);
      hand_up(evaluate(list));
      continue;
    }
    reading.depth =
        std::max(reading.depth, static_cast<int64_t>(open.size()) + 1);
    if (symbol.front() == '[') {
      open.push_back({.operation = symbol});
    } else if (symbol.size() == 1 && symbol >= "0" && symbol <= "9") {
      hand_up(symbol.front() - '0');
    } else {
      throw std::runtime_error("unknown symbol " + symbol);
    }
  }
  if (!open.empty()) throw std::runtime_error("a list without ]");
  if (finished.size() != 1) throw std::runtime_error("not one expression");
  reading.value = finished.front();
  return reading;
}

}  // namespace luna::testing
