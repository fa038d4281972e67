"""Compare what the learner computes with what Unity's trainer (mlagents 1.1.0) computes, number by number.

    python tests/benchmarks/learner_peer.py --peer-python PEER/bin/python

PEER is an environment in which `mlagents` is installed. Unity's side builds networks with random weights, some of which
differ from run to run. The same weights are loaded here, and both sides compute from the same random experience.
Minibatches are in order, and noise is constant. The table has the largest absolute difference of each computation, and
its scale: the largest magnitude of the numbers, or the largest change of the outputs by an update. If a difference is
above 2e-5 (times the scale, where that is above 1), the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from stable_baselines3.common.logger import Logger

from sb3_ext import PPO, SAC, Extrinsic
from sb3_ext.experience import Trajectories
from sb3_ext.imitation import BehavioralCloning
from sb3_ext.mlagents_checkpoint import load_actor, load_critic, read_mlagents_checkpoint
from sb3_ext.reward_signals import GAIL, RND, Curiosity
from sb3_ext.rollout import Batch, Rollout
from unity_gym.specs import ActionSpec, Array, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

_PEER = r"""
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from mlagents.plugins.trainer_type import register_trainer_plugins
register_trainer_plugins()
from mlagents.trainers import settings as s
from mlagents.trainers.behavior_id_utils import BehaviorIdentifiers
from mlagents.trainers.buffer import AgentBuffer, BufferKey, RewardSignalUtil
from mlagents.trainers.policy.torch_policy import TorchPolicy
from mlagents.trainers.ppo.optimizer_torch import PPOSettings
from mlagents.trainers.ppo.trainer import PPOTrainer
from mlagents.trainers.sac.optimizer_torch import SACSettings, TorchSACOptimizer
from mlagents.trainers.torch_entities.action_log_probs import LogProbsTuple
from mlagents.trainers.torch_entities.agent_action import AgentAction
from mlagents.trainers.torch_entities.components.bc import module as bc
from mlagents.trainers.torch_entities.components.reward_providers import create_reward_provider, gail_reward_provider
from mlagents.trainers.torch_entities.networks import SimpleActor
from mlagents.trainers.trajectory import AgentExperience, ObsUtil, Trajectory
from mlagents_envs.base_env import *

def trajectories_of(spec, path, size):
    data, row = dict(np.load(path)), 0
    sensors, (continuous, branches) = range(len(spec.observation_specs)), spec.action_spec
    for number, length in enumerate(data["lengths"]):
        steps = []
        for at in range(row, row + length):
            one = {name[10:]: array[at] for name, array in data.items() if name.startswith("decisions.")}
            done = bool(at == row + length - 1 and data["ends.is_episode_end"][number])
            action, log_prob = (np.split(one[name], [continuous]) for name in ("action", "log_prob"))
            action[1] = action[1].astype(np.int32)
            steps.append(AgentExperience(
                [one[f"observation_{index}"] for index in sensors], float(one["reward"]), done, ActionTuple(*action),
                LogProbsTuple(*log_prob), np.split(~one["mask"], np.cumsum(branches)[:-1]) if branches else None,
                action[1], done and not data["ends.terminated"][number],
                one["memory"][:size] if size else None, [], 0.0))
        yield Trajectory(steps, [data[f"ends.observation_{index}"][number] for index in sensors], [], str(number), "B")
        row += length

def joined(trajectories):
    whole = AgentBuffer()
    for trajectory in trajectories:
        trajectory.to_agentbuffer().resequence_and_append(whole, training_length=1)
    return whole

def tensor(rows):
    return torch.as_tensor(np.array(rows))

