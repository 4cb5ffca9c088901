#include "luna/data/show.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "data/png_file.h"
#include "luna/data/memory_dataset.h"
#include "luna/io/text_file.h"
#include "support/temporary_folder.h"

namespace luna::data {
namespace {

using Bytes = std::vector<uint8_t>;

const TaskInfo kPicture{
    .task = "image", .vocabulary = 256, .classes = 2, .height = 3, .width = 2};
const Bytes kPixels = {0, 255, 128, 0, 255, 255};

std::string printable(const std::string& text) {
  return printable_text(
      {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

TEST(Show, TextStaysTextAndTheRestIsEscaped) {
  EXPECT_EQ(printable("Caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n"),
            "Caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n");
  EXPECT_EQ(printable("\x1b[2J\x07\t"), "\\x1b[2J\\x07\\x09");
  EXPECT_EQ(printable("a\xff\xc3"), "a\\xff\\xc3");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");  // a control character
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");  // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right to left
}

TEST(Show, SymbolsHaveNames) {
  EXPECT_EQ(sequence_text({.task = "listops", .vocabulary = 15, .classes = 10},
                          Bytes{11, 4, 10, 2, 3, 14, 14}),
            "[MAX 4 [MIN 2 3 ] ]");
  EXPECT_EQ(sequence_text({.task = "needles", .vocabulary = 20, .classes = 10},
                          Bytes{3, 14, 1}),
            "3 [4] 1");
}

TEST(Show, OtherSequencesAreNumbers) {
  EXPECT_EQ(sequence_text({.task = "x", .vocabulary = 9, .classes = 2},
                          Bytes{1, 0, 8}),
            "1 0 8");
}

TEST(Show, PicturesInLettersAndBlocks) {
  EXPECT_EQ(picture_letters(kPicture, kPixels), "  @@\n++\n@@@@\n");
  const std::string blocks = picture_blocks(kPicture, kPixels);
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), '\n'), 2);
  EXPECT_TRUE(
      blocks.starts_with("\033[38;2;0;0;0m\033[48;2;128;128;128m▀"
                         "\033[38;2;255;255;255m\033[48;2;0;0;0m▀\033[0m\n"));
  EXPECT_THROW(picture_letters(kPicture, Bytes{1}), c10::ValueError);
}

class Sheet : public testing::FolderTest {};

TEST_F(Sheet, ShowsEachPictureThreeTimesAsLarge) {
  MemoryDataset data(kPicture);
  data.add({.ids = kPixels});
  data.add({.ids = Bytes(6, 9)});
  io::write_text(path("x.png"),
                 contact_sheet(data, std::vector<int64_t>{0, 1}));
  const Pixels sheet = read_png(path("x.png"));
  EXPECT_EQ(sheet.channels, 1);
  EXPECT_EQ(sheet.width, 2 + 2 * (6 + 2));
  EXPECT_EQ(sheet.height, 2 + 9 + 2);
  const auto at = [&](int64_t y, int64_t x) {
    return int{sheet.bytes[y * sheet.width + x]};
  };
  for (int64_t y = 0; y < 9; ++y) {
    for (int64_t x = 0; x < 6; ++x) {
      EXPECT_EQ(at(2 + y, 2 + x), kPixels[y / 3 * 2 + x / 3]);
      EXPECT_EQ(at(2 + y, 10 + x), 9);
    }
  }
  EXPECT_EQ(at(0, 0), 255);
  EXPECT_EQ(at(5, 8), 255);
}

}  // namespace
}  // namespace luna::data
