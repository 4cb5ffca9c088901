#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "luna/report/plot.h"
#include "luna/report/table.h"

namespace luna::report {

/// One HTML page that needs nothing beside itself: no script, no request,
/// light or dark as the reader's system is, from 390 pixels up.
class Page {
 public:
  explicit Page(std::string title);

  void add_heading(std::string_view text);
  void add_paragraph(std::string_view text);
  void add_lead(std::string_view text);  ///< the page in a sentence
  void add_note(std::string_view text);  ///< small print
  void add_list(const std::vector<std::string>& items);
  void add_table(const Table& table);
  void add_plot(const LogLogPlot& plot, std::string_view caption);
  void add_bars(const RatioBars& bars, std::string_view caption);

  std::string html() const;

 private:
  void add_figure(const std::string& wide, const std::string& narrow,
                  std::string_view caption);

  std::string title_;
  std::string body_;
};

/// The style sheet of drawings: colours c0 ... c7 in light and in dark.
std::string_view drawing_style();

}  // namespace luna::report