@torch.no_grad()
def outputs(policy, critic, whole, length):
    obs = [tensor(rows) for rows in ObsUtil.from_buffer(whole, len(policy.behavior_spec.observation_specs))]
    actions, masks = AgentAction.from_buffer(whole), tensor(whole[BufferKey.ACTION_MASK])
    memory = tensor(whole[BufferKey.MEMORY])[None, ::length] if policy.use_recurrent else None
    stats = policy.actor.get_stats(obs, actions, masks=masks, memories=memory, sequence_length=length)
    log_probs, found = stats["log_probs"], {}
    if hasattr(critic, "critic_pass"):
        start = None if memory is None else torch.zeros_like(memory)
        value = critic.critic_pass(obs, memories=start, sequence_length=length)[0]["extrinsic"]
        return {"log_prob": log_probs.flatten(), "entropy": stats["entropy"], "value": value}
    if log_probs.all_discrete_list:
        found["branches"] = torch.where(masks > 0, log_probs.all_discrete_tensor, torch.zeros(()))
    if log_probs.continuous_tensor is not None:
        found["log_prob"] = log_probs.continuous_tensor.sum(1)
    if memory is None:
        found["value"] = torch.stack([q["extrinsic"] for q in critic(obs, actions.continuous_tensor)])
    return found

def perturb(*modules):  # biases and standard deviations would start as constants
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        parameter.data += 0.05 * torch.randn(parameter.shape)

def signal(kind, options, spec, path):
    shown, expert = (joined(trajectories_of(spec, path + part, 0)) for part in (".npz", ".expert.npz"))
    demonstration = type("Demonstration", (), {"sample_mini_batch": lambda *_: expert})()
    gail_reward_provider.demo_to_buffer = lambda *_: (None, demonstration)
    kind, network = s.RewardSignalType(kind), s.NetworkSettings(hidden_units=8, num_layers=2)
    options |= {"learning_rate": 1e-3, "network_settings": network}
    options |= {"demo_path": ""} if kind is s.RewardSignalType.GAIL else {}
    provider = create_reward_provider(kind, spec, kind.to_settings()(**options))
    modules = list(provider.get_modules().values())
    if options.get("use_actions"):
        modules[0].gradient_penalty_weight = 1e-30
    found = {"weights": [p.detach().clone() for module in modules for p in module.parameters()]}
    for number in range(2):
        found[f"rewards {number}"] = tensor(provider.evaluate(shown))
        found[f"losses {number}"] = tensor(sorted(provider.update(shown).values()))
    return found | {"rewards 2": tensor(provider.evaluate(shown))}

def compute(kind, spec, options, path):
    sensors, actions = spec
    sensors = [ObservationSpec(tuple(shape), tuple(map(DimensionProperty, properties)), ObservationType(type_), name)
               for shape, properties, type_, name in sensors]
    spec = BehaviorSpec(sensors, ActionSpec(actions[0], tuple(actions[1])))
    torch.manual_seed(0)
    if kind not in ("ppo", "sac", "cloning"):
        return signal(kind, options, spec, path)
    shared, length = options.pop("shared_critic", False), options.pop("sequence_length", 1)
    size = options.pop("memory_size", 0)
    if size:
        options["memory"] = s.NetworkSettings.MemorySettings(memory_size=size, sequence_length=length)
    for name, kinds in (("vis_encode_type", s.EncoderType), ("goal_conditioning_type", s.ConditioningType)):
        if name in options:
            options[name] = kinds(options[name])
    network = s.NetworkSettings(deterministic=True, **options)
    rewards = {s.RewardSignalType.EXTRINSIC: s.RewardSignalSettings(gamma=0.95, strength=0.7)}
    common = {"network_settings": network, "max_steps": 1000, "reward_signals": rewards}
    trajectories = list(trajectories_of(spec, path + ".npz", size))
    whole = joined(trajectories)
    if kind == "sac":
        policy = TorchPolicy(0, spec, network, SimpleActor, {"conditional_sigma": True, "tanh_squash": True})
        critic = TorchSACOptimizer(policy, s.TrainerSettings("sac", SACSettings(), **common)).q_network
        policy.actor.update_normalization(whole)
        for part in (critic.q1_network, critic.q2_network):
            part.network_body.copy_normalization(policy.actor.network_body)
    else:
        hyperparameters = PPOSettings(batch_size=20, buffer_size=1000, learning_rate=3e-4, beta=0.01, lambd=0.9,
                                      num_epoch=1 if size else 2, shared_critic=shared)
        trainer = PPOTrainer("B", 1, s.TrainerSettings("ppo", hyperparameters, **common), True, False, 0, path)
        behavior = BehaviorIdentifiers.from_name_behavior_id("B")
        policy = trainer.create_policy(behavior, spec)
        trainer.add_policy(behavior, policy)
        critic = trainer.optimizer.critic
        for part in {policy.actor, critic}:
            part.update_normalization(whole)
            part.update_normalization = lambda _: None  # the update uses these statistics
    perturb(*{policy.actor, critic})
    torch.save({"Policy": policy.actor.state_dict(),
                f"Optimizer:{'q_network' if kind == 'sac' else 'critic'}": critic.state_dict()}, path + ".pt")
    found = {"outputs": outputs(policy, critic, whole, length)}
    if kind == "ppo":
        for trajectory in trajectories:
            trainer.optimizer.critic_memory_dict.clear()
            trainer._process_trajectory(trajectory)
        trainer._clear_update_buffer = lambda: None
        trainer._update_policy()
        found["returns"] = tensor(trainer.update_buffer[RewardSignalUtil.returns_key("extrinsic")])
        found["advantages"] = tensor(trainer.update_buffer[BufferKey.ADVANTAGES])
    elif kind == "cloning":
        bc.demo_to_buffer = lambda *_: (None, whole)
        settings = s.BehavioralCloningSettings(demo_path="", steps=0)
        found["loss"] = tensor(bc.BCModule(policy, settings, 1e-3, 22, 3).update()["Losses/Pretraining Loss"])
    return found | {"outputs after": outputs(policy, critic, whole, length)}

