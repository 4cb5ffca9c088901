#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <luna/data/memory_dataset.h>
#include <luna/io/text_file.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/loaders.h"
#include "data/png_file.h"
#include "data/source_files.h"
#include "data/subsets.h"

// CIFAR-10, in colour or in grey: from its binary batches (a record is a label,
// then the red, green and blue planes) or from PNG files, one picture a row,
// with the labels in JSON arrays beside them.

namespace luna::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPixels = 32 * 32;
constexpr int64_t kRecord = 1 + 3 * kPixels;

/// .2989 R + .587 G + .114 B, rounded to the nearest, halves up; in whole
/// numbers, so that every machine gets the same.
uint8_t grey(int red, int green, int blue) {
  return static_cast<uint8_t>((2989 * red + 5870 * green + 1140 * blue + 5000) /
                              10000);
}

/// Planes of red, green and blue -> the ids of a sample.
void put_picture(const uint8_t* colours, std::vector<uint8_t>& picture) {
  if (std::ssize(picture) == 3 * kPixels) {
    std::copy_n(colours, 3 * kPixels, picture.begin());
    return;
  }
  for (int64_t i = 0; i < kPixels; ++i) {
    picture[i] =
        grey(colours[i], colours[kPixels + i], colours[2 * kPixels + i]);
  }
}

void read_binary(const std::string& path, MemoryDataset& data) {
  const std::string bytes = read_source(path);
  TORCH_CHECK_VALUE(
      bytes.size() % kRecord == 0, path, ": expected a multiple of ", kRecord,
      " bytes (label and 3 x 1024 colours a picture), got ", bytes.size());
  std::vector<uint8_t> picture(picture_size(data.info()));
  for (size_t at = 0; at < bytes.size(); at += kRecord) {
    const auto* record = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
    TORCH_CHECK_VALUE(*record < data.info().classes, path, ": picture ",
                      at / kRecord, ": label: expected 0 to ",
                      data.info().classes - 1, ", got ", int{*record});
    put_picture(record + 1, picture);
    data.add({.ids = picture, .label = *record});
  }
}

std::vector<int64_t> read_labels(const std::string& path, int64_t classes) {
  std::vector<int64_t> labels;
  try {
    labels =
        nlohmann::json::parse(read_source(path)).get<std::vector<int64_t>>();
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, path,
                      ": expected a JSON array of labels, got: ", error.what());
  }
  for (size_t i = 0; i < labels.size(); ++i) {
    TORCH_CHECK_VALUE(labels[i] >= 0 && labels[i] < classes, path, ": label ",
                      i, ": expected 0 to ", classes - 1, ", got ", labels[i]);
  }
  return labels;
}

void read_png_pictures(const std::string& path, const std::string& labels_path,
                       std::span<const int64_t> labels, MemoryDataset& data) {
  const Pixels pixels = read_png(path);
  TORCH_CHECK_VALUE(pixels.width == kPixels && pixels.channels == 3, path,
                    ": expected rows of 1024 RGB pixels, got ", pixels.width,
                    " pixels of ", pixels.channels, " channels");
  TORCH_CHECK_VALUE(pixels.height + data.size() <= std::ssize(labels),
                    labels_path, ": expected at least ",
                    pixels.height + data.size(),
                    " labels (as many pictures "
                    "there are up to ",
                    path, "), got ", labels.size());
  std::vector<uint8_t> picture(picture_size(data.info())), planes(3 * kPixels);
  for (int64_t y = 0; y < pixels.height; ++y) {
    const uint8_t* pixel = pixels.bytes.data() + y * kPixels * 3;
    for (int64_t i = 0; i < kPixels; ++i) {
      for (int64_t c = 0; c < 3; ++c) planes[c * kPixels + i] = *pixel++;
    }
    put_picture(planes.data(), picture);
    data.add({.ids = picture, .label = labels[data.size()]});
  }
}

/// The files' own misspelling, or the right spelling.
std::string labels_file(const fs::path& folder, const std::string& split) {
  const fs::path right = folder / (split + "_labels.json");
  return fs::exists(right) ? right.string()
                           : (folder / (split + "_lables.json")).string();
}

std::shared_ptr<MemoryDataset> read_split(const Task& task,
                                          const fs::path& folder, bool png,
                                          const std::string& split,
                                          const LoadProgress& progress) {
  auto data = std::make_shared<MemoryDataset>(task.info);
  std::vector<std::string> batches = {"test_batch"};
  if (split == "train") {
    batches.clear();
    for (int i = 1; i <= 5; ++i) {
      batches.push_back(fmt::format("data_batch_{}", i));
    }
  }
  const std::string labels_path = labels_file(folder, split);
  std::vector<int64_t> labels;
  if (png) labels = read_labels(labels_path, task.info.classes);
  double done = split == "train" ? 0 : 5;
  for (const std::string& batch : batches) {
    if (progress) progress(done++ / 6, "reading " + batch);
    if (png) {
      const std::string path = (folder / (batch + ".png")).string();
      read_png_pictures(path, labels_path, labels, *data);
    } else {
      read_binary((folder / (batch + ".bin")).string(), *data);
    }
  }
  TORCH_CHECK_VALUE(!png || data->size() == std::ssize(labels), labels_path,
                    ": expected ", data->size(),
                    " labels, one for each picture, got ", labels.size());
  return data;
}

}  // namespace

Splits load_cifar10(const Task& task, const LoadOptions& options) {
  const std::vector<std::string> places = {
      "", "cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"};
  const FoundSource found =
      find_source(task.name, options.folder,
                  {{"CIFAR-10's binary version", "data_batch_1.bin", places},
                   {"PNG, one picture a row", "data_batch_1.png", places}},
                  task.how);
  const bool png = found.form == 1;
  const auto whole =
      read_split(task, found.folder, png, "train", options.progress);
  // The same pictures for all tasks of them.
  const auto [kept, held] = hold_out("image", whole->size(), 5000.0 / 50000);
  const char* const form = png ? "PNG" : "binary";
  const char* const kind = task.info.channels == 3 ? "" : ", grey";
  return {.train = subset(*whole, kept),
          .validation = subset(*whole, held),
          .test = read_split(task, found.folder, png, "test", options.progress),
          .source = fmt::format("CIFAR-10 ({}){}", form, kind)};
}

}  // namespace luna::data
