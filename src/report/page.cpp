#include "luna/report/page.h"

#include <fmt/format.h>

#include "luna/report/format.h"

namespace luna::report {
namespace {

// Every colour of text and line has a contrast of at least 4.5 to its ground;
// a test computes it from this text.
constexpr std::string_view kDrawingStyle = R"css(:root {
  color-scheme: light dark;
  --ground: #ffffff; --ink: #1d2733; --quiet: #55606e; --rule: #dde2e8;
  --c0: #5a6472; --c1: #1a5fb4; --c2: #a03c00; --c3: #1a7340;
  --c4: #7a3fa8; --c5: #0b6b78; --c6: #ab1f5e; --c7: #7a5c00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181d; --ink: #e4e9ef; --quiet: #a3aebb; --rule: #333c46;
    --c0: #a9b3bf; --c1: #7cb3ff; --c2: #ff9f68; --c3: #74cf95;
    --c4: #cba2ff; --c5: #62cbd9; --c6: #ff8fbd; --c7: #e3c04f;
  }
}
svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; }
svg text { fill: var(--quiet); font-variant-numeric: tabular-nums; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
.c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.grid { stroke: var(--rule); } .one { stroke: var(--quiet); }
.series { fill: var(--c); stroke: none; }
.line { fill: none; stroke: var(--c); stroke-width: 2;
  stroke-linejoin: round; }
.c0 .line { stroke-width: 2.6; }
.dashed { stroke-dasharray: 5 4; }
.spread { stroke: var(--c); stroke-width: 1; }
.leader { stroke: var(--quiet); stroke-width: .7; stroke-dasharray: 2 3; }
svg .name, .mark text { fill: var(--c); font-weight: 600; }
.mark line { stroke: var(--c); stroke-dasharray: 3 3; }
.mark circle { fill: none; stroke: var(--c); stroke-width: 1.5; }
.bar { fill: var(--c); }
)css";

constexpr std::string_view kPageStyle = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.15rem; margin: 2.8rem 0 .4rem; }
p { margin: .4rem 0; max-width: 68ch; }
.lead { font-size: 1.125rem; } .note { color: var(--quiet);
  font-size: .875rem; }
ul { padding-left: 1.2rem; } li { margin: .25rem 0; }
figure { margin: 1.2rem 0 0; } figcaption { color: var(--quiet);
  font-size: .875rem; max-width: 78ch; margin-top: .3rem; }
svg { display: block; max-width: 100%; height: auto; }
.narrow { display: none; }
.scroll { overflow-x: auto; margin: .8rem 0; }
.scroll:focus-visible {
  outline: 2px solid var(--c1); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; }
th, td { padding: .28rem .9rem .28rem 0; text-align: left;
  white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; white-space: normal;
  vertical-align: bottom; border-bottom: 1px solid var(--rule); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.group td { border-top: 1px solid var(--rule); }
@media (max-width: 700px) {
  main { padding: 24px 16px 56px; }
  .wide { display: none; } .narrow { display: block; }
}
@media print { main { max-width: none; } }
)css";

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

void Page::add_heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", escape(text));
}

void Page::add_paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", escape(text));
}

void Page::add_lead(std::string_view text) {
  if (text.empty()) return;
  body_ += fmt::format("<p class=\"lead\">{}</p>\n", escape(text));
}

void Page::add_note(std::string_view text) {
  body_ += fmt::format("<p class=\"note\">{}</p>\n", escape(text));
}

void Page::add_list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<ul>\n";
  for (const std::string& item : items) {
    body_ += fmt::format("<li>{}</li>\n", escape(item));
  }
  body_ += "</ul>\n";
}

void Page::add_table(const Table& table) { body_ += table.html(); }

void Page::add_figure(const std::string& wide, const std::string& narrow,
                      std::string_view caption) {
  if (wide.empty()) return;
  body_ += fmt::format(
      "<figure>\n<div class=\"wide\">{}</div>\n<div class=\"narrow\">{}</div>\n"
      "<figcaption>{}</figcaption>\n</figure>\n",
      wide, narrow, escape(caption));
}

void Page::add_plot(const LogLogPlot& plot, std::string_view caption) {
  add_figure(svg(plot, {812, 430}), svg(plot, {358, 330}), caption);
}

void Page::add_bars(const RatioBars& bars, std::string_view caption) {
  add_figure(svg(bars, 812), svg(bars, 358), caption);
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

}  // namespace luna::report
