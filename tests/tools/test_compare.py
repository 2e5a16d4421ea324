"""compare: groups by seed, differences B - A, what the report says of them, and runs on the same documents only."""

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
from support.loss_cases import LN2
from support.made_up_runs import PARTS, run, seeds_of
from support.refusal import refused
from tools.common.preview import previews
from tools.common.read_runs import read_run
from tools.common.revisions import reject_other_text
from tools.common.runs import Group, Run, compare_groups, compare_with_first, group_by_seed, same_until, what_differs
from tools.common.statistics import detectable_by_runs, detectable_difference, holm
from tools.common.test_reads import TestRead, write_test_reads
from tools.compare import cli
from tools.compare.answer import groups_to_extend, summary
from tools.compare.report import report


def compared(*runs: Run, confidence: float = 0.95):
    return compare_groups(*group_by_seed(list(runs)), 1, confidence, 99)


def text_of(*runs: Run) -> str:
    """Return the report with single spaces."""
    groups = group_by_seed(list(runs))
    comparisons = compare_with_first(groups, 1, 0.95, 999)
    return re.sub(" +", " ", "\n".join(report(groups, comparisons, {d: "x" for d in range(40)}, 3, 0.95, [])))


# Groups, and what differs between them.


def test_runs_that_differ_only_in_seed_are_one_group():
    runs = [run("a-1"), run("w-1", params={"p": 1}), run("a-2", 2), run("again"), run("w-2", 2, params={"p": 1})]
    names = [[member.name for member in group.runs] for group in group_by_seed([*runs, run("code", 3, code="f")])]
    assert names == [["a-1", "a-2"], ["w-1", "w-2"], ["again"], ["code"]], "no second seed: the same run, other code"


def test_the_seed_differs_only_between_single_runs():
    a = run("a", 1, params={"x": 1}, file="0123456789abc")
    b = run("b", 2, params={"y": None}, file="f" * 32)
    expected = [("x", 1, "(none)"), ("y", "(none)", None), ("file", "0123456789", "f" * 10)]
    assert what_differs(*group_by_seed([a, b])) == [("train.seed", 1, 2), *expected]
    third = dataclasses.replace(a, params={**a.params, "train.seed": 3})
    assert what_differs(*group_by_seed([a, third, b])) == expected


# Differences.


def test_a_comparison_is_b_minus_a_and_its_baseline_is_a():
    a = run("a")
    b = run("b", 2, 0.05, {"p": 1})
    b.nats[[7, 3]] += 3000, -5000
    found = compared(a, b)
    bits = (b.nats - a.nats) / LN2
    assert np.allclose(found.bits, bits)
    assert found.documents.value == pytest.approx(bits.sum() / a.utf8_bytes.sum())
    assert found.baseline.value == pytest.approx(a.nats.sum() / LN2 / a.utf8_bytes.sum())
    assert found.baseline.low < found.baseline.value < found.baseline.high
    assert found.most_changed(2).tolist() == [3, 7]


def test_the_mean_of_several_seeds_is_compared():
    a = seeds_of("a", (1, 2, 3))
    b = seeds_of("b", (4, 5), 0.1, p=1)
    found = compared(*a, *b)
    rates = [[each.nats.sum() / LN2 / each.utf8_bytes.sum() for each in group] for group in (a, b)]
    assert found.documents.value == pytest.approx(np.mean(rates[1]) - np.mean(rates[0]))
    assert found.seeds.value == pytest.approx(found.documents.value) and found.seeds.low > 0
    assert f"| a-1…a-3 | 3 | {np.mean(rates[0]):.4f} | ± {np.std(rates[0], ddof=1):.4f} |" in text_of(*a, *b)


def test_the_confidence_is_that_of_both_intervals():
    runs = [*seeds_of("a", (1, 2, 3)), *seeds_of("b", (7, 8, 9), 0.01, p=1)]
    wide = compared(*runs)
    narrow = compared(*runs, confidence=0.5)
    for kind in ("documents", "seeds"):
        widths = [getattr(each, kind).high - getattr(each, kind).low for each in (wide, narrow)]
        assert widths[1] < 0.6 * widths[0], kind


