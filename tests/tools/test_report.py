"""`python src report`: one self-contained page about a workspace."""

import base64
import importlib
import json
import math
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from functools import partial
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm.core.files import read_json, write_json, write_text
from lm.core.params import read_yaml
from lm.plots import figure_of, to_svg
from lm.tokens.tokenfile import document_spans, open_tokens
from support.damage import edit
from support.workspace import Workspace
from tools.common.parameters import flatten
from tools.report import cli as report
from tools.report import pictures, reading, sections
from tools.report.workspace import WIDTH, read_workspace

CURVES = ["Loss by tokens", "Loss by time", "Learning rate and gradient norm", "Loss by context"]
DOCUMENTS = "Loss and contamination by document"
BREAKDOWN = ["Calibration", "Loss by frequency of the token", "Loss by length of the document"]
PICTURES = [*CURVES, *BREAKDOWN, "Parameters and FLOP by part", "Token length", "Document length", DOCUMENTS]
SECTIONS = ["Curves", "Metrics", "What the model knows", "Samples", "Model", "Data card", "Selection", "Parameters"]
SECTIONS += ["Provenance"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The small pipeline; its stages ran in this process."""
    workspace = Workspace(tmp_path_factory.mktemp("report") / "made")
    workspace.make_small()
    workspace.run_stages()
    workspace.commit()
    return workspace.folder


@pytest.fixture
def drawn(made, tmp_path, monkeypatch):
    """A copy of it, as the working directory."""
    shutil.copytree(made, tmp_path / "ws")
    monkeypatch.chdir(tmp_path / "ws")
    return tmp_path / "ws"


@pytest.fixture
def folder(drawn, monkeypatch):
    """The copy, in which empty pictures save the time of drawing."""
    monkeypatch.setattr("lm.plots.figure_of", lambda *draw_functions, size: None)
    monkeypatch.setattr("lm.plots.to_svg", lambda figure: b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    return drawn


class Page(HTMLParser):
    """Parse a page; a tag that is not closed, or closed twice, is an error."""

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
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def words(self):
        """Return the text of the page."""
        return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", self.text, flags=re.S)).split())


def made_page(*arguments):
    assert report.main([str(argument) for argument in arguments]) == 0
    return Page(Path(*arguments or ["report.html"]).read_text(encoding="utf-8"))


def svg(source):
    """Parse the picture in a data address."""
    head, _, content = source.partition(",")
    assert head == "data:image/svg+xml;base64"
    return ElementTree.fromstring(base64.b64decode(content))


def test_a_finished_run_has_everything_on_one_page(drawn):
    page = made_page()
    assert list(page.pictures) == PICTURES
    assert re.findall(r"<h2>(.*?)</h2>", page.text) == SECTIONS
    scored, trained = read_json("data/evaluation/details.json"), read_json("metrics/train.json")
    words = page.words()
    verdict = f"{scored['bits_per_byte']:.3f} ± {scored['bits_per_byte_se']:.3f} bits per byte, 10,240 tokens seen"
    assert verdict in words and f"{scored['entropy']['floor_bits_per_byte']:.3f} of it is the entropy" in words
    assert f"parameters {trained['parameters']:,}" in words and "Left out" not in words and "not hold" not in words
    for sidecar in ("train", "validation"):
        assert read_json(f"data/processed_datasets/{sidecar}.json")["sha256"] in words
    assert "16 of 16 links between records hold" in words
    assert "The selection none dropped no document." in words and "none ·" not in page.text
    assert words.count("1. (nothing), cut after 8 tokens") == 1 and "2. One day, cut after 8 tokens" in words


def test_the_interval_and_the_documents_that_dominate_the_figure_are_named(folder):
    scored = read_json("data/evaluation/details.json")
    low, high = scored["bits_per_byte_interval"]
    words = made_page().words()
    assert f"The 95 % interval is {low:.3f} to {high:.3f}." in words and "of the bytes and has" not in words
    path = Path("data/evaluation/document_losses.parquet")
    columns = pq.read_table(path).to_pydict()
    columns["utf8_bytes"][3] = 4 * sum(columns["utf8_bytes"])
    pq.write_table(pa.table(columns), path)
    nats, sizes = (np.array(columns[name]) for name in ("nats", "utf8_bytes"))
    own, rest = nats[3] / math.log(2) / sizes[3], np.delete(nats, 3).sum() / math.log(2) / np.delete(sizes, 3).sum()
    fraction = 100 * sizes[3] / sizes.sum()
    sentence = (
        f"Document 3 holds {fraction:.0f} % of the bytes and has {own:.3f} bits per byte; without it the figure is"
    )
    assert f"{sentence} {rest:.3f}." in made_page().words()


def test_the_breakdown_is_drawn_and_the_page_of_excerpts_is_beside_the_report(drawn):
    row = {"count_from": 0, "count_to": 0, "entries": 1, "tokens": 2, "nats_per_token": 3.5, "loss_fraction": 0.25}
    one = {"from": 0.0, "to": 0.5, "tokens": 9, "probability": 0.3, "accuracy": 0.2}
    calibration = {"tokens": 9, "accuracy": 0.2, "expected_calibration_error": 0.1, "bins": [one]}
    length = {"tokens_from": 4, "tokens_to": 7, "documents": 1, "bits_per_byte": 1.5, "bits_per_byte_se": None}
    details = read_json("data/evaluation/details.json")
    details |= {"by_frequency": [row], "by_length": [length], "calibration": calibration}
    write_json("data/evaluation/details.json", details)
    write_json("data/evaluation/excerpts.json", {"has_regret": False, "places": [], "documents": []})
    page = made_page("mine.html")
    drawn = {"Calibration", "Loss by frequency of the token", "Loss by length of the document"}
    assert drawn <= {*page.pictures} and "calibration" not in page.words()
    assert ("href", "mine-reading.html") in page.attributes
    assert ("href", "mine.html") in Page(Path("mine-reading.html").read_text(encoding="utf-8")).attributes


def test_a_mixture_has_a_row_for_each_part(folder):
    assert "By part of the mixture" not in made_page().words()
    sidecar = Path("data/processed_datasets/validation.json")
    meta = read_json(sidecar)
    counts = {"long": 7, "rest": meta["documents"] - 7}
    write_json(sidecar, meta | {"parts": {name: {"documents": count} for name, count in counts.items()}})
    command = read_yaml("dvc.yaml")["stages"]["eval"]["cmd"]
    assert importlib.import_module("eval").main(shlex.split(command)[2:]) == 0
    parts = read_json("data/evaluation/details.json")["parts"]
    assert {name: figures["documents"] for name, figures in parts.items()} == counts
    table = pq.read_table("data/evaluation/document_losses.parquet")
    assert table["part"].to_pylist() == ["long"] * 7 + ["rest"] * counts["rest"]
    words = made_page().words()
    head = "By part of the mixture part documents bits per byte standard error"
    rows = (f"{name} {each['documents']} {each['bits_per_byte']:.4f} {each['bits_per_byte_se']:.4f}"
            for name, each in parts.items())  # fmt: skip
    assert f"{head} {' '.join(rows)}" in words and "parts.long" not in words


def test_the_excess_on_stories_has_a_row_for_each_phenomenon(folder):
    details, words = read_json("data/evaluation/details.json"), made_page().words()
    excess = [each["excess_bits_per_story"] for each in details["phenomena"].values()]
    assert sum(excess) == pytest.approx(details["entropy"]["excess_bits_per_document"], abs=1e-6)
    head = "phenomenon tokens surprisal, bits loss, bits excess, bits standard error which plot"
    assert head in words and "phenomena." not in words
    for name, each in details["phenomena"].items():
        row = " ".join(report.readable(each[key]) for key in reading.COLUMNS["phenomena"])
        assert f"{name} {row}" in words, name


def test_minimal_pairs_have_a_row_for_each_kind(folder):
    def score(details):
        figures = {"pairs": 500, "documents": 85, "accuracy": 0.496, "accuracy_interval": [0.4234, 0.5687]}
        details["minimal_pairs"] = {"repeated object": figures}

    edit("data/evaluation/details.json", score)
    words = made_page().words()
    head = "kind pairs documents accuracy 95 % interval"
    assert f"{head} repeated object 500 85 0.4960 0.4234 to 0.5687" in words and "minimal_pairs." not in words


def test_dropped_documents_are_counted_and_shown_with_what_they_repeat(folder):
    def drop(details):
        counts = {"min_chars": (3, 9), "exact_duplicates": (1, 5)}
        dropped = {rule: {"documents": n, "characters": c} for rule, (n, c) in counts.items()}
        details["documents"]["stories"]["train"]["dropped"] = dropped
        place = {"part": "stories", "split": "train", "document": 7, "characters": 1234, "text": "<b>once</b>"}
        first = place | {"split": "validation", "document": 2, "text": "the first"}
        details["examples"] = {"min_chars": [place | {"value": 3}], "exact_duplicates": [place | {"repeats": first}]}

    edit("data/selection/details.json", drop)
    page = made_page()
    assert "stories train min_chars 3 0.0100 9" in page.words() and "<b>once</b>" not in page.text
    assert "min_chars stories, train, document 7: 1,234 characters, 3 <b>once</b>" in page.words()
    original = "stories, validation, document 2: 1,234 characters, which it repeats the first"
    assert f"exact_duplicates stories, train, document 7: 1,234 characters <b>once</b> {original}" in page.words()


def test_the_page_needs_no_other_file(drawn):
    page = made_page()
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        is_inside = value == "report-reading.html" or value.startswith("data:image/svg+xml;base64,")
        assert name not in ("src", "href", "srcset", "data") or is_inside
    assert "url(" not in page.text and "@import" not in page.text and 'name="viewport"' in page.text
    for source in page.pictures.values():
        picture = svg(source)
        assert float(picture.get("width").removesuffix("pt")) == pytest.approx(72 * WIDTH)
        addresses = [value for each in picture.iter() for key, value in each.attrib.items() if key.endswith("href")]
        assert all(address.startswith(("#", "data:")) for address in addresses)


def test_equal_workspaces_give_equal_bytes(drawn):
    assert made_page().text == made_page().text


def test_a_run_in_progress_shows_its_curves_and_no_results_of_the_model_before(drawn):
    shutil.rmtree("data/models")
    train, seen = read_json("metrics/train.json"), 5120
    write_json("metrics/train.json", {**train, "tokens_seen": seen})
    lines = Path("plots/validation.csv").read_text().splitlines()
    assert lines[2].split(",")[1] == str(seen)
    write_text("plots/validation.csv", "\n".join(lines[:3]) + "\n")
    page = made_page()
    words, loss = page.words(), float(lines[2].split(",")[2])
    assert f"Not finished: {loss:.3f} nats per token on validation text after 5,120 of 10,240 tokens" in words
    assert list(page.pictures) == [
        name for name in PICTURES if name not in ("Loss by time", "Loss by context", DOCUMENTS, *BREAKDOWN)
    ]
    assert "bits per byte," not in words and "tokens_seen 5,120" in words and "excess_bits" not in words
    reason = "is about the weights of another run; this one is not evaluated yet"
    assert words.count(reason) == 6 and f"Left out: samples; data/evaluation/details.json {reason}." in words
    assert "Left out: the machines that trained the model; data/models/model.json does not exist yet." in words


def test_a_trained_model_that_is_not_evaluated_yet(folder):
    scored = read_json("data/evaluation/details.json")
    write_json("data/evaluation/details.json", {**scored, "weights_sha256": "0" * 12})
    words = made_page().words()
    assert "Trained, not evaluated yet: " in words and "Left out: loss by context" in words
    assert f"{scored['perplexity']:.4f}" not in words


def test_a_clone_without_the_files_of_a_finished_run_does_not_call_it_unfinished(folder):
    shutil.rmtree("data")
    words = made_page().words()
    assert "Trained, not evaluated yet: " in words and "Not finished" not in words


def test_before_the_first_run_every_line_says_what_is_missing(folder):
    for name in ("data", "metrics", "plots"):
        shutil.rmtree(name)
    page = made_page()
    assert not page.pictures and "Nothing is trained yet." in page.words()
    assert re.findall(r"<h2>(.*?)</h2>", page.text) == SECTIONS and page.words().count("Left out: ") == 17


def test_the_vocabulary_has_a_table_by_script_and_part(folder):
    card = read_json("data/audit/details.json")
    found = card["tokenizer"]
    write_json("data/audit/details.json", {**card, "tokenizer": {
        **found, "validation_parts": {"my part": {"tokens": 1234, "bytes_per_token": 2.5}},
        "longest": [{"text": "<u>\n", "utf8_bytes": 4, "count": 1}]}})  # fmt: skip
    page = made_page()
    words = page.words()
    latin = found["scripts"]["latin"]
    assert f"latin {latin['tokens']:,} {latin['bytes_per_token']:.4f}" in words and "my part 1,234 2.5000" in words
    assert f"does not use {found['unused_entries']:,} ({found['unused_fraction']:.1%})" in words
    assert "longest tokens '<u>\\n'" in words and "u" not in page.tags
    write_json("data/audit/details.json", {name: value for name, value in card.items() if name != "tokenizer"})
    assert "longest tokens" not in made_page().words()


def test_a_record_that_does_not_fit_is_named_and_left_out(folder):
    path = "data/audit/details.json"
    card = read_json(path)
    card["train"]["tokens"] += 1
    write_json(path, card)
    words = made_page().words()
    assert "15 of 16 links" in words and f"Does not hold: {path}" in words
    assert f"Left out: counts and duplicates; {path} does not fit the other records, see Provenance." in words


def test_text_from_outside_is_escaped(folder):
    path = Path("data/evaluation/samples.md")
    evil = "<script>alert(1)</script><img src=http://example.org>\n## 7\n```text\n&amp;"
    write_text(path, path.read_text().replace("```text\nOne day", f"```text\nOne day{evil}"))
    page = made_page()
    assert "script" not in page.tags and len(page.pictures) == len(PICTURES)
    assert "<script>alert(1)</script><img src=http://example.org> ## 7 ```text &amp;" in page.words()


def test_parameters_are_the_chosen_ones_and_say_what_was_changed(folder):
    params, presets = read_yaml("params.yaml"), read_yaml("presets.yaml")
    recorded = {"train": {**params["train"], "peak_lr": 0.5}, "model.name": "micro"}
    write_text("dvc.lock", json.dumps({"stages": {"train": {"params": {"params.yaml": recorded}}}}))
    words = made_page().words()
    assert f"train.peak_lr {params['train']['peak_lr']}, was 0.5" in words
    assert "1 of them differ from those that dvc.lock records" in words
    shown = {name for rows in sections.parameters(read_workspace())["tables"] for name, _ in rows}
    pattern = re.compile(r"(sources\.stories|selections\.none|tokenizers\.bpe|models\.micro)\.")
    chosen = filter(pattern.match, flatten(presets))
    assert shown == {*flatten(params), *chosen}
    assert "models.micro.n_layer 2" in words and "models.tiny" not in words and "tinystories" not in words


def test_the_commit_and_the_files_that_differ(folder, tmp_path, monkeypatch):
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert sections.commit() == f"{head}, clean"
    made_page()
    assert sections.commit() == f"{head}, clean"  # git ignores the page
    write_text("params.yaml", Path("params.yaml").read_text() + "\n")
    assert sections.commit() == f"{head}, 1 files differ"
    monkeypatch.chdir(tmp_path)
    assert sections.commit().startswith("unknown")


def test_lengths_do_not_depend_on_the_block_size(folder, monkeypatch):
    path = Path("data/processed_datasets/validation.bin")
    tokens = open_tokens(path)
    for block in (7, 1000, pictures.BLOCK_TOKENS):
        monkeypatch.setattr(pictures, "BLOCK_TOKENS", block)
        counts, lengths = pictures.scan(path, tokens.meta)
        assert np.array_equal(counts, np.bincount(tokens.ids, minlength=tokens.vocab_size))
        assert np.array_equal(lengths, np.diff(document_spans(tokens), axis=1)[:, 0])


def test_document_lengths_of_one_split_can_be_drawn():
    draw = partial(pictures.draw_document_lengths, lengths={"validation": np.array([4])})
    assert b"<svg" in to_svg(figure_of(draw, size=(4, 3)))


def test_numbers_are_right_aligned_and_long_words_break():
    assert [report.look(value) for value in (1234.5, 7, None, "x y" * 10, "x" * 30, "")] == [
        "number", "number", "number", "", "long", ""
    ]  # fmt: skip


# The page of `dvc plots show` and `dvc plots diff`.
