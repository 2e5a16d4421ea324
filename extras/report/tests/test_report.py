"""`python src report`: one self-contained page about a workspace, at any moment of a run."""

import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from extras.report import report
from lm.core.files import read_json, write_json, write_text
from lm.core.params import read_yaml
from support.workspace import Workspace

PICTURES = ["training", "loss_by_position", "contamination"]


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """A copy of the small pipeline after its run, as the working directory."""
    workspace = Workspace(tmp_path / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    return workspace.folder


class Page(HTMLParser):
    """Parse a page; a tag that is not closed, or closed twice, is an error."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.attributes, self.pictures, self.tags = text, [], [], [], []
        self.feed(text)
        assert self.open == []
        bare = re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.S)
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


def made_page(*arguments) -> Page:
    assert report.main([str(argument) for argument in arguments]) == 0
    return Page(Path(*arguments or ["report.html"]).read_text(encoding="utf-8"))


def test_a_finished_run_is_on_one_page(folder):
    page, scored, trained = (
        made_page("mine.html"),
        read_json("data/evaluation/details.json"),
        read_json(report.paths.MODEL),
    )
    assert page.pictures == PICTURES
    verdict = f"{scored['bits_per_byte']:.3f} ± {scored['bits_per_byte_se']:.3f} bits per byte, 10,240 tokens seen"
    low, high = scored["bits_per_byte_interval"]
    assert verdict in page.words
    assert f"bits_per_byte_interval {low:.4f} to {high:.4f}" in page.words and "not evaluated" not in page.words
    assert page.words.count("1. (no prompt), cut after 8 tokens") == 1
    for sha256 in (trained["best"]["sha256"], read_json("data/processed_datasets/train.json")["sha256"]):
        assert sha256 in page.words
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert "url(" not in page.text and "@import" not in page.text and "prefers-color-scheme: dark" in page.text
    for name, value in page.attributes:
        assert not name.startswith("on") and name not in ("href", "srcset", "data")
        assert name != "src" or value.startswith("data:image/png;base64,iVBOR")
    assert made_page().text == made_page().text


def test_a_run_in_progress_shows_its_curve(folder):
    shutil.rmtree("data/models")
    lines = Path("plots/validation.csv").read_text().splitlines()
    write_text("plots/validation.csv", "\n".join(lines[:3]) + "\n")
    page, loss = made_page(), float(lines[2].split(",")[2])
    assert f"Not finished: {loss:.3f} nats per token on validation text after 5,120 of 10,240 tokens" in page.words
    assert page.pictures == ["training"] and "not evaluated yet" in page.words
    assert "bits_per_byte" not in page.words and "Samples" not in page.words and "tokens_seen" in page.words


def test_a_trained_model_that_is_not_evaluated_yet(folder):
    scored = read_json("data/evaluation/details.json")
    write_json("data/evaluation/details.json", scored | {"weights_sha256": "0" * 12})
    page = made_page()
    assert "Trained: " in page.words and "not evaluated yet" in page.words and page.pictures == ["training"]
    assert f"{scored['perplexity']:.4f}" not in page.words


def test_text_from_outside_is_escaped_and_copies_are_marked(folder):
    path = Path("data/evaluation/samples.json")
    evil = "<script>alert(1)</script><img src=http://example.org>\n## 7\n```text\n&amp;"
    described = read_json(path)
    described["samples"][1]["pieces"] = [[evil, 9], [" new ", 0], ["long", 20]]
    write_json(path, described)
    page = made_page()
    assert "script" not in page.tags and page.pictures == PICTURES
    assert "<script>alert(1)</script><img src=http://example.org> ## 7 ```text &amp; new long" in page.words
    assert '&amp;amp;</u> new <u class="longest" title="copy of 20 tokens">long</u></pre>' in page.text


def test_changed_parameters_are_named(folder):
    params = read_yaml("params.yaml")
    recorded = {"train": {**params["train"], "peak_lr": 0.5}, "model.name": "micro"}
    write_text("dvc.lock", json.dumps({"stages": {"train": {"params": {"params.yaml": recorded}}}}))
    words = made_page().words
    assert f"train.peak_lr {params['train']['peak_lr']}, was 0.5" in words and words.count(", was ") == 1
