"""Compiled loops: where their machine code is stored, and what is logged while there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import NumbaError
from numba.types import int64

from unity_gym.scenes import kernels
from unity_gym.specs import Array

_SCRIPT = """
import logging, sys
logging.basicConfig(level=logging.INFO)
sys.path.insert(0, sys.argv[1])
from halving import halve, quarter
import numpy as np
assert halve(np.array([3.0])) == 1.5
"""
_MODULE = """
from unity_gym.scenes.kernels import kernel
@kernel
def halve(numbers):
    if numbers[0] < 0:
        raise ValueError("a negative number")
    return numbers / 2
@kernel
def quarter(numbers):
    return halve(halve(numbers))
"""
_ONLY_FOR_COMPILING = "numba.np.linalg"


def _log_of_halving(folder: Path, then: str = "", before: str = "") -> str:
    """Return what a new process logs that halves a number and runs further code, with machine code in `folder`."""
    (folder / "halving.py").write_text(_MODULE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", before + _SCRIPT + then, str(folder)]
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True).stderr


def test_the_second_process_loads_what_the_first_one_compiled_and_logged(tmp_path: Path) -> None:
    first, second = _log_of_halving(tmp_path), _log_of_halving(tmp_path)
    assert "compiling the loops of the scene" in first
    assert str(tmp_path / "cache") in first
    assert second == ""


def test_stored_kernels_are_loaded_without_what_only_compilation_needs(tmp_path: Path) -> None:
    _log_of_halving(tmp_path, f"assert {_ONLY_FOR_COMPILING!r} in sys.modules")
    _log_of_halving(tmp_path, f"assert {_ONLY_FOR_COMPILING!r} not in sys.modules")


def test_a_stored_kernel_raises_its_error(tmp_path: Path) -> None:
    _log_of_halving(tmp_path)
    with pytest.raises(subprocess.CalledProcessError) as failure:
        _log_of_halving(tmp_path, "halve(np.array([-1.0]))")
    assert "ValueError: a negative number" in failure.value.stderr


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])  # the index of the stored types, and machine code
@pytest.mark.parametrize("damage", [lambda _: b"", lambda code: code[:-100], lambda code: code[:-500] + bytes(500)])
def test_damaged_machine_code_is_replaced(tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    _log_of_halving(tmp_path)
    (file,) = (tmp_path / "cache").rglob(f"*.{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert f"compiling again what is stored in {file.parent}, as it is damaged" in _log_of_halving(tmp_path)
    assert _log_of_halving(tmp_path) == ""


_FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"


def test_a_full_disk_is_logged(tmp_path: Path) -> None:
    log = _log_of_halving(tmp_path, before=_FULL_DISK)
    assert f"nothing can be stored in {tmp_path / 'cache'}" in log
    assert "File too large" in log


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damaged_machine_code_on_a_full_disk_is_compiled(tmp_path: Path, suffix: str) -> None:
    _log_of_halving(tmp_path)
    (file,) = (tmp_path / "cache").rglob(f"*.{suffix}")
    file.write_bytes(b"")
    assert "as it is damaged" in _log_of_halving(tmp_path, before=_FULL_DISK)


def test_a_kernel_that_calls_a_stored_one_is_compiled(tmp_path: Path) -> None:
    _log_of_halving(tmp_path)
    log = _log_of_halving(tmp_path, "assert quarter(np.array([3.0])) == 0.75")
    assert "compiling the loops of the scene" in log
    assert _log_of_halving(tmp_path, "assert quarter(np.array([3.0])) == 0.75") == ""


def test_another_version_of_numba_has_its_own_machine_code(tmp_path: Path) -> None:
    _log_of_halving(tmp_path)
    log = _log_of_halving(tmp_path, before="import numba\nnumba.__version__ = '0.1'\n")
    assert "compiling the loops of the scene" in log
    assert _log_of_halving(tmp_path) == ""


def test_a_callback_is_stored_with_the_numbers_of_its_enclosing_function() -> None:
    def times(factor: int) -> Any:
        return kernels.callback(lambda number: factor * number, int64(int64))

    callbacks = [times(factor) for factor in (2, 3, 2)]
    assert [each.ctypes(5) for each in callbacks] == [10, 15, 10]
    assert callbacks[2]._cache_hits == 1


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
