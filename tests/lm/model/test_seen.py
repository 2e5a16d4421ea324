"""Which documents the start of a model was trained on, over several runs."""

from pathlib import Path

import numpy as np
import pytest

from lm.core.files import write_json
from lm.model.seen import NONE, SEEN, load_seen, save_seen, seen_by_start, seen_with_start
from lm.tokens.tokenfile import TokenFile

EOT = 9


def tokens_of(*documents: list[int]) -> TokenFile:
    """Return a token file of these documents, in memory."""
    ids = np.array([token for document in documents for token in (*document, EOT)], np.uint16)
    return TokenFile(Path("tokens.bin"), ids, {"tokenizer": {"eot_id": EOT}})


def train(folder: Path, start: Path | None, *documents: list[int]) -> dict:
    """Leave what a run on these documents leaves of them; return its record."""
    by_start = NONE if start is None else seen_with_start(start)
    folder.mkdir()
    record = {"seen_sha256": save_seen(folder, tokens_of(*documents), by_start)}
    write_json(folder / "model.json", record)
    return record


VALIDATION = tokens_of([1, 2], [3], [4, 5], [1], [2])


def test_the_documents_of_the_start_and_of_its_start_count_and_none_of_the_run_itself(tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    train(first, None, [1, 2], [6])
    train(second, first, [4, 5], [7])

    record = train(third, second, [3], [8])

    assert seen_by_start(third, record, VALIDATION).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("lost", ["the file", "its record"])
def test_after_a_start_that_says_nothing_all_later_runs_do_not_know_it(tmp_path, lost):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    train(first, None, [1, 2])
    if lost == "the file":
        (first / SEEN).unlink()
    else:
        write_json(first / "model.json", {})

    train(second, first, [4, 5])
    record = train(third, second, [3])

    assert load_seen(second, record) is None
    assert seen_by_start(third, record, VALIDATION) is None
