"""Train PPO on 3DBall until it is steadily at the maximal return, keep the best policy, and evaluate it.

python examples/learn_3dball.py                                         # the embedded player: no Unity needed
python examples/learn_3dball.py --file-name builds/3DBall.x86_64        # a build of your own
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ext import PPO, UnityVecEnv

mpl.use("Agg")
import matplotlib.pyplot as plt

MAXIMUM = 100.0
EVALUATION_EPISODES = 24  # two per agent
STEADY = 3  # evaluations in a row at the maximum


class StopWhenSteady(BaseCallback):
    """Ends the training after `STEADY` evaluations in a row at the maximum; of equal policies the latest is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._in_a_row = 0

    def _on_step(self) -> bool:
        assert isinstance(self.parent, EvalCallback)
        if self.parent.last_mean_reward >= self.parent.best_mean_reward:
            self.model.save(f"{self.parent.best_model_save_path}/best_model")
        self._in_a_row = self._in_a_row + 1 if self.parent.last_mean_reward >= MAXIMUM - 0.01 else 0
        return self._in_a_row < STEADY


def draw(folder: Path) -> None:
    """Draw the returns of the evaluations (`evaluations.npz`) to `learning_curve.png`."""
    data = np.load(folder / "evaluations.npz")
    mean, std = data["results"].mean(axis=1), data["results"].std(axis=1)
    _, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(data["timesteps"], mean, marker="o")
    axes.fill_between(data["timesteps"], mean - std, mean + std, alpha=0.2)
    axes.set(xlabel="timesteps", ylabel="return (mean ± std)", title="PPO on Unity-3DBall-v0", ylim=(-5, 105))
    axes.grid(alpha=0.3)
    plt.savefig(folder / "learning_curve.png", dpi=120)
    plt.close()


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=300_000, help="at most (default: %(default)s)")
    parser.add_argument("--file-name", help="a Unity build of 3DBall instead of the embedded player")
    parser.add_argument("--eval-episodes", type=int, default=100, help="in the end (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/3DBall"), help="folder (default: %(default)s)")
    arguments = parser.parse_args()

    player = {"file_name": arguments.file_name} if arguments.file_name else {}
    env = UnityVecEnv("Unity-3DBall-v0", seed=arguments.seed, **player)
    eval_env = UnityVecEnv("Unity-3DBall-v0", seed=arguments.seed + 1, **player)
    try:
        model = PPO(
            "UnityPolicy",
            env,
            buffer_size=6_000,
            batch_size=64,
            n_epochs=3,
            time_horizon=1_000,
            gae_lambda=0.99,
            ent_coef=1e-3,
            policy_kwargs={"normalize": True},
            seed=arguments.seed,
        )
        evaluation = EvalCallback(
            eval_env,
            n_eval_episodes=EVALUATION_EPISODES,
            eval_freq=min(12_000, arguments.timesteps) // env.num_envs,  # calls, each of `num_envs` timesteps
            best_model_save_path=str(arguments.output),
            log_path=str(arguments.output),
            callback_after_eval=StopWhenSteady(),
            verbose=1,
        )
        started = time.perf_counter()
        model.learn(arguments.timesteps, callback=evaluation, progress_bar=True)
        seconds = time.perf_counter() - started
        best = PPO.load(arguments.output / "best_model", env=eval_env)
        best.export_onnx(arguments.output / "3DBall.onnx")
        mean, std = evaluate_policy(best, eval_env, n_eval_episodes=arguments.eval_episodes, deterministic=True)
    finally:
        env.close()
        eval_env.close()
    draw(arguments.output)
    print(f"trained {model.num_timesteps} timesteps in {seconds:.0f} s")
    print(f"mean reward over {arguments.eval_episodes} episodes: {mean:.1f} +- {std:.1f} (the maximum is {MAXIMUM:g})")
    print(f"wrote best_model.zip, 3DBall.onnx and learning_curve.png to {arguments.output}")


if __name__ == "__main__":
    main()
