#include "data/pathfinder_contours.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace luna::data {

namespace {

// Thresholds of the original, which counts from 0 to 1, in bytes.
constexpr int64_t kCollision = 459;  // 1.8: two paddles are too close
constexpr double kDeadEnd = 1e-4;    // so little weight on all targets
constexpr double kLeastFree = 0.01;  // of the window: no room for distractors
// Pathfinder-32 needs about 300 attempts, Pathfinder-64 about 8,000.
constexpr int64_t kPatience = 500'000;

/// Part of a paddle's picture around `centre` that lies inside the window.
struct Overlap {
  Overlap(int64_t reach, Point centre, int64_t window)
      : top(std::max<int64_t>(centre.y - reach, 0)),
        bottom(std::min(centre.y + reach, window - 1)),
        left(std::max<int64_t>(centre.x - reach, 0)),
        right(std::min(centre.x + reach, window - 1)) {}
  int64_t top, bottom, left, right;
};

}  // namespace

ContourPlacer::ContourPlacer(const PathfinderOptions& options,
                             const PaddleKit& kit)
    : options_(options),
      kit_(kit),
      window_(options.window),
      frame_(framed(options.window, options.padding)),
      weights_(kit.targets.size()) {}

Scene ContourPlacer::place(Random& random) {
  Scene scene;
  std::array<Growing, 2> targets;
  do {
    TORCH_CHECK_VALUE(
        scene.attempts < kPatience,
        "generate_pathfinder: expected a window in which two contours of "
        "length ",
        options_.contour_length, " fit, got ", window_, " (", kPatience,
        " attempts failed)");
    ++scene.attempts;
  } while (!place_targets(random, targets));
  for (int i = 0; i < 2; ++i) {
    scene.targets[i] = std::move(targets[i].contour);
  }

  for (int64_t i = 0; i < options_.distractors; ++i) {
    for (int64_t attempt = 0; attempt < options_.distractor_tries; ++attempt) {
      Growing distractor;
      before_ = occupied_;
      if (place_distractor(random, distractor)) {
        scene.distractors.push_back(std::move(distractor.contour));
        break;
      }
      occupied_.swap(before_);
    }
  }

  scene.label = random.below(2);
  const uint32_t first = random.below(2);
  const uint32_t second = scene.label == 1 ? first : 1 - first;
  scene.markers = {scene.targets[first].origin(),
                   scene.targets[second].terminal()};
  return scene;
}

bool ContourPlacer::place_targets(Random& random,
                                  std::array<Growing, 2>& growing) {
  occupied_ = frame_;
  for (Growing& one : growing) one.contour.paddles.clear();
  if (!seed_first(random, growing[0])) return false;
  if (!seed_second(random, growing[0].contour.origin(), growing[1])) {
    return false;
  }
  for (int64_t i = 1; i < options_.contour_length; ++i) {
    for (Growing& one : growing) {
      if (!extend(random, one)) return false;
    }
  }
  // Paddles placed in the same round do not see each other. If both contours
  // end on one pixel, a marker there would be on both, whatever the label; the
  // original lets that pass.
  if (growing[0].contour.terminal() == growing[1].contour.terminal()) {
    return false;
  }
  // The last paddle of the first contour stays out, as in the original.
  occupy(growing[1].contour.paddles.back());
  return true;
}

bool ContourPlacer::place_distractor(Random& random, Growing& growing) {
  if (!seed_free(random, growing)) return false;
  for (int64_t i = 1; i < options_.distractor_length; ++i) {
    if (!extend(random, growing)) return false;
  }
  occupy(growing.contour.paddles.back());
  return true;
}

bool ContourPlacer::seed_first(Random& random, Growing& growing) {
  for (int64_t i = 0; i < options_.paddle_tries; ++i) {
    const size_t degree = random.below(kDegrees);
    const std::vector<Point>& tails = kit_.first_tails[degree];
    if (tails.empty()) return false;
    const Point tail = tails[random.below(static_cast<uint32_t>(tails.size()))];
    if (start(degree, tail, growing)) return true;
  }
  return false;
}

bool ContourPlacer::seed_second(Random& random, Point first, Growing& growing) {
  const auto distance = static_cast<double>(options_.seed_distance);
  for (int64_t i = 0; i < options_.paddle_tries; ++i) {
    const size_t degree = random.below(kDegrees);
    const double angle = random.below(kDegrees) * std::numbers::pi / 180;
    const Point tail{
        std::llrint(static_cast<double>(first.y) + distance * std::sin(angle)),
        std::llrint(static_cast<double>(first.x) + distance * std::cos(angle))};
    if (start(degree, tail, growing)) return true;
  }
  return false;
}