AgentBuffer.shuffle = lambda *_, **__: None
torch.rand = lambda *size: torch.full(tuple(size[0]) if len(size) == 1 else size, 0.25)
torch.randn_like = lambda tensor: torch.full_like(tensor, 0.3)
for case in json.load(sys.stdin):
    torch.save(compute(*case), case[-1] + ".results")
"""
_PROPERTIES = {  # by the number of dimensions of a sensor
    1: (DimensionProperty.NONE,),
    2: (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
    3: (DimensionProperty.NONE, *(DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,) * 2),
}
_MEMORY = {"memory_size": 8, "sequence_length": 6}
_SIGNALS: dict[str, Any] = {"curiosity": Curiosity, "rnd": RND, "gail": lambda **options: GAIL(__file__, **options)}
_IMAGES = {"simple": (3, 20, 24), "nature_cnn": (3, 36, 40), "resnet": (3, 15, 20), "match3": (5, 8, 9)}
_IMAGES |= {"fully_connected": (2, 6, 5)}
_SETTINGS = {
    PPO: {"batch_size": 20, "learning_rate": 3e-4, "ent_coef": 0.01, "gae_lambda": 0.9, "action_scaling": "clip"}
    | {"reward_signals": [Extrinsic(0.95, 0.7)], "advantage_normalization": "buffer"},
    SAC: {},
}
_TOLERANCE = 2e-5


class Case(NamedTuple):
    """What is computed: outputs of SAC, outputs and an update of PPO or of cloning, or two updates of a signal."""

    kind: str
    spec: BehaviorSpec
    options: dict[str, Any]  # of the network or signal


def _case(
    kind: str,
    sensors: list[tuple[int, ...]],
    continuous: int = 0,
    branches: tuple[int, ...] = (),
    goal: int | None = None,
    **options: Any,
) -> Case:
    """Describe a case; `goal` is the index of the sensor that is a goal."""
    specs = [
        ObservationSpec(shape, _PROPERTIES[len(shape)], ObservationType(int(index == goal)), f"sensor {index}")
        for index, shape in enumerate(sensors)
    ]
    return Case(kind, BehaviorSpec(specs, ActionSpec(continuous, branches)), options)


def _networks(kind: str) -> dict[str, Case]:
    return {
        "continuous, normalized": _case(kind, [(8,)], 3, normalize=True, hidden_units=32),
        "two branches, 3 layers": _case(kind, [(8,)], 0, (3, 2), hidden_units=32, num_layers=3),
        "hybrid, two sensors, 1 layer": _case(kind, [(8,), (3,)], 2, (3, 2), normalize=True, num_layers=1),
        "memory": _case(kind, [(8,)], 2, (3,), hidden_units=32, **_MEMORY),
    }


CASES = {
    **{f"PPO: {name}": case for name, case in _networks("ppo").items()},
    "PPO: shared critic": _case("ppo", [(8,)], 2, (3,), shared_critic=True),
    **{f"PPO: {name}": _case("ppo", [(4,), shape, (3,)], 2, vis_encode_type=name) for name, shape in _IMAGES.items()},
    "PPO: entities": _case("ppo", [(4,), (6, 5), (3, 7)], 2, (3,)),
    "PPO: entities alone": _case("ppo", [(6, 5)], 0, (3,)),
    "PPO: entities, image": _case("ppo", [(3, 20, 20), (6, 5), (4,)], 0, (3,), normalize=True),
    "PPO: goal": _case("ppo", [(4,), (3,)], 2, goal=1),
    "PPO: goal, 1 layer": _case("ppo", [(3,), (4,)], 0, (3,), goal=0, num_layers=1),
    "PPO: goal, not conditioned": _case("ppo", [(4,), (3,)], 2, goal=1, goal_conditioning_type="none"),
    "PPO: goal, image, 3 layers": _case("ppo", [(3, 20, 20), (2,)], 0, (5,), goal=1, num_layers=3),
    "PPO: image as a goal": _case("ppo", [(4,), (3, 20, 20)], 0, (5,), goal=1),
    **{f"SAC: {name}": case for name, case in _networks("sac").items()},
    "behavioral cloning": _case("cloning", [(8,)], 2, (3, 2)),
    "Curiosity": _case("curiosity", [(5,)], 2, (3, 2)),
    "RND": _case("rnd", [(5,)], 2, (3, 2)),
    "GAIL": _case("gail", [(5,)], 2, (3, 2)),
    "GAIL: use_vail": _case("gail", [(5,)], 2, (3, 2), use_vail=True),
    "GAIL: use_actions": _case("gail", [(5,)], 2, (3, 2), use_actions=True),
    "GAIL: both": _case("gail", [(5,)], 2, (3, 2), use_actions=True, use_vail=True),
}


class _Experience(Rollout):
    def sample(self, size: int) -> Batch:
        """Return the first decisions, which stand for random ones of an expert."""
        return next(self.in_order(size))


def experience(case: Case, seed: int) -> Trajectories:
    """Return random trajectories: terminated, cut and interrupted ones in turn."""
    rng, sensors, actions = np.random.default_rng(seed), *case.spec
    size = case.options.get("memory_size", 0)
    lengths = np.array([_MEMORY["sequence_length"]] * 14 if size else [*range(1, 11)] * 2)  # without padded sequences
    n, ends = int(lengths.sum()), len(lengths)

    def observations(count: int) -> dict[str, Array]:
        found = {}
        for index, (shape, _, kind, _) in enumerate(sensors):
            values = rng.random((count, *shape)) if len(shape) == 3 else rng.normal(0.3, 1.2, (count, *shape))
            if len(shape) == 2:  # some entities are absent
                values *= np.arange(shape[0])[:, np.newaxis] < rng.integers(1, shape[0] + 1, (count, 1, 1))
            elif kind is ObservationType.GOAL_SIGNAL and len(shape) == 1:
                values = np.eye(shape[0])[rng.integers(0, shape[0], count)]
            found[f"observation_{index}"] = values.astype(np.float32)
        return found

    branches = actions.discrete_branches
    indices = np.array([rng.integers(0, branch, n) for branch in branches], dtype=int).reshape(len(branches), n)
    masks = rng.random((n, sum(branches))) < (2 if case.kind == "cloning" else 0.6)
    for first, chosen in zip(np.cumsum([0, *branches]), indices, strict=False):
        masks[np.arange(n), first + chosen] = True
    performed = np.column_stack([np.tanh(rng.normal(0, 0.7, (n, actions.continuous_size))), *indices])
    decisions = {
        "action": performed,
        "log_prob": rng.normal(-1, 0.3, performed.shape),
        "memory": np.hstack([rng.normal(0, 0.5, (n, size)), np.zeros((n, size))]),  # of the actor and of the critic
        "reward": rng.normal(size=n),
        "group_reward": np.zeros(n),
    }
    decisions = {name: array.astype(np.float32) for name, array in decisions.items()}
    decisions |= {"mask": masks, "version": np.zeros(n, np.int64), **observations(n)}
    turn = np.arange(ends) % (2 if case.kind in _SIGNALS else 3)
    flags = {"terminated": turn == 0, "is_episode_end": turn != 1, "row": np.arange(ends)}
    flags["memory"] = np.zeros((ends, 2 * size), np.float32)
    return Trajectories(decisions, observations(ends) | flags, lengths)


@torch.no_grad()
def outputs(model: PPO | SAC, rollout: Rollout, length: int, has_critic: bool) -> dict[str, torch.Tensor]:
    """Return what the networks compute from the experience."""
    policy: Any = model.policy
    batch = next(rollout.shuffled(len(rollout), length))
    if isinstance(model, PPO):
        values, log_probs, distribution = policy.evaluate(batch)
        return {"log_prob": log_probs, "entropy": distribution.unity_entropy(), "value": values[:, 0, 0]}
    actions = policy.adapter.spec.action_spec
    masks = batch.action_masks if actions.discrete_size else None
    memory, of_critic = policy.split(batch.memory)
    distribution = policy._actions(policy.body(batch.observations, memory, length)[0], masks)
    continuous = batch.actions[:, : actions.continuous_size] if actions.continuous_size else None
    found = {} if masks is None else {"branches": torch.where(masks, distribution.log_probs, 0)}
    if continuous is not None:
        noise = (torch.atanh(continuous.double()) - distribution.mean) / distribution.log_std.exp()
        found["log_prob"] = distribution.rsample(noise.float())[1][:, 0]
    if has_critic:
        found["value"] = policy.critic(policy.critic.observe(batch.observations, of_critic, length)[0], continuous)[
            :, :, 0
        ]
    return found


def updates(case: Case, experience: Rollout, expert: Rollout, weights: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the rewards and losses of a signal over two updates, from Unity's first weights."""
    signal = _SIGNALS[case.kind](hidden_units=8, num_layers=2, learning_rate=1e-3, **case.options)
    signal.setup(case.spec)
    signal._expert = expert
    if case.kind == "curiosity":  # there, continuous and discrete actions have separate layers
        weights[6:10] = torch.cat(weights[6:10:2]), torch.cat(weights[7:10:2])
    elif case.kind == "rnd":
        weights = weights[4:] + weights[:4]
    elif "use_vail" in case.options:
        del weights[1]  # the factor of the bottleneck's loss, which starts at 0
    for parameter, weight in zip(signal.parameters(), weights, strict=True):
        parameter.data.copy_(weight.view(parameter.shape))
    batch, found = next(experience.in_order(len(experience))), {}
    for number in range(2):
        found[f"rewards {number}"] = signal.rewards(batch)
        found[f"losses {number}"] = torch.stack(list(signal.update(batch).values())).sort().values
    return found | {"rewards 2": signal.rewards(batch)}


