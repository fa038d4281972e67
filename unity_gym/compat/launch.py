"""Run a script as `__main__` in such a way that the processes it starts install the same modules.

`multiprocessing` with spawn or forkserver starts a new interpreter, which first imports the main module of its parent.
The name of this module is therefore that of `unity_gym.compat.script`, and its contents are those of the script. An
environment variable contains the script and the options of `install`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from types import CodeType
from typing import Any

from unity_gym.compat.modules import install
from unity_gym.errors import UnityGymError

_VARIABLE = "UNITY_GYM_COMPAT_SCRIPT"
_SCRIPT = "unity_gym.compat.script"


def run_script(script: str, arguments: list[str], install_options: dict[str, Any]) -> None:
    """Run a script as `__main__`, after `install`.

    :param script: File of the script.
    :param arguments: Arguments of the script.
    :param install_options: Keyword arguments of `install` in the processes that the script starts.
    """
    launch = {"argv0": script, "file": os.path.abspath(script), "install_options": install_options}
    os.environ[_VARIABLE] = json.dumps(launch)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_module(_SCRIPT, run_name="__main__", alter_sys=True)


def script_code(namespace: dict[str, Any]) -> CodeType:
    """Return the code of the script, and prepare the module that executes it.

    :param namespace: Names of that module. They become those of a main module, except for `__spec__`, by which started
        processes find it.
    :raises UnityGymError: If the module was not started by `python -m unity_gym.compat`.
    """
    if _VARIABLE not in os.environ:
        raise UnityGymError(f"{_SCRIPT} must be started by `python -m unity_gym.compat SCRIPT`")
    launch = json.loads(os.environ[_VARIABLE])
    if namespace["__name__"] == "__main__":
        # multiprocessing's name for it; set too early if multiprocessing was imported before the script started
        sys.modules["__mp_main__"] = sys.modules["__main__"]
    else:
        install(**launch["install_options"])
    sys.argv[0] = launch["argv0"]  # runpy replaces it by the module's file
    file: str = launch["file"]
    del namespace["script_code"]
    namespace.update(__doc__=None, __file__=file, __package__="")
    return compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
