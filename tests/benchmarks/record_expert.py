"""Record a demonstration of a trained policy, for configurations whose demonstration by Unity is not at hand.

    python tests/benchmarks/record_expert.py Hallway POLICY.onnx FOLDER/ExpertHallway.demo --episodes 60

The policy takes its most likely actions. Afterwards `learning.py imitation/Hallway --demonstrations FOLDER` uses the
file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sb3_ext import OnnxPolicy, UnityVecEnv
from unity_gym.demonstrations import record


def main() -> None:
    """Record what the command line names, and print the returns of the recorded episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", help="such as Hallway")
    parser.add_argument("policy", type=Path, help="file of unity-learn or mlagents-learn")
    parser.add_argument("demonstration", type=Path, help="new .demo file")
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    env = UnityVecEnv(f"Unity-{arguments.scene}-v0", seed=arguments.seed)
    try:
        shown = record(env, OnnxPolicy(arguments.policy, env), arguments.demonstration, arguments.episodes)
    finally:
        env.close()
    mean = shown.rewards.sum() / arguments.episodes
    print(f"{arguments.demonstration}: {arguments.episodes} episodes, {len(shown)} decisions, mean return {mean:.3f}")


if __name__ == "__main__":
    main()
