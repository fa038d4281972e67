"""The time of an update and of a bare torch loop over the same networks, for PPO, POCA and SAC.

python tests/benchmarks/update.py
python tests/benchmarks/update.py --configs ppo/3DBall sac/3DBall --rounds 40 --threads 1 2
python tests/benchmarks/update.py --peer-python PEER/bin/python  # and POCA of mlagents-learn on CooperativePushBlock

For every configuration, the agents of its scene act until there are a few minibatches. Then `train`'s update and the
bare loop take turns over the same experience in one process, so that other work on the machine slows both. The ratio is
the median of the ratios of neighbors; the times are minima per minibatch. On one thread, both
are times of the processor.

The bare loop has copies of the same networks, a fused Adam, and the losses written out for one minibatch after another:
no options, reward signals, statistics, masks of padding or records. Its inputs are normalized in advance. It is a lower
bound for a trainer. For POCA's critic, it has the same search for the members of each group.

The update of Unity's trainer is the time that its own timers report for `process_trajectory`, which estimates values
and advantages, and for `_update_policy`, after one update in a run with 32 areas. `PEER` needs
Unity's package `mlagents` 1.1.0 on Python 3.10.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from cooperation import CONFIGS
from devices import model_of, rollout_of, update_of
from trainers import player_of

from sb3_ext import PPO, SAC
from sb3_ext.groups import GroupRollout
from sb3_ext.networks.body import Inputs
from sb3_ext.rollout import Rollout

NAMES = [
    *("ppo/3DBall", "ppo/PushBlock", "ppo/Hallway", "ppo/Pyramids", "ppo/GridWorld"),
    *("poca/CooperativePushBlock", "sac/3DBall", "sac/PushBlock"),
]
Loop = Callable[[], None]


def on_policy_loops(model: PPO) -> tuple[int, Loop, Loop]:
    """Minibatches of an update of PPO or POCA, the update, and the bare loop."""
    rollout = rollout_of(model, 32 if model.batch_size < 256 else 6)
    model._estimate(rollout)
    # The loss of a scene's reward; reward signals have separate updates, which the loop excludes.
    for signal in model._signals():
        signal.update = lambda *_: {}  # type: ignore[method-assign]
    model._estimate = lambda *_: None  # type: ignore[method-assign]
    model.lr_schedule = lambda _: 1e-9
    bare = BarePPO(model, rollout)

    def update() -> None:
        model._update(rollout, statistics_are_fresh=True, progress=1.0, steps=0)

    return len(rollout) // model.batch_size, update, bare.epoch


class BarePPO:
    """One epoch of PPO or POCA without anything else."""

    def __init__(self, model: PPO, rollout: Rollout) -> None:
        self.policy = copy.deepcopy(model.policy)
        self.length = model.policy.settings.sequence_length if model.policy.settings.memory_size else 1
        self.batch_size, self.rollout = model.batch_size, rollout
        self.epsilon, self.beta, self.vf_coef = 0.2, 0.005, model.vf_coef
        self.spec = model.policy.adapter.spec.action_spec
        self.bodies = [self.policy.body] if self.policy.critic is None else [self.policy.body, self.policy.critic]
        self.inputs = self.policy.body.prepare(rollout.observations)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-9, fused=True)

    def epoch(self) -> None:
        """Update with all minibatches once."""
        rollout, policy, size = self.rollout, self.policy, self.spec.continuous_size
        decisions, _ = rollout.sequences(self.length)
        order = decisions[rollout._random_order(decisions)]  # for POCA, groups stay together
        for part in order.split(self.batch_size // self.length):  # type: ignore[no-untyped-call]
            if len(part) < self.batch_size // self.length:
                break
            index = part.flatten()
            seen = Inputs(column[index] for column in self.inputs)
            memory = [*rollout.memory[part[:, 0]].chunk(2, 1)] if self.length > 1 else [None, None]
            actions, old = rollout.actions[index], rollout.log_probs[index]
            advantages, returns = rollout.advantages[index].unsqueeze(1), rollout.returns[index]
            features = policy.body(seen, memory[0], self.length)[0]
            if isinstance(rollout, GroupRollout):
                group, counts = policy._features(rollout.groups, index)  # type: ignore[operator]
                values = policy._both(group, counts)  # type: ignore[operator]
            else:
                values = policy.value_head(self.bodies[1](seen, memory[1], self.length)[0]).unsqueeze(1)
            mean, log_std, logits = policy.head(features)
            entropy: Any = 0.0
            log_probs = []
            if mean is not None:
                deviations = (actions[:, :size] - mean) / log_std.exp()
                log_probs.append(-0.5 * deviations.square() - log_std - 0.5 * math.log(2 * math.pi))
                entropy = (log_std + 0.5 + 0.5 * math.log(2 * math.pi)).mean()
            if logits is not None:
                logits = logits.masked_fill(~rollout.action_masks[index], -1e8)
                chosen = actions[:, size:].long()
                for branch, part_ in enumerate(logits.split(list(self.spec.discrete_branches), 1)):
                    log_p = part_.log_softmax(1)
                    log_probs.append(log_p.gather(1, chosen[:, branch : branch + 1]))
                    entropy = entropy - (log_p.exp() * log_p).sum(1).mean()
            ratio = ((torch.cat(log_probs, 1) if len(log_probs) > 1 else log_probs[0]) - old).exp()
            clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon)
            policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            loss = policy_loss + self.vf_coef * (values - returns).square().mean() - self.beta * entropy
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def sac_loops(model: SAC) -> tuple[int, Loop, Loop]:
    """The gradient steps of a call of `train`, and the bare loop."""
    count, update = update_of(model)
    model.logger.record_mean = lambda *_: None  # type: ignore[method-assign]
    bare = BareSAC(model)

    def loop() -> None:
        for _ in range(count):
            bare.step()

    return count, update, loop


class BareSAC:
    """Gradient steps of SAC for continuous or discrete actions, without anything else."""

    def __init__(self, model: SAC) -> None:
        policy = self.policy = copy.deepcopy(model.policy)
        policy.actor_parameters = [*policy.body.parameters(), *policy.head.parameters()]
        self.critic, self.target = [*policy.critic.parameters()], [*policy.critic_target.parameters()]
        self.optimizer = torch.optim.Adam(
            [*policy.actor_parameters, *self.critic, policy.log_ent_coef], 1e-9, fused=True
        )
        buffer = model.replay_buffer
        columns = {name: torch.from_numpy(array[: buffer._filled]) for name, array in buffer._arrays.items()}
        spec = self.spec = model.policy.adapter.spec.action_spec
        if buffer.sequence_length > 1 or spec.discrete_size > 1 or (spec.continuous_size and spec.discrete_size):
            sys.exit("the bare loop of SAC has no LSTM, and either continuous actions or one branch of discrete ones")
        sensors = [columns[f"observation_{index}"] for index in range(buffer._sensors)]
        self.seen, self.following = [policy.body.prepare([column[:, step] for column in sensors]) for step in (0, 1)]
        self.masks, self.next_masks = columns["mask"][:, 0], columns["mask"][:, 1]
        self.actions, self.ends = columns["action"][:, 0], columns["terminated"].float()
        self.rewards = columns["reward"] + columns["group_reward"]
        self.batch_size, self.tau, self.gamma = model.batch_size, model.tau, model.gamma

    def step(self) -> None:
        """Make one gradient step."""
        policy = self.policy
        index = torch.randint(len(self.actions), (self.batch_size,))
        seen, following = [Inputs(column[index] for column in columns) for columns in (self.seen, self.following)]
        actions, rewards, ends = self.actions[index], self.rewards[index], self.ends[index]
        alpha = policy.log_ent_coef.detach().exp()
        of_actor = policy.head(policy.body(seen)[0])
        with torch.no_grad():
            of_next = policy.head(policy.body(following)[0])
            next_states = policy.critic_target.body.encode(following)
        states = policy.critic.body.encode(seen)
        if self.spec.discrete_size:
            with torch.no_grad():
                log_p = of_next[2].masked_fill(~self.next_masks[index], -1e8).log_softmax(1)
                q = policy.critic_target(next_states, None)[:, :, 0].amin(0)
                target = rewards + self.gamma * (1 - ends) * (log_p.exp() * (q - alpha * log_p)).sum(1, keepdim=True)
            both = policy.critic(states, None)[:, :, 0]
            q_loss = (both.gather(2, actions.long().expand(2, -1, -1)) - target).square().mean(1).sum() / 2
            log_p = of_actor[2].masked_fill(~self.masks[index], -1e8).log_softmax(1)
            p = log_p.exp()
            policy_loss = (p * (alpha * log_p - both.detach().amin(0))).sum(1).mean()
            entropy = (p.detach() * log_p.detach()).sum(1).mean()
        else:
            with torch.no_grad():
                action, log_prob = self._sample(of_next[0], of_next[1])
                q = policy.critic_target(next_states, action)[:, :, 0].amin(0)
                target = rewards + self.gamma * (1 - ends) * (q - alpha * log_prob)
            q_loss = (policy.critic(states, actions)[:, :, 0] - target).square().mean(1).sum() / 2
            action, log_prob = self._sample(of_actor[0], of_actor[1])
            policy_loss = (alpha * log_prob - policy.critic(states.detach(), action)[:, :, 0].amin(0)).mean()
            entropy = log_prob.detach().mean() - self.spec.continuous_size
        self.optimizer.zero_grad()
        policy_loss.backward(inputs=policy.actor_parameters)
        (q_loss - (policy.log_ent_coef * entropy).sum()).backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.target, self.critic, self.tau)  # type: ignore[arg-type]

    @staticmethod
    def _sample(mean: torch.Tensor, log_std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2 * (math.log(2) - raw - torch.nn.functional.softplus(-2 * raw))
        return raw.tanh(), log_prob.sum(1, keepdim=True)


def measure(name: str, threads: int, rounds: int) -> str:
    """Return the table row of a configuration."""
    torch.set_num_threads(threads)
    model = model_of(name)
    torch.set_num_threads(threads)
    np.random.seed(0)  # noqa: NPY002
    count, ours, bare = sac_loops(model) if isinstance(model, SAC) else on_policy_loops(model)
    clock = time.process_time if threads == 1 else time.perf_counter
    spent: list[tuple[float, float]] = []
    for _ in range(rounds + 2):
        marks = [clock()]
        for loop in (ours, bare):
            loop()
            marks.append(clock())
        spent.append((marks[1] - marks[0], marks[2] - marks[1]))
    spent = spent[2:]
    assert model.env is not None
    model.env.close()
    ratio = statistics.median(update / other for update, other in spent)
    update, other = (min(column) / count * 1e3 for column in zip(*spent, strict=True))
    return (
        f"| {name} | {model.batch_size} | {threads} | {update:.2f} | {other:.2f} | {update / other:.2f} | {ratio:.2f} |"
    )


# Unity's timers then report processor time.
_PEER = "import time; time.perf_counter = time.process_time; from mlagents.trainers.learn import main; main()"


def peers_update(python: str, groups: int) -> float:
    """Return the seconds of one update of Unity's POCA on CooperativePushBlock, with groups of 3."""
    settings = yaml.safe_load((CONFIGS / "CooperativePushBlock.yaml").read_text(encoding="utf-8"))
    (behavior,) = settings["behaviors"].values()
    # The trajectories of all agents are added together. The update starts once they exceed the buffer size, and
    # the run ends with one more.
    decisions = 3 * groups * behavior["time_horizon"]
    needed = behavior["hyperparameters"]["buffer_size"] // decisions + 1
    behavior["max_steps"] = needed * decisions
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "settings.yaml")
        file.write_text(yaml.safe_dump({"behaviors": settings["behaviors"]}), encoding="utf-8")
        flags = [f"--env={player_of('CooperativePushBlock', Path(folder))}", f"--num-areas={groups}", "--no-graphics"]
        flags += ["--run-id=run", f"--results-dir={folder}/results"]
        subprocess.run([python, "-c", _PEER, str(file), *flags], check=True, stdout=subprocess.DEVNULL)
        timers = json.loads(Path(folder, "results", "run", "run_logs", "timers.json").read_text(encoding="utf-8"))
    spent = dict(_timers(timers))
    seconds: float = spent["_update_policy"]["total"] + spent["process_trajectory"]["total"] * needed / (needed + 1)
    return seconds


def _timers(block: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return all blocks of a tree of timers, by name."""
    for name, child in block.get("children", {}).items():
        yield name, child
        yield from _timers(child)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=NAMES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer-python", help="a Python with mlagents")
    arguments = parser.parse_args()
    print("| configuration | batch | threads | ours, ms | bare, ms | of minima | median ratio |")
    print("|---" * 7 + "|")
    for name in arguments.configs:
        for threads in arguments.threads:
            print(measure(name, threads, arguments.rounds), flush=True)
    if arguments.peer_python:
        print(f"\nPOCA of mlagents-learn, 32 × 3 agents: {peers_update(arguments.peer_python, 32):.2f} s per update")


if __name__ == "__main__":
    main()
