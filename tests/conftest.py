"""The fixtures of support, and a Slurm where it is installed."""

import pytest

from support.fixtures import finished  # noqa: F401
from support.slurm import missing_commands, running_slurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """A running Slurm of two nodes, node0 and node1, each with four processors and two GPUs in name only."""
    if missing := missing_commands():
        pytest.skip(f"not installed: {', '.join(missing)} (PYTHONPATH=src:tests python -m support.slurm installs them)")
    with running_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm
