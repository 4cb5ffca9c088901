#include "luna/config/options.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "config/json.h"
#include "support/errors.h"

namespace luna::config {
namespace {

using luna::testing::expect_error;

TEST(KnownAndNearest, NamesOnlyWhatIsNear) {
  const std::vector<std::string> known = {"width", "layers", "lr"};
  EXPECT_EQ(known_and_nearest("widht", known),
            "width, layers, lr (nearest: width)");
  EXPECT_EQ(known_and_nearest("l", known), "width, layers, lr (nearest: lr)");
  EXPECT_EQ(known_and_nearest("rl", known), "width, layers, lr (nearest: lr)");
  EXPECT_EQ(known_and_nearest("colour", known), "width, layers, lr");
  EXPECT_EQ(known_and_nearest("x", {}), "none");
}

TEST(ConvertOption, HasTheRightArticle) {
  expect_error<c10::TypeError>(
      [] { convert_option("run", "steps", std::string("x"), int64_t{1}); },
      {"run: expected steps to be an integer, got the string x"});
  expect_error<c10::TypeError>(
      [] { convert_option("run", "lr", true, 0.5); },
      {"run: expected lr to be a number, got the bool true"});
}

TEST(ParseJson, NamesThePlaceAndTheReason) {
  expect_error<c10::ValueError>(
      [] { parse_json("{\n  \"a\": 1,\n}", "x.json"); },
      {"x.json:3:1: not JSON: unexpected '}'; expected string literal"});
  const std::string deep =
      std::string(200'000, '[') + std::string(200'000, ']');
  expect_error<c10::ValueError>([&] { parse_json(deep, "x.json"); },
                                {"x.json", "at most 64 levels"});
  expect_error<c10::ValueError>([] { parse_json("{\"a\": 1e999}", "x.json"); },
                                {"x.json: not JSON: number overflow"});
}

}  // namespace
}  // namespace luna::config
