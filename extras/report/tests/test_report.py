"""`python src report`: one self-contained page about a workspace, at any moment of a run."""

import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from extras.report import report
from lm.core.files import read_json, write_json, write_text
from support.lock_cases import change_lock, record_outputs, remake, train_with
from support.workspace import Workspace

PICTURES = ["training", "optimization", "loss_by_position", "contamination"]


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """A copy of the small pipeline after its run, as the working directory."""
    workspace = Workspace(tmp_path / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    return workspace.folder


class Page(HTMLParser):
    """Parse a page; a tag that is not closed, or closed twice, is an error."""

    def __init__(self):
        """Write the page of the working directory."""
        super().__init__()
        assert report.main(["mine.html"]) == 0
        self.text = Path("mine.html").read_text(encoding="utf-8")
        self.open = []
        self.attributes = []
        self.pictures = []
        self.tags = []
        self.feed(self.text)
        assert self.open == []
        bare = re.sub(r"<style>.*?</style>|<[^>]*>", " ", self.text, flags=re.S)
        self.words = " ".join(unescape(bare).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "img":
            self.pictures.append(dict(attrs)["alt"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_finished_run_is_on_one_page_that_needs_nothing_else(folder):
    page = Page()

    scored = read_json("data/evaluation/details.json")
    verdict = f"{scored['bits_per_byte']:.3f} ± {scored['bits_per_byte_se']:.3f} bits per byte, 10,240 tokens seen"
    assert verdict in page.words
    assert page.pictures == PICTURES
    assert "1. (no prompt), cut after 8 tokens" in page.words
    assert read_json(report.paths.MODEL)["best"]["sha256"] in page.words
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    for name, value in page.attributes:
        assert name not in ("href", "srcset", "data")
        if name == "src":
            assert value.startswith("data:image/png;base64,iVBOR")


def test_a_run_is_compared_with_the_committed_one(folder):
    """A parameter, the outputs of training and a metric of the second run differ."""
    for command in (["add", "dvc.lock", "metrics", "plots"], ["commit", "-q", "-m", "run"]):
        subprocess.run(["git", *command], check=True)
    assert "Bitwise identical to the committed run (all 19 outputs)." in Page().words
    metrics = read_json("metrics/eval.json")
    metrics["bits_per_byte"] += 0.25
    write_json("metrics/eval.json", metrics)
    assert "Not compared with the committed run: metrics/eval.json: not what dvc.lock records" in Page().words
    remake("train")
    change_lock(record_outputs, train_with(peak_lr=0.5))

    words = Page().words

    assert "1 of its parameters changed" in words
    assert "5 of 19 outputs differ" in words
    assert "train.peak_lr 0.0100 0.5000 0.4900" in words
    assert re.search(r"bits_per_byte [\d.]+ [\d.]+ 0\.2500", words)


def test_a_run_in_progress_shows_its_curve_and_no_result_of_an_earlier_one(folder):
    shutil.rmtree("data/models")
    lines = Path("plots/validation.csv").read_text().splitlines()[:3]
    write_text("plots/validation.csv", "\n".join(lines) + "\n")

    page = Page()

    loss = float(lines[2].split(",")[2])
    assert f"Not finished: {loss:.3f} nats per token" in page.words
    assert "after 5,120 of 10,240 tokens" in page.words
    assert "bits_per_byte" not in page.words
    assert page.pictures == ["training", "optimization"]


def test_text_from_outside_is_escaped_and_copies_are_marked(folder):
    path = Path("data/evaluation/samples.json")
    evil = "<script>alert(1)</script>\n&amp;"
    described = read_json(path)
    described["samples"][1]["pieces"] = [[evil, 9], [" new ", 0], ["long", 20]]
    write_json(path, described)

    page = Page()

    assert "script" not in page.tags
    assert "<script>alert(1)</script> &amp; new long" in page.words
    assert '&amp;amp;</u> new <u class="longest" title="copy of 20 tokens">long</u></pre>' in page.text
