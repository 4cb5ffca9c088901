"""The program `luna`, run as a user runs it."""

import html.parser
import json
import re
import signal
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from program import PROGRAM, luna, needs_program

pytestmark = needs_program

TINY = [
    "bench", "--tokens", "256", "--lengths", "32,64", "--heads", "2",
    "--width", "16", "--repeat", "1", "--plain", "all", "--time-budget", "900",
]  # fmt: skip
MECHANISMS = {"softmax", "universal", "nested", "linear", "rff"}


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    files = {kind: folder / f"bench.{kind}" for kind in ("json", "html", "svg")}
    done = luna(
        *TINY, "--out", files["json"], "--html", files["html"], "--svg",
        files["svg"],
    )  # fmt: skip
    return done, files


def test_version():
    assert re.fullmatch(r"luna \d+\.\d+\.\d+\n", luna("--version").stdout)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["info"],
        ["bench"],
        ["report"],
        ["weights"],
        ["bpe"],
        ["data", "translation"],
        ["tokenize"],
        ["encode"],
        ["classify"],
        ["convert"],
        ["score"],
    ],
)
def test_every_help_has_an_example(command):
    text = luna(*command, "--help").stdout
    assert "Example" in text
    assert "luna " in text.split("Example")[1]


def test_bench_help_comes_from_the_registry():
    text = luna("bench", "--help").stdout
    for attention in json.loads(luna("info", "--json").stdout)["attentions"]:
        assert f"{attention['name']}: {attention['summary']}" in " ".join(
            text.split()
        )


def test_info_shows_versions_devices_and_traits():
    text = luna("info").stdout
    assert re.search(r"luna \d+\.\d+\.\d+, torch 2\.\d+", text)
    assert re.search(r"instruction set\s+(avx512|avx2|scalar)", text)
    assert re.search(r"CUDA devices\s+\S", text)
    for name in MECHANISMS:
        assert re.search(rf"^{name}\s+(yes|–)", text, re.MULTILINE), name


def test_info_json():
    info = json.loads(luna("info", "--json").stdout)
    assert {a["name"] for a in info["attentions"]} >= MECHANISMS
    traits = {a["name"]: a["traits"] for a in info["attentions"]}
    assert traits["nested"]["memory"] and not traits["softmax"]["streams"]
    assert info["machine"]["threads"] >= 1
    paths = {(p["op"], p["kernels"]): p["takes"] for p in info["gpu_paths"]}
    assert ", 128 with 8, " in paths["universal_attention", "fused"]
    assert "512 tokens" in paths["universal_attention", "fused, heads whole"]
    assert "512 slots" in paths["pack_attention", "tensor cores"]


