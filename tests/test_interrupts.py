"""Ctrl-C at any moment of a step or reset: the environment continues, or raises that it needs reset(), which works.

To run it with interrupts at random moments in all types of environments:

    python tests/test_interrupts.py [--count 500] [--seed 0]
"""

from __future__ import annotations

import argparse
import collections
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import unity_gym
from stand_ins.faulty_player import BEHAVIOR, launcher
from unity_gym.environment import UnityEnvironment
from unity_gym.errors import NotReadyError
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool

OURS = str(Path(unity_gym.__file__).parent)
IN_TIME = 5.0  # seconds that a step or reset may take after an interrupt


class LowLevel:
    """`UnityEnvironment`. `step` and `reset` return the number of the player's steps since its last reset."""

    def __init__(self, folder: Path) -> None:
        self.env = UnityEnvironment(launcher(folder), timeout_wait=20)

    def reset(self) -> float:
        self.env.reset()
        return float(self.env.get_steps(BEHAVIOR)[0].obs[0][0, 0])

    def step(self) -> float:
        self.env.set_actions(BEHAVIOR, self.env.behavior_specs[BEHAVIOR].action_spec.empty_action(1))
        self.env.step()
        return float(self.env.get_steps(BEHAVIOR)[0].obs[0][0, 0])

    def close(self) -> None:
        self.env.close()


class Pool(LowLevel):
    """`PlayerPool` of two players."""

    def __init__(self, folder: Path) -> None:
        options = PlayerOptions(file_name=launcher(folder), no_graphics=False, timeout_wait=20)
        self.env: Any = PlayerPool(options, 2)

    def _ticks(self) -> float:
        first, second = self.env.tables[BEHAVIOR].observations[0][:, 0].tolist()
        assert first == second
        return first

    def reset(self) -> float:
        self.env.reset()
        return self._ticks()

    def step(self) -> float:
        table = self.env.tables[BEHAVIOR]
        self.env.step({BEHAVIOR: table.spec.action_spec.empty_action(len(table))})
        ticks = self._ticks()
        assert table.reward.tolist() == [ticks, ticks]
        assert table.agent_id.tolist() == [1, 1]
        return ticks


class Single(LowLevel):
    """`gymnasium.make`."""

    def __init__(self, folder: Path) -> None:
        self.env: Any = gym.make("Unity-v0", **self._options(folder))

    @staticmethod
    def _options(folder: Path) -> dict[str, Any]:
        return {"file_name": launcher(folder), "no_graphics": False, "timeout_wait": 20}

    def reset(self) -> float:
        return float(self.env.reset()[0][0])

    def step(self) -> float:
        observation, reward, *_ = self.env.step(np.zeros(1, np.float32))
        assert reward == observation[0]
        return float(reward)


class Vector(Single):
    """`gymnasium.make_vec` with two players."""

    def __init__(self, folder: Path) -> None:
        self.env: Any = gym.make_vec("Unity-v0", num_envs=2, n_instances=2, **self._options(folder))

    def reset(self) -> float:
        return float(self.env.reset()[0][0, 0])

    def step(self) -> float:
        _, reward, *_ = self.env.step(np.zeros((2, 1), np.float32))
        assert reward[0] == reward[1]
        return float(reward[0])


class Parallel(Single):
    """`unity_gym.parallel_env`."""

    def __init__(self, folder: Path) -> None:
        self.env: Any = unity_gym.parallel_env("Unity-v0", **self._options(folder))

    def reset(self) -> float:
        ((observation,), _) = (results.values() for results in self.env.reset())
        return float(observation[0])

    def step(self) -> float:
        rewards = self.env.step({agent: np.zeros(1, np.float32) for agent in self.env.possible_agents})[1]
        return float(*rewards.values())


class VecEnv(Single):
    """`UnityVecEnv` with two players."""

    def __init__(self, folder: Path) -> None:
        from sb3_ext import UnityVecEnv

        self.env: Any = UnityVecEnv(n_instances=2, **self._options(folder))

    def reset(self) -> float:
        return float(self.env.reset()[0, 0])

    def step(self) -> float:
        _, rewards, *_ = self.env.step(np.zeros((2, 1), np.float32))
        assert rewards[0] == rewards[1]
        return float(rewards[0])


KINDS = [LowLevel, Pool, Single, Vector, Parallel, VecEnv]


@contextmanager
def interrupted_at(event: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at this line of our code."""
    left = event

    def trace(frame: FrameType, kind: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        left -= kind == "line"
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt after a time, as Ctrl-C does."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_interrupted(call: Callable[[], float], interruption: Any) -> bool:
    try:
        with interruption:
            call()
    except KeyboardInterrupt:
        return True
    return False


def recover(env: LowLevel) -> str:
    """Continue after an interrupt, with a reset if the error requires it; return which of the two."""
    started, message = time.monotonic(), ""
    try:
        now = env.step()
    except NotReadyError as error:
        message = str(error)
    if message:
        assert "reset()" in message
        assert time.monotonic() - started < 1, "the error is raised at once"
        assert env.reset() == 0
        now = env.step()
        assert now == 1
    assert env.step() == now + 1
    assert time.monotonic() - started < IN_TIME
    return "was reset" if message else "continued"


@pytest.mark.skipif(sys.platform == "win32", reason="the player is a shell script")
@pytest.mark.parametrize("kind", [LowLevel, Pool, Single])
@pytest.mark.parametrize("method", ["step", "reset"])
def test_an_interrupt_at_any_line_of_unity_gym_leaves_an_environment_that_works(
    tmp_path: Path, kind: type[LowLevel], method: str
) -> None:
    env = kind(tmp_path)
    env.reset()
    line, done = 0, collections.Counter[str]()
    while is_interrupted(getattr(env, method), interrupted_at(line)):
        done[recover(env)] += 1
        line += 1 if kind is LowLevel else 9
    assert done["was reset"] > 2
    env.close()


@pytest.mark.skipif(sys.platform == "win32", reason="the player is a shell script")
@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_at_random_moments_leave_an_environment_that_works(tmp_path: Path, kind: type[LowLevel]) -> None:
    assert interrupt_at_random(kind, tmp_path, 5, 0).total() == 5


def interrupt_at_random(kind: type[LowLevel], folder: Path, count: int, seed: int) -> collections.Counter[str]:
    """Interrupt steps and resets `count` times; return how often each continuation was needed."""
    rng = np.random.default_rng(seed)
    env = kind(folder)
    env.reset()
    longest = {}
    for method in ("step", "reset"):
        started = time.perf_counter()
        for _ in range(5):
            getattr(env, method)()
        longest[method] = (time.perf_counter() - started) / 5
    done = collections.Counter[str]()
    while done.total() < count:
        method = str(rng.choice(["step", "reset"], p=[0.75, 0.25]))
        if is_interrupted(getattr(env, method), interrupted_after(rng.uniform(1e-5, longest[method]))):
            done[recover(env)] += 1
    env.close()
    return done


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # before this folder, which has a folder sb3_ext, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="interrupts in all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for number, kind in enumerate(KINDS):
        with tempfile.TemporaryDirectory() as folder:
            count = (arguments.count + number) // len(KINDS)
            done = interrupt_at_random(kind, Path(folder), count, arguments.seed + number)
        print(f"{kind.__name__:10} {done.total():4} interrupts: {dict(done)}", flush=True)


if __name__ == "__main__":
    main()
