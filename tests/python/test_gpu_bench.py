"""The GPU's benchmark, its parts run at small sizes on the CPU: that they call
the ops rightly, and that their formulas are the ops'."""

import pathlib
import sys
import types

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
import gpu
import gpu_bench
import gpu_lengths

PEERS = ("flash", "cudnn", "sdpa")  # may not have the CPU's backend


def timed(work, launches):
    work()
    return [1, 2, 4]


def peak(work):
    work()
    return 8


@pytest.fixture
def options(monkeypatch):
    monkeypatch.setattr(gpu_bench, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_bench, "graphed", lambda work: work)
    monkeypatch.setattr(gpu_bench, "milliseconds", timed)
    monkeypatch.setattr(gpu_bench, "peak_mib", peak)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for module in (gpu, gpu_lengths):
        monkeypatch.setattr(module, "TOKENS", 128)
    torch.manual_seed(0)
    return types.SimpleNamespace(
        launches=1,
        only="",
        lengths=[64, 128],
        compile=False,
        growth_powers=[4, 5],
        error_tokens=64,
    )


@pytest.mark.parametrize("part", sorted(set(gpu.PARTS) - {"trained"}))
def test_every_part_can_be_run(options, part):
    bench = gpu_bench.Bench(options)
    gpu.PARTS[part](bench, torch.ops.luna, options)
    assert bench.rows or bench.figures
    wrong = [row for row in bench.rows if "error" in row]
    assert all(row["name"].startswith(PEERS) for row in wrong), wrong


def test_figures_have_spreads_and_goals(options):
    bench = gpu_bench.Bench(options)
    gpu.small(bench, torch.ops.luna, options)
    figure = bench.figures[0]
    assert figure["value"] == 2 and figure["spread"] == 0.75
    assert figure["target"] == 0.03 and figure["met"] is False


def test_formulas_are_those_of_the_ops(options):
    bench = gpu_bench.Bench(options)
    gpu.PARTS["errors"](bench, torch.ops.luna, options)
    exact = [f for f in bench.figures if "float32" in f["what"]]
    goals = [f for f in exact if "met" in f]
    assert len(goals) == 10
    assert all(f["met"] for f in goals), goals
    assert all(f["value"] < 1e-3 for f in exact), exact


@pytest.mark.parametrize(
    ("ours", "first"),
    [([5, 1, 1], 256), ([1, 5, 1], 512), ([1, 1, 1], 128), ([1, 1, 5], None)],
)
def test_crossover_is_where_no_longer_one_is_slower(options, ours, first):
    bench = gpu_bench.Bench(options)
    lengths = [128, 256, 512]
    for n, ms in zip(lengths, ours, strict=True):
        for name, time in (("universal", ms), ("flash", 4), ("cudnn", 3)):
            row = {"name": name, "n": n, "forward_ms": [time] * 3}
            bench.rows.append(row)
    assert gpu_lengths.faster_from(bench, lengths, "forward_ms") == first
