"""PPO learns Unity's 3DBall: train, evaluate over 100 episodes, save the model and a picture of the learning curve.

python examples/learn_3dball.py                                         # the embedded player: no Unity needed
python examples/learn_3dball.py --file-name builds/3DBall.x86_64        # a build of your own
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ext import UnityVecEnv

mpl.use("Agg")
import matplotlib.pyplot as plt


class LearningCurve(BaseCallback):
    """Notes every finished episode: (agent-steps so far, return)."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes.append((self.num_timesteps, info["episode"]["r"]))
        return True

    def draw(self, path: Path) -> None:
        """Write the curve as a picture: each episode, and the mean of the last 50."""
        steps, returns = np.array(self.episodes).reshape(-1, 2).T
        _, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        axes.plot(steps, returns, ".", markersize=3, alpha=0.3, label="episode")
        if len(returns):
            means = [returns[max(0, end - 50) : end].mean() for end in range(1, len(returns) + 1)]
            axes.plot(steps, means, label="mean of the last 50")
        axes.set(xlabel="agent-steps", ylabel="episode return", title="PPO on Unity-3DBall-v0", ylim=(-5, 105))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        plt.savefig(path, dpi=120)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--timesteps", type=int, default=300_000, help="agent-steps to train for (default: %(default)s)"
    )
    parser.add_argument("--file-name", help="a Unity build of 3DBall in place of the embedded player")
    parser.add_argument("--eval-episodes", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/3DBall"), help="default: %(default)s")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the network is small, and the player wants a core too

    player = {"file_name": arguments.file_name} if arguments.file_name else {}
    env = VecNormalize(UnityVecEnv("Unity-3DBall-v0", seed=arguments.seed, **player), norm_reward=False)
    try:
        model = PPO(
            "MlpPolicy",
            env,
            n_steps=1000,
            batch_size=250,
            n_epochs=4,
            learning_rate=lambda progress: 5e-4 * progress,
            policy_kwargs={"net_arch": [64, 64], "log_std_init": -0.5},
            seed=arguments.seed,
        )
        curve = LearningCurve()
        started = time.perf_counter()
        model.learn(arguments.timesteps, callback=curve, progress_bar=True)
        trained = time.perf_counter()
        model.save(arguments.output / "model")
        env.save(str(arguments.output / "normalization.pkl"))
        curve.draw(arguments.output / "learning_curve.png")
        env.training = False
        mean, spread = evaluate_policy(model, env, n_eval_episodes=arguments.eval_episodes, deterministic=True)
    finally:
        env.close()
    print(f"trained {model.num_timesteps} agent-steps in {trained - started:.0f} s")
    print(f"mean reward over {arguments.eval_episodes} episodes: {mean:.1f} +- {spread:.1f} (the maximum is 100)")
    print(f"wrote model.zip, normalization.pkl and learning_curve.png to {arguments.output}")


if __name__ == "__main__":
    main()