def compute(case: Case, path: str) -> dict[str, Any]:
    """Return the results of a network, with the names of Unity's side, from the weights of its checkpoint."""
    kind, length = SAC if case.kind == "sac" else PPO, case.options.get("sequence_length", 1)
    settings = _SETTINGS[kind] | ({"n_epochs": 1 if length > 1 else 2} if kind is PPO else {})
    options = {"device": "cpu", "seed": 0, "policy_kwargs": case.options}
    model: Any = kind.from_spec("UnityPolicy" if kind is PPO else "UnitySACPolicy", case.spec, **settings, **options)
    checkpoint = read_mlagents_checkpoint(Path(f"{path}.pt"))
    load_actor(model.policy, checkpoint)
    has_critic = load_critic(model.policy, checkpoint, ["extrinsic"]) is None
    data = experience(case, 0)
    rollout = Rollout.from_trajectories(data)
    found: dict[str, Any] = {"outputs": outputs(model, rollout, length, has_critic)}
    if case.kind == "ppo":
        model.set_logger(Logger(None, []))
        model.start(case.spec)
        model.add(data)
        updated = model._take_rollout()
        if length > 1:
            model.policy.refresh_stored_memory(updated, 1)
        model._update(updated, True, 1 - len(data) / 1000, len(data))  # of 1,000 timesteps
        found |= {"returns": updated.returns[:, 0, 0], "advantages": updated.advantages}
    elif case.kind == "cloning":
        cloning = BehavioralCloning(__file__)
        cloning.setup(model.policy, 1e-3, 22)
        cloning._expert = rollout  # type: ignore[assignment]
        found["loss"] = cloning.update(0)["loss"]
    return found | {"outputs after": outputs(model, rollout, length, has_critic)}


