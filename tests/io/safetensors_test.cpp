#include "luna/io/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "luna/io/faults.h"
#include "luna/io/text_file.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;
using luna::testing::expect_error;

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

/// Random bytes as a tensor of any type.
at::Tensor random_bytes(at::ScalarType dtype, std::vector<int64_t> sizes) {
  if (dtype == at::kBool) return at::randint(0, 2, sizes, at::kBool);
  at::Tensor tensor = at::empty(sizes, dtype);
  const at::Tensor bytes =
      at::randint(0, 256, {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.const_data_ptr(), tensor.nbytes());
  return tensor;
}

const std::vector<at::ScalarType> kAllTypes = {at::kDouble,
                                               at::kFloat,
                                               at::kHalf,
                                               at::kBFloat16,
                                               at::kLong,
                                               at::kInt,
                                               at::kShort,
                                               at::kChar,
                                               at::kByte,
                                               at::kBool,
                                               at::kUInt16,
                                               at::kUInt32,
                                               at::kUInt64,
                                               at::kComplexFloat,
                                               at::kFloat8_e4m3fn,
                                               at::kFloat8_e5m2,
                                               at::kFloat8_e4m3fnuz,
                                               at::kFloat8_e5m2fnuz,
                                               at::kFloat8_e8m0fnu,
                                               at::kFloat4_e2m1fn_x2};

class SafetensorsFile : public luna::testing::FolderTest {};

TEST_F(SafetensorsFile, RoundTripsEveryTypeInOrder) {
  at::manual_seed(1);
  NamedTensors tensors;
  for (const at::ScalarType dtype : kAllTypes) {
    // odd sizes, small types first: the writer must align what follows
    tensors.insert(tensors.begin(),
                   {c10::toString(dtype), random_bytes(dtype, {3, 5})});
  }
  tensors.push_back({"empty", at::empty({2, 0, 3})});
  tensors.push_back({"scalar", at::tensor(2.5)});
  tensors.push_back({"naïve \"name\"\n", at::ones({1})});
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"quote\"", "line\nbreak, ü"}, {"", ""}};
  write_safetensors(path("x.safetensors"), tensors, metadata);

  const Safetensors file = Safetensors::open(path("x.safetensors"));
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    const TensorEntry& entry = file.entries()[i];
    EXPECT_EQ(entry.name, name);
    const at::Tensor read = file.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_EQ(bytes_of(read), bytes_of(tensor)) << name;
    EXPECT_EQ(entry.offset % static_cast<int64_t>(tensor.element_size()), 0)
        << name;
  }
}

TEST_F(SafetensorsFile, ViewsOutliveTheFileAndNeverChangeIt) {
  write_safetensors(path("x"), {{"a", at::arange(1000)}});
  const std::string before = read_text(path("x"));
  at::Tensor view;
  {
    const Safetensors file = Safetensors::open(path("x"));
    view = file.tensor("a");
    EXPECT_EQ(view.data_ptr(), file.tensor("a").data_ptr());  // no copy
  }
  // replaced while mapped: the view keeps what it had
  write_safetensors(path("x"), {{"a", at::zeros({2})}});
  EXPECT_TRUE(at::equal(view, at::arange(1000)));
  write_text(path("x"), before);
  const Safetensors file = Safetensors::open(path("x"));
  file.tensor("a").fill_(7);
  EXPECT_EQ(read_text(path("x")), before);
  EXPECT_TRUE(
      at::equal(Safetensors::open(path("x")).tensor("a"), at::arange(1000)));
}

TEST_F(SafetensorsFile, WritesStridedTensorsAsTheirValues) {
  const at::Tensor base = at::arange(24).view({4, 6});
  write_safetensors(path("x"), {{"transposed", base.t()},
                                {"part", base.slice(1, 1, 6, 2)},
                                {"expanded", at::ones({1}).expand({3, 2})}});
  const Safetensors file = Safetensors::open(path("x"));
  EXPECT_TRUE(at::equal(file.tensor("transposed"), base.t()));
  EXPECT_TRUE(at::equal(file.tensor("part"), base.slice(1, 1, 6, 2)));
  EXPECT_TRUE(at::equal(file.tensor("expanded"), at::ones({3, 2})));
}

TEST_F(SafetensorsFile, WritesTheFormatItself) {
  // the example of the format's description, by hand
  write_safetensors(path("x"), {{"t", at::tensor({1.0F, 2.0F})}}, {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const size_t padded = (header.size() + 7) / 8 * 8;
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(padded);
  expected += header + std::string(padded - header.size(), ' ');
  expected += std::string("\0\0\x80\x3f\0\0\0\x40", 8);
  EXPECT_EQ(read_text(path("x")), expected);
}

TEST_F(SafetensorsFile, ReadsTensorsThatAreNotAligned) {
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + "\x05" + std::string("\0\0\x80\x3f\0\0\0\x40", 8);
  write_text(path("x"), file);
  const Safetensors opened = Safetensors::open(path("x"));
  EXPECT_TRUE(at::equal(opened.tensor("f"), at::tensor({1.0F, 2.0F})));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(opened.tensor("f").data_ptr()) % 4, 0);
}

TEST_F(SafetensorsFile, RefusesWhatTheFormatCannotHold) {
  const at::Tensor one = at::ones({1});
  const std::string x = path("x");
  const auto refused = [&](const NamedTensors& tensors,
                           const std::vector<std::string>& parts) {
    expect_error<c10::ValueError>([&] { write_safetensors(x, tensors); },
                                  parts);
  };
  refused({{"a", one}, {"a", one}}, {x, "\"a\"", "twice"});
  refused({{"__metadata__", one}}, {x, "__metadata__"});
  refused({{"a", at::Tensor()}}, {x, "\"a\"", "undefined"});
  refused({{"a", at::ones({1}, at::kComplexDouble)}}, {x, "\"a\"", "Complex"});
  refused({{"a", at::ones({2, 2}).to_sparse()}}, {x, "\"a\"", "dense"});
  refused({{"a", at::ones({1}, at::device(at::kMeta))}}, {x, "\"a\"", "dense"});
  refused({{"\xff", one}}, {x, "UTF-8"});
  expect_error<c10::ValueError>(
      [&] {
        write_safetensors(x, {{"a", one}}, {{"k", "\xc3"}});
      },
      {x, "UTF-8"});
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsFile, SaysWhichTensorIsNotThere) {
  write_safetensors(path("x"), {{"a", at::ones({1})}});
  const Safetensors file = Safetensors::open(path("x"));
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("b"));
  expect_error<c10::ValueError>([&] { file.tensor("b"); },
                                {path("x"), "\"b\""});
  expect_error<c10::Error>([&] { Safetensors::open(path("none")); },
                           {path("none"), "No such file"});
  expect_error<c10::Error>([&] { Safetensors::open(folder_.string()); },
                           {folder_.string(), "directory"});
  expect_error<c10::Error>([&] { Safetensors::open("/dev/zero"); },
                           {"/dev/zero", "regular file"});
}

TEST_F(SafetensorsFile, AFullDiskLeavesTheEarlierFile) {
  const NamedTensors tensors = {{"a", at::ones({100'000})}};
  write_safetensors(path("x"), {{"a", at::zeros({3})}});
  set_fault({.action = Fault::Action::kFail, .call = 2, .point = "write"});
  expect_error<c10::Error>([&] { write_safetensors(path("x"), tensors); },
                           {path("x"), "No space left"});
  set_fault({});
  EXPECT_EQ(Safetensors::open(path("x")).tensor("a").numel(), 3);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

}  // namespace
}  // namespace luna::io
