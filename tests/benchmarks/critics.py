"""Predictions of critics for rewards of groups: POCA's critic, which sees all members, and PPO's, which sees one.

python tests/benchmarks/critics.py --model FOLDER/PushBlockCollab.onnx          # 6 minutes per seed
python tests/benchmarks/critics.py --model FOLDER/PushBlockCollab.onnx --earlier 2 --algorithms POCA

On CooperativePushBlock each action is that of Unity's trained policy or random, with equal probability, so that groups
get rewards sometimes. Buffer by buffer a critic first predicts the discounted rewards of every decision until its
trajectory is cut, and then learns them, as in training: 3 epochs in minibatches of 1024. The result for the later half
of the buffers is the explained variance of these predictions, 1 - Var(rewards - prediction) / Var(rewards).

With `--earlier N` a critic learns in two more ways: from the newest buffer and the N before it, and, with as many
minibatches, from the newest alone. The difference of these two is what earlier buffers contribute. The actors do not
learn here, so that earlier buffers are as good as new ones; in training they are of older policies.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from sb3_ext import POCA, PPO, OnnxPolicy, UnityVecEnv
from sb3_ext.poca import UnityPOCAPolicy
from sb3_ext.rollout import Batch, Rollout, advantages

AREAS, GAMMA, PASSES, MINIBATCH = 64, 0.99, 3, 1024
NUMBERS: dict[str, Any] = {
    "buffer_size": 10240,
    "batch_size": MINIBATCH,
    "time_horizon": 64,
    "policy_kwargs": {"hidden_units": 256, "num_layers": 2},
    "device": "cpu",
}


class HalfTrained(UnityPOCAPolicy):
    """An untrained policy that takes the actions of `teacher` in half of the decisions."""

    teacher: OnnxPolicy

    @override
    def act(
        self,
        observations: list[torch.Tensor],
        masks: torch.Tensor | None,
        memory: torch.Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `UnityPolicy.act`."""
        actions, log_probs, after = super().act(observations, masks, memory, deterministic, generator)
        assert masks is not None
        taught, _ = self.teacher.select_actions([seen.numpy() for seen in observations], masks.numpy(), memory.numpy())
        use = torch.rand(len(actions), 1) < 0.5
        return torch.where(use, torch.from_numpy(taught.discrete).to(actions), actions), log_probs, after


class Collector(POCA):
    """Store the experience instead of learning from it."""

    rollouts: list[Rollout]

    @override
    def _update(self, rollout: Rollout, *_: Any) -> None:
        self.rollouts.append(rollout)


def collect(env: UnityVecEnv, model: str, buffers: int) -> list[Rollout]:
    """Return the experience of the mixed policy."""
    collector = Collector(HalfTrained, env, **NUMBERS, seed=0)
    assert isinstance(collector.policy, HalfTrained)
    collector.policy.teacher = OnnxPolicy(model, env, seed=0)
    collector.rollouts = []
    while len(collector.rollouts) < buffers:
        collector.learn(NUMBERS["buffer_size"], reset_num_timesteps=False)
    return collector.rollouts


def earned(rollout: Rollout) -> torch.Tensor:
    """Return the discounted rewards from each decision to the end of its trajectory."""
    rewards = (rollout.rewards + rollout.group_rewards).double().numpy()
    return torch.from_numpy(
        advantages(rewards, np.zeros_like(rewards), np.zeros(len(rollout.lengths)), rollout.lengths, GAMMA, 1.0)
    ).float()


def explained(model: PPO, rollouts: list[Rollout], earlier: int = 0, passes: int = PASSES) -> list[float]:
    """Return the explained variance of each of the critic's values: V, and for POCA the baseline.

    :param earlier: Buffers before the newest that the critic also learns from.
    :param passes: Passes over each buffer that it learns from.
    """
    policy = model.policy

    def values(batch: Batch) -> torch.Tensor:
        predicted: torch.Tensor = policy.evaluate(batch)[0][:, :, 0]  # of the only reward signal
        return predicted

    predictions, targets = [], []
    for number, rollout in enumerate(rollouts):
        target = earned(rollout).unsqueeze(1)
        with torch.no_grad():
            predictions.append(torch.cat([values(batch) for batch in rollout.in_order(MINIBATCH)]))
        targets.append(target)
        known = range(max(number - earlier, 0), number + 1)
        for _ in range(passes):
            batches = [(batch, targets[each]) for each in known for batch in rollouts[each].shuffled(MINIBATCH)]
            random.shuffle(batches)
            for batch, aim in batches:
                policy.optimizer.zero_grad()
                loss = (values(batch) - aim[batch.index]).square().mean(0).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                policy.optimizer.step()
    later = len(rollouts) // 2
    target, predicted = torch.cat(targets[later:]), torch.cat(predictions[later:])
    shares: list[float] = (1 - (target - predicted).var(0) / target.var(0)).tolist()
    return shares


def main() -> None:
    """Run the benchmark of the command line; print one line per critic and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Unity's PushBlockCollab.onnx")
    parser.add_argument("--buffers", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--earlier", type=int, default=0, help="buffers before the newest to learn from, too")
    parser.add_argument("--algorithms", nargs="+", choices=("POCA", "PPO"), default=["POCA", "PPO"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    env = UnityVecEnv("Unity-CooperativePushBlock-v0", num_areas=AREAS, seed=0)
    rollouts = collect(env, arguments.model, arguments.buffers)
    deliveries = sum(int((rollout.group_rewards > 0.5).sum()) for rollout in rollouts) / 3 / len(rollouts)
    print(f"{len(rollouts)} buffers of {len(rollouts[0])} decisions, {deliveries:.1f} deliveries in each")
    variants = {"": (0, PASSES)}
    if arguments.earlier:
        variants[f", {arguments.earlier} earlier buffers"] = arguments.earlier, PASSES
        variants[", as many minibatches of the newest"] = 0, PASSES * (1 + arguments.earlier)
    algorithms = {"POCA": (POCA, "UnityPOCAPolicy"), "PPO": (PPO, "UnityPolicy")}
    for seed in arguments.seeds:
        for name in arguments.algorithms:
            kind, policy = algorithms[name]
            for variant, (earlier, passes) in variants.items():
                random.seed(seed)
                shares = explained(kind(policy, env, **NUMBERS, seed=seed), rollouts, earlier, passes)
                names = ("V", "baseline") if kind is POCA else ("V",)
                variances = ", ".join(f"{name} {share:.3f}" for name, share in zip(names, shares, strict=True))
                print(f"{kind.__name__}{variant}, seed {seed}: explained variance of {variances}", flush=True)
    env.close()


if __name__ == "__main__":
    main()
