#pragma once

#include <luna/data/pathfinder.h>

#include "data/lanczos.h"

// The paddles of Pathfinder. Start and end of a paddle are pixels, so there
// are only so many: 360 directions for the first paddle of a contour, and one
// for each pixel of a small circle for those that follow. All of them, and all
// that depends on a direction alone, is computed once.

namespace luna::data {

struct Point {
  int64_t y = 0;
  int64_t x = 0;

  friend Point operator+(Point a, Point b) { return {a.y + b.y, a.x + b.x}; }
  friend bool operator==(const Point&, const Point&) = default;
};

/// A paddle drawn from the centre of a small picture.
struct Paddle {
  SquareImage line;
  SquareImage mask;  ///< the line with the room around it that it wants
};

/// A step that ends between pixels.
struct Step {
  double y = 0;
  double x = 0;
};

/// Where a step ends, rounded up. The sum is rounded to double first, as in
/// the original: the sine of pi is not quite 0, so that a step to the left
/// from one of the upper rows also goes down by one.
Point operator+(Point from, Step step);

/// A way in which a contour can go: a whole degree or towards a target pixel.
struct Direction {
  Step length{};               ///< as long as a paddle
  Step head_to_pivot{};        ///< from a first paddle's head back to its pivot
  Step pivot_to_pivot{};       ///< to the next paddle's pivot
  std::vector<double> turn{};  ///< weight of each target, by the angle
};

/// A pixel on the circle around a pivot, at which the next paddle may end.
struct Target {
  Point offset{};  ///< from the pivot
  Step back{};     ///< from the pixel to the paddle's other end
  Paddle paddle;   ///< drawn from the pixel back towards the pivot
};

struct PaddleKit {
  PaddleKit(const PathfinderOptions& options, int64_t margin);

  /// Whole degrees -180 ... 179 first, then the direction of each target.
  std::vector<Direction> directions{};
  std::vector<Target> targets{};
  std::vector<Paddle> paddles{};           ///< of each whole degree
  std::vector<std::vector<Point>> room{};  ///< of each whole degree: pixels,
                                           ///< from the tail, to be free
  /// Of each whole degree: where the first target may begin.
  std::vector<std::vector<Point>> first_tails{};
  std::vector<Point> disk{};  ///< of radius margin
};

inline constexpr int64_t kDegrees = 360;

/// Occupancy goes from 0 (free) to 255; up to .3 of that a paddle may begin.
inline constexpr uint8_t kFreeCell = 76;

/// A window whose outer `frame` pixels are occupied.
std::vector<uint8_t> framed(int64_t window, int64_t frame);
/// The pixels at which a first paddle with this `room` may begin, in reading
/// order.
void find_free(int64_t window, const std::vector<uint8_t>& occupied,
               const std::vector<Point>& room, std::vector<Point>& free);

/// Bytes of a marker around `centre`, as large as the window.
SquareImage draw_marker(const PathfinderOptions& options, Point centre);

}  // namespace luna::data
