// Each rule of the format, broken by a file made by hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/safetensors_bytes.h"
#include "luna/io/safetensors.h"
#include "support/bad_files.h"
#include "support/temporary_folder.h"

namespace luna::io {
namespace {

using luna::testing::expect_error;
using luna::testing::expect_refused;

/// A header with one tensor "a" of these fields.
std::string one(const std::string& fields) {
  return R"({"a":{)" + fields + "}}";
}

struct BadFile {
  const char* what;
  std::string file;
  std::vector<std::string> message;
};

std::vector<BadFile> bad_files() {
  const std::string u8 = R"("dtype":"U8",)";
  const std::string shape4 = R"("shape":[4],)";
  const std::string offsets4 = R"("data_offsets":[0,4])";
  const std::string a4 = R"("a":{)" + u8 + shape4 + offsets4 + "}";
  const std::string name = "tensor \"a\"";
  const auto fields = [&](const std::string& f) { return file_of(one(f), 4); };
  const auto two = [&](const std::string& second, size_t data) {
    return file_of("{" + a4 + ",\"b\":{" + u8 + second + "}}", data);
  };
  std::string long_shape = "1";
  for (int i = 0; i < 64; ++i) long_shape += ",1";
  return {
      // the header's size
      {"empty", "", {"header size", "got a file of 0"}},
      {"seven bytes", std::string(7, '\0'), {"header size", "of 7"}},
      {"size 0", size_bytes(0), {"header", "'{'", "nothing"}},
      {"size beyond the file",
       size_bytes(9) + "{}      ",
       {"header size", "9"}},
      {"size 100 MB + 1",
       size_bytes(100'000'001) + "{}",
       {"header size", "100000000", "100000001"}},
      {"size 2^64 - 1",
       size_bytes(~uint64_t{0}) + "{}",
       {"header size", "18446744073709551615"}},
      {"size 2^64 - 8 (wraps)",
       size_bytes(~uint64_t{7}) + "{}",
       {"header size"}},
      {"another kind of file",
       "# Weights\n\nof something\n",
       {"not safetensors", "# Weights"}},
      // JSON
      {"leading space", file_of(" {}"), {"header", "'{'"}},
      {"byte order mark", file_of("\xef\xbb\xbf{}"), {"header", "'{'"}},
      {"an array", file_of("[]"), {"header", "'{'"}},
      {"not closed", file_of("{"), {"header", "JSON"}},
      {"text after it", file_of("{} x"), {"header", "JSON"}},
      {"two objects", file_of("{}{}"), {"header", "JSON"}},
      {"NUL after it", file_of(std::string("{}\0", 3)), {"NUL", "2"}},
      {"comment", file_of("{/* */}"), {"header", "JSON"}},
      {"trailing comma", file_of("{" + a4 + ",}", 4), {"JSON"}},
      {"bad UTF-8", file_of("{\"\xff\":{}}"), {"JSON", "UTF-8"}},
      {"overlong UTF-8", file_of("{\"\xc0\xaf\":{}}"), {"JSON", "UTF-8"}},
      {"lone surrogate", file_of(R"({"\ud800":{}})"), {"JSON", "surrogate"}},
      {"control character", file_of("{\"a\nb\":{}}"), {"JSON", "control"}},
      {"deep arrays",
       file_of(R"({"a":)" + std::string(1'000'000, '[')),
       {name, "expected an object", "an array"}},
      {"deep objects",
       file_of(R"({"a":{"dtype":{"x":{}}}})"),
       {name, "dtype", "expected a string", "an object"}},
      {"deep shape",
       fields(u8 + R"("shape":[[4]],)" + offsets4),
       {name, "shape", "an array"}},
      // names
      {"name twice", file_of("{" + a4 + "," + a4 + "}", 4), {name, "twice"}},
      {"escaped name twice",
       file_of("{" + a4 + R"(,"\u0061":{)" + u8 + shape4 + offsets4 + "}}", 4),
       {name, "twice"}},
      {"dtype twice",
       fields(u8 + u8 + shape4 + offsets4),
       {name, "dtype", "twice"}},
      {"shape twice",
       fields(u8 + shape4 + shape4 + offsets4),
       {name, "shape", "twice"}},
      {"offsets twice",
       fields(u8 + shape4 + offsets4 + "," + offsets4),
       {name, "data_offsets", "twice"}},
      {"unknown field",
       fields(u8 + shape4 + R"("extra":1,)" + offsets4),
       {name, "extra"}},
      {"no dtype", fields(shape4 + offsets4), {name, "dtype", "none"}},
      {"no shape", fields(u8 + offsets4), {name, "shape", "none"}},
      {"no offsets",
       fields(R"("dtype":"U8","shape":[4])"),
       {name, "data_offsets", "none"}},
      {"no fields", fields(""), {name, "dtype", "none"}},
      {"entry is null", file_of(R"({"a":null})"), {name, "an object", "null"}},
      {"entry is a number", file_of(R"({"a":1})"), {name, "an object", "1"}},
      {"entry is a string",
       file_of(R"({"a":"x"})"),
       {name, "an object", "\"x\""}},
      {"entry is true", file_of(R"({"a":true})"), {name, "an object", "true"}},
      // dtype
      {"unknown dtype",
       fields(R"("dtype":"F33",)" + shape4 + offsets4),
       {name, "dtype", "F33", "BF16"}},
      {"dtype in lower case",
       fields(R"("dtype":"u8",)" + shape4 + offsets4),
       {name, "dtype", "\"u8\""}},
      {"dtype a number",
       fields(R"("dtype":8,)" + shape4 + offsets4),
       {name, "dtype", "a string", "8"}},
      {"dtype without type in LibTorch",
       fields(R"("dtype":"F6_E2M3",)" + shape4 + offsets4),
       {name, "dtype", "F6_E2M3", "LibTorch"}},
      {"odd F4",
       fields(R"("dtype":"F4","shape":[7],)" + offsets4),
       {name, "shape", "multiple of 2", "7"}},
      {"F4 without dimension",
       fields(R"("dtype":"F4","shape":[],)" + offsets4),
       {name, "shape", "multiple of 2"}},
      // shape
      {"negative",
       fields(u8 + R"("shape":[-4],)" + offsets4),
       {name, "shape", "-4"}},
      {"minus zero",
       fields(u8 + R"("shape":[-0],)" + offsets4),
       {name, "shape", "got 0|got -0"}},
      {"fraction",
       fields(u8 + R"("shape":[4.0],)" + offsets4),
       {name, "shape", "4.0"}},
      {"exponent",
       fields(u8 + R"("shape":[4e0],)" + offsets4),
       {name, "shape", "4e0"}},
      {"string in it",
       fields(u8 + R"("shape":["4"],)" + offsets4),
       {name, "shape", "\"4\""}},
      {"a number alone",
       fields(u8 + R"("shape":4,)" + offsets4),
       {name, "shape", "an array"}},
      {"null",
       fields(u8 + R"("shape":null,)" + offsets4),
       {name, "shape", "null"}},
      {"2^64",
       fields(u8 + R"("shape":[18446744073709551616],)" + offsets4),
       {name, "shape", "18446744073709551616"}},
      {"2^63",
       fields(u8 + R"("shape":[9223372036854775808],)" + offsets4),
       {name, "shape", "overflow"}},
      {"overflow to a small size",
       fields(u8 + R"("shape":[4294967296,4294967296,4],)" + offsets4),
       {name, "shape", "overflow"}},
      {"overflow by the item",
       fields(R"("dtype":"F64","shape":[2305843009213693952],)" + offsets4),
       {name, "shape", "overflow"}},
      {"overflow hidden by 0",
       file_of(one(
           u8 + R"("shape":[0,4294967296,4294967296],"data_offsets":[0,0])")),
       {name, "shape", "overflow"}},
      {"65 dimensions",
       fields(u8 + R"("shape":[)" + long_shape + "]," + offsets4),
       {name, "shape", "64"}},
      // data_offsets
      {"one",
       fields(u8 + shape4 + R"("data_offsets":[0])"),
       {name, "data_offsets", "two", "1 of"}},
      {"none",
       fields(u8 + shape4 + R"("data_offsets":[])"),
       {name, "data_offsets", "two", "0 of"}},
      {"three",
       fields(u8 + shape4 + R"("data_offsets":[0,4,4])"),
       {name, "data_offsets", "two", "more"}},
      {"negative begin",
       fields(u8 + shape4 + R"("data_offsets":[-1,3])"),
       {name, "data_offsets", "-1"}},
      {"backwards",
       fields(u8 + shape4 + R"("data_offsets":[4,0])"),
       {name, "data_offsets", "begin <= end"}},
      {"an object",
       fields(u8 + shape4 + R"("data_offsets":{})"),
       {name, "data_offsets", "an object"}},
      {"too short for the shape",
       fields(u8 + R"("shape":[5],)" + offsets4),
       {name, "data_offsets", "5 bytes", "4 bytes"}},
      {"too long for the shape",
       fields(R"("dtype":"U8","shape":[3],)" + offsets4),
       {name, "data_offsets", "3 bytes"}},
      {"bytes of a scalar",
       fields(R"("dtype":"U8","shape":[],)" + offsets4),
       {name, "data_offsets", "1 bytes"}},
      {"bytes of an empty tensor",
       fields(R"("dtype":"U8","shape":[0],)" + offsets4),
       {name, "data_offsets", "0 bytes"}},
      {"begins at 4",
       file_of(one(u8 + shape4 + R"("data_offsets":[4,8])"), 8),
       {name, "begin 0", "hole"}},
      {"hole",
       two(shape4 + R"("data_offsets":[5,9])", 9),
       {"tensor \"b\"", "data_offsets", "begin 4", "hole"}},
      {"overlap",
       two(shape4 + R"("data_offsets":[3,7])", 7),
       {"tensor \"b\"", "data_offsets", "overlap"}},
      {"same bytes twice",
       two(shape4 + offsets4, 4),
       {"data_offsets", "overlap"}},
      {"empty tensor inside another",
       two(R"("shape":[0],"data_offsets":[2,2])", 4),
       {"tensor \"b\"", "data_offsets", "overlap"}},
      {"offsets of 2^63",
       file_of(one(
           u8 +
           R"("shape":[0],"data_offsets":[9223372036854775808,9223372036854775808])")),
       {name, "data_offsets", "2^63"}},
      // file size
      {"a byte short",
       file_of("{" + a4 + "}", 3),
       {"file size", "expected 4", "got 3"}},
      {"a byte more",
       file_of("{" + a4 + "}", 5),
       {"file size", "expected 4", "got 5"}},
      {"data without tensors",
       file_of("{}", 1),
       {"file size", "expected 0", "got 1"}},
      // __metadata__
      {"metadata a string",
       file_of(R"({"__metadata__":"x"})"),
       {"__metadata__", "an object"}},
      {"metadata null",
       file_of(R"({"__metadata__":null})"),
       {"__metadata__", "null"}},
      {"metadata value a number",
       file_of(R"({"__metadata__":{"k":1}})"),
       {"__metadata__", "\"k\"", "a string", "1"}},
      {"metadata value an object",
       file_of(R"({"__metadata__":{"k":{}}})"),
       {"__metadata__", "\"k\"", "a string"}},
      {"metadata value an array",
       file_of(R"({"__metadata__":{"k":[]}})"),
       {"__metadata__", "\"k\"", "a string"}},
      {"metadata key twice",
       file_of(R"({"__metadata__":{"k":"1","k":"2"}})"),
       {"__metadata__", "\"k\"", "twice"}},
      {"metadata twice",
       file_of(R"({"__metadata__":{},"__metadata__":{}})"),
       {"__metadata__", "twice"}},
  };
}

class BadSafetensors : public luna::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    x_ = path("x.safetensors");
  }
  /// Without syncing, which thousands of files would wait for.
  void put(const std::string& bytes) const {
    std::ofstream(x_, std::ios::binary) << bytes;
  }
  std::string x_;
};

