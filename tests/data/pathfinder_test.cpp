#include <gtest/gtest.h>
#include <luna/data/pathfinder.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "data/pathfinder_picture.h"
#include "support/errors.h"

namespace luna::data {
namespace {

using luna::testing::expect_error;

struct Picture {
  Scene scene{};
  std::vector<uint8_t> pixels{};
};

/// Pictures with the record of what was placed. Points into `kits`.
std::vector<Picture> draw(const PathfinderOptions& options,
                          const std::vector<PaddleKit>& kits, int64_t count,
                          uint64_t seed) {
  PathfinderPainter painter(options, kits);
  std::vector<Picture> pictures(count);
  for (int64_t i = 0; i < count; ++i) {
    pictures[i].pixels.resize(options.window * options.window);
    pictures[i].scene =
        painter.draw(seed, static_cast<uint64_t>(i), pictures[i].pixels);
  }
  return pictures;
}

double distance(Point a, Point b) {
  return std::hypot(static_cast<double>(a.y - b.y),
                    static_cast<double>(a.x - b.x));
}

/// Follows paddles, each beginning where the one before ends, and returns the
/// last end. There is room of 2 * margin between two paddles; every end is
/// rounded to pixels.
Point follow(const Contour& contour, const PathfinderOptions& options) {
  const double gap = 2.0 * static_cast<double>(options.greatest_margin) + 3.0;
  const auto length = static_cast<double>(options.paddle_length);
  Point at = contour.paddles.front().near;
  for (const PlacedPaddle& placed : contour.paddles) {
    EXPECT_LE(distance(at, placed.near), gap);
    EXPECT_NEAR(distance(placed.near, placed.far), length, 1.5);
    at = placed.far;
  }
  return at;
}

class PathfinderPresets : public ::testing::TestWithParam<std::string> {};

// A marker is on a tip of the first contour; following that contour to its
// other end finds the second marker if the label is 1, and if it is 0 the
// other contour ends there.
TEST_P(PathfinderPresets, LabelSaysWhetherOneContourJoinsTheMarkers) {
  const PathfinderOptions options = pathfinder_preset(GetParam());
  const auto kits = make_paddle_kits(options);
  const int64_t count = options.window == 32 ? 300 : 10;
  int64_t joined = 0;
  for (const Picture& picture : draw(options, kits, count, 11)) {
    const Scene& scene = picture.scene;
    std::vector<const Contour*> starts;
    for (const Contour& contour : scene.targets) {
      ASSERT_EQ(std::ssize(contour.paddles), options.contour_length);
      if (contour.paddles.front().near == scene.markers[0]) {
        starts.push_back(&contour);
      }
    }
    ASSERT_EQ(starts.size(), 1U);
    EXPECT_EQ(follow(*starts[0], options) == scene.markers[1],
              scene.label == 1);
    const Contour& other =
        starts[0] == &scene.targets[0] ? scene.targets[1] : scene.targets[0];
    EXPECT_EQ(follow(other, options) == scene.markers[1], scene.label == 0);
    joined += scene.label;
    for (const Contour& distractor : scene.distractors) {
      EXPECT_EQ(std::ssize(distractor.paddles), options.distractor_length);
      follow(distractor, options);
    }
    EXPECT_LE(std::ssize(scene.distractors), options.distractors);
  }
  // Five standard deviations of a fair coin.
  EXPECT_NEAR(static_cast<double>(joined), static_cast<double>(count) / 2,
              2.5 * std::sqrt(static_cast<double>(count)));
}

INSTANTIATE_TEST_SUITE_P(, PathfinderPresets,
                         ::testing::ValuesIn(pathfinder_presets()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The picture shows the record: every paddle and marker is lit, and nothing
// bright is far from all of them.
TEST(Pathfinder, PictureShowsWhatWasPlaced) {
  const PathfinderOptions options;
  const auto kits = make_paddle_kits(options);
  for (const Picture& picture : draw(options, kits, 100, 12)) {
    const auto value = [&](Point p) {
      return picture.pixels[p.y * options.window + p.x];
    };
    std::vector<Point> lit(picture.scene.markers.begin(),
                           picture.scene.markers.end());
    std::vector<Contour> contours = picture.scene.distractors;
    contours.insert(contours.end(), picture.scene.targets.begin(),
                    picture.scene.targets.end());
    for (const Contour& contour : contours) {
      for (const PlacedPaddle& placed : contour.paddles) {
        EXPECT_GT(value(placed.drawn_from), 48);
        lit.push_back(placed.near);
        lit.push_back(placed.far);
      }
    }
    for (const Point marker : picture.scene.markers) {
      EXPECT_GT(value(marker), 150);
    }
    for (int64_t y = 0; y < options.window; ++y) {
      for (int64_t x = 0; x < options.window; ++x) {
        if (value({y, x}) < 48) continue;
        EXPECT_TRUE(std::any_of(lit.begin(), lit.end(),
                                [&](Point p) {
                                  return distance(p, {y, x}) < 3;
                                }))
            << y << ' ' << x;
      }
    }
    EXPECT_EQ(*std::max_element(picture.pixels.begin(), picture.pixels.end()),
              255);
  }
}

// Seed distance: the first tips of the targets are so far apart.
TEST(Pathfinder, TargetsBeginInTheMiddle) {
  const PathfinderOptions options;
  const auto kits = make_paddle_kits(options);
  for (const Picture& picture : draw(options, kits, 200, 13)) {
    const Point first = picture.scene.targets[0].origin();
    EXPECT_GE(std::min(first.y, first.x), 12);
    EXPECT_LE(std::max(first.y, first.x), 18);
    EXPECT_NEAR(distance(first, picture.scene.targets[1].origin()), 7, 0.8);
  }
}

// ALGORITHM.md beside the references.
TEST(Pathfinder, PresetsHaveTheOriginalsParameters) {
  const PathfinderOptions easy = pathfinder_preset("32-easy");
  EXPECT_EQ(easy.contour_length, 6);
  EXPECT_EQ(easy.distractor_length, 2);
  EXPECT_EQ(easy.distractors, 10);
  const PathfinderOptions middle = pathfinder_preset("32-intermediate");
  EXPECT_EQ(middle.contour_length, 9);
  EXPECT_EQ(middle.distractors, 6);
  const PathfinderOptions hard = pathfinder_preset("32-hard");
  EXPECT_EQ(config::write_options(hard),
            config::write_options(PathfinderOptions{}));
  EXPECT_EQ(hard.distractor_length, 4);
  EXPECT_EQ(hard.distractors, 5);
  const PathfinderOptions large = pathfinder_preset("64-hard");
  EXPECT_EQ(large.window, 64);
  EXPECT_EQ(large.seed_distance, 12);
  EXPECT_EQ(large.marker_radius, 2.5);
  EXPECT_EQ(large.continuity, 1.8);
  EXPECT_EQ(large.distractors, 5);
  const PathfinderOptions huge = pathfinder_preset("128-easy");
  EXPECT_EQ(huge.least_margin, 2);
  EXPECT_EQ(huge.greatest_margin, 3);
  EXPECT_EQ(huge.distractors, 17);
  expect_error<c10::ValueError>([] { pathfinder_preset("32-heard"); },
                                {"pathfinder_preset: expected one of",
                                 "nearest: 32-hard", "got 32-heard"});
}

TEST(Pathfinder, DependsOnTheSeedAndNotOnThreads) {
  const auto bytes = [](const Dataset& data) {
    std::vector<uint8_t> all;
    for (int64_t i = 0; i < data.size(); ++i) {
      all.insert(all.end(), data[i].ids.begin(), data[i].ids.end());
      all.push_back(static_cast<uint8_t>(data[i].label));
    }
    return all;
  };
  const PathfinderOptions options;
  const auto one = generate_pathfinder(options, 300, 5, {}, 1);
  EXPECT_EQ(one->info().task, "pathfinder");
  EXPECT_EQ(one->info().vocabulary, 256);
  EXPECT_EQ(one->info().classes, 2);
  EXPECT_EQ(one->info().height, 32);
  EXPECT_EQ(one->info().width, 32);
  EXPECT_EQ(one->size(), 300);
  EXPECT_EQ(one->longest(), 1024);
  EXPECT_EQ(bytes(*one), bytes(*generate_pathfinder(options, 300, 5, {}, 5)));
  EXPECT_NE(bytes(*one), bytes(*generate_pathfinder(options, 300, 6)));
  const auto few = bytes(*generate_pathfinder(options, 70, 5));
  const auto all = bytes(*one);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
}

TEST(Pathfinder, ReportsProgressAndStops) {
  std::vector<int64_t> done;
  generate_pathfinder({}, 300, 1, [&](int64_t now, int64_t total) {
    EXPECT_EQ(total, 300);
    done.push_back(now);
  });
  EXPECT_GT(done.size(), 1U);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 300);
  EXPECT_THROW(generate_pathfinder(
                   {}, 300, 1,
                   [](int64_t, int64_t) { throw std::runtime_error("stop"); }),
               std::runtime_error);
}

TEST(Pathfinder, RefusesWrongOptions) {
  const auto refuse = [](PathfinderOptions options,
                         const std::vector<std::string>& parts) {
    expect_error<c10::ValueError>([&] { generate_pathfinder(options, 1, 1); },
                                  parts);
  };
  refuse({.window = 4}, {"generate_pathfinder: expected window", "got 4"});
  refuse({.paddle_thickness = 0.3},
         {"paddle_thickness * antialias", "got 0.3 * 2"});
  refuse({.least_margin = 3, .greatest_margin = 2},
         {"greatest_margin of at least least_margin = 3", "got 2"});
  refuse({.padding = 16}, {"padding of less than half", "got 16"});
  refuse({.seed_distance = 8}, {"seed_distance of less than", "got 8"});
  refuse({.continuity = NAN}, {"continuity", "got"});
  refuse({.least_margin = 4, .greatest_margin = 4},
         {"room for a paddle", "margin 4"});
  refuse({.contour_length = 100}, {"two contours of length 100", "got 32"});
  expect_error<c10::ValueError>([] { generate_pathfinder({}, -1, 1); },
                                {"expected samples", "got -1"});
  EXPECT_EQ(generate_pathfinder({}, 0, 1)->size(), 0);
}

}  // namespace
}  // namespace luna::data
