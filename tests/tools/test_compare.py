"""compare: its intervals hold the truth, and the tool says of real experiments what their files say."""

import csv
import dataclasses
import hashlib
import itertools
import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import dvc.api
import matplotlib.pyplot as plt
import numpy as np
import pytest

from lm.core.errors import IntegrityError
from lm.text.documents import Slice, iter_texts
from support import ROOT
from support.workspace import Workspace
from tools.common.revisions import flatten
from tools.common.statistics import (
    Difference,
    bits_per_byte,
    effective_documents,
    paired_difference,
    standard_error,
    student_t_p_value,
    student_t_quantile,
    welch,
)
from tools.compare.cli import main, refuse_other_text, with_common_bytes
from tools.compare.figure import Panel, _draw_marks
from tools.compare.report import report, table
from tools.compare.runs import Run, compare_groups, group_by_seed, most_changed, what_differs

LN2 = math.log(2)


def corpus(rng, documents: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nats under A and B and bytes: lengths as unequal as the default corpus's, B - A `shift` bits per byte."""
    sizes = np.maximum(rng.lognormal(7.6, 1.34, documents), 50).round()
    hard, change = rng.normal(1.3, 0.3, documents), rng.normal(shift, 0.1, documents)
    return hard * sizes * LN2, (hard + change) * sizes * LN2, sizes


# The statistics.


def test_a_difference_is_of_ratios_of_sums():
    nats_a, nats_b, sizes = np.array([10.0, 1.0]), np.array([11.0, 3.0]), np.array([100, 1])
    found = paired_difference(nats_a, nats_b, sizes, np.random.default_rng(0))
    assert found.bits_per_byte == pytest.approx(3 / 101 / LN2)
    assert found.bits_per_byte == pytest.approx(bits_per_byte(nats_b, sizes) - bits_per_byte(nats_a, sizes))


def test_the_interval_is_that_of_a_bootstrap_written_as_loops():
    nats_a, nats_b, sizes = corpus(np.random.default_rng(1), 40, 0.05)
    found = paired_difference(nats_a, nats_b, sizes, np.random.default_rng(2))
    excess, draw = (nats_b - nats_a) / LN2, np.random.default_rng(3)

    def ratio_and_se(bits, lengths):
        ratio = sum(bits) / sum(lengths)
        squares = sum((x - ratio * n) ** 2 for x, n in zip(bits, lengths, strict=True))
        return ratio, math.sqrt(len(bits) / (len(bits) - 1) * squares) / sum(lengths)

    delta, se = ratio_and_se(excess, sizes)
    drawn = []
    for _ in range(4000):
        chosen = draw.integers(40, size=40)
        ratio, its_se = ratio_and_se(excess[chosen], sizes[chosen])
        drawn.append(abs(ratio - delta) / its_se)
    assert (found.bits_per_byte, found.se) == pytest.approx((delta, se))
    assert (found.high - found.low) / 2 == pytest.approx(np.quantile(drawn, 0.95) * se, rel=0.06)
    assert (found.high + found.low) / 2 == pytest.approx(delta)
    assert found.p_value == pytest.approx(np.mean(np.array(drawn) >= abs(delta) / se), abs=0.02)


def test_intervals_hold_the_truth_and_p_is_uniform_where_nothing_differs():
    rng, held, p_values = np.random.default_rng(4), [], []
    for _ in range(500):
        found = paired_difference(*corpus(rng, 96, 0.0), rng, resamples=399)
        held.append(found.low <= 0 <= found.high)
        p_values.append(found.p_value)
    p_values = np.array(p_values)
    assert 0.925 <= np.mean(held) <= 0.975
    for level in (0.05, 0.25, 0.5, 0.75):
        assert np.mean(p_values <= level) == pytest.approx(level, abs=0.025 if level == 0.05 else 0.07)


def test_a_true_difference_is_found_and_its_interval_holds_it():
    rng = np.random.default_rng(5)
    found = [paired_difference(*corpus(rng, 96, -0.08), rng, resamples=399) for _ in range(200)]
    assert 0.91 <= np.mean([f.low <= -0.08 <= f.high for f in found]) <= 0.985
    assert np.mean([f.p_value < 0.05 for f in found]) > 0.75


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.03, 0.04, 0.08])
def test_p_and_interval_never_contradict_each_other(shift):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = paired_difference(*corpus(rng, 30, shift), rng, resamples=999)
        assert (found.p_value <= 0.05) == (not found.low <= 0 <= found.high)


