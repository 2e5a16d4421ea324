"""What a model writes by itself, and how much of it is copied or repeats itself."""

import dataclasses

import numpy as np
import torch

from lm.evaluate.generation import generate
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import Tokenizer
from lm.tokens.ngrams import copies, ngram_hashes

COPIED_TOKENS = 8  # from so many on, equal tokens count as copied
REPEATED_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class Sample:
    """A continuation: its prompt, ids (N,) behind it, whether it ended by itself; text with the prompt."""

    prompt: str
    text: str
    ids: np.ndarray
    ended: bool


def draw(
    model: Gemma3Model, tokenizer: Tokenizer, prompt: str, max_tokens: int, temperature: float, top_k: int, seed: int
) -> Sample:
    """Continue one prompt from one seed, until the end of the text or for max_tokens."""
    prompt_ids = [tokenizer.eot_id, *tokenizer.encode(prompt)]
    generator = torch.Generator(model.device).manual_seed(seed)
    settings = {"temperature": temperature, "top_k": top_k, "eot_id": tokenizer.eot_id}
    ids = list(generate(model, prompt_ids, max_tokens, generator=generator, **settings))
    ended = ids[-1:] == [tokenizer.eot_id]
    ids = ids[:-1] if ended else ids
    return Sample(prompt, prompt + tokenizer.decode(ids), np.array(ids, np.int64), ended)


def judge(samples: list[Sample], train_ids: np.ndarray) -> list[dict]:
    """For each sample: its longest copy of the training text (M,) in tokens, and the shares of its runs of
    COPIED_TOKENS that are new and of its runs of REPEATED_TOKENS that stood in it before."""
    found = copies([sample.ids for sample in samples], train_ids, COPIED_TOKENS)
    return [
        {
            "ended": sample.ended,
            "longest_copy_tokens": longest,
            "new_share": new,
            "repeated_share": repeated(sample.ids),
        }
        for sample, (longest, new) in zip(samples, found, strict=True)
    ]


def repeated(ids: np.ndarray) -> float | None:
    """The share of runs of REPEATED_TOKENS in ids (N,) that stood there before; None if there is no run."""
    hashes = ngram_hashes(ids, REPEATED_TOKENS)
    return 1 - len(np.unique(hashes)) / len(hashes) if len(hashes) else None


def summarize(judged: list[dict]) -> dict:
    """The judgements as figures: the longest copy of all, means of the shares."""

    def mean(name: str) -> float | None:
        values = [entry[name] for entry in judged if entry[name] is not None]
        return float(np.mean(values)) if values else None

    return {
        "samples": len(judged),
        "ended_share": mean("ended"),
        "longest_copy_tokens": max(entry["longest_copy_tokens"] for entry in judged),
        "new_8gram_share": mean("new_share"),
        "repeated_4gram_share": mean("repeated_share"),
    }


def to_markdown(samples: list[Sample], judged: list[dict], settings: str) -> str:
    """The samples with their judgements beside them."""
    lines = ["# Samples", "", settings, ""]
    for number, (sample, entry) in enumerate(zip(samples, judged, strict=True), 1):
        end = "ends by itself" if sample.ended else f"cut after {len(sample.ids)} tokens"
        shares = [
            f"{entry[name]:.0%} {words}"
            for name, words in (("new_share", "of its 8-grams new"), ("repeated_share", "of its 4-grams repeated"))
            if entry[name] is not None
        ]
        facts = [f"longest copy {entry['longest_copy_tokens']} tokens", *shares]
        title = f"## {number}. `{sample.prompt.strip() or '(nothing)'}`, {end}"
        lines += [title, "", "; ".join(facts) + ".", "", "```text", sample.text.strip("\n"), "```", ""]
    return "\n".join(lines)
