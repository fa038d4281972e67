"""Learning of an LSTM to recall a cue: updates that cut all trajectories, and updates of finished trajectories.

python tests/benchmarks/cue.py --seeds 0 1 2 3                # up to a minute per run

16 agents see a cue in the first 3 of 15 to 32 decisions and must repeat it in the last one. The right action gives 1,
any other one -0.1, and each decision -0.002. Agents that guess get 0.4 at best. Sequences have 32 decisions, as many as
each agent makes per update. The figures are the timesteps until the mean return of 10,240 timesteps is above 0.75.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_ext import PPO

AGENTS, CUES, ACTIONS = 16, 2, 5
SHOWN, SHORTEST, LONGEST = 3, 15, 32  # decisions
NOISE = 2  # features without meaning
WINDOW, ENOUGH = 10_240, 0.75


class Cue(VecEnv):
    """The task, for `AGENTS` agents at once. `returns` are those of the ended episodes."""

    def __init__(self, seed: int) -> None:
        super().__init__(AGENTS, spaces.Box(-np.inf, np.inf, (CUES + 2 + NOISE,), np.float32), spaces.Discrete(ACTIONS))
        self._rng = np.random.default_rng(seed)
        self._cue, self._step, self._length = (np.zeros(AGENTS, int) for _ in range(3))
        self._return = np.zeros(AGENTS)
        self.returns: list[float] = []

    def _start(self, rows: np.ndarray) -> None:
        self._cue[rows] = self._rng.integers(CUES, size=len(rows))
        self._length[rows] = self._rng.integers(SHORTEST, LONGEST + 1, len(rows))
        self._step[rows] = self._return[rows] = 0

    def _observe(self) -> np.ndarray:
        observations = self._rng.normal(size=(AGENTS, CUES + 2 + NOISE)).astype(np.float32)
        observations[:, :CUES] = np.eye(CUES)[self._cue] * (self._step < SHOWN)[:, np.newaxis]
        observations[:, CUES] = self._step / self._length
        observations[:, CUES + 1] = self._step == self._length - 1
        return observations

    def reset(self) -> np.ndarray:
        """Start all episodes."""
        self._start(np.arange(AGENTS))
        return self._observe()

    def step_async(self, actions: np.ndarray) -> None:
        """Set the actions of `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Let all agents act."""
        dones = self._step == self._length - 1
        rewards = np.where(dones, np.where(self._actions == 1 + self._cue, 1, -0.1), 0) - 0.002
        self._return += rewards
        self._step += 1
        infos: list[dict[str, Any]] = [{} for _ in range(AGENTS)]
        if dones.any():
            final = self._observe()
            for row in np.flatnonzero(dones):
                infos[row] = {"terminal_observation": final[row], "TimeLimit.truncated": False}
            self.returns += self._return[dones].tolist()
            self._start(np.flatnonzero(dones))
        return self._observe(), rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Do nothing."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002
        """See `VecEnv`; SB3 asks for the render mode."""
        if attr_name == "render_mode":
            return [None] * AGENTS
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002
        """Raise an error, as there is nothing to set."""
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *_: Any, **__: Any) -> list[Any]:
        """Raise an error, as there are no such methods."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """Return that nothing is."""
        return [False] * AGENTS


def timesteps(rollout: str, seed: int, limit: int) -> int | None:
    """Return the timesteps until the mean return is above `ENOUGH`; None if they are more than `limit`."""
    env = Cue(seed)
    model = PPO(
        "UnityPolicy",
        env,
        1e-3,
        buffer_size=512,
        batch_size=128,
        time_horizon=32,
        ent_coef=0.01,
        learning_rate_schedule="constant",
        rollout=rollout,
        policy_kwargs={"hidden_units": 32, "num_layers": 1, "memory_size": 32, "sequence_length": 32},
        seed=seed,
        device="cpu",
    )
    while model.num_timesteps < limit:
        env.returns.clear()
        model.learn(WINDOW, reset_num_timesteps=False)
        if np.mean(env.returns) > ENOUGH:
            return model.num_timesteps
    return None


def main() -> None:
    """Run what the command line names, and print a line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--rollouts", nargs="+", default=["cut", "trajectories"])
    parser.add_argument("--limit", type=int, default=100_000, help="timesteps of a run at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        for rollout in arguments.rollouts:
            reached = timesteps(rollout, seed, arguments.limit)
            print(
                f"seed {seed}, {rollout}: {f'more than {arguments.limit}' if reached is None else reached}", flush=True
            )


if __name__ == "__main__":
    main()
