#include "luna/report/page.h"

#include <fmt/format.h>

#include <utility>

#include "luna/report/format.h"
#include "report/page_style.h"

namespace luna::report {
namespace {

std::string caption_html(std::string_view caption) {
  if (caption.empty()) return "";
  return fmt::format("<figcaption>{}</figcaption>\n", escape(caption));
}

}  // namespace

std::string_view drawing_style() { return kDrawingStyle; }

std::string standalone(const std::string& drawing) {
  constexpr std::string_view kTag = "<svg";
  const std::size_t end = drawing.find('>');
  if (!drawing.starts_with(kTag) || end == std::string::npos) return drawing;
  return fmt::format(
      "{0} xmlns=\"http://www.w3.org/2000/svg\"{1}\n<style>\n{2}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"var(--ground)\"/>{3}",
      kTag, drawing.substr(kTag.size(), end + 1 - kTag.size()), kDrawingStyle,
      drawing.substr(end + 1));
}

Page::Page(std::string title) : title_(std::move(title)) {}

std::string& Page::words() {
  markdown_ += std::exchange(heading_, "") + std::exchange(subheading_, "");
  return markdown_;
}

void Page::add_heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", escape(text));
  heading_ = fmt::format("## {}\n\n", escape_markdown(text));
  subheading_.clear();
}

void Page::add_subheading(std::string_view text) {
  body_ += fmt::format("<h3>{}</h3>\n", escape(text));
  subheading_ = fmt::format("### {}\n\n", escape_markdown(text));
}

void Page::add_paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", escape(text));
  words() += escape_markdown(text) + "\n\n";
}

void Page::add_lead(std::string_view text) {
  if (text.empty()) return;
  body_ += fmt::format("<p class=\"lead\">{}</p>\n", escape(text));
  words() += escape_markdown(text) + "\n\n";
}

void Page::add_note(std::string_view text) {
  if (text.empty()) return;
  body_ += fmt::format("<p class=\"note\">{}</p>\n", escape(text));
  words() += escape_markdown(text) + "\n\n";
}

void Page::add_list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<ul>\n";
  for (const std::string& item : items) {
    body_ += fmt::format("<li>{}</li>\n", escape(item));
    words() += fmt::format("- {}\n", escape_markdown(item));
  }
  body_ += "</ul>\n";
  words() += "\n";
}

void Page::add_table(const Table& table) {
  body_ += table.html();
  words() += table.markdown() + "\n";
}

void Page::add_details(std::string_view summary, const Table& table) {
  body_ += fmt::format("<details><summary>{}</summary>\n{}</details>\n",
                       escape(summary), table.html());
  words() +=
      fmt::format("{}:\n\n{}\n", escape_markdown(summary), table.markdown());
}

void Page::add_figure(const std::string& wide, const std::string& narrow,
                      std::string_view caption) {
  if (wide.empty()) return;
  body_ += fmt::format(
      "<figure>\n<div class=\"wide\">{}</div>\n<div class=\"narrow\">{}</div>\n"
      "{}</figure>\n",
      wide, narrow, caption_html(caption));
}

void Page::add_plot(const LinePlot& plot, std::string_view caption) {
  add_figure(svg(plot, {860, 430}), svg(plot, {358, 330}), caption);
}

void Page::add_plots(const std::vector<LinePlot>& plots,
                     std::string_view caption) {
  std::string drawings;
  for (const LinePlot& plot : plots) drawings += svg(plot, {412, 300});
  if (drawings.empty()) return;
  body_ += fmt::format("<figure>\n<div class=\"pair\">{}</div>\n{}</figure>\n",
                       drawings, caption_html(caption));
}

void Page::add_bars(const RatioBars& bars, std::string_view caption) {
  add_figure(svg(bars, 860), svg(bars, 358), caption);
}

void Page::add_bubbles(const BubbleChart& chart, std::string_view caption) {
  add_figure(svg(chart, {860, 420}), svg(chart, {358, 340}), caption);
}

void Page::add_multiples(const SmallMultiples& multiples,
                         std::string_view caption) {
  std::string drawings;
  for (const std::string& panel : svg(multiples, {206, 146})) {
    drawings += panel;
  }
  if (drawings.empty()) return;
  body_ +=
      fmt::format("<figure>\n<div class=\"panels\">{}</div>\n{}</figure>\n",
                  drawings, caption_html(caption));
}

void Page::add_samples(const std::vector<SampleCard>& samples) {
  if (samples.empty()) return;
  const bool pictures = !samples.front().picture.empty();
  body_ += fmt::format("<ul class=\"samples {}\">\n",
                       pictures ? "pictures" : "texts");
  for (const SampleCard& s : samples) {
    const std::string sign = s.right ? "✓ " : "✗ ";
    body_ += s.right ? "<li class=\"right\">" : "<li class=\"wrong\">";
    if (s.picture.empty()) {
      body_ +=
          fmt::format("<blockquote{}>{}</blockquote>",
                      s.symbols ? " class=\"symbols\"" : "", escape(s.text));
    } else {
      body_ += fmt::format("<img src=\"{}\" alt=\"{}\">", s.picture,
                           escape(s.truth.empty() ? s.verdict : s.truth));
    }
    body_ += fmt::format("<span class=\"verdict\">{}{}</span>", sign,
                         escape(s.verdict));
    if (!s.truth.empty()) {
      body_ +=
          fmt::format("<br><span class=\"truth\">{}</span>", escape(s.truth));
    }
    body_ += "</li>\n";
    words() +=
        fmt::format("- {}{}{}{}\n", sign, escape_markdown(s.verdict),
                    s.truth.empty() ? "" : "; " + escape_markdown(s.truth),
                    s.text.empty() ? "" : ": " + escape_markdown(s.text));
  }
  body_ += "</ul>\n";
  words() += "\n";
}

std::string Page::html() const {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n"
      "<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{0}</title>\n<style>\n{1}{2}</style>\n</head>\n"
      "<body>\n<main>\n<h1>{0}</h1>\n{3}</main>\n</body>\n</html>\n",
      escape(title_), kDrawingStyle, kPageStyle, body_);
}

std::string Page::markdown() const {
  return fmt::format("# {}\n\n{}", escape_markdown(title_), markdown_);
}

}  // namespace luna::report
