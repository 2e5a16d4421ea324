"""The number of threads is the number of cores that other processes leave free."""

import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from lm.exact import threads
from lm.exact.threads import ThreadTuner


@pytest.fixture(autouse=True)
def own_threads(monkeypatch):
    """Let a run begin with four threads of torch."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(4)
    yield
    threads.set_num_threads(before, "fast")


class Machine:
    """What the system says of a machine of four cores, of which other processes use `foreign` while time passes."""

    def __init__(self, monkeypatch):
        self.foreign = 0.0
        self.now_s = 100.0
        self.busy_s = 50.0
        self.usable_cores = [0, 1, 2, 3]
        self.num_listed_cores = 4
        this_process = SimpleNamespace(
            cpu_affinity=lambda: self.usable_cores,
            cpu_times=lambda: SimpleNamespace(user=7.0, system=1.0),
        )
        monkeypatch.setattr(psutil, "Process", lambda: this_process)
        monkeypatch.setattr(psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self.pass_time)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.busy_s += seconds * self.foreign

    def cpu_times(self, percpu: bool) -> list[SimpleNamespace]:
        """Return the time that each listed core was busy, for others and for this process."""
        user_s = (self.busy_s + 7.0) / self.num_listed_cores
        system_s = 1.0 / self.num_listed_cores
        return [SimpleNamespace(user=user_s, system=system_s)] * self.num_listed_cores


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


def test_others_have_their_cores_when_a_run_begins(machine):
    torch.set_num_threads(3)
    machine.foreign = 2.0

    tuner = ThreadTuner()

    assert torch.get_num_threads() == 2
    (warning,) = tuner.warnings()
    assert warning.startswith("other processes use 2.0 of 4 cores; this one takes 2 thread")


def test_the_number_of_threads_follows_the_others_every_two_seconds(machine):
    machine.foreign = 0.4  # less than half a core
    tuner = ThreadTuner()
    assert tuner.warnings() == []

    for foreign, seconds, wanted in (
        (2.0, 1.0, 4),
        (2.0, 2.0, 2),
        (0.0, 1.0, 2),
        (0.0, 3.0, 4),
        (9.0, 3.0, 1),
    ):
        machine.foreign = foreign
        machine.pass_time(seconds)
        tuner.adapt()
        assert torch.get_num_threads() == wanted, (foreign, seconds)


@pytest.mark.parametrize("fixed_by", ["numerics whose bits change", "a person"])
def test_a_fixed_number_of_threads_stays(machine, monkeypatch, fixed_by):
    if fixed_by == "a person":
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
    machine.foreign = 2.0

    tuner = ThreadTuner(adapts=fixed_by == "a person")
    machine.pass_time(9.0)
    tuner.adapt()

    assert torch.get_num_threads() == 4


def test_cores_that_the_system_does_not_list_end_no_run(machine):
    """An LXC container lists two cores, and the process may run on those with the numbers 0 and 2 of the host."""
    machine.num_listed_cores = 2
    machine.usable_cores = [0, 2]

    tuner = ThreadTuner()

    assert torch.get_num_threads() == 4
    assert tuner.warnings() == []


@pytest.mark.parametrize(("numerics", "of_torch"), [("exact", 1), ("fast", 3)])
def test_in_exact_numerics_torch_has_one_thread_beside_those_of_the_loops(machine, numerics, of_torch):
    machine.foreign = 1.0

    ThreadTuner(numerics)

    assert threads.get_num_threads() == 3
    assert torch.get_num_threads() == of_torch
