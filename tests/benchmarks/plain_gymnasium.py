"""`sb3_ext.PPO` with Stable-Baselines3's semantics, and SB3's own PPO, on plain Gymnasium environments.

python tests/benchmarks/plain_gymnasium.py                 # all, seeds 0 1 2
python tests/benchmarks/plain_gymnasium.py --environments CartPole-v1 --seeds 0 --steps 50000

Both make the same steps with the same numbers (those of RL Baselines3 Zoo, but no state-dependent exploration on
Pendulum) and networks of two layers of 64, and are judged by 100 episodes of the most likely actions afterwards. What
differs is what the policies build: SB3's tanh with orthogonal first weights, ours Swish with Unity's.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO as PlainPPO  # noqa: N811
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

from sb3_ext import PPO, SB3_COMPAT, Extrinsic

EPISODES = 100
RUNS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "steps": 100_000,
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "learning_rate": LinearSchedule(1e-3, 0, 1),
        "clip_range": LinearSchedule(0.2, 0, 1),
    },
    "Pendulum-v1": {
        "steps": 100_000,
        "n_envs": 4,
        "n_steps": 1024,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.9,
        "gae_lambda": 0.95,
        "learning_rate": 1e-3,
    },
}


def learn(kind: str, env_id: str, seed: int, steps: int) -> tuple[float, float]:
    """Learn in one environment: mean reward of an episode afterwards, and seconds of learning."""
    numbers = dict(RUNS[env_id])
    _, n_envs, n_steps, gamma = (numbers.pop(name) for name in ("steps", "n_envs", "n_steps", "gamma"))
    env = make_vec_env(env_id, n_envs, seed=seed)
    numbers |= {"seed": seed, "device": "cpu"}
    if kind == "SB3":
        model: Any = PlainPPO("MlpPolicy", env, n_steps=n_steps, gamma=gamma, ent_coef=0.0, **numbers)
    else:
        model = PPO(
            "UnityPolicy",
            env,
            buffer_size=n_steps * n_envs,
            reward_signals=[Extrinsic(gamma=gamma)],
            ent_coef=0.0,
            policy_kwargs={"hidden_units": 64, "optimizer_kwargs": {"eps": 1e-5, "fused": True}},
            **numbers,
            **SB3_COMPAT,
        )
    started = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - started
    rewards, _ = evaluate_policy(
        model, make_vec_env(env_id, n_envs, seed=1000 + seed), EPISODES, return_episode_rewards=True
    )
    env.close()
    return float(np.mean(rewards)), seconds


def main() -> None:
    """Print a table, a line a seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environments", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="instead of those of RL Baselines3 Zoo")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| environment | steps | seed | SB3's PPO | sb3_ext.PPO | seconds |\n|---|---|---|---|---|---|")
    for env_id in arguments.environments:
        rewards, steps = [], arguments.steps or RUNS[env_id]["steps"]
        for seed in arguments.seeds:
            (plain, plain_seconds), (ours, our_seconds) = (learn(kind, env_id, seed, steps) for kind in ("SB3", "ours"))
            rewards.append((plain, ours))
            print(
                f"| {env_id} | {steps} | {seed} | {plain:.1f} | {ours:.1f} | {plain_seconds:.0f}, {our_seconds:.0f} |",
                flush=True,
            )
        plain, ours = np.mean(rewards, 0)
        print(f"| {env_id} | | mean | {plain:.1f} | {ours:.1f} | |", flush=True)


if __name__ == "__main__":
    main()
