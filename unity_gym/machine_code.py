"""Machine code of functions that numba compiled, stored for the next process.

Import this module only where compiled functions are needed: numba takes a third of a second to import.
"""

from __future__ import annotations

import logging
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.runtime import rtsys

_log = logging.getLogger(__name__)


def store(compiled: Any) -> None:
    """Let a function take its machine code from numba's cache, or put it there when it has been compiled.

    :param compiled: Function that `numba.njit` returned, before its first call, or a `CFunc`, before its compilation.
    :raises RuntimeError: If there is no writable folder for the code.
    """
    compiled._cache = _StoredCode(compiled.__wrapped__)


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    """Files of a function, named after the version of numba: environments with other versions may use the folder."""

    @property
    def filename_base(self) -> str:
        return f"{super().filename_base}.numba-{numba.__version__}"


class _StoredCode(FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, without what only compilation needs.

    Before it loads a function, numba imports and registers its implementations of all that functions may call, which
    takes several times as long as loading. A function that has to be compiled causes that by itself.
    """

    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored compilation for argument types, None if there is none or its files are damaged."""
        rtsys.initialize(target_context)  # functions that make arrays are linked to numba's runtime
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception as error:  # any: depends on the damaged bytes
            _log.warning("compiling again what is stored in %s, as it is damaged (%r)", self.cache_path, error)
            try:
                self.flush()
            except OSError:  # a full disk
                self.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compilation, unless the disk is full or its folder is gone."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _log.warning(
                "the next process has to compile again, as nothing can be stored in %s: %s", self.cache_path, error
            )
