"""Decorators that compile the loops of the scenes, and the cache of their machine code.

A kernel is a function over arrays and numbers, with plain loops over areas and agents, that numba compiles at its first
call. The state of a scene is in arrays that Python code may read and change between calls.

Machine code is stored in the first writable folder of: `NUMBA_CACHE_DIR`, the package's own `__pycache__`,
`$XDG_CACHE_HOME/unity_gym` (by default in `~/.cache`). Without a writable folder, each process compiles again.
A change to any file of the scenes invalidates all stored code, because kernels contain the kernels that they call.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from unity_gym.errors import PlayerError

try:
    import numba
    from numba.core import event
    from numba.core.ccallback import CFunc
    from numba.core.sigutils import normalize_signature
    from numba.types import unliteral

    from unity_gym.machine_code import store
except ImportError as error:  # pragma: no cover
    raise PlayerError("the embedded scenes need numba: install it with pip install 'unity-gym[scenes]'") from error

Function = TypeVar("Function", bound=Callable[..., Any])
_log = logging.getLogger(__name__)
_SCENES = Path(__file__).resolve().parent


def kernel(function: Function) -> Function:
    """Compile a function at its first call per combination of argument types, or load its stored machine code.

    A kernel may call other kernels, use NumPy arrays, and take and return named tuples. Its arguments should have the
    same types and memory layouts at every call: each new combination is compiled again.

    :param function: Function to compile.
    :return: Compiled function.
    """
    return _compile_at_call(function, can_make_arrays=True)


def inner_kernel(function: Function) -> Function:
    """Compile like `kernel`, for functions that make, return and copy no arrays: no `np.empty`, `a + b`, `a[k] = b[k]`.

    Numba then counts no references to the arrays that they use. In loops over a few values, reference counts would take
    most of the time, and their code most of the compilation time.

    :param function: Function to compile.
    :return: Compiled function.
    """
    return _compile_at_call(function, can_make_arrays=False)


def _compile_at_call(function: Function, can_make_arrays: bool) -> Function:
    compiled: Any = numba.njit(error_model="numpy", no_cfunc_wrapper=True, _nrt=can_make_arrays)(function)
    call_template = compiled.get_call_template

    def get_call_template(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return the template of a call with plain types; numba would compile one version per literal number."""
        by_name = {name: unliteral(argument) for name, argument in keywords.items()}
        return call_template(tuple(map(unliteral, arguments)), by_name)

    compiled.get_call_template = get_call_template
    _store(compiled)
    return cast(Function, compiled)


def callback(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function that C code calls, or load its stored machine code.

    Numbers that are not in the sources, such as those of an installed library, belong in variables of an enclosing
    function: their values decide whether stored code is used.

    :param function: Function to compile.
    :param signature: Its numba types.
    :return: numba's `CFunc`.
    """
    compiled = CFunc(function, normalize_signature(signature), locals={}, options={"error_model": "numpy"})
    _store(compiled)
    compiled.compile()
    return compiled


def _store(compiled: Any) -> None:
    if CACHE is not None:
        numba.config.CACHE_DIR, before = str(CACHE), numba.config.CACHE_DIR
        store(compiled)
        numba.config.CACHE_DIR = before


class _CompilationLog(event.Listener):  # type: ignore[misc]
    """Logs once that kernels are being compiled, which takes some seconds."""

    def __init__(self) -> None:
        self._is_logged = False

    def on_start(self, _: Any) -> None:
        if not self._is_logged:
            self._is_logged = True
            where = f"the next start takes them from {CACHE}" if CACHE else "there is no folder to store them in"
            _log.info("compiling the loops of the scene, which takes some seconds; %s", where)

    def on_end(self, _: Any) -> None:
        pass


def _cache_folder() -> Path | None:
    """Return a writable folder for the machine code of the current sources; remove those of earlier sources."""
    sources = hashlib.sha256()
    for file in sorted(_SCENES.rglob("*.py")):
        sources.update(file.read_bytes())
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(str(_SCENES).encode()).hexdigest()[:8]
    configured = os.environ.get("NUMBA_CACHE_DIR")
    parents = [_SCENES / "__pycache__", xdg / "unity_gym" / place]
    for parent in [Path(configured) / place, *parents] if configured else parents:
        folder = parent / f"kernels-{sources.hexdigest()[:16]}"
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True)
                for old in parent.glob("kernels-*"):
                    if old != folder:
                        shutil.rmtree(old, ignore_errors=True)
            if os.access(folder, os.W_OK):
                return folder
        except OSError:
            continue
    return None


CACHE = _cache_folder()
"""Folder of the machine code; None if no folder is writable."""
event.register("numba:compile", _CompilationLog())
