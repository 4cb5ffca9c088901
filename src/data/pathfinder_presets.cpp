#include <c10/util/Exception.h>
#include <luna/data/pathfinder.h>

namespace luna::data {

namespace {

/// What changes with the size of the window. There are so many distractors
/// that they have about `distractor_paddles` paddles together.
struct Size {
  PathfinderOptions options{};
  int64_t distractor_paddles = 0;
};

const std::vector<Size>& sizes() {
  static const std::vector<Size> all = {
      {.options = {}, .distractor_paddles = 20},
      {.options = {.window = 64,
                   .paddle_length = 5,
                   .paddle_thickness = 1.0,
                   .seed_distance = 12,
                   .continuity = 1.8,
                   .marker_radius = 2.5,
                   .target_contrast = 0.8,
                   .distractor_contrast = 0.8},
       .distractor_paddles = 22},
      {.options = {.window = 128,
                   .paddle_length = 5,
                   .paddle_thickness = 1.5,
                   .least_margin = 2,
                   .greatest_margin = 3,
                   .seed_distance = 20,
                   .continuity = 1.8,
                   .marker_radius = 3.0,
                   .target_contrast = 0.9,
                   .distractor_contrast = 0.9},
       .distractor_paddles = 35}};
  return all;
}

struct Difficulty {
  const char* name;
  int64_t contour_length;
};
constexpr Difficulty kDifficulties[] = {
    {"hard", 14}, {"intermediate", 9}, {"easy", 6}};

std::string name_of(const Size& size, const Difficulty& difficulty) {
  return std::to_string(size.options.window) + "-" + difficulty.name;
}

}  // namespace

std::vector<std::string> pathfinder_presets() {
  std::vector<std::string> names;
  for (const Size& size : sizes()) {
    for (const Difficulty& difficulty : kDifficulties) {
      names.push_back(name_of(size, difficulty));
    }
  }
  return names;
}

PathfinderOptions pathfinder_preset(const std::string& name) {
  for (const Size& size : sizes()) {
    for (const Difficulty& difficulty : kDifficulties) {
      if (name != name_of(size, difficulty)) continue;
      PathfinderOptions options = size.options;
      options.contour_length = difficulty.contour_length;
      options.distractor_length = difficulty.contour_length / 3;
      options.distractors = size.distractor_paddles / options.distractor_length;
      return options;
    }
  }
  TORCH_CHECK_VALUE(false, "pathfinder_preset: expected one of ",
                    config::known_and_nearest(name, pathfinder_presets()),
                    ", got ", name);
}

}  // namespace luna::data
