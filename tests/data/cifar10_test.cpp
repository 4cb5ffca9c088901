// CIFAR-10, grey and in colour, from its binary files and from PNG.

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/png_file.h"
#include "data/readers.h"
#include "luna/io/text_file.h"

namespace luna::data {
namespace {

/// Picture k: colours (k, 2 k, 3 k) in its first pixel, (255, 255, 255) in its
/// second, black elsewhere; label k % 10.
constexpr int kBatch = 4;

class ImageReader : public Readers {
 protected:
  static std::string record(int k) {
    std::string bytes(3073, '\0');
    bytes[0] = static_cast<char>(k % 10);
    for (int channel = 0; channel < 3; ++channel) {
      bytes[1 + 1024 * channel] = static_cast<char>((channel + 1) * k);
      bytes[1 + 1024 * channel + 1] = '\xff';
    }
    return bytes;
  }
  static std::string batch_name(int b) {
    return b == 5 ? "test_batch" : fmt::format("data_batch_{}", b + 1);
  }
  void write_binary(const std::string& root) {
    for (int b = 0; b < 6; ++b) {
      std::string bytes;
      for (int i = 0; i < kBatch; ++i) bytes += record(b * kBatch + i);
      write(root + batch_name(b) + ".bin", bytes);
    }
  }
  void write_png(const std::string& root) {
    std::string labels[2];
    for (int b = 0; b < 6; ++b) {
      Pixels sheet{.height = kBatch, .width = 1024, .channels = 3};
      for (int i = 0; i < kBatch; ++i) {
        const int k = b * kBatch + i;
        std::vector<uint8_t> row(3072);
        for (int channel = 0; channel < 3; ++channel) {
          row[channel] = static_cast<uint8_t>((channel + 1) * k);
          row[3 + channel] = 255;
        }
        sheet.bytes.insert(sheet.bytes.end(), row.begin(), row.end());
        std::string& list = labels[b == 5 ? 1 : 0];
        list += fmt::format("{}{}", list.empty() ? "[" : ",", k % 10);
      }
      write(root + batch_name(b) + ".png", encode_png(sheet));
    }
    write(root + "train_lables.json", labels[0] + "]");
    write(root + "test_labels.json", labels[1] + "]");
  }
};

TEST_F(ImageReader, MakesGreyOfColours) {
  write_binary("cifar-10-batches-bin/");
  const Splits splits = load("image");
  EXPECT_EQ(splits.train->size(), 18);
  EXPECT_EQ(splits.validation->size(), 2);  // 5,000 of 50,000
  ASSERT_EQ(splits.test->size(), kBatch);
  const Sample s = (*splits.test)[1];  // k = 21
  EXPECT_EQ(s.label, 1);
  ASSERT_EQ(s.ids.size(), 1024u);
  EXPECT_EQ(s.ids[0], 38);  // .2989 * 21 + .587 * 42 + .114 * 63 = 38.11
  EXPECT_EQ(s.ids[1], 255);
  EXPECT_EQ(s.ids[2], 0);
  EXPECT_EQ(splits.test->info().height, 32);
}

TEST_F(ImageReader, KeepsColoursAsPlanes) {
  write_binary("");
  const Splits splits = load("cifar10");
  EXPECT_EQ(splits.test->info().channels, 3);
  const Sample s = (*splits.test)[1];  // k = 21
  ASSERT_EQ(s.ids.size(), 3072u);
  for (int channel = 0; channel < 3; ++channel) {
    EXPECT_EQ(s.ids[1024 * channel], 21 * (channel + 1));
    EXPECT_EQ(s.ids[1024 * channel + 1], 255);
    EXPECT_EQ(s.ids[1024 * channel + 2], 0);
  }
  // The same pictures are held out as in grey.
  const Splits grey = load("image");
  for (int64_t i = 0; i < splits.validation->size(); ++i) {
    EXPECT_EQ((*splits.validation)[i].label, (*grey.validation)[i].label);
  }
}

TEST_F(ImageReader, BothFormsGiveTheSame) {
  write_binary("a/");
  write_png("b/");
  for (const std::string task : {"image", "cifar10"}) {
    EXPECT_EQ(content(load_task(task, {.folder = path("a")})),
              content(load_task(task, {.folder = path("b")})));
  }
}

TEST_F(ImageReader, NamesWhatIsWrongWithABinaryFile) {
  expect_refused(
      "image", {"data_batch_1.bin", "data_batch_1.png", "www.cs.toronto.edu"});
  const auto with = [&](const std::string& bytes,
                        const std::vector<std::string>& parts) {
    write_binary("");
    write("data_batch_3.bin", bytes);
    std::vector<std::string> all = parts;
    all.push_back(path("data_batch_3.bin"));
    expect_refused("image", all);
  };
  with("", {"empty file"});
  with(record(1).substr(0, 3000), {"multiple of 3073", "got 3000"});
  with(record(1) + "\x0a" + std::string(3072, '\0'),
       {"picture 1: label: expected 0 to 9, got 10"});
  write_binary("");
  fs::remove(path("data_batch_5.bin"));
  expect_refused("image", {path("data_batch_5.bin"), "No such file"});
}

TEST_F(ImageReader, NamesWhatIsWrongWithPng) {
  write_png("");
  const std::string good = io::read_text(path("data_batch_2.png"));
  const auto with = [&](const std::string& name, const std::string& bytes,
                        const std::string& part) {
    write_png("");
    write(name, bytes);
    expect_refused("image", {path(name), part});
  };
  with("data_batch_2.png", good.substr(0, good.size() / 2), "cut short");
  with("data_batch_2.png", "no png at all", "expected a PNG file");
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 1;
  with("data_batch_2.png", flipped, "expected a PNG file");
  Pixels small{.height = 1, .width = 2, .channels = 1, .bytes = {1, 2}};
  with("data_batch_2.png", encode_png(small),
       "expected rows of 1024 RGB pixels, got 2 pixels of 1 channels");
  with("train_lables.json", "[1, 2]", "expected at least 4 labels");
  with("train_lables.json", "[1, 2", "expected a JSON array of labels");
  with("train_lables.json", "[\"cat\"]", "expected a JSON array of labels");
  with("train_lables.json", "[0, 10]", "label 1: expected 0 to 9, got 10");
  std::string many = "[0";
  for (int i = 1; i < 5 * kBatch + 1; ++i) many += ",0";
  with("train_lables.json", many + "]", "expected 20 labels");
}

}  // namespace
}  // namespace luna::data
