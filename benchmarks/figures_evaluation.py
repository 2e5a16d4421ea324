"""The figures of docs/metrics.md: how uncertain a result is, and what a model has learned."""

from recorded import read


def standard_error() -> str:
    """docs/metrics.md: how uncertain the figure of the default run is."""
    run = read("default")
    return (
        f"The default validation text has {run['evaluation']['documents']} documents of very unequal length, so the "
        f"standard error of its bits per byte is {run['metrics']['bpb_se']:.2f}."
    )


def contamination() -> str:
    """docs/metrics.md: how much of the default validation text also occurs in the training text."""
    run = read("default")
    found, clean = run["metrics"], run["evaluation"].get("clean")
    text = (
        f"In the default corpus, {found['leaked_fraction']:.0%} of the validation tokens are part of a 13-gram that "
        f"also occurs in the training text: copied licences and generated code."
    )
    if not clean:
        return text
    return (
        f"{text} On the {clean['documents']} documents with less than a fifth of such tokens, the same model has "
        f"{clean['bits_per_byte']:.3f} bits per byte instead of {found['bits_per_byte']:.3f}."
    )


def side_by_side() -> str:
    """docs/metrics.md: what the overlapping windows are worth."""
    found = read("default")["evaluation"]
    return (
        f"With windows side by side, the default model has {found['bits_per_byte_side_by_side']:.3f} bits per byte; "
        f"with overlapping windows it has {found['bits_per_byte']:.3f}."
    )


def stories() -> str:
    """docs/metrics.md: the run on text of known entropy."""
    run = read("stories")
    entropy, found = run["evaluation"]["entropy"], run["evaluation"]
    return (
        f"A story has {entropy['floor_bits_per_document']:.1f} bits of entropy on average, or "
        f"{entropy['floor_bits_per_byte']:.3f} bits per byte. The model of `make stories` needs "
        f"{found['bits_per_byte']:.3f} bits per byte: {entropy['excess_bits_per_document']:.1f} bits, or "
        f"{entropy['excess_fraction']:.0%}, more."
    )


FRAGMENTS = {
    "standard-error": standard_error, "contamination": contamination, "side-by-side": side_by_side,
    "stories": stories,
}  # fmt: skip
