"""scripts/performance and what scripts/gpu gives it, on made-up results."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page():
    path = str(ROOT / "scripts" / "performance")
    loader = importlib.machinery.SourceFileLoader("performance", path)
    spec = importlib.util.spec_from_loader("performance", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def steps(config, attention, length, ms, reference_ms, memory=1.0):
    return {
        "config": f"configs/lra/universal/{config}.json",
        "attention": attention, "memory_length": 16, "length": length,
        "seconds_per_step": ms / 1000, "steps_per_s": 1000 / ms,
        "spread": [0.9 * ms / 1000, 1.1 * ms / 1000],
        "times_speed": reference_ms / ms, "times_memory": memory,
    }  # fmt: skip


def efficiency(rows, **more):
    return {
        "machine": {"cpu": "Xeon", "threads": 8, "isa": "avx512",
                    "cuda_devices": ["H200"]},
        "luna": "0.1.0", "torch": "2.11.0", "device": "cuda", "batch": 32,
        "rounds": 3, "steps": 100, "rows": rows, **more,
    }  # fmt: skip


def test_steps_on_a_gpu_are_set_beside_their_goals(page):
    rows = [
        steps("text-softmax", "softmax", 4096, 50, 50),
        steps("text-softmax", "softmax", 4096, 6, 50),
        steps("text-universal", "universal", 4096, 1.6, 50, 0.07),
    ]
    lines = page.efficiency_section(
        pathlib.Path("h200-text.json"), efficiency(rows)
    )
    text = "\n".join(lines)
    assert "H200" in text
    assert (
        "| text-universal, 32 × 4,096: a training step | 1.6ms |  "
        "| ≤ 2, beyond ≤ 1.2 | met |"
    ) in lines
    assert "speed | 31.2× |  | ≥ 20 | met |" in text
    assert "memory | 0.07× |  | ≤ 0.05 | **missed** |" in text
    assert "| softmax, whole maps | 4,096 | 20.00 | 10 % |" in text
    assert "| softmax | 4,096 |" in text


def test_nested_is_set_beside_softmax_at_its_best(page):
    rows = [
        steps("text-softmax", "softmax", 4096, 200, 200),
        steps("text-softmax", "softmax", 4096, 90, 200),
        steps("text-nested-16", "nested", 4096, 30, 200),
    ]
    figures = page.efficiency_figures(efficiency(rows))
    assert [(f["value"], f["met"]) for f in figures] == [
        (pytest.approx(1 / 3), True)
    ]
    # Without that row there is nothing to compare with.
    assert page.efficiency_figures(efficiency(rows[::2])) == []


@pytest.mark.parametrize(
    ("value", "word"), [(0.2, "**missed**"), (0.09, "met"), (0.08, "beyond")]
)
def test_a_goal_may_be_passed_twice(page, value, word):
    line = page.figure_rows(
        [{"what": "x", "value": value, "unit": "ms", "goal": "at most",
          "target": 0.1, "met": value <= 0.1, "beyond": 0.082,
          "spread": 0.02}]
    )[2]  # fmt: skip
    assert line.endswith(f"| 2 % | ≤ 0.1, beyond ≤ 0.082 | {word} |")


def test_a_goal_missed_by_little_looks_missed(page):
    line = page.figure_rows(
        [{"what": "x", "value": 1.7033, "unit": "×", "goal": "at most",
          "target": 1.7, "met": False}]
    )[2]  # fmt: skip
    assert line == "| x | 1.703× |  | ≤ 1.7 | **missed** |"


def test_checks_count_what_failed_and_what_died(page, tmp_path):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import gpu_checks

    def log(name, text, tests=None):
        (tmp_path / f"{name}.log").write_text(text)
        if tests is not None:
            suite = {"name": "A", "testsuite": tests}
            results = json.dumps({"testsuites": [suite]})
            (tmp_path / f"{name}.json").write_text(results)

    good = {"name": "b/cuda_Float", "result": "COMPLETED"}
    bad = {**good, "name": "c", "failures": [{"failure": "no"}]}
    skipped = {"name": "d", "result": "SKIPPED"}
    log("tests.0", "", [good, bad, skipped])
    log("tests.1", "running\nIllegal memory access\n")
    log("memcheck.0", "=== ERROR SUMMARY: 0 errors\n", [good])
    log("racecheck.1", "=== begun\n")
    log("racecheck.2", "no tool\n", [good])
    log(
        "racecheck.0",
        "=== Error: Race reported between Read access at "
        "void a::<unnamed>::b<(int)1>(C)\n"
        "===     and Write access at void a::b<(int)1>(C)+0x10 [4 hazards]\n"
        "=== RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n",
        [good],
    )
    found = {n: gpu_checks.check(tmp_path, n) for n in gpu_checks.CHECKS}
    assert found["tests"] == {
        "passed": 1,
        "skipped": 1,
        "failed": ["A.c", "tests.1.log: Illegal memory access"],
    }
    assert found["memcheck"] == {
        "passed": 1, "skipped": 0, "failed": [], "errors": 0
    }  # fmt: skip
    assert found["racecheck"]["failed"] == [
        "racecheck.1.log: === begun",
        "racecheck.2.log: no summary of racecheck",
    ]
    assert found["racecheck"]["errors"] == 3
    assert found["racecheck"]["kernels"] == {"a::<unnamed>::b": 1}
    assert found["initcheck"] is None
    del found["initcheck"]
    data = {"luna": "0.1.0", "created": "now", "checks": found}
    text = "\n".join(page.checks_section(tmp_path / "checks.json", data))
    assert "| tests | 1 | 2 | 1 |  |" in text
    assert (
        "| compute-sanitizer memcheck, small shapes | 1 | 0 | 0 | 0 |" in text
    )
    assert "Illegal memory access" in text
    assert "1 reports of `a::<unnamed>::b`" in text


def test_decoding_is_judged_by_its_slowest_mechanism(page):
    rows = [
        {"attention": name, "batch": 64, "position": position,
         "seconds": seconds, "state_bytes": 2**20}
        for name, times in {
            "softmax": (2e-3, 6e-3, 12e-3),
            "nested": (1e-3, 1e-3, 1e-3),
            "universal": (1e-3, 2e-3, 4e-3),
        }.items()
        for position, seconds in zip((512, 2048, 8192), times, strict=True)
    ]  # fmt: skip
    data = efficiency(rows, layers=6, width=512, dtype="float32")
    lines = page.decode_section(pathlib.Path("decode.json"), data)
    text = "\n".join(lines)
    assert "8,192: speed beside softmax, the slowest (universal) | 3×" in text
    assert text.count("**missed**") == 1 and text.count("| met |") == 2
    assert "universal: slowest position beside the fastest | 4×" in text
    assert "| nested | 64 | 1,000 (2.00×) | 1,000 (6.00×)" in text
    assert "a weak peer" in text
