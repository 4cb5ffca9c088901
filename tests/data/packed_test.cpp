#include "luna/data/packed.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "luna/data/memory_dataset.h"
#include "luna/data/splits.h"
#include "luna/io/text_file.h"
#include "support/temporary_folder.h"

namespace luna::data {
namespace {

using Bytes = std::vector<uint8_t>;

std::shared_ptr<MemoryDataset> texts() {
  auto data = std::make_shared<MemoryDataset>(
      TaskInfo{.task = "text", .vocabulary = 256, .classes = 2});
  data->add({.ids = Bytes{'a', 0, 255, '\n'}, .label = 1});
  data->add({.ids = Bytes{}, .label = 0});
  data->add({.ids = Bytes(300, 'z'), .label = 1});
  return data;
}

std::shared_ptr<MemoryDataset> pairs() {
  auto data = std::make_shared<MemoryDataset>(TaskInfo{
      .task = "retrieval", .vocabulary = 256, .classes = 2, .pairs = true});
  data->add({.ids = Bytes{1, 2}, .second = Bytes{3}, .label = 1});
  data->add({.ids = Bytes{}, .second = Bytes{4, 5, 6}, .label = 0});
  return data;
}

std::shared_ptr<MemoryDataset> pictures(int64_t channels = 1) {
  auto data = std::make_shared<MemoryDataset>(TaskInfo{.task = "image",
                                                       .vocabulary = 256,
                                                       .classes = 10,
                                                       .height = 5,
                                                       .width = 7,
                                                       .channels = channels});
  uint32_t state = 1;
  for (int i = 0; i < 4; ++i) {
    Bytes picture(35 * channels);
    for (uint8_t& pixel : picture) {
      state = state * 1664525u + 1013904223u;
      pixel = static_cast<uint8_t>(state >> 24);
    }
    data->add({.ids = picture, .label = i});
  }
  return data;
}

void expect_same(const Dataset& a, const Dataset& b) {
  EXPECT_EQ(a.info().task, b.info().task);
  EXPECT_EQ(a.info().vocabulary, b.info().vocabulary);
  EXPECT_EQ(a.info().classes, b.info().classes);
  EXPECT_EQ(a.info().pairs, b.info().pairs);
  EXPECT_EQ(a.info().height, b.info().height);
  EXPECT_EQ(a.info().width, b.info().width);
  EXPECT_EQ(a.info().channels, b.info().channels);
  EXPECT_EQ(a.longest(), b.longest());
  ASSERT_EQ(a.size(), b.size());
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(a[i].ids, b[i].ids)) << i;
    EXPECT_TRUE(std::ranges::equal(a[i].second, b[i].second)) << i;
    EXPECT_EQ(a[i].label, b[i].label) << i;
  }
}

/// What open_packed says of a file it refuses; empty if it opens it.
std::string complaint(const std::string& path) {
  try {
    open_packed(path);
    return "";
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
}

class Packed : public testing::FolderTest {
 protected:
  /// The bytes of a file of pictures.
  std::string packed(bool compress) {
    write_packed(path("x.luna"), *pictures(),
                 {.split = "train", .compress = compress});
    return io::read_text(path("x.luna"));
  }
  std::string complaint_about(const std::string& bytes) {
    std::ofstream(path("bad.luna"), std::ios::binary) << bytes;
    return complaint(path("bad.luna"));
  }
};

TEST_F(Packed, OpensAsItWasWritten) {
  const std::shared_ptr<Dataset> sets[] = {
      texts(), pairs(), pictures(), pictures(3),
      std::make_shared<MemoryDataset>(
          TaskInfo{.task = "none", .vocabulary = 3, .classes = 1})};
  for (const auto& data : sets) {
    for (const bool compress : {false, true}) {
      write_packed(path("x.luna"), *data, {.compress = compress});
      expect_same(*data, *open_packed(path("x.luna")));
      EXPECT_EQ(read_packed_info(path("x.luna")).compressed, compress);
    }
  }
}

TEST_F(Packed, SaysWhatItHolds) {
  write_packed(path("x.luna"), *pairs(),
               {.split = "test", .origin = {{"source", "two pairs"}}});
  const PackedInfo info = read_packed_info(path("x.luna"));
  EXPECT_EQ(info.task.task, "retrieval");
  EXPECT_EQ(info.split, "test");
  EXPECT_EQ(info.samples, 2);
  EXPECT_EQ(info.ids, 6);
  EXPECT_EQ(info.longest, 3);
  EXPECT_EQ(info.origin.at("source"), "two pairs");
}

TEST_F(Packed, SameSamplesGiveTheSameBytes) {
  EXPECT_EQ(packed(false), packed(false));
  EXPECT_EQ(packed(true), packed(true));
}

TEST_F(Packed, FindsAnyChangedByte) {
  for (const bool compress : {false, true}) {
    const std::string good = packed(compress);
    ASSERT_EQ(complaint_about(good), "");
    // All of the head's fixed part, then samples of every part: an error costs
    // milliseconds.
    for (size_t i = 0; i < good.size(); i += i < 24 ? 1 : 5) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      const std::string message = complaint_about(bad);
      EXPECT_NE(message.find(path("bad.luna")), std::string::npos)
          << "byte " << i << ", compressed " << compress << ": " << message;
    }
  }
}

