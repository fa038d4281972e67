"""How a policy moves a body with limbs: means of what it observes, and its speed and reward per wanted speed.

    python tests/benchmarks/gait.py Crawler [POLICY.onnx] [--decisions 1000] [--areas 10]

Without a policy, agents act at random. Of Crawler, the means and standard deviations that Unity's own `Crawler.onnx`
stores for its normalization are printed as well; they include the time when that network had learned nothing yet.
Rewards are per tick; an episode of 5000 ticks without an end has 5000 times as much.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np

from sb3_ext import OnnxPolicy
from unity_gym.environment import UnityEnvironment
from unity_gym.specs import ActionTuple, Array

_TICKS = 5  # per decision
_GOAL = 126  # Crawler: where its second sensor starts
# Indices into all observations of an agent; of several, the mean is reported.
_NUMBERS: dict[str, dict[str, tuple[int, ...]]] = {
    "Crawler": {
        "downward ray / 10 m": (_GOAL + 14,),
        "vertical speed of the body, m/s": (64,),
        "forward speed, m/s": (_GOAL + 3,),
        "missing speed, m/s": (_GOAL,),
        "height of the target, m": (_GOAL + 12,),
        "distance of the target, m": (_GOAL + 13,),
        **{f"x of foreleg {leg} to leg": (90 + 4 * (2 * leg + 2),) for leg in range(4)},
        **{f"foreleg {leg} touches the ground": (_GOAL + 18 + 4 * leg,) for leg in range(4)},
        "strength": tuple(_GOAL + 17 + 2 * joint for joint in range(8)),
    },
    "Worm": {
        "downward ray / 10 m": (0,),
        "forward speed of the head, m/s": (15,),
        "vertical speed of the head, m/s": (14,),
        "angle of the head / 180°": (4,),
        "distance of the target, m": (11,),
        **{f"segment {part} touches the ground": (index,) for part, index in enumerate((12, 20, 35, 50))},
        "strength": (19, 34, 49),
    },
    "Walker": {
        "forward speed, m/s": (3,),
        "missing speed, m/s": (0,),
        "distance of the target, m": (17,),
        "left foot touches the ground": (103,),
        "right foot touches the ground": (148,),
    },
}
_IN_UNITY = {
    "downward ray / 10 m": "0.103 ± 0.015",
    "vertical speed of the body, m/s": "± 0.90",
    "forward speed, m/s": "3.15",
    "missing speed, m/s": "4.72 ± 4.02",
    "height of the target, m": "-0.48",
    "distance of the target, m": "22.8",
    **{f"x of foreleg {leg} to leg": f"{x}" for leg, x in enumerate((-0.66, -0.67, -0.66, -0.60))},
    **{f"foreleg {leg} touches the ground": f"{x}" for leg, x in enumerate((0.74, 0.67, 0.58, 0.51))},
    "strength": "0.5",
}
_WANTED_AND_REACHED = {"Crawler": (_GOAL + 6, _GOAL + 3), "Worm": (3, 15), "Walker": (6, 3)}
_BANDS = (0, 3, 6, 9, 12, 15)  # m/s


def observe(scene: str, policy_file: Path | None, decisions: int, areas: int, seed: int) -> tuple[Array, Array]:
    """Return what the agents observed, (n, size), and the reward of the decision that followed, per tick (n)."""
    observations: list[Array] = []
    rewards: list[Array] = []
    before: dict[int, Array] = {}
    options = ["--areas", str(areas)]
    with UnityEnvironment(f"embedded:{scene}", seed=seed, additional_args=options) as env:
        env.reset()
        (name,) = env.behavior_specs
        spec, rng = env.behavior_specs[name], np.random.default_rng(seed)
        policy = OnnxPolicy(policy_file, spec=spec, seed=seed) if policy_file else None
        for _ in range(decisions):
            steps, ends = env.get_steps(name)
            for arrived in (ends, steps):
                for agent, reward in zip(arrived.agent_id.tolist(), arrived.reward.tolist(), strict=True):
                    if agent in before:
                        observations.append(before.pop(agent))
                        rewards.append(reward / _TICKS)
            seen = np.concatenate(steps.obs, axis=1)
            before.update(zip(steps.agent_id.tolist(), seen, strict=True))
            none = np.zeros((len(steps), 0))
            actions: ActionTuple = (
                policy.select_actions(steps.obs, none.astype(bool), none.astype(np.float32))[0]
                if policy
                else spec.action_spec.random_action(len(steps), rng)
            )
            env.set_actions(name, actions)
            env.step()
    return np.array(observations), np.array(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", choices=sorted(_NUMBERS))
    parser.add_argument("policy", type=Path, nargs="?", help="exported policy (default: random actions)")
    parser.add_argument("--decisions", type=int, default=1000, help="of each agent")
    parser.add_argument("--areas", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    observations, rewards = observe(
        arguments.scene, arguments.policy, arguments.decisions, arguments.areas, arguments.seed
    )
    unity = _IN_UNITY if arguments.scene == "Crawler" else {}
    print(f"{'':36}{'mean':>8}{'std':>8}   {'Unity' if unity else ''}")
    for name, indices in _NUMBERS[arguments.scene].items():
        values = observations[:, indices]
        print(f"{name:36}{values.mean():8.3f}{values.std():8.3f}   {unity.get(name, '')}")
    print(f"{'reward per tick':36}{rewards.mean():8.3f}{rewards.std():8.3f}")
    wanted, reached = (observations[:, index] for index in _WANTED_AND_REACHED[arguments.scene])
    for low, high in pairwise(_BANDS):
        inside = (wanted > low) & (wanted <= high)
        if inside.any():
            print(
                f"wanted {low:2d} to {high:2d} m/s: reached {reached[inside].mean():5.2f} m/s, "
                f"reward per tick {rewards[inside].mean():.3f}"
            )


if __name__ == "__main__":
    main()