def test_a_seed_gives_the_same_figures_whatever_the_blocks(monkeypatch):
    data = corpus(np.random.default_rng(6), 50, 0.02)
    first = paired_difference(*data, np.random.default_rng(1), resamples=999)
    assert first == paired_difference(*data, np.random.default_rng(1), resamples=999)
    assert first != paired_difference(*data, np.random.default_rng(2), resamples=999)
    monkeypatch.setattr("tools.common.statistics._BLOCK", 120)
    assert first == paired_difference(*data, np.random.default_rng(1), resamples=999)


def test_pairing_takes_out_what_makes_documents_hard():
    nats_a, nats_b, sizes = corpus(np.random.default_rng(7), 96, 0.0)
    paired = paired_difference(nats_a, nats_b, sizes, np.random.default_rng(1))
    assert paired.se < standard_error(nats_a, sizes) / 2


def test_too_few_documents_give_no_interval():
    rng = np.random.default_rng(8)
    alone = paired_difference(np.array([1.0]), np.array([2.0]), np.array([10]), rng)
    assert alone.bits_per_byte == pytest.approx(0.1 / LN2) and alone.se is alone.low is alone.p_value is None
    with np.errstate(all="raise"):  # half the resamples are one document twice, which have no spread to divide by
        for _ in range(20):
            two = paired_difference(*corpus(rng, 2), rng, resamples=199)
            assert two.se > 0 and two.low is two.high is two.p_value is None
    assert standard_error(np.array([1.0]), np.array([10])) is None


