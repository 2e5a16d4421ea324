"""The command evidence: what it prints of two tables, its JSON, and its exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import evidence
from evidence.citation import citation
from evidence.command import main
from evidence.record import COMPARE, plain, record
from support import ROOT
from support.json_documents import check_document
from support.process import CAP_S, started

NUM_DOCUMENTS = 40
WANDB = ROOT / "tests/evidence/files/wandb_export.csv"


def write(name: str, loss: float, seeds=(1, 2, 3)) -> str:
    """Write the table of a group whose documents have this loss in nats a byte, and seeds that move it a little."""
    rows = ["run,seed,document,nats,utf8_bytes"]
    for seed in seeds:
        luck = np.random.default_rng(seed).normal(0, 0.01)
        for document in range(NUM_DOCUMENTS):
            own = np.random.default_rng([seed, document, int(1000 * loss)]).normal(0, 0.001)
            rows.append(f"{name},{seed},{document},{100 * (loss + luck + own + 0.01 * (document % 7))},100")
    with open(f"{name}.csv", "w") as file:
        file.write("\n".join(rows) + "\n")
    return f"{name}.csv"


@pytest.fixture
def tables(tmp_path, monkeypatch) -> list[str]:
    """A baseline, and a group that is better by 0.1 nats a byte."""
    monkeypatch.chdir(tmp_path)
    return [write("base", 1.0), write("wider", 0.9)]


def test_compare_answers_in_words_and_in_json_and_can_be_cited(tables, capsys):
    assert main(["compare", *tables, "--cite"]) == 0
    said = capsys.readouterr().out
    assert main(["compare", *tables, "--json", "--baseline", "wider", "--within", "0.1", "--confidence", "0.8"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert "| difference | over documents | over seeds |" in said
    runs = evidence.read(tables)
    found = evidence.compare(runs)
    assert said.splitlines() == [*evidence.text(found).splitlines(), "", *citation(found)]
    assert said.startswith("Read: a table with the column nats; lower is better.\n`wider` is better than `base`: ")
    assert [difference.verdict for difference in found.differences] == ["better"]
    expected = evidence.compare(runs, baseline="wider", within=0.1, confidence=0.8)
    assert document == json.loads(json.dumps(plain({"schema": COMPARE} | record(expected))))


@pytest.mark.parametrize("form", ["cite", "latex"])
def test_an_answer_and_its_citation_are_the_golden_page(capsys, form):
    """To change it: evidence compare FILE --metric val/loss --within 0.01 --cite > tests/golden/evidence/cite.txt"""
    main(["compare", str(WANDB), "--metric", "val/loss", "--within", "0.01", f"--{form}"])

    assert capsys.readouterr().out == (ROOT / f"tests/golden/evidence/{form}.txt").read_text()


def test_a_plot_has_a_row_for_each_group(tables, monkeypatch):
    """The interval over seeds is drawn only where it is known."""
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **options: drawn.append(figure))
    write("single", 0.8, seeds=[1])

    assert main(["compare", *tables, "single.csv", "--plot", "intervals.png"]) == 0

    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["wider", "single"]
    assert axes.get_xlabel() == "difference from base in bits per byte (lower is better)"
    of_seeds, of_documents = (container.lines[2][0].get_segments() for container in axes.containers)
    difference, _ = evidence.compare(evidence.read([*tables, "single.csv"])).differences
    assert of_seeds[0][:, 0].tolist() == pytest.approx([difference.seeds.low, difference.seeds.high])
    assert (len(of_seeds[1]), len(of_documents[1])) == (0, 2)


def test_with_one_loss_of_each_run_two_seeds_decide(tmp_path, capsys):
    losses = {("a", 1): 3.21, ("a", 2): 3.22, ("b", 1): 3.11, ("b", 2): 3.121, ("c", 1): 3.11}
    rows = [f"{run},{seed},{loss}" for (run, seed), loss in losses.items()]
    table = tmp_path / "losses.csv"
    table.write_text("\n".join(["run,seed,loss", *rows]))

    assert main(["compare", str(table)]) == 0

    said = capsys.readouterr().out
    assert "`b` is better than `a`: -0.0995 loss (95 % interval over 2 pairs of equal seeds " in said
    assert "No difference was shown between the model `c` and the model `a`: -0.1000 loss" in said
    assert "only two seeds or more of each side can show a difference" in said
    assert "document" not in said.partition("Signature")[0]


@pytest.mark.parametrize("columns", ["nats,utf8_bytes", "score,higher_is_better"])
def test_the_json_of_tables_has_the_keys_that_are_documented_for_them(tables, capsys, columns):
    """Of two groups of three seeds, with sources and so few documents that there is a warning."""
    is_of_scores = "score" in columns
    rows = [f"run,seed,document,source,{columns}"]
    for run, seed in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", "")]:
        for document in range(20):
            value = np.random.default_rng([seed or 4, document]).random() + 0.2 * (run == "b") * (2 + document % 3)
            rows.append(f"{run},{seed},{document},s{document % 2},{value},{'true' if is_of_scores else 9}")
    Path("t.csv").write_text("\n".join(rows) + "\n")

    main(["compare", "t.csv", "--json", "--within", "0.1"])

    document = json.loads(capsys.readouterr().out.replace('score"', 'bits_per_byte"'))
    if is_of_scores:
        document["documents"]["utf8_bytes"] = 0
    check_document(document, only_required=True)


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt, 130, "interrupted; judge keeps the runs that have ended"),
        (ZeroDivisionError, 70, "ZeroDivisionError"),
    ],
)
def test_an_interruption_and_a_bug_are_no_answer(monkeypatch, capsys, raised, status, said):
    def fail(*arguments):
        raise raised

    monkeypatch.setattr("evidence.command.judge", fail)

    assert main(["judge", "HEAD~1"]) == status
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["base.csv", "wider.csv"], 0, ""),
        (["base.csv", "wider.csv", "--baseline", "wider"], 1, "not better than wider: base (worse)"),
        (["base.csv"], 1, "not better than base: there is nothing else"),
    ],
)
def test_require_sets_the_status(tables, capsys, arguments, status, said):
    assert main(["compare", *arguments, "--require", "better"]) == status
    assert capsys.readouterr().err.strip().endswith(said)


def test_importing_the_package_imports_nothing_heavy():
    """The stage eval needs one of its modules, and does not depend on the others."""
    code = "import sys, evidence; sys.exit(any(name in sys.modules for name in ('numpy', 'evidence.difference')))"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)


def test_a_reader_that_ends_early_ends_the_command_quietly(tables):
    command = [sys.executable, "-m", "evidence", "compare", "base.csv", "wider.csv", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = started(*command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()

    _, stderr = process.communicate(timeout=CAP_S)

    assert (process.returncode, stderr) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "base.csv", "--baseline", "other"], "--baseline is other"),
        (["compare", "base.csv", "wider.csv", "--within", "0"], "--within is 0"),
        (["compare", "base.csv", "--confidence", "2"], "--confidence is 2"),
        (["compare", "missing.csv"], "missing.csv: cannot be read"),
        (["compare", "base.csv", "wider.csv", "--plot", "missing/a.png"], "--plot is missing/a.png: "),
        (["compare", "base.csv", "--plot", "a.png"], "--plot draws differences"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_and_status_2(tables, capsys, arguments, said):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