def test_each_source_is_compared_by_its_own_documents_if_all_runs_have_the_same():
    a, b = (dataclasses.replace(run(name, seed, params={"p": name}), sources=PARTS) for seed, name in enumerate("ab"))
    own = PARTS == "headers"
    b.nats[own] += 1000
    found = compared(a, b).sources
    expected = ratio_interval((b.nats - a.nats)[own] / LN2, a.utf8_bytes[own], np.random.default_rng(1), 0.95, 99)
    assert list(found) == ["stories", "headers"] and found["headers"] == expected
    assert f"| documents, the 25 of headers | {expected.value:+.4f} |" in text_of(a, b)
    for other in (None, PARTS[::-1]):
        assert compared(a, dataclasses.replace(b, sources=other)).sources == {}
    empty = np.where(own, a.utf8_bytes, 0)
    a, b = (dataclasses.replace(each, utf8_bytes=empty) for each in (a, b))
    assert list(compared(a, b).sources) == ["headers"], "stories without text have no rate"


def test_each_family_of_comparisons_is_corrected_for_their_number():
    families = [*seeds_of("a", (1, 2, 3)), *seeds_of("b", (4, 5, 6), 2e-4, p=1), *seeds_of("c", (7, 8, 9), 0.0, p=2)]
    groups = group_by_seed([dataclasses.replace(each, sources=PARTS) for each in families])
    alone = [compare_groups(groups[0], other, 1, 0.95, 99) for other in groups[1:]]
    found = compare_with_first(groups, 1, 0.95, 99)
    for of_family in (
        lambda comparisons: [each.documents for each in comparisons],
        lambda comparisons: [each.seeds for each in comparisons],
        lambda comparisons: [estimate for each in comparisons for estimate in each.sources.values()],
    ):
        assert of_family(found) == holm(of_family(alone)) != of_family(alone)


# The report.


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (-0.05, "`b` is better than `a`; the 95 % interval excludes zero."),
        (0.05, "`b` is worse than `a`; the 95 % interval excludes zero."),
        (0.0, "no difference was shown between `a` and `b`; the 95 % interval contains zero."),
    ],
)
def test_the_verdict_follows_from_sign_and_interval(shift, said):
    b = dataclasses.replace(run("b", 2, shift), params={"train.seed": 1, "p": 1})
    assert f"- Documents: {said}" in text_of(run("a"), b)


def test_the_verdict_of_several_comparisons_follows_from_the_corrected_p():
    runs = [run("a"), *(run(f"b{i}", i + 2, shift, params={"p": i}) for i, shift in enumerate((0.001, 0.05, 0.0)))]
    groups = group_by_seed(runs)
    alone = compare_groups(groups[0], groups[1], 1, 0.95, 999).documents.p_value
    corrected = [each.documents.p_value for each in compare_with_first(groups, 1, 0.95, 999)]
    assert alone <= 0.05 < corrected[0]
    text = text_of(*runs)
    assert f"no difference was shown between `a` and `b0`; p is {corrected[0]:.2g} after Holm's correction" in text
    assert f"`b1` is worse than `a`; p ≤ {corrected[1]:.2g} after Holm's correction" in text


def test_the_tables_show_the_figures_of_runs_and_documents():
    a = run("a")
    b = dataclasses.replace(run("b", 1, 0.5, {"p": 1}), train_seconds=61.0)
    text = text_of(a, b)
    rate = a.nats.sum() / LN2 / a.utf8_bytes.sum()
    assert f"| a | 1 | {rate:.4f} | 1,000 | 900 | 70 | – |" in text and "| 1,000 | 900 | 70 | 61 |" in text
    change = (b.nats - a.nats) / LN2
    sizes = a.utf8_bytes
    most = np.abs(change).argmax()
    before, after = (each.nats[most] / LN2 / sizes[most] for each in (a, b))
    row = f"{before:.4f} | {after:.4f} | {after - before:+.4f} | {change[most]:+,.0f} |"
    assert f"| {most}: `x` | {sizes[most]:,} | {row}" in text


def test_what_could_have_been_shown_is_said_of_documents_and_of_the_side_with_fewer_seeds():
    runs = [*seeds_of("a", range(1, 6)), *seeds_of("b", (10, 11, 12), 1e-4, p=1)]
    found = compared(*runs)
    text = text_of(*runs)
    for estimate, units in ((found.documents, "40 documents"), (found.seeds, "3 seeds of each side")):
        assert f"With {units}, a true difference of {detectable_difference(estimate):.4f} would be shown" in text
    assert "only one run of" not in text and "only one run of `a`" in text_of(run("a"), *runs[5:])


def test_what_makes_figures_incomparable_is_said():
    a = run("a", params={"train.seq_len": 32})
    b = run("b", 2, -0.05, {"train.seq_len": 64})
    assert "`train.seq_len` differs: the two were scored with different context." in text_of(a, b)
    text = text_of(a, dataclasses.replace(b, is_lossy=True))
    assert "- `b`: lossy tokenizer: bits per byte are too low" in text and "- `a`: lossy" not in text
    assert "lossy" not in text_of(a, b)


