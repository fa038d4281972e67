"""Model files: the interface for Unity, actions equal to torch, and Unity's own files as policies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

import unity_gym
from sb3_ext import PPO, SB3_COMPAT, OnnxPolicy, UnityVecEnv
from sb3_ext.agents import SpaceAdapter
from sb3_ext.export import export_onnx
from sb3_ext.policies import UnityPolicy
from stand_ins import all_sensors_player, scripted_player
from stand_ins.toy_environments import make_toys
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

UNITY_MODELS = Path(__file__).resolve().parents[2] / "../shared/unity/models"
needs_unity_models = pytest.mark.skipif(not UNITY_MODELS.is_dir(), reason="Unity's model files are not here")

NONE, VARIABLE = DimensionProperty.NONE, DimensionProperty.VARIABLE_SIZE
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
CONTINUOUS, CHOICES, HYBRID = ActionSpec(2, ()), ActionSpec(0, (3, 2)), ActionSpec(2, (3, 2))


def sensor(*shape: int, goal: bool = False) -> ObservationSpec:
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    first = VARIABLE if len(shape) == 2 else NONE
    return ObservationSpec(shape, (first, *[NONE] * (len(shape) - 1)), kind, f"sensor of {shape}")


CAMERA, ENTITIES = sensor(3, 36, 36), sensor(5, 4)
ALL = [sensor(3), CAMERA, sensor(2), ENTITIES, sensor(2, goal=True)]
CASES: dict[str, tuple[list[ObservationSpec], ActionSpec, dict[str, Any]]] = {
    "vector": ([sensor(8)], CONTINUOUS, {"normalize": True}),
    "camera": ([CAMERA, sensor(3)], CONTINUOUS, {}),
    **{
        kind: ([CAMERA], CHOICES, {"vis_encode_type": kind})
        for kind in ("resnet", "nature_cnn", "match3", "fully_connected")
    },
    "entities": ([ENTITIES, sensor(4)], CONTINUOUS, {"normalize": True}),
    "entities only": ([ENTITIES, sensor(3, 2)], ActionSpec(0, (4,)), {}),
    "goal": ([sensor(4), sensor(3, goal=True)], CONTINUOUS, {}),
    "memory": ([sensor(8)], CONTINUOUS, {"memory_size": 12}),
    "memory of a shared critic": ([sensor(8)], CHOICES, {"memory_size": 12, "shared_critic": True}),
    "masks": ([sensor(8)], CHOICES, {}),
    "hybrid": ([sensor(8)], HYBRID, {"num_layers": 1}),
    "clipped": ([sensor(8)], HYBRID, {"action_scaling": "clip"}),
    "everything": (ALL, HYBRID, {"normalize": True, "memory_size": 12}),
}


def make_policy(sensors: list[ObservationSpec], action: ActionSpec, settings: dict[str, Any]) -> UnityPolicy:
    """Return an untrained policy with statistics, and actions large enough to be clipped at times."""
    torch.manual_seed(0)
    spec = BehaviorSpec(sensors, action)
    layout = ObservationLayout(spec)
    actions = action_space(action)
    adapter = SpaceAdapter(layout.space, actions, (spec, layout))
    policy = UnityPolicy(layout.space, actions, lambda _: 1e-3, adapter=adapter, hidden_units=16, **settings)
    policy.body.update_normalization([torch.randn(50, *sensor.shape) * 3 + 1 for sensor in sensors])
    with torch.no_grad():
        for name, parameter in policy.head.named_parameters():
            if name == "log_std":
                parameter.copy_(torch.linspace(-1, 0, len(parameter)))
            else:
                parameter.normal_()
    return policy


def observations_of(policy: UnityPolicy, n: int, seed: int) -> list[np.ndarray]:
    """Return one array per sensor; the second half of the entities is absent in some rows, all in the first."""
    rng = np.random.default_rng(seed)
    observations = []
    for observed in policy.adapter.spec.observation_specs:
        array = rng.normal(size=(n, *observed.shape)).astype(np.float32)
        if observed.is_visual:
            array = rng.integers(0, 256, array.shape, dtype=np.uint8)
        elif len(observed.shape) == 2:
            array[: n // 2, 2:] = 0
            array[0] = 0
        observations.append(array)
    return observations


def masks_of(action: ActionSpec, n: int, seed: int) -> np.ndarray:
    masks = np.random.default_rng(seed).random((n, sum(action.discrete_branches))) < 0.5
    masks[:, np.cumsum([0, *action.discrete_branches])[:-1]] = True
    return masks


def interface(path: Path) -> tuple[dict[str, tuple[int, list[Any]]], dict[str, tuple[int, list[Any]]]]:
    """Return type and shape of inputs and outputs by name, in their order."""
    graph = onnx.load(path).graph
    return tuple(  # type: ignore[return-value]
        {
            value.name: (
                value.type.tensor_type.elem_type,
                [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim],
            )
            for value in values
        }
        for values in (graph.input, graph.output)
    )


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_and_torch_return_the_same_actions(name: str, tmp_path: Path) -> None:
    policy = make_policy(*CASES[name])
    path = tmp_path / "model.onnx"
    export_onnx(policy, path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 9)]
    spec = policy.adapter.spec
    action, size = spec.action_spec, policy.settings.memory_size
    session = onnxruntime.InferenceSession(path)
    n, layout = 6, ObservationLayout(spec)
    memory, state = np.zeros((n, 1, size), np.float32), None
    clipped = False
    for step in range(4):
        observations, masks = observations_of(policy, n, step), masks_of(action, n, step)
        expected, state = policy.predict(
            layout.select(observations), state, deterministic=True, action_masks=masks if action.discrete_size else None
        )
        feed = {
            f"obs_{index}": array.astype(np.float32) / (255 if array.dtype == np.uint8 else 1)
            for index, array in enumerate(observations)
        }
        feed |= {"action_masks": masks.astype(np.float32)} if action.discrete_size else {}
        feed |= {"recurrent_in": memory} if size else {}
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, feed), strict=True))
        assert outputs["version_number"].tolist() == [3]
        assert outputs["memory_size"].tolist() == [size]
        both = bool(action.continuous_size and action.discrete_size)
        if action.continuous_size:
            actual = outputs["deterministic_continuous_actions"]
            np.testing.assert_allclose(actual, expected["continuous"] if both else expected, atol=1e-5, rtol=0)
            clipped |= bool((np.abs(actual) == 1).any())
            assert outputs["continuous_action_output_shape"].tolist() == [action.continuous_size]
            assert np.abs(outputs["continuous_actions"]).max() <= 1
        if action.discrete_size:
            actual = outputs["deterministic_discrete_actions"]
            np.testing.assert_array_equal(actual, np.reshape(expected["discrete"] if both else expected, actual.shape))
            assert outputs["discrete_action_output_shape"].tolist() == [list(action.discrete_branches)]
        if size:
            memory = outputs["recurrent_out"]
            assert state is not None
            np.testing.assert_allclose(memory[:, 0], state[0][:, :size], atol=1e-5, rtol=0)
    assert clipped or name != "clipped"


def test_names_types_and_shapes_are_those_that_unity_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export_onnx(make_policy(*CASES["everything"]), path)
    inputs, outputs = interface(path)
    assert list(inputs.items()) == [
        ("obs_0", (FLOAT, ["batch", 3])),
        ("obs_1", (FLOAT, ["batch", 3, 36, 36])),
        ("obs_2", (FLOAT, ["batch", 2])),
        ("obs_3", (FLOAT, ["batch", 5, 4])),
        ("obs_4", (FLOAT, ["batch", 2])),
        ("action_masks", (FLOAT, ["batch", 5])),
        ("recurrent_in", (FLOAT, ["batch", 1, 12])),
    ]
    assert list(outputs.items()) == [
        ("version_number", (FLOAT, [1])),
        ("memory_size", (FLOAT, [1])),
        ("continuous_actions", (FLOAT, ["batch", 2])),
        ("continuous_action_output_shape", (FLOAT, [1])),
        ("deterministic_continuous_actions", (FLOAT, ["batch", 2])),
        ("discrete_actions", (INT64, ["batch", 2])),
        ("discrete_action_output_shape", (FLOAT, [1, 2])),
        ("deterministic_discrete_actions", (INT64, ["batch", 2])),
        ("recurrent_out", (FLOAT, ["batch", 1, 12])),
    ]
    model = onnx.load(path)
    constants = {constant.name for constant in model.graph.initializer}
    assert {name for name in outputs if name.endswith(("shape", "size", "number"))} <= constants
    assert not {"Identity", "Split"} & {node.op_type for node in model.graph.node}
    assert onnx.TensorProto.DOUBLE not in {constant.data_type for constant in model.graph.initializer}


@needs_unity_models
def test_the_interface_is_that_of_unitys_own_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export_onnx(make_policy(*CASES["vector"]), path)
    actual, expected = interface(path), interface(UNITY_MODELS / "3DBall.onnx")
    # declared as one row, but there is one per agent
    expected[1]["deterministic_continuous_actions"] = (FLOAT, ["batch", 2])
    assert [list(part.items()) for part in actual] == [list(part.items()) for part in expected]
    constants = [{constant.name for constant in onnx.load(file).graph.initializer} for file in (
        path, UNITY_MODELS / "3DBall.onnx")]  # fmt: skip
    assert {"version_number", "memory_size", "continuous_action_output_shape"} <= constants[0] & constants[1]
    export_onnx(make_policy([sensor(6, 20, 20), sensor(10)], ActionSpec(0, (7,)), {}), path)
    actual, expected = interface(path), interface(UNITY_MODELS / "PushBlockCollab.onnx")
    assert actual[0] == expected[0]
    assert expected[1].items() <= actual[1].items()


def test_samples_follow_the_policys_distribution(tmp_path: Path) -> None:
    policy = make_policy(*CASES["hybrid"])
    with torch.no_grad():
        for layer in (policy.head.mean, policy.head.logits):
            assert layer is not None
            layer.weight.mul_(0.2)
            layer.bias.mul_(0.2)
    export_onnx(policy, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    n = 20_000
    row = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)
    masks = np.array([[1, 0, 1, 1, 1]], np.float32)
    numbers, choices = session.run(
        ["continuous_actions", "discrete_actions"],
        {"obs_0": np.repeat(row, n, 0), "action_masks": np.repeat(masks, n, 0)},
    )
    with torch.no_grad():
        mean, log_std, logits = policy.head(policy.body([torch.from_numpy(row)])[0])
        expected = (mean + torch.randn(n, 2) * log_std.exp()).clamp(-3, 3) / 3
        logits[0, 1] = -torch.inf
        first, second = logits[0, :3].softmax(0), logits[0, 3:].softmax(0)
    np.testing.assert_allclose(numbers.mean(0), expected.mean(0), atol=0.01)
    np.testing.assert_allclose(numbers.std(0), expected.std(0), atol=0.01)
    assert not (choices[:, 0] == 1).any()
    np.testing.assert_allclose(np.bincount(choices[:, 0], minlength=3) / n, first, atol=0.015)
    np.testing.assert_allclose(np.bincount(choices[:, 1], minlength=2) / n, second, atol=0.015)


def test_export_does_not_change_policy_random_state_or_an_older_file(tmp_path: Path) -> None:
    policy = make_policy(*CASES["everything"])
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    torch.manual_seed(1)
    path = tmp_path / "model.onnx"
    export_onnx(policy, path)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    for key, value in policy.state_dict().items():
        assert torch.equal(value, before[key])
        assert value.dtype == before[key].dtype
    content = path.read_bytes()
    export_onnx(policy, path)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    export_onnx(policy, tmp_path / "new" / "folder" / "model.onnx")
    assert (tmp_path / "new" / "folder" / "model.onnx").read_bytes() == content
    with pytest.raises(OSError, match="exists"):
        export_onnx(policy, path / "model.onnx")


def test_an_incomplete_file_is_one_that_a_resumed_run_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(*CASES["everything"])
    incomplete = list[str]()
    monkeypatch.setattr(os, "fsync", lambda _: incomplete.extend(file.name for file in tmp_path.iterdir()))
    export_onnx(policy, tmp_path / "model.onnx")
    assert incomplete == [".model.onnx.partial"]  # also stored on the disk before it gets its name
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
@pytest.mark.parametrize("form", ["split", "sensors"])
def test_a_model_and_its_file_return_the_same_actions_with_all_sensors(form: str, tmp_path: Path) -> None:
    env = UnityVecEnv(
        "Unity-v0", file_name=all_sensors_player.launcher(tmp_path), num_envs=4, seed=0, observations=form
    )  # fmt: skip
    network = {"hidden_units": 16, "normalize": True, "memory_size": 8, "sequence_length": 4}
    model = PPO(
        "UnityPolicy",
        env,
        3e-3,
        buffer_size=60,
        batch_size=20,
        time_horizon=4,
        seed=0,
        device="cpu",
        policy_kwargs=network,
    )
    model.learn(100)
    path = tmp_path / "model.onnx"
    model.export_onnx(path)
    for policy in (
        OnnxPolicy(path, env),
        OnnxPolicy(path, VecMonitor(env)),
        OnnxPolicy(path, spec=env.table.spec, observations=form),
    ):
        observations, state, policy_state = env.reset(), None, None
        starts = np.ones(4, bool)
        for _ in range(5):
            masks = env.action_masks()
            expected, state = model.predict(observations, state, starts, deterministic=True, action_masks=masks)
            actions, policy_state = policy.predict(
                observations, policy_state, starts, deterministic=True, action_masks=masks
            )
            np.testing.assert_allclose(actions["continuous"], expected["continuous"], atol=1e-5, rtol=0)
            np.testing.assert_array_equal(actions["discrete"], expected["discrete"])
            observations, _, starts, _ = env.step(actions)
        for forgetful in (model, policy):
            with pytest.raises(UnityGymError, match="got no state in mid-episode"):
                forgetful.predict(observations, None, np.array([True, True, True, False]))
        alone, _ = policy.predict({key: part[0] for key, part in observations.items()})
        assert env.action_space.contains({key: np.asarray(part) for key, part in alone.items()})
    env.close()


class Spaces:
    """An environment of which only the spaces are used."""

    def __init__(self, observation_space: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space, self.unwrapped = observation_space, actions, self


@pytest.mark.parametrize("meanings", [{}, {"action_scaling": SB3_COMPAT["action_scaling"]}])
def test_policies_of_plain_environments_are_loaded_with_the_bounds_of_the_space(meanings: dict, tmp_path: Path) -> None:
    low, high = np.array([-2, 0], np.float32), np.array([2, 10], np.float32)
    parts = {"eye": spaces.Box(0, 255, (3, 36, 36), np.uint8), "digit": spaces.Discrete(4)}
    env: Any = Spaces(spaces.Dict(parts), spaces.Box(low, high))
    policy = UnityPolicy(env.observation_space, env.action_space, lambda _: 1e-3, hidden_units=16, **meanings)
    with torch.no_grad():
        assert policy.head.mean is not None
        policy.head.mean.bias.copy_(torch.tensor([1.5, 4]))
    export_onnx(policy, tmp_path / "model.onnx")
    onnx_policy = OnnxPolicy(tmp_path / "model.onnx", env)
    samples = [env.observation_space.sample() for _ in range(5)]
    batch = {key: np.stack([sample[key] for sample in samples]) for key in parts}
    expected, _ = policy.predict(batch, deterministic=True)
    actions, state = onnx_policy.predict(batch, deterministic=True)
    np.testing.assert_allclose(actions, expected, atol=1e-5, rtol=1e-5)
    assert state is None
    single, _ = onnx_policy.predict(samples[0], deterministic=True)
    np.testing.assert_allclose(single, expected[0], atol=1e-5, rtol=1e-5)


def test_unbounded_actions_raise(tmp_path: Path) -> None:
    box = spaces.Box(-np.inf, np.inf, (2,))
    policy = UnityPolicy(spaces.Box(-1, 1, (3,)), box, lambda _: 1e-3, action_scaling="clip")
    with pytest.raises(UnityGymError, match="bound the action space"):
        export_onnx(policy, tmp_path / "model.onnx")
    export_onnx(make_policy([sensor(3)], CONTINUOUS, {}), tmp_path / "model.onnx")
    env: Any = Spaces(spaces.Box(-1, 1, (3,)), box)
    with pytest.raises(UnityGymError, match="bound its action space"):
        OnnxPolicy(tmp_path / "model.onnx", env)


def test_sensors_keep_their_order_in_every_environment(tmp_path: Path) -> None:
    """Unity gives a file its sensors in the order of their names without regard to case; a `Dict` would sort them."""
    file_name = scripted_player.launcher(tmp_path, "unsorted_sensors")
    env = gym.make("Unity-v0", file_name=file_name, observations="sensors", no_graphics=False)
    model = PPO("UnityPolicy", env, seed=1)
    model.export_onnx(tmp_path / "model.onnx")
    observation, _ = env.reset()
    assert list(observation) == list(env.observation_space) == ["angle", "Position"]
    expected, _ = model.predict(observation, deterministic=True)
    unity_env = UnityVecEnv(file_name=file_name, no_graphics=False)
    for other, observations in ((env, observation), (unity_env, unity_env.reset())):
        actions, _ = OnnxPolicy(tmp_path / "model.onnx", other).predict(observations, deterministic=True)
        np.testing.assert_allclose(np.ravel(actions), expected, atol=1e-6)
    unity_env.close()
    env.close()


def test_a_model_that_was_saved_with_sorted_sensors_keeps_their_order(tmp_path: Path) -> None:
    file_name = scripted_player.launcher(tmp_path, "unsorted_sensors")
    env = gym.make("Unity-v0", file_name=file_name, observations="sensors", no_graphics=False)
    present: Any = env.observation_space
    env.observation_space = spaces.Dict(dict(present))
    model = PPO("UnityPolicy", env, seed=1, n_steps=8, batch_size=8)
    model.save(tmp_path / "model.zip")
    env.observation_space = present
    loaded = PPO.load(tmp_path / "model.zip", env)
    observation, _ = env.reset()
    actions = [each.predict(observation, deterministic=True)[0] for each in (model, loaded)]
    np.testing.assert_array_equal(*actions)
    loaded.learn(8)
    assert loaded.num_timesteps == 8
    env.close()


def test_a_file_with_entities_acts_in_what_gymnasium_makes(tmp_path: Path) -> None:
    options: Any = {"file_name": scripted_player.launcher(tmp_path, "entities"), "no_graphics": False}
    unity_env = UnityVecEnv(**options)
    model = PPO("UnityPolicy", unity_env, seed=1)
    model.export_onnx(tmp_path / "model.onnx")
    expected, _ = model.predict(unity_env.reset(), deterministic=True)
    unity_env.close()
    env = gym.make("Unity-v0", observations="sensors", **options)
    actions, _ = OnnxPolicy(tmp_path / "model.onnx", env).predict(env.reset()[0], deterministic=True)
    np.testing.assert_allclose(actions, expected[0], atol=1e-6)
    env.close()


def test_a_file_acts_in_vector_environments(tmp_path: Path) -> None:
    options: Any = {"file_name": scripted_player.launcher(tmp_path, "entities"), "no_graphics": False}
    envs = gym.make_vec("Unity-v0", num_envs=1, autoreset_mode="SameStep", **options)
    spec, behavior_spaces = envs.unwrapped.table.spec, (envs.single_observation_space, envs.single_action_space)  # type: ignore[attr-defined]
    model = PPO.from_spec("UnityPolicy", spec, seed=1, device="cpu")
    model.export_onnx(tmp_path / "model.onnx")
    observations, _ = envs.reset()
    policy = OnnxPolicy(tmp_path / "model.onnx", envs)
    assert policy.spec == spec
    assert (policy.observation_space, policy.action_space) == behavior_spaces
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(policy.predict(observations, deterministic=True)[0], expected, atol=1e-6)
    envs.close()
    plain = gym.vector.SyncVectorEnv([lambda: gym.make("Unity-v0", **options)])
    policy = OnnxPolicy(tmp_path / "model.onnx", plain)
    assert policy.spec == spec
    np.testing.assert_allclose(policy.predict(plain.reset()[0], deterministic=True)[0], expected, atol=1e-6)
    plain.close()


@pytest.mark.parametrize("in_dict", [False, True])
def test_images_with_the_channels_last_are_transposed_as_sb3_does(in_dict: bool, tmp_path: Path) -> None:
    image = spaces.Box(0, 255, (36, 40, 3), np.uint8)
    seen: spaces.Space[Any] = spaces.Dict({"eye": image, "place": spaces.Box(-1, 1, (2,))}) if in_dict else image
    env = make_toys(spaces.Box(-1, 1, (2,)), seen)
    model = PPO("UnityPolicy", env, seed=1, device="cpu")
    model.export_onnx(tmp_path / "model.onnx")
    policy, observations = OnnxPolicy(tmp_path / "model.onnx", env), env.reset()
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(policy.predict(observations, deterministic=True)[0], expected, atol=1e-5)
    one: Any = (
        {key: part[0] for key, part in observations.items()} if isinstance(observations, dict) else observations[0]
    )
    np.testing.assert_allclose(policy.predict(one, deterministic=True)[0], expected[0], atol=1e-5)
    env.close()


@pytest.mark.parametrize("make", [unity_gym.parallel_env, unity_gym.aec_env])
def test_environments_of_several_behaviors_give_the_spec(make: Any, tmp_path: Path) -> None:
    env = make("Unity-Basic-v0")
    spec = env.behavior_specs["Basic?team=0"]
    PPO.from_spec("UnityPolicy", spec).export_onnx(tmp_path / "model.onnx")
    with pytest.raises(UnityGymError, match=r"pass spec=env.behavior_specs\[name\]"):
        OnnxPolicy(tmp_path / "model.onnx", env)
    assert OnnxPolicy(tmp_path / "model.onnx", spec=spec).spec == spec
    env.close()


def test_a_policy_that_needs_vecnormalize_cannot_be_exported(tmp_path: Path) -> None:
    env = VecMonitor(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    path = tmp_path / "model.onnx"
    model = PPO("UnityPolicy", VecNormalize(env))
    with pytest.raises(UnityGymError, match=r"VecNormalize's statistics, .*'normalize': True"):
        model.export_onnx(path)
    assert not path.exists()
    model.set_env(VecNormalize(env, norm_obs=False))
    model.export_onnx(path)
    env.close()


def test_a_seed_repeats_the_samples(tmp_path: Path) -> None:
    policy = make_policy(*CASES["hybrid"])
    export_onnx(policy, tmp_path / "model.onnx")
    row = np.zeros((50, 8), np.float32)
    first, second, other = (OnnxPolicy(tmp_path / "model.onnx", seed=seed).predict(row)[0] for seed in (3, 3, 4))
    for key in ("continuous", "discrete"):
        np.testing.assert_array_equal(first[key], second[key])
        assert (first[key] != other[key]).any()


@needs_unity_models
def test_unitys_3dball_balances_in_our_3dball() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    mean, _ = evaluate_policy(OnnxPolicy(UNITY_MODELS / "3DBall.onnx", env), env, n_eval_episodes=24, warn=False)
    assert mean >= 95
    env.close()


@needs_unity_models
def test_unitys_files_without_deterministic_outputs_return_the_most_likely_action() -> None:
    policy = OnnxPolicy(UNITY_MODELS / "PushBlockCollab.onnx", seed=0)
    rng = np.random.default_rng(0)
    row = {"obs_0": rng.random((1, 6, 20, 20), np.float32), "obs_1": rng.random((1, 10), np.float32)}
    batch = {key: np.repeat(part, 3000, 0) for key, part in row.items()}
    masks = np.repeat([[True, False, True, True, True, True, True]], 3000, 0)
    sampled, _ = policy.predict(batch, action_masks=masks)
    assert not (sampled == 1).any()
    best, _ = policy.predict(batch, deterministic=True, action_masks=masks)
    assert (best == np.bincount(sampled).argmax()).all()
    with pytest.raises(InvalidValueError, match=r"action_masks must have the shape \(3000, 7\), got \(1, 7\)"):
        policy.predict(batch, action_masks=masks[:1])


def older(name: str, sizes: tuple[int, ...], action: ActionSpec) -> OnnxPolicy:
    spec = BehaviorSpec([sensor(size) for size in sizes], action)
    return OnnxPolicy(UNITY_MODELS / f"{name}.onnx", spec=spec, seed=0)


@needs_unity_models
@pytest.mark.parametrize(
    ("name", "sizes", "action"),
    [
        ("PushBlock", (105, 105), ActionSpec(2, (2,))),
        ("SoccerTwos", (264, 72), ActionSpec(0, (3, 3, 3))),
    ],
)
def test_files_of_version_2_return_actions(name: str, sizes: tuple[int, ...], action: ActionSpec) -> None:
    policy = older(name, sizes, action)
    assert policy.version == 2
    n = 2000
    row = np.random.default_rng(0).random((1, sum(sizes)), np.float32)
    observations = np.repeat(row, n, 0)
    masks = np.ones((n, sum(action.discrete_branches)), bool)
    masks[:, 1] = False
    session = onnxruntime.InferenceSession(UNITY_MODELS / f"{name}.onnx")
    (log_probs,) = session.run(
        ["discrete_actions"], {"vector_observation": row, "action_masks": masks[:1].astype(np.float32)}
    )
    sampled, _ = policy.predict(observations, action_masks=masks)
    best, _ = policy.predict(observations, action_masks=masks, deterministic=True)
    if action.continuous_size:
        numbers = sampled["continuous"]
        assert numbers.shape == (n, 2)
        assert np.abs(numbers).max() <= 1
        assert numbers.std(0).min() > 0.1
        assert (best["continuous"] == best["continuous"][0]).all()
        if (np.abs(best["continuous"][0]) < 0.5).all():
            np.testing.assert_allclose(numbers.mean(0), best["continuous"][0], atol=0.1)
    choices = (sampled["discrete"] if action.continuous_size else sampled).reshape(n, -1)
    most_likely = (best["discrete"] if action.continuous_size else best).reshape(n, -1)
    assert not (choices[:, 0] == 1).any()
    start = 0
    for branch, size in enumerate(action.discrete_branches):
        probabilities = np.exp(log_probs[0, start : start + size])
        np.testing.assert_allclose(np.bincount(choices[:, branch], minlength=size) / n, probabilities, atol=0.05)
        assert (most_likely[:, branch] == probabilities.argmax()).all()
        start += size


def test_cameras_of_version_2_have_their_own_inputs_and_vectors_share_one(tmp_path: Path) -> None:
    small = sensor(1, 20, 20)
    one = make_policy([CAMERA, small, sensor(5)], CONTINUOUS, {})
    path = tmp_path / "model.onnx"
    export_onnx(one, path)
    model = onnx.load(path)
    names = {"obs_0": "visual_observation_0", "obs_1": "visual_observation_1", "obs_2": "vector_observation"}
    for value in model.graph.input:
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    version = next(constant for constant in model.graph.initializer if constant.name == "version_number")
    version.CopyFrom(onnx.numpy_helper.from_array(np.array([2], np.float32), "version_number"))
    onnx.save(model, path)
    first, second, vector = observations_of(one, 4, 0)
    images = {CAMERA.name: first, small.name: second}
    expected, _ = one.predict({**images, "vector": vector}, deterministic=True)
    split = BehaviorSpec([sensor(2), CAMERA, small, sensor(3)], CONTINUOUS)
    for form, parts in (
        ("split", {"vector": vector}),
        ("sensors", {"sensor of (2,)": vector[:, :2], "sensor of (3,)": vector[:, 2:]}),
    ):
        policy = OnnxPolicy(path, spec=split, observations=form)
        actions, _ = policy.predict({**images, **parts}, deterministic=True)
        np.testing.assert_allclose(actions, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("action", [ActionSpec(5, ()), CHOICES])
def test_files_from_before_hybrid_actions_have_one_output_for_either_kind(action: ActionSpec, tmp_path: Path) -> None:
    is_continuous = action.continuous_size > 0
    constants = {
        "version_number": 2,
        "memory_size": 0,
        "action_output_shape": 5,
        "is_continuous_control": is_continuous,
    }
    shapes = {"action": ["batch", 5, 1] if is_continuous else ["batch", 5], **{name: [1] for name in constants}}
    operation = ("Unsqueeze", {"axes": [2]}) if is_continuous else ("Identity", {})
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operation[0], ["vector_observation"], ["action"], **operation[1])],
        "before hybrid actions",
        [onnx.helper.make_tensor_value_info("vector_observation", FLOAT, ["batch", 5])],
        [onnx.helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()],
        [onnx.numpy_helper.from_array(np.array([value], np.float32), name) for name, value in constants.items()],
    )
    opset = [onnx.helper.make_opsetid("", 9)]
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=6), path)
    policy = OnnxPolicy(path, spec=BehaviorSpec([sensor(2), sensor(3)], action), seed=0)
    rows = np.array([[-1, -0.5, 0, 0.5, 1], [0.5, 1, 0, 0, -1]], np.float32)
    actions, _ = policy.predict(rows, deterministic=True)
    np.testing.assert_array_equal(actions, rows if action.continuous_size else [[2, 1], [1, 0]])
    if not action.continuous_size:
        probabilities = np.array([0.1, 0.2, 0.7, 0.25, 0.75], np.float32)
        sampled, _ = policy.predict(np.log(probabilities)[None].repeat(20_000, 0))
        counts = [np.bincount(sampled[:, branch], minlength=size) for branch, size in enumerate((3, 2))]
        np.testing.assert_allclose(np.concatenate(counts) / 20_000, probabilities, atol=0.02)
    graph.node.append(onnx.helper.make_node("Abs", ["vector_observation"], ["action_probs"]))
    graph.output.append(onnx.helper.make_tensor_value_info("action_probs", FLOAT, ["batch", 5]))
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=6), path)
    with pytest.raises(UnityGymError, match=r"no known output of actions among \['action', .*'action_probs'"):
        OnnxPolicy(path, spec=policy.spec)


def test_the_recurrent_state_of_older_files_has_a_row_per_agent(tmp_path: Path) -> None:
    """Older trainers exported the LSTM without the two nodes that swap the axes of its state."""
    path = Path(__file__).parent / "mlagents" / "Hallway" / "Hallway.onnx"
    expected = OnnxPolicy(path)
    model = onnx.load(path)
    nodes = model.graph.node
    before = next(node for node in nodes if node.op_type == "Transpose" and node.input[0] == "recurrent_in")
    after = next(node for node in nodes if node.op_type == "Transpose" and node.output[0] == "recurrent_out")
    for node in (before, after):
        nodes.remove(node)
    names = {before.output[0]: "recurrent_in", after.input[0]: "recurrent_out"}
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    onnx.save(model, tmp_path / "older.onnx")
    older = OnnxPolicy(tmp_path / "older.onnx")
    rng = np.random.default_rng(0)
    masks = np.ones((3, sum(expected.spec.action_spec.discrete_branches)), bool)
    states = [np.zeros((3, expected.memory_size), np.float32)] * 2
    for _ in range(3):
        seen = [rng.normal(size=(3, *observed.shape)).astype(np.float32) for observed in expected.spec[0]]
        for index, policy in enumerate((expected, older)):
            _, states[index] = policy.select_actions(seen, masks, states[index], deterministic=True)
        np.testing.assert_allclose(states[1], states[0], atol=1e-6)


def test_recurrent_files_that_do_not_return_their_state_raise(tmp_path: Path) -> None:
    model = onnx.load(Path(__file__).parent / "mlagents" / "Hallway" / "Hallway.onnx")
    for value in [*model.graph.input, *model.graph.node]:
        if isinstance(value, onnx.NodeProto):
            value.input[:] = ["memories" if name == "recurrent_in" else name for name in value.input]
        elif value.name == "recurrent_in":
            value.name = "memories"
    model.graph.output.remove(next(output for output in model.graph.output if output.name == "recurrent_out"))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(UnityGymError, match=r"model\.onnx reads a recurrent state and does not return .* before 0\.25"):
        OnnxPolicy(tmp_path / "model.onnx")


def test_unread_inputs_without_values_are_not_required(tmp_path: Path) -> None:
    """The exporter of newer torch keeps the masks of no branches and the state of no memory in Unity's files."""
    one = make_policy([sensor(5)], CONTINUOUS, {})
    path = tmp_path / "model.onnx"
    export_onnx(one, path)
    expected = OnnxPolicy(path)
    model = onnx.load(path)
    for name, shape in (("action_masks", ["batch", 0]), ("recurrent_in", ["batch", 1, 0])):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, FLOAT, shape))
    onnx.save(model, tmp_path / "newer.onnx")
    newer = OnnxPolicy(tmp_path / "newer.onnx")
    assert newer.memory_size == 0
    assert newer.spec == expected.spec
    (vector,) = observations_of(one, 4, 0)
    actions = [policy.predict(vector, deterministic=True)[0] for policy in (newer, expected)]
    np.testing.assert_array_equal(*actions)


