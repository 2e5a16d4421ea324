"""Draw samples from a model and measure how much of them is copied from training or repeated."""

import dataclasses

import numpy as np
import torch

from lm.evaluate.copies import Copy, find_copies, text_pieces
from lm.evaluate.generation import generate
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import Tokenizer
from lm.tokens.ngrams import ngram_hashes

COPIED_TOKENS = 8  # equal runs of at least this length count as copied
REPEATED_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class Sample:
    """A continuation of a prompt: its ids (N,)."""

    prompt: str
    ids: np.ndarray
    ended: bool  # the model wrote the end-of-text id


def begin_text(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids of a text that begins with a prompt: the end-of-text id, then those of the prompt."""
    return [tokenizer.eot_id, *tokenizer.encode(prompt)]


def draw(model: Gemma3Model, tokenizer: Tokenizer, prompt: str, max_tokens: int, seed: int, **sampling) -> Sample:
    """Continue a prompt to the end of the text, by at most `max_tokens` and at most to the model's max_seq_len.

    `sampling` as `generate` takes it. The prompt leaves room for one token at least.
    """
    prompt_ids = begin_text(tokenizer, prompt)
    num_tokens = min(max_tokens, model.config.max_seq_len - len(prompt_ids))
    generator = torch.Generator().manual_seed(seed)
    ids = list(generate(model, prompt_ids, num_tokens, generator=generator, eot_id=tokenizer.eot_id, **sampling))
    ended = ids[-1:] == [tokenizer.eot_id]
    ids = ids[:-1] if ended else ids
    return Sample(prompt, np.array(ids, np.int64), ended)


def measure(samples: list[Sample], train_ids: np.ndarray) -> list[dict]:
    """Return measures of how much each sample copies from train_ids (M,) and repeats.

    `copies`: its spans of at least COPIED_TOKENS that training contains; `longest_copy_tokens`: 0 without any.
    `new_fraction`: of its COPIED_TOKENS-grams, those in no copy. `repeated_fraction`: of its REPEATED_TOKENS-grams,
    those that occur in it before.
    """
    found = find_copies([sample.ids for sample in samples], train_ids, COPIED_TOKENS)
    return [
        {
            "ended": sample.ended,
            "copies": copies,
            "longest_copy_tokens": max((copy.length for copy in copies), default=0),
            "new_fraction": new_fraction(len(sample.ids), copies),
            "repeated_fraction": repeated_fraction(sample.ids),
        }
        for sample, copies in zip(samples, found, strict=True)
    ]


def new_fraction(num_tokens: int, copies: list[Copy]) -> float | None:
    """Return the fraction of the COPIED_TOKENS-grams of a text that are in no copy; None if there are none."""
    is_new = np.ones(max(0, num_tokens - COPIED_TOKENS + 1), bool)
    for copy in copies:
        is_new[copy.begin : copy.end - COPIED_TOKENS + 1] = False
    return float(is_new.mean()) if len(is_new) else None


def repeated_fraction(ids: np.ndarray) -> float | None:
    """Return the fraction of the REPEATED_TOKENS-grams of ids (N,) that occur before; None if there are none."""
    hashes = ngram_hashes(ids, REPEATED_TOKENS)
    return 1 - len(np.unique(hashes)) / len(hashes) if len(hashes) else None


def summarize_samples(measures: list[dict]) -> dict:
    """Return the longest copy of all samples and the means of the fractions; without samples all are None."""

    def mean(name: str) -> float | None:
        values = [entry[name] for entry in measures if entry[name] is not None]
        return float(np.mean(values)) if values else None

    return {
        "samples": len(measures),
        "ended_fraction": mean("ended"),
        "longest_copy_tokens": max((entry["longest_copy_tokens"] for entry in measures), default=None),
        "new_8gram_fraction": mean("new_fraction"),
        "repeated_4gram_fraction": mean("repeated_fraction"),
    }


def samples_record(samples: list[Sample], measures: list[dict], settings: str, tokenizer: Tokenizer) -> dict:
    """Return the content of samples.json; a piece of text has the tokens of the longest copy that holds it, 0: new."""
    entries = []
    for number, (sample, entry) in enumerate(zip(samples, measures, strict=True), 1):
        prompt = sample.prompt.strip() or "(no prompt)"
        end = "ended by the model" if sample.ended else f"cut after {len(sample.ids)} tokens"
        facts = [f"longest copy {entry['longest_copy_tokens']} tokens"]
        if entry["new_fraction"] is not None:
            facts.append(f"{entry['new_fraction']:.0%} of its {COPIED_TOKENS}-grams are new")
        if entry["repeated_fraction"] is not None:
            facts.append(f"{entry['repeated_fraction']:.0%} of its {REPEATED_TOKENS}-grams are repeated")
        entries.append(
            {
                "title": f"{number}. `{prompt}`, {end}",
                "facts": "; ".join(facts) + ".",
                "prompt": sample.prompt,
                "pieces": text_pieces(sample.ids, entry["copies"], tokenizer),
                "ids": sample.ids.tolist(),
            }
        )
    return {"settings": settings, "samples": entries}


def to_markdown(record: dict) -> str:
    """Return a `samples_record` as Markdown, each sample with its measures."""
    lines = ["# Samples", "", record["settings"], ""]
    for sample in record["samples"]:
        text = sample["prompt"] + "".join(text for text, _ in sample["pieces"])
        lines += [f"## {sample['title']}", "", sample["facts"], "", "```text", text.strip("\n"), "```", ""]
    return "\n".join(lines)