TEST_F(Packed, NamesTheDamagedPart) {
  std::string bad = packed(false);
  bad.back() ^= 1;
  EXPECT_NE(complaint_about(bad).find("section ids: expected CRC-64"),
            std::string::npos);
  bad = packed(false);
  bad[40] ^= 1;
  EXPECT_NE(complaint_about(bad).find("head: expected CRC-64"),
            std::string::npos);
}

TEST_F(Packed, FindsAnyTruncation) {
  for (const bool compress : {false, true}) {
    const std::string good = packed(compress);
    for (size_t size = 0; size < good.size(); size += size < 32 ? 1 : 11) {
      EXPECT_NE(complaint_about(good.substr(0, size)), "")
          << size << " bytes, compressed " << compress;
    }
    EXPECT_NE(complaint_about(good.substr(0, good.size() - 1))
                  .find("the file is cut short"),
              std::string::npos);
    EXPECT_NE(complaint_about(good + "x").find("appended"), std::string::npos);
  }
}

TEST_F(Packed, RefusesOtherFiles) {
  EXPECT_NE(complaint_about("").find("empty file"), std::string::npos);
  EXPECT_NE(complaint_about("something else").find("lunadata"),
            std::string::npos);
  std::string later = packed(false);
  later[8] = 2;
  EXPECT_NE(complaint_about(later).find("version: expected 1, got 2"),
            std::string::npos);
  EXPECT_THROW(open_packed(path("none.luna")), c10::Error);
  EXPECT_THROW(open_packed(folder_.string()), c10::Error);
}

TEST_F(Packed, StoppedWritingLeavesNothing) {
  write_packed(path("x.luna"), *texts());
  const std::string before = io::read_text(path("x.luna"));
  struct Stop {};
  for (const bool compress : {false, true}) {
    EXPECT_THROW(write_packed(path("x.luna"), *pictures(),
                              {.compress = compress,
                               .progress = [](double) { throw Stop(); }}),
                 Stop);
  }
  EXPECT_EQ(io::read_text(path("x.luna")), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_),
                          std::filesystem::directory_iterator()),
            1);
}

TEST_F(Packed, SaysHowToMakeASplitThatIsNotThere) {
  write_packed(split_file(folder_.string(), "test"), *texts());
  EXPECT_EQ(open_split(folder_.string(), "test")->size(), 3);
  try {
    open_split(folder_.string(), "train");
    FAIL() << "expected an error";
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(path("train.luna")), std::string::npos) << message;
    EXPECT_NE(message.find("luna data pack"), std::string::npos) << message;
  }
}

TEST_F(Packed, OpensInUnderASecondTiming) {
  constexpr int64_t kSamples = 200000, kPixels = 1024;
  std::vector<int64_t> offsets(kSamples + 1), labels(kSamples);
  for (int64_t i = 0; i <= kSamples; ++i) offsets[i] = i * kPixels;
  write_packed(path("x.luna"),
               MemoryDataset({.task = "image",
                              .vocabulary = 256,
                              .classes = 2,
                              .height = 32,
                              .width = 32},
                             Bytes(kSamples * kPixels, 7), offsets, labels));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(open_packed(path("x.luna"))->size(), kSamples);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace luna::data
