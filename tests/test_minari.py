"""Demonstrations to Minari datasets and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import unity_gym  # noqa: F401  # registers the ids
from unity_gym.demonstrations import Demonstration, DemonstrationWriter, load, record, save
from unity_gym.errors import DemonstrationError, UnityGymError
from unity_gym.minari import from_minari, to_minari
from unity_gym.specs import ActionSpec, ActionTuple, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

minari = pytest.importorskip("minari", reason="Minari is not installed: pip install 'unity-gym[minari]'")
ARRAYS = ("record_rewards", "record_done", "rows", "next_rows", "action_masks", "rewards", "group_rewards")
ARRAYS += ("terminated", "truncated", "episodes")


pytestmark = pytest.mark.filterwarnings("ignore:`:UserWarning", "ignore:env_spec:UserWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def assert_equal(one: Demonstration, other: Demonstration) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.actions.continuous, other.actions.continuous)
    np.testing.assert_array_equal(one.actions.discrete, other.actions.discrete)
    for actual, expected in zip(one.record_observations, other.record_observations, strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("env_id", "areas"), [("Unity-3DBall-v0", 4), ("Unity-GridWorld-v0", 2)])
def test_agents_of_a_vector_environment_are_recorded_and_read_back_from_minari(
    tmp_path: Path, env_id: str, areas: int
) -> None:
    envs = gym.make_vec(env_id, num_envs=areas, autoreset_mode="SameStep")
    envs.action_space.seed(3)
    asked = []

    def act(observations: object) -> object:
        asked.append(observations)
        return envs.action_space.sample()

    demonstration = record(envs, act, tmp_path / "all.demo", n_episodes=5, seed=1)
    envs.close()
    assert len(demonstration.episodes) == 5
    assert (demonstration.terminated | demonstration.truncated).sum() == 5
    if env_id == "Unity-3DBall-v0":
        first = np.stack([demonstration.observations[0][start] for start in demonstration.episodes[:, 0]])
        known = np.concatenate([np.asarray(batch) for batch in asked])
        assert all((known == row).all(axis=1).any() for row in first)
    dataset = to_minari(demonstration, "unity/test/random-v0", observations="sensors", description="a test")
    assert dataset.total_episodes == 5
    assert dataset.total_steps == len(demonstration)
    assert_equal(from_minari("unity/test/random-v0", demonstration.spec), demonstration)
    save(from_minari(dataset, behavior_name=demonstration.behavior_name), tmp_path / "again.demo")
    assert_equal(load(tmp_path / "again.demo"), demonstration)


def test_grids_and_sensors_keep_their_form_and_order(tmp_path: Path) -> None:
    """A grid of three columns is not taken for H×W×C, and sensors are not sorted by their names."""
    plane = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
    grid = ObservationSpec((2, 5, 3), (DimensionProperty.NONE, plane, plane), ObservationType.DEFAULT, "grid")
    vectors = [
        ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, name)
        for name in ("angle", "Position")
    ]
    spec = BehaviorSpec([grid, *vectors], ActionSpec(0, (3,)))
    rng = np.random.default_rng(0)
    with DemonstrationWriter(tmp_path / "grid.demo", "Walker", spec) as writer:
        for end in (False, False, True):
            row = [rng.integers(0, 255, (2, 5, 3), dtype=np.uint8), *rng.normal(size=(2, 2)).astype(np.float32)]
            action = None if end else ActionTuple(None, np.array([[1]]))
            writer.add(row, action, terminated=end)
    demonstration = load(tmp_path / "grid.demo")
    dataset = to_minari(demonstration, "unity/test/grid-v0", observations="sensors")
    assert_equal(from_minari("unity/test/grid-v0", spec), demonstration)
    assert (2, 5, 3) in [sensor.shape for sensor in from_minari(dataset).spec.observation_specs]
    dataset = to_minari(demonstration, "unity/test/split-v0")
    assert_equal(from_minari(dataset, spec), demonstration)


class GoRight:
    """A model with SB3's `predict`."""

    def __init__(self) -> None:
        self.starts: list[np.ndarray] = []

    def predict(
        self, observation: np.ndarray, state: object, episode_start: np.ndarray, deterministic: bool
    ) -> tuple[np.ndarray, object]:
        assert deterministic
        self.starts.append(episode_start)
        return np.full(len(observation), 2), state


def test_rows_of_a_unity_vec_env_are_recorded(tmp_path: Path) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    from sb3_ext import UnityVecEnv

    env, model = UnityVecEnv("Unity-Basic-v0", num_envs=2), GoRight()
    demonstration = record(vec_env.VecMonitor(env), model, tmp_path / "right.demo", n_episodes=3, seed=0)
    env.close()
    assert len(demonstration.episodes) == 3
    assert demonstration.terminated.sum() == 3
    assert (demonstration.actions.discrete == 2).all()
    places = demonstration.observations[0].argmax(1)
    starts = demonstration.episode_starts
    assert (np.diff(places)[~starts[1:]] == 1).all()
    assert (places[starts] == places[0]).all()
    assert model.starts[0].all()
    assert sum(starts.sum() for starts in model.starts) >= 4


def test_environments_that_cannot_be_recorded_raise_with_the_remedy(tmp_path: Path) -> None:
    envs = gym.make_vec("Unity-Basic-v0", num_envs=2)
    with pytest.raises(DemonstrationError, match='autoreset_mode="SameStep"'):
        record(envs, lambda _: np.zeros(2), tmp_path / "x.demo")
    envs.close()
    others = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(DemonstrationError, match="UnityVecEnv"):
        record(others, lambda _: np.zeros(2), tmp_path / "x.demo")
    others.close()
    assert not list(tmp_path.glob("x.demo*"))


