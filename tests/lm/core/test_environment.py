"""NumPy and Matplotlib are told which code to run; a person's own settings of NumPy are kept."""

import importlib
import os

from lm.core import environment


def test_a_persons_own_settings_of_numpy_are_kept_and_pictures_need_no_screen(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Zen")
    monkeypatch.delenv("NPY_DISABLE_CPU_FEATURES", raising=False)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # of a terminal of Jupyter

    importlib.reload(environment)

    assert os.environ["OPENBLAS_CORETYPE"] == "Zen"
    assert "AVX512_ICL" in os.environ["NPY_DISABLE_CPU_FEATURES"]
    assert os.environ["MPLBACKEND"] == "agg"
