"""compare: groups by seed, what the report says, and runs on the same documents only."""

import dataclasses
import io
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.errors import IntegrityError
from lm.evaluate.intervals import ratio_interval
from support.loss_cases import LN2, corpus
from support.refusal import refused
from tools.common.revisions import refuse_other_text
from tools.common.statistics import detectable_difference, holm
from tools.compare import cli
from tools.compare.cli import read_run
from tools.compare.report import report
from tools.compare.runs import Run, compare_groups, compare_with_first, group_by_seed, same_until, what_differs


def run(name: str, seed: int = 1, shift: float = 0.0, params: dict | None = None, curve=(), **inputs: str) -> Run:
    """Return a made-up run of 40 documents."""
    rng = np.random.default_rng(11)
    nats, _, sizes = corpus(rng, 40)
    nats = nats + shift * sizes * LN2 + np.random.default_rng(seed).normal(0, 0.001, 40) * sizes
    sizes, params = sizes.astype(np.int64), {"train.seed": seed, **(params or {})}
    own = np.arange(40), nats, sizes, None
    return Run(name, *own, params, inputs, [100, 90, 1000, 1.5], list(curve))


def compared(*runs: Run):
    return compare_groups(*group_by_seed(list(runs)), 1, 0.95, 99)


def test_runs_that_differ_only_in_seed_are_grouped():
    wide = {"models.*.d_model": 64}
    runs = [run("a-1"), run("w-1", params=wide), run("a-2", 2), run("w-2", 2, params=wide), run("c", code="f00")]
    assert [[member.name for member in group.runs] for group in group_by_seed(runs)] == [
        ["a-1", "a-2"], ["w-1", "w-2"], ["c"],
    ]  # fmt: skip


def test_a_repeated_run_is_not_a_second_seed():
    groups = group_by_seed([run("a"), run("again"), run("b", 2)])
    assert [group.name for group in groups] == ["a…b", "again"]


def test_the_seed_differs_only_between_single_runs():
    a, b = run("a", 1, params={"x": 1}, file="0123456789abc"), run("b", 2, params={"y": None}, file="f" * 32)
    groups = group_by_seed([a, b])
    expected = [("x", 1, "(none)"), ("y", "(none)", None), ("file", "0123456789", "f" * 10)]
    assert what_differs(*groups) == [("train.seed", 1, 2), *expected]
    assert (
        what_differs(*group_by_seed([a, dataclasses.replace(a, params={**a.params, "train.seed": 3}), b])) == expected
    )


def test_documents_that_changed_most():
    a = run("a")
    change = np.zeros(40)
    change[[7, 3, 21]] = 300, -500, 100
    b = dataclasses.replace(run("b", params={"p": 1}), nats=a.nats + change)
    assert compared(a, b).most_changed(3).tolist() == [3, 7, 21]


def text_of(runs: list[Run]) -> str:
    groups = group_by_seed(runs)
    comparisons = compare_with_first(groups, 1, 0.95, 999)
    return "\n".join(report(groups, comparisons, {d: "x" for d in range(40)}, 3, 0.95))


def test_several_seeds_on_both_sides_are_tested():
    params = {"models.*.d_model": 64}
    text = text_of([*(run(f"a-{i}", i) for i in range(1, 6)), *(run(f"w-{i}", i, -0.05, params) for i in range(1, 5))])
    assert re.search(r"\| a-1…a-5 +\| +5 \| +[\d.]+ \| +± 0\.000\d", text)
    assert re.search(r"seeds, 5 and 4 runs \(Welch's t, \d\.\d degrees of freedom\) +\| +-0\.0(49|50)\d \|", text)
    assert "- Documents: `w-1…w-4` is better than `a-1…a-5`" in text
    assert "- Seeds: `w-1…w-4` is better than `a-1…a-5`; the 95 % interval excludes zero." in text
    assert "only one run" not in text


