#include "luna/report/format.h"

#include <gtest/gtest.h>

namespace luna::report {
namespace {

TEST(Format, GroupsThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(8192), "8,192");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
}

TEST(Format, KeepsThreeDigits) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.012345), "0.0123");
  EXPECT_EQ(short_number(1.2345), "1.23");
  EXPECT_EQ(short_number(12.345), "12.3");
  EXPECT_EQ(short_number(123.45), "123");
  EXPECT_EQ(short_number(12345), "12,300");
  EXPECT_EQ(short_number(-1.2345), "-1.23");
}

TEST(Format, RoundsUpToTheNextPower) {
  EXPECT_EQ(short_number(0.9999), "1.00");
  EXPECT_EQ(short_number(9.999), "10.0");
  EXPECT_EQ(short_number(999.9), "1,000");
}

TEST(Format, ShortensPowersOf1024) {
  EXPECT_EQ(short_length(512), "512");
  EXPECT_EQ(short_length(1024), "1K");
  EXPECT_EQ(short_length(65536), "64K");
  EXPECT_EQ(short_length(2097152), "2M");
}

TEST(Format, WritesRatios) {
  EXPECT_EQ(times(12.34), "12.3×");
  EXPECT_EQ(times(1), "1.00×");
  EXPECT_EQ(times(0.954), "0.95×");
}

TEST(Format, WritesDifferencesTimesAndSizes) {
  EXPECT_EQ(signed_number(1.2, 2), "+1.20");
  EXPECT_EQ(signed_number(-0.351, 2), "−0.35");
  EXPECT_EQ(signed_number(-0.001, 2), "0.00");
  EXPECT_EQ(duration(42.4), "42 s");
  EXPECT_EQ(duration(200), "3 min 20 s");
  EXPECT_EQ(duration(18720), "5 h 12 min");
  EXPECT_EQ(memory_size(512.0 * (1 << 20)), "512 MiB");
  EXPECT_EQ(memory_size(2.5 * (1 << 30)), "2.50 GiB");
}

TEST(Format, EscapesMarkup) {
  EXPECT_EQ(escape("a<b & \"c\" 'd' >"),
            "a&lt;b &amp; &quot;c&quot; &#39;d&#39; &gt;");
}

TEST(Format, CountsCodePointsNotBytes) {
  EXPECT_EQ(display_width("12×"), 3u);
  EXPECT_EQ(display_width("≈ 136"), 5u);
}

}  // namespace
}  // namespace luna::report