def test_few_and_dominating_documents_and_a_difference_by_length_are_said():
    assert "Few documents: the 40 count like " in text_of(run("a"), run("b", 2, params={"p": 1}))
    equal = [
        dataclasses.replace(run(name, i, params={"p": i}), utf8_bytes=np.full(40, 1000)) for i, name in enumerate("ab")
    ]
    text = text_of(*equal)
    assert not [said for said in ("Few documents", "of the bytes; without it", "depends on") if said in text]
    sizes = np.array([9000, *range(500, 539)])
    rates = np.log(sizes) / 10
    a = dataclasses.replace(run("a"), utf8_bytes=sizes, nats=sizes * LN2)
    text = text_of(a, dataclasses.replace(a, name="b", nats=a.nats * (1 + rates), params={**a.params, "p": 1}))
    without = (rates[1:] * sizes[1:]).sum() / sizes[1:].sum()
    assert f"Document 0 has 31 % of the bytes; without it, Δ is {without:+.4f}." in text
    assert "Δ depends on the length of a document (correlation with log bytes +1.00)" in text


def test_a_preview_begins_at_the_line_that_tells_a_document_apart():
    texts = ["licence\n\nfirst  story\nend", "licence\n\nsecond `story` " + "x" * 40, "licence\n"]
    ids = [[*text.encode(), 256] for text in texts]
    ends = np.cumsum([len(each) for each in ids])
    spans = np.stack([ends - [len(each) for each in ids], ends], axis=1)
    tokenizer = SimpleNamespace(decode=lambda ids: bytes(ids.tolist()).decode())
    shown = previews(SimpleNamespace(ids=np.concatenate(ids)), tokenizer, spans)
    assert shown == ["first story end", "second 'story' " + "x" * 24 + "…", "licence"]


# The answer.


def summary_of(*runs: Run, commands=()) -> list[str]:
    """Return the lines that the terminal shows."""
    groups = group_by_seed(list(runs))
    return summary(compare_with_first(groups, 1, 0.95, 999), list(commands), "", 0.95)


def test_the_answer_is_one_sentence_with_both_intervals_the_one_that_decides_first():
    runs = [*seeds_of("a", (1, 2, 3)), *seeds_of("b", (4, 5), -0.01, p=1)]
    found = compare_with_first(group_by_seed(runs), 1, 0.95, 999)[0]

    sentence = summary_of(*runs)[0]

    over_seeds = f"over 3 and 2 seeds {found.seeds.low:+.4f} to {found.seeds.high:+.4f}, p "
    over_documents = f"; over 40 documents {found.documents.low:+.4f} to {found.documents.high:+.4f})."
    start = (
        f"`b-4…b-5` is better than `a-1…a-3`: {found.documents.value:+.4f} bits per byte (95 % interval {over_seeds}"
    )
    assert sentence.startswith(start) and sentence.endswith(over_documents)


def test_single_runs_are_called_models_and_their_seeds_unknown():
    sentence = summary_of(run("a"), run("b", 2, 0.05, {"p": 1}))[0]
    assert sentence.startswith("The model `b` is worse than the model `a`: +0.0")
    assert sentence.endswith("; over seeds unknown, 1 seed of each side).")

    sentence = summary_of(run("a"), run("b", 2, 0.0, {"p": 1}))[0]
    assert sentence.startswith("No difference was shown between the model `b` and the model `a`: ")


def test_the_report_begins_with_the_answers():
    runs = [run("a"), run("b", 2, 0.05, {"p": 1}), run("c", 3, 0.0, {"p": 2})]
    sentences = summary_of(*runs)[:2]
    before = text_of(*runs).partition("| run ")[0]
    assert all(re.sub(" +", " ", sentence) in before for sentence in sentences)


@pytest.mark.parametrize("others", [1, 3, 9])
def test_at_most_ten_lines_follow_the_answers_and_what_is_left_out_is_named(others):
    runs = [run("a"), *(run(f"b{i}", i, 0.1, {"p": i}) for i in range(2, 2 + others))]
    commands = [f"command {i}" for i in range(others + 3)]

    lines = summary_of(*runs, commands=commands)

    assert len(lines) - others <= 10
    assert lines[-1].startswith("The report has more: ")
    shown = [command for command in commands if command in lines]
    assert shown == commands or (shown == [] and "the commands for more seeds" in lines[-1])


def test_what_makes_values_incomparable_comes_right_after_the_answer():
    a = run("a", params={"train.seq_len": 32})
    b = run("b", 2, -0.05, {"train.seq_len": 64})
    assert summary_of(a, b)[1] == "`train.seq_len` differs: the two were scored with different context."


