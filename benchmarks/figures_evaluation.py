"""The figures of docs/metrics.md: how uncertain a result is, and what a model has learned."""

from recorded import read

RUNS = {"default": "the default model", "stories": "the model of `make stories`"}


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


def phenomena() -> str:
    """docs/metrics.md: the excess by phenomenon of `make stories`, on the way and at its end, and of the longer run."""
    first, *longer = read("phenomena")["runs"].values()
    ends = [first["states"][-1], *(run["states"][-1] for run in longer)]
    last = ends[0]["phenomena"]
    names = sorted(last, key=lambda name: -last[name]["excess_bits_per_story"])
    columns = {"phenomenon": names}
    for title, key in (("tokens", "tokens_per_story"), ("surprisal", "surprisal_bits_per_story")):
        columns[title] = [f"{last[name][key]:.1f}" for name in names]
    for state in (*first["states"][:-1], *ends):
        found = [state["phenomena"][name] for name in names]
        columns[f"excess after {state['tokens'] / 1e6:.1f} M"] = [
            f"{each['excess_bits_per_story']:.2f}" + (f" ± {each['excess_se']:.2f}" if state in ends else "")
            for each in found
        ]
    sentences = []
    for state in ends:
        excess = {name: each["excess_bits_per_story"] for name, each in state["phenomena"].items()}
        most, total = max(excess, key=lambda name: excess[name]), sum(excess.values())
        sentences.append(
            f"After {state['tokens'] / 1e6:.1f} M tokens the excess is {total:.1f} bits per story, of which "
            f"{excess[most] / total:.0%} is in one phenomenon: {most}."
        )
    rows = [columns, ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "\n".join([*sentences, "", *(f"| {' | '.join(row)} |" for row in rows)])


def minimal_pairs() -> str:
    """docs/metrics.md: the accuracy of the recorded runs on minimal pairs."""
    rows = ["| model | kind | pairs | documents | accuracy | 95 % interval |", "|---|---|--:|--:|--:|---|"]
    for name, label in RUNS.items():
        for kind, found in read(name)["evaluation"]["minimal_pairs"].items():
            low, high = found["accuracy_interval"]
            cells = (
                label, kind, f"{found['pairs']:,}", f"{found['documents']:,}", f"{found['accuracy']:.1%}",
                f"{low:.1%} to {high:.1%}",
            )  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def not_learned() -> str:
    """docs/metrics.md: what the loss alone would not tell of the model of `make stories`."""
    run = read("stories")["evaluation"]
    excess = {name: each["excess_bits_per_story"] for name, each in run["phenomena"].items()}
    runs = read("phenomena")["runs"]
    names, later_names = (each["minimal_pairs"]["repeated name: new name"]["accuracy"] for each in runs.values())
    objects = runs["stories_long"]["minimal_pairs"]["repeated object"]["accuracy"]
    millions = runs["stories_long"]["states"][-1]["tokens"] / 1e6
    return (
        f"The loss of the model of `make stories` is only {run['entropy']['excess_fraction']:.0%} above the entropy. "
        f"But the model has not learned to copy a name: {excess['repeated name'] / sum(excess.values()):.0%} of its "
        f"excess is in repeated names, and it prefers the name of the story to one that the story does not mention in "
        f"{names:.0%} of the pairs. Chance is 50%. It learns this late: after {millions:.1f} M tokens it is right in "
        f"{later_names:.0%} of these pairs, but only in {objects:.0%} of those of repeated objects."
    )


def calibration() -> str:
    """docs/metrics.md: how sure the recorded models are."""
    sentences = []
    for name, label in RUNS.items():
        found = read(name)["evaluation"]["calibration"]
        sentences.append(
            f"The most likely token of {label} has a mean probability of "
            f"{found['mean_probability']:.1%} and is right in {found['accuracy']:.1%} of the places; the error is "
            f"{found['expected_calibration_error']:.1%}."
        )
    return " ".join(sentences)


FRAGMENTS = {
    "standard-error": standard_error, "contamination": contamination, "side-by-side": side_by_side,
    "stories": stories, "phenomena": phenomena, "minimal-pairs": minimal_pairs, "not-learned": not_learned,
    "calibration": calibration,
}  # fmt: skip
