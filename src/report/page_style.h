// The style sheets of pages and drawings.
#pragma once

#include <string_view>

namespace luna::report {

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
.band { fill: var(--c); fill-opacity: .16; }
.spread { stroke: var(--c); stroke-width: 1; }
.leader { stroke: var(--quiet); stroke-width: .7; stroke-dasharray: 2 3; }
svg .name, .mark text { fill: var(--c); font-weight: 600; }
.mark line { stroke: var(--c); stroke-dasharray: 3 3; }
.mark circle { fill: none; stroke: var(--c); stroke-width: 1.5; }
.bar { fill: var(--c); }
.bubble { fill: var(--c); fill-opacity: .22; stroke: var(--c);
  stroke-width: 1.6; }
)css";

constexpr std::string_view kPageStyle = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 908px; margin: 0 auto; padding: 48px 24px 80px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .6rem;
  letter-spacing: -.01em; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 3.2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 2rem 0 .3rem; }
h1, h2, h3, p, li, figcaption { overflow-wrap: anywhere; }
p { margin: .4rem 0; max-width: 68ch; }
.lead { font-size: 1.125rem; } .note { color: var(--quiet);
  font-size: .875rem; }
ul { padding-left: 1.2rem; } li { margin: .25rem 0; }
figure { margin: 1.2rem 0 0; } figcaption { color: var(--quiet);
  font-size: .875rem; max-width: 78ch; margin-top: .4rem; }
svg { display: block; max-width: 100%; height: auto; }
.narrow { display: none; }
.pair { display: grid; gap: 1.6rem 32px;
  grid-template-columns: repeat(auto-fit, minmax(min(350px, 100%), 1fr)); }
.panels { display: grid; gap: 14px 12px;
  grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); }
.panels svg { width: 100%; }
.samples { display: grid; gap: 22px 18px; margin: 1rem 0; padding: 0;
  list-style: none; }
.pictures { gap: 18px 14px;
  grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); }
.texts { grid-template-columns:
  repeat(auto-fill, minmax(min(340px, 100%), 1fr)); }
.samples li { margin: 0; min-width: 0; font-size: .875rem; line-height: 1.4; }
.samples img { display: block; width: 104px; height: auto;
  image-rendering: pixelated; border: 1px solid var(--rule);
  border-radius: 3px; margin-bottom: .35rem; }
.samples blockquote { margin: 0 0 .35rem; padding-left: .8rem;
  border-left: 3px solid var(--rule); overflow-wrap: anywhere; }
.samples .symbols { font-family: ui-monospace, "DejaVu Sans Mono", monospace;
  font-size: .8125rem; }
.verdict { font-weight: 600; } .right .verdict { color: var(--c3); }
.wrong .verdict { color: var(--c2); }
.truth { color: var(--quiet); }
details { margin-top: 1.2rem; }
summary { cursor: pointer; color: var(--quiet); font-size: .875rem; }
summary:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--c1); outline-offset: 2px; }
/* Wider than the text, up to the window's edge, where a table needs it. */
.scroll { overflow-x: auto; margin: .8rem 0; width: fit-content;
  max-width: calc(50% + 50vw - 24px); }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; }
th, td { padding: .3rem 1rem .3rem 0; text-align: left;
  white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; white-space: normal;
  vertical-align: bottom; border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.group td { border-top: 1px solid var(--rule); }
@media (max-width: 700px) {
  main { padding: 28px 16px 56px; }
  .wide { display: none; } .narrow { display: block; }
  table { font-size: .8125rem; } th, td { padding-right: .75rem; }
}
@media print { main { max-width: none; } }
)css";

}  // namespace luna::report