bool ContourPlacer::seed_free(Random& random, Growing& growing) {
  const auto free_share = static_cast<double>(std::count_if(
                              occupied_.begin(), occupied_.end(),
                              [](uint8_t c) { return c <= kFreeCell; })) /
                          static_cast<double>(occupied_.size());
  if (free_share < kLeastFree) return false;
  for (int64_t i = 0; i < options_.paddle_tries; ++i) {
    const size_t degree = random.below(kDegrees);
    find_free(window_, occupied_, kit_.room[degree], free_);
    if (free_.empty()) return false;
    const Point tail = free_[random.below(static_cast<uint32_t>(free_.size()))];
    if (start(degree, tail, growing)) return true;
  }
  return false;
}

bool ContourPlacer::start(size_t degree, Point tail, Growing& growing) {
  const Direction& direction = kit_.directions[degree];
  const Point head = tail + direction.length;
  const Point pivot = head + direction.head_to_pivot;
  if (!inside(head) || !inside(pivot)) return false;
  growing.pivot = pivot;
  growing.direction = degree;
  growing.contour.paddles.push_back({.near = tail,
                                     .far = head,
                                     .drawn_from = tail,
                                     .paddle = &kit_.paddles[degree]});
  return true;
}

bool ContourPlacer::extend(Random& random, Growing& growing) {
  const Direction& direction = kit_.directions[growing.direction];
  const Point pivot = growing.pivot + direction.pivot_to_pivot;
  double total = 0.0;
  for (size_t i = 0; i < kit_.targets.size(); ++i) {
    const Point end = pivot + kit_.targets[i].offset;
    weights_[i] = 0.0;
    if (direction.turn[i] == 0.0 || !inside(end)) continue;
    weights_[i] = direction.turn[i] * (255 - densest_near(end)) / 255.0;
    total += weights_[i];
  }
  if (total < kDeadEnd) return false;
  for (int64_t i = 0; i < options_.paddle_tries; ++i) {
    double rest = random.uniform() * total;
    size_t chosen = 0;
    for (size_t j = 0; j < weights_.size(); ++j) {
      if (weights_[j] == 0.0) continue;
      chosen = j;
      rest -= weights_[j];
      if (rest < 0.0) break;
    }
    const Target& target = kit_.targets[chosen];
    const Point end = pivot + target.offset;
    const PlacedPaddle placed{.near = end + target.back,
                              .far = end,
                              .drawn_from = end,
                              .paddle = &target.paddle};
    if (!fits(placed)) continue;
    occupy(growing.contour.paddles.back());
    growing.contour.paddles.push_back(placed);
    growing.pivot = pivot;
    growing.direction = kDegrees + chosen;
    return true;
  }
  return false;
}

uint8_t ContourPlacer::densest_near(Point p) const {
  uint8_t densest = 0;
  for (const Point d : kit_.disk) {
    const Point q = p + d;
    if (inside(q)) densest = std::max(densest, occupied_[q.y * window_ + q.x]);
  }
  return densest;
}

bool ContourPlacer::fits(const PlacedPaddle& placed) const {
  const SquareImage& mask = placed.paddle->mask;
  const int64_t reach = mask.size / 2;
  const Overlap o(reach, placed.drawn_from, window_);
  for (int64_t y = o.top; y <= o.bottom; ++y) {
    const uint8_t* cells = &occupied_[y * window_];
    const uint8_t* wanted =
        &mask.pixels[(y - placed.drawn_from.y + reach) * mask.size];
    const int64_t shift = reach - placed.drawn_from.x;
    for (int64_t x = o.left; x <= o.right; ++x) {
      if (cells[x] + wanted[x + shift] >= kCollision) return false;
    }
  }
  return true;
}

void ContourPlacer::occupy(const PlacedPaddle& placed) {
  const SquareImage& mask = placed.paddle->mask;
  const int64_t reach = mask.size / 2;
  const Overlap o(reach, placed.drawn_from, window_);
  for (int64_t y = o.top; y <= o.bottom; ++y) {
    uint8_t* cells = &occupied_[y * window_];
    const uint8_t* taken =
        &mask.pixels[(y - placed.drawn_from.y + reach) * mask.size];
    const int64_t shift = reach - placed.drawn_from.x;
    for (int64_t x = o.left; x <= o.right; ++x) {
      cells[x] = std::max(cells[x], taken[x + shift]);
    }
  }
}

}  // namespace luna::data
