"""scripts/results: docs/results/lra.md and lra.html are luna report's."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys

import program
import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "results"


@pytest.fixture(scope="module")
def results():
    loader = importlib.machinery.SourceFileLoader("results", str(SCRIPT))
    spec = importlib.util.spec_from_loader("results", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_committed_pages_are_what_the_report_says():
    done = subprocess.run(
        [sys.executable, SCRIPT, program.PROGRAM, "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


REPORT = """# luna report

## One

Words.

| a |
|---|
| 1 |

| b |

## Two

| c |
"""


def test_a_marked_place_gets_the_first_table_under_its_heading(results):
    page = "x\n<!-- luna report: One -->\nold\n<!-- end -->\ny\n"
    new = results.filled(page, REPORT)
    assert new == (
        "x\n<!-- luna report: One -->\n\n| a |\n|---|\n| 1 |\n\n"
        "<!-- end -->\ny\n"
    )
    assert results.filled(new, REPORT) == new


def test_pages_are_compared_but_for_what_machines_round_differently(results):
    page = "<h2>A</h2>1<svg>2</svg>3<h2>Learned ψ</h2>4<h2>Every run</h2>5"
    assert results.words(page) == "<h2>A</h2>13<h2>Every run</h2>5"


def test_a_heading_that_is_not_there_is_an_error(results):
    page = "<!-- luna report: Three -->\n<!-- end -->\n"
    with pytest.raises(SystemExit, match="Three"):
        results.filled(page, REPORT)


def test_kept_runs_report_the_same(tmp_path):
    folder = SCRIPT.parents[1] / "docs" / "results" / "lra"
    runs = [folder / "listops-universal-1", folder / "listops-softmax-1"]
    kept = tmp_path / "kept"
    before = program.luna(
        "report", *runs, "--keep", kept, "--html", tmp_path / "a.html"
    )
    assert "kept 2 runs" in before.stderr
    after = program.luna("report", kept, "--html", tmp_path / "b.html")
    assert after.stdout == before.stdout
    same = [tmp_path / "x" / "run", tmp_path / "y" / "run"]
    for path in same:
        path.mkdir(parents=True)
        (path / "metrics.jsonl").write_text("")
    error = program.luna("report", *same, "--keep", kept, code=2).stderr
    assert "different names" in error