def test_isa_can_be_chosen():
    info = luna("info", "--json", env={"LUNA_ISA": "scalar"}).stdout
    assert json.loads(info)["machine"]["isa"] == "scalar"
    done = luna("info", env={"LUNA_ISA": "sse9"}, code=1)
    assert done.stderr.startswith("luna info: error: LUNA_ISA: expected")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "luna: error: expected a command: info, bench"),
        (["benhc"], r"luna: error: unknown command benhc.*nearest: bench"),
        (["bench", "--lenghts", "8"], r"luna bench: .*nearest: --lengths"),
        (["bench", "extra"], "luna bench: error: unknown command extra"),
        (
            ["bench", "--attention", "univresal"],
            r"luna bench: error: --attention: expected one of softmax, "
            r"universal, .* \(nearest: universal\), got univresal",
        ),
        (["bench", "--mode", "fast"], "luna bench: error: --mode: .*forward"),
        (["bench", "--dtype", "float8"], "luna bench: error: --dtype: "),
        (["bench", "--lengths", "100"], "lengths: expected divisors of"),
        (["bench", "--lengths", "many"], "luna bench: error: .*many"),
        (["bench", "--repeat", "0"], "repeat: expected at least 1, got 0"),
        (["bench", "--tokens"], "luna bench: error: .*--tokens"),
        (["info", "--jsno"], r"luna info: error: .*nearest: --json"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(arguments, message):
    done = luna(*arguments, code=2)
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_unwritable_and_unreadable_files_are_told_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    nowhere = tmp_path / "file" / "folder.json"
    done = luna("bench", "--out", nowhere, code=1)
    assert done.stderr.startswith("luna bench: error: cannot ")
    assert str(tmp_path / "file") in done.stderr
    assert done.stderr.count("\n") == 1
    done = luna("bench", "--compare", nowhere, code=1)
    assert "cannot read" in done.stderr
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    done = luna("bench", "--compare", broken, code=1)
    assert str(broken) in done.stderr and done.stderr.count("\n") == 1


def test_bench_prints_a_table_and_the_crossover(tiny_run):
    done, _ = tiny_run
    for name in MECHANISMS - {"nested"} | {"nested-16", "plain", "2 × SDPA"}:
        pattern = rf"^\s*(32|64)\s+{re.escape(name)}\s+[\d.,]+"
        assert len(re.findall(pattern, done.stdout, re.MULTILINE)) == 2, name
    assert "never slower than softmax from n" in done.stdout
    assert "first runs: n = 32, forward\n" in done.stderr
    assert "round 1\n" in done.stderr


def test_bench_saves_everything_that_a_figure_needs(tiny_run):
    _, files = tiny_run
    saved = json.loads(files["json"].read_text())
    assert saved["complete"]
    assert saved["torch"] and saved["luna"] and saved["machine"]["cpu"]
    assert saved["settings"]["tokens"] == 256
    cases = {
        (m["attention"], m["mode"], m["length"]) for m in saved["measurements"]
    }
    assert len(cases) == len(saved["measurements"])
    for name in MECHANISMS | {"plain", "sdpa-pair"}:
        for mode in ("forward", "forward+backward"):
            assert {(name, mode, 32), (name, mode, 64)} <= cases
    for m in saved["measurements"]:
        seconds = m["seconds"]
        assert 0 < seconds["low"] <= seconds["median"] <= seconds["high"]
        assert m["batch"] * m["length"] == 256
        assert m["peak_bytes"] >= 4 * 256 * 2 * 16 * 4  # q, k, v, out
    softmax = {
        (m["mode"], m["length"]): m["seconds"]["median"]
        for m in saved["measurements"]
        if m["attention"] == "softmax"
    }
    for m in saved["measurements"]:
        expected = softmax[m["mode"], m["length"]] / m["seconds"]["median"]
        assert m["times_softmax_speed"] == pytest.approx(expected)
    assert {c["attention"] for c in saved["crossovers"]} == MECHANISMS - {
        "softmax"
    }


class PageReader(html.parser.HTMLParser):
    void = {"meta", "link", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.references = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.void:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data"):
                self.references.append(value)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_stands_alone(tiny_run):
    text = tiny_run[1]["html"].read_text()
    reader = PageReader()
    reader.feed(text)
    assert reader.open == []
    assert "script" not in reader.tags
    assert all(r.startswith("data:") for r in reader.references)
    assert "url(" not in text and "@import" not in text
    assert reader.tags.count("svg") == 8  # 4 figures, wide and narrow
    assert "prefers-color-scheme: dark" in text
    for label in ("time, ms", "sequence length n", "MiB", "speed"):
        assert label in text


def test_plot_is_well_formed(tiny_run):
    drawing = ElementTree.parse(tiny_run[1]["svg"]).getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"


def test_json_goes_to_stdout_alone():
    done = luna(*TINY, "--attention", "linear,universal", "--plain", "none",
                "--mode", "forward", "--json")  # fmt: skip
    names = {m["attention"] for m in json.loads(done.stdout)["measurements"]}
    assert names == {"softmax", "linear", "universal"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_dtypes_and_causal(dtype):
    attentions = ("--attention", "universal", "--attention", "nested")
    done = luna(*TINY, "--causal", "--dtype", dtype, "--json", *attentions)
    saved = json.loads(done.stdout)
    assert {m["attention"] for m in saved["measurements"]} == {
        "softmax", "universal", "nested",
    }  # fmt: skip
    assert {s["reason"] for s in saved["skipped"]} == {"it has no causal form"}


def test_load_shows_what_was_saved(tiny_run):
    done, files = tiny_run
    assert luna("bench", "--load", files["json"]).stdout == done.stdout
    again = luna("bench", "--load", files["json"], "--json").stdout
    assert json.loads(again) == json.loads(files["json"].read_text())


def changed(saved, path, factor):
    saved = json.loads(json.dumps(saved))
    for m in saved["measurements"]:
        if m["attention"] == "universal" and m["length"] == 64:
            for name in m["seconds"]:
                m["seconds"][name] *= factor
    path.write_text(json.dumps(saved))
    return path


def test_compare_fails_only_when_something_got_slower(tiny_run, tmp_path):
    old = tiny_run[1]["json"]
    saved = json.loads(old.read_text())

    def compare(factor, *options, code):
        new = changed(saved, tmp_path / "new.json", factor)
        return luna(
            "bench", "--load", new, "--compare", old, *options, code=code
        )

    assert "0 of 28 slower" in compare(1.0, code=0).stdout
    done = compare(1.5, code=1)
    assert "2 of 28 slower" in done.stdout  # forward, forward+backward
    assert re.search(r"64\s+universal\s+forward .* 1\.50\s+slower", done.stdout)
    assert re.search(r" 0\.50\s+faster", compare(0.5, code=0).stdout)
    assert "0 of 28 slower" in compare(1.5, "--threshold", 60, code=0).stdout


def test_compare_needs_something_in_common(tiny_run, tmp_path):
    old = tiny_run[1]["json"]
    saved = json.loads(old.read_text())
    saved["measurements"] = []
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(saved))
    done = luna("bench", "--load", old, "--compare", empty, code=1)
    assert "in common" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_is_done(tmp_path, number):
    out, page = tmp_path / "part.json", tmp_path / "part.html"
    process = subprocess.Popen(
        [PROGRAM, "bench", "--attention", "linear", "--lengths", "128,8192",
         "--out", out, "--html", page],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        first = process.stderr.readline()  # something is done
        assert first.startswith("first runs: n = 128"), first
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    saved = json.loads(out.read_text())
    assert not saved["complete"]
    lengths = {m["length"] for m in saved["measurements"]}
    assert 128 in lengths and 8192 not in lengths
    assert "Interrupted" in stdout
    assert "interrupted" in page.read_text()
