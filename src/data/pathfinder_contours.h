#pragma once

#include <array>
#include <optional>

#include "data/pathfinder_paddles.h"
#include "data/random.h"

namespace luna::data {

struct PlacedPaddle {
  Point near{};  ///< end that was reached first when the contour grew
  Point far{};
  Point drawn_from{};  ///< where the paddle's picture has its centre
  const Paddle* paddle = nullptr;
};

/// Paddles in the order in which they were placed.
struct Contour {
  std::vector<PlacedPaddle> paddles{};

  Point origin() const { return paddles.front().near; }
  Point terminal() const { return paddles.back().far; }
};

/// What a picture shows, before it is painted. Points into the kit.
struct Scene {
  int64_t label = 0;
  std::array<Contour, 2> targets{};
  std::vector<Contour> distractors{};
  std::array<Point, 2> markers{};
  int64_t attempts = 0;  ///< at the two targets, the last one counted
};

/// Places the contours of pictures. Not for several threads at once.
class ContourPlacer {
 public:
  ContourPlacer(const PathfinderOptions& options, const PaddleKit& kit);

  Scene place(Random& random);

 private:
  /// A contour that grows. Its last paddle does not yet occupy its place, so
  /// that the next may come close to it.
  struct Growing {
    Point pivot{};
    size_t direction = 0;
    Contour contour{};
  };

  bool place_targets(Random& random, std::array<Growing, 2>& growing);
  bool place_distractor(Random& random, Growing& growing);
  bool seed_first(Random& random, Growing& growing);
  bool seed_second(Random& random, Point first, Growing& growing);
  bool seed_free(Random& random, Growing& growing);
  /// Starts a contour, or returns false where it would leave the window.
  bool start(size_t degree, Point tail, Growing& growing);
  bool extend(Random& random, Growing& growing);

  bool inside(Point p) const {
    return p.y >= 0 && p.x >= 0 && p.y < window_ && p.x < window_;
  }
  uint8_t densest_near(Point p) const;
  bool fits(const PlacedPaddle& placed) const;
  void occupy(const PlacedPaddle& placed);

  const PathfinderOptions& options_;
  const PaddleKit& kit_;
  int64_t window_;
  std::vector<uint8_t> frame_{};     ///< what is occupied at the start
  std::vector<uint8_t> occupied_{};  ///< 0 free ... 255 taken
  std::vector<uint8_t> before_{};    ///< occupied_ before an attempt
  std::vector<Point> free_{};
  std::vector<double> weights_{};
};

}  // namespace luna::data
