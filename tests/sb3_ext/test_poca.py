"""POCA: losses and values against a float64 reference, its interface as an SB3 algorithm, and learning checks."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecMonitor
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext import GAIL, POCA, PPO, RND, BehavioralCloning, Curiosity, Extrinsic, OnnxPolicy, UnityVecEnv
from sb3_ext.agents import SpaceAdapter, VecEnvAgents
from sb3_ext.group_index import GroupIndex
from sb3_ext.groups import GroupTrajectories, GroupTrajectoryBuffer
from sb3_ext.learn import main
from sb3_ext.networks import NetworkSettings
from sb3_ext.networks.group import GroupBody
from stand_ins import sacrifice_player
from stand_ins.group_simulation import ACTIONS, SCALE, Decision, GroupSimulation, make
from stand_ins.toy_environments import HYBRID, SPACES, make_toys
from unity_gym.demonstrations import DemonstrationWriter
from unity_gym.errors import UnityGymError
from unity_gym.specs import ActionTuple, Array

posix = pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
EPSILON, BETA, GAMMA, LAMBDA = 0.2, 0.01, 0.9, 0.8
GROUPS = (1, 2, 3, 4, 5, 6, 7, 0, 0)
WIDTH = 16


def weights_of(layer: torch.nn.Linear) -> tuple[Array, Array]:
    return layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()


def dense(layer: torch.nn.Linear, x: Array) -> Array:
    weight, bias = weights_of(layer)
    return x @ weight.T + bias


def swish(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def layers(net: torch.nn.Sequential, x: Array) -> Array:
    for layer in net:
        x = dense(layer, x) if isinstance(layer, torch.nn.Linear) else swish(x)
    return x


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def features(model: POCA, seen: list[Array], done: list[Array | None]) -> Array:
    """Return the features of one group, head by head; `done` is None for members of which only the state is used."""
    body, size = model.policy.group_body, ACTIONS.continuous_size
    embedded = dense(body.embed_state, np.array(seen, np.float64))
    for member, action in enumerate(done):
        if action is not None:
            chosen = zip(ACTIONS.discrete_branches, action[size:].astype(int), strict=True)
            one_hot = [np.eye(n)[choice] for n, choice in chosen]
            embedded[member] += dense(body.embed_action, np.concatenate([action[:size], *one_hot]))
    members = layers(body.layers, swish(embedded))
    query, key = np.split(dense(body.queries_and_keys, layer_norm(members)), 2, 1)
    value = dense(body.values, members)
    heads = []
    for q, k, v in zip(*(np.split(part, 4, 1) for part in (query, key, value)), strict=True):
        weights = np.exp(q @ k.T / 4)
        heads.append(weights / weights.sum(1, keepdims=True) @ v)
    group = (members + np.concatenate(heads, 1)).mean(0)
    return group + layers(body.group_layer, group)


def head(model: POCA, x: Array, members: int) -> float:
    return float(dense(model.policy.value_head, np.append(x, np.log(members)))[0])


class Reference:
    """The expected results of POCA for a rollout of a simulation."""

    def __init__(self, simulation: GroupSimulation, rollout: Any) -> None:
        self.simulation, self.model, self.rollout = simulation, simulation.model, rollout
        self.decisions = np.rint(rollout.observations[0][:, 0].numpy() / SCALE).astype(int)
        self.states: dict[tuple[int, ...], Array] = {}

    def state(self, number: int) -> Array:
        members = tuple(self.simulation.decisions[number].members)
        if members not in self.states:
            seen = [self.simulation.decisions[member].seen for member in members]
            self.states[members] = features(self.model, seen, [None] * len(seen))
        return self.states[members]

    def others(self, number: int) -> Array:
        """Return the inputs of a decision's baseline."""
        members = self.simulation.decisions[number].members
        known = [self.simulation.decisions[member] for member in members]
        done = [None if member == number else each.action for member, each in zip(members, known, strict=True)]
        return features(self.model, [each.seen for each in known], done)

    def size(self, number: int) -> int:
        return len(self.simulation.decisions[number].members)

    def end(self, number: int) -> tuple[Array, int]:
        seen = self.simulation.decisions[number].end
        assert seen
        return features(self.model, seen, [None] * len(seen)), len(seen)

    def estimates(self, values: Array, ends: dict[int, float]) -> Array:
        """Return λ-returns, computed backwards per trajectory."""
        returns, row = np.zeros(len(values)), len(values) - 1
        for length in reversed(self.rollout.lengths):
            for step in range(length):
                decision = self.simulation.decisions[self.decisions[row]]
                if step == 0:
                    assert decision.follows is None
                    returns[row] = decision.reward + GAMMA * (0 if decision.is_over else ends[self.decisions[row]])
                else:
                    assert decision.follows == self.decisions[row + 1]
                    mixed = (1 - LAMBDA) * values[row + 1] + LAMBDA * returns[row + 1]
                    returns[row] = decision.reward + GAMMA * mixed
                row -= 1
        return returns

    def loss(self, chosen: Array, epsilon: float, beta: float) -> float:
        """Return L^CLIP, the two value losses and the entropy of some rows of the rollout."""
        policy, rollout = self.model.policy, self.rollout
        x = layers(policy.body.layers, rollout.observations[0].double().numpy()[chosen])
        actions, masks = rollout.actions.double().numpy()[chosen], rollout.action_masks.numpy()[chosen]
        log_std = policy.head.log_std.detach().double().numpy()
        z = (actions[:, :1] - dense(policy.head.mean, x)) / np.exp(log_std)
        log_probs = [-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)]
        entropy = 0.5 * np.log(2 * np.pi * np.e) + log_std
        logits = dense(policy.head.logits, x)
        for branch, part in enumerate((slice(0, 3), slice(3, 5))):
            weight = np.where(masks[:, part], np.exp(logits[:, part]), 0)
            p = weight / weight.sum(1, keepdims=True)
            log_p = np.log(np.where(p > 0, p, 1))
            log_probs.append(log_p[np.arange(len(p)), actions[:, 1 + branch].astype(int)][:, np.newaxis])
            entropy = entropy - (p * log_p).sum(1)
        ratio = np.exp(np.concatenate(log_probs, 1) - rollout.log_probs.double().numpy()[chosen])
        advantage = rollout.advantages.double().numpy()[chosen, np.newaxis]
        surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - epsilon, 1 + epsilon) * advantage).mean()
        old, target = (x.double().numpy()[chosen, :, 0] for x in (rollout.values, rollout.returns))
        decisions = self.decisions[chosen]
        new = np.array(
            [
                [head(self.model, of(number), self.size(number)) for of in (self.state, self.others)]
                for number in decisions
            ]
        )
        error = (target - new) ** 2
        if self.model.clip_range_vf:
            near = old + np.clip(new - old, -epsilon, epsilon)
            error = np.maximum(error, (target - near) ** 2)
        of_states, of_baselines = error.mean(0)
        return float(-surrogate + 0.5 * (of_states + 0.5 * of_baselines) - beta * entropy.mean())