TEST_F(BadSafetensors, EachRuleIsEnforcedByName) {
  const std::vector<BadFile> all = bad_files();
  EXPECT_GE(all.size(), 60U);
  for (const BadFile& bad : all) {
    SCOPED_TRACE(bad.what);
    put(bad.file);
    std::vector<std::string> parts = bad.message;
    parts.push_back(x_);
    expect_refused(
        folder_, [&] { Safetensors::open(x_); }, parts);
  }
}

TEST_F(BadSafetensors, UnusualFilesThatKeepTheRulesAreRead) {
  put(file_of("{}"));
  EXPECT_TRUE(Safetensors::open(x_).entries().empty());
  put(file_of("{\n\t\"__metadata__\" : { } }\r\n  "));
  EXPECT_TRUE(Safetensors::open(x_).metadata().empty());
  // header order unlike data order; empty tensors between; no padding
  put(file_of(R"({"b":{"data_offsets":[2,3],"shape":[1],"dtype":"U8"},)"
              R"("e":{"dtype":"F64","shape":[9223372036854775807,0],)"
              R"("data_offsets":[2,2]},"":{"dtype":"I16","shape":[],)"
              R"("data_offsets":[0,2]}})",
              3));
  // 2^63 - 1 times 8 bytes overflows, even if nothing is stored
  expect_error<c10::ValueError>([&] { Safetensors::open(x_); },
                                {"\"e\"", "overflow"});
  put(file_of(R"({"b":{"data_offsets":[2,3],"shape":[1],"dtype":"U8"},)"
              R"("e":{"dtype":"F64","shape":[1000000,0],)"
              R"("data_offsets":[2,2]},"":{"dtype":"I16","shape":[],)"
              R"("data_offsets":[0,2]}})",
              3));
  const Safetensors file = Safetensors::open(x_);
  EXPECT_EQ(file.entries()[0].name, "b");
  EXPECT_EQ(file.tensor("").item<int>(), 257);
  EXPECT_EQ(file.tensor("e").sizes(), at::IntArrayRef({1000000, 0}));
}

TEST_F(BadSafetensors, BoolsThatAreNeitherAreRefused) {
  put(file_of(one(R"("dtype":"BOOL","shape":[3],"data_offsets":[0,3])")) +
      std::string("\0\1\2", 3));
  const Safetensors file = Safetensors::open(x_);
  expect_error<c10::ValueError>([&] { file.tensor("a"); },
                                {x_, "\"a\"", "BOOL", "got 2 at element 2"});
}

}  // namespace
}  // namespace luna::io
