#include "io/base64.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace luna::io {
namespace {

// The examples of RFC 4648.
const std::pair<std::string, std::string> kExamples[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"},
                                                         {"\xff\xfe", "//4="}};

TEST(Base64, WritesAndReadsTheStandardsExamples) {
  for (const auto& [bytes, text] : kExamples) {
    EXPECT_EQ(base64(bytes), text);
    const std::vector<uint8_t> read = from_base64(text);
    EXPECT_EQ(std::string(read.begin(), read.end()), bytes);
  }
}

TEST(Base64, RefusesOtherText) {
  using luna::testing::expect_error;
  expect_error<c10::ValueError>([] { from_base64("Zg="); }, {"multiple of 4"});
  expect_error<c10::ValueError>([] { from_base64("Zg*="); }, {"digit"});
}

}  // namespace
}  // namespace luna::io
