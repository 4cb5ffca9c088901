"""From a plain BERT to a linear one on the command line: fine-tune, convert,
evaluate; transformers reads the fine-tuned folder."""

import functools
import json
import random
import shutil
import subprocess

import program
import pytest
import scipy.stats
import torch
from program import ROOT, needs_program
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

pytestmark = needs_program

luna = functools.partial(
    program.luna, timeout=120, env={"OMP_NUM_THREADS": "1"}
)
WORDS = [f"w{i}" for i in range(8)]


def sentences(count, seed):
    """Pairs of a sentence and whether it has more of the first four words."""
    rng = random.Random(seed)
    for _ in range(count):
        words = rng.choices(WORDS, k=rng.choice([3, 5, 7]))
        first = sum(word in WORDS[:4] for word in words)
        yield " ".join(words), int(2 * first > len(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """base: a BERT without a head; glue: SST-2's files; run: fine-tuned."""
    folder = tmp_path_factory.mktemp("convert")
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(specials + WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder / "base")
    (folder / "base" / "vocab.txt").write_text("\n".join(specials + WORDS))
    (folder / "glue").mkdir()
    for name, count in ("sst2_train", 200), ("sst2_dev", 60):
        lines = [f"{text}\t{label}" for text, label in sentences(count, count)]
        (folder / "glue" / f"{name}.tsv").write_text(
            "\n".join(["sentence\tlabel", *lines, ""])
        )
    luna(
        *("train", ROOT / "configs" / "glue" / "sst2-minilm.json"),
        *("--data", folder / "glue", "--out", folder / "run"),
        *("--set", f"model.base={folder / 'base'}", "--set", "steps=120"),
        *("--set", "optimizer.lr=3e-3", "--set", "eval_every=40"),
        *("--set", "schedule.warmup=5"),
    )
    return folder


def test_the_report_says_what_eval_says(folder):
    out = folder / "linear"
    luna(
        *("convert", "--model", folder / "run", "--task", "sst2"),
        *("--data", folder / "glue", "--out", out, "--fit-steps", 20),
        *("--stage2-epochs", 1),
    )
    report = json.loads((out / "conversion.json").read_text())
    scores = {m["name"]: m["score"] for m in report["milestones"]}
    assert list(scores) == [
        *("original", "swapped", "fitted", "stage 1", "stage 2")
    ]
    evaluate = ("--task", "sst2", "--data", folder / "glue", "--json")
    linear = json.loads(luna("eval", out, *evaluate).stdout)
    assert linear["accuracy"] == scores["stage 2"]
    assert linear["samples"] == 60
    # The folder says what it was made for.
    again = luna("eval", out, "--data", folder / "glue", "--json")
    assert json.loads(again.stdout) == linear
    assert "--data: expected" in luna("eval", out, code=2).stderr
    of_run = json.loads(
        luna("eval", folder / "run", "--data", folder / "glue", "--json").stdout
    )
    assert of_run["accuracy"] == scores["original"]
    assert "Learned ψ" in (out / "conversion.html").read_text()
    luna("classify", out, "--text", "w1 w2 w7")


def test_eval_cuts_where_convert_did(folder):
    out = folder / "short"
    luna(
        *("convert", "--model", folder / "run", "--task", "sst2"),
        *("--data", folder / "glue", "--out", out, "--fit-steps", 5),
        *("--stage2-epochs", 0, "--max-length", 5),
    )
    path = out / "conversion.json"
    report = json.loads(path.read_text())
    assert report["max_length"] == 5
    last = report["milestones"][-1]

    def loss(*more):
        found = luna("eval", out, "--data", folder / "glue", "--json", *more)
        return json.loads(found.stdout)["loss"]

    assert loss() == pytest.approx(last["loss"])
    assert loss("--task", "sst2") == loss()
    assert loss("--max-length", 128) != pytest.approx(last["loss"])
    # As folders say that were written before lengths were.
    del report["max_length"]
    path.write_text(json.dumps(report))
    assert loss() == loss("--max-length", 128)
    path.write_text(json.dumps(report | {"max_length": "long"}))
    assert (
        "conversion.json: max_length: expected"
        in luna("eval", out, "--data", folder / "glue", code=1).stderr
    )


def test_transformers_reads_a_fine_tuned_run(folder):
    out = folder / "softmax"
    luna(
        *("convert", "--model", folder / "run", "--attention", "softmax"),
        *("--out", out),
    )
    model, notes = BertForSequenceClassification.from_pretrained(
        out, output_loading_info=True
    )
    assert not notes["missing_keys"]
    tokenizer = BertTokenizerFast.from_pretrained(out)
    texts = [text for text, _ in sentences(20, 7)]
    with torch.no_grad():
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        expected = model.eval()(**inputs).logits.softmax(-1)
    arguments = [word for text in texts for word in ("--text", text)]
    rows = json.loads(luna("classify", out, *arguments, "--json").stdout)
    for row, probabilities in zip(rows, expected.tolist(), strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(
            probabilities, abs=1e-5
        )


def test_mistakes_are_named(folder):
    without_data = luna(
        *("convert", "--model", folder / "run", "--task", "sst2"),
        *("--out", folder / "x"),
        code=None,
    )
    assert without_data.returncode != 0
    assert "--data" in without_data.stderr
    no_head = luna(
        *("convert", "--model", folder / "base", "--task", "sst2"),
        *("--data", folder / "glue", "--out", folder / "x"),
        code=None,
    )
    assert no_head.returncode != 0
    assert "2 classes of sst2" in no_head.stderr


def test_a_folder_of_pickled_weights(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder / "base", model)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    for arguments in (
        ("classify", model, "--text", "w1"),
        ("encode", model, "--text", "w1", "--out", tmp_path / "out"),
        ("convert", "--model", model, "--out", tmp_path / "out"),
        ("eval", model, "--task", "sst2", "--data", folder / "glue"),
    ):
        done = luna(*arguments, code=1)
        assert f"{model / 'pytorch_model.bin'}: expected safe" in done.stderr


def test_weights_without_a_use_are_named(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder / "base", model)
    weights = load_file(model / "model.safetensors")
    weights["of.nobody"] = torch.zeros(2)
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    done = luna("convert", "--model", model, "--out", tmp_path / "out")
    assert "1 without a use: of.nobody" in done.stdout


def test_classify_shows_pairs_and_any_bytes(folder):
    run = folder / "run"
    long = "é" * 200
    table = luna("classify", run, "--text", "a" + long, "--pair", "w1").stdout
    assert "pair" in table.splitlines()[0]
    assert "a" + "é" * 59 + " " in table
    assert " w1 " in table
    broken = luna("classify", run, "--text", "w1 \udcff", "--json").stdout
    assert json.loads(broken)[0]["input"] == "w1 \ufffd"
    paired = luna("classify", run, "--text", "w1", "--pair", "w2", "--json")
    assert json.loads(paired.stdout)[0]["pair"] == "w2"


def test_no_folder_of_the_user_is_replaced(folder, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    model = ("--model", folder / "base")
    refused = luna("convert", *model, "--out", mine, code=2).stderr
    assert (
        f"expected a new folder or one of luna convert, got {mine}" in refused
    )
    assert (mine / "notes.txt").read_text() == "keep"
    refused = luna("convert", *model, "--out", folder / "base", code=2).stderr
    assert "expected another folder than --model" in refused
    # Folders above are made, and a folder of its own is replaced.
    out = tmp_path / "a" / "b" / "linear"
    for _ in range(2):
        luna("convert", *model, "--out", out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["linear"]


def test_a_slash_behind_out_and_what_lies_beside(folder, tmp_path):
    beside = tmp_path / "out.work"
    beside.mkdir()
    (beside / "notes.txt").write_text("keep")
    luna(
        *("convert", "--model", folder / "run", "--task", "sst2"),
        *("--data", folder / "glue", "--out", f"{tmp_path / 'out'}/"),
        *("--fit-steps", 2, "--stage2-epochs", 0, "--samples", 40),
    )
    assert (tmp_path / "out" / "start.safetensors").exists()
    assert (tmp_path / "out" / "conversion.html").exists()
    assert (beside / "notes.txt").read_text() == "keep"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out", "out.work"]


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (("--data", "glue"), "--data: expected --task with it"),
        (("--fit-steps", 5), "--fit-steps: expected --task with it"),
        (
            ("--task", "sst2", "--data", "glue", "--batch", 0),
            "--batch: expected at least 1, got 0",
        ),
    ],
)
def test_options_that_would_do_nothing(folder, tmp_path, arguments, complaint):
    done = luna(
        *("convert", "--model", folder / "base", "--out", tmp_path / "out"),
        *arguments,
        code=2,
    )
    assert complaint in done.stderr
    assert not (tmp_path / "out").exists()


# Columns of the published files; what is not read is a dash.
COLUMNS = {
    "stsb": "index genre filename year old_index source1 source2 sentence1 "
    "sentence2 score",
    "mnli": "index promptID pairID genre sentence1_binary_parse "
    "sentence2_binary_parse sentence1_parse sentence2_parse sentence1 "
    "sentence2 label1 gold_label",
    "qqp": "id qid1 qid2 question1 question2 is_duplicate",
    "qnli": "index question sentence label",
    "rte": "index sentence1 sentence2 label",
}
FILES = {
    "stsb": ("STS-B", "dev"),
    "mnli": ("MNLI", "dev_matched"),
    "qqp": ("QQP", "dev"),
    "qnli": ("QNLI", "dev"),
    "rte": ("RTE", "dev"),
}
ANSWERS = {
    "mnli": ("contradiction", "neutral", "entailment"),
    "qqp": ("0", "1"),
    "qnli": ("not_entailment", "entailment"),
    "rte": ("not_entailment", "entailment"),
}


def pairs(task, count, seed):
    """Rows of a task; the score or class is how many words are shared."""
    rng = random.Random(seed)
    columns = COLUMNS[task].split()
    texts = [c for c in columns if c.startswith(("sentence", "question"))]
    texts = [c for c in texts if not c.endswith("parse")]
    for _ in range(count):
        first = rng.sample(WORDS, 4)
        shared = rng.randrange(5)
        others = [word for word in WORDS if word not in first]
        second = first[:shared] + others[: 4 - shared]
        score = 5 * shared / 4
        answer = f"{score:.3f}"
        if task in ANSWERS:
            classes = ANSWERS[task]
            answer = classes[shared * len(classes) // 5]
        row = dict.fromkeys(columns, "-")
        row |= {texts[0]: " ".join(first), texts[1]: " ".join(second)}
        row[columns[-1]] = answer
        yield "\t".join(row.values())


@pytest.mark.parametrize("task", COLUMNS)
def test_every_task_trains_and_converts(folder, tmp_path, task):
    name, validation = FILES[task]
    (tmp_path / name).mkdir()
    for split, count in ("train", 120), (validation, 40):
        lines = ["\t".join(COLUMNS[task].split()), *pairs(task, count, count)]
        (tmp_path / name / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    data = ("--task", task, "--data", tmp_path)
    run, out = tmp_path / "run", tmp_path / "out"
    luna(
        *("train", ROOT / "configs" / "glue" / "mrpc-minilm.json"),
        *("--data", tmp_path, "--out", run, "--set", f"data.task={task}"),
        *("--set", f"model.base={folder / 'base'}"),
        *("--set", f"steps={60 if task == 'stsb' else 10}"),
        *("--set", "optimizer.lr=3e-3", "--set", "eval_every=20"),
        *("--set", "schedule.warmup=5"),
    )
    summary = json.loads((run / "summary.json").read_text())
    found = json.loads(luna("eval", run, *data, "--json").stdout)
    metric = {"stsb": "pearson", "qqp": "f1"}.get(task, "accuracy")
    assert found[metric] == pytest.approx(summary[f"test_{metric}"])
    if task not in ("stsb", "mnli"):  # a score; three classes; the rest alike
        return
    luna(
        *("convert", "--model", run, *data, "--out", out),
        *("--fit-steps", 5, "--stage2-epochs", 1),
    )
    report = json.loads((out / "conversion.json").read_text())
    assert report["metric"] == metric
    assert report["milestones"][0]["score"] == pytest.approx(found[metric])
    linear = json.loads(luna("eval", out, *data, "--json").stdout)
    assert linear[metric] == pytest.approx(report["milestones"][-1]["score"])
    if task != "stsb":
        return
    # Scores are those of scipy's over what classify says.
    model = BertForSequenceClassification.from_pretrained(
        _softmax_folder(run, tmp_path)
    )
    assert model.config.problem_type == "regression"
    tokenizer = BertTokenizerFast.from_pretrained(tmp_path / "softmax")
    rows = [row.split("\t") for row in pairs(task, 40, 40)]
    with torch.no_grad():
        inputs = tokenizer(
            [row[-3] for row in rows],
            [row[-2] for row in rows],
            padding=True,
            return_tensors="pt",
        )
        predicted = model.eval()(**inputs).logits[:, 0].numpy()
    scores = [float(row[-1]) for row in rows]
    assert found["pearson"] == pytest.approx(
        scipy.stats.pearsonr(scores, predicted).statistic, abs=1e-4
    )
    assert found["spearman"] == pytest.approx(
        scipy.stats.spearmanr(scores, predicted).statistic, abs=1e-3
    )
    assert found["pearson"] > 0.3


def _softmax_folder(run, folder):
    luna(
        *("convert", "--model", run, "--attention", "softmax"),
        *("--out", folder / "softmax"),
    )
    return folder / "softmax"


def test_settings_are_checked(folder, tmp_path):
    swap = ("convert", "--model", folder / "base", "--out", tmp_path / "x")
    refused = luna(*swap, "--set", "K=4", code=2).stderr
    assert "--set: expected NAME=VALUE with one of" in refused
    refused = luna(*swap, "--set", "M=many", code=2).stderr
    assert "--set: universal: expected M to be an integer" in refused
    refused = luna(*swap, "--attention", "lineal", code=2).stderr
    assert "linear" in refused


def test_a_table_is_made_of_many_conversions(folder, tmp_path):
    script = ROOT / "scripts" / "conversion-table"
    run = [
        *(script, "run", "--base", folder / "base", "--data", folder / "glue"),
        *("--out", tmp_path / "all", "--luna", program.PROGRAM),
        *("--device", "cpu", "--autocast", "none", "--jobs", "2"),
        *("--tasks", "sst2", "--seeds", "1", "2", "--set", "steps=4"),
        *("--set", "schedule.warmup=1", "--variants", "linear"),
        *("--setting", "taught=--attention linear --stage2-teacher 1"),
    ]
    first = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert first.returncode == 0, first.stdout + first.stderr
    records = json.loads((tmp_path / "all" / "results.json").read_text())
    taught = [r for r in records if r["variant"] == "taught"]
    assert [r["stage_two"]["teacher_weight"] for r in taught] == [1, 1]
    records = [r for r in records if r["variant"] == "linear"]
    assert len(records) == 2
    # Again: nothing is done twice, what is missing is done.
    shutil.rmtree(tmp_path / "all" / "linear-sst2-2")
    again = subprocess.run(run, capture_output=True, text=True, timeout=120)
    done = [x for x in again.stdout.splitlines() if ": done" in x]
    assert len(done) == 1 and done[0].startswith("linear-sst2-2")
    ends = [100 * r["milestones"][-1]["score"] for r in records]
    softmax = [100 * r["milestones"][0]["score"] for r in records]
    page = tmp_path / "page.md"
    page.write_text(
        "Before\n<!-- conversion-table: begin -->\nold\n"
        "<!-- conversion-table: end -->\nAfter\n"
    )
    results = tmp_path / "all" / "results.json"
    subprocess.run([script, "show", results, "--into", page], check=True)
    text = page.read_text()
    assert text.startswith("Before\n") and text.endswith("\nAfter\n")
    assert "old" not in text
    (row,) = [x for x in text.splitlines() if "linear, after stage 2" in x]
    assert f"{sum(ends) / 2:.1f} ±" in row
    assert f"({100 * sum(ends) / sum(softmax):.1f} %)" in row
