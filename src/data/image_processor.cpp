#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <luna/data/image_processor.h>
#include <luna/io/text_file.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/bounded_json.h"
#include "io/json_fields.h"

namespace luna::data {
namespace {

using Json = nlohmann::json;
using Fields = io::JsonFields<Json>;
using Size = ImageProcessorOptions::Size;

constexpr int64_t kMostSide = 8192;

/// 224, {"height": 224, "width": 224} or {"shortest_edge": 224}.
Size read_size(const Fields& config, const std::string& name) {
  const Json& json = config.get(name, "a size");
  if (!json.is_object()) {
    const int64_t side =
        Fields::integer_of(json, config.place(name), 1, kMostSide);
    return {side, side, 0};
  }
  const Fields fields = config.object(name);
  if (const auto edge = fields.integer("shortest_edge", 1, kMostSide)) {
    TORCH_CHECK_VALUE(!fields.has("longest_edge"), fields.place("longest_edge"),
                      ": expected none (it is not supported), got one");
    return {0, 0, *edge};
  }
  const auto side = [&](const char* which) {
    fields.get(which, "a whole number (or shortest_edge)");
    return *fields.integer(which, 1, kMostSide);
  };
  return {side("height"), side("width"), 0};
}

std::array<double, 3> read_colours(const Fields& config,
                                   const std::string& name, double least) {
  const Json& json = config.get(name, "three numbers");
  TORCH_CHECK_VALUE(json.is_array() && json.size() == 3, config.place(name),
                    ": expected three numbers, got ", Fields::shown(json));
  std::array<double, 3> colours{};
  for (size_t i = 0; i < 3; ++i) {
    TORCH_CHECK_VALUE(json[i].is_number() && json[i].get<double>() >= least &&
                          json[i].get<double>() < 1e6,
                      config.place(name), ": expected numbers from ", least,
                      " to 1e6, got ", Fields::shown(json[i]));
    colours[i] = json[i].get<double>();
  }
  return colours;
}

Filter read_filter(const Fields& config) {
  const int64_t number = config.integer("resample", 0, 5).value_or(2);
  TORCH_CHECK_VALUE(number >= 1 && number <= 3, config.place("resample"),
                    ": expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic), "
                    "got ",
                    number);
  return static_cast<Filter>(number);
}

/// Height and width of the result.
std::pair<int64_t, int64_t> target(const Pixels& picture, const Size& size) {
  if (size.shortest_edge == 0) return {size.height, size.width};
  const auto longer = [&](int64_t long_side, int64_t short_side) {
    // As Python divides: to the nearest double, then the fraction is cut off.
    return static_cast<int64_t>(
        static_cast<double>(size.shortest_edge * long_side) /
        static_cast<double>(short_side));
  };
  const auto [height, width] = std::pair(picture.height, picture.width);
  const auto result =
      width <= height ? std::pair(longer(height, width), size.shortest_edge)
                      : std::pair(size.shortest_edge, longer(width, height));
  TORCH_CHECK_VALUE(result.first * result.second <= kMostSide * kMostSide,
                    "ImageProcessor: expected a picture that is less narrow, "
                    "got ",
                    height, " x ", width);
  return result;
}

}  // namespace

ImageProcessor ImageProcessor::open(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string file =
      fs::is_directory(path)
          ? (fs::path(path) / "preprocessor_config.json").string()
          : path;
  const Json json = io::parse_bounded_json<Json>(file, io::read_text(file));
  const Fields config(json, file);
  const auto wants = [&](const char* step, bool otherwise) {
    return config.boolean(step).value_or(otherwise);
  };
  ImageProcessorOptions options;
  if (!wants("do_resize", true)) {
    options.size = std::nullopt;
  } else if (config.has("size")) {
    options.size = read_size(config, "size");
  }
  options.resample = read_filter(config);
  if (wants("do_center_crop", false)) {
    options.crop_size = read_size(config, "crop_size");
    TORCH_CHECK_VALUE(options.crop_size->shortest_edge == 0,
                      config.place("crop_size"),
                      ": expected height and width, got shortest_edge");
  }
  if (!wants("do_rescale", true)) {
    options.rescale_factor = std::nullopt;
  } else {
    options.rescale_factor =
        config.number("rescale_factor", 0, 1e6).value_or(1.0 / 255);
  }
  options.normalize = wants("do_normalize", true);
  if (options.normalize && config.has("image_mean")) {
    options.mean = read_colours(config, "image_mean", -1e6);
  }
  if (options.normalize && config.has("image_std")) {
    options.std = read_colours(config, "image_std", 1e-6);
  }
  return ImageProcessor(options);
}

at::Tensor ImageProcessor::process(const Pixels& picture) const {
  TORCH_CHECK_VALUE(picture.channels == 3 &&
                        std::cmp_equal(picture.bytes.size(),
                                       picture.height * picture.width * 3),
                    "ImageProcessor: expected RGB pixels, got ",
                    picture.channels, " channels and ", picture.bytes.size(),
                    " bytes for ", picture.height, " x ", picture.width);
  Pixels pixels = picture;
  if (options_.size) {
    const auto [height, width] = target(pixels, *options_.size);
    pixels = resize(pixels, height, width, options_.resample);
  }
  if (options_.crop_size) {
    pixels = center_crop(pixels, options_.crop_size->height,
                         options_.crop_size->width);
  }
  auto x = at::from_blob(pixels.bytes.data(), {pixels.height, pixels.width, 3},
                         at::kByte)
               .permute({2, 0, 1});
  // In float64 up to here, then in float32: as transformers does.
  auto result =
      options_.rescale_factor
          ? (x.to(at::kDouble) * *options_.rescale_factor).to(at::kFloat)
          : x.to(at::kFloat);
  if (options_.normalize) {
    const auto by_channel = [](const std::array<double, 3>& values) {
      return at::tensor(at::ArrayRef<double>(values.data(), 3), at::kFloat)
          .view({3, 1, 1});
    };
    result = (result - by_channel(options_.mean)) / by_channel(options_.std);
  }
  return result.contiguous();
}

at::Tensor ImageProcessor::process_file(const std::string& path) const {
  return process(read_picture(path));
}

}  // namespace luna::data
