#include "data_show.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "command.h"
#include "luna/data/packed.h"
#include "luna/data/show.h"
#include "luna/data/tasks.h"
#include "luna/io/text_file.h"
#include "luna/report/format.h"

namespace luna::cli {
namespace {

using Json = nlohmann::ordered_json;
using report::grouped;

constexpr int64_t kSheet = 64;      ///< pictures, if --count does not say
constexpr size_t kTextShown = 800;  ///< ids of a text without --full

std::string class_name(const data::TaskInfo& info, int64_t label) {
  for (const data::Task& task : data::tasks()) {
    if (task.name == info.task && label < std::ssize(task.classes)) {
      return task.classes[label];
    }
  }
  return std::to_string(label);
}

Json to_json(const data::Dataset& data, int64_t index) {
  const data::TaskInfo& info = data.info();
  const data::Sample sample = data[index];
  Json json = {{"index", index},
               {"label", sample.label},
               {"class", class_name(info, sample.label)}};
  if (info.height > 0) {
    const auto rows_from = [&](int64_t first) {
      Json rows = Json::array();
      for (int64_t y = 0; y < info.height; ++y) {
        const auto row = sample.ids.subspan(first + y * info.width, info.width);
        rows.push_back(std::vector<int>(row.begin(), row.end()));
      }
      return rows;
    };
    if (info.channels == 1) {
      json["pixels"] = rows_from(0);
    } else {
      for (const char* colour : {"red", "green", "blue"}) {
        const auto plane = static_cast<int64_t>(json["pixels"].size());
        json["pixels"][colour] = rows_from(plane * info.height * info.width);
      }
    }
    return json;
  }
  json["length"] = sample.ids.size();
  json["text"] = sequence_text(info, sample.ids);
  if (info.pairs) {
    json["second_length"] = sample.second.size();
    json["second_text"] = sequence_text(info, sample.second);
  }
  return json;
}

void print_sequence(const data::TaskInfo& info, std::span<const uint8_t> ids,
                    const std::string& title, bool full) {
  const bool cut = !full && ids.size() > kTextShown;
  fmt::print("{}{} ids\n{}\n", title, grouped(std::ssize(ids)),
             sequence_text(info, cut ? ids.first(kTextShown) : ids));
  if (cut) {
    fmt::print("... and {} more; --full shows them\n",
               grouped(std::ssize(ids) - static_cast<int64_t>(kTextShown)));
  }
}

void print_sample(const data::Dataset& data, int64_t index, bool full) {
  const data::TaskInfo& info = data.info();
  const data::Sample sample = data[index];
  const std::string label = std::to_string(sample.label);
  const std::string name = class_name(info, sample.label);
  fmt::print("sample {} of {}: label {}{}\n", grouped(index),
             grouped(data.size()), label, name == label ? "" : ", " + name);
  if (info.height > 0) {
    const bool colours =
        isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
    fmt::print("{}", colours ? picture_blocks(info, sample.ids)
                             : picture_letters(info, sample.ids));
  } else {
    print_sequence(info, sample.ids, info.pairs ? "first: " : "", full);
    if (info.pairs) print_sequence(info, sample.second, "second: ", full);
  }
}

}  // namespace

void show_samples(const std::string& path, const ShowOptions& options) {
  const auto data = data::open_packed(path);
  if (options.index < 0 || options.index >= data->size()) {
    throw UsageError(fmt::format("--index: expected 0 to {}, got {}",
                                 data->size() - 1, options.index));
  }
  if (!options.png.empty() && data->info().height == 0) {
    throw UsageError(fmt::format("--png: expected a task of pictures, got {}",
                                 data->info().task));
  }
  const int64_t left = data->size() - options.index;
  const int64_t usual = options.png.empty() ? 1 : kSheet;
  int64_t count = options.count < 0 ? usual : options.count;
  if (count == 0 || count > left) count = left;
  std::vector<int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), options.index);

  if (!options.png.empty()) {
    io::write_text(options.png, contact_sheet(*data, indices));
    fmt::print(stderr, "wrote {}\n", options.png);
    return;
  }
  Json all = Json::array();
  for (const int64_t index : indices) {
    if (options.json) {
      all.push_back(to_json(*data, index));
    } else {
      if (index != indices.front()) fmt::print("\n");
      print_sample(*data, index, options.full);
    }
  }
  if (options.json) fmt::print("{}\n", all.dump());
}

}  // namespace luna::cli
