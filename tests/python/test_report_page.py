"""`luna report`, run as a user runs it, and its page in a browser."""

import json
import re

import pytest
from browser import look_at
from program import luna, needs_program
from run_folders import write_run, write_runs
from test_cli import PageReader, tiny_run  # noqa: F401

pytestmark = needs_program


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_runs(folder / "runs")
    done = luna(
        "report", folder / "runs", "--html", folder / "page.html",
        "--markdown", folder / "page.md", "--json",
    )  # fmt: skip
    return json.loads(done.stdout), folder


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture(scope="module", params=["report", "bench"])
def seen(request, scheme, tmp_path_factory):
    """Results of both widths, and how many figures there should be."""
    if request.param == "report":
        page = request.getfixturevalue("report")[1] / "page.html"
    else:
        page = request.getfixturevalue("tiny_run")[1]["html"]
    text = page.read_text()
    folder = tmp_path_factory.mktemp("browser")
    return look_at(text, folder, scheme), text, scheme


def test_every_plot_shows_something(seen):
    results, text, _ = seen
    for result in results:
        assert len(result["figures"]) == text.count("<figure>") >= 4
        for figure in result["figures"]:
            assert figure, "a figure without a visible drawing"
            for drawing in figure:
                assert drawing["marks"] >= 1, drawing
                assert len(drawing["axes"]) >= 1, drawing
                assert all(label.strip() for label in drawing["axes"])
        assert all(width > 0 for width in result["pictures"])


def test_nothing_is_cut_or_wider_than_the_window(seen):
    for result in seen[0]:
        assert result["scroll_width"] <= result["width"]
        assert result["wide"] == []
        assert result["cut"] == []


def test_text_has_contrast(seen):
    results, _, scheme = seen
    for result in results:
        red = int(re.search(r"\d+", result["ground"])[0])
        assert red > 200 if scheme == "light" else red < 60
        assert result["texts"] > 50
        assert result["faint"] == []


def test_page_makes_no_request_and_has_no_script(seen):
    for result in seen[0]:
        assert result["attempts"] == []
        assert result["scripts"] == 0


def test_the_measures_can_fail(tmp_path):
    page = (
        "<!doctype html><html><head></head><body style='margin:0'>"
        "<p style='color:#999;background:#fff'>faint</p>"
        "<div style='width:500px'>wide</div>"
        "<img src='http://127.0.0.1:1/picture.png'>"
        "<figure><svg width='50' height='20'><text x='40' y='15'>cut off"
        "</text><path class='line' d=''/></svg></figure>"
    )
    narrow, wide = look_at(page, tmp_path, "light")
    assert narrow["scroll_width"] > 390 and narrow["wide"]
    assert wide["scroll_width"] == 1440 and not wide["wide"]
    assert narrow["faint"][0][0] == "faint"
    assert narrow["least_contrast"] == pytest.approx(2.85, abs=0.01)
    assert narrow["attempts"]
    assert narrow["cut"] == ["cut off"]
    assert narrow["figures"][0][0]["marks"] == 0


def test_page_is_one_small_well_formed_file(report):
    text = (report[1] / "page.html").read_text()
    assert len(text.encode()) < 3_000_000
    reader = PageReader()
    reader.void = reader.void | {"img"}
    reader.feed(text)
    assert reader.open == []
    assert all(r.startswith("data:") for r in reader.references)


def test_page_has_every_section(report):
    text = (report[1] / "page.html").read_text()
    for words in (
        "Results beside the papers", "Learning curves",
        "Speed and memory beside softmax", "Accuracy, speed and memory",
        "Learned ψ", "Samples of the test set", "Every run",
        "How alike the layers", "The whole suite",
        "Results that no paper lists",
        "optimizer steps", "validation accuracy, %", "training loss, nats",
        "listops-nested-1: not finished: 600 of 2000 steps",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("<img ") == 10  # of the image task
    assert text.count("✗") > 1 and text.count("✓") > 1


def test_json_has_the_numbers(report):
    numbers = report[0]
    results = {(r["task"], r["title"]): r for r in numbers["results"]}
    universal = results["image", "universal"]
    assert universal["accuracy"]["count"] == 3
    tests = [
        r["test_accuracy"]
        for r in numbers["runs"]
        if r["title"] == "universal" and r["task"] == "image"
    ]
    assert universal["accuracy"]["mean"] == pytest.approx(sum(tests) / 3)
    assert [p["accuracy_percent"] for p in universal["published"]] == [64.32]
    # Not AAN: nothing published is about it.
    assert results["retrieval-imdb", "universal"]["published"] == []
    beside = {c["task"]: c["attentions"] for c in numbers["beside_softmax"]}
    nested = next(a for a in beside["image"] if a["title"] == "nested-16")
    assert nested["times_softmax_speed"] == pytest.approx(5.1 / 1.25)
    psi = next(r for r in numbers["runs"] if r["psi"])["psi"]
    assert [p["layer"] for p in psi] == [
        "layers.0.attention", "layers.1.attention",
    ]  # fmt: skip
    assert len(psi[0]["psi"]) == 8 and psi[0]["change"] > 0
    assert 1 <= psi[0]["effective_channels"] <= 8
    # As the tested weights have it, not the start; the other is assumed.
    assert psi[0]["u"][0] == -10 and psi[0]["u"][-1] == 20
    assert psi[0]["use"] == {
        "query": {"live": 0.25, "silent": 0.125},
        "key": {"live": 0.0625, "silent": 0.5},
    }
    assert psi[1]["use"] is None
    assert psi[1]["u"][-1] == pytest.approx(2.579, abs=1e-3)
    layers = sum(len(r["psi"]) for r in numbers["runs"])
    alignments = numbers["kernel_alignment"]
    assert len(alignments) == layers * (layers - 1) / 2
    assert all(0 <= a["alignment"] <= 1 for a in alignments)


def test_markdown_has_words_and_tables(report):
    text = (report[1] / "page.md").read_text()
    assert text.startswith("# luna report: ")
    assert "| image | universal |" in text
    assert "| layers.0.attention | -10.0, 20.0 |" in text
    assert "| 25 % / 6 % | 12 % / 50 % |" in text
    assert "| layers.1.attention | -2.6, 2.6 (assumed) |" in text
    assert "<svg" not in text and "data:image" not in text


def test_one_run_gets_its_page_in_its_folder(tmp_path):
    run = write_run(tmp_path / "run", attention="linear")
    done = luna("report", run)
    assert (run / "report.html").exists()
    row = r"image\s+linear\s+nested: Linear Trans\.\s+\d\d\.\d\d"
    assert re.search(row, done.stdout)
    assert done.stderr == f"wrote {run / 'report.html'}\n"
    # Its own page does not disturb a second report.
    luna("report", run, "--out", tmp_path / "other.html")
    assert (tmp_path / "other.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ([], "expected at least one run folder", 2),
        (["{}"], r"not a run folder \(no config.json\)", 1),
        (["{}/nothing"], r"nothing: not a run folder \(no such folder\)", 1),
        (["{}", "--markdwon", "x"], r"nearest: --markdown", 2),
    ],
)
def test_wrong_use_is_one_line(tmp_path, arguments, message, code):
    done = luna("report", *(a.format(tmp_path) for a in arguments), code=code)
    assert done.stderr.startswith("luna report: error: ")
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""
