"""Runs are read from the files of a revision, and only those on the same documents are compared."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.errors import IntegrityError
from tools.record.held_out import HeldOutScore, write_test_reads
from tools.record.revision import Revision
from tools.record.run import read_run, read_runs, reject_other_text

LOSSES = {"nats": [1.0, 2.0], "utf8_bytes": [3, 4], "source": ["stories", "headers"]}
WEIGHTS = "a" * 64
MODEL = {
    "fingerprint": "ab",
    "last": {"tokens_seen": 9},
    "best": {"tokens_seen": 8, "sha256": WEIGHTS},
    "training": {"parameters": 7},
}
STAGES = {
    "fetch": {"deps": [{"path": "src/lm/text", "md5": "0"}], "outs": [{"path": "data/raw", "md5": "2"}]},
    "train": {
        "params": {
            "params.yaml": {"train": {"seed": 5}, "model.name": "small"},
            "presets.yaml": {"models.small": {"n": 1}},
        },
        "deps": [{"path": "data/raw", "md5": "2"}, {"path": "src/train.py", "md5": "3"}],
        "outs": [{"path": "data/models", "md5": "1"}],
    },
    "eval": {"deps": [{"path": "data/models", "md5": "1"}], "outs": [{"path": "data/evaluation", "md5": "4"}]},
}


class MadeUpRevision(Revision):
    """A revision of the hash of its validation text and the slice of it."""

    def __init__(
        self, name="a", text_sha256: str | None = "12", losses=LOSSES, stages=STAGES, test_reads=None, **slice_
    ):
        self.name = name
        sidecar = {
            "slice": {"split": "validation", "start_char": 0, "num_chars": None} | slice_,
            "source": {"name": name, "text_sha256": text_sha256},
        }
        table = io.BytesIO()
        pq.write_table(pa.table(losses), table)
        self.files = {
            "dvc.yaml": json.dumps({"stages": dict.fromkeys(STAGES)}).encode(),
            "dvc.lock": json.dumps({"stages": stages}).encode(),
            "data/processed_datasets/validation.json": json.dumps(sidecar).encode(),
            "data/models/model.json": json.dumps(MODEL).encode(),
            "data/evaluation/details.json": b'{"lossy_tokenizer": true}',
            "data/evaluation/document_losses.parquet": table.getvalue(),
            "plots/validation.csv": b"step,val_loss\n0,6.5\n",
            "test_reads.csv": test_reads,
        }

    def read_if_there(self, path) -> str | None:
        content = self.files[str(path)]
        return None if content is None else content.decode()

    def read(self, path) -> bytes:
        return self.files[str(path)]


def test_a_run_is_read_from_its_files():
    run, facts = read_run(MadeUpRevision())

    # Its losses by document.
    assert run.values * np.log(2) == pytest.approx([1.0, 2.0])
    assert run.sizes.tolist() == [3, 4]
    assert run.sources.tolist() == ["stories", "headers"]
    # Its records.
    assert run.seed == 5
    assert (facts.tokens_seen, facts.best_tokens_seen, facts.num_parameters) == (9, 8, 7)
    assert facts.is_lossy
    assert facts.validations == [{"step": "0", "val_loss": "6.5"}]
    # What decided it; the model itself explains nothing.
    assert facts.params == {"train.seed": 5, "model.name": "small", "models.*.n": 1}
    assert facts.inputs == {"data/raw": "2", "src/train.py": "3"}


def test_a_run_that_was_not_evaluated_again_is_refused():
    """The losses in the folder are those of the former model."""
    trained_again = STAGES | {"train": STAGES["train"] | {"outs": [{"path": "data/models", "md5": "9"}]}}
    not_evaluated = {name: stage for name, stage in STAGES.items() if name != "eval"}

    for stages in (trained_again, not_evaluated):
        with pytest.raises(IntegrityError, match=r"a: dvc.lock has no evaluation of the model"):
            read_run(MadeUpRevision(stages=stages))


def test_evaluations_of_other_weights_on_a_test_split_are_counted(tmp_path):
    """They were in Git when the run was made, so that it may have been chosen by them."""
    of_own_weights = HeldOutScore(None, False, WEIGHTS, "c" * 64, 128, 5, 1.3, 1.2, 1.4)
    of_others = of_own_weights._replace(weights_sha256="b" * 64)
    path = tmp_path / "test_reads.csv"
    write_test_reads(path, [of_own_weights, of_others, of_others._replace(stride_tokens=64)])

    for test_reads, number in ((path.read_bytes(), 2), (None, 0)):
        _, facts = read_run(MadeUpRevision(test_reads=test_reads))
        assert facts.num_earlier_evaluations == number


def test_runs_on_other_documents_are_refused():
    a = MadeUpRevision()
    for text_sha256, slice_ in (("1", {}), ("12", {"start_char": 5}), ("12", {"num_chars": 9}), (None, {})):
        with pytest.raises(IntegrityError, match="a and b were evaluated on different documents"):
            reject_other_text(a, MadeUpRevision("b", text_sha256, **slice_))
    with pytest.raises(IntegrityError, match="different documents"):
        reject_other_text(MadeUpRevision(text_sha256=None), MadeUpRevision("b", None))
    reject_other_text(a, MadeUpRevision("b of another source"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"utf8_bytes": [3, 5]}, r"document_losses.parquet: the runs count different bytes per document"),
        ({"nats": [1.0, np.nan]}, r"b: .*/document_losses.parquet contains losses that are not finite"),
    ],
)
def test_losses_that_do_not_fit_are_refused(change, said):
    with pytest.raises(IntegrityError, match=said):
        read_runs([MadeUpRevision(), MadeUpRevision("b", losses=LOSSES | change)])
