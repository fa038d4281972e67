"""Stable-Baselines3's parameters, under its names."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN

from sb3_ext import POCA, PPO, RND, SAC, SB3_COMPAT, Curiosity, Extrinsic, OnnxPolicy
from sb3_ext.algorithm import Linear, UnityAlgorithm
from sb3_ext.networks import NetworkSettings
from sb3_ext.sb3_names import NETWORK_UNSUPPORTED
from stand_ins.toy_environments import HYBRID, assert_the_same_predictions, make_toys
from unity_gym.errors import InvalidValueError, UnityGymError

NUMBERS = spaces.Box(-1, 1, (2,), "float32")
ALGORITHMS = [(PPO, stable_baselines3.PPO), (POCA, stable_baselines3.PPO), (SAC, stable_baselines3.SAC)]
POLICIES = {PPO: "UnityPolicy", POCA: "UnityPOCAPolicy", SAC: "UnitySACPolicy"}
SMALL = {"device": "cpu", "seed": 0, "policy_kwargs": {"hidden_units": 8, "num_layers": 1}}


@pytest.fixture
def env() -> Iterator[Any]:
    env = make_toys(NUMBERS)
    yield env
    env.close()


def parameters(algorithm: type) -> dict[str, inspect.Parameter]:
    return {name: part for name, part in inspect.signature(algorithm).parameters.items() if name[0] != "_"}


@pytest.mark.parametrize(("ours", "sb3_class"), ALGORITHMS)
def test_every_parameter_of_sb3_is_accepted_or_rejected_with_a_reason(
    ours: type[UnityAlgorithm], sb3_class: type, env: Any
) -> None:
    own, names = parameters(ours), ours.sb3_names
    assert parameters(sb3_class).keys() <= own.keys()
    assert not any(part.kind is part.VAR_KEYWORD for part in own.values())
    for name, unsupported in names.unsupported.items():
        assert parameters(sb3_class)[name].default == unsupported.value == own[name].default
        words = re.escape(f"{name} must be {unsupported.value!r}, got 'other': {unsupported.reason}")
        with pytest.raises(UnityGymError, match=words):
            ours(POLICIES[ours], env, **{name: "other"}, **SMALL)
    for equivalent, (of_sb3, _) in names.equivalents.items():
        assert equivalent in own
        assert set(of_sb3) <= parameters(sb3_class).keys()
        assert all(own[name].default is None for name in (equivalent, *of_sb3))
    mentioned = inspect.getdoc(PPO if ours is POCA else ours) or ""
    assert not [name for name in own if f":param {name}:" not in mentioned + (inspect.getdoc(ours) or "")]


def test_poca_has_the_parameters_of_ppo_except_a_second_critic() -> None:
    of_poca, of_ppo = parameters(POCA), parameters(PPO)
    assert of_poca.keys() ^ of_ppo.keys() == {"second_critic", "groupmate_rewards", "baseline_coef"}
    assert all(of_poca[name].default == of_ppo[name].default for name in of_poca.keys() & of_ppo.keys())


@pytest.mark.parametrize("algorithm", [PPO, POCA])
def test_ppo_accepts_the_names_of_sb3(algorithm: type[PPO], env: Any) -> None:
    model = algorithm(
        POLICIES[algorithm],
        env,
        learning_rate=1e-3,
        n_steps=16,
        batch_size=8,
        gamma=0.9,
        clip_range_vf=0.3,
        normalize_advantage=False,
        **SMALL,
    )
    assert model.buffer_size == 16 * env.num_envs
    assert [(signal.name, signal.gamma) for signal in model.reward_signals] == [("extrinsic", 0.9)]
    model.learn(2 * model.buffer_size)
    logged = model.logger.name_to_value
    assert logged["train/clip_range_vf"] == 0.3
    assert logged["train/entropy_loss"] == -logged["train/entropy"]
    assert {"loss", "policy_gradient_loss", "value_loss", "approx_kl", "clip_fraction", "clip_range"} <= {
        name.partition("/")[2] for name in logged if name.startswith("train/")
    }
    assert {"train/explained_variance", "train/n_updates", "train/std", "train/learning_rate"} <= logged.keys()


def test_advantages_are_not_normalized_on_request(env: Any) -> None:
    for options in ({}, SB3_COMPAT):
        model = PPO("UnityPolicy", env, n_steps=8, batch_size=8, normalize_advantage=False, **options, **SMALL)
        estimates, estimate = [], model._estimate

        def noted(rollout: Any, estimate: Any = estimate, estimates: list[float] = estimates) -> None:
            estimate(rollout)
            difference = rollout.returns[:, 0, 0] - rollout.values[:, 0, 0] - rollout.advantages
            estimates.append(difference.abs().max().item())

        model._estimate = noted
        model.learn(model.buffer_size)
        assert max(estimates) < 1e-5


def test_sac_accepts_the_names_of_sb3(env: Any) -> None:
    options: dict[str, Any] = {"buffer_size": 500, "batch_size": 8, "learning_starts": 16, "gamma": 0.9, **SMALL}
    model = SAC("UnitySACPolicy", env, train_freq=2, gradient_steps=3, ent_coef=0.25, **options)
    assert model.steps_per_update == 2 * env.num_envs / 3
    assert (model.buffer_init_steps, model.gamma) == (16, 0.9)
    model.learn(80, log_interval=1000)
    logged = model.logger.name_to_value
    assert logged["train/ent_coef"] == pytest.approx(0.25)
    assert logged["train/ent_coef_loss"] == 0
    assert logged["train/critic_loss"] == pytest.approx(logged["train/q1_loss"] + logged["train/q2_loss"])
    assert {"train/actor_loss", "train/learning_rate", "train/n_updates"} <= logged.keys()
    for ent_coef, first in (("auto", 1.0), ("auto_0.1", 0.1)):
        model = SAC("UnitySACPolicy", env, train_freq=(4, "step"), gradient_steps=-1, ent_coef=ent_coef, **options)
        assert model.steps_per_update == 1
        assert model.policy.log_ent_coef.exp().item() == pytest.approx(first)
        model.learn(40)
        assert model.policy.log_ent_coef.exp().item() != pytest.approx(first)
    assert SAC("UnitySACPolicy", env, ent_coef=0.0, **options).learn(40).policy.log_ent_coef.exp().item() == 0


def test_target_update_interval_and_target_entropy_take_effect_in_sac(env: Any) -> None:
    moves: dict[int, list[int]] = {1: [], 4: []}
    for interval, moved in moves.items():
        model = SAC("UnitySACPolicy", env, batch_size=8, target_update_interval=interval, target_entropy=-7.0, **SMALL)
        move, entropies, targets = model.policy.move_target, model._entropies, []

        def noted(tau: float, model: SAC = model, move: Any = move, moved: list[int] = moved) -> None:
            moved.append(model._n_updates)
            move(tau)

        def noted_entropies(*arguments: Any, entropies: Any = entropies, targets: list[Any] = targets) -> Any:
            both = entropies(*arguments)
            targets += both[1].unique().tolist()
            return both

        model.policy.move_target, model._entropies = noted, noted_entropies
        model.learn(40)
        assert set(targets) == {-7.0}
    assert moves[4] == [number for number in moves[1] if number % 4 == 0] != []


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        (PPO, {"n_steps": 8, "buffer_size": 64}, "n_steps and buffer_size set the same: give one of them"),
        (POCA, {"gamma": 0.9, "reward_signals": [Extrinsic()]}, "gamma and reward_signals set the same"),
        (SAC, {"train_freq": 1, "steps_per_update": 2}, "train_freq and steps_per_update set the same"),
        (
            SAC,
            {"train_freq": 1, "gradient_steps": 1, "steps_per_update": 2},
            "train_freq and gradient_steps and",
        ),
        (SAC, {"ent_coef": 0.1, "init_entcoef": 0.1}, "ent_coef and init_entcoef set the same"),
        (SAC, {"train_freq": (1, "episode")}, "train_freq must count steps, got"),
        (SAC, {"gradient_steps": -2}, "gradient_steps at least 1 or -1"),
        (SAC, {"ent_coef": "auto_x"}, "ent_coef must be a number, 'auto' or"),
        (SAC, {"ent_coef": -0.1}, "ent_coef must be at least 0"),
        (SAC, {"target_entropy": "low"}, "target_entropy must be 'auto' or a number"),
        (SAC, {"target_update_interval": 0}, "target_update_interval must be above 0"),
        (SAC, {"action_noise": NormalActionNoise([0.0], [1.0])}, "action_noise must be None, got .*: the entropy"),
        (PPO, {"advantage_normalization": "none"}, "advantage_normalization must be one of"),
    ],
)
def test_two_names_of_one_parameter_or_a_wrong_value_raise_one_clear_error(
    algorithm: type[UnityAlgorithm], options: dict[str, Any], words: str, env: Any
) -> None:
    with pytest.raises((UnityGymError, InvalidValueError), match=words):
        algorithm(POLICIES[algorithm], env, **options)


def test_sb3_names_change_a_loaded_model(env: Any, tmp_path: Any) -> None:
    model = PPO("UnityPolicy", env, n_steps=8, batch_size=8, **SMALL)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env, n_steps=4, gamma=0.5, clip_range_vf=0.1)
    assert (loaded.buffer_size, loaded.gamma) == (4 * env.num_envs, 0.5)
    loaded.learn(loaded.buffer_size)
    assert loaded.logger.name_to_value["train/clip_range_vf"] == 0.1
    with pytest.raises(UnityGymError, match="n_steps and buffer_size set the same"):
        PPO.load(tmp_path / "model", env, n_steps=4, buffer_size=100)
    with pytest.raises(UnityGymError, match="n_steps counts steps of each environment, and there is none"):
        PPO.load(tmp_path / "model", n_steps=4)
    with pytest.raises(UnityGymError, match="ent_coef cannot be changed by load"):
        SAC.load(tmp_path / "model", env, ent_coef=0.1)


def test_every_parameter_of_load_takes_effect(env: Any, tmp_path: Path) -> None:
    PPO("UnityPolicy", env, 3e-4, n_steps=8, batch_size=8, **SMALL).save(tmp_path / "ppo")
    SAC("UnitySACPolicy", env, 3e-4, batch_size=8, **SMALL).save(tmp_path / "sac")

    def rates(kind: type[UnityAlgorithm], **options: Any) -> list[float]:
        model = kind.load(tmp_path / kind.__name__.lower(), env, **options)
        return [model.lr_schedule(progress) for progress in (1, 0.5, 0)]

    assert rates(PPO, learning_rate=1e-2) == pytest.approx([1e-2, 5e-3, 1e-10])  # linear, as it was saved
    assert rates(PPO, custom_objects={"learning_rate": 1e-2}) == pytest.approx([1e-2, 5e-3, 1e-10])
    assert rates(PPO, learning_rate_schedule="constant") == [3e-4] * 3
    assert rates(SAC, learning_rate=lambda progress: 2 * progress) == [2, 1, 0]
    assert rates(SAC, learning_rate_schedule="linear") == pytest.approx([3e-4, 1.5e-4, 1e-10])
    model = PPO.load(tmp_path / "ppo", env, stats_window_size=3)
    model.learn(16)
    assert model.ep_info_buffer is not None
    assert model.ep_info_buffer.maxlen == 3


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (PPO, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (PPO, {"ratio": "row"}, "ratio must be one of"),
        (PPO, {"learning_rate_schedule": "cosine"}, "learning_rate_schedule must be one of"),
        (PPO, {"reward_signals": []}, "reward_signals must be one or more"),
        (PPO, {"demonstrations": "none.demo"}, "there is no demonstration none.demo"),
        (PPO, {"learning_rat": 1e-3}, "learning_rat cannot be changed by load: PPO has no such parameter"),
        (PPO, {"policy": "MlpPolicy"}, "policy cannot be changed by load, as the saved weights have it"),
        (PPO, {"second_critic": "min"}, "second_critic cannot be changed by load, as the saved weights have it"),
        (PPO, {"clip_range": -1}, "clip_range must be above 0, got -1"),
        (PPO, {"max_grad_norm": 0}, "max_grad_norm must be above 0, got 0"),
        (PPO, {"gae_lambda": 7}, "gae_lambda must be from 0 to 1, got 7"),
        (SAC, {"tau": 7}, "tau must be at most 1, got 7"),
        (SAC, {"buffer_size": 4}, "buffer_size 4 does not hold a batch of 8"),
        (SAC, {"reward_signal_steps_per_update": 0}, "reward_signal_steps_per_update must be above 0, got 0"),
        (SAC, {"target_entropy": "low"}, "target_entropy must be 'auto' or a number"),
    ],
)
def test_a_wrong_parameter_of_load_raises_one_clear_error(
    kind: type[UnityAlgorithm], options: dict[str, Any], words: str, env: Any
) -> None:
    file = io.BytesIO()
    kind(POLICIES[kind], env, batch_size=8, **SMALL).save(file)
    with pytest.raises((UnityGymError, InvalidValueError), match=words):
        kind.load(file, env, **options)


@pytest.mark.parametrize(("saved", "kind"), [(PPO, SAC), (SAC, PPO), (PPO, POCA)])
def test_parameters_of_another_model_raise_one_clear_error(
    saved: type[UnityAlgorithm], kind: type[UnityAlgorithm], env: Any
) -> None:
    parameters = saved(POLICIES[saved], env, **SMALL).get_parameters()
    model = kind(POLICIES[kind], env, **SMALL)
    with pytest.raises(UnityGymError, match=f"parameters do not fit this {kind.__name__} .*policy_kwargs and reward_s"):
        model.set_parameters(parameters)


def test_parameters_from_a_file_that_is_no_model_raise_with_its_name(env: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_text("precious")
    with pytest.raises(ValueError, match=f"the file {re.escape(str(path))} wasn't a zip-file"):
        PPO("UnityPolicy", env, **SMALL).set_parameters(str(path))


@pytest.mark.parametrize(("kind", "end"), [("linear", 1e-10), ("constant", 1e-3)])
def test_a_schedule_that_an_earlier_version_saved_can_be_changed(kind: str, end: float, env: Any) -> None:
    file = io.BytesIO()
    model = PPO("UnityPolicy", env, learning_rate_schedule="linear", **SMALL)
    model.learning_rate = Linear(1e-3, 1e-10)
    model.save(file)
    loaded = PPO.load(file, env, learning_rate_schedule=kind)
    assert loaded.lr_schedule(1) == 1e-3
    assert loaded.lr_schedule(0) == end
    assert PPO.load(file, env, learning_rate=2e-3).lr_schedule(1) == 2e-3


def test_a_model_that_was_cut_off_within_its_weights_raises_with_its_name(env: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    PPO("UnityPolicy", env, **SMALL).save(path)
    content = path.read_bytes()
    end = content.index(b"PK\x05\x06") + 22  # of the first part, which is an archive, too
    path.write_bytes(content[:end])
    with pytest.raises(
        UnityGymError, match=f"{re.escape(str(path))} is no complete model: .* Copy it again, or use another"
    ):
        PPO.load(path)


def test_a_full_disk_keeps_the_model_and_the_replay_buffer_that_were_saved_before(env: Any, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    model = SAC("UnitySACPolicy", env, batch_size=8, buffer_size=1000, buffer_init_steps=8, seed=0, device="cpu")
    model.learn(40)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"model.zip", "model.npz"}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*model\.zip"):
            model.save(tmp_path / "model")
        with pytest.raises(OSError, match=r"File too large: .*model\.npz"):
            model.save_replay_buffer(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_model_loaded_with_another_set_of_reward_signals_raises_one_clear_error(env: Any) -> None:
    file = io.BytesIO()
    PPO("UnityPolicy", env, reward_signals=[Extrinsic(), RND(0.1)], **SMALL).save(file)
    PPO.load(file, env, reward_signals=[Extrinsic(), RND(0.2)])
    with pytest.raises(UnityGymError, match=r"do not fit this PPO with the reward signals \['extrinsic'\]"):
        PPO.load(file, env, reward_signals=[Extrinsic()])


@pytest.mark.parametrize("signals", [{"curiosity": {}}, "curiosity", [Curiosity]])
def test_reward_signals_of_another_form_raise_with_the_right_one(signals: Any, env: Any) -> None:
    with pytest.raises(UnityGymError, match=r"reward_signals is a list such as \[Extrinsic\(\), Curiosity"):
        PPO("UnityPolicy", env, reward_signals=signals)


@pytest.mark.parametrize("kind", POLICIES)
def test_schedules_end_at_zero_where_the_last_step_exceeds_the_timesteps(kind: type[UnityAlgorithm]) -> None:
    progress: list[float] = []

    def learning_rate(remaining: float) -> float:
        progress.append(remaining)
        return 1e-3 * remaining

    env = make_toys(NUMBERS, n=4)
    model = kind(POLICIES[kind], env, learning_rate, batch_size=8, **SMALL)
    model.learn(42)  # 11 steps of 4 agents
    assert model.num_timesteps == 44
    assert progress[-1] == model.policy.optimizer.param_groups[0]["lr"] == 0
    env.close()


@pytest.mark.parametrize("kind", POLICIES)
def test_learning_without_an_environment_raises_with_the_remedy(kind: type[UnityAlgorithm], env: Any) -> None:
    file = io.BytesIO()
    kind(POLICIES[kind], env, **SMALL).save(file)
    model = kind.load(file)
    with pytest.raises(UnityGymError, match=r"no environment to learn on: call set_env\(env\)"):
        model.learn(8)


def test_options_of_sb3_can_be_overridden(env: Any) -> None:
    model = PPO("UnityPolicy", env, **(SB3_COMPAT | {"max_grad_norm": 1}), **SMALL)
    assert (model.max_grad_norm, model.advantage_normalization, model.value_clipping) == (1, "minibatch", "clipped")


IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
SEEN = {
    "MlpPolicy": spaces.Box(-5, 5, (4,), np.float32),
    "CnnPolicy": IMAGE,
    "MultiInputPolicy": spaces.Dict({"eye": IMAGE, "more": spaces.Box(-1, 1, (2, 3), np.float32)}),
}


def make(algorithm: type[UnityAlgorithm], name: str, env: Any, **network: Any) -> Any:
    options: dict[str, Any] = {"device": "cpu", "seed": 0, "policy_kwargs": network}
    options |= {"batch_size": 8, "train_freq": 8} if algorithm is SAC else {"n_steps": 8, "batch_size": 8}
    return algorithm(name, env, **options)


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("algorithm", [PPO, POCA, SAC])
def test_policies_under_names_of_sb3_have_its_networks(
    algorithm: type[UnityAlgorithm], name: str, tmp_path: Path
) -> None:
    env = make_toys(NUMBERS, SEEN[name])
    model = make(algorithm, name, env)
    plain_kind = stable_baselines3.SAC if algorithm is SAC else stable_baselines3.PPO
    options = {"buffer_size": 10} if algorithm is SAC else {"n_steps": 8, "batch_size": 8}
    plain = plain_kind(name, env, device="cpu", **options)
    actor = plain.policy.actor if algorithm is SAC else plain.policy
    expected = [*actor.features_extractor.parameters()]
    expected += [*(actor.latent_pi if algorithm is SAC else plain.policy.mlp_extractor.policy_net).parameters()]
    assert [part.shape for part in model.policy.body.parameters()] == [part.shape for part in expected]
    model.learn(60)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", device="cpu")
    seen = env.observation_space
    for part in seen.values() if isinstance(seen, spaces.Dict) else [seen]:
        part.seed(1)
    assert_the_same_predictions(model, loaded, NUMBERS, 0)
    model.export_onnx(tmp_path / "model.onnx")
    onnx, observation = OnnxPolicy(tmp_path / "model.onnx", env), seen.sample()
    expected, _ = model.predict(observation, deterministic=True)
    np.testing.assert_allclose(onnx.predict(observation, deterministic=True)[0], expected, atol=1e-4)
    env.close()


@pytest.mark.parametrize("algorithm", [PPO, POCA, SAC])
def test_unity_policy_is_the_policy_of_each_algorithm(env: Any, algorithm: type[Any]) -> None:
    own = type(algorithm(POLICIES[algorithm], env, device="cpu").policy)
    assert type(algorithm("UnityPolicy", env, device="cpu").policy) is own


def test_an_unknown_policy_is_reported_with_the_known_ones(env: Any) -> None:
    for algorithm, other in ((SAC, "UnityPOCAPolicy"), (PPO, "UnitySACPolicy")):
        with pytest.raises(InvalidValueError, match=rf"'MlpPolicy', .* or a class, got '{other}'"):
            algorithm(other, env)


def test_a_features_extractor_receives_the_inputs_of_sb3(tmp_path: Path) -> None:
    class Sums(BaseFeaturesExtractor):
        def __init__(self, observation_space: spaces.Space, factor: float) -> None:
            super().__init__(observation_space, features_dim=2)
            self.factor = factor

        def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
            assert observations["more"].shape[1:] == (2, 3)
            sums = [part.flatten(1).sum(1) for part in observations.values()]
            return torch.stack(sums, 1) * self.factor

    env = make_toys(NUMBERS, SEEN["MultiInputPolicy"])
    batch = {key: np.stack([part.sample() for _ in range(5)]) for key, part in SEEN["MultiInputPolicy"].items()}
    for normalize, scale in ((True, 255), (False, 1)):
        network = {"features_extractor_class": Sums, "features_extractor_kwargs": {"factor": 2.0}, "net_arch": []}
        model = make(PPO, "UnityPolicy", env, normalize_images=normalize, **network)
        features, _ = model.policy.body(model.policy._sensor_tensors(model.policy.obs_to_tensor(batch)[0]))
        sums = np.stack([batch["eye"].sum((1, 2, 3)) / scale, batch["more"].sum((1, 2))], 1)
        np.testing.assert_allclose(features, 2 * sums, rtol=1e-4)
        model.export_onnx(tmp_path / "model.onnx")
        expected, _ = model.predict(batch, deterministic=True)
        onnx = OnnxPolicy(tmp_path / "model.onnx", env)
        np.testing.assert_allclose(onnx.predict(batch, deterministic=True)[0], expected, atol=1e-4)
    env.close()


@pytest.mark.parametrize("activation", [torch.nn.ReLU, functools.partial(torch.nn.LeakyReLU, 0.2)])
def test_net_arch_and_activation_are_those_of_actor_and_critic(activation: Any, env: Any) -> None:
    for kind, critic in ((PPO, "vf"), (SAC, "qf"), (POCA, "vf")):
        network = {"net_arch": {"pi": [5, 6], critic: [8]}, "activation_fn": activation, "memory_size": 4}
        model = make(kind, POLICIES[kind], env, **(network | {"sequence_length": 4}))
        layers = [module for module in model.policy.body.layers if isinstance(module, torch.nn.Linear)]
        assert [layer.out_features for layer in layers] == [5, 6]
        kinds = {type(module) for module in model.policy.modules()}
        assert type(activation()) in kinds
        assert torch.nn.SiLU not in kinds
        model.learn(60)
    orthogonal = make(PPO, "MlpPolicy", env).policy.body.layers[0].weight
    np.testing.assert_allclose(orthogonal.T.detach() @ orthogonal.detach(), 2 * np.eye(4), atol=1e-5)
    assert make(PPO, "MlpPolicy", env, hidden_units=7).policy.body.layers[0].out_features == 7


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"net_arch": [8], "num_layers": 1}, "net_arch and num_layers set the same"),
        ({"net_arch": [8], "hidden_units": 8}, "net_arch and hidden_units set the same"),
        ({"net_arch": {"pi": [8]}}, "net_arch must be a list of widths, or have the keys 'pi' and 'vf'"),
        ({"net_arch": [{"pi": [8], "vf": [8]}]}, "net_arch must be a list of widths such as"),
        ({"net_arch": 64}, "net_arch must be a list of widths such as"),
        ({"net_arch": [0]}, "the widths of net_arch must be at least 1"),
        ({"hidden_unit": 8}, "policy_kwargs has the unknown entry 'hidden_unit'; did you mean hidden_units"),
        ({"activation_fn": torch.nn.ELU()}, "activation_fn must be a class such as torch.nn.ReLU"),
        ({"net_arch": {"pi": [8], "vf": [9]}, "shared_critic": True}, "net_arch must be the same for 'pi' and 'vf'"),
        ({"features_extractor_kwargs": {"features_dim": 3}}, "features_extractor_kwargs must come with"),
        ({"features_extractor_class": NatureCNN}, "features_extractor_class NatureCNN cannot be built for Box"),
        ({"features_extractor_class": NatureCNN, "vis_encode_type": "simple"}, "and vis_encode_type set the same"),
        *(({name: "other"}, f"^{name} must be ") for name in NETWORK_UNSUPPORTED if name != "log_std_init"),
    ],
)
def test_a_conflict_in_policy_kwargs_raises_one_clear_error(network: dict[str, Any], words: str, env: Any) -> None:
    with pytest.raises(UnityGymError, match=words):
        make(PPO, "UnityPolicy", env, **network)


@pytest.mark.parametrize("ours", [PPO, SAC])
def test_every_entry_of_policy_kwargs_of_sb3_is_accepted_or_rejected(ours: type[UnityAlgorithm]) -> None:
    sb3_class = stable_baselines3.PPO if ours is PPO else stable_baselines3.SAC
    read = {"net_arch", "features_extractor_class", "features_extractor_kwargs", *NETWORK_UNSUPPORTED}
    own = {field.name for field in dataclasses.fields(NetworkSettings)} | read
    for name, kind in sb3_class.policy_aliases.items():
        known = own | parameters(ours.policy_aliases[name]).keys()
        assert parameters(kind).keys() <= known
    assert sb3_class.policy_aliases.keys() < ours.policy_aliases.keys()


@pytest.mark.parametrize("actions", [NUMBERS, spaces.Discrete(4), spaces.MultiDiscrete([3, 2]), HYBRID])
@pytest.mark.parametrize("kind", [PPO, POCA])
def test_the_policy_has_the_methods_of_sb3(kind: type[PPO], actions: spaces.Space) -> None:
    env = make_toys(actions)
    model = make(kind, POLICIES[kind], env)
    policy, n = model.policy, 6
    seen = policy.obs_to_tensor(np.stack([env.observation_space.sample() for _ in range(n)]))[0]
    done, values, log_probs = policy(seen)
    assert done.shape == (n, *(actions.shape or (() if isinstance(actions, spaces.Discrete) else (4,))))
    assert (values.shape, log_probs.shape) == ((n, 1), (n,))
    again, same, entropies = policy.evaluate_actions(seen, done)
    np.testing.assert_allclose(again.detach(), policy.predict_values(seen).detach())
    np.testing.assert_allclose(same.detach(), log_probs.detach(), atol=1e-6)
    distribution = policy.get_distribution(seen)
    np.testing.assert_allclose(distribution.log_prob(done).detach(), log_probs.detach(), atol=1e-6)
    np.testing.assert_allclose(distribution.entropy().detach(), entropies.detach())
    best, _ = model.predict(seen.numpy(), deterministic=True)
    shown = model.policy.environment_actions(distribution.mode().detach().numpy())
    expected = policy.adapter.actions(shown)
    for key in best if isinstance(best, dict) else [...]:
        np.testing.assert_allclose(best[key], expected[key], atol=1e-6)
    if not isinstance(actions, spaces.Box):
        branches = [4] if isinstance(actions, spaces.Discrete) else [3, 2]
        masks = np.zeros((n, sum(branches)), bool)
        masks[:, np.cumsum([0, *branches[:-1]])] = True
        chosen = policy.get_distribution(seen, masks).get_actions()[:, -len(branches) :]
        assert not chosen.any()
    (-(same + values.squeeze(1)).sum()).backward()
    assert all(part.grad is not None for part in policy.body.parameters())
    env.close()


def test_the_policy_of_sac_returns_actions(env: Any) -> None:
    model = make(SAC, "MlpPolicy", env)
    seen = model.policy.obs_to_tensor(np.zeros((2, 4), np.float32))[0]
    expected, _ = model.predict(seen.numpy(), deterministic=True)
    np.testing.assert_allclose(model.policy(seen, deterministic=True).detach(), expected, atol=1e-6)