def test_a_dataset_of_other_spaces_raises_and_shows_them() -> None:
    episode = minari.data_collector.EpisodeBuffer(
        id=0,
        observations=np.zeros((3, 2), np.float32),
        actions=np.array([1, 2]),
        rewards=[0.0, 1.0],
        terminations=[False, True],
        truncations=[False, False],
    )
    dataset = minari.create_dataset_from_buffers(
        "test/from-one-v0",
        [episode],
        observation_space=gym.spaces.Box(-1, 1, (2,)),
        action_space=gym.spaces.Discrete(3, start=1),
        data_format="arrow",
    )
    with pytest.raises(DemonstrationError, match=r"Discrete\(3, start=1\)"):
        from_minari(dataset)


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_a_dataset_of_others_with_cameras_and_several_branches_is_read(is_hybrid: bool) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (4, 6, 5, 3), dtype=np.uint8)
    speeds = rng.normal(size=(4, 2))
    discrete, continuous = rng.integers(0, 2, (3, 2)), rng.random((3, 1), np.float32)
    branches = gym.spaces.MultiDiscrete([3, 2])
    hybrid = gym.spaces.Dict({"continuous": gym.spaces.Box(-1, 1, (1,)), "discrete": branches})
    episode = minari.data_collector.EpisodeBuffer(
        id=0,
        observations={"camera": images, "speed": speeds},
        actions={"continuous": continuous, "discrete": discrete} if is_hybrid else discrete,
        rewards=[0.0, 1.0, 2.0],
        terminations=[False, False, True],
        truncations=[False, False, False],
    )
    dataset = minari.create_dataset_from_buffers(
        "test/cameras-v0",
        [episode],
        observation_space=gym.spaces.Dict(
            {"camera": gym.spaces.Box(0, 255, (6, 5, 3), np.uint8), "speed": gym.spaces.Box(-9, 9, (2,), np.float64)}
        ),
        action_space=hybrid if is_hybrid else branches,
        data_format="arrow",
    )
    demonstration = from_minari(dataset)
    assert demonstration.behavior_name == "test/cameras-v0"
    assert demonstration.spec.action_spec == ActionSpec(int(is_hybrid), (3, 2))
    assert [sensor.shape for sensor in demonstration.spec.observation_specs] == [(3, 6, 5), (2,)]
    camera, speed = demonstration.record_observations
    assert camera.dtype == np.uint8
    np.testing.assert_array_equal(camera, images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(speed, speeds.astype(np.float32))
    np.testing.assert_array_equal(demonstration.actions.discrete, discrete)
    if is_hybrid:
        np.testing.assert_array_equal(demonstration.actions.continuous, continuous)
    assert demonstration.terminated.tolist() == [False, False, True]


def dataset_of(name: str, space: gym.Space[Any], observations: Any, actions: Any, action_space: Any) -> Any:
    """Return a dataset of one episode."""
    n = len(actions)
    episode = minari.data_collector.EpisodeBuffer(
        id=0,
        observations=observations,
        actions=actions,
        rewards=[0.0] * n,
        terminations=[*[False] * (n - 1), True],
        truncations=[False] * n,
    )
    return minari.create_dataset_from_buffers(
        name, [episode], observation_space=space, action_space=action_space, data_format="hdf5"
    )


def test_bounds_of_actions_become_those_of_unity() -> None:
    speeds, rng = np.zeros((5, 2), np.float32), np.random.default_rng(0)
    torques = np.float32([[-2, 0], [2, 1], [0, 0.5], [1, 0.25]])
    bounds = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
    demonstration = from_minari(dataset_of("test/torques-v0", gym.spaces.Box(-9, 9, (2,)), speeds, torques, bounds))
    np.testing.assert_allclose(demonstration.actions.continuous, [[-1, -1], [1, 1], [0, 0], [0.5, -0.5]])
    unbounded = gym.spaces.Box(-np.inf, np.inf, (2,))
    small = rng.uniform(-1, 1, (4, 2)).astype(np.float32)
    kept = from_minari(dataset_of("test/small-v0", gym.spaces.Box(-9, 9, (2,)), speeds, small, unbounded))
    np.testing.assert_array_equal(kept.actions.continuous, small)
    wide = dataset_of("test/wide-v0", gym.spaces.Box(-9, 9, (2,)), speeds, torques, unbounded)
    with pytest.raises(DemonstrationError, match=r"test/wide-v0 has actions without bounds.*RescaleAction"):
        from_minari(wide)


def test_images_of_several_dtypes_are_floats_from_0_to_1(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seen = {
        "color": rng.integers(0, 255, (5, 6, 5, 3), dtype=np.uint8),
        "depth": rng.random((5, 6, 5, 1), np.float32),
        "gray": rng.uniform(0, 255, (5, 6, 5, 1)).astype(np.float32),
    }
    highs = {"color": 255, "depth": 1, "gray": 255}
    space = gym.spaces.Dict({key: gym.spaces.Box(0, highs[key], v.shape[1:], v.dtype) for key, v in seen.items()})
    demonstration = from_minari(
        dataset_of("test/images-v0", space, seen, np.int64([0, 1, 1, 0]), gym.spaces.Discrete(2))
    )
    save(demonstration, tmp_path / "images.demo")
    for read in (demonstration, load(tmp_path / "images.demo", visual_dtype="float32")):
        for array, (key, values) in zip(read.record_observations, seen.items(), strict=True):
            np.testing.assert_allclose(array, values.transpose(0, 3, 1, 2) / np.float32(highs[key]), rtol=1e-6)


def test_without_minari_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UnityGymError, match=r"unity-gym\[minari\]"):
        from_minari("any-v0")
