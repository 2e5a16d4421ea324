"""`python src probes` on the small pipeline: the figures are those of its evaluation, and two models are compared."""

import re
from html import unescape

import numpy as np
import pytest

from extras.probes import probes
from extras.probes.excerpts import Excerpt
from extras.probes.page import text_of
from lm.core.files import read_json, write_json
from support.workspace import Workspace


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    workspace = Workspace(tmp_path / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    return workspace.folder


def test_the_figures_sum_to_those_of_the_evaluation(folder, capsys):
    assert probes.main(["--pairs", "60"]) == 0, capsys.readouterr().err
    assert probes.main(["--pairs", "60", "--out", "other", "--against", "data/probes"]) == 0
    details, evaluation = read_json("other/details.json"), read_json("data/evaluation/details.json")
    excess = sum(each["excess_bits_per_story"] for each in details["phenomena"].values())
    assert excess == pytest.approx(evaluation["entropy"]["excess_bits_per_document"], rel=1e-5)
    for rows in (details["by_frequency"], details["by_length"]):
        assert sum(row["tokens"] for row in rows) == evaluation["tokens"]
    assert details["minimal_pairs"] and details["against"].keys() == details["minimal_pairs"].keys()
    assert all(each["difference"] == 0 and each["documents_needed"] is None for each in details["against"].values())
    page = (folder / "other" / "index.html").read_text()
    assert "Largest excess losses" in page and "A is data/probes" in page and "repeated name" in page
    assert not re.search(r"<script|<link|<img|url\(|src=|href=", page)


def test_the_page_shows_each_token_in_the_shade_of_its_excess_loss():
    texts, excess_losses = ["<b>", " cat", "\n", "\t", "", "\x00 a"], np.array([0.1, 0.0, 2.0, -5.0, 8.0, 19.0])
    block = text_of(Excerpt("a & b", texts, excess_losses, excess_losses, 1))
    found = re.findall(
        r'<span( class="marked")? style="background: rgb\(230 98 15 / ([\d.]+)\)" title="(.*?)">(.*?)<', block, re.S
    )
    assert [unescape(text) for *_, text in found] == ["<b>", " cat", "↵\n", "→\t", "▫", "␀ a"]
    assert [bool(marked) for marked, *_ in found] == [False, True, False, False, False, False]
    assert [float(opacity) for _, opacity, *_ in found] == [0.01, 0, 0.19, 0, 0.77, 0.8] and "a &amp; b" in block
    assert found[2][2] == "loss 2.00 nats, excess loss 2.00, probability 0.14"


def test_what_does_not_belong_together_is_refused(folder, capsys):
    assert probes.main(["--against", "nowhere"]) == 2 and "has no minimal_pairs.parquet" in capsys.readouterr().err
    assert probes.main(["--pairs", "-1"]) == 2
    details = read_json("data/evaluation/details.json")
    write_json("data/evaluation/details.json", details | {"weights_sha256": "0" * 12})
    assert probes.main([]) == 4 and "is about other weights than data/models has" in capsys.readouterr().err
