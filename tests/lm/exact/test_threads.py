"""The number of threads is the number of cores that other processes leave free."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from lm.exact import threads
from lm.exact.threads import ThreadTuner


@pytest.fixture(autouse=True)
def own_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(4)
    yield
    threads.set_num_threads(before, "fast")


@pytest.fixture
def machine(monkeypatch):
    """A machine of four cores, of which other processes use `foreign` while time passes."""
    machine = SimpleNamespace(foreign=0.0, now=100.0, busy_s=50.0)

    def pass_time(seconds: float) -> None:
        machine.now += seconds
        machine.busy_s += seconds * machine.foreign

    machine.pass_time = pass_time

    monkeypatch.setattr(threads, "_usable_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(threads, "_foreign_cpu_seconds", lambda: machine.busy_s)
    monkeypatch.setattr(threads.time, "monotonic", lambda: machine.now)
    monkeypatch.setattr(threads.time, "sleep", pass_time)
    return machine


@pytest.mark.parametrize(
    ("most", "foreign", "wanted", "warnings"),
    [
        (4, 0.4, 4, []),
        (4, 0.6, 3, ["other processes use 0.6 of 4 cores; this one takes 3 threads instead of 4 until they end"]),
        (4, 9.0, 1, ["other processes use 9.0 of 4 cores; this one takes 1 thread instead of 4 until they end"]),
        (3, 1.0, 3, []),  # one core was free
        (3, 2.0, 2, ["other processes use 2.0 of 4 cores; this one takes 2 threads instead of 3 until they end"]),
    ],
)
def test_others_get_their_cores_and_one_thread_remains(machine, most, foreign, wanted, warnings):
    torch.set_num_threads(most)
    machine.foreign = foreign

    cores = ThreadTuner()

    assert torch.get_num_threads() == cores.threads == wanted
    assert cores.warnings() == warnings


def test_the_number_of_threads_follows_the_others(machine):
    cores = ThreadTuner()
    for foreign, seconds, wanted in ((2.0, 1.0, 4), (2.0, 2.0, 2), (0.0, 1.0, 2), (0.0, 3.0, 4)):
        machine.foreign = foreign
        machine.pass_time(seconds)
        cores.adapt()
        assert torch.get_num_threads() == wanted, (foreign, seconds)


@pytest.mark.parametrize(("adapts", "environment"), [(False, {}), (True, {"OMP_NUM_THREADS": "4"})])
def test_a_fixed_number_of_threads_stays(machine, monkeypatch, adapts, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    machine.foreign = 2.0
    cores = ThreadTuner(adapts=adapts)
    machine.pass_time(9.0)
    cores.adapt()
    assert torch.get_num_threads() == 4 and cores.warnings() == []


def test_where_nothing_adapts_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(threads, "_foreign_cpu_seconds", pytest.fail)
    ThreadTuner(adapts=False).adapt()


@pytest.mark.parametrize("usable", [[5, 7], [0, 2]])
def test_cores_that_the_system_does_not_list_end_no_run(monkeypatch, usable):
    """An LXC container lists two cores, and the process may run on those with the numbers 5 and 7 of the host."""
    listed = psutil.cpu_times(percpu=True)[:1] * 2
    monkeypatch.setattr(threads.psutil, "cpu_times", lambda percpu: listed)
    monkeypatch.setattr(threads, "_usable_cores", lambda: usable)
    cores = ThreadTuner()
    assert torch.get_num_threads() == 4 and not cores.adapts and cores.warnings() == []


def test_all_threads_return_when_the_cores_of_a_run_are_no_longer_listed(machine, monkeypatch):
    machine.foreign = 2.0
    cores = ThreadTuner()
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(threads, "_foreign_cpu_seconds", lambda: None)
    machine.pass_time(9.0)
    cores.adapt()
    assert torch.get_num_threads() == 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pins a process to a core")
@pytest.mark.skipif(os.nice(0) > 0, reason="time with lowered priority (nice) does not count")
def test_the_time_of_a_real_process_counts(monkeypatch):
    core = psutil.Process().cpu_affinity()[-1]
    monkeypatch.setattr(threads, "_usable_cores", lambda: [core])
    before = threads._foreign_cpu_seconds()
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
        its = psutil.Process(other.pid).cpu_times()
        counted = threads._foreign_cpu_seconds() - before
        other.kill()
    assert counted > 0.8 * (its.user + its.system) > 0


@pytest.mark.parametrize(("numerics", "of_torch"), [("exact", 1), ("fast", 3)])
def test_in_exact_numerics_torch_has_one_thread_beside_those_of_the_loops(machine, numerics, of_torch):
    machine.foreign = 1.0
    ThreadTuner(numerics)
    assert (threads.get_num_threads(), torch.get_num_threads()) == (3, of_torch)


@pytest.mark.parametrize("second", ["exact", "fast"])
@pytest.mark.parametrize("first", ["exact", "fast"])
def test_a_second_run_in_one_process_has_all_threads(machine, first, second):
    """The first one leaves torch with one thread, or with those that other processes left free."""
    machine.foreign = 3.0
    ThreadTuner(first)
    machine.foreign = 0.0

    assert ThreadTuner(second).threads == threads.get_num_threads() == 4


def test_a_number_that_a_person_sets_between_two_runs_counts(machine):
    ThreadTuner("exact")
    torch.set_num_threads(2)

    assert ThreadTuner("exact").threads == 2
