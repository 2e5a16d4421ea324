"""Whether the process that started this one is gone; lm.core.environment imports this module first."""

import os


def _started_by() -> int:
    """Return the id of the process that started this one, 0 if it is gone already.

    DVC starts a stage in its own session. An orphan is given to a process of another one.
    """
    parent = os.getppid()
    is_leader = os.getsid(0) == os.getpid()
    try:
        is_gone = "DVC_STAGE" in os.environ and not is_leader and os.getsid(parent) != os.getsid(0)
    except ProcessLookupError:
        is_gone = True
    return 0 if is_gone else parent


# The imports that follow take seconds, in which the parent may die.
_parent = _started_by()


def _note_again() -> None:
    global _parent
    _parent = os.getppid()


os.register_at_fork(after_in_child=_note_again)


def is_gone() -> bool:
    """Return True if the process that started this one has ended."""
    return os.getppid() != _parent