def test_several_comparisons_are_corrected_for_their_number():
    runs = [run("a"), *(run(f"b{i}", i + 2, shift, params={"p": i}) for i, shift in enumerate((0.001, 0.05, 0.0)))]
    groups = group_by_seed(runs)
    alone = [compare_groups(groups[0], group, 1, 0.95, 999).documents for group in groups[1:]]
    found = [each.documents for each in compare_with_first(groups, 1, 0.95, 999)]
    corrected = [each.p_value for each in found]
    assert found == holm(alone) and alone[0].p_value <= 0.05 < corrected[0]
    text = text_of(runs)
    assert (
        f"no difference was shown between `a` and `b0`; p is {corrected[0]:.2g} after Holm's correction for 3" in text
    )
    assert f"`b1` is worse than `a`; p ≤ {corrected[1]:.2g} after Holm's correction for 3 comparisons." in text
    assert "| p after Holm |" in re.sub(" +", " ", text)
    single = text_of(runs[:2])
    assert "`b0` is worse than `a`; the 95 % interval excludes zero." in single and "Holm" not in single


def test_differences_over_seeds_and_sources_are_corrected_too():
    parts = np.array(["stories"] * 15 + ["headers"] * 25, object)

    def group(name: str, shift: float, params: dict) -> list[Run]:
        return [dataclasses.replace(run(f"{name}-{i}", i, shift, params), sources=parts) for i in (1, 2, 3)]

    groups = group_by_seed([*group("a", 0, {}), *group("b", 1e-4, {"p": 1}), *group("c", -0.01, {"p": 2})])
    alone = [compare_groups(groups[0], other, 1, 0.95, 99) for other in groups[1:]]
    found = compare_with_first(groups, 1, 0.95, 99)
    assert [each.seeds for each in found] == holm([each.seeds for each in alone]) != [each.seeds for each in alone]
    of_sources = [each.sources[name] for each in alone for name in ("stories", "headers")]
    assert [each.sources[name] for each in found for name in ("stories", "headers")] == holm(of_sources)


def test_a_comparison_is_b_minus_a_and_its_baseline_is_a():
    a, b = run("a"), run("b", 2, 0.05, {"p": 1})
    found = compared(a, b)
    bits = (b.nats - a.nats) / LN2
    assert np.allclose(found.bits, bits)
    assert found.documents.value == pytest.approx(bits.sum() / a.utf8_bytes.sum()) and found.documents.value > 0
    assert found.baseline.value == pytest.approx(a.nats.sum() / LN2 / a.utf8_bytes.sum())
    assert found.baseline.low < found.baseline.value < found.baseline.high


def test_the_confidence_is_that_of_both_intervals():
    runs = [*(run(f"a-{i}", i) for i in range(1, 4)), *(run(f"b-{i}", i + 9, 0.01, {"p": 1}) for i in range(1, 4))]
    wide, narrow = (compare_groups(*group_by_seed(runs), 1, confidence, 999) for confidence in (0.95, 0.5))
    for kind in ("documents", "seeds"):
        widths = [getattr(each, kind).high - getattr(each, kind).low for each in (wide, narrow)]
        assert widths[1] < 0.6 * widths[0], kind


def test_sources_are_compared_only_if_all_runs_have_the_same():
    parts = np.array(["stories"] * 15 + ["headers"] * 25, object)
    a, b = (dataclasses.replace(run(name, params={"p": name}), sources=parts) for name in "ab")
    assert list(compared(a, b).sources) == ["stories", "headers"]
    for other in (None, parts[::-1]):
        assert compared(a, dataclasses.replace(b, sources=other)).sources == {}
    empty = np.where(parts == "stories", 0, a.utf8_bytes)
    a, b = (dataclasses.replace(each, utf8_bytes=empty) for each in (a, b))
    assert list(compared(a, b).sources) == ["headers"], "stories without text have no rate"