EXPORTS = Path(__file__).parent / "exports"
ENTITIES_SPEC = BehaviorSpec([sensor(5, 4), sensor(3)], ActionSpec(2, (3,)))


def entities_of_four_agents() -> dict[str, np.ndarray]:
    """Return the inputs that the exported networks received in torch; agents lack some entities."""
    rng = np.random.default_rng(0)
    entities = rng.normal(size=(4, 5, 4)).astype(np.float32)
    entities[1, 2:] = entities[2, 4:] = 0
    return {sensor(5, 4).name: entities, "vector": rng.normal(size=(4, 3)).astype(np.float32)}


@pytest.mark.parametrize("version", ["0.28.0", "1.1.0"])
def test_entities_reach_the_network_of_each_generation_of_exports(version: str) -> None:
    """0.28.0 exported for Unity's former inference engine Barracuda, which swapped the axes of entities."""
    policy = OnnxPolicy(EXPORTS / f"entities-{version}.onnx", spec=ENTITIES_SPEC)
    actions, _ = policy.predict(entities_of_four_agents(), deterministic=True)
    expected = [[1.0, -0.356478], [0.991812, -0.303366], [-0.788732, -0.335157], [-0.322145, -0.717724]]
    np.testing.assert_allclose(actions["continuous"], expected, atol=1e-5, rtol=0)
    assert np.ravel(actions["discrete"]).tolist() == [0, 0, 2, 1]
    single, _ = policy.predict({key: part[1] for key, part in entities_of_four_agents().items()}, deterministic=True)
    np.testing.assert_allclose(single["continuous"], expected[1], atol=1e-5, rtol=0)