def numbers(found: Any, names: Any) -> torch.Tensor:
    """Return all numbers that `found` has under the names of `names`, float64 (n,)."""
    if isinstance(names, dict):
        return torch.cat([numbers(found[name], parts) for name, parts in names.items()])
    return torch.flatten(found).double()


def difference(own: Any, peer: Any) -> float:
    """Return the largest absolute difference of numbers with equal names."""
    return float((numbers(own, own) - numbers(peer, own)).abs().nan_to_num(torch.inf).max())


def magnitude(own: Any) -> float:
    """Return the largest absolute value."""
    return float(numbers(own, own).abs().max())


def rows(case: Case, path: str) -> Iterator[tuple[str, float, float]]:
    """Yield what is compared, its largest difference, and its scale."""
    constants: dict[str, Any] = {
        "numpy.random.permutation": np.arange,
        "torch.rand_like": lambda tensor: torch.full_like(tensor, 0.25),
        "torch.randn": lambda size, **_: torch.full(size, 0.3),
        "sb3_ext.imitation.demonstration_exists": lambda _: False,
        "sb3_ext.reward_signals.gail.demonstration_exists": lambda _: False,
    }
    if "use_actions" in case.options:
        constants["sb3_ext.reward_signals.gail._PENALTY_WEIGHT"] = 1e-30
    peer = torch.load(f"{path}.results", weights_only=True)
    with ExitStack() as stack:
        for name, constant in constants.items():
            stack.enter_context(patch(name, constant))
        if case.kind in _SIGNALS:
            shown, expert = (_Experience.from_trajectories(experience(case, seed)) for seed in range(2))
            found = updates(case, shown, expert, peer["weights"])
            yield "rewards and losses", difference(found, peer), magnitude(found)
            return
        own = compute(case, path)
    before, after = own["outputs"], own["outputs after"]
    yield "outputs", difference(before, peer.pop("outputs")), magnitude(before)
    if case.kind != "sac" and all(len(sensor.shape) != 2 for sensor in case.spec.observation_specs):
        yield "update", difference({name: own[name] for name in peer}, peer), difference(before, after)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, metavar="PYTHON", help="interpreter with mlagents installed")
    given = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        cases = {f"{folder}/{number}": case for number, case in enumerate(CASES.values())}
        for path, case in cases.items():
            for seed, name in enumerate((f"{path}.npz", f"{path}.expert.npz")):
                arrays: dict[str, Any] = experience(case, seed).arrays()
                np.savez(name, **arrays)
        text = json.dumps([[*case, path] for path, case in cases.items()], default=lambda member: member.value)
        run = subprocess.run([given.peer_python, "-c", _PEER], input=text, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(run.stderr)
        print("| computation | compared | largest difference | scale |")
        print("|---" * 4 + "|")
        for name, (path, case) in zip(CASES, cases.items(), strict=True):
            for compared, largest, scale in rows(case, path):
                print(f"| {name} | {compared} | {largest:.1e} | {scale:.2f} |", flush=True)
                worst = max(worst, largest / max(scale, 1))
    if worst > _TOLERANCE:
        sys.exit(f"a difference is above {_TOLERANCE}: if another run, with other weights, has none, it was rounding")


if __name__ == "__main__":
    main()
