"""Pages in headless Chromium: what a reader of either scheme and width sees.

The page is put into frames of given widths, with a policy that forbids every
request and counts attempts; a script around them measures and writes JSON.
"""

import html
import json
import os
import re
import shutil
import subprocess

import pytest

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chromium-headless-shell",
)
PREFERRED_SCHEME = {"dark": 0, "light": 1}

POLICY = """
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 img-src data:; style-src 'unsafe-inline'; script-src 'nonce-probe'">
<script nonce="probe">
  window.attempts = [];
  addEventListener("securitypolicyviolation",
    e => attempts.push(e.violatedDirective + " " + e.blockedURI));
</script>"""

MEASURE = """
const luminance = colour => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => {
    const share = v / 255;
    return share <= 0.04045 ? share / 12.92
                            : Math.pow((share + 0.055) / 1.055, 2.4);
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
};
const shown = element => element.getClientRects().length > 0;
function measure(frame, width) {
  const view = frame.contentWindow, page = frame.contentDocument;
  for (const d of page.querySelectorAll("details")) d.open = true;
  const style = e => view.getComputedStyle(e);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const colour = style(e).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const result = {width, scroll_width: page.documentElement.scrollWidth,
    attempts: view.attempts, ground: style(page.body).backgroundColor,
    scripts: page.querySelectorAll("script").length - 1,
    figures: [], wide: [], cut: [], faint: [], least_contrast: 21, texts: 0,
    pictures: [...page.images].map(i => i.naturalWidth)};
  for (const figure of page.querySelectorAll("figure")) {
    const drawings = [...figure.querySelectorAll("svg")].filter(shown);
    result.figures.push(drawings.map(svg => ({
      title: svg.getAttribute("aria-label"),
      axes: [...svg.querySelectorAll(".axis")].map(t => t.textContent),
      marks: [...svg.querySelectorAll(".line, .bar, .bubble")].filter(m => {
        const box = m.getBoundingClientRect();
        return box.width > 0.5 || box.height > 0.5;
      }).length})));
    for (const svg of drawings) {
      const box = svg.getBoundingClientRect();
      for (const text of svg.querySelectorAll("text")) {
        const t = text.getBoundingClientRect();
        if (t.left < box.left - 1 || t.right > box.right + 1 ||
            t.top < box.top - 1 || t.bottom > box.bottom + 1) {
          result.cut.push(text.textContent);
        }
      }
    }
  }
  for (const e of page.body.querySelectorAll("*")) {
    if (!shown(e)) continue;
    if (!e.closest(".scroll, svg") &&
        e.getBoundingClientRect().right > width + 0.5) {
      result.wide.push(e.outerHTML.slice(0, 80));
    }
    const text = [...e.childNodes].filter(n => n.nodeType == 3)
      .map(n => n.textContent.trim()).join("");
    if (!text || e.tagName == "title") continue;
    ++result.texts;
    const ink = e instanceof view.SVGElement ? style(e).fill : style(e).color;
    const ratio = contrast(ink, ground(e));
    result.least_contrast = Math.min(result.least_contrast, ratio);
    if (ratio < 4.5) result.faint.push([text.slice(0, 40), ink, ratio]);
  }
  return result;
}
"""

FRAMES = """
const results = [];
addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    results.push(measure(frame, frame.clientWidth));
  }
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(results);
  document.body.append(out);
});
"""


def find_browser():
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if os.environ.get("CI") == "true":
        pytest.fail("no Chromium: scripts/setup installs it where CI=true")
    pytest.skip(f"none of {', '.join(NAMES)} is installed: pages not opened")


def look_at(page, folder, scheme, widths=(390, 1440)):
    """What `measure` finds in the page's text, one result a width."""
    assert page.count("<head>") == 1
    page = page.replace("<head>", "<head>" + POLICY)
    frames = "".join(
        f'<iframe srcdoc="{html.escape(page)}" style="border: 0; '
        f'width: {width}px; height: 900px"></iframe>'
        for width in widths
    )
    wrapper = folder / f"{scheme}.html"
    wrapper.write_text(
        f"<!doctype html><body>{frames}<script>{MEASURE}{FRAMES}</script>"
    )
    done = subprocess.run(
        [
            find_browser(), "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            f"--blink-settings=preferredColorScheme={PREFERRED_SCHEME[scheme]}",
            "--window-size=1600,1000", "--virtual-time-budget=20000",
            "--dump-dom", wrapper.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))