def test_entities_reach_the_network_of_our_own_exports(tmp_path: Path) -> None:
    ours = make_policy([sensor(5, 4), sensor(3)], ActionSpec(2, (3,)), {"normalize": True})
    export_onnx(ours, tmp_path / "model.onnx")
    expected, _ = ours.predict(entities_of_four_agents(), deterministic=True)
    policy = OnnxPolicy(tmp_path / "model.onnx", spec=ENTITIES_SPEC)
    actions, _ = policy.predict(entities_of_four_agents(), deterministic=True)
    np.testing.assert_allclose(actions["continuous"], expected["continuous"], atol=1e-5, rtol=0)
    np.testing.assert_array_equal(actions["discrete"], expected["discrete"])


@pytest.mark.parametrize("change", ["another order", "one reader less", "a node between"])
def test_entities_in_an_unknown_layout_raise(change: str, tmp_path: Path) -> None:
    model = onnx.load(EXPORTS / "entities-0.28.0.onnx")
    nodes = model.graph.node
    transpose = next(node for node in nodes if node.op_type == "Transpose" and node.input[0] == "obs_0")
    reshape = next(node for node in nodes if transpose.output[0] in node.input)
    if change == "another order":
        transpose.attribute[0].ints[:] = [2, 0, 1]
    elif change == "one reader less":
        reshape.input[0] = "obs_0"
        nodes.remove(transpose)
    else:
        reshape.input[0] = "between"
        nodes.insert(list(nodes).index(reshape), onnx.helper.make_node("Abs", [transpose.output[0]], ["between"]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(UnityGymError, match=r"transposes the entities of obs_0 in an unknown way, .* export it again"):
        OnnxPolicy(path, spec=ENTITIES_SPEC)


@needs_unity_models
def test_an_incompatible_environment_raises_with_each_differing_sensor() -> None:
    path = UNITY_MODELS / "PushBlockCollab.onnx"
    sensors = [sensor(6, 20, 20), sensor(9), sensor(4)]
    with pytest.raises(UnityGymError) as raised:
        OnnxPolicy(path, spec=BehaviorSpec(sensors, ActionSpec(0, (7,))))
    words = str(raised.value).splitlines()
    assert "PushBlockCollab.onnx" in words[0]
    assert "obs_0: the file takes (6, 20, 20), the environment returns (6, 20, 20)" in words[1]
    assert "differs" not in words[1]
    assert "obs_1: the file takes (10,), the environment returns (9,) ('sensor of (9,)') ← differs" in words[2]
    assert "obs_2: the file takes nothing, the environment returns (4,)" in words[3]
    assert "Give OnnxPolicy the environment" in words[4]
    with pytest.raises(UnityGymError, match=r"discrete branches of \[7\], .* 2 continuous .* \[3, 2\]"):
        OnnxPolicy(path, spec=BehaviorSpec([sensor(6, 20, 20), sensor(10)], HYBRID))
    with pytest.raises(UnityGymError, match=r"takes \(336,\), the environment returns \(100,\)"):
        older("SoccerTwos", (60, 40), ActionSpec(0, (3, 3, 3)))
    with pytest.raises(UnityGymError, match="in version 2, the sum"):
        older("SoccerTwos", (300, 36), ActionSpec(0, (3, 3, 4)))
    with pytest.raises(UnityGymError, match="give OnnxPolicy env or spec"):
        OnnxPolicy(UNITY_MODELS / "SoccerTwos.onnx")


def test_broken_and_foreign_files_raise_with_their_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(UnityGymError, match=r"model\.onnx cannot be read: No such file"):
        OnnxPolicy(path)
    export_onnx(make_policy(*CASES["vector"]), path)
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(UnityGymError, match=r"model\.onnx is empty \(0 bytes\): copy or export it again"):
        OnnxPolicy(path)
    for content in (b"not a model", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UnityGymError, match=r"model\.onnx is no ONNX model, or a damaged one"):
            OnnxPolicy(path)
    number = onnx.helper.make_tensor_value_info("x", FLOAT, ["n", 2])
    copy = onnx.helper.make_tensor_value_info("y", FLOAT, ["n", 2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "foreign", [number], [copy])
    opset = [onnx.helper.make_opsetid("", 9)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=6), path)
    with pytest.raises(UnityGymError, match=r"is none of ML-Agents: its outputs \['y'\] lack version_number"):
        OnnxPolicy(path)
    model = onnx.load_from_string(whole)
    version = next(constant for constant in model.graph.initializer if constant.name == "version_number")
    version.CopyFrom(onnx.numpy_helper.from_array(np.array([4], np.float32), "version_number"))
    onnx.save(model, path)
    with pytest.raises(UnityGymError, match="is of version 4; known are"):
        OnnxPolicy(path)
    model = onnx.load_from_string(whole)
    size = next(constant for constant in model.graph.initializer if constant.name == "memory_size")
    size.CopyFrom(onnx.numpy_helper.from_array(np.array([8], np.float32), "memory_size"))
    onnx.save(model, path)
    with pytest.raises(UnityGymError, match="memory_size 8, recurrent_in None, recurrent_out missing"):
        OnnxPolicy(path)
    path.write_bytes(whole)
    with pytest.raises(UnityGymError, match="env or spec, not both"):
        OnnxPolicy(path, Spaces(spaces.Box(-1, 1, (8,)), spaces.Box(-1, 1, (2,))), spec=BehaviorSpec([], CONTINUOUS))


def test_weights_in_a_file_of_their_own_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export_onnx(make_policy(*CASES["vector"]), path)
    rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    expected, _ = OnnxPolicy(path).predict(rows, deterministic=True)
    data = {"location": "model.onnx.data", "size_threshold": 0, "save_as_external_data": True}
    onnx.save(onnx.load(path), path, **data)
    actual, _ = OnnxPolicy(path).predict(rows, deterministic=True)
    np.testing.assert_array_equal(actual, expected)
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(UnityGymError, match=r"damaged one .*model\.onnx\.data"):
        OnnxPolicy(path)


def test_a_missing_onnxruntime_raises_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_onnx(make_policy(*CASES["vector"]), tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnityGymError, match=r"pip install 'unity-gym\[onnx\]'"):
        OnnxPolicy(tmp_path / "model.onnx")