def test_equal_losses_do_not_differ():
    nats, _, sizes = corpus(np.random.default_rng(9), 20)
    found = paired_difference(nats, nats.copy(), sizes, np.random.default_rng(0))
    assert (found.bits_per_byte, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_unequal_documents_weigh_as_fewer_equal_ones():
    assert effective_documents(np.full(7, 300)) == pytest.approx(7)
    assert effective_documents(np.array([1000, 1, 1, 1])) == pytest.approx(1, abs=0.01)


# Two-sided quantiles and tails of Student's t, from printed tables.
@pytest.mark.parametrize(
    ("confidence", "df", "t"),
    [(0.95, 1, 12.7062), (0.95, 4, 2.77645), (0.99, 10, 3.16927), (0.99, 30, 2.75000), (0.9, 1000, 1.64638)],
)
def test_student_t_is_that_of_the_tables(confidence, df, t):
    assert student_t_quantile(confidence, df) == pytest.approx(t, abs=2e-5)
    assert student_t_p_value(-t, df) == pytest.approx(1 - confidence, abs=1e-5)


def test_student_t_of_one_degree_is_cauchy_also_between_whole_numbers():
    for t in (0.1, 1, 3, 50):
        assert student_t_p_value(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert student_t_p_value(2, 1) > student_t_p_value(2, 1.5) > student_t_p_value(2, 2)


def test_welch_is_that_of_a_published_example():
    """Two samples of 15 and 15 with unequal variances: t = -2.46, 25 degrees of freedom, p = 0.021."""
    a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    found = welch(np.array(b), np.array(a))
    assert found.bits_per_byte / found.se == pytest.approx(-2.46, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(25, abs=0.1)
    assert found.p_value == pytest.approx(0.021, abs=0.0005)
    assert found.low < found.bits_per_byte < found.high < 0


def test_welch_holds_its_level_with_unequal_spreads():
    rng = np.random.default_rng(10)
    p_values = [welch(rng.normal(1, 0.01, 5), rng.normal(1, 0.03, 4)).p_value for _ in range(1500)]
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=0.018)


def test_one_run_says_nothing_about_seeds():
    found = welch(np.array([1.0]), np.array([1.5, 1.6]))
    assert found.bits_per_byte == pytest.approx(0.55) and found.se is found.low is found.p_value is None
    assert welch(np.array([1.0, 1.0]), np.array([2.0, 2.0])).p_value is None


# Runs and their groups.


def run(name: str, seed: int = 1, shift: float = 0.0, params: dict | None = None, **inputs: str) -> Run:
    rng = np.random.default_rng(11)
    nats, _, sizes = corpus(rng, 40)
    nats = nats + shift * sizes * LN2 + np.random.default_rng(seed).normal(0, 0.001, 40) * sizes
    figures = {"tokens_seen": 100, "best_tokens_seen": 90, "parameters": 1000, "train_seconds": 1.5}
    chose = np.arange(40) < 4
    return Run(name, nats, sizes.astype(np.int64), chose, {"train.seed": seed, **(params or {})}, inputs, figures)


def test_runs_that_differ_by_seed_alone_are_grouped():
    wide = {"models.*.d_model": 64}
    runs = [run("a-1"), run("w-1", params=wide), run("a-2", 2), run("w-2", 2, params=wide), run("c", code="f00")]
    assert [[member.name for member in group.runs] for group in group_by_seed(runs)] == [
        ["a-1", "a-2"], ["w-1", "w-2"], ["c"],
    ]  # fmt: skip


def test_the_same_run_again_is_no_second_seed():
    groups = group_by_seed([run("a"), run("again"), run("b", 2)])
    assert [group.name for group in groups] == ["a…b", "again"]


def test_what_differs_is_named_and_seeds_only_between_single_runs():
    a, b = run("a", 1, params={"x": 1}, file="0123456789abc"), run("b", 2, params={"y": None}, file="f" * 32)
    groups = group_by_seed([a, b])
    expected = [("x", 1, "(none)"), ("y", "(none)", None), ("file", "0123456789", "f" * 10)]
    assert what_differs(*groups) == [("train.seed", 1, 2), *expected]
    assert (
        what_differs(*group_by_seed([a, dataclasses.replace(a, params={**a.params, "train.seed": 3}), b])) == expected
    )


def test_documents_change_most_in_either_direction():
    a = run("a")
    change = np.zeros(40)
    change[[7, 3, 21]] = 300, -500, 100
    b = dataclasses.replace(run("b", params={"p": 1}), nats=a.nats + change)
    comparison = compare_groups(*group_by_seed([a, b]), 1, 0.95, 99)
    assert most_changed(comparison, 3).tolist() == [3, 7, 21]


def text_of(runs: list[Run]) -> str:
    groups = group_by_seed(runs)
    comparisons = [compare_groups(groups[0], group, 1, 0.95, 999) for group in groups[1:]]
    return "\n".join(report(groups, comparisons, {d: "x" for d in range(40)}, 3, "95 %"))


def test_seeds_on_both_sides_give_a_test_over_seeds():
    params = {"models.*.d_model": 64}
    text = text_of([*(run(f"a-{i}", i) for i in range(1, 6)), *(run(f"w-{i}", i, -0.05, params) for i in range(1, 5))])
    assert re.search(r"\| a-1…a-5 +\| +5 \| +[\d.]+ \| +± 0\.000\d", text)
    assert re.search(r"seeds, 5 and 4 runs \(Welch's t, \d\.\d degrees of freedom\) \| +-0\.0(49|50)\d \|", text)
    assert "- Documents: `w-1…w-4` is better than `a-1…a-5`" in text
    assert "- Seeds: on these documents, `w-1…w-4` is better than `a-1…a-5`" in text
    assert "n = 1" not in text


def test_a_difference_within_seed_noise_is_called_that():
    runs = [run(f"a-{i}", i) for i in (1, 2, 3)] + [run(f"b-{i}", i, 0.0, {"p": 1}) for i in (4, 5, 6)]
    noisy = [dataclasses.replace(r, nats=r.nats * (1 + 0.05 * (i % 3))) for i, r in enumerate(runs)]
    assert "- Seeds: on these documents, `a-1…a-3` and `b-4…b-6` are not told apart" in text_of(noisy)


def test_one_run_a_side_is_said_to_say_nothing_of_seeds():
    text = text_of([run("a"), run("b", params={"p": 1}), run("b2", 2, params={"p": 1})])
    assert "n = 1 of `a`. What another `train.seed` would give cannot be said" in text
    assert "one run: unknown" in text and "Welch's t" not in text
    assert re.search(r"documents, all 40, paired .*\n\| 36 that chose neither's best model ", text)


def test_another_stride_of_scoring_is_pointed_out():
    assert "`eval.stride` differs" in text_of(
        [run("a", params={"eval.stride": 8}), run("b", params={"eval.stride": 4})]
    )


def test_table_columns_stand_under_each_other():
    lines = table(["a", "b"], [["x|y", 1], ["zz", 22.5]])
    assert lines == ["| a    |    b |", "|:-----|-----:|", "| x\\|y |    1 |", "| zz   | 22.5 |", ""]


def test_flatten_names_leaves():
    assert flatten({"a": {"b": 1, "c": {}}, "d.e": [1]}) == {"a.b": 1, "a.c": {}, "d.e": [1]}


# The same documents, whatever the tokenizer.


def revision(name: str, files: list[str], sha256: str = "", **part) -> SimpleNamespace:
    """A revision of which only the validation text's origin is known."""
    splits = {"validation": {"files": [{"sha256": digest} for digest in files]}}
    manifest = json.dumps({"column": "text", "splits": splits, "salt": name}).encode()
    sidecar = {
        "slice": {"split": "validation", "start_char": 0, "num_chars": None, **part}, "documents": 3, "utf8_bytes": 30,
        "source": {"name": "s", "manifest_sha256": sha256 or hashlib.sha256(manifest).hexdigest()},
    }  # fmt: skip
    return SimpleNamespace(name=name, read=lambda path: manifest, read_json=lambda path: sidecar)


def test_the_same_files_and_range_are_the_same_documents_whatever_else_was_fetched():
    refuse_other_text(revision("a", ["1", "2"]), revision("b", ["1", "2"]))


@pytest.mark.parametrize(
    ("files", "part"), [(["1"], {}), (["1", "2"], {"start_char": 5}), (["1", "2"], {"num_chars": 9})]
)
def test_other_files_or_another_range_are_refused(files, part):
    with pytest.raises(IntegrityError, match="a and b were evaluated on different documents"):
        refuse_other_text(revision("a", ["1", "2"]), revision("b", files, **part))


def test_a_manifest_that_is_not_the_recorded_one_proves_nothing():
    with pytest.raises(IntegrityError, match=r"data/raw/manifest\.json has the sha256"):
        refuse_other_text(revision("a", ["1"]), revision("b", ["1"], sha256="0" * 64))


def test_bytes_are_those_of_a_run_that_knows_them():
    exact, other = run("exact"), run("other")
    other = dataclasses.replace(other, utf8_bytes=other.utf8_bytes + 1)
    sidecar = {"utf8_bytes": int(exact.utf8_bytes.sum())}
    knows = SimpleNamespace(read_json=lambda path: sidecar)
    for runs in ([exact, other], [other, exact]):
        for found in with_common_bytes(runs, [knows, knows]):
            assert np.array_equal(found.utf8_bytes, exact.utf8_bytes)
    sidecar["utf8_bytes"] += 7
    with pytest.raises(IntegrityError, match="none of their tokenizers is byte-level"):
        with_common_bytes([exact, other], [knows, knows])


def test_documents_that_are_equal_are_drawn_too():
    _, axes = plt.subplots()
    _draw_marks(axes, Panel("a", "b", np.array([10, 20, 40]), np.zeros(3), Difference(0.0), "95 %"), np.full(3, 4))
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == 3
    assert "3 documents: equal" in axes.texts[-1].get_text()
    plt.close()


# Real experiments.


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Experiments base, seed2, and vocab (another tokenizer), which is also what lies in the workspace."""
    workspace = Workspace(tmp_path_factory.mktemp("compare"))
    workspace.make_small()
    workspace.change(**{"train.max_tokens": 5120, "train.eval_every_tokens": 2560})
    workspace.commit()
    for name, value in (("user.name", "t"), ("user.email", "t@localhost")):
        workspace.run("git", "config", name, value)
    workspace.run("dvc", "exp", "run", "-n", "base")
    workspace.run("dvc", "exp", "run", "-n", "seed2", "-S", "train.seed=2")
    workspace.run("dvc", "exp", "run", "-n", "vocab", "-S", "train.seed=1", "-S", "tokenizers.bpe.vocab_size=320")
    return workspace


@pytest.fixture
def compare(workspace, monkeypatch, capsys):
    """The command in the workspace: (exit status, standard output, standard error)."""
    monkeypatch.chdir(workspace.folder)

    def run_it(*arguments: str):
        return main(["--resamples", "499", *arguments]), *capsys.readouterr()

    return run_it


def measured(name: str) -> dict:
    """metrics/eval.json of an experiment of the current folder, as DVC tells it."""
    return dvc.api.metrics_show("metrics/eval.json", rev=name)


def test_across_tokenizers_the_difference_is_that_of_the_metrics(compare):
    status, output, _ = compare("base", "vocab", "--documents", "3")
    base, vocab = measured("base"), measured("vocab")
    delta = vocab["bits_per_byte"] - base["bits_per_byte"]
    assert status == 0 and base["tokens"] != vocab["tokens"]
    assert f"## vocab − base: {delta:+.4f} bits per byte" in output
    assert f"{base['bits_per_byte']:.3f} is {base['bits_per_byte_se']:.2g}" in output
    assert re.search(r"\| tokenizers\.\*\.vocab_size +\| +400 \| +320 \|", output)
    assert "train.seed" not in output.split("what differs")[1].split("document that")[0]


def test_files_are_written_beside_each_other_and_git_stays_clean(workspace, compare):
    before = workspace.run("git", "status", "--porcelain").stdout
    _, output, _ = compare("base", "vocab")
    folder = workspace.folder / "comparisons"
    names = [f"base-vs-vocab.{suffix}" for suffix in ("md", "png", "csv")]
    contents = [(folder / name).read_bytes() for name in names]
    assert contents[0].decode().splitlines()[0] == output.splitlines()[0]
    assert "(base-vs-vocab.png)" in contents[0].decode()
    rows = list(csv.DictReader(contents[2].decode().splitlines()))
    total = sum(float(row["utf8_bytes"]) * (float(row["vocab"]) - float(row["base"])) for row in rows)
    delta = total / sum(float(row["utf8_bytes"]) for row in rows)
    assert f"## vocab − base: {delta:+.4f} bits" in output
    assert compare("base", "vocab")[0] == 0
    assert [(folder / name).read_bytes() for name in names] == contents
    assert workspace.run("git", "status", "--porcelain").stdout == before
    assert compare("base", "vocab", "--out", str(workspace.folder / ".runs" / "mine.md"))[0] == 0
    assert {path.suffix for path in (workspace.folder / ".runs").glob("mine.*")} == {".md", ".png", ".csv"}


def test_documents_are_shown_by_how_they_begin(workspace, compare):
    _, output, _ = compare("vocab", "base", "--documents", "4")
    shown = re.findall(r"^\| (\d+): `(.*)` ", output, re.M)
    part = Slice("validation", 0, None)
    texts = list(itertools.chain.from_iterable(iter_texts(workspace.folder / "data" / "raw", part)))
    assert len(shown) == 4
    for document, begins in shown:
        assert len(begins) > 20 and texts[int(document)].startswith(begins.rstrip("…"))


def test_seeds_are_grouped_and_workspace_is_what_lies_here(compare):
    status, output, _ = compare("base", "seed2", "workspace")
    values = np.array([measured(name)["bits_per_byte"] for name in ("base", "seed2")])
    assert status == 0
    mean, sd = values.mean(), values.std(ddof=1)
    assert re.search(rf"\| base…seed2 +\| +2 \| +{mean:.4f} \| +± {sd:.4f} \|", output)
    delta = measured("vocab")["bits_per_byte"] - mean
    assert f"## workspace − base…seed2: {delta:+.4f} bits per byte" in output
    assert "n = 1 of `workspace`" in output


def test_two_seeds_of_one_configuration_measure_noise(compare):
    status, output, _ = compare("base", "seed2")
    assert status == 0
    assert re.search(r"\| train\.seed +\| +1 \| +2 \|", output)
    assert "this difference is noise of the seed or the machine" in output


def test_wrong_names_and_arguments_are_refused(compare):
    assert "nonsense is no experiment" in compare("base", "nonsense")[2]
    for arguments in (["base"], ["base", "base"], ["base", "nonsense"], ["base", "vocab", "--confidence", "1"],
                      ["base", "vocab", "--out", "x.txt"]):  # fmt: skip
        assert compare(*arguments)[0] == 2, arguments
    status, _, error = compare("base", "main")
    assert status == 4 and "main: dvc.lock is neither in git nor in DVC's cache" in error


def test_an_altered_file_is_refused(workspace, compare):
    path = workspace.folder / "data" / "evaluation" / "document_losses.parquet"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status, _, error = compare("base", "workspace")
    path.unlink()
    path.write_bytes(content)
    assert status == 4 and "workspace: data/evaluation/document_losses.parquet has the md5" in error


def test_outside_a_repository_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["a", "workspace"]) == 2
    assert "this folder is in no DVC repository" in capsys.readouterr().err


def test_other_documents_are_refused(workspace, compare):
    """The last test of the workspace: it changes what lies there."""
    workspace.change(**{"sources.stories.validation.start_char": 2000})
    workspace.repro("tokenize_val")
    status, output, error = compare("base", "workspace")
    assert status == 4 and output == ""
    assert "base and workspace were evaluated on different documents" in error


def test_no_model_is_needed():
    code = "import sys, tools.compare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", check=True)
