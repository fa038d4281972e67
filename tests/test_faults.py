"""The fault table: the error of each type of environment for each fault of a player, its delay and leftovers.

To print the whole table as Markdown:

    python tests/test_faults.py [--fault NAME ...] [--environment NAME ...] [--timeout 8]
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from stand_ins import faulty_player
from stand_ins.scene_launcher import SUFFIX
from unity_gym.errors import PlayerError, PlayerTimeoutError, ProtocolError, UnityGymError

SLACK = 3.0  # allowed seconds between a fault or timeout and its error
LAUNCH = 6.0  # allowed seconds for a successful launch, which is part of `make`


@dataclass
class Environment:
    """One type of environment; the results of its steps are not used."""

    env: Any
    reset: Callable[[], Any]
    step: Callable[[], Any]


def low_level(**options: Any) -> Environment:
    from unity_gym import environment

    env = environment.UnityEnvironment(**options)

    def step() -> None:
        name, spec = next(iter(env.behavior_specs.items()))
        env.set_actions(name, spec.action_spec.empty_action(len(env.get_steps(name)[0])))
        env.step()

    return Environment(env, env.reset, step)


def gym_env(**options: Any) -> Environment:
    from unity_gym.envs.single_agent import UnitySingleAgentEnv

    env = UnitySingleAgentEnv(no_graphics=False, **options)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return Environment(env, env.reset, step)


def vector(**options: Any) -> Environment:
    from unity_gym.envs.vector import UnityVectorEnv

    env = UnityVectorEnv(1, no_graphics=False, **options)
    return Environment(env, env.reset, lambda: env.step(env.action_space.sample()))


def vec_env(**options: Any) -> Environment:
    from sb3_ext import UnityVecEnv

    env = UnityVecEnv(no_graphics=False, **options)

    def step() -> None:
        action = env.action_space.sample()
        parts = {key: part[np.newaxis] for key, part in action.items()} if isinstance(action, dict) else [action]
        env.step(parts)  # type: ignore[arg-type]  # a hybrid action is a dict

    return Environment(env, env.reset, step)


def parallel(**options: Any) -> Environment:
    import unity_gym

    env = unity_gym.parallel_env("Unity-v0", no_graphics=False, **options)

    def step() -> None:
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        if not env.agents:
            env.reset()

    return Environment(env, env.reset, step)


ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "low-level": low_level,
    "gym": gym_env,
    "vector": vector,
    "VecEnv": vec_env,
    "parallel": parallel,
}


def no_file(_: Path) -> str:
    return "/nowhere/Game.x86_64"


def not_executable(folder: Path) -> str:
    path = Path(faulty_player.launcher(folder))
    path.chmod(stat.S_IRUSR)
    return str(path)


def no_program(folder: Path) -> str:
    path = folder / "no-program"
    path.write_bytes(b"\x7fELF, or so it says")
    path.chmod(0o755)
    return str(path)


@dataclass(frozen=True)
class Fault:
    """A fault and its expected error.

    :param error: Type of the exception.
    :param message: Regular expression of its message.
    :param waits: Whether the error is raised at the timeout, and not before.
    :param file: Function that creates the player; by default `faulty_player` with this fault.
    """

    error: type[UnityGymError]
    message: str
    waits: bool = False
    file: Callable[[Path], str] | None = None


def _timeout(message: str) -> Fault:
    return Fault(PlayerTimeoutError, message, waits=True)


NOTHING = "sent nothing for"
FAULTS = {
    "no-file": Fault(PlayerError, "There is no player", file=no_file),
    "not-executable": Fault(PlayerError, "is not executable", file=not_executable),
    "no-program": Fault(PlayerError, "Exec format error", file=no_program),
    "port-taken": Fault(PlayerError, "is taken"),
    "exit-at-start": Fault(PlayerError, "exit code 3.*something is wrong with my start"),
    "never-connect": _timeout(NOTHING),
    "never-speak": _timeout(NOTHING),
    "version-2": Fault(ProtocolError, r"communication version 2\.0\.0"),
    "hang-in-handshake": _timeout(NOTHING),
    "die-in-handshake": Fault(PlayerError, "killed by SIGKILL"),
    "no-behavior": _timeout("no behavior with an agent"),
    "no-agents": _timeout("no behavior with an agent"),
    "hang-in-reset": _timeout(NOTHING),
    "die-in-reset": Fault(PlayerError, "killed by SIGKILL"),
    "hang-in-step": _timeout(NOTHING),
    "hang-deaf": _timeout(NOTHING),
    "die-in-step": Fault(PlayerError, "killed by SIGKILL.*about to die"),
    "die-with-children": Fault(PlayerError, "killed by SIGKILL"),
    "exit-in-step": Fault(PlayerError, "exit code 7.*out of order"),
    "quit-in-step": Fault(PlayerError, "quit by itself"),
    "killed-between-steps": Fault(PlayerError, "killed by SIGKILL"),
    "stopped-between-steps": _timeout(NOTHING),
    "vanish": _timeout("request no decision"),
    "end-for-ever": _timeout("request no decision"),
    "nan-observation": Fault(ProtocolError, "agent 1: sensor 0 .*NaN"),
    "nan-reward": Fault(ProtocolError, "agent 1: the reward"),
    "infinite-group-reward": Fault(ProtocolError, "agent 1: the group reward"),
    "huge-reward": Fault(ProtocolError, r"agent 1: the reward is 1e\+25"),
    "garbage": Fault(ProtocolError, "no complete ML-Agents message"),
    "truncated": Fault(ProtocolError, "no complete ML-Agents message"),
    "empty-message": Fault(ProtocolError, "status 0"),
    "status-500": Fault(ProtocolError, "status 500"),
    "short-observation": Fault(ProtocolError, "sensor 0"),
    "new-sensor": Fault(ProtocolError, r"started with 1 sensors.*\[2\]"),
    "no-sensor": Fault(ProtocolError, r"started with 1 sensors.*\[0\]"),
    "wrong-mask": Fault(ProtocolError, "mask"),
    "twins": Fault(ProtocolError, "unique"),
    "negative-id": Fault(ProtocolError, "negative"),
    "unknown-behavior": Fault(ProtocolError, r"\['Stranger\?team=0'\] appeared before"),
    "broken-side-channel": Fault(ProtocolError, "StatsSideChannel|ends? too early|announces 100 bytes"),
    "broken-statistic": Fault(ProtocolError, "unknown aggregation 99"),
}
ENDLESS_AT_LOW_LEVEL = {"vanish", "end-for-ever"}  # there, a step is one message exchange, and each has its answer
UNREAD_AT_LOW_LEVEL = {"broken-statistic"}  # there, an unregistered channel is skipped with a warning
QUICK = {
    *((fault, "low-level") for fault in FAULTS if not FAULTS[fault].waits),
    *((fault, environment) for fault in ("die-in-step", "huge-reward") for environment in ENVIRONMENTS),
    ("vanish", "gym"),
    ("end-for-ever", "vector"),
    ("no-agents", "parallel"),
    ("hang-deaf", "VecEnv"),
}
CASES = [
    (fault, environment)
    for fault in FAULTS
    for environment in ENVIRONMENTS
    if not (environment == "low-level" and fault in ENDLESS_AT_LOW_LEVEL | UNREAD_AT_LOW_LEVEL)
]


@dataclass
class Row:
    """A row of the table."""

    fault: str
    environment: str
    call: str
    error: UnityGymError
    seconds: float
    left: list[str]


def observe(fault: str, environment: str, folder: Path, timeout: float) -> Row:
    """Run an environment with a fault, and return the observed row."""
    case = FAULTS[fault]
    is_player_fault = fault in faulty_player.FAULTS
    make_file = case.file or (lambda folder: faulty_player.launcher(folder, fault if is_player_fault else "none"))
    options: dict[str, Any] = {"file_name": make_file(folder), "timeout_wait": timeout}
    before = left_behind(folder)
    call, error, started, made = "make", None, time.monotonic(), None
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fault == "port-taken":
            options["base_port"] = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        try:
            made = ENVIRONMENTS[environment](**options)
            for number in range(4):
                call = "step" if number else "reset"
                if number == 2 and fault.endswith("between-steps"):
                    strike(signal.SIGKILL if fault.startswith("killed") else signal.SIGSTOP)
                started = time.monotonic()
                (made.step if number else made.reset)()
        except UnityGymError as raised:
            error = raised
        seconds = time.monotonic() - started
        if made is not None:
            made.env.close()
        assert error is not None, f"{fault}: {environment} noticed nothing"
    error.__traceback__ = error.__context__ = None  # they reference the environment
    del made
    deadline = time.monotonic() + 5
    while (left := [found for found in left_behind(folder) if found not in before]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return Row(fault, environment, call, error, seconds, left)


def strike(number: int) -> None:
    """Send a signal to the only player."""
    children = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # of an earlier test, and just ended
            children[child] = child.cmdline()
    (player,) = (child for child, line in children.items() if "--mlagents-port" in line and "-c" not in line)
    player.send_signal(number)
    if number == signal.SIGKILL:
        psutil.wait_procs([player], timeout=10)


def left_behind(folder: Path) -> list[str]:
    """Return the existing processes, listening ports, threads and temporary logs."""
    me = psutil.Process()
    processes = [f"process {process.pid}" for process in me.children(recursive=True)]
    processes += [
        f"orphan {process.pid}"
        for process in psutil.process_iter(["cmdline", "status"])
        if str(folder) in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
    ports = [f"port {c.laddr.port}" for c in me.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    threads = [f"thread {thread.name}" for thread in threading.enumerate() if thread.name == "unity-player-call"]
    return processes + ports + threads + [str(log) for log in Path(tempfile.gettempdir()).glob("unity-player-*")]


def check(row: Row, timeout: float) -> None:
    """Check a row against the expected error of its fault."""
    case = FAULTS[row.fault]
    assert isinstance(row.error, case.error)
    assert re.search(f"(?s){case.message}", str(row.error)), str(row.error)
    if case.file is None and row.fault != "port-taken":
        assert SUFFIX in str(row.error), "the error names the player"
    limit = SLACK + timeout * case.waits + (LAUNCH if row.call == "make" else 0)
    assert row.seconds < limit, f"{row.seconds:.1f} s, and not {limit:g}"
    assert row.left == []


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the player is a shell script")


@pytest.mark.parametrize(("fault", "environment"), [case for case in CASES if case in QUICK])
def test_a_fault_is_reported_in_time_and_leaves_no_process_or_file(
    fault: str, environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    check(observe(fault, environment, tmp_path, 10), 10)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, nargs="+", default=list(FAULTS))
    parser.add_argument("--environment", choices=ENVIRONMENTS, nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--timeout", type=float, default=8.0, help="seconds of timeout_wait")
    arguments = parser.parse_args()
    print("| fault | environment | raised by | error | seconds | left behind | |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for fault, environment in CASES:
        if fault not in arguments.fault or environment not in arguments.environment:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = folder
            verdict = ""
            try:
                row = observe(fault, environment, Path(folder), arguments.timeout)
                check(row, arguments.timeout)
            except AssertionError as error:
                verdict, wrong = f"**{str(error)[:200]!r}**", wrong + 1
            tempfile.tempdir = None
        error, left = type(row.error).__name__, ", ".join(row.left) or "nothing"
        print(
            f"| {fault} | {environment} | {row.call} | {error} | {row.seconds:.1f} | {left} | {verdict} |", flush=True
        )
    sys.exit(f"{wrong} wrong" if wrong else 0)


if __name__ == "__main__":
    main()
