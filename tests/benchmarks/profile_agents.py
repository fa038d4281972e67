"""Where a step's time goes as agents multiply: Python function calls and time per step, and the top of the profile.

    python tests/benchmarks/profile_agents.py [--steps 20] [--top 12] [AGENTS ...]

A Python loop over agents shows as calls per exchange that grow with them. With more agents, more of a step's five
ticks see an episode end, and each end is an exchange; so the calls per step level off at five exchanges. The list of
infos that SB3 asks for, and PettingZoo's dicts, are built in C (`map`, `zip`, `dict`).
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import unity_gym
from sb3_ext import UnityVecEnv

SCENE = "Unity-3DBall-v0"  # two continuous actions an agent


def stepping(kind: str, agents: int) -> tuple[Any, Callable[[], Any]]:
    """An environment after its reset, and a function that steps it with all actions zero."""
    zeros = np.zeros((agents, 2), np.float32)
    if kind == "vector":
        envs = gym.make_vec(SCENE, num_envs=agents)
        envs.reset()
        return envs, lambda: envs.step(zeros)
    if kind == "vec_env":
        vec_env = UnityVecEnv(SCENE, num_areas=agents)
        vec_env.reset()
        return vec_env, lambda: vec_env.step(zeros)
    game = unity_gym.parallel_env(SCENE, num_areas=agents)
    game.reset()

    def step() -> None:
        if not game.agents:
            game.reset()
        game.step(dict(zip(game.agents, zeros, strict=False)))

    return game, step


def calls_of(stats: pstats.Stats, function: str | None = None) -> int:
    """Return the calls of the functions of this name; None for all functions."""
    entries = stats.stats.items()  # type: ignore[attr-defined]  # missing in the stubs
    calls: list[int] = [count for (_, _, name), (_, count, *_) in entries if function in (None, name)]
    return sum(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", type=int, default=[10, 100, 1000])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--top", type=int, default=12, help="lines of the profile to print, for the most agents")
    arguments = parser.parse_args()
    rows, profiles = [], []
    for kind in ("vector", "vec_env", "parallel"):
        for agents in arguments.agents:
            env, step = stepping(kind, agents)
            step()
            started = time.perf_counter()
            for _ in range(arguments.steps):
                step()
            seconds = (time.perf_counter() - started) / arguments.steps
            profile = cProfile.Profile()
            for _ in range(arguments.steps):
                profile.runcall(step)
            env.close()
            stats = pstats.Stats(profile)
            calls, exchanges = calls_of(stats), calls_of(stats, "_finish_exchange")
            rows.append(
                (kind, agents, exchanges / arguments.steps, calls / arguments.steps, calls / exchanges, seconds * 1e3)
            )
        profiles.append((kind, agents, stats))
    for kind, agents, stats in profiles:
        print(f"\n{kind}, {agents} agents, {arguments.steps} steps:")
        stats.sort_stats("tottime").print_stats(arguments.top)
    print("| environment | agents | exchanges per step | function calls per step | per exchange | ms per step |")
    print("|---|---|---|---|---|---|")
    for kind, agents, *numbers in rows:
        print(f"| {kind} | {agents} | {{:.1f}} | {{:.0f}} | {{:.0f}} | {{:.1f}} |".format(*numbers))


if __name__ == "__main__":
    main()
