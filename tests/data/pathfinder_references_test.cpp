// Our pictures against the 365 that the original generator drew. What
// pathfinder_features says of each of them is committed; the pictures
// themselves are compared where LUNA_DATA names the folder with
// pathfinder/ref_images_u8_32x32.bin.

#include <gtest/gtest.h>
#include <luna/data/pathfinder.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "data/pathfinder_picture.h"
#include "support/pathfinder_features.h"
#include "support/two_sample.h"

namespace luna::data {
namespace {

using luna::testing::energy_test;
using luna::testing::kPathfinderFeatures;
using luna::testing::pathfinder_features;
using luna::testing::Rows;

constexpr int64_t kReferences = 365;
constexpr int64_t kPermutations = 1999;
constexpr double kAlpha = 0.001;

Rows reference_features() {
  std::ifstream file(std::string(std::getenv("LUNA_SOURCE_DIR")) +
                     "/tests/data/fixtures/pathfinder_references.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  const std::vector<std::string> names(kPathfinderFeatures.begin(),
                                       kPathfinderFeatures.end());
  EXPECT_EQ(json["features"].get<std::vector<std::string>>(), names);
  return json["pictures"].get<Rows>();
}

Rows features(const Dataset& data) {
  Rows rows;
  for (int64_t i = 0; i < data.size(); ++i) {
    rows.push_back(pathfinder_features(data[i].ids));
  }
  return rows;
}

double p_value(const PathfinderOptions& options, uint64_t seed) {
  return energy_test(reference_features(),
                     features(*generate_pathfinder(options, kReferences, seed)),
                     kPermutations, 1);
}

TEST(PathfinderReferences, EnergyTestAcceptsOurs) {
  EXPECT_GT(p_value({}, 1), kAlpha);
}

TEST(PathfinderReferences, EnergyTestRejectsContoursOfLength9) {
  EXPECT_LE(p_value({.contour_length = 9}, 1), kAlpha);
  EXPECT_LE(p_value(pathfinder_preset("32-intermediate"), 1), kAlpha);
}

// It also sees less than that.
TEST(PathfinderReferences, EnergyTestRejectsSmallMistakes) {
  EXPECT_LE(p_value({.contour_length = 13}, 1), kAlpha);
  EXPECT_LE(p_value({.target_contrast = 1.6}, 1), kAlpha);
  EXPECT_LE(p_value({.distractors = 3}, 1), kAlpha);
}

// The published figures come from the 365 references: each may err by four
// standard errors of such a mean, besides ours and the rounding.
TEST(PathfinderReferences, StatisticsAreThePublishedOnes) {
  constexpr int64_t kCount = 2000;
  const PathfinderOptions options;
  const auto kits = make_paddle_kits(options);
  PathfinderPainter painter(options, kits);
  Rows rows;
  std::vector<double> distractors;
  std::array<std::vector<double>, 2> means;
  std::vector<uint8_t> pixels(1024);
  for (uint64_t i = 0; i < kCount; ++i) {
    const Scene scene = painter.draw(2, i, pixels);
    rows.push_back(pathfinder_features(pixels));
    distractors.push_back(static_cast<double>(scene.distractors.size()));
    means[scene.label].push_back(rows.back()[0] / 1024);
  }

  struct Mean {
    double mean, variance;
  };
  const auto mean_of = [](const std::vector<double>& values) {
    double sum = 0, squares = 0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    const auto n = static_cast<double>(values.size());
    return Mean{sum / n, squares / n - sum / n * (sum / n)};
  };
  const auto expect = [&](const char* what, const std::vector<double>& values,
                          double published, double rounding) {
    const Mean ours = mean_of(values);
    const double error =
        std::sqrt(ours.variance * (1.0 / kReferences + 1.0 / kCount));
    EXPECT_NEAR(ours.mean, published, rounding / 2 + 4 * error) << what;
  };
  const auto column = [&](size_t feature) {
    std::vector<double> values;
    for (const auto& row : rows) values.push_back(row[feature] / 1024);
    return values;
  };
  expect("mean pixel", column(0), 20.3, 0.1);
  // sd 51.2 is a mean of squares of 51.2^2 + 20.3^2, give or take rounding.
  expect("squared pixel", column(1), 51.2 * 51.2 + 20.3 * 20.3,
         2 * 0.1 * (51.2 + 20.3));
  expect("zero pixels", column(2), 0.658, 0.001);
  const double histogram[] = {0.196, 0.019, 0.019, 0.021,
                              0.039, 0.027, 0.012, 0.007};
  for (size_t bin = 0; bin < 8; ++bin) {
    expect(kPathfinderFeatures[3 + bin], column(3 + bin), histogram[bin],
           0.001);
  }
  expect("distractors", distractors, 1.15, 0.1);

  const Mean apart = mean_of(means[0]), joined = mean_of(means[1]);
  EXPECT_NEAR(
      apart.mean, joined.mean,
      4 * std::sqrt(apart.variance / static_cast<double>(means[0].size()) +
                    joined.variance / static_cast<double>(means[1].size())));
}

class PathfinderReferenceFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("LUNA_DATA");
    const std::string path = std::string(folder ? folder : "") +
                             "/pathfinder/ref_images_u8_32x32.bin";
    std::ifstream file(path, std::ios::binary);
    if (!folder || !file) {
      std::cerr << "!! SKIPPED: Pathfinder is not compared with the reference "
                   "pictures themselves: "
                << (folder ? "no " + path : "LUNA_DATA is not set") << '\n';
      GTEST_SKIP();
    }
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_EQ(std::ssize(bytes_), kReferences * 1024);
  }

  std::span<const uint8_t> picture(int64_t i) const {
    return {bytes_.data() + i * 1024, 1024};
  }

  std::vector<uint8_t> bytes_{};
};

TEST_F(PathfinderReferenceFiles, AreWhatWasCommitted) {
  const Rows committed = reference_features();
  ASSERT_EQ(std::ssize(committed), kReferences);
  for (int64_t i = 0; i < kReferences; ++i) {
    EXPECT_EQ(pathfinder_features(picture(i)), committed[i]) << "picture " << i;
  }
}

// How often each picture has each of the 256 values: sees the last bit.
TEST_F(PathfinderReferenceFiles, EnergyTestAcceptsOurGreyValues) {
  const auto counts = [](std::span<const uint8_t> pixels) {
    std::vector<double> row(256);
    for (const uint8_t value : pixels) ++row[value];
    return row;
  };
  Rows theirs, ours;
  const auto data = generate_pathfinder({}, kReferences, 3);
  for (int64_t i = 0; i < kReferences; ++i) {
    theirs.push_back(counts(picture(i)));
    ours.push_back(counts((*data)[i].ids));
  }
  EXPECT_GT(energy_test(theirs, ours, kPermutations, 1), kAlpha);
}

// Where the light falls: means over 4 x 4 pixels.
TEST_F(PathfinderReferenceFiles, EnergyTestAcceptsWhereOursAreLit) {
  const auto blocks = [](std::span<const uint8_t> pixels) {
    std::vector<double> row(64);
    for (size_t i = 0; i < 1024; ++i) {
      row[i / 128 * 8 + i % 32 / 4] += pixels[i];
    }
    return row;
  };
  Rows theirs, ours;
  const auto data = generate_pathfinder({}, kReferences, 4);
  for (int64_t i = 0; i < kReferences; ++i) {
    theirs.push_back(blocks(picture(i)));
    ours.push_back(blocks((*data)[i].ids));
  }
  EXPECT_GT(energy_test(theirs, ours, kPermutations, 1), kAlpha);
}

}  // namespace
}  // namespace luna::data
