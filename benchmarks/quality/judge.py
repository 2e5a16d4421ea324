"""Simulate nights of judged changes: how many false ones are kept, and how many real gains are found.

    PYTHONPATH=src:benchmarks python benchmarks/quality/judge.py [--nights 2000]

`nights.py` describes a night. Writes results/judge.json after each world.
"""

import argparse

from quality.nights import GAINS, RIVALS, TRIES, WORLDS, Night, judged_night, nights
from result import RESULTS, write_result

GAINS_OF = {"no_gains": (0, 0.0), "gains_of_1_sd": (GAINS, 1.0), "gains_of_2_sd": (GAINS, 2.0)}
# One standard deviation is tried in some worlds.
WITH_SMALL_GAINS = ("small_changes", "all_changes", "unpaired")


def main() -> None:
    """Simulate nights without and with real gains: the judge in each world, rivals with seeds that do not correlate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=2000)
    count = parser.parse_args().nights
    found = {"judge": {}, "rivals": {}}
    tasks = [("judge", world, judged_night, world) for world in WORLDS]
    tasks += [("rivals", name, rule, "unpaired") for name, rule in RIVALS.items()]
    for kind, name, rule, world in tasks:
        found[kind][name] = simulate(rule, count, world, WORLDS[world])
        print(kind, name, found[kind][name], flush=True)
        write_result(RESULTS / "judge.json", tries=TRIES, gains=GAINS, nights=count, **found)


def simulate(rule, count: int, world: str, night: Night) -> dict[str, dict[str, float]]:
    """Return what a rule keeps in nights without and with gains."""
    found = {}
    for name, (num_gains, gain) in GAINS_OF.items():
        if gain != 1.0 or world in WITH_SMALL_GAINS:
            found[name] = nights(rule, count, night._replace(num_gains=num_gains, gain=gain))
    return found


if __name__ == "__main__":
    main()
