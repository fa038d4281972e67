"""Returns of a network that Unity trained in the embedded scene, over the first episodes of each agent.

    python tests/benchmarks/fidelity.py 3DBall MODELS/3DBall.onnx --episodes 10
    python tests/benchmarks/fidelity.py CooperativePushBlock MODELS/PushBlockCollab.onnx --areas 8 --episodes 5
    python tests/benchmarks/fidelity.py SoccerTwos MODELS/SoccerTwos.onnx --areas 8 --episodes 10 --against-random

Every agent, or every group where rewards are the group's, counts with the same number of episodes: the first k of all
agents together would count short episodes too often. Actions are sampled, as in Unity, or the most likely ones with
`--deterministic`. With `--against-random` the second team acts at random, and the returns are those of the first team.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from sb3_ext import OnnxPolicy
from unity_gym.environment import UnityEnvironment
from unity_gym.specs import ActionTuple, Array, DecisionSteps, TerminalSteps


class Returns:
    """The returns of episodes per agent, or per group in scenes with groups."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._running: dict[tuple[str, int], float] = defaultdict(float)

    def add(self, behavior: str, steps: DecisionSteps | TerminalSteps) -> None:
        """Add the rewards of steps; terminal steps end episodes."""
        has_groups = bool(len(steps)) and bool(steps.group_id.any())
        ids = steps.group_id if has_groups else steps.agent_id
        units, first = np.unique(ids, return_index=True)  # all members of a group get the same reward
        rewards = (steps.group_reward if has_groups else steps.reward)[first]
        for unit, reward in zip(units.tolist(), rewards.tolist(), strict=True):
            self._running[behavior, unit] += reward
            if isinstance(steps, TerminalSteps):
                self.ended[behavior, unit].append(self._running.pop((behavior, unit)))
            else:
                self.ended[behavior, unit]  # also waits for units without a finished episode

    def first(self, episodes: int) -> Array | None:
        """Return the first returns of each unit, (units, episodes), None as long as some are missing."""
        if not self.ended or min(map(len, self.ended.values())) < episodes:
            return None
        return np.array([returns[:episodes] for returns in self.ended.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("model", type=Path)
    parser.add_argument("--areas", type=int, default=0, help="areas of the scene (default: as many as Unity's has)")
    parser.add_argument("--episodes", type=int, default=10, help="episodes per agent or group")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deterministic", action="store_true", help="most likely actions instead of sampled ones")
    parser.add_argument("--against-random", action="store_true", help="the second team acts at random")
    arguments = parser.parse_args()
    options = ["--areas", str(arguments.areas)] if arguments.areas else []
    returns, rng = Returns(), np.random.default_rng(arguments.seed)
    with UnityEnvironment(
        f"embedded:{arguments.scene}", seed=arguments.seed, additional_args=options, visual_dtype="uint8"
    ) as env:
        env.reset()
        policies = {
            name: OnnxPolicy(arguments.model, spec=spec, seed=arguments.seed)
            for name, spec in env.behavior_specs.items()
        }
        while (found := returns.first(arguments.episodes)) is None:
            for name, spec in env.behavior_specs.items():
                decisions, terminals = env.get_steps(name)
                plays_at_random = arguments.against_random and name.endswith("team=1")
                if not plays_at_random:
                    returns.add(name, terminals)
                    returns.add(name, decisions)
                if not len(decisions):
                    continue
                if plays_at_random:
                    branches = spec.action_spec.discrete_branches
                    discrete = rng.integers(branches, size=(len(decisions), len(branches))).astype(np.int32)
                    continuous = rng.uniform(-1, 1, (len(decisions), spec.action_spec.continuous_size))
                    actions = ActionTuple(continuous.astype(np.float32), discrete)
                else:
                    actions = act(policies[name], decisions, arguments.deterministic)
                env.set_actions(name, actions)
            env.step()
    units, episodes = found.shape
    kind = "most likely" if arguments.deterministic else "sampled"
    print(
        f"{arguments.scene}, {arguments.model.name}, {kind} actions: {found.mean():.3f} ± {found.std():.3f}, lowest "
        f"{found.min():.3f}, in the first {episodes} episodes of each of {units} agents or groups; "
        f"{(found > 0).mean():.1%} above 0"
    )


def act(policy: OnnxPolicy, decisions: DecisionSteps, deterministic: bool) -> ActionTuple:
    """Return the actions of a policy without memory for all agents that request a decision."""
    masks = np.ones((len(decisions), sum(policy.spec.action_spec.discrete_branches)), bool)
    if decisions.action_mask:
        masks = ~np.concatenate(decisions.action_mask, axis=1)
    actions, _ = policy.select_actions(decisions.obs, masks, np.zeros((len(decisions), 0), np.float32), deterministic)
    return actions


if __name__ == "__main__":
    main()
