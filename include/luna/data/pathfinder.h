#pragma once

#include <luna/config/options.h>
#include <luna/data/dataset.h>
#include <luna/data/generate.h>

#include <vector>

namespace luna::data {

/// What Pathfinder's pictures look like: two target contours of paddles, short
/// contours that distract, and two round markers on tips of the targets. The
/// defaults are Pathfinder-32 "hard". Lengths are pixels.
struct PathfinderOptions {
  int64_t window = 32;
  int64_t padding = 1;
  int64_t antialias = 2;
  int64_t paddle_length = 2;
  double paddle_thickness = 0.5;
  int64_t least_margin = 1;
  int64_t greatest_margin = 1;
  int64_t contour_length = 14;
  int64_t seed_distance = 7;
  double continuity = 1.0;
  double marker_radius = 1.5;
  int64_t distractor_length = 4;
  int64_t distractors = 5;
  double target_contrast = 1.5;
  double distractor_contrast = 2.0;
  int64_t paddle_tries = 3;
  int64_t distractor_tries = 5;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.window, {.name = "window",
                        .help = "height and width of a picture",
                        .minimum = 8,
                        .maximum = 1024});
    visit(self.padding, {.name = "padding",
                         .help = "width of the frame that stays free",
                         .minimum = 0});
    visit(self.antialias, {.name = "antialias",
                           .help = "paddles and markers are drawn this much "
                                   "larger, then scaled down",
                           .minimum = 1,
                           .maximum = 8});
    visit(self.paddle_length, {.name = "paddle_length",
                               .help = "of one dash of a contour",
                               .minimum = 1,
                               .maximum = 64});
    visit(self.paddle_thickness,
          {.name = "paddle_thickness",
           .help = "times antialias it must be a whole number",
           .minimum = 0.125,
           .maximum = 16});
    visit(self.least_margin, {.name = "least_margin",
                              .help = "least room around a paddle; each "
                                      "picture draws its own",
                              .minimum = 1,
                              .maximum = 32});
    visit(self.greatest_margin, {.name = "greatest_margin",
                                 .help = "greatest room around a paddle",
                                 .minimum = 1,
                                 .maximum = 32});
    visit(self.contour_length, {.name = "contour_length",
                                .help = "paddles of a target",
                                .minimum = 1});
    visit(self.seed_distance, {.name = "seed_distance",
                               .help = "between the first tips of the two "
                                       "targets",
                               .minimum = 1});
    visit(self.continuity, {.name = "continuity",
                            .help = "the larger, the straighter contours are",
                            .minimum = 0,
                            .maximum = 100});
    visit(self.marker_radius, {.name = "marker_radius",
                               .help = "of the two markers",
                               .minimum = 0.5,
                               .maximum = 64});
    visit(self.distractor_length, {.name = "distractor_length",
                                   .help = "paddles of a distractor",
                                   .minimum = 1});
    visit(self.distractors, {.name = "distractors",
                             .help = "how many are tried; those that do not "
                                     "fit are left out",
                             .minimum = 0,
                             .maximum = 1000});
    visit(self.target_contrast, {.name = "target_contrast",
                                 .help = "brightness of targets; markers have "
                                         "1",
                                 .minimum = 0.01,
                                 .maximum = 100});
    visit(self.distractor_contrast, {.name = "distractor_contrast",
                                     .help = "brightness of distractors",
                                     .minimum = 0.01,
                                     .maximum = 100});
    visit(self.paddle_tries, {.name = "paddle_tries",
                              .help = "draws until a paddle fits",
                              .minimum = 1,
                              .maximum = 1000});
    visit(self.distractor_tries, {.name = "distractor_tries",
                                  .help = "attempts at each distractor",
                                  .minimum = 1,
                                  .maximum = 1000});
  }
};

/// 32-hard, 32-intermediate, 32-easy, and the same for 64 and 128.
std::vector<std::string> pathfinder_presets();
PathfinderOptions pathfinder_preset(const std::string& name);

/// `samples` pictures; label 1: both markers are on one contour. Depends on
/// the arguments alone, not on the number of threads (0: one a core).
std::shared_ptr<Dataset> generate_pathfinder(
    const PathfinderOptions& options, int64_t samples, uint64_t seed,
    const GenerateProgress& progress = {}, int threads = 0);

}  // namespace luna::data