def test_the_tables_show_the_figures_of_runs_groups_and_documents():
    a = [dataclasses.replace(run(f"a-{i}", i, i / 100), figures=[1000 * i, 900, 70, None]) for i in (1, 2, 3)]
    b = [run("b", 1, 0.5, {"p": 1})]
    a[0] = dataclasses.replace(a[0], numbers=np.arange(40) + 100)
    text = re.sub(" +", " ", text_of([*a, *b]))
    rates = [each.nats.sum() / LN2 / each.utf8_bytes.sum() for each in a]
    assert f"| a-2 | 2 | {rates[1]:.4f} | 2,000 | 900 | 70 | – |" in text
    assert f"| a-1…a-3 | 3 | {np.mean(rates):.4f} | ± {np.std(rates, ddof=1):.4f} |" in text
    assert f"{np.std(rates, ddof=1):.4f}" != f"{np.std(rates):.4f}"
    # The document that changed most, by its number in the first run.
    nats, sizes = np.mean([each.nats for each in a], axis=0), b[0].utf8_bytes
    change = (b[0].nats - nats) / LN2
    most = np.abs(change).argmax()
    before, after = (each[most] / LN2 / sizes[most] for each in (nats, b[0].nats))
    row = f"{before:.4f} | {after:.4f} | {after - before:+.4f} | {change[most]:+,.0f} |"
    assert f"| {most + 100}: `x` | {sizes[most]:,} | {row}" in text


def test_what_seeds_could_show_is_that_of_the_side_with_fewer():
    runs = [*(run(f"a-{i}", i) for i in range(1, 6)), *(run(f"b-{i}", i + 9, 1e-4, {"p": 1}) for i in range(1, 4))]
    assert "With 3 seeds of each side, a true difference of " in text_of(runs)


def test_the_report_says_what_could_have_been_shown():
    runs = [*(run(f"a-{i}", i) for i in range(1, 4)), *(run(f"b-{i}", i + 9, 1e-4, {"p": 1}) for i in range(1, 4))]
    found, text = compared(*runs), text_of(runs)
    for estimate, num, units in ((found.documents, 40, "documents"), (found.seeds, 3, "seeds of each side")):
        shown = (
            f"With {num} {units}, a true difference of {detectable_difference(estimate):.4f} would be shown in about"
        )
        assert re.search(rf"{shown} 80 % of comparisons; one of 0\.000\d needs about [\d,]+ {units}\.", text)


def test_a_large_difference_needs_no_number_of_documents():
    runs = [run("a"), run("b", 2, shift=-0.5, params={"p": 1})]
    text = text_of(runs)
    assert "would be shown in about 80 % of comparisons.\n" in text and "needs" not in text
    assert re.search(r"\| +≤ 0\.002 \|", text), "no resample of 999 was as far from zero"
    several = text_of([*runs, run("c", 3, shift=-0.5, params={"p": 2})])
    assert "p ≤ 0.004 after Holm's correction for 2 comparisons." in several


def test_a_single_run_says_nothing_about_seeds():
    params = {"p": 1, "train.seq_len": 64}
    text = text_of([run("a", params={"train.seq_len": 32}), run("b", params=params), run("b2", 2, params=params)])
    assert "`train.seq_len` differs: the two were scored with different context." in text
    assert "there is only one run of `a`, so this compares trained models" in text
    assert re.search(r"\| a +\| +1 \| +[\d.]+ \| +unknown \|", text) and "Welch's t" not in text


def test_a_lossy_tokenizer_is_never_better_without_a_word():
    a, b = run("a"), dataclasses.replace(run("b", 2, -0.05, params={"p": 1}), is_lossy=True)
    text = text_of([a, b])
    assert "`b` is better than `a`" in text
    assert "- `b`: lossy tokenizer: bits per byte are too low, so a lower figure does not mean a better model." in text
    assert "- `a`: lossy" not in text
    assert "lossy" not in text_of([a, dataclasses.replace(b, is_lossy=False)])


