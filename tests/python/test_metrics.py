"""luna's metrics beside scikit-learn's and scipy's."""

import json

import numpy as np
import pytest
from program import luna, needs_program
from scipy import stats
from sklearn import metrics

pytestmark = needs_program


def score(tmp_path, labels, predictions):
    path = tmp_path / "scores.tsv"
    lines = zip(labels, predictions, strict=True)
    path.write_text("\n".join(f"{a!r}\t{b!r}" for a, b in lines))
    return json.loads(luna("score", path, "--json").stdout)


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("size", [50, 3_000])
def test_classes(classes, size, tmp_path):
    rng = np.random.default_rng(size + classes)
    labels = rng.integers(classes, size=size)
    keep = rng.random(size) < 0.6
    predictions = np.where(keep, labels, rng.integers(classes, size=size))
    got = score(tmp_path, labels.tolist(), predictions.tolist())
    assert got["accuracy"] == metrics.accuracy_score(labels, predictions)
    want = metrics.matthews_corrcoef(labels, predictions)
    assert abs(got["matthews"] - want) < 1e-9
    if classes > 2:  # F1 is that of one class against another
        assert "f1" not in got
        return
    want = metrics.f1_score(labels, predictions, zero_division=0)
    assert abs(got["f1"] - want) < 1e-9


@pytest.mark.parametrize("predictions", [[1, 1, 1, 1], [0, 0, 0, 0]])
def test_one_class_alone(predictions, tmp_path):
    labels = [0, 0, 1, 0]
    got = score(tmp_path, labels, predictions)
    assert got["matthews"] == 0
    want = metrics.f1_score(labels, predictions, zero_division=0)
    assert abs(got["f1"] - want) < 1e-9
    assert got["pearson"] is None and got["spearman"] is None


@pytest.mark.parametrize("digits", [0, 12])
@pytest.mark.parametrize("size", [3, 5_000])
def test_correlations(size, digits, tmp_path):
    rng = np.random.default_rng(size + digits)
    labels = np.round(1e3 + 5 * rng.random(size), digits)
    predictions = np.round(labels + rng.normal(size=size), digits)
    labels[0] += 1  # so that they vary
    predictions[-1] -= 1
    got = score(tmp_path, labels.tolist(), predictions.tolist())
    want = stats.pearsonr(labels, predictions)[0]
    assert abs(got["pearson"] - want) < 1e-9
    want = stats.spearmanr(labels, predictions)[0]
    assert abs(got["spearman"] - want) < 1e-9
