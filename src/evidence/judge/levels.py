"""The level at which the next judgement keeps a change: LORD++, an online procedure that controls false discoveries.

Of many changes that change nothing, one in twenty has p ≤ 0.05. So each judgement has its own, smaller level, and all
levels together spend FALSE_RATE. A change that is kept earns some of it back, because it shows that real gains are
among those tried (Javanmard and Montanari 2018, Annals of Statistics 46; the sharper form is that of Ramdas et al.
2017, arXiv 1710.00499). In a night in which no change helps, the chance to keep one is at most FALSE_RATE, whatever
the judgements have in common, such as their base. In other nights at most FALSE_RATE of those kept are false on
average; the proof of this asks for independent judgements, and a simulation holds it for a shared base
(benchmarks/results/judge.json).
"""

from collections.abc import Sequence

FALSE_RATE = 0.05
FIRST_RATE = FALSE_RATE / 2  # what the levels before the first kept change spend; the rest is earned by keeping it
EXPECTED_TRIES = 100  # judgements of a night; together they get half of the sum of all levels


def share(number: int) -> float:
    """Return the share of a sum that judgement `number` = 1, 2, … after its beginning gets; all shares add up to 1.

    It is N / ((N + n - 1) (N + n)), the difference of N / (N + n - 1) and N / (N + n).
    """
    return EXPECTED_TRIES / ((EXPECTED_TRIES + number - 1) * (EXPECTED_TRIES + number))


def next_level(earned: Sequence[bool]) -> float:
    """Return the level of the judgement after these; `earned` says of each whether it raises later levels."""
    number = len(earned) + 1
    level = FIRST_RATE * share(number)
    earning = [i for i, earns in enumerate(earned, start=1) if earns]
    for order, earning_number in enumerate(earning):
        rate = FALSE_RATE - FIRST_RATE if order == 0 else FALSE_RATE
        level += rate * share(number - earning_number)
    return level
