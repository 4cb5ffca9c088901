#include "luna/report/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

namespace luna::report {
namespace {

/// Relative luminance of #rrggbb as the WCAG defines it.
double luminance(const std::string& colour) {
  const double weights[] = {0.2126, 0.7152, 0.0722};
  double sum = 0;
  for (int i = 0; i < 3; ++i) {
    const double share =
        std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (share <= 0.04045
                             ? share / 12.92
                             : std::pow((share + 0.055) / 1.055, 2.4));
  }
  return sum;
}

double contrast(const std::string& a, const std::string& b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

/// "--c1: #1a5fb4" anywhere in `text`.
std::string colour(const std::string& text, const std::string& name) {
  std::smatch match;
  const std::regex pattern("--" + name + ": (#[0-9a-f]{6})");
  return std::regex_search(text, match, pattern) ? match[1].str() : "";
}

LinePlot one_point() {
  LinePlot plot;
  plot.title = "title";
  plot.series = {{"a", 1, false, {{1, 2, 2, 2}}}};
  return plot;
}

TEST(Page, ContrastMeasureKnowsBlackOnWhite) {
  EXPECT_NEAR(contrast("#000000", "#ffffff"), 21, 1e-9);
  EXPECT_NEAR(contrast("#767676", "#ffffff"), 4.54, 0.01);
}

TEST(Page, EveryColourIsReadableInLightAndDark) {
  const std::string style(drawing_style());
  const std::size_t dark_from = style.find("prefers-color-scheme: dark");
  ASSERT_NE(dark_from, std::string::npos);
  for (const std::string& part :
       {style.substr(0, dark_from), style.substr(dark_from)}) {
    const std::string ground = colour(part, "ground");
    ASSERT_FALSE(ground.empty());
    std::vector<std::string> names = {"ink", "quiet"};
    for (int i = 0; i < kColours; ++i) names.push_back("c" + std::to_string(i));
    for (const std::string& name : names) {
      ASSERT_FALSE(colour(part, name).empty()) << name;
      EXPECT_GE(contrast(colour(part, name), ground), 4.5) << name;
    }
  }
}

TEST(Page, NeedsNothingBesideItself) {
  Page page("A page & more");
  page.add_heading("Heading <1>");
  page.add_plot(one_point(), "caption");
  const std::string html = page.html();
  for (const char* word :
       {"http:", "https:", "<script", "src=", "@import", "url("}) {
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  }
  EXPECT_NE(html.find("A page &amp; more"), std::string::npos);
  EXPECT_NE(html.find("Heading &lt;1&gt;"), std::string::npos);
}

TEST(Page, DrawsEachPlotForWideAndNarrowScreens) {
  Page page("p");
  page.add_plot(one_point(), "caption");
  const std::string html = page.html();
  EXPECT_NE(html.find("<div class=\"wide\"><svg"), std::string::npos);
  EXPECT_NE(html.find("<div class=\"narrow\"><svg"), std::string::npos);
}

TEST(Page, SaysTheSameInMarkdown) {
  Page page("A & B");
  page.add_heading("One *two*");
  page.add_list({"x_y"});
  Table table({{"n"}, {"word", false}});
  table.add_row({"1", "a|b"});
  page.add_details("More", table);
  EXPECT_EQ(page.markdown(),
            "# A & B\n\n## One \\*two\\*\n\n- x\\_y\n\nMore:\n\n"
            "| n | word |\n|---:|---|\n| 1 | a\\|b |\n\n");
}

TEST(Page, HasNoHeadingInMarkdownOfPicturesAlone) {
  Page page("p");
  page.add_heading("Pictures");
  page.add_subheading("one");
  page.add_plot(one_point(), "caption");
  page.add_subheading("two");
  page.add_plot(one_point(), "caption");
  page.add_heading("Words");
  page.add_subheading("pictures");
  page.add_plot(one_point(), "caption");
  page.add_subheading("words");
  page.add_paragraph("x");
  page.add_paragraph("y");
  EXPECT_EQ(page.markdown(), "# p\n\n## Words\n\n### words\n\nx\n\ny\n\n");
}

}  // namespace
}  // namespace luna::report
