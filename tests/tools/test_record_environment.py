"""The processor and the versions that a result names are those that computed it, also under an emulator."""

import pytest

from support import ROOT
from tools.record import environment

INTEL = {"vendor_id": "GenuineIntel", "flags": "avx avx2 avx512f"}


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "features", "expected"),
    [
        ("x86_64", INTEL, {"avx": True, "avx2": True, "avx512f": True}, None),
        ("x86_64", INTEL, {"avx": True, "avx2": True, "avx512f": False}, "haswell"),
        ("x86_64", {"vendor_id": "GenuineIntel", "flags": "avx"}, {"avx": True, "avx2": False}, None),
        ("aarch64", INTEL, {}, "aarch64"),
        ("aarch64", {"CPU implementer": "0x41"}, {}, None),
    ],
    ids=["own", "lacks AVX-512", "own old one", "ARM on x86", "own ARM"],
)
def test_an_emulated_processor_is_named(machine, cpuinfo, features, expected, monkeypatch):
    monkeypatch.setattr(environment.platform, "machine", lambda: machine)
    monkeypatch.setattr(environment, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(environment, "get_host_cpu_name", lambda: "haswell")

    assert environment.emulated_processor(cpuinfo) == expected


def test_the_versions_are_of_all_packages_that_decide_bits():
    lines = (ROOT / "requirements/bits.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}

    assert {"torch", "numpy", "numba", "llvmlite"} <= pinned
    assert set(environment.versions()) == pinned | {"python", "matplotlib", "dvc"}
