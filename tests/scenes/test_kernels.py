"""Compiled loops: where their machine code is stored, and what is logged while there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaError

from unity_gym.scenes import kernels
from unity_gym.specs import Array

_SCRIPT = """
import logging, sys
logging.basicConfig(level=logging.INFO)
sys.path.insert(0, sys.argv[1])
from doubling import double
assert double(3) == 6
"""
_MODULE = """
from unity_gym.scenes.kernels import kernel
@kernel
def double(number):
    return 2 * number
"""


def test_the_second_process_loads_what_the_first_one_compiled_and_logged(tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(_MODULE)
    logs = []
    for _ in range(2):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        run = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
        logs.append(run.stderr)
    assert "compiling the loops of the scene" in logs[0]
    assert str(tmp_path / "cache") in logs[0]
    assert logs[1] == ""


def test_a_read_only_installation_stores_machine_code_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only = tmp_path / "read_only"
    read_only.write_text("")  # a file, in which no folder can be made, even by an administrator
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernels, "_SCENES", read_only)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = kernels._cache_folder()
    assert folder is not None
    assert folder.is_dir()
    assert folder.is_relative_to(tmp_path / "unity_gym")
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only))
    assert kernels._cache_folder() is None


def test_changed_sources_replace_the_stored_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernels, "_SCENES", tmp_path)
    (tmp_path / "bodies.py").write_text("1")
    before = kernels._cache_folder()
    assert before == kernels._cache_folder()
    (tmp_path / "bodies.py").write_text("2")
    after = kernels._cache_folder()
    assert before is not None
    assert after is not None
    assert after != before
    assert not before.exists()


def test_literal_numbers_in_calls_cause_one_compilation() -> None:
    @kernels.inner_kernel
    def scaled(values: Array, index: int, factor: float) -> float:
        return float(values[index] * factor)

    @kernels.kernel
    def total(values: Array) -> float:
        return scaled(values, 0, 2.0) + scaled(values, 1, 3.0) + scaled(values, index=2, factor=4.0)

    assert total(np.arange(3.0)) == 11
    assert len(scaled.overloads) == 1  # type: ignore[attr-defined]


def test_an_inner_kernel_that_makes_an_array_is_not_compiled() -> None:
    @kernels.inner_kernel
    def squares(values: Array) -> float:
        return float((values * values).sum())

    with pytest.raises(NumbaError, match="NRT required"):
        squares(np.arange(3.0))
