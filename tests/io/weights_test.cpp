#include "luna/io/weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "luna/io/text_file.h"
#include "support/bad_files.h"
#include "support/temporary_folder.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;
using luna::testing::expect_error;

class WeightsFolder : public luna::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    index_ = path("model.safetensors.index.json");
    write_safetensors(path("one.safetensors"),
                      {{"b", at::arange(3)}, {"a", at::ones({2})}},
                      {{"format", "pt"}});
    write_safetensors(path("two.safetensors"), {{"c", at::zeros({2, 2})}},
                      {{"format", "pt"}});
  }

  void write_index(const std::string& json) const { write_text(index_, json); }

  void refused(const std::string& json, std::vector<std::string> parts) const {
    SCOPED_TRACE(json);
    write_index(json);
    luna::testing::expect_refused(
        folder_, [&] { open_weights(folder_.string()); }, parts);
  }

  static constexpr const char* kGood =
      R"({"metadata":{"total_size":48,"more":[{"x":null}]},"weight_map":)"
      R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}})";

  std::string index_;
};

TEST_F(WeightsFolder, ShardsAreOneSetOfTensors) {
  write_index(kGood);
  for (const std::string& where : {folder_.string(), index_}) {
    const Weights weights = open_weights(where);
    EXPECT_EQ(weights.files().size(), 2U);
    std::vector<std::string> names;
    for (const TensorEntry& entry : weights.entries()) {
      names.push_back(entry.name);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"b", "a", "c"}));
    EXPECT_EQ(weights.metadata().at("format"), "pt");
    EXPECT_TRUE(at::equal(weights.tensor("b"), at::arange(3)));
    EXPECT_TRUE(at::equal(weights.tensor("c"), at::zeros({2, 2})));
    EXPECT_FALSE(weights.contains("d"));
    expect_error<c10::ValueError>([&] { weights.tensor("d"); }, {"\"d\""});
  }
}

TEST_F(WeightsFolder, OneFileNeedsNoIndex) {
  EXPECT_EQ(open_weights(path("one.safetensors")).entries().size(), 2U);
  fs::rename(path("two.safetensors"), path("model.safetensors"));
  EXPECT_TRUE(open_weights(folder_.string()).contains("c"));
}

TEST_F(WeightsFolder, BadIndexesAreRefusedByName) {
  const std::string one = R"("one.safetensors")";
  refused("", {index_, "JSON"});
  refused("[]", {index_, "an object", "an array"});
  refused("{}", {index_, "weight_map", "none"});
  refused(R"({"weight_map":{}})", {index_, "weight_map", "none"});
  refused(R"({"weight_map":[]})", {index_, "weight_map", "an array"});
  refused(R"({"weight_map":"x"})", {index_, "weight_map", "\"x\""});
  refused(R"({"weight_map":{"a":1}})", {index_, "weight_map", "\"a\"", "1"});
  refused(R"({"weight_map":{"a":null}})", {index_, "\"a\"", "null"});
  refused(R"({"weight_map":{"a":{}}})", {index_, "\"a\"", "an object"});
  refused(R"({"weight_map":{"a":[]}})", {index_, "\"a\"", "an array"});
  refused(R"({"metadata":3,"weight_map":{}})", {index_, "metadata", "3"});
  refused(R"({"extra":{},"weight_map":{}})", {index_, "extra"});
  refused(R"({"weight_map":{},"weight_map":{}})",
          {index_, "weight_map", "twice"});
  refused(R"({"weight_map":{"a":)" + one + R"(,"a":)" + one + "}}",
          {index_, "\"a\"", "twice"});
  refused(R"({"metadata":{"x":)" + std::string(100'000, '['),
          {index_, "metadata", "16 levels"});
  refused(std::string("{\"weight_map\":{}}\0", 18), {index_, "NUL"});
  refused(kGood + std::string("x"), {index_, "JSON"});
}

TEST_F(WeightsFolder, ShardsMustBeFilesBesideTheIndex) {
  for (const char* name :
       {"../one.safetensors", "/etc/x.safetensors", "x/../one.safetensors",
        "..", ".", "", ".safetensors", "one.bin", "one.safetensors\\u0000",
        "a\\\\b.safetensors", "./one.safetensors"}) {
    refused(std::string(R"({"weight_map":{"a":")") + name + "\"}}",
            {index_, "weight_map", "\"a\"", "in the folder of the index"});
  }
}

TEST_F(WeightsFolder, IndexAndShardsMustAgree) {
  const std::string x = R"({"weight_map":{"a":"one.safetensors",)";
  const std::string b = R"("b":"one.safetensors",)";
  refused(x + b + R"("c":"three.safetensors"}})",
          {index_, "\"c\"", "three.safetensors", "none"});
  refused(x + b + R"("c":"one.safetensors"}})",
          {index_, "\"c\"", "one.safetensors", "without it"});
  refused(x + R"("c":"two.safetensors"}})",
          {path("one.safetensors"), "\"b\"", "does not name"});
  write_safetensors(path("two.safetensors"),
                    {{"c", at::zeros({1})}, {"a", at::zeros({1})}});
  refused(kGood, {path("two.safetensors"), "\"a\"", "puts into another"});
  write_safetensors(path("two.safetensors"), {{"c", at::zeros({1})}},
                    {{"format", "np"}});
  refused(kGood, {path("two.safetensors"), "format", "\"np\"", "\"pt\""});
  write_text(path("two.safetensors"), "short");
  refused(kGood, {path("two.safetensors"), "header size"});
}

TEST_F(WeightsFolder, PicklesAreRefusedWithTheWayOut) {
  const std::string zip = "PK\x03\x04 and so on";
  for (const char* name : {"w.bin", "w.pt", "w.pth", "w.ckpt"}) {
    write_text(path(name), zip);
    expect_error<c10::ValueError>([&] { open_weights(path(name)); },
                                  {path(name), "pickled", "save_file"});
  }
  // by content, whatever the name
  write_text(path("w.safetensors"), zip);
  expect_error<c10::ValueError>([&] { open_weights(path("w.safetensors")); },
                                {"pickled"});
  write_text(path("w.safetensors"), "\x80\x02}q\x01.");
  expect_error<c10::ValueError>([&] { open_weights(path("w.safetensors")); },
                                {"pickled"});
  // a folder that holds nothing else
  fs::create_directory(path("hub"));
  write_text(path("hub/pytorch_model.bin"), zip);
  expect_error<c10::ValueError>([&] { open_weights(path("hub")); },
                                {path("hub/pytorch_model.bin"), "pickled"});
  fs::remove(path("hub/pytorch_model.bin"));
  expect_error<c10::ValueError>([&] { open_weights(path("hub")); },
                                {path("hub"), "model.safetensors"});
  expect_error<c10::Error>([&] { open_weights(path("none")); },
                           {path("none"), "No such file"});
}

TEST_F(WeightsFolder, AHeaderSizeThatLooksLikeAPickleIsNone) {
  // 0x0280 = 640 bytes of header
  const std::string header = "{}" + std::string(638, ' ');
  write_text(path("w.safetensors"),
             std::string("\x80\x02\0\0\0\0\0\0", 8) + header);
  EXPECT_TRUE(open_weights(path("w.safetensors")).entries().empty());
}

}  // namespace
}  // namespace luna::io
