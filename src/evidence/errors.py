"""Errors that a person or a program can act on: one sentence, and an exit status each."""


class EvidenceError(Exception):
    """State the file or argument, what was found, what it must be, and what to do, in one sentence."""

    exit_code = 1


class WrongInput(EvidenceError):
    """An argument or a table is wrong."""

    exit_code = 2


class Forged(EvidenceError):
    """A file differs from what it must be: edited, taken out, or not made by the code that it names."""

    exit_code = 4


class RunFailed(EvidenceError):
    """A run failed for a reason that is not the candidate's: the machine, the network, the base."""

    exit_code = 5


class CandidateCrashed(EvidenceError):
    """The candidate's own run failed, or gave no losses that can be judged."""

    exit_code = 6


class Busy(EvidenceError):
    """Another judge works in this repository."""

    exit_code = 75
