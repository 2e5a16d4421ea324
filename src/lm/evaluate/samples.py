"""Draw samples from a model and measure how much of them is copied from training or repeated."""

import dataclasses

import numpy as np
import torch

from lm.evaluate.generation import generate
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import Tokenizer
from lm.tokens.ngrams import copies, ngram_hashes

COPIED_TOKENS = 8  # equal runs of at least this length count as copied
REPEATED_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class Sample:
    """A continuation of a prompt: its ids (N,), and the text with the prompt in front."""

    prompt: str
    text: str
    ids: np.ndarray
    ended: bool  # the model wrote the end-of-text id


def draw(model: Gemma3Model, tokenizer: Tokenizer, prompt: str, max_tokens: int, seed: int, **sampling) -> Sample:
    """Continue a prompt to the end of the text or by `max_tokens`; `sampling` as `generate` takes it."""
    prompt_ids = [tokenizer.eot_id, *tokenizer.encode(prompt)]
    generator = torch.Generator(model.device).manual_seed(seed)
    ids = list(generate(model, prompt_ids, max_tokens, generator=generator, eot_id=tokenizer.eot_id, **sampling))
    ended = ids[-1:] == [tokenizer.eot_id]
    ids = ids[:-1] if ended else ids
    return Sample(prompt, prompt + tokenizer.decode(ids), np.array(ids, np.int64), ended)


def measure(samples: list[Sample], train_ids: np.ndarray) -> list[dict]:
    """Return for each sample its longest copy from train_ids (M,) in tokens, and the fractions of its
    COPIED_TOKENS-grams that train_ids does not contain and of its REPEATED_TOKENS-grams that occur in it before."""
    copied = copies([sample.ids for sample in samples], train_ids, COPIED_TOKENS)
    return [
        {"ended": sample.ended, "longest_copy_tokens": longest, "new_fraction": new,
         "repeated_fraction": repeated_fraction(sample.ids)}
        for sample, (longest, new) in zip(samples, copied, strict=True)
    ]  # fmt: skip


def repeated_fraction(ids: np.ndarray) -> float | None:
    """Return the fraction of the REPEATED_TOKENS-grams of ids (N,) that occur before; None if there are none."""
    hashes = ngram_hashes(ids, REPEATED_TOKENS)
    return 1 - len(np.unique(hashes)) / len(hashes) if len(hashes) else None


def summarize_samples(measures: list[dict]) -> dict:
    """Return the longest copy of all samples and the means of the fractions."""
    columns = {name: [entry[name] for entry in measures if entry[name] is not None] for name in measures[0]}
    mean = lambda name: float(np.mean(columns[name])) if columns[name] else None  # noqa: E731

    return {
        "samples": len(measures),
        "ended_fraction": mean("ended"),
        "longest_copy_tokens": max(columns["longest_copy_tokens"]),
        "new_8gram_fraction": mean("new_fraction"),
        "repeated_4gram_fraction": mean("repeated_fraction"),
    }


def to_markdown(samples: list[Sample], measures: list[dict], settings: str) -> str:
    """Return the samples as Markdown, each with its measures."""
    lines = ["# Samples", "", settings, ""]
    for number, (sample, entry) in enumerate(zip(samples, measures, strict=True), 1):
        end = "ended by the model" if sample.ended else f"cut after {len(sample.ids)} tokens"
        facts = [f"longest copy {entry['longest_copy_tokens']} tokens"]
        if entry["new_fraction"] is not None:
            facts.append(f"{entry['new_fraction']:.0%} of its {COPIED_TOKENS}-grams are new")
        if entry["repeated_fraction"] is not None:
            facts.append(f"{entry['repeated_fraction']:.0%} of its {REPEATED_TOKENS}-grams are repeated")
        title = f"## {number}. `{sample.prompt.strip() or '(nothing)'}`, {end}"
        lines += [title, "", "; ".join(facts) + ".", "", "```text", sample.text.strip("\n"), "```", ""]
    return "\n".join(lines)
