#include "data/pathfinder_paddles.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace luna::data {

namespace {

using std::numbers::pi;

/// Rounding noise of sines and cosines, which no pixel may depend on.
constexpr double kNoise = 1e-9;

Step step(double angle, int64_t length) {
  const auto length_ = static_cast<double>(length);
  return {length_ * std::sin(angle), length_ * std::cos(angle)};
}

std::vector<Point> disk_of(int64_t radius) {
  std::vector<Point> points;
  for (int64_t y = -radius; y <= radius; ++y) {
    for (int64_t x = -radius; x <= radius; ++x) {
      if (y * y + x * x <= radius * radius) points.push_back({y, x});
    }
  }
  return points;
}

/// A line of one pixel, by Bresenham's method; of two ways equally near it
/// takes the one that leaves the axis earlier.
void draw_thin_line(SquareImage& image, Point from, Point to) {
  const int64_t dy = std::abs(to.y - from.y), dx = std::abs(to.x - from.x);
  const int64_t sy = to.y < from.y ? -1 : 1, sx = to.x < from.x ? -1 : 1;
  const int64_t along = std::max(dy, dx), across = std::min(dy, dx);
  int64_t error = 2 * across - along;
  Point p = from;
  for (int64_t i = 0; i <= along; ++i) {
    image.at(p.y, p.x) = 255;
    const bool both = error >= 0;
    if (both) error -= 2 * along;
    error += 2 * across;
    if (dx > dy || both) p.x += sx;
    if (dy >= dx || both) p.y += sy;
  }
}

/// The pixels within thickness / 2 of the line; ends are cut straight.
void draw_thick_line(SquareImage& image, Point from, Point to,
                     int64_t thickness) {
  const auto dy = static_cast<double>(to.y - from.y);
  const auto dx = static_cast<double>(to.x - from.x);
  const double length = std::hypot(dy, dx);
  const double half = static_cast<double>(thickness) / 2;
  for (int64_t y = 0; y < image.size; ++y) {
    for (int64_t x = 0; x < image.size; ++x) {
      const auto py = static_cast<double>(y - from.y);
      const auto px = static_cast<double>(x - from.x);
      const double along = (py * dy + px * dx) / length;
      const double across = (py * dx - px * dy) / length;
      if (along > -0.5 && along < length + 0.5 && across > -half + kNoise &&
          across < half + kNoise) {
        image.at(y, x) = 255;
      }
    }
  }
}

SquareImage dilate(const SquareImage& image, const std::vector<Point>& disk) {
  SquareImage wide(image.size);
  for (int64_t y = 0; y < image.size; ++y) {
    for (int64_t x = 0; x < image.size; ++x) {
      if (image.at(y, x) == 0) continue;
      for (const Point d : disk) {
        const Point p = Point{y, x} + d;
        if (p.y < 0 || p.x < 0 || p.y >= image.size || p.x >= image.size) {
          continue;
        }
        wide.at(p.y, p.x) = 255;
      }
    }
  }
  return wide;
}

Paddle draw_paddle(const PathfinderOptions& options, int64_t margin,
                   double angle) {
  const int64_t reach = options.paddle_length + margin +
                        std::llround(std::ceil(options.paddle_thickness));
  const int64_t large = reach * options.antialias;
  SquareImage line(2 * large + 1);
  const Point centre{large, large};
  const Point end =
      centre + step(angle, options.paddle_length * options.antialias);
  const int64_t thickness = std::llround(
      options.paddle_thickness * static_cast<double>(options.antialias));
  if (thickness == 1) {
    draw_thin_line(line, centre, end);
  } else {
    draw_thick_line(line, centre, end, thickness);
  }
  const SquareImage mask = dilate(line, disk_of(margin * options.antialias));
  const int64_t size = 2 * reach + 1;
  return {shrink_lanczos(line, size), shrink_lanczos(mask, size)};
}

/// The pixels that a first paddle wants free, from its tail: where its mask is
/// full. The original takes them out of a window that is a little too small
/// and sets them off by one pixel; so do we, for the same distribution.
std::vector<Point> room_of(const Paddle& paddle, int64_t half_window) {
  std::vector<Point> room;
  const int64_t reach = paddle.mask.size / 2;
  for (int64_t y = -half_window; y <= half_window; ++y) {
    for (int64_t x = -half_window; x <= half_window; ++x) {
      const Point p{y - 1 + reach, x - 1 + reach};
      if (p.y >= 0 && p.x >= 0 && paddle.mask.at(p.y, p.x) == 255) {
        room.push_back({y, x});
      }
    }
  }
  return room;
}

/// Whether all of `room` lies outside the window for a tail at some corner of
/// it. The original takes that for a window without a free pixel, and so
/// begins contours upwards and to the left only.
bool overhangs(const std::vector<Point>& room) {
  const auto outside_for_corner = [&](int64_t sy, int64_t sx) {
    return std::all_of(room.begin(), room.end(),
                       [&](Point d) { return d.y * sy > 0 || d.x * sx > 0; });
  };
  return outside_for_corner(1, 1) || outside_for_corner(1, -1) ||
         outside_for_corner(-1, 1) || outside_for_corner(-1, -1);
}

/// The pixels of a circle, sampled at arcs of one pixel.
std::vector<Point> circle(int64_t radius) {
  std::vector<Point> points;
  const auto radius_ = static_cast<double>(radius);
  for (int64_t i = 0; static_cast<double>(i) < 2 * pi * radius_; ++i) {
    const double angle = static_cast<double>(i) / radius_;
    const Point p{std::llround(std::floor(radius_ * std::sin(angle) + kNoise)),
                  std::llround(std::floor(radius_ * std::cos(angle) + kNoise))};
    if (std::find(points.begin(), points.end(), p) == points.end()) {
      points.push_back(p);
    }
  }
  return points;
}

double angle_of(Point p) {
  return std::atan2(static_cast<double>(p.y), static_cast<double>(p.x));
}

double reversed(double angle) { return angle < 0 ? angle + pi : angle - pi; }

double turn_weight(double from, double to, double continuity) {
  const double difference = std::abs(from - to);
  const double turn = std::min(difference, 2 * pi - difference);
  const double cosine = std::cos(std::min(continuity * turn, pi / 2));
  return cosine * cosine;
}

}  // namespace

