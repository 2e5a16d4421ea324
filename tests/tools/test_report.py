"""report: one self-contained page of what lies in a workspace; and the page of `dvc plots` without a network."""

import base64
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lm.core.files import read_json, write_json, write_text
from lm.core.params import read_yaml
from lm.tokens.tokenfile import document_spans, open_tokens
from support import ROOT
from support.workspace import Workspace
from tools.common.revisions import flatten
from tools.report import cli as report
from tools.report import figures as figure_report
from tools.report import html
from tools.report import parts as report_parts

CURVES = ["Loss against tokens", "Loss against time", "Learning rate and gradient norm", "Loss by context"]
PICTURES = [*CURVES, "Parameters and FLOP by part", "Token length", "Document length", "Leakage by document"]
SECTIONS = ["Curves", "Metrics", "Samples", "Model", "Data card", "Parameters", "Provenance"]
TEMPLATE = ROOT / ".dvc" / "plots" / "offline.html"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The small pipeline, its stages run in dvc.yaml's order in this process."""
    workspace = Workspace(tmp_path_factory.mktemp("report") / "made")
    workspace.make_small()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.folder)
        for stage in read_yaml("dvc.yaml")["stages"].values():
            _, script, *arguments = shlex.split(stage["cmd"])
            assert importlib.import_module(Path(script).stem).main(arguments) == 0, script
    workspace.commit()
    return workspace.folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of it, as the working directory."""
    shutil.copytree(made, tmp_path / "ws")
    monkeypatch.chdir(tmp_path / "ws")
    return tmp_path / "ws"


class Page(HTMLParser):
    """A page taken apart; a tag that is not closed, or closed twice, is an error."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.attributes, self.pictures, self.tags = text, [], [], {}, []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "img":
            self.pictures[dict(attrs)["alt"]] = dict(attrs)["src"]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def words(self):
        """What stands on the page, without its pictures."""
        return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", self.text, flags=re.S)).split())


def made_page(*arguments):
    assert report.main([str(argument) for argument in arguments]) == 0
    return Page(Path(*arguments or ["report.html"]).read_text(encoding="utf-8"))


def svg(source):
    """The picture in a data address, parsed."""
    head, _, content = source.partition(",")
    assert head == "data:image/svg+xml;base64"
    return ElementTree.fromstring(base64.b64decode(content))


def test_a_finished_run_is_all_on_one_page(folder):
    page = made_page()
    assert list(page.pictures) == PICTURES
    assert re.findall(r"<h2>(.*?)</h2>", page.text) == SECTIONS
    scored, trained = read_json("metrics/eval.json"), read_json("metrics/train.json")
    words = page.words()
    verdict = f"{scored['bits_per_byte']:.3f} ± {scored['bits_per_byte_se']:.3f} bits per byte, 10,240 tokens seen"
    assert verdict in words and f"{scored['entropy']['floor_bits_per_byte']:.3f} of it is the entropy" in words
    assert f"parameters {trained['parameters']:,}" in words and "Left out" not in words and "not hold" not in words
    for sidecar in ("train", "validation"):
        assert read_json(f"data/processed_datasets/{sidecar}.json")["sha256"] in words
    assert "9 of 9 links between records hold" in words
    assert words.count("1. (nothing), cut after 8 tokens") == 1 and "2. One day, cut after 8 tokens" in words


def test_the_page_needs_nothing_but_itself(folder):
    page = made_page()
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href", "srcset", "data") or value.startswith("data:image/svg+xml;base64,")
    assert "url(" not in page.text and "@import" not in page.text and 'name="viewport"' in page.text
    for source in page.pictures.values():
        picture = svg(source)
        assert float(picture.get("width").removesuffix("pt")) == pytest.approx(72 * figure_report.WIDTH)
        addresses = [value for each in picture.iter() for key, value in each.attrib.items() if key.endswith("href")]
        assert all(address.startswith(("#", "data:")) for address in addresses)


def test_equal_workspaces_give_equal_bytes(folder):
    assert made_page().text == made_page().text


def test_a_run_that_goes_on_shows_its_curves_and_nothing_of_the_former_model(folder):
    shutil.rmtree("data/models")
    train, seen = read_json("metrics/train.json"), 5120
    write_json("metrics/train.json", {**train, "tokens_seen": seen})
    lines = Path("plots/validation.csv").read_text().splitlines()
    assert lines[2].split(",")[1] == str(seen)
    write_text("plots/validation.csv", "\n".join(lines[:3]) + "\n")
    page = made_page()
    words, loss = page.words(), float(lines[2].split(",")[2])
    assert f"Not finished: {loss:.3f} nats per token on validation text after 5,120 of 10,240 tokens" in words
    assert list(page.pictures) == [name for name in PICTURES if name not in ("Loss by context", "Leakage by document")]
    assert "bits per byte," not in words and "tokens_seen 5,120" in words and "excess_bits" not in words
    former = "metrics/eval.json is about other weights than those of this run, which is not evaluated yet"
    assert words.count(former) == 4 and "Left out: samples" in words
    assert "Left out: what the run computed on; data/models/model.json is not there yet." in words