def test_what_stages_make_is_named_as_a_difference_only_if_nothing_else_differs():
    made = {"data/raw": "1", "src/lm/model": "1"}, {"data/raw": "2", "src/lm/model": "1"}
    a = run("a", **made[0])
    b = run("b", **made[1])
    assert "Differs: data/raw." in summary_of(a, b)
    assert "Differs: p (none) → 1." in summary_of(a, dataclasses.replace(b, params={**b.params, "p": 1}))
    assert "Differs: src/lm/model." in summary_of(a, run("b", **{**made[1], "src/lm/model": "2"}))


def test_a_table_of_what_more_seeds_could_show_needs_three_seeds_of_a_side():
    two = seeds_of("b", (4, 5), p=1)
    three = seeds_of("b", (4, 5, 6), p=1)
    a = seeds_of("a", (1, 2))

    assert "seeds of each side |" not in text_of(*a, *two)
    assert "needs about" not in text_of(*a, *two).partition("- Seeds:")[2].partition("\n")[0]
    text = text_of(*a, *three)

    noise = np.std([each.nats.sum() / LN2 / each.utf8_bytes.sum() for each in three], ddof=1)
    row = [detectable_by_runs(noise, 2, count) for count in (2, 3, 5, 10)]
    assert "| seeds of each side | 2 | 3 | 5 | 10 |" in text
    assert " | ".join(f"{each:.4f}" for each in row) in text
    assert any(f"{row[0]:.4f} with 2 seeds of each side" in line for line in summary_of(*a, *three))


def test_more_seeds_are_asked_for_until_a_difference_over_seeds_is_shown():
    a = seeds_of("a", (1, 2, 3))
    for b, names in (
        ([run("b", 4, -0.5, {"p": 1})], ["a-1…a-3", "b"]),
        (seeds_of("b", (4, 5, 6), 0.0, p=1), ["a-1…a-3", "b-4…b-6"]),
        (seeds_of("b", (4, 5, 6), -0.5, p=1), []),
    ):
        comparisons = compare_with_first(group_by_seed([*a, *b]), 1, 0.95, 99)
        assert [side.name for side in groups_to_extend(comparisons, 0.95)] == names
    same = [compare_groups(Group([a[0]]), Group([a[1]]), 1, 0.95, 99)]
    assert groups_to_extend(same, 0.95) == []


# The same documents, whatever the tokenizer.


def revision(
    name: str, text: str | None, losses: dict | None = None, looks: bytes | None = None, **part
) -> SimpleNamespace:
    """A revision by the hash of its validation text and the range of its slice; with losses, one that was evaluated."""
    sidecar = {
        "slice": {"split": "validation", "start_char": 0, "num_chars": None, **part},
        "documents": 3,
        "utf8_bytes": 30,
        "source": {"name": name, "text_sha256": text},
    }
    found = SimpleNamespace(name=name, read_json=lambda path: sidecar)
    if losses is not None:
        parquet = io.BytesIO()
        pq.write_table(pa.table(losses), parquet)
        outputs = {"document_losses.parquet": parquet.getvalue(), "validation.csv": b"step,val_loss\n0,6.5\n"}
        found.read = lambda path: outputs[path.name]
        found.read_if_there = lambda path: looks
        found.results = lambda: {
            "last": {"tokens_seen": 9}, "best": {"tokens_seen": 8, "sha256": "a" * 64}, "training": {"parameters": 7},
            "evaluation": {"lossy_tokenizer": True},
        }  # fmt: skip
        found.hashes = lambda kind, leave_out: {"data/models": "1", "data/raw": "2", "src/lm": "3"}
        found.params = lambda: {"train.seed": 5}
    return found


LOSSES = {"nats": [1.0, 2.0], "utf8_bytes": [3, 4], "source": ["stories", "headers"]}


def test_a_run_is_read_from_its_files():
    found = read_run(revision("a", "12", LOSSES))
    assert (found.name, found.nats.tolist(), found.utf8_bytes.tolist()) == ("a", [1.0, 2.0], [3, 4])
    assert (found.tokens_seen, found.best_tokens_seen, found.num_parameters) == (9, 8, 7) and found.is_lossy
    assert found.sources.tolist() == ["stories", "headers"] and found.validations == [{"step": "0", "val_loss": "6.5"}]
    assert found.inputs == {"data/raw": "2", "src/lm": "3"} and found.params == {"train.seed": 5}


