#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "luna/report/plot.h"
#include "luna/report/table.h"

namespace luna::report {

/// One input and what was made of it.
struct SampleCard {
  std::string picture{};  ///< an address "data:…"; empty: text
  std::string text{};
  bool symbols = false;  ///< text of one width, for tokens
  bool right = true;
  std::string verdict{};  ///< "cat, 93 %"
  std::string truth{};    ///< "is a dog"; only of wrong ones
};

/// A report, written once, as HTML or as Markdown. The HTML page needs nothing
/// beside itself: no script, no request, light or dark as the reader's system
/// is, from 390 pixels up. Markdown has the words and tables, not the drawings.
class Page {
 public:
  explicit Page(std::string title);

  void add_heading(std::string_view text);
  void add_subheading(std::string_view text);
  void add_paragraph(std::string_view text);
  void add_lead(std::string_view text);  ///< the page in a sentence
  void add_note(std::string_view text);  ///< small print
  void add_list(const std::vector<std::string>& items);
  void add_table(const Table& table);
  /// A table that opens on demand.
  void add_details(std::string_view summary, const Table& table);
  void add_plot(const LinePlot& plot, std::string_view caption);
  /// Two plots side by side, where there is room for it.
  void add_plots(const std::vector<LinePlot>& plots, std::string_view caption);
  void add_bars(const RatioBars& bars, std::string_view caption);
  void add_bubbles(const BubbleChart& chart, std::string_view caption);
  void add_multiples(const SmallMultiples& multiples, std::string_view caption);
  void add_samples(const std::vector<SampleCard>& samples);

  std::string html() const;
  std::string markdown() const;

 private:
  void add_figure(const std::string& wide, const std::string& narrow,
                  std::string_view caption);

  std::string title_;
  /// Where Markdown goes on, behind the headings that wait for words: pictures
  /// have none, and what has only those gets no heading there.
  std::string& words();

  std::string body_, markdown_, heading_, subheading_;
};

/// The style sheet of drawings: colours c0 ... c7 in light and in dark.
std::string_view drawing_style();

}  // namespace luna::report
