#include "luna/report/table.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace luna::report {
namespace {

TEST(Table, AlignsNumbersRightAndWordsLeft) {
  Table table({{"n"}, {"name", false}, {"×"}});
  table.add_row({"128", "a", "2"});
  table.start_group();
  table.add_row({"8", "long name", "1.5×"});
  EXPECT_EQ(table.text(),
            "  n  name          ×\n"
            "128  a             2\n"
            "\n"
            "  8  long name  1.5×\n");
}

TEST(Table, EscapesCellsInHtml) {
  Table table({{"a<b", false}});
  table.add_row({"x & y"});
  const std::string html = table.html();
  EXPECT_NE(html.find("a&lt;b"), std::string::npos);
  EXPECT_NE(html.find("x &amp; y"), std::string::npos);
}

TEST(Table, RejectsRowsOfAnotherWidth) {
  Table table({{"a"}, {"b"}});
  EXPECT_THROW(table.add_row({"1"}), c10::Error);
}

}  // namespace
}  // namespace luna::report
