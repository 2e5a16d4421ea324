"""The page of excerpts: every token with its text, the colour of its loss and its figures; no script, no other file."""

import math
import re
from html import unescape

import pytest

from lm.core.files import write_json
from tools.common import paths
from tools.report.cli import render
from tools.report.reading import chance, label, level_of, name_level, reading, show
from tools.report.workspace import Workspace

TEXTS = ["<b>", " cat", "\n", "\t", "", " &", "\x00 a", " \n  "]
LOSSES = [0.1, 1.0, 2.0, 5.0, 8.0, 19.0, 0.0, 3.0]


def page_of(tmp_path, monkeypatch, has_regret=False, texts=TEXTS):
    """Write excerpts and return the page about them."""
    monkeypatch.chdir(tmp_path)
    paths.EXCERPTS.parent.mkdir(parents=True, exist_ok=True)
    excerpt = {"document": 7, "document_tokens": 1234, "texts": texts, "loss_nats": LOSSES[: len(texts)]}
    if has_regret:
        excerpt["regret_nats"] = [nats / 10 for nats in excerpt["loss_nats"]]
    found = [{"text": "</code>\n", "probability": 0.25}, {"text": " of", "probability": 0.002}]
    place = excerpt | {"token": 100, "marked": 1, "rank": 1500, "alternatives": found}
    document = excerpt | {"quantile": 0.5}
    write_json(paths.EXCERPTS, {"has_regret": has_regret, "places": [place], "documents": [document]})
    values = reading(Workspace({}, {}, {paths.EVALUATION_DETAILS: {"tokens": 1}}, {}, []))
    assert values is not None
    return render("reading.html.j2", values | {"title": "mine", "report": "report.html"})


def tokens_of(page):
    """Return (classes, title, text) of the tokens of the first excerpt."""
    block = re.search(r'<div class="text">(.*?)</div>', page, re.S)[1]
    assert re.sub(r"<span.*?</span>", "", block, flags=re.S) in ("", "…  …")
    return re.findall(r'<span class="([^"]*)" title="([^"]*)">(.*?)</span>', block, re.S)


def test_each_token_has_its_text_and_the_colour_of_its_loss(tmp_path, monkeypatch):
    found = tokens_of(page_of(tmp_path, monkeypatch))
    assert [unescape(text) for *_, text in found] == ["<b>", " cat", "↵\n", "→\t", "▫", " &", "␀ a", "·↵\n··"]
    assert [classes for classes, *_ in found] == ["l0", "l1 marked", "l2", "l3", "l4", "l5", "l0", "l3"]
    assert found[5][1] == "loss 19.00 nats (27.4 bits), probability 1 in 180,000,000"


def test_the_figures_are_on_the_page_without_hovering(tmp_path, monkeypatch):
    page = page_of(tmp_path, monkeypatch)
    words = " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.S)).split())
    assert "1. ·cat , 1.00 nats" in words and "Token 101 of 1,234 of document 7. Rank 1,500" in words
    assert "</code>↵ 25 % ·of 1 in 500" in words.replace("\N{NO-BREAK SPACE}", " ")
    assert page.count("<summary>") == 2 and "↵ 2.00 → 5.00 ▫ 8.00" in words  # the table
    assert "0 – 1 bits 0.0 – 0.7 nats" in words and "12 bits or more 8.3 nats or more" in words


def test_the_page_has_no_script_and_needs_no_other_file(tmp_path, monkeypatch):
    page = page_of(tmp_path, monkeypatch)
    assert not re.search(r"<script|<link|<img|<iframe|url\(|@import|\son\w+=", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"report.html", "#place-1"}
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page
    assert "<b>" not in page and "\x00" not in page


def test_stories_have_a_second_colour_for_the_regret(tmp_path, monkeypatch):
    page = page_of(tmp_path, monkeypatch, has_regret=True)
    assert tokens_of(page)[5][0] == "l5 r2" and "regret 1.90 nats (2.7 bits)" in tokens_of(page)[5][1]
    assert "#by-regret:checked ~ main .r2" in page and "Largest regrets" in page
    assert "regret" not in page_of(tmp_path, monkeypatch)


def test_text_laid_out_by_spaces_has_letters_of_equal_width(tmp_path, monkeypatch):
    fixed = ".text { font: 0.85rem/1.7 ui-monospace"
    assert fixed in page_of(tmp_path, monkeypatch)
    assert fixed not in page_of(tmp_path, monkeypatch, texts=["one", " word"])


def test_without_an_evaluation_there_is_no_page(tmp_path, monkeypatch):
    page_of(tmp_path, monkeypatch)
    assert reading(Workspace({}, {}, {}, {}, [])) is None
    paths.EXCERPTS.unlink()
    assert reading(Workspace({}, {}, {paths.EVALUATION_DETAILS: {"tokens": 1}}, {}, [])) is None


@pytest.mark.parametrize(("bits", "level"), [(-0.5, 0), (0, 0), (0.99, 0), (1.01, 1), (7.9, 3), (12.1, 5), (40, 5)])
def test_colours_begin_at_whole_bits(bits, level):
    assert level_of(bits * math.log(2)) == level
    assert name_level(3) == ("4 – 8 bits", "2.8 – 5.5 nats")


def test_what_cannot_be_seen_has_a_sign():
    assert [show(text) for text in ("  ", "\r\n", "a\fb", " a", "")] == ["··", "␍↵\n", "a␌b", " a", "▫"]
    assert [label(text) for text in ("\n  x", "")] == ["↵··x", "▫"]


def test_small_chances_are_fractions():
    shown = [chance(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0.996, 0.54, 0.051, 0.0099, 1.2e-7, 0.0)]
    assert shown == ["99.6 %", "54 %", "5.1 %", "1 in 100", "1 in 8,300,000", "about 0"]
