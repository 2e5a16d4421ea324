"""`verify --retrain` scores documents again: honest evaluations pass, and edited ones do not, whatever fits them."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from support.evaluation_cases import forge_evaluation, read_losses
from support.refusal import files_below
from support.stages import change_params, run_here, work_in_copy
from tools.record.paths import DOCUMENT_LOSSES, MODEL
from tools.verify import rescore as tool
from tools.verify.rescore import compare_tables, draw_documents, rescore


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, pipeline):
    """The folder of a pipeline with an evaluation in overlapping windows."""
    folder = tmp_path_factory.mktemp("rescore") / "evaluated"
    with pytest.MonkeyPatch.context() as patch:
        work_in_copy(patch, pipeline, folder)
        change_params(folder, {"eval.stride_fraction": 0.25})
        assert run_here("eval") == 0
    return folder


@pytest.fixture
def workspace(evaluated, tmp_path, monkeypatch):
    """A copy of it as the working directory."""
    work_in_copy(monkeypatch, evaluated, tmp_path / "workspace")


def drawn_documents(seed: int) -> np.ndarray:
    return draw_documents(read_losses()["tokens"], seed)


def test_an_honest_evaluation_passes(workspace, monkeypatch):
    monkeypatch.setattr(tool, "RESCORED_TOKENS", 100)
    before = files_below(Path())

    (shown,) = rescore(seed=3)

    num_documents = len(read_losses()["tokens"])
    num_drawn = len(drawn_documents(3))
    assert 0 < num_drawn < num_documents
    assert shown.endswith(f"losses of {num_drawn} of {num_documents} documents (--seed 3).")
    assert files_below(Path()) == before


def test_an_edited_document_is_found_if_it_is_drawn(workspace, monkeypatch):
    monkeypatch.setattr(tool, "RESCORED_TOKENS", 100)
    edited = drawn_documents(1)[0]
    other_seed = next(seed for seed in range(2, 100) if edited not in drawn_documents(seed))
    forge_evaluation(lambda nats: np.where(np.arange(len(nats)) == edited, nats - 1e-6, nats))

    rescore(other_seed)
    with pytest.raises(IntegrityError, match=rf"^{DOCUMENT_LOSSES}: document {edited} has nats "):
        rescore(1)


def test_a_column_that_does_not_follow_is_named(workspace):
    honest = DOCUMENT_LOSSES.read_bytes()
    for name in ("utf8_bytes", "tokens", "model_selection_bytes", "contaminated_fraction", "model_selection_nats"):
        DOCUMENT_LOSSES.write_bytes(honest)
        columns = read_losses()
        columns[name] = columns[name] + 1
        pq.write_table(pa.table(columns), DOCUMENT_LOSSES)

        with pytest.raises(IntegrityError, match=rf"^{DOCUMENT_LOSSES}: document \d+ has {name} "):
            rescore(seed=1)


def test_the_validation_loss_of_the_weights_must_be_the_recorded_one(workspace):
    record = read_json(MODEL)
    loss = record["best"]["val_loss"]
    write_json(MODEL, record | {"best": record["best"] | {"val_loss": loss + 1e-9}})

    with pytest.raises(IntegrityError, match=rf"^{MODEL}: best.val_loss is .*; the weights beside it have {loss}; "):
        rescore(seed=1)


@pytest.mark.parametrize(
    ("tolerance", "change", "is_found"),
    [(0.0, 1 + 2**-52, True), (1e-3, 0.9991, False), (1e-3, 1.0011, True), (1e-3, np.nan, True)],
)
def test_in_fast_numerics_a_loss_may_differ_a_little(tolerance, change, is_found):
    again = {"nats": np.array([1.0, np.nan, 100.0])}
    recorded = {"nats": np.array([1.0, 50.0, 100.0 * change])}
    drawn = np.array([0, 2])

    with pytest.raises(IntegrityError, match="document 2 has nats") if is_found else contextlib.nullcontext():
        compare_tables(recorded, again, drawn, tolerance)