def test_a_trained_model_that_is_not_evaluated_yet(folder):
    scored = read_json("metrics/eval.json")
    write_json("metrics/eval.json", {**scored, "weights_sha256": "0" * 12})
    words = made_page().words()
    assert "Trained, not evaluated yet: " in words and "Left out: loss by context" in words
    assert f"{scored['perplexity']:.4f}" not in words


def test_before_the_first_run_every_line_says_what_is_missing(folder):
    for name in ("data", "metrics", "plots"):
        shutil.rmtree(name)
    page = made_page()
    assert not page.pictures and "Nothing is trained yet." in page.words()
    assert re.findall(r"<h2>(.*?)</h2>", page.text) == SECTIONS and page.words().count("Left out: ") == 13


def test_what_does_not_fit_together_is_named_and_left_out(folder):
    card = read_json("metrics/data.json")
    card["train"]["tokens"] += 1
    write_json("metrics/data.json", card)
    words = made_page().words()
    assert "8 of 9 links" in words and "Does not hold: metrics/data.json" in words
    assert "Left out: counts and duplicates; metrics/data.json does not fit the other records, see Provenance." in words


def test_text_from_outside_is_text(folder):
    path = Path("metrics/samples.md")
    evil = "<script>alert(1)</script><img src=http://example.org>\n## 7\n```text\n&amp;"
    write_text(path, path.read_text().replace("```text\nOne day", f"```text\nOne day{evil}"))
    page = made_page()
    assert "script" not in page.tags and len(page.pictures) == len(PICTURES)
    assert "<script>alert(1)</script><img src=http://example.org> ## 7 ```text &amp;" in page.words()


def test_parameters_are_the_chosen_ones_and_say_what_was_changed(folder):
    params = read_yaml("params.yaml")
    recorded = {"train": {**params["train"], "peak_lr": 0.5}, "model.name": "micro"}
    write_text("dvc.lock", json.dumps({"stages": {"train": {"params": {"params.yaml": recorded}}}}))
    words = made_page().words()
    assert (
        f"train.peak_lr {params['train']['peak_lr']}, was 0.5" in words and "1 of them are not what dvc.lock" in words
    )
    shown = {name for part in report_parts.chosen(params) for name in flatten(part)}
    own = flatten({k: v for k, v in params.items() if k not in ("sources", "tokenizers", "models")})
    chosen = [name for name in flatten(params) if re.match(r"(sources\.stories|tokenizers\.bpe|models\.micro)\.", name)]
    assert shown == {*own, *chosen}
    assert "models.micro.n_layer 2" in words and "models.tiny" not in words and "tinystories" not in words


def test_the_commit_and_whether_it_is_all(folder, tmp_path, monkeypatch):
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert report_parts.commit() == f"{head}, clean"
    made_page()
    assert report_parts.commit() == f"{head}, clean"  # git ignores the page
    write_text("params.yaml", Path("params.yaml").read_text() + "\n")
    assert report_parts.commit() == f"{head}, dirty, files that differ: 1"
    monkeypatch.chdir(tmp_path)
    assert report_parts.commit().startswith("not known")


def test_lengths_are_those_of_the_stream_whatever_the_blocks(folder, monkeypatch):
    path = Path("data/processed_datasets/validation.bin")
    tokens = open_tokens(path)
    for block in (7, 1000, report.BLOCK_TOKENS):
        monkeypatch.setattr(report, "BLOCK_TOKENS", block)
        counts, lengths = report.scan(path, tokens.meta)
        assert np.array_equal(counts, np.bincount(tokens.ids, minlength=tokens.vocab_size))
        assert np.array_equal(lengths, np.diff(document_spans(tokens), axis=1)[:, 0])


def test_smoothing_keeps_the_ends_and_lines_and_averages_between():
    values = np.random.default_rng(1).random(100)
    smoothed = figure_report.smooth(values, 0.1)
    assert smoothed[0] == values[0] and smoothed[-1] == pytest.approx(values[-1])
    assert smoothed[50] == pytest.approx(values[45:56].mean()) and smoothed[2] == pytest.approx(values[:5].mean())
    assert figure_report.smooth(np.arange(50.0)) == pytest.approx(np.arange(50.0))
    assert figure_report.smooth([3.0]) == [3.0] and len(figure_report.smooth([])) == 0