def test_looks_at_the_test_split_for_other_weights_are_counted(tmp_path):
    """They were in Git when the run was made, so that it may have been chosen by them."""
    own, other = (TestRead(None, False, letter * 64, "c" * 64, 128, 5, 1.3, 1.2, 1.4) for letter in "ab")
    write_test_reads(tmp_path / "test_reads.csv", [own, other, other._replace(stride_tokens=64)])
    looks = (tmp_path / "test_reads.csv").read_bytes()

    assert read_run(revision("a", "12", LOSSES, looks)).num_earlier_looks == 2
    assert read_run(revision("a", "12", LOSSES)).num_earlier_looks == 0


@pytest.mark.parametrize(
    "other",
    [revision("b", "1"), revision("b", "12", start_char=5), revision("b", "12", num_chars=9), revision("b", None)],
)
def test_runs_on_other_documents_are_refused(other):
    reject_other_text(revision("a", "12"), revision("b", "12"))
    with pytest.raises(IntegrityError, match="a and b were evaluated on different documents"):
        reject_other_text(revision("a", "12"), other)
    with pytest.raises(IntegrityError, match="different documents"):
        reject_other_text(revision("a", None), revision("b", None))


def test_compare_refuses_other_text_before_it_reads_a_run(monkeypatch, capsys):
    """These revisions have nothing to read: a run that were read would be another error."""
    known = {"a": revision("a", "12"), "same": revision("same", "12"), "other": revision("other", "1")}
    monkeypatch.setattr(cli, "Revision", known.get)
    for names in (["a", "other"], ["a", "same", "other"]):
        refused(cli.main(names), capsys.readouterr().err, 4, "a and other were evaluated on different documents")


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({"utf8_bytes": [3, 5]}, "document_losses.parquet: the runs count different bytes per document"),
        ({"nats": [1.0, np.nan]}, "b: data/evaluation/document_losses.parquet contains losses that are not finite"),
    ],
)
def test_losses_that_do_not_fit_are_refused(monkeypatch, capsys, losses, said):
    known = {"a": revision("a", "12", LOSSES), "b": revision("b", "12", LOSSES | losses)}
    monkeypatch.setattr(cli, "Revision", known.get)
    refused(cli.main(["a", "b"]), capsys.readouterr().err, 4, said)


# Until which step two runs had the same bits.


def curve(losses=("6.5", "4.25", "3.75"), digests=("aaa0", "bbb0", "ccc0")) -> list[dict]:
    """Validations at the steps 0, 200, 400."""
    rows = enumerate(zip(losses, digests, strict=True))
    return [{"step": str(200 * i), "val_loss": loss, "checkpoint_digest": digest} for i, (loss, digest) in rows]


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
    a = run("a", curve=curve(), **{"src/lm": "1"})
    b = run("b", curve=other, **{"src/lm": "2"})
    assert same_until(a, b) == said
    assert ("Training of `a` and `b`" in text_of(a, b)) == (said is not None)
    assert same_until(a, dataclasses.replace(b, inputs={"data": "f"})) is None, "of other data"


@pytest.mark.parametrize(("code", "cause"), [("2", "the code"), ("1", "the machine")])
def test_equal_weights_with_other_losses_are_no_proof_of_other_weights(code, cause):
    other = [{**row, "val_loss": "9.0"} for row in curve()]
    a = run("a", curve=curve(), **{"src/lm": "1"})
    b = run("b", curve=other, **{"src/lm": code})

    said = same_until(a, b)

    assert said is not None and said.startswith("equal weights at step 0 (digest ")
    assert said.endswith(f" and 9.0: {cause} differs")


def test_changed_files_of_code_are_named():
    before = {"a.py": "1", "b.py": "2", "c.py": "3"}
    after = {"a.py": "1", "b.py": "9", "d.py": "4"}
    a = dataclasses.replace(run("a", **{"src/lm/model": "1" * 32}), code={"src/lm/model": before})
    b = dataclasses.replace(run("b", **{"src/lm/model": "2" * 32}), code={"src/lm/model": after})
    unknown = dataclasses.replace(b, code={})

    (named,) = what_differs(*group_by_seed([a, b]))
    (unnamed,) = what_differs(*group_by_seed([a, unknown]))

    assert named == ("src/lm/model: b.py, c.py, d.py", "1" * 10, "2" * 10)
    assert unnamed == ("src/lm/model", "1" * 10, "2" * 10)


def test_every_two_runs_of_two_groups_are_looked_at():
    of_a, of_b = ([run(f"{name}-{seed}", seed, curve=curve(), **{"src/lm": name}) for seed in seeds]
                  for name, seeds in (("a", (1, 2)), ("b", (2, 1))))  # fmt: skip
    text = text_of(*of_a, *of_b)
    assert "Training of `a-1` and `b-1`" in text and "Training of `a-2` and `b-2`" in text
