#include <c10/util/Exception.h>
#include <luna/data/pixels.h>

#include <algorithm>
#include <cmath>
#include <numbers>

// Pillow's resampling: each result pixel is a weighted mean of source pixels
// under a filter as wide as the scale, along rows and along columns, rounded to
// bytes after each, with weights of 22 bits behind the point.

namespace luna::data {
namespace {

constexpr int kBits = 22;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double weight(Filter filter, double x) {
  x = std::abs(x);
  switch (filter) {
    case Filter::kBilinear:
      return x < 1 ? 1 - x : 0;
    case Filter::kBicubic: {
      constexpr double a = -0.5;
      if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
      if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
      return 0;
    }
    case Filter::kLanczos:
      return x < 3 ? sinc(x) * sinc(x / 3) : 0;
  }
  return 0;
}

double support(Filter filter) {
  switch (filter) {
    case Filter::kBilinear:
      return 1;
    case Filter::kBicubic:
      return 2;
    case Filter::kLanczos:
      return 3;
  }
  return 0;
}

/// Weights of the source pixels first, first + 1, ... of one result pixel.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights{};
};

std::vector<Taps> make_taps(int64_t from, int64_t to, Filter filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double filter_scale = std::max(scale, 1.0);
  const double reach = support(filter) * filter_scale;
  std::vector<Taps> all(to);
  std::vector<double> weights;
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first =
        std::max<int64_t>(static_cast<int64_t>(centre - reach + 0.5), 0);
    const auto last =
        std::min<int64_t>(static_cast<int64_t>(centre + reach + 0.5), from);
    weights.clear();
    double sum = 0;
    for (int64_t x = first; x < last; ++x) {
      weights.push_back(weight(filter, (static_cast<double>(x) - centre + 0.5) *
                                           (1 / filter_scale)));
      sum += weights.back();
    }
    all[i].first = first;
    for (double w : weights) {
      if (sum != 0) w /= sum;
      all[i].weights.push_back(
          static_cast<int32_t>(std::copysign(0.5, w) + w * (1 << kBits)));
    }
  }
  return all;
}

uint8_t to_byte(int64_t sum) {
  return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kBits, 0, 255));
}

Pixels resize_rows(const Pixels& picture, int64_t width, Filter filter) {
  const auto taps = make_taps(picture.width, width, filter);
  const int64_t channels = picture.channels;
  Pixels result{picture.height, width, channels, {}};
  result.bytes.resize(picture.height * width * channels);
  for (int64_t y = 0; y < picture.height; ++y) {
    const uint8_t* row = picture.bytes.data() + y * picture.width * channels;
    uint8_t* out = result.bytes.data() + y * width * channels;
    for (const auto& [first, weights] : taps) {
      for (int64_t c = 0; c < channels; ++c) {
        int64_t sum = int64_t{1} << (kBits - 1);
        const uint8_t* from = row + first * channels + c;
        for (const int32_t w : weights) {
          sum += int64_t{w} * *from;
          from += channels;
        }
        *out++ = to_byte(sum);
      }
    }
  }
  return result;
}

Pixels resize_columns(const Pixels& picture, int64_t height, Filter filter) {
  const auto taps = make_taps(picture.height, height, filter);
  const int64_t row = picture.width * picture.channels;
  Pixels result{height, picture.width, picture.channels, {}};
  result.bytes.resize(height * row);
  std::vector<int64_t> sums(row);
  for (int64_t y = 0; y < height; ++y) {
    std::ranges::fill(sums, int64_t{1} << (kBits - 1));
    const uint8_t* from = picture.bytes.data() + taps[y].first * row;
    for (const int32_t w : taps[y].weights) {
      for (int64_t x = 0; x < row; ++x) {
        sums[x] += from[x] * static_cast<int64_t>(w);
      }
      from += row;
    }
    std::ranges::transform(sums, result.bytes.begin() + y * row, to_byte);
  }
  return result;
}

}  // namespace

Pixels resize(const Pixels& picture, int64_t height, int64_t width,
              Filter filter) {
  TORCH_CHECK_VALUE(
      picture.height > 0 && picture.width > 0 && height > 0 && width > 0,
      "resize: expected pixels to make pixels of, got ", picture.height, " x ",
      picture.width, " to ", height, " x ", width);
  // Since release 13 Pillow starts with the columns where they shrink by much
  // more than the rows.
  const bool columns_first =
      height < picture.height &&
      picture.height - height > 2 * (picture.width - width);
  Pixels result = picture;
  const auto resize_height = [&] {
    if (height == result.height) return;
    result = resize_columns(result, height, filter);
  };
  if (columns_first) resize_height();
  if (width != result.width) result = resize_rows(result, width, filter);
  resize_height();
  return result;
}

}  // namespace luna::data