def test_pictures_of_little_and_of_much():
    one = {"tokens": [5.0], "train_loss": [2.0], "lr": [0.0], "grad_norm": [1.0]}
    first = {"tokens": [0.0], "val_loss": [2.5]}
    for train, validation in ((one, first), ({}, first), (one, {})):
        assert b"<svg" in figure_report.draw_loss_by_tokens(train, validation, 0.2)
    assert b"<svg" in figure_report.draw_loss_by_time({}, first, {"tokens": [0.0], "seconds": [0.1]}, None)
    assert b"<svg" in figure_report.draw_rates(one)
    assert b"<svg" in figure_report.draw_document_lengths({"validation": np.array([4])})
    rng = np.random.default_rng(1)
    many = {"tokens": np.arange(1.0, 20001), "lr": np.ones(20000), "grad_norm": rng.random(20000) + 0.1}
    assert len(figure_report.draw_rates(many)) < 1_000_000
    cloud = figure_report.draw_documents(rng.random(9000), rng.random(9000), rng.random(9000))
    assert len(cloud) < 300_000


def test_numbers_stand_to_the_right_and_long_words_break():
    text = html.table([["a", "1,234.5", "x" * 30], ["b", "–", "y"]])
    assert text.count('<td class="number">') == 2 and text.count('<td class="long">') == 1


# The page of `dvc plots show` and `dvc plots diff`.


@pytest.fixture(scope="module")
def plots_page(tmp_path_factory):
    """What DVC makes of the committed template, of two revisions of a curve."""
    folder = tmp_path_factory.mktemp("plots")

    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*command):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)

    (folder / "dvc.yaml").write_text(
        "plots:\n- Loss:\n    x: tokens\n    y:\n      a.csv: loss\n      b.csv: loss\n    y_label: nats\n"
    )
    for name in "ab":
        (folder / f"{name}.csv").write_text("tokens,loss\n0,3.5\n10,2.25\n")
    run("git", "init", "-q")
    run("dvc", "init", "-q")
    run("git", "add", "-A")
    run("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "first")
    (folder / "a.csv").write_text("tokens,loss\n0,3.5\n10,1.125\n")
    run("dvc", "plots", "diff", "--html-template", str(TEMPLATE), "HEAD")
    return (folder / "dvc_plots" / "index.html").read_text()


def test_the_page_of_plots_has_no_address_elsewhere(plots_page):
    assert "function vegaEmbed" in plots_page and plots_page.count("vegaEmbed('#") == 1
    assert not re.search(r"(src|href)\s*=\s*.?https?:", plots_page) and "cdn" not in plots_page
    assert "{" + "plot_divs}" not in plots_page and "{" + "refresh_tag}" not in plots_page
    addresses = set(re.findall(r"https?://[^\"' ]*", plots_page))
    assert addresses == {"http://www.w3.org/2000/svg", "https://vega.github.io/schema/vega-lite/v5.json"}  # names


DOCUMENT = """
const made = { children: [] };
const element = (name) => ({ name, attributes: {}, children: [],
  setAttribute(key, value) { this.attributes[key] = String(value); }, append(child) { this.children.push(child); } });
globalThis.document = { createElementNS: (_, name) => element(name),
  querySelector: () => ({ replaceChildren: (child) => made.children.push(child) }) };
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script with")
def test_the_page_of_plots_draws_every_line(plots_page):
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", plots_page, re.S)
    program = DOCUMENT + "\n".join(scripts).replace('"use strict";', "") + "\nconsole.log(JSON.stringify(made));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    (chart,) = json.loads(done.stdout)["children"]
    texts = [each["textContent"] for each in chart["children"] if each["name"] == "text"]
    lines = ("workspace, a.csv, at the end 1.125", "HEAD, a.csv, at the end 2.25", "HEAD, b.csv, at the end 2.25")
    for words in (*lines, "workspace, b.csv, at the end 2.25", "tokens", "nats"):
        assert words in texts
    looks = {
        tuple(each["attributes"][name] for name in ("stroke", "stroke-width", "stroke-dasharray"))
        for each in chart["children"] if "stroke-dasharray" in each["attributes"]
    }  # fmt: skip
    assert len(looks) == 4
    points = [float(n) for each in chart["children"] for n in re.findall(r"[\d.]+", each["attributes"].get("d", ""))]
    width, height = map(float, chart["attributes"]["viewBox"].split()[2:])
    assert min(points) >= 0 and max(points) <= max(width, height)