def test_few_and_dominating_documents_are_reported():
    a, b = run("a"), run("b", shift=-0.05, params={"p": 1})
    assert "Few documents: the 40 count like " in text_of([a, b])
    sizes = np.full(40, 1000)
    equal = [dataclasses.replace(r, utf8_bytes=sizes) for r in (a, b)]
    text = text_of(equal)
    assert "Few documents" not in text and "of the bytes; without it" not in text and "depends on" not in text
    sizes = np.array([9000, *range(500, 539)])
    rates = np.log(sizes) / 10
    a = dataclasses.replace(a, utf8_bytes=sizes, nats=sizes * LN2)
    text = text_of([a, dataclasses.replace(a, name="b", nats=a.nats * (1 + rates), params={**a.params, "p": 1})])
    without = (rates[1:] * sizes[1:]).sum() / sizes[1:].sum()
    assert f"Document 0 holds 31 % of the bytes; without it, Δ is {without:+.4f}." in text
    assert "Δ depends on the length of a document (correlation with log bytes +1.00)" in text


# Sources.


def test_a_difference_is_given_for_each_source():
    parts = np.array(["stories"] * 15 + ["headers"] * 25, object)
    a = dataclasses.replace(run("a"), sources=parts)
    rates = np.where(parts == "headers", -0.05, 0.02) + np.random.default_rng(5).normal(0, 1e-3, 40)
    change = rates * a.utf8_bytes * LN2
    b = dataclasses.replace(a, name="b", nats=a.nats + change, params={"train.seed": 1, "p": 1})
    comparison = compared(a, b)
    assert list(comparison.sources) == ["stories", "headers"]
    own = parts == "headers"
    expected = ratio_interval(change[own] / LN2, a.utf8_bytes[own], np.random.default_rng(1), 0.95, 99)
    assert comparison.sources["headers"] == pytest.approx(expected) and expected.value == pytest.approx(-0.05, abs=2e-3)
    text = text_of([a, b])
    assert re.search(r"\| documents, the 15 of stories +\| +\+0\.0(19|20)\d \| ", text)
    assert re.search(r"\| documents, the 25 of headers +\| +-0\.0(49|50)\d \| .* to -0\.0", text)


def test_parts_are_read_where_they_are_recorded():
    columns = {"nats": [1.0, 2.0], "utf8_bytes": [3, 4]}
    curve = b"step,tokens,val_loss,checkpoint_digest\n0,0,6.5,0123456789ab\n"
    for extra in ({}, {"source": ["stories", "headers"]}):
        content = io.BytesIO()
        pq.write_table(pa.table(columns | extra), content)
        recorded = {"last": {"tokens_seen": 9}, "best": {"tokens_seen": 8}, "training": {"parameters": 7}}
        revision = SimpleNamespace(
            name="a", results=lambda recorded=recorded: recorded, read_json=lambda path: {"train_seconds": 1.0},
            hashes=lambda *a, **k: {}, params=dict,
            read=lambda path, content=content: curve if path.suffix == ".csv" else content.getvalue(),
        )  # fmt: skip
        found = read_run(revision)
        assert (found.sources is None) if not extra else (found.sources.tolist() == extra["source"])
        assert found.figures == [9, 8, 7, None] and not found.is_lossy
        row = {"step": "0", "tokens": "0", "val_loss": "6.5", "checkpoint_digest": "0123456789ab"}
        assert found.validations == [row]


# The same documents, whatever the tokenizer.


def revision(name: str, text: str, **part) -> SimpleNamespace:
    """A revision of which only the validation text is known, by the hash of its file and the range of its slice."""
    sidecar = {
        "slice": {"split": "validation", "start_char": 0, "num_chars": None, **part}, "documents": 3, "utf8_bytes": 30,
        "source": {"name": name, "text_sha256": text},
    }  # fmt: skip
    return SimpleNamespace(name=name, read_json=lambda path: sidecar)


PLAIN = revision("a", "12")