def simulation(seed: int = 0, **options: Any) -> GroupSimulation:
    network = {"hidden_units": WIDTH, **options.pop("network", {})}
    numbers = {"buffer_size": 250, "batch_size": 90, "n_epochs": 2, "time_horizon": 6, "learning_rate": 3e-3}
    model = make(
        **numbers | options,
        gae_lambda=LAMBDA,
        clip_range=EPSILON,
        ent_coef=BETA,
        learning_rate_schedule="constant",
        policy_kwargs=network,
    )
    regard_actions(model.policy.group_body)
    (signal,) = model._signals()
    signal.gamma = GAMMA
    model.set_logger(configure(None, []))
    return GroupSimulation(model, GROUPS, seed)


def regard_actions(body: GroupBody) -> None:
    """Make baselines depend on the actions of other members, as after training."""
    torch.nn.init.normal_(body.embed_action.weight, std=0.1)


@pytest.mark.parametrize("options", [{"rollout": "trajectories", "clip_range_vf": EPSILON}, {"rollout": "cut"}])
def test_values_baselines_returns_advantages_and_losses_agree_with_a_float64_reference(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = simulation(**options, advantage_normalization="buffer")
    model, losses = place.model, []
    estimate, evaluate, backward = model._estimate, model.policy.evaluate, torch.Tensor.backward
    sizes: set[int] = set()

    def checked_estimate(rollout: Any) -> None:
        estimate(rollout)
        reference = Reference(place, rollout)
        values = np.array([head(model, reference.state(n), reference.size(n)) for n in reference.decisions])
        baselines = np.array([head(model, reference.others(n), reference.size(n)) for n in reference.decisions])
        lasts = reference.decisions[np.cumsum(rollout.lengths) - 1]
        returns = reference.estimates(values, {number: head(model, *reference.end(number)) for number in lasts})
        np.testing.assert_allclose(rollout.values[..., 0], np.stack([values, baselines], 1), atol=1e-5)
        np.testing.assert_allclose(rollout.returns[:, 0, 0], returns, atol=1e-5)
        advantages = returns - baselines
        normal = (advantages - advantages.mean()) / advantages.std()
        np.testing.assert_allclose(rollout.advantages, normal, atol=1e-5)
        sizes.update(map(reference.size, reference.decisions))

    def checked_evaluate(batch: Any) -> Any:
        if hasattr(batch.rollout, "advantages"):
            losses.append(Reference(place, batch.rollout).loss(batch.index.numpy(), EPSILON, BETA))
        return evaluate(batch)

    def checked_backward(loss: torch.Tensor) -> None:
        assert loss.item() == pytest.approx(losses[-1], abs=1e-5)
        backward(loss)

    monkeypatch.setattr(model, "_estimate", checked_estimate)
    monkeypatch.setattr(model.policy, "evaluate", checked_evaluate)
    monkeypatch.setattr(torch.Tensor, "backward", checked_backward)
    place.live(updates=3)
    assert len(losses) >= 12
    assert sizes >= set(range(1, 8))
    assert min(place.happened.values()) >= 3
    assert len(place.happened) == 6


def groups_of(experience: GroupTrajectories) -> tuple[dict[float, set], dict[float, set]]:
    """Return members at each decision, and those after each trajectory, by the decision's first observed number."""

    def facts(arrays: dict[str, Array]) -> list[tuple[float, ...]]:
        return list(map(tuple, np.hstack([arrays["observation_0"], arrays.get("action", np.zeros((0, 0)))]).tolist()))

    own = facts(experience.decisions)
    known = own + facts(experience.context)
    members: dict[int, set] = {}
    for state, decision in experience.members.tolist():
        members.setdefault(state, set()).add(known[decision])
    ends: dict[float, set] = {}
    last = np.cumsum(experience.lengths) - 1
    for trajectory, row in experience.end_members.tolist():
        seen = tuple(experience.end_states["observation_0"][row].tolist())
        ends.setdefault(own[last[trajectory]][0], set()).add(seen)
    states = experience.decisions["state"].tolist()
    return {decision[0]: members[state] for decision, state in zip(own, states, strict=True)}, ends


def test_joined_experience_keeps_the_groups_of_each_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[GroupTrajectories] = []
    for sampler in range(2):
        place = simulation(sampler)
        add = place.model.add

        def noting(part: GroupTrajectories, add: Any = add, sampler: int = sampler) -> None:
            parts.append(replace(part, ends=part.ends | {"row": part.ends["row"] + 100 * sampler}))
            add(part)

        monkeypatch.setattr(place.model, "add", noting)
        place.decisions = [Decision(np.zeros(3), -1, -1, [])] * (10_000 * sampler)  # so that all numbers differ
        place.live(updates=3)
    joined = GroupTrajectories.join(parts)
    found = groups_of(joined)
    for kind in range(2):
        expected = {number: those for part in parts for number, those in groups_of(part)[kind].items()}
        assert len(expected) > 100
        assert found[kind] == expected


@pytest.mark.parametrize(("buffer_size", "updates"), [(250, 2), (30, 8)])
@pytest.mark.parametrize("rollout", ["trajectories", "cut"])
def test_the_recurrent_state_of_the_critic_follows_each_member_through_its_episode(
    rollout: str, buffer_size: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also through updates whose buffers lack the experience of some members."""
    options = {"learning_rate": 0.0, "buffer_size": buffer_size, "batch_size": min(buffer_size, 90)}
    place = simulation(rollout=rollout, **options, network={"memory_size": 8, "sequence_length": 4})
    model = place.model
    assert model.policy.group_body.memory is not None
    cell = copy.deepcopy(model.policy.group_body.memory.lstm).double()
    recurrent: dict[tuple[int, str], Any] = {}  # of an episode, by V or b
    estimate, evaluate, rollouts = model._estimate, model.policy.evaluate, []

    @torch.no_grad()
    def value(x: Array, memory: Any, members: int) -> tuple[float, Any]:
        out, memory = cell(torch.from_numpy(x).reshape(1, 1, -1), memory)
        return head(model, out.numpy().reshape(-1), members), memory

    def checked_estimate(rollout: Any) -> None:
        estimate(rollout)
        reference = Reference(place, rollout)
        expected, ends = {}, {}
        lasts = set(reference.decisions[np.cumsum(rollout.lengths) - 1])
        for number in sorted(reference.decisions):
            episode, both = place.decisions[number].episode, []
            for name, of in (("V", reference.state), ("b", reference.others)):
                before = recurrent.get((episode, name))
                one, recurrent[episode, name] = value(of(number), before, reference.size(number))
                both.append(one)
            expected[number] = both
            if number in lasts:
                x, members = reference.end(number)
                ends[number], _ = value(x, recurrent[episode, "V"], members)
        values = np.array([expected[number] for number in reference.decisions])
        np.testing.assert_allclose(rollout.values[..., 0], values, atol=1e-5)
        np.testing.assert_allclose(rollout.returns[:, 0, 0], reference.estimates(values[:, 0], ends), atol=1e-5)
        rollouts.append(rollout)

    def checked_evaluate(batch: Any) -> Any:
        values, *rest = evaluate(batch)
        valid = slice(None) if batch.valid is None else batch.valid
        torch.testing.assert_close(values[valid], batch.values[valid], atol=1e-5, rtol=0)
        return values, *rest

    monkeypatch.setattr(model, "_estimate", checked_estimate)
    monkeypatch.setattr(model.policy, "evaluate", checked_evaluate)
    place.live(updates=updates)
    assert len(rollouts) == updates


def test_recurrent_states_of_the_critic_are_recomputed_with_the_new_weights_between_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = simulation(network={"memory_size": 8, "sequence_length": 4})
    policy, rollouts = place.model.policy, []
    estimate = place.model._estimate
    monkeypatch.setattr(place.model, "_estimate", lambda rollout: rollouts.append(rollout) or estimate(rollout))
    place.live(updates=2)
    rollout = rollouts[-1]
    before = rollout.values[..., 0].clone()
    policy.refresh_memory(rollout)
    with torch.no_grad():
        batches = [(batch, policy.evaluate(batch)[0][..., 0]) for batch in rollout.shuffled(90, 4, drop_last=False)]
    expected = policy.group_values(rollout)[0][..., 0]
    assert (expected - before).abs().max() > 1e-2
    for batch, values in batches:
        valid = slice(None) if batch.valid is None else batch.valid
        torch.testing.assert_close(values[valid], expected[batch.index][valid], atol=1e-5, rtol=0)


@pytest.mark.parametrize("members", range(1, 8))
def test_the_order_of_the_members_has_no_effect(members: int) -> None:
    body = GroupBody(GroupSimulation(make(), ()).table.spec, NetworkSettings(hidden_units=16))
    regard_actions(body)
    rng = np.random.default_rng(members)
    seen, done = torch.randn(9, 3), torch.stack([torch.randn(9), torch.arange(9) % 3, torch.arange(9) % 2], 1)
    rows, order = torch.from_numpy(rng.permutation(9)[:members]), torch.from_numpy(rng.permutation(members))

    def look(rows: torch.Tensor, gaps: int) -> torch.Tensor:
        present = torch.arange(members + gaps) < members
        sets = GroupIndex(torch.nn.functional.pad(rows, (0, gaps))[None], present[None])
        return body([seen], sets, done, torch.zeros(members, dtype=torch.int64), torch.arange(members))

    expected, found = look(rows, 0), look(rows[order], 2)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1:], expected[1:][order])


def test_the_baseline_of_a_member_depends_on_the_actions_of_others_but_not_its_own() -> None:
    body = GroupBody(GroupSimulation(make(), ()).table.spec, NetworkSettings(hidden_units=16))
    seen, done = torch.randn(3, 3), torch.zeros(3, 3, requires_grad=True)
    sets = GroupIndex(torch.arange(3)[None], torch.ones(1, 3, dtype=torch.bool))
    of_value, *of_baselines = body([seen], sets, done, torch.zeros(3, dtype=torch.int64), torch.arange(3))
    for features in of_baselines:
        torch.testing.assert_close(features, of_value)  # until the first update
    regard_actions(body)
    both = body([seen], sets, done, torch.zeros(3, dtype=torch.int64), torch.arange(3))
    for of, features in enumerate(both, -1):
        (gradient,) = torch.autograd.grad(features.square().sum(), done, retain_graph=True)
        depends = gradient[:, 0] != 0
        assert depends.tolist() == [of >= 0 and member != of for member in range(3)]


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("name", ["both", "image"])
def test_save_and_load_keep_every_action_and_learning_continues(name: str, memory: int, tmp_path: Path) -> None:
    actions, observations = SPACES[name]
    env = make_toys(actions, observations, 2)
    network = {"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    model = POCA(
        "UnityPOCAPolicy", env, buffer_size=30, batch_size=16, policy_kwargs=network, groupmate_rewards=False,
        baseline_coef=0.25, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(100)
    model.save(tmp_path / "model")
    loaded = POCA.load(tmp_path / "model", env, device="cpu")
    assert (loaded.groupmate_rewards, loaded.baseline_coef) == (False, 0.25)
    for key, value in model.policy.state_dict().items():
        assert torch.equal(loaded.policy.state_dict()[key], value)
    state = other = None
    for step in range(4):
        observation = model.observation_space.sample()
        torch.manual_seed(step)
        first, state = model.predict(observation, state)
        torch.manual_seed(step)
        second, other = loaded.predict(observation, other)
        for key in first if isinstance(first, dict) else [...]:
            np.testing.assert_array_equal(first[key], second[key])
        assert (state is None) == (memory == 0)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps >= model.num_timesteps + 60
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
def test_acting_evaluates_the_actor_only(memory: int, tmp_path: Path) -> None:
    env = make_toys(HYBRID)
    network = {"hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    model = POCA("UnityPOCAPolicy", env, buffer_size=30, batch_size=16, policy_kwargs=network, seed=0, device="cpu")
    model.learn(40)
    observation = np.ones(4, np.float32)
    expected, _ = model.predict(observation, deterministic=True)
    assert model.policy.memory_size == memory
    del model.policy.group_body, model.policy.value_head
    found, _ = model.predict(observation, deterministic=True)
    model.export_onnx(tmp_path / "model.onnx")
    exported, _ = OnnxPolicy(tmp_path / "model.onnx").predict(observation, deterministic=True)
    for key, part in expected.items():
        np.testing.assert_array_equal(found[key], part)
        np.testing.assert_allclose(exported[key], part, atol=1e-5)
    env.close()


@pytest.fixture(scope="module")
def knights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the player of a group that needs a sacrifice."""
    return Path(sacrifice_player.launcher(tmp_path_factory.mktemp("knights")))


@pytest.fixture(scope="module")
def strikes(knights: Path) -> Path:
    """Return a demonstration of an agent that always strikes."""
    env = UnityVecEnv("Unity-v0", file_name=str(knights), seed=0)
    path = knights.with_name("strikes.demo")
    with DemonstrationWriter(path, "Knight", env.table.spec) as writer:
        for step in range(13):
            view, ended = np.eye(10, dtype=np.float32)[3 + step % 6], step == 12
            strike = ActionTuple(np.zeros((1, 0), np.float32), np.full((1, 1), sacrifice_player.STRIKE, np.int32))
            writer.add([view], None if ended else strike, terminated=ended)
    env.close()
    return path


@posix
@pytest.mark.parametrize("memory", [0, 8])
def test_every_reward_signal_and_cloning_train_groups(knights: Path, strikes: Path, memory: int) -> None:
    env = UnityVecEnv("Unity-v0", file_name=str(knights), seed=0)
    signals = [
        Extrinsic(gamma=0.9),
        Curiosity(strength=0.1, hidden_units=16),
        RND(strength=0.1, hidden_units=16),
        GAIL(strikes, strength=0.1, hidden_units=16),
    ]
    model = POCA(
        "UnityPOCAPolicy",
        env,
        1e-3,
        buffer_size=300,
        batch_size=64,
        reward_signals=signals,
        demonstrations=BehavioralCloning(strikes),
        policy_kwargs={"hidden_units": 16, "memory_size": memory, "sequence_length": 4},
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    model.learn(700)
    logged = model.logger.name_to_value
    for name in ("extrinsic", "curiosity", "rnd", "gail"):
        assert {f"rollout/{name}_{kind}" for kind in ("reward", "value_estimate", "baseline_estimate")} <= logged.keys()
    assert {"train/value_loss", "train/baseline_loss", "train/cloning_loss", "train/gail_loss"} <= logged.keys()
    assert model.policy.value_head.out_features == 4
    env.close()


@pytest.mark.parametrize("groupmates", [True, False])
def test_individual_rewards_of_groupmates_can_be_excluded(groupmates: bool) -> None:
    place = simulation(groupmate_rewards=groupmates)
    model, rollouts = place.model, []
    take = model._take_rollout
    model._take_rollout = lambda: rollouts.append(take()) or rollouts[-1]  # type: ignore[method-assign]
    place.live(updates=1)
    (rollout,) = rollouts
    expected = rollout.rewards + rollout.group_rewards + groupmates * rollout.groups.groupmate_rewards
    assert model._records["rollout/extrinsic_reward"] == pytest.approx(expected.mean().item())


def test_rewards_of_groupmates_do_not_include_those_before_the_decision() -> None:
    """Decisions between two calls of `learn` are not stored."""

    class Pair(VecEnvAgents):
        group = np.ones(2, np.int64)  # type: ignore[assignment]

    env = make_toys(spaces.Discrete(2), n=2)
    agents = Pair(env, SpaceAdapter(env.observation_space, env.action_space), env.reset())
    experience, rows = GroupTrajectoryBuffer(64, 0), np.arange(2)
    action, memory = np.zeros((2, 1), np.float32), np.zeros((2, 0), np.float32)
    for reward, is_stored in ((1, True), (100, False), (3, True)):
        if is_stored:
            experience.store_decisions(agents, rows, action, action, memory)
        else:
            experience.cut_rows(agents, rows, memory)
        agents.reward = np.full(2, reward, np.float32)
        experience.store_outcomes(agents, memory)
    experience.cut(memory)
    assert experience.take().decisions["groupmate_reward"].tolist() == [1, 3, 1, 3]
    env.close()


def test_unsupported_uses_of_poca_raise() -> None:
    env = make_toys(spaces.Discrete(2))
    with pytest.raises(TypeError, match="second_critic"):
        POCA("UnityPOCAPolicy", env, second_critic="min")
    with pytest.raises(UnityGymError, match="one critic is that of the group"):
        POCA("UnityPOCAPolicy", env, policy_kwargs={"shared_critic": True})
    with pytest.raises(UnityGymError, match="multiple of 4"):
        POCA("UnityPOCAPolicy", env, policy_kwargs={"hidden_units": 18})
    with pytest.raises(UnityGymError, match="groups of the agents"):
        POCA("UnityPOCAPolicy", env).policy.state_values([torch.zeros(1, 4)], torch.zeros(1, 0))
    env.close()
    wrapped = VecMonitor(UnityVecEnv("Unity-Basic-v0"))
    with pytest.raises(UnityGymError, match="learn on the UnityVecEnv itself"):
        POCA("UnityPOCAPolicy", wrapped).learn(10)
    wrapped.close()


@posix
def test_unity_learn_trains_poca_and_resumes(knights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "trainer_type": "poca",
        "hyperparameters": {"batch_size": 64, "buffer_size": 300},
        "network_settings": {"hidden_units": 16},
        "reward_signals": {"extrinsic": {"gamma": 0.9}, "curiosity": {"strength": 0.01}},
        "max_steps": 1000,
        "summary_freq": 500,
        "time_horizon": 8,
    }
    file = tmp_path / "knights.yaml"
    file.write_text(yaml.safe_dump({"behaviors": {"Knight": settings}}), encoding="utf-8")
    command = [str(file), "--env", str(knights), "--results-dir", str(tmp_path), "--run-id", "run", "--seed", "1"]
    assert main(command) == 0
    folder = tmp_path / "run" / "Knight"
    events = EventAccumulator(str(folder)).Reload()
    assert {
        "Environment/Group Cumulative Reward",
        "Losses/Baseline Loss",
        "Policy/Extrinsic Baseline Estimate",
        "Policy/Curiosity Baseline Estimate",
    } <= set(events.Tags()["scalars"])
    (last,) = folder.glob("*.zip")
    policy = OnnxPolicy(tmp_path / "run" / "Knight.onnx")
    view = np.eye(10, dtype=np.float32)[0]
    expected, _ = POCA.load(last, device="cpu").predict(view, deterministic=True)
    assert policy.predict(view, deterministic=True)[0] == expected
    settings["max_steps"] = 1500
    file.write_text(yaml.safe_dump({"behaviors": {"Knight": settings}}), encoding="utf-8")
    assert main([*command, "--resume"]) == 0
    assert [
        line.split(". Time")[0] for line in capsys.readouterr().out.splitlines() if "Mean Group Reward: " in line
    ] == [f"[INFO] Knight. Step: {step}" for step in (500, 1000, 1500)]


def courage(kind: type[PPO], seed: int, knights: Path) -> float:
    """Train for `SACRIFICES` decisions; return how often the sword bearer strikes the dragon."""
    env = UnityVecEnv("Unity-v0", file_name=str(knights), seed=seed)
    model = kind(
        "UnityPOCAPolicy" if kind is POCA else "UnityPolicy",
        env,
        3e-3,
        buffer_size=512,
        batch_size=128,
        time_horizon=6,
        policy_kwargs={"hidden_units": 32},
        seed=seed,
        device="cpu",
    )
    model.learn(SACRIFICES)
    env.close()
    view = np.concatenate([np.eye(3)[0], np.eye(6)[sacrifice_player.DRAGON], [0]]).astype(np.float32)
    chosen, _ = model.predict(np.tile(view, (500, 1)))
    return float((chosen == sacrifice_player.STRIKE).mean())


SACRIFICES = 20_000


@posix
@pytest.mark.slow
def test_poca_learns_to_sacrifice_a_member_and_ppo_does_not(knights: Path) -> None:
    assert min(courage(POCA, seed, knights) for seed in range(5)) > 0.9
    assert max(courage(PPO, seed, knights) for seed in range(5)) < 0.1
