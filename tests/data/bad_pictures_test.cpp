// PNG and JPEG files that are cut, broken, or far smaller than they say.
#include <gtest/gtest.h>
#include <luna/data/pixels.h>
#include <luna/io/text_file.h>

#include <cstdlib>
#include <random>

#include "data/jpeg_file.h"
#include "data/png_file.h"
#include "support/bad_files.h"
#include "support/temporary_folder.h"

namespace luna::data {
namespace {

using namespace std::string_literals;
using luna::testing::expect_error;

/// The start of a PNG up to its first IDAT: 16384 x 16384 in RGB, which would
/// take 768 MiB.
std::string huge_png_start(bool interlaced) {
  return "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x40\0\0\0\x40\0\x08\x02\0\0"s +
         (interlaced ? "\x01\x51\xad\xb7\x45"s : "\0\x26\xaa\x87\xd3"s);
}

std::string noise_png(int64_t height, int64_t width) {
  Pixels noise{height, width, 3, {}};
  std::mt19937 random(1);
  for (int64_t i = 0; i < 3 * height * width; ++i) {
    noise.bytes.push_back(static_cast<uint8_t>(random()));
  }
  return encode_png(noise);
}

std::string two_bytes(int64_t value) {
  return {static_cast<char>(value >> 8), static_cast<char>(value)};
}

/// A grey JPEG in which the codes of every block are zeros: one for the mean,
/// and unless `progressive` one that ends the block.
std::string flat_jpeg(int64_t height, int64_t width, int64_t data_bytes,
                      bool progressive = false) {
  const std::string one_code = "\x01"s + std::string(15, '\0') + "\0"s;
  return "\xff\xd8"s                                      // start
         + "\xff\xdb\0\x43\0"s + std::string(64, '\x01')  // divisors
         + "\xff" + (progressive ? "\xc2" : "\xc0")       // the frame
         + "\0\x0b\x08"s + two_bytes(height) + two_bytes(width) +
         "\1\1\x11\0"s + "\xff\xc4\0\x14\0"s + one_code  // of means
         + "\xff\xc4\0\x14\x10"s + one_code              // of the rest
         + "\xff\xda\0\x08\1\1\0\0"s + (progressive ? "\0"s : "\x3f"s) + "\0"s +
         std::string(data_bytes, '\0') + "\xff\xd9";
}

class BadPictures : public luna::testing::FolderTest {
 protected:
  Pixels read(const std::string& bytes) {
    io::write_text(path("picture"), bytes);
    return read_picture(path("picture"));
  }
  void expect_refused(const std::string& bytes, const std::string& part) {
    io::write_text(path("picture"), bytes);
    luna::testing::expect_refused(folder_,
                                  [&] { read_picture(path("picture")); },
                                  {path("picture"), part});
  }
};

/// What a picture says of its size is not believed.
TEST_F(BadPictures, HugePngs) {
  const std::string small = noise_png(117, 117), large = noise_png(600, 600);
  const size_t start = huge_png_start(false).size();
  for (const bool interlaced : {false, true}) {
    const std::string huge = huge_png_start(interlaced);
    expect_refused(huge + "\0\0\0\0IDAT\x35\xaf\x06\x1e"s, "fewer pixels");
    expect_refused(huge + small.substr(start), "fewer pixels");  // 41 KB
    // 1 MB, which might hold as much, and does not.
    expect_refused(huge + large.substr(start), "image data|filter|IDAT");
  }
}

TEST_F(BadPictures, HugeJpegs) {
  expect_refused(flat_jpeg(16000, 16000, 10), "fewer pixels");
  expect_refused(flat_jpeg(16000, 16000, 242'000), "Premature|Corrupt");
  expect_refused(flat_jpeg(16000, 16000, 242'000, true), "progressive");
}

/// Large and flat, in small files that say the truth.
TEST_F(BadPictures, FlatPicturesAreGood) {
  constexpr int64_t kHeight = 3000, kWidth = 4096;
  Pixels flat{kHeight, kWidth, 3, {}};
  flat.bytes.assign(3 * kHeight * kWidth, 7);
  EXPECT_EQ(read(encode_png(flat)).bytes, flat.bytes);
  constexpr int64_t kBlocks = kHeight / 8 * kWidth / 8;
  flat.bytes.assign(flat.bytes.size(), 128);
  EXPECT_EQ(read(flat_jpeg(kHeight, kWidth, kBlocks / 4)).bytes, flat.bytes);
  EXPECT_EQ(read(flat_jpeg(kHeight, kWidth, kBlocks / 8, true)).bytes,
            flat.bytes);
}

TEST(CutPictures, AreRefusedAndBrokenOnesDoNoHarm) {
  const std::string fixtures =
      std::getenv("LUNA_SOURCE_DIR") + "/tests/data/fixtures/"s;
  const struct {
    Pixels (*decode)(const std::string& bytes, const std::string& path);
    std::string bytes, message;
  } files[] = {{decode_png_rgb, noise_png(16, 20), "a: expected a PNG file"},
               {decode_jpeg_rgb, io::read_text(fixtures + "baseline.jpg"),
                "a: expected a JPEG file"},
               {decode_jpeg_rgb, io::read_text(fixtures + "progressive.jpg"),
                "a: expected a JPEG file"}};
  std::mt19937 random(2);
  for (const auto& [decode, whole, message] : files) {
    EXPECT_FALSE(decode(whole, "").bytes.empty());
    for (size_t length = 0; length < whole.size(); length += 2) {
      SCOPED_TRACE(length);
      expect_error<c10::ValueError>(
          [&] { decode(whole.substr(0, length), "a"); }, {message});
    }
    for (int i = 0; i < 300; ++i) {
      std::string broken = whole;
      broken[random() % broken.size()] = static_cast<char>(random());
      try {
        decode(broken, "a");
      } catch (const c10::ValueError& error) {
        EXPECT_TRUE(
            luna::testing::holds(error.what_without_backtrace(), message));
      }
    }
  }
}

TEST_F(BadPictures, OtherFiles) {
  expect_error<c10::ValueError>([&] { read("GIF89a"); },
                                {path("picture"), "PNG or JPEG", "6 bytes"});
}

}  // namespace
}  // namespace luna::data
