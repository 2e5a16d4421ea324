"""The events have the rows of the curves, each once."""

import pytest

from extras.live.to_tensorboard import add_rows
from lm.core.errors import ParamsError


class Writer:
    """Keep what a SummaryWriter would write: tensorboard is not among the requirements of the tests."""

    def __init__(self):
        self.rows = []

    def add_scalar(self, *row):
        self.rows.append(row)

    def flush(self):
        pass


def test_new_rows_are_written_once_and_a_shorter_curve_is_refused(tmp_path):
    writer = Writer()
    written = {"training": 0, "validation": 0}
    curve = tmp_path / "validation.csv"
    curve.write_text("step,tokens,val_loss,checkpoint_digest\n0,0,9.5,aa\n")
    add_rows(writer, tmp_path, written)
    curve.write_text("step,tokens,val_loss,checkpoint_digest\n0,0,9.5,aa\n5,512,3.5,bb\n")
    add_rows(writer, tmp_path, written)
    assert writer.rows == [("validation/val_loss", 9.5, 0), ("validation/val_loss", 3.5, 512)]
    curve.write_text("step,tokens,val_loss,checkpoint_digest\n0,0,9.5,aa\n")
    with pytest.raises(ParamsError, match="became shorter"):
        add_rows(writer, tmp_path, written)
