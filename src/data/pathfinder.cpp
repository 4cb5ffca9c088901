#include <c10/util/Exception.h>
#include <luna/data/memory_dataset.h>
#include <luna/data/pathfinder.h>

#include <cmath>

#include "data/blocks.h"
#include "data/pathfinder_picture.h"

namespace luna::data {

namespace {

constexpr int64_t kBlock = 64;  // pictures that a thread takes at once

void check(const PathfinderOptions& options, int64_t samples) {
  const char* const name = "generate_pathfinder";
  config::check_options(name, options);
  const double thickness =
      options.paddle_thickness * static_cast<double>(options.antialias);
  TORCH_CHECK_VALUE(thickness >= 1 && thickness == std::round(thickness), name,
                    ": expected paddle_thickness * antialias to be a whole "
                    "number, got ",
                    options.paddle_thickness, " * ", options.antialias);
  TORCH_CHECK_VALUE(options.least_margin <= options.greatest_margin, name,
                    ": expected greatest_margin of at least least_margin = ",
                    options.least_margin, ", got ", options.greatest_margin);
  TORCH_CHECK_VALUE(2 * options.padding < options.window, name,
                    ": expected padding of less than half the window = ",
                    options.window, ", got ", options.padding);
  TORCH_CHECK_VALUE(4 * options.seed_distance < options.window, name,
                    ": expected seed_distance of less than a quarter of the "
                    "window = ",
                    options.window, ", got ", options.seed_distance);
  TORCH_CHECK_VALUE(samples >= 0, name,
                    ": expected samples of at least 0, got ", samples);
}

}  // namespace

std::shared_ptr<Dataset> generate_pathfinder(const PathfinderOptions& options,
                                             int64_t samples, uint64_t seed,
                                             const GenerateProgress& progress,
                                             int threads) {
  check(options, samples);
  const int64_t pixels = options.window * options.window;
  std::vector<uint8_t> ids(samples * pixels);
  std::vector<int64_t> labels(samples), offsets(samples + 1);
  for (int64_t i = 0; i <= samples; ++i) offsets[i] = i * pixels;

  const std::vector<PaddleKit> kits = make_paddle_kits(options);
  for_each_block(
      samples, kBlock, threads,
      [&](int64_t first, int64_t last) {
        PathfinderPainter painter(options, kits);
        for (int64_t i = first; i < last; ++i) {
          labels[i] =
              painter
                  .draw(seed, static_cast<uint64_t>(i),
                        {ids.data() + i * pixels, static_cast<size_t>(pixels)})
                  .label;
        }
      },
      progress);
  return std::make_shared<MemoryDataset>(TaskInfo{.task = "pathfinder",
                                                  .vocabulary = 256,
                                                  .classes = 2,
                                                  .height = options.window,
                                                  .width = options.window},
                                         std::move(ids), std::move(offsets),
                                         std::move(labels));
}

}  // namespace luna::data