def test_runs_on_the_same_documents_are_comparable():
    refuse_other_text(PLAIN, revision("b", "12"))


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (PLAIN, revision("b", "1")),
        (PLAIN, revision("b", "12", start_char=5)),
        (PLAIN, revision("b", "12", num_chars=9)),
        (revision("a", None), revision("b", None)),  # of an earlier version
    ],
)
def test_runs_on_other_documents_are_refused(first, other):
    with pytest.raises(IntegrityError, match="a and b were evaluated on different documents"):
        refuse_other_text(first, other)


def test_compare_refuses_other_text_before_it_reads_a_run(monkeypatch, capsys):
    """These revisions have nothing to read: a run that were read would be another error."""
    known = {"a": PLAIN, "same": revision("same", "12"), "other": revision("other", "1")}
    monkeypatch.setattr(cli, "Revision", known.get)
    said = "a and other were evaluated on different documents"
    refused(cli.main(["a", "other"]), capsys.readouterr().err, 4, said)
    refused(cli.main(["a", "same", "other"]), capsys.readouterr().err, 4, said)


def evaluated(name: str, utf8_bytes: list[int], nats: list[float]) -> SimpleNamespace:
    """A revision with the validation text of PLAIN and these losses, one for each document."""
    plain, content = revision(name, "12"), io.BytesIO()
    pq.write_table(pa.table({"nats": nats, "utf8_bytes": utf8_bytes}), content)
    outputs = {"document_losses.parquet": content.getvalue(), "validation.csv": b"step,val_loss\n"}
    recorded = {"last": {"tokens_seen": 9}, "best": {"tokens_seen": 8}, "training": {"parameters": 7}}
    return SimpleNamespace(
        name=name, read=lambda path: outputs[path.name],
        read_json=plain.read_json, results=lambda: recorded, hashes=lambda *a, **k: {}, params=dict,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (evaluated("b", [3, 5], [1.0, 2.0]), "document_losses.parquet: the runs count different bytes per document"),
        (evaluated("b", [3, 4], [1.0, np.nan]), "b: data/evaluation/document_losses.parquet holds losses that are not"),
    ],
)
def test_losses_that_do_not_fit_are_refused(monkeypatch, capsys, other, said):
    known = {"a": evaluated("a", [3, 4], [1.0, 2.0]), "b": other}
    monkeypatch.setattr(cli, "Revision", known.get)
    refused(cli.main(["a", "b"]), capsys.readouterr().err, 4, said)


# Until which step two runs had the same bits.

LOSSES, DIGESTS = ("6.5", "4.25", "3.75"), ("aaa0", "bbb0", "ccc0")


def curve(losses=LOSSES, digests=DIGESTS) -> list[dict]:
    """Validations at the steps 0, 200, 400."""
    rows = enumerate(zip(losses, digests, strict=True))
    return [
        {"step": str(200 * i), "tokens": "0", "val_loss": loss, "checkpoint_digest": digest}
        for i, (loss, digest) in rows
    ]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (curve(), "identical"),
        (curve(("6.5", "4.25", "3.5"), ("aaa0", "bbb0", "ccc1")),
         "identical until step 200; step 400 has the validation losses 3.75 and 3.5, digests ccc0 and ccc1"),
        (curve(digests=("aaa0", "bbb1", "ccc1")),
         "identical until step 0; step 200 has the validation losses 4.25 and 4.25, digests bbb0 and bbb1"),
        (curve(digests=("aaa1", "bbb0", "ccc0")),
         "different from step 0 on; step 0 has the validation losses 6.5 and 6.5, digests aaa0 and aaa1"),
        (curve()[:2], "identical until step 200, the last validation of `b`"),
        ([], None),
        (curve(digests=("aaa0", "bbb0", "")), None),
    ],
)  # fmt: skip
def test_the_first_validation_that_differs_is_named(other, said):
    a, b = run("a", curve=curve(), **{"src/lm": "1"}), run("b", curve=other, **{"src/lm": "2"})
    assert same_until(a, dataclasses.replace(b, inputs={"data": "f"})) is None, "of other data"
    assert same_until(a, b) == said
    assert ("Training of `a` and `b`" in text_of([a, b])) == (said is not None)
