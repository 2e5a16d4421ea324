"""Compare the accuracy of two runs on the minimal pairs that both have scored."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from extras.probes.pair_choice import Pair, credit_of


class PairedAccuracy(NamedTuple):
    """The pairs of one kind that runs A and B have in common.

    `only_a` counts the places where A has more pairs right, `only_b` those where B has. A place nearly always has one
    pair; a tie of the two words is half a pair. p_value is that of McNemar's exact test.
    """

    num_pairs: int
    accuracy_a: float
    accuracy_b: float
    only_a: int
    only_b: int
    p_value: float


def compare_pairs(a: pa.Table, b: pa.Table) -> dict[str, PairedAccuracy]:
    """Return kind → accuracies and test, given two tables of minimal_pairs.parquet made from the same text."""
    credits_a, credits_b = _credits(a), _credits(b)
    common = [pair for pair in credits_a if pair in credits_b]
    kinds: dict[str, list[Pair]] = {}
    for pair in common:
        kinds.setdefault(pair.kind, []).append(pair)
    return {kind: _compare_kind(pairs, credits_a, credits_b) for kind, pairs in kinds.items()}


def _credits(table: pa.Table) -> dict[Pair, float]:
    """Return pair → 1 if it is right, 1/2 for a tie, else 0."""
    pairs = map(Pair, *(table[name].to_pylist() for name in Pair._fields))
    credit = credit_of(table["right_nats"].to_numpy(), table["wrong_nats"].to_numpy())
    return dict(zip(pairs, credit.tolist(), strict=True))


def _compare_kind(pairs: list[Pair], credits_a: dict[Pair, float], credits_b: dict[Pair, float]) -> PairedAccuracy:
    """Return the figures of the pairs of one kind."""
    of_a, of_b = (np.array([each[pair] for pair in pairs]) for each in (credits_a, credits_b))
    _, place = np.unique([(pair.document, pair.character) for pair in pairs], axis=0, return_inverse=True)
    difference = np.bincount(place, of_b - of_a)
    only_a, only_b = int((difference < 0).sum()), int((difference > 0).sum())
    return PairedAccuracy(len(pairs), float(of_a.mean()), float(of_b.mean()), only_a, only_b, mcnemar(only_a, only_b))


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: a fair coin falls so unevenly, or more so.

    Source: the binomial test of the discordant pairs (Fagerland, Lydersen and Laake 2013).
    """
    num_tosses, tail, ways = only_a + only_b, 0, 1
    for heads in range(min(only_a, only_b) + 1):
        tail += ways
        ways = ways * (num_tosses - heads) // (heads + 1)  # of num_tosses, heads + 1 are heads
    return min(1.0, 2 * tail / 2**num_tosses)
