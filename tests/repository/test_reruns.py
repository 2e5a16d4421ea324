"""The table "What a change reruns" of docs/experiments.md with real DVC: its beginning, and the rest as a slow test.

test_pipeline.py checks the lists by which DVC decides.
"""

import pytest

from support.workspace import ALL, Workspace

NEW_VALIDATION = {"fetch", "tokenize_val", "audit", "train", "eval", "plot"}
SAME_DOCUMENTS = {"fetch", "make_tokenizer", "tokenize_train", "tokenize_val", "audit", "eval"}
# In this order, each upon the one before it: what is changed, which stages run.
TABLE = [
    ("a preset that is not selected", {"models.small.d_model": 320}, set()),
    ("a source that is not selected", {"sources.tinystories.train.num_chars": 9}, {"fetch"}),
    ("eval.stride_fraction", {"eval.stride_fraction": 0.25}, {"eval", "plot"}),
    ("train.seq_len", {"train.seq_len": 16}, {"train", "eval", "plot"}),
    ("model.name", {"models.other": None, "model.name": "other"}, {"train", "eval", "plot"}),
    ("validation.start_char", {"sources.small.validation.start_char": 2000}, NEW_VALIDATION),
    ("tokenizer vocab_size", {"tokenizers.bpe.vocab_size": 450}, ALL - {"fetch"}),
    ("rules that drop nothing", {"selection.name": "filtered"}, SAME_DOCUMENTS),
    ("a rule that drops documents", {"selections.filtered.min_chars": 200}, ALL),
    ("data.source", {"data.source": "local", "selection.name": "none"}, ALL),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, finished):
    return Workspace(tmp_path_factory.mktemp("reruns"), finished)


def check_reruns(workspace, table):
    for name, values, expected in table:
        if "models.other" in values:
            values["models.other"] = workspace.get("models.micro") | {"n_layer": 1}
        workspace.change(**values)
        assert workspace.repro() == expected, name


def test_a_change_reruns_exactly_what_depends_on_it(workspace):
    check_reruns(workspace, TABLE[:3])


def test_going_back_is_served_from_the_cache(workspace):
    workspace.change(**{"eval.stride_fraction": 0.5})

    printed = workspace.run("dvc", "repro").stdout

    assert "Stage 'eval' is cached - skipping run" in printed
    assert "Running stage" not in printed


@pytest.mark.slow
def test_own_text_reruns_fetch_alone_while_another_source_is_selected(workspace):
    (workspace.folder / "data/local/own.txt").write_text("some words\n")

    assert workspace.repro() == {"fetch"}


@pytest.mark.slow
def test_runtime_settings_rerun_nothing_and_a_colour_draws_the_pictures_again(workspace):
    runtime = workspace.folder / "runtime.yaml"
    runtime.write_text(runtime.read_text().replace("timeout_s: 600", "timeout_s: 700"))
    plots = workspace.folder / "src" / "lm" / "plots.py"
    plots.write_text(plots.read_text().replace("#0072B2", "#0072B3"))

    assert workspace.repro() == {"plot"}


@pytest.mark.slow
def test_every_change_reruns_exactly_what_depends_on_it(tmp_path, finished):
    workspace = Workspace(tmp_path, finished)
    for i in range(300):
        path = workspace.folder / f"data/local/{i}.txt"
        path.write_text(f"file {i} has {i * i} words and {i % 7} more of them\n" * 3)
    assert workspace.repro() == {"fetch"}
    check_reruns(workspace, TABLE[3:])
