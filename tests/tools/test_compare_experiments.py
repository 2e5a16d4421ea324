"""compare on real experiments: its numbers are those of their files, and unsuitable runs are refused."""

import contextlib
import io
import json
from pathlib import Path

import dvc.api
import numpy as np
import pandas as pd
import pytest

import evidence.command
from support.json_documents import check_document
from support.refusal import refused
from support.workspace import Workspace
from tools.compare.cli import main
from tools.compare.seeds import START
from tools.record.paths import DOCUMENT_LOSSES


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, finished):
    """Return a workspace with the experiments base, seed2 and vocab (another tokenizer); the last is checked out.

    base has run; DVC recorded edited losses as those of the others.
    """
    workspace = Workspace(tmp_path_factory.mktemp("compare"), finished)
    workspace.run("dvc", "exp", "save", "--name", "base")
    save_experiment(workspace, "seed2", 1.01, **{"train.seed": 2})
    save_experiment(workspace, "vocab", 1.02, **{"train.seed": 1, "tokenizers.bpe.vocab_size": 320})
    return workspace


def save_experiment(workspace: Workspace, name: str, factor: float, **values) -> None:
    """Record an experiment with these parameters, whose losses are multiples of those of base, a little uneven."""
    workspace.change(**values)
    path = workspace.folder / DOCUMENT_LOSSES
    losses = pd.read_parquet(path)
    losses["nats"] *= np.linspace(factor - 0.01, factor + 0.01, len(losses))
    path.unlink()  # a link to DVC's cache
    losses.to_parquet(path)
    workspace.run("dvc", "commit", "--force")
    workspace.run("dvc", "exp", "save", "--name", name)


@pytest.fixture(scope="module")
def losses(workspace) -> dict[str, pd.DataFrame]:
    """Return the losses of each experiment, read by DVC's own API."""
    names = ("base", "seed2", "vocab")
    with contextlib.chdir(workspace.folder):
        contents = {name: dvc.api.read(str(DOCUMENT_LOSSES), rev=name, mode="rb") for name in names}
    return {name: pd.read_parquet(io.BytesIO(content)) for name, content in contents.items()}


def bits_per_byte(losses: pd.DataFrame) -> float:
    return losses["nats"].sum() / losses["utf8_bytes"].sum() / np.log(2)


@pytest.fixture
def compare(workspace, monkeypatch, capsys):
    """The command in the workspace, as a function of its arguments, which returns status, output and errors."""
    monkeypatch.chdir(workspace.folder)

    def run_it(*arguments: str) -> tuple[int, str, str]:
        status = main([*arguments])
        return status, *capsys.readouterr()

    return run_it


# The numbers.


def test_two_tokenizers_are_compared_by_the_bits_of_their_documents(workspace, compare, losses):
    """`workspace` is `vocab`, and counts once. It started from a later commit."""
    start = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
    workspace.run("git", "commit", "-q", "--allow-empty", "-m", "later")
    later = workspace.run("git", "rev-parse", "HEAD").stdout.strip()
    before = workspace.run("git", "status", "--porcelain", "--ignored").stdout

    status, output, errors = compare("base", "vocab", "workspace", "--json")
    _, cited, _ = compare("base", "vocab", "workspace", "--cite")

    # Standard output is one document, and no file changed.
    document = json.loads(output)
    check_document(document)
    assert (status, errors) == (0, "")
    assert workspace.run("git", "status", "--porcelain", "--ignored").stdout == before
    workspace.run("git", "reset", "-q", "--soft", "HEAD~1")

    # The numbers are those of the losses, and what differs is named, without the seed.
    of_base, of_vocab = (bits_per_byte(losses[name]) for name in ("base", "vocab"))
    (comparison,) = document["comparisons"]
    base, vocab = document["groups"]
    assert (base["bits_per_byte"], vocab["bits_per_byte"]) == pytest.approx((of_base, of_vocab))
    assert base["bits_per_byte"] == pytest.approx(json.loads(Path("metrics/eval.json").read_text())["bits_per_byte"])
    assert base["runs"][0]["tokens_seen"] == json.loads(Path("metrics/train.json").read_text())["tokens_seen"]
    assert vocab["repeats"] == ["workspace"]
    assert document["documents"]["number"] == 38
    assert comparison["documents"]["value"] == pytest.approx(of_vocab - of_base)
    assert comparison["parameters"] == [{"name": "tokenizers.*.vocab_size", "baseline": 400, "candidate": 320}]

    # A citation has the difference, and names the text and the commits that the runs started from.
    source = json.loads(Path("data/processed_datasets/validation.json").read_text())["source"]
    assert f"{of_vocab - of_base:+.4f} bits per byte (95 % interval over 38 documents " in cited
    caption, signature = cited.splitlines()[-2:]
    assert caption.startswith(f"Table: Values in bits per byte on 38 documents of {source['name']}; lower is better.")
    text = f"Text: SHA-256 {source['text_sha256'][:12]}. The runs started from {start[:12]}, {later[:12]}."
    assert caption.endswith(text)
    assert signature == f"Signature: {comparison['signature']}"