Point operator+(Point from, Step step) {
  return {std::llround(std::ceil(static_cast<double>(from.y) + step.y)),
          std::llround(std::ceil(static_cast<double>(from.x) + step.x))};
}

PaddleKit::PaddleKit(const PathfinderOptions& options, int64_t margin)
    : disk(disk_of(margin)) {
  const int64_t length = options.paddle_length;
  const std::vector<uint8_t> inner = framed(
      options.window, std::max(options.padding, 2 * options.seed_distance));
  std::vector<double> angles;
  for (int64_t degree = -kDegrees / 2; degree < kDegrees / 2; ++degree) {
    angles.push_back(static_cast<double>(degree) * pi / 180);
    paddles.push_back(draw_paddle(options, margin, angles.back()));
    room.push_back(room_of(paddles.back(), length + margin));
    find_free(options.window, inner, room.back(), first_tails.emplace_back());
  }
  TORCH_CHECK_VALUE(
      std::any_of(first_tails.begin(), first_tails.end(),
                  [](const auto& tails) { return !tails.empty(); }),
      "generate_pathfinder: expected a window with room for a paddle of "
      "margin ",
      margin, " at 2 * seed_distance = ", 2 * options.seed_distance,
      " pixels from its edges, got ", options.window);
  for (const Point p : circle(length + margin)) {
    const double angle = angle_of(p);
    angles.push_back(angle);
    targets.push_back(
        {.offset = p,
         .back = step(reversed(angle), length),
         .paddle = draw_paddle(options, margin, reversed(angle))});
  }
  for (const double angle : angles) {
    Direction direction{.length = step(angle, length),
                        .head_to_pivot = step(reversed(angle), length + margin),
                        .pivot_to_pivot = step(angle, length + 2 * margin)};
    for (const Target& target : targets) {
      direction.turn.push_back(
          turn_weight(angle, angle_of(target.offset), options.continuity));
    }
    directions.push_back(std::move(direction));
  }
}

std::vector<uint8_t> framed(int64_t window, int64_t frame) {
  std::vector<uint8_t> cells(window * window);
  for (int64_t y = 0; y < window; ++y) {
    for (int64_t x = 0; x < window; ++x) {
      if (std::min({y, x, window - 1 - y, window - 1 - x}) < frame) {
        cells[y * window + x] = 255;
      }
    }
  }
  return cells;
}

void find_free(int64_t window, const std::vector<uint8_t>& occupied,
               const std::vector<Point>& room, std::vector<Point>& free) {
  // The outermost pixels never are free.
  std::vector<uint8_t> taken = framed(window, 1);
  for (size_t i = 0; i < taken.size(); ++i) {
    taken[i] = taken[i] | (occupied[i] > kFreeCell);
  }
  free.clear();
  if (overhangs(room)) return;
  std::vector<uint8_t> blocked(window * window);
  for (const Point d : room) {
    const int64_t left = std::max<int64_t>(-d.x, 0);
    const int64_t right = std::min(window - d.x, window);
    for (int64_t y = std::max<int64_t>(-d.y, 0);
         y < std::min(window - d.y, window); ++y) {
      uint8_t* row = &blocked[y * window];
      const uint8_t* source = &taken[(y + d.y) * window];
      for (int64_t x = left; x < right; ++x) row[x] |= source[x + d.x];
    }
  }
  for (int64_t y = 0; y < window; ++y) {
    for (int64_t x = 0; x < window; ++x) {
      if (blocked[y * window + x] == 0) free.push_back({y, x});
    }
  }
}

SquareImage draw_marker(const PathfinderOptions& options, Point centre) {
  const int64_t scale = options.antialias;
  SquareImage large(options.window * scale);
  const double radius = options.marker_radius * static_cast<double>(scale);
  for (int64_t y = 0; y < large.size; ++y) {
    for (int64_t x = 0; x < large.size; ++x) {
      const auto dy = static_cast<double>(y - centre.y * scale);
      const auto dx = static_cast<double>(x - centre.x * scale);
      if (dy * dy + dx * dx <= radius * radius) large.at(y, x) = 255;
    }
  }
  return shrink_lanczos(large, options.window);
}

}  // namespace luna::data
