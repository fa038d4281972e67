"""SAC: losses against float64 references and plain SB3, its interface as an SB3 algorithm, and learning checks."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.sac.sac as plain_module
import torch
from gymnasium import spaces
from stable_baselines3 import SAC as PlainSAC  # noqa: N811
from stable_baselines3.common.buffers import ReplayBufferSamples
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from sb3_ext import SAC, Extrinsic, UnityVecEnv
from sb3_ext.replay import ReplayBatch
from sb3_ext.reward_signals import RewardSignal
from sb3_ext.sac_policy import UnitySACPolicy
from stand_ins import all_sensors_player
from stand_ins.toy_environments import HYBRID, SPACES, Bits, assert_the_same_predictions, make_toys
from unity_gym.errors import InvalidValueError, UnityGymError

NUMBERS = spaces.Box(-1, 1, (2,), np.float32)
ACTIONS = {"numbers": NUMBERS, "choice": spaces.Discrete(4), "branches": spaces.MultiDiscrete([3, 2]), "both": HYBRID}


class Endless(RewardSignal):
    """An environment without an end, for a model that counts its updates."""

    name = "endless"
    non_episodic = True

    def setup(self, _spec: Any) -> None:
        self.updates = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

    def rewards(self, batch: Any) -> torch.Tensor:
        return batch.next_observations[0][:, 0] - batch.environment_actions[:, 0]

    def update(self, batch: Any) -> dict[str, float]:
        assert batch.observations[0].shape == batch.next_observations[0].shape
        self.updates += 1
        return {"loss": 2.0}


class Noise:
    """Replace the noise of continuous actions, and record it."""

    def __init__(self) -> None:
        self.drawn: list[torch.Tensor] = []

    def draw(self, model: SAC, batch: ReplayBatch, _: slice | None) -> torch.Tensor:
        shape = (len(batch), model.policy.adapter.spec.action_spec.continuous_size)
        self.drawn.append(torch.from_numpy(np.random.default_rng(len(self.drawn)).normal(size=shape)).float())
        return self.drawn[-1]


class Reference:
    """The losses of one minibatch in float64, written out from the equations, and their gradients by autograd."""

    def __init__(self, model: SAC, batch: ReplayBatch) -> None:
        self.weights = {
            name: value.detach().double().clone().requires_grad_(value.is_floating_point())
            for name, value in model.policy.state_dict().items()
        }
        self.model, self.batch = model, batch
        self.settings = model.policy.settings
        self.action = model.policy.adapter.spec.action_spec

    def normalized(self, observations: torch.Tensor) -> torch.Tensor:
        count, mean, squares = (
            self.weights[f"body.normalization.{name}"].detach() for name in ("count", "mean", "squares")
        )
        return ((observations.double() - mean) / (squares / count).sqrt()).clamp(-5, 5)

    @staticmethod
    def swish(x: torch.Tensor) -> torch.Tensor:
        return x / (1 + torch.exp(-x))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def lstm(self, name: str, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(sequences, steps, inputs), one step after another."""
        hidden = self.settings.memory_size // 2
        h, c = memory.double().split(hidden, 1)
        w, u = self.weights[f"{name}.weight_ih_l0"], self.weights[f"{name}.weight_hh_l0"]
        b = self.weights[f"{name}.bias_ih_l0"] + self.weights[f"{name}.bias_hh_l0"]
        out = []
        for step in range(x.shape[1]):
            i, f, g, o = (x[:, step] @ w.T + h @ u.T + b).split(hidden, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1)

    def body(self, name: str, steps: int, part: int) -> torch.Tensor:
        """Return the features of the first states of each sequence, (sequences · steps, features)."""
        arrays = [array.view(self.batch.sequences, self.batch.length + 1, -1)[:, :steps] for array in self.batch.states]
        x = self.normalized(torch.cat(arrays, 2))
        if name == "body" or self.settings.memory_size:
            for layer in (0, 2):
                x = self.swish(self.linear(f"{name}.layers.{layer}", x))
        if self.settings.memory_size:
            memory = self.batch.memory.split(self.settings.memory_size, 1)[part]
            x = self.lstm(f"{name}.memory.lstm", x, memory)
        return x

    def q(self, name: str, x: torch.Tensor, continuous: torch.Tensor | None, twin: int, signal: int) -> torch.Tensor:
        """Return q values, (m, discrete actions or 1)."""
        x = x if continuous is None else torch.cat([x, continuous], 1)
        for layer in (0, 2):
            x = self.swish(
                x @ self.weights[f"{name}.layers.{layer}.weight"][twin]
                + self.weights[f"{name}.layers.{layer}.bias"][twin]
            )
        x = x @ self.weights[f"{name}.head.weight"][twin] + self.weights[f"{name}.head.bias"][twin]
        branch_size = sum(self.action.discrete_branches) or 1
        return x[:, signal * branch_size : (signal + 1) * branch_size]

    def act(self, x: torch.Tensor, masks: torch.Tensor, noise: torch.Tensor | None) -> tuple[Any, Any, list[Any]]:
        """Return continuous actions, their log-density, and the probabilities of each branch."""
        continuous = log_density = None
        if self.action.continuous_size:
            assert noise is not None
            mean, log_std = self.linear("head.mean", x), self.linear("head.log_std", x).clamp(-20, 2)
            raw = mean + log_std.exp() * noise.double()
            continuous = torch.tanh(raw)
            gauss = -0.5 * ((raw - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
            log_density = (gauss - torch.log(1 - continuous**2)).sum(1)
        branches, start = [], 0
        for size in self.action.discrete_branches:
            weight = torch.exp(self.linear("head.logits", x)[:, start : start + size]) * masks[:, start : start + size]
            branches.append(weight / weight.sum(1, keepdim=True))
            start += size
        return continuous, log_density, branches

    def entropies(self, log_density: Any, branches: list[Any]) -> list[torch.Tensor]:
        entropies = [] if log_density is None else [-log_density]
        return entropies + [-(p * torch.log(torch.where(p > 0, p, 1))).sum(1) for p in branches]

    def value(self, name: str, x: torch.Tensor, acted: tuple[Any, Any, list[Any]], signal: int) -> torch.Tensor:
        continuous, log_density, branches = acted
        q = torch.minimum(*(self.q(name, x, continuous, twin, signal) for twin in range(2)))
        alpha = self.weights["log_ent_coef"].detach().exp()
        entropies = self.entropies(log_density, branches)
        if branches:
            value, start = torch.zeros(len(x), dtype=torch.float64), 0
            for p in branches:
                value = value + (p * q[:, start : start + p.shape[1]]).sum(1) / len(branches)
                start += p.shape[1]
            for index in range(len(branches)):
                value = value + alpha[len(entropies) - len(branches) + index] * entropies[index - len(branches)] / len(
                    branches
                )
        else:
            value = q[:, 0]
        return value if log_density is None else value + alpha[0] * entropies[0]

    def losses(self, noise: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        batch, model = self.batch, self.model
        length, size = batch.length, self.action.continuous_size
        valid = torch.ones(len(batch), dtype=torch.bool) if batch.valid is None else batch.valid
        flat = lambda x: x.flatten(0, 1)  # noqa: E731
        features = self.body("body", length + 1, 0)
        current = self.act(flat(features[:, :-1]), batch.action_masks, noise[1] if size else None)
        with torch.no_grad():
            following = self.act(flat(features[:, 1:]), batch.next_action_masks, noise[0] if size else None)
            next_states = flat(self.body("critic_target.body", length + 1, 1)[:, 1:])
            targets = []
            for index, signal in enumerate(model._signals()):
                rewards = (
                    (batch.rewards + batch.group_rewards).double() if index == 0 else signal.rewards(batch).double()
                )
                over = batch.terminated.double() * (not signal.non_episodic)
                value = self.value("critic_target", next_states, following, index)
                targets.append(signal.strength * rewards + signal.gamma * (1 - over) * value)
        states = flat(self.body("critic.body", length, 1))
        q_losses = []
        done = batch.actions.double()
        for twin in range(2):
            error = torch.zeros(len(batch), dtype=torch.float64)
            for index, target in enumerate(targets):
                q = self.q("critic", states, done[:, :size] if size else None, twin, index)
                if self.action.discrete_size:
                    start, chosen = 0, []
                    for branch, branch_size in enumerate(self.action.discrete_branches):
                        chosen.append(q[torch.arange(len(q)), start + done[:, size + branch].long()])
                        start += branch_size
                    q = torch.stack(chosen, 1).mean(1)
                else:
                    q = q[:, 0]
                error = error + 0.5 * (q - target) ** 2 / len(targets)
            q_losses.append(error[valid].mean())
        values = [self.value("critic", states.detach(), current, index)[valid].mean() for index in range(len(targets))]
        entropies = torch.stack(self.entropies(current[1], current[2]), 1)[valid].mean(0).detach()
        goals = [torch.tensor(-float(size))] if size else []
        for masks in (
            batch.action_masks[valid].split(self.action.discrete_branches, 1) if self.action.discrete_size else ()
        ):
            goals.append(0.2 * masks.sum(1).double().log().mean())
        return {
            "q_loss": torch.stack(q_losses),
            "actor_loss": -torch.stack(values).mean(),
            "value": torch.stack(values),
            "log_prob": -entropies,
            "ent_coef_loss": -(self.weights["log_ent_coef"] * (torch.stack(goals) - entropies)).sum(),
        }

    def gradients(self, losses: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the gradients of each loss for the parameters that it updates."""
        found = {}
        for part, loss in (
            (("body.", "head."), losses["actor_loss"]),
            (("critic.",), losses["q_loss"].sum()),
            (("log_ent_coef",), losses["ent_coef_loss"]),
        ):
            names = [name for name in self.weights if name.startswith(part) and "normalization" not in name]
            gradients = torch.autograd.grad(loss, [self.weights[name] for name in names], retain_graph=True)
            found |= dict(zip(names, gradients, strict=True))
        return found


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("kind", ACTIONS)
def test_losses_targets_and_gradients_agree_with_a_float64_reference(
    kind: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_toys(ACTIONS[kind])
    signals = [Extrinsic(gamma=0.9, strength=0.5), Endless(gamma=0.7, strength=2.0)]
    network = {"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 3}
    model = SAC(
        "UnitySACPolicy", env, 3e-3, buffer_size=3000, batch_size=60, tau=0.3, steps_per_update=20, init_entcoef=0.3,
        reward_signals=signals, policy_kwargs=network, seed=0, device="cpu",
    )  # fmt: skip
    model.set_logger(configure(None, []))
    noise, seen = Noise(), 0
    monkeypatch.setattr(SAC, "_noise", lambda *arguments: noise.draw(*arguments))
    update = model._update

    def checked(batch: ReplayBatch) -> dict[str, torch.Tensor]:
        nonlocal seen
        seen += 1
        noise.drawn.clear()
        reference = Reference(model, batch)
        actual = update(batch)
        expected = reference.losses(noise.drawn)
        for name in ("q_loss", "actor_loss", "value", "log_prob"):
            np.testing.assert_allclose(actual[name], expected[name].detach(), atol=1e-5, rtol=1e-5, err_msg=name)
        gradients = reference.gradients(expected)
        learned = {name: p.grad for name, p in model.policy.named_parameters() if p.grad is not None}
        assert learned.keys() == gradients.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(learned[name], gradient, atol=1e-5, rtol=1e-4, err_msg=name)
        for name, value in model.policy.critic_target.state_dict().items():
            if "normalization" not in name:
                moved = 0.7 * reference.weights[f"critic_target.{name}"] + 0.3 * model.policy.critic.state_dict()[name]
                np.testing.assert_allclose(value, moved.detach(), atol=1e-6)
        assert batch.terminated.any()
        assert (batch.valid is not None) == (memory > 0)
        return actual

    model._update = checked  # type: ignore[method-assign]
    model.learn(400)
    assert seen >= 10
    env.close()


def test_each_update_equals_plain_sac_except_that_all_losses_precede_all_optimizer_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = DummyVecEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=15)] * 4)
    rate = 0.05
    plain = PlainSAC(
        "MlpPolicy", env, rate, ent_coef="auto_0.4", tau=0.1, gamma=0.95, device="cpu", seed=0,
        policy_kwargs={"net_arch": [16, 16], "activation_fn": torch.nn.SiLU, "optimizer_class": torch.optim.SGD},
    )  # fmt: skip
    assert plain.log_ent_coef is not None
    plain.ent_coef_optimizer = torch.optim.SGD([plain.log_ent_coef], rate)  # type: ignore[assignment]
    plain.actor.action_dist.epsilon = 0  # what it adds to the Jacobian of tanh
    ours = SAC(
        "UnitySACPolicy", env, rate, batch_size=32, tau=0.1, init_entcoef=0.4, steps_per_update=1e6,
        reward_signals=[Extrinsic(gamma=0.95)],
        policy_kwargs={"hidden_units": 16, "optimizer_class": torch.optim.SGD}, device="cpu", seed=0,
    )  # fmt: skip
    for model in (plain, ours):
        model.set_logger(configure(None, []))
    ours.learn(300)
    for actual, expected in ((0, 0), (2, 2)):
        ours.policy.body.layers[actual].load_state_dict(plain.actor.latent_pi[expected].state_dict())
    ours.policy.head.mean.load_state_dict(plain.actor.mu.state_dict())
    ours.policy.head.log_std.load_state_dict(plain.actor.log_std.state_dict())

    def twins(critic: Any) -> list[tuple[str, torch.Tensor]]:
        found = []
        for name, layer in (("layers.0", 0), ("layers.2", 2), ("head", 4)):
            weights = [getattr(critic, f"qf{index}")[layer] for index in range(2)]
            found.append((f"{name}.weight", torch.stack([linear.weight.T for linear in weights])))
            found.append((f"{name}.bias", torch.stack([linear.bias[None] for linear in weights])))
        return found

    for actual, expected in ((ours.policy.critic, plain.critic), (ours.policy.critic_target, plain.critic_target)):
        actual.load_state_dict(dict(twins(expected)))

    pending: list[torch.Tensor] = []
    step, polyak = plain.critic.optimizer.step, plain_module.polyak_update
    parameters = list(plain.critic.parameters())

    def later() -> None:
        pending.extend(parameter.grad.clone() for parameter in parameters)

    def now(*arguments: Any) -> None:
        for parameter, gradient in zip(parameters if pending else [], pending, strict=True):
            parameter.grad = gradient
        if pending:
            step()
            pending.clear()
        polyak(*arguments)

    plain.critic.optimizer.step = later  # type: ignore[method-assign]
    monkeypatch.setattr(plain_module, "polyak_update", now)
    for number in range(5):
        batch = ours.replay_buffer.sample(32)
        sample = ReplayBufferSamples(
            batch.observations[0], batch.actions, batch.next_observations[0], batch.terminated.float()[:, None],
            batch.rewards[:, None],
        )  # fmt: skip
        plain.replay_buffer.sample = lambda *_, sample=sample, **__: sample  # type: ignore[method-assign,union-attr]
        rng = np.random.default_rng(number)
        noise = [torch.from_numpy(rng.normal(size=(32, 1))).float() for _ in range(2)]
        drawn = iter(noise)
        monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda *_, drawn=drawn, **__: next(drawn))
        plain.train(1, 32)
        drawn = iter(noise[::-1])
        monkeypatch.setattr(SAC, "_noise", lambda *_, drawn=drawn: next(drawn))
        ours._update(batch)
        pairs = [
            (ours.policy.body.layers[2].weight, plain.actor.latent_pi[2].weight),
            (ours.policy.head.mean.weight, plain.actor.mu.weight),
            (ours.policy.head.log_std.bias, plain.actor.log_std.bias),
            (ours.policy.log_ent_coef, plain.log_ent_coef),
        ]
        pairs += [(ours.policy.critic.state_dict()[name], value) for name, value in twins(plain.critic)]
        pairs += [(ours.policy.critic_target.state_dict()[name], value) for name, value in twins(plain.critic_target)]
        for actual, expected in pairs:
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    env.close()


def test_each_agent_has_its_own_recurrent_state_which_is_replayed_in_sequences() -> None:
    env = make_toys(spaces.Discrete(2), n=1)
    network = {"hidden_units": 16, "memory_size": 8, "sequence_length": 3}
    model = SAC(
        "UnitySACPolicy",
        env,
        0.0,
        buffer_size=600,
        batch_size=30,
        steps_per_update=50,
        policy_kwargs=network,
        seed=0,
        device="cpu",
    )
    model.learn(150)
    arrays, lengths = model.replay_buffer._arrays, model.replay_buffer._length
    continued = 0
    for sequence in range(len(lengths) - 1):
        if not lengths[sequence + 1]:
            break
        memory = torch.from_numpy(arrays["memory"][sequence : sequence + 1])
        following = torch.from_numpy(arrays["memory"][sequence + 1 : sequence + 2])
        for place in range(lengths[sequence]):
            state = torch.from_numpy(arrays["observation_0"][sequence, place : place + 1])
            with torch.no_grad():
                _, _, memory = model.policy.act([state], None, memory)
        if lengths[sequence] < 3 or not following.any():
            assert not following.any()  # an episode starts
        else:
            torch.testing.assert_close(memory, following)
            assert memory[:, :8].ne(memory[:, 8:]).any()  # the critics have their own
            continued += 1
    assert continued > 10
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("name", SPACES)
def test_save_and_load_keep_every_action_and_learning_continues(name: str, memory: int, tmp_path: Path) -> None:
    actions, observations = SPACES[name]
    if isinstance(actions, spaces.MultiBinary):
        env = DummyVecEnv([lambda: Bits(actions, observations)] * 2)
    else:
        env = make_toys(actions, observations, 2)
    network = {"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    model = SAC(
        "UnitySACPolicy",
        env,
        3e-3,
        buffer_size=200,
        batch_size=16,
        steps_per_update=5,
        policy_kwargs=network,
        seed=0,
        device="cpu",
    )
    model.learn(100)
    model.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env, device="cpu")
    assert loaded.num_timesteps == model.num_timesteps == 100
    assert loaded._n_updates == model._n_updates > 10
    for key, value in model.policy.state_dict().items():
        assert torch.equal(loaded.policy.state_dict()[key], value)
    assert "log_ent_coef" in model.policy.state_dict()
    states = [each.policy.optimizer.state_dict()["state"].values() for each in (model, loaded)]
    for actual, expected in zip(*states, strict=True):
        assert torch.equal(actual["exp_avg_sq"], expected["exp_avg_sq"])
    assert_the_same_predictions(model, loaded, actions, memory)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps == 160
    assert loaded._n_updates > model._n_updates
    alone = tmp_path / "policy.pt"
    model.policy.save(alone)
    lone = UnitySACPolicy.load(alone, device="cpu")
    for key, value in model.policy.state_dict().items():
        assert torch.equal(lone.state_dict()[key], value)
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
def test_learning_continues_from_model_and_replay_buffer_as_if_never_interrupted(memory: int, tmp_path: Path) -> None:
    env = make_toys(HYBRID)
    network = {"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    model = SAC(
        "UnitySACPolicy",
        env,
        3e-3,
        buffer_size=400,
        batch_size=16,
        steps_per_update=3.5,
        reward_signals=[Extrinsic(), Endless()],
        reward_signal_steps_per_update=7,
        policy_kwargs=network,
        seed=0,
        device="cpu",
    )
    model.learn(150)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"model.zip", "model.npz"}
    loaded = SAC.load(tmp_path / "model", make_toys(HYBRID), device="cpu")
    loaded.load_replay_buffer(tmp_path / "model")
    assert len(loaded.replay_buffer) == len(model.replay_buffer) > 100
    for each in (model, loaded):
        each.set_env(make_toys(HYBRID))
        each.set_random_seed(1)
        each.learn(99, reset_num_timesteps=False)
    assert model.num_timesteps == loaded.num_timesteps == 249
    for key, value in model.policy.state_dict().items():
        assert torch.equal(loaded.policy.state_dict()[key], value)
    assert loaded.signals["endless"].updates == model.signals["endless"].updates > 20
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
def test_the_first_statistics_have_the_observations_of_a_loaded_replay_buffer(memory: int, tmp_path: Path) -> None:
    network = {"normalize": True, "hidden_units": 8, "memory_size": memory, "sequence_length": 4}
    model = SAC(
        "UnitySACPolicy", make_toys(HYBRID), batch_size=16, buffer_init_steps=100, policy_kwargs=network, device="cpu"
    )
    model.learn(90)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer.npz")
    loaded = SAC.load(tmp_path / "model", make_toys(HYBRID), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer.npz")
    for each in (model, loaded):
        each.set_env(make_toys(HYBRID))
        each.set_random_seed(1)
        each.learn(60, reset_num_timesteps=False)
    first, second = (each.policy.body.normalization for each in (model, loaded))
    assert first is not None
    assert second is not None
    assert first.count == second.count == 1 + model.replay_buffer.seen
    torch.testing.assert_close(second.mean, first.mean)
    torch.testing.assert_close(second.squares, first.squares)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(("init", "per_update", "per_signal"), [(0, 10, 5), (90, 4, 8), (0, 0.5, 1), (0, 7.5, 7.5)])
def test_updates_are_as_frequent_as_configured(init: int, per_update: float, per_signal: float, threaded: bool) -> None:
    env = make_toys(spaces.Discrete(2))
    model = SAC(
        "UnitySACPolicy", env, buffer_size=1000, batch_size=30, steps_per_update=per_update, buffer_init_steps=init,
        reward_signal_steps_per_update=per_signal, reward_signals=[Extrinsic(), Endless()], threaded=threaded,
        policy_kwargs={"hidden_units": 8}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(300)
    counted = 300 - max(init, 30)
    assert abs(model._n_updates - counted / per_update) <= max(3 / per_update, 1)
    assert abs(model.signals["endless"].updates - counted / per_signal) <= max(3 / per_signal, 1)
    env.close()


def test_reward_signals_learn_as_often_as_the_policy_of_a_loaded_model(tmp_path: Path) -> None:
    env = make_toys(spaces.Discrete(2))
    signals = [Extrinsic(), Endless()]
    network = {"hidden_units": 8}
    SAC("UnitySACPolicy", env, batch_size=20, reward_signals=signals, policy_kwargs=network).save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env, device="cpu", steps_per_update=10)
    loaded.learn(120)
    assert loaded.signals["endless"].updates == loaded._n_updates > 5
    env.close()


def test_a_buffer_that_was_not_saved_is_filled_again_before_learning_continues(tmp_path: Path) -> None:
    env = make_toys(spaces.Discrete(2))
    model = SAC("UnitySACPolicy", env, batch_size=30, buffer_init_steps=60, device="cpu", seed=0)
    model.learn(120)
    model.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env, device="cpu")
    before = loaded._n_updates
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded._n_updates <= before + 3
    loaded.learn(60, reset_num_timesteps=False)
    assert before + 50 <= loaded._n_updates <= before + 63
    env.close()


def test_the_best_model_of_an_evaluation_learns_once_its_new_buffer_is_filled(tmp_path: Path) -> None:
    env = make_toys(spaces.Discrete(2), n=12)
    options = {"batch_size": 30, "buffer_init_steps": 60, "steps_per_update": 0.2, "policy_kwargs": {"hidden_units": 8}}
    model = SAC("UnitySACPolicy", env, **options, device="cpu", seed=0)
    best = EvalCallback(make_toys(spaces.Discrete(2)), best_model_save_path=str(tmp_path), eval_freq=10, verbose=0)
    model.learn(150, callback=best)
    loaded = SAC.load(tmp_path / "best_model", env, device="cpu")
    assert loaded._owed >= 1
    before = loaded._n_updates
    loaded.learn(20)
    assert loaded._n_updates == before
    loaded.learn(20, reset_num_timesteps=False)
    assert loaded._n_updates == before
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded._n_updates > before + 60
    env.close()


def test_training_and_predict_respect_the_mask() -> None:
    env = make_toys(spaces.MultiDiscrete([3, 2]))
    model = SAC("UnitySACPolicy", env, steps_per_update=1000, device="cpu")
    model.learn(200)
    batch = model.replay_buffer.sample(2000)
    chosen = batch.actions.long() + torch.tensor([0, 3])
    assert batch.action_masks.gather(1, chosen).all()
    assert not batch.action_masks.all()
    masks = np.tile([False, True, False, False, True], (40, 1))
    chosen, _ = model.predict(np.zeros((40, 4), np.float32), action_masks=masks)
    np.testing.assert_array_equal(chosen, [[1, 1]] * 40)
    env.close()


def test_actions_fill_the_bounds_of_their_space() -> None:
    env = make_toys(spaces.Box(-2, 6, (1,), np.float32))
    policy = SAC("UnitySACPolicy", env, device="cpu").policy
    continuous = policy.environment_actions(np.array([[-1.0], [0.0], [0.5], [1.0]], np.float32)).continuous
    np.testing.assert_allclose(continuous[:, 0], [-2, 2, 4, 6])
    env.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"learning_rate_schedule": "cosine"}, "constant.*cosine"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 64, "buffer_size": 63}, "buffer_size 63"),
        ({"steps_per_update": 0}, "steps_per_update"),
        ({"tau": 0}, "tau"),
        ({"init_entcoef": 0}, "init_entcoef"),
        ({"reward_signals": [Extrinsic(), Extrinsic()]}, "different names"),
        ({"batch_size": 32, "policy_kwargs": {"memory_size": 8}}, "sequence_length 64"),
    ],
)
def test_wrong_options_raise(wrong: dict, words: str) -> None:
    env = make_toys(spaces.Discrete(2))
    with pytest.raises((UnityGymError, InvalidValueError), match=words):
        SAC("UnitySACPolicy", env, **wrong)


def test_environments_that_sac_does_not_support_raise() -> None:
    env = make_toys(spaces.Box(-1, 1, (2,), np.float32))
    model = SAC("UnitySACPolicy", env)
    for use in (partial(SAC, "UnitySACPolicy"), model.set_env):
        with pytest.raises(UnityGymError, match="'normalize': True"):
            use(VecNormalize(env))
    unbounded = make_toys(spaces.Dict({"continuous": spaces.Box(-np.inf, 1, (2,)), "discrete": spaces.Discrete(2)}))
    with pytest.raises(UnityGymError, match="bound the space"):
        SAC("UnitySACPolicy", unbounded)


def test_a_replay_buffer_of_another_behavior_raises(tmp_path: Path) -> None:
    model = SAC("UnitySACPolicy", make_toys(spaces.Discrete(2)), device="cpu")
    model.learn(20)
    model.save_replay_buffer(tmp_path / "buffer.npz")
    other = SAC("UnitySACPolicy", make_toys(spaces.Discrete(3)), device="cpu")
    with pytest.raises(UnityGymError, match="incompatible with the behavior spec"):
        other.load_replay_buffer(tmp_path / "buffer.npz")
    (tmp_path / "text").write_text("no buffer")
    with pytest.raises(UnityGymError, match="cannot be used as a replay buffer"):
        other.load_replay_buffer(tmp_path / "text")


def test_sb3s_callbacks_wrappers_and_evaluation_work(tmp_path: Path) -> None:
    def make() -> VecMonitor:
        return VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))

    callbacks = [
        CheckpointCallback(100, str(tmp_path), save_replay_buffer=True),
        EvalCallback(make(), eval_freq=100, n_eval_episodes=2, best_model_save_path=str(tmp_path), verbose=0),
        StopTrainingOnMaxEpisodes(13),  # per environment, of at least 8 steps each: more than the 100 above
    ]
    options = {"steps_per_update": 20, "tensorboard_log": str(tmp_path / "tb"), "seed": 0}
    model = SAC("UnitySACPolicy", make(), device="cpu", **options)
    model.learn(10_000, callback=callbacks, log_interval=1)
    assert model.num_timesteps < 2000
    assert (tmp_path / "best_model.zip").exists()
    assert list(tmp_path.glob("tb/SAC_1/events.*"))
    saved = sorted(tmp_path.glob("*replay_buffer*.pkl"))
    model.load_replay_buffer(saved[0])
    assert 150 < len(model.replay_buffer) <= 200
    mean, _ = evaluate_policy(model, make(), n_eval_episodes=2)
    assert mean > 5


@pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
@pytest.mark.parametrize("memory", [0, 8])
def test_rows_with_different_decision_periods_all_sensors_and_a_hybrid_action(tmp_path: Path, memory: int) -> None:
    env = UnityVecEnv("Unity-v0", file_name=all_sensors_player.launcher(tmp_path), num_envs=4, seed=0)
    network = {"hidden_units": 16, "normalize": True, "memory_size": memory, "sequence_length": 4}
    model = SAC(
        "UnitySACPolicy",
        env,
        3e-4,
        buffer_size=1000,
        batch_size=40,
        steps_per_update=5,
        seed=0,
        device="cpu",
        policy_kwargs=network,
    )
    model.learn(300)
    batch = model.replay_buffer.sample(4000)
    valid = torch.ones(len(batch), dtype=torch.bool) if batch.valid is None else batch.valid
    place = [sensor.name for sensor in env.table.spec.observation_specs].index("place")
    (rows, ticks), (rows_after, ticks_after) = (
        array[place][valid].T for array in (batch.observations, batch.next_observations)
    )
    assert set(rows.tolist()) == {0, 1, 2, 3}
    assert torch.equal(rows, rows_after)
    over, rewards = batch.terminated[valid], batch.rewards[valid]
    # Reward 1 per tick, and the true last state at every end. Agent 0 terminates with the reward of its last tick; the
    # others are interrupted in the tick of their last decision, before its reward.
    assert torch.equal(over, (rows == 0) & (ticks == 5))
    assert over.any()
    assert torch.equal(rewards, ticks_after - ticks + over)
    cut_off = ticks == 12
    assert cut_off.any()
    assert torch.equal(rewards[~cut_off], rows[~cut_off] + 1)
    assert batch.action_masks[valid][:, 2].equal(rows % 2 == 0)
    observations = env.reset()
    model.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", device="cpu")
    once, _ = model.predict(observations, deterministic=True, action_masks=env.action_masks())
    again, _ = loaded.predict(observations, deterministic=True, action_masks=env.action_masks())
    for key in ("continuous", "discrete"):
        assert once[key].shape == (4, 2)
        np.testing.assert_array_equal(once[key], again[key])
    env.close()


@pytest.mark.slow
def test_sac_learns_pendulum() -> None:
    env = DummyVecEnv([lambda: gym.make("Pendulum-v1")])
    model = SAC(
        "UnitySACPolicy",
        env,
        1e-3,
        buffer_size=10_000,
        batch_size=128,
        policy_kwargs={"hidden_units": 64},
        seed=0,
        device="cpu",
    )
    model.learn(8000)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=10, deterministic=True, warn=False)
    assert mean > -250
    env.close()