def test_a_workspace_is_its_run_and_not_the_files_that_were_edited_since(workspace, compare):
    """Code that was edited is not named, because dvc.lock has the hash of the former code; parameters are warned of."""
    code = Path("src/lm/evaluate/samples.py")
    edited = [code, Path("params.yaml"), Path("dvc.lock")]
    before = [path.read_text() for path in edited]
    code.write_text(f"{code.read_text()}# changed\n")
    workspace.change(**{"train.peak_lr": 0.5})

    _, output, errors = compare("vocab", "workspace")
    of_others = compare("base", "vocab")
    Path("params.yaml").write_text(before[1])
    workspace.run("dvc", "commit", "--force", "eval")
    _, after_a_run, _ = compare("vocab", "workspace")
    for path, content in zip(edited, before, strict=True):
        path.write_text(content)

    warning = "warning: workspace is the last run, and train.peak_lr 0.01 → 0.5 changed since; `dvc repro` computes it"
    assert errors == f"{warning}\n"
    assert of_others[2] == ""
    assert "samples.py" not in output
    assert "Differs: src/lm/evaluate/samples.py.\n" in after_a_run


# Tables.


@pytest.fixture
def tables(workspace, losses, monkeypatch) -> list[str]:
    """The losses of base and vocab, as other programs write them: a CSV and a TSV."""
    monkeypatch.chdir(workspace.folder)
    names = {"base.csv": ",", "vocab.tsv": "\t"}
    for name, delimiter in names.items():
        frame = losses[Path(name).stem].assign(run=name)
        frame.to_csv(name, sep=delimiter, columns=["run", "document", "nats", "utf8_bytes"], index=False)
    yield [*names]
    for name in names:
        Path(name).unlink()


def test_tables_are_compared_by_the_command_evidence(compare, tables, capsys):
    arguments = ["--json", "--within", "0.01", "--require", "better", "--baseline", "vocab.tsv"]

    done = compare(*tables, *arguments)
    of_evidence = evidence.command.main(["compare", *tables, *arguments])

    assert done == (of_evidence, *capsys.readouterr())


def test_a_table_is_compared_with_recorded_runs_of_the_same_documents(compare, tables, losses):
    _, output, _ = compare("vocab.tsv", "base", "--json")

    (comparison,) = json.loads(output)["comparisons"]
    difference = bits_per_byte(losses["base"]) - bits_per_byte(losses["vocab"])
    assert comparison["baseline"] == "vocab.tsv"
    assert comparison["documents"]["value"] == pytest.approx(difference)


def test_a_table_of_other_documents_is_refused(compare, tables):
    lines = Path("vocab.tsv").read_text().splitlines(keepends=True)
    renamed = [line.replace("vocab.tsv\t", "vocab.tsv\tstory", 1) for line in lines]
    for content, said in [
        ("".join(renamed), "vocab.tsv: its documents must be 0 to 37, as those of base"),
        ("".join(lines).rstrip() + "0\n", "vocab.tsv: document 37 has "),
    ]:
        Path("vocab.tsv").write_text(content)

        status, _, errors = compare("base", "vocab.tsv")

        refused(status, errors, 2, said)


# More seeds.


@pytest.mark.slow
def test_the_commands_for_more_seeds_give_both_sides_their_parameters_and_new_seeds(workspace, compare):
    """The workspace has the parameters of `vocab`; the commands run as they are printed."""
    _, output, _ = compare("base", "seed2", "vocab")
    _, said = output.split("To run the missing seeds:\n")
    commands = said.splitlines()[:4]

    assert commands == [
        "dvc exp run --queue -n base-seeds -S train.seed=3,4,5 -S presets.yaml:tokenizers.bpe.vocab_size=400",
        "dvc exp run --queue -n vocab-seeds -S train.seed=2,3,4,5",
        START,
        "python src compare base seed2 vocab 'base-seeds-*' 'vocab-seeds-*'",
    ]
    for command in commands[:2]:
        workspace.run("bash", "-euc", command)
    _, said, _ = compare("b*")
    workspace.run("dvc", "queue", "remove", "--queued")
    assert "Not finished, so not compared: base-seeds-1 (Queued), " in said
    assert "the noise of seeds is not known" in said


def test_one_configuration_gives_its_noise_and_the_commands_for_more_seeds(compare, losses):
    _, output, _ = compare("base", "seed2", "--json")

    document = json.loads(output)
    check_document(document)
    scores = [bits_per_byte(losses[name]) for name in ("base", "seed2")]
    assert document["groups"][0]["standard_deviation"] == pytest.approx(np.std(scores, ddof=1))
    assert document["comparisons"] == []
    command = "dvc exp run --queue -n base-seeds -S train.seed=3,4,5 -S presets.yaml:tokenizers.bpe.vocab_size=400"
    assert document["commands_for_more_seeds"][0] == command


# What cannot be compared.


def test_names_without_results_are_refused(workspace, compare):
    """The name `twin` is of two experiments, which started from different commits."""
    for message in ("a", "b"):
        start = workspace.run("git", "commit-tree", "HEAD^{tree}", "-m", message).stdout.strip()
        workspace.run("git", "update-ref", f"refs/exps/{start[:2]}/{start[2:]}/twin", start)

    for name, code, said in [
        ("x-*", 2, "x-*: no finished experiment has such a name"),
        ("nonsense", 2, "nonsense is neither an experiment nor a git revision"),
        ("twin", 2, "twin is the name of several experiments"),
        ("main", 4, "main: has no dvc.lock, so no run is recorded there"),
    ]:
        status, output, errors = compare("base", name, "--json", "--require", "better")

        refused(status, errors, code, said)
        assert output == ""
