#include "data/predictor.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "data/xz.h"

namespace luna::data {
namespace {

using Bytes = std::vector<uint8_t>;

TEST(Predictor, MatchesHandComputedResiduals) {
  // Predicted: 128, 130 | 130, clamp(129 + 120 - 130) = 120.
  EXPECT_EQ(to_residuals(Bytes{130, 120, 129, 125}, 2, 2),
            (Bytes{4, 19, 1, 10}));
  // The second picture does not see the first.
  EXPECT_EQ(to_residuals(Bytes{128, 128, 128, 127}, 1, 2), (Bytes{0, 0, 0, 1}));
  // Differences are modulo 256: 0 - 255 = 1.
  EXPECT_EQ(to_residuals(Bytes{255, 0}, 1, 2), (Bytes{254, 2}));
}

TEST(Predictor, CanBeUndone) {
  Bytes pictures(3 * 6 * 5);
  uint32_t state = 7;
  for (uint8_t& pixel : pictures) {
    state = state * 1664525u + 1013904223u;
    pixel = static_cast<uint8_t>(state >> 24);
  }
  Bytes residuals = to_residuals(pictures, 6, 5);
  EXPECT_NE(residuals, pictures);
  from_residuals(residuals, 6, 5);
  EXPECT_EQ(residuals, pictures);
}

TEST(Xz, CanBeUndone) {
  for (const auto content : {XzContent::kText, XzContent::kResiduals}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100000}}) {
      const Bytes bytes(size, 'x');
      EXPECT_EQ(decode_xz("here", encode_xz(bytes, content)), bytes);
    }
  }
}

TEST(Xz, StopsAtTheLimit) {
  const Bytes large = encode_xz(Bytes(40'000'000, 'x'), XzContent::kText);
  EXPECT_LT(large.size(), 10'000U);
  EXPECT_EQ(decode_xz("here", large, 40'000'000).size(), 40'000'000U);
  EXPECT_THROW(decode_xz("here", large, 39'999'999), c10::ValueError);
}

TEST(Xz, NamesWhatIsWrong) {
  const Bytes good = encode_xz(Bytes(1000, 'x'), XzContent::kText);
  const auto complaint = [](std::span<const uint8_t> bytes) -> std::string {
    try {
      decode_xz("file.xz", bytes);
      return "";
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
  };
  EXPECT_NE(complaint(Bytes{1, 2, 3, 4, 5, 6, 7, 8}).find("file.xz: expected "),
            std::string::npos);
  Bytes bad = good;
  bad[bad.size() / 2] ^= 1;
  EXPECT_NE(complaint(bad).find("damaged"), std::string::npos);
  EXPECT_NE(complaint(std::span(good).first(good.size() - 1)).find("cut short"),
            std::string::npos);
}

/// The check value that is published for this CRC.
TEST(Xz, Crc64OfTheNineDigits) {
  const std::string digits = "123456789";
  const std::span bytes(reinterpret_cast<const uint8_t*>(digits.data()), 9);
  EXPECT_EQ(crc64(bytes), 0x995dc9bbdf1939faull);
  EXPECT_EQ(crc64(bytes.subspan(4), crc64(bytes.first(4))), crc64(bytes));
}

}  // namespace
}  // namespace luna::data
