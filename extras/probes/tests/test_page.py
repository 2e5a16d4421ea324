"""The page: each token with its text, the colour of its loss and its figures; no script, no other file."""

import math
import re
from html import unescape
from pathlib import Path

import pytest

from extras.probes.page import chance, label, render, show, tokens_of

TEXTS = ["<b>", " cat", "\n", "\t", "", " &", "\x00 a", " \n  "]
LOSSES = [0.1, 1.0, 2.0, 5.0, 8.0, 19.0, 0.0, 3.0]
PAIRS = {"pairs": 500, "documents": 85, "accuracy": 0.496, "accuracy_interval": [0.4234, 0.5687]}
DETAILS: dict = {
    "weights_sha256": "0123456789ab", "phenomena": {}, "minimal_pairs": {"repeated object": PAIRS},
    "by_frequency": [{"from": 0, "to": 9, "nats_per_token": 3.5}],
    "by_length": [{"tokens_from": 4, "bits_per_byte": 1.5, "bits_per_byte_se": None}],
    "calibration": {"tokens": 9, "accuracy": 0.2, "mean_probability": 0.3, "expected_calibration_error": 0.1,
                    "bins": [{"from": 0.0, "to": 0.5, "tokens": 9, "probability": 0.3, "accuracy": 0.2}]},
    "against": {"repeated object": {"pairs": 10, "p_value": 0.0078}},
}  # fmt: skip


def page_of(has_regret: bool = False, texts: list[str] = TEXTS) -> str:
    """Return the page of one place and one typical document of these tokens."""
    excerpt = {"document": 7, "document_tokens": 1234, "texts": texts, "loss_nats": LOSSES[: len(texts)]}
    if has_regret:
        excerpt["regret_nats"] = [nats / 10 for nats in excerpt["loss_nats"]]
    expected = [{"text": "</code>\n", "probability": 0.25}, {"text": " of", "probability": 0.002}]
    place = excerpt | {"token": 100, "marked": 1, "rank": 1500, "alternatives": expected}
    excerpts = {"has_regret": has_regret, "places": [place], "documents": [excerpt | {"quantile": 0.5}]}
    return render(DETAILS, excerpts, Path("data/other"))


def test_each_token_has_its_text_and_the_colour_of_its_loss():
    block = re.search(r'<div class="text">(.*?)</div>', page_of(), re.S)[1]
    found = re.findall(r'<span class="([^"]*)" title="([^"]*)">(.*?)</span>', block, re.S)
    assert re.sub(r"<span.*?</span>", "", block, flags=re.S) == "…  …"
    assert [unescape(text) for *_, text in found] == ["<b>", " cat", "↵\n", "→\t", "▫", " &", "␀ a", "·↵\n··"]
    assert [classes for classes, *_ in found] == ["l0", "l1 marked", "l2", "l3", "l4", "l5", "l0", "l3"]
    assert found[5][1] == "loss 19.00 nats, probability 1 in 180,000,000"


def test_the_figures_are_words_on_the_page():
    words = " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page_of(), flags=re.S)).split())
    words = words.replace("\N{NO-BREAK SPACE}", " ")
    assert "1. ·cat , 1.00 nats" in words and "Token 101 of 1,234 of document 7; loss 1.00 nats" in words
    assert "rank 1,500. Expected: </code>↵ 25 %, ·of 1 in 500." in " ".join(words.split()).replace(" ,", ",")
    assert "repeated object 500 85 0.496 0.423 to 0.569" in words and "repeated object 10 0.008" in words
    assert "4 1.500 –" in words and "error is 10 %" in words and "phenomenon" not in words


def test_the_page_needs_no_script_and_no_other_file():
    page = page_of()
    assert not re.search(r"<script|<link|<img|<iframe|url\(|@import|\son\w+=|src=|href=", page)
    assert "prefers-color-scheme: dark" in page and "<b>" not in page and "\x00" not in page


def test_stories_have_the_colour_of_the_regret_and_code_letters_of_equal_width():
    (token,) = [each for each in tokens_of({"texts": ["x"], "loss_nats": [19.0], "regret_nats": [1.9]})]
    assert token["level"] == 2 and "regret 1.90 nats" in token["line"]
    assert "Largest regrets" in page_of(has_regret=True) and "Largest losses" in page_of()
    assert "tab-size" in page_of() and "tab-size" not in page_of(texts=["one", " word"])


@pytest.mark.parametrize(("bits", "level"), [(-0.5, 0), (0.99, 0), (1.01, 1), (7.9, 3), (12.1, 5), (40, 5)])
def test_colours_begin_at_whole_bits(bits, level):
    assert tokens_of({"texts": ["x"], "loss_nats": [bits * math.log(2)]})[0]["level"] == level


def test_signs_and_small_chances():
    assert [show(text) for text in ("  ", "\r\n", "a\fb", " a", "")] == ["··", "␍↵\n", "a␌b", " a", "▫"]
    assert [label(text) for text in ("\n  x", "")] == ["↵··x", "▫"]
    shown = [chance(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0.996, 0.54, 0.051, 0.0099, 1.2e-7, 0.0)]
    assert shown == ["99.6 %", "54 %", "5.1 %", "1 in 100", "1 in 8,300,000", "about 0"]
