"""`gymnasium.make_vec` with the embedded player, and with a player whose agents differ, spawn late and leave early."""

import cProfile
import pstats
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

import unity_gym  # noqa: F401  # registers the ids
from stand_ins import changing_agents_player
from stand_ins.changing_agents_player import COMES, ENDS, GROUP_REWARD, LEAVES
from unity_gym.envs import UnityVectorEnv
from unity_gym.errors import ActionError, InvalidValueError, UnityGymError

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]
RIGHT = 2  # in Basic, the seventh such action ends the episode
EPISODE = 7
BALLS = 4


@pytest.fixture
def balls() -> Iterator[Callable[..., UnityVectorEnv]]:
    """Return a factory of 3DBall environments with four agents."""
    made = []

    def make(**options: Any) -> UnityVectorEnv:
        made.append(gym.make_vec("Unity-3DBall-v0", num_envs=BALLS, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


@pytest.fixture
def build(tmp_path: Path) -> str:
    return changing_agents_player.launcher(tmp_path)


def tilts(steps: int) -> np.ndarray:
    """Return the same random actions for all environments of a test."""
    return np.random.default_rng(0).uniform(-1, 1, (steps, BALLS, 2)).astype(np.float32)


def test_make_vec_makes_the_agents_of_one_player(balls: Callable[..., UnityVectorEnv]) -> None:
    envs = balls()
    assert isinstance(envs, UnityVectorEnv)
    assert envs.num_envs == BALLS
    assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is AutoresetMode.NEXT_STEP
    assert envs.single_observation_space.shape == (8,)
    observations, _ = envs.reset()
    assert envs.observation_space.contains(observations)
    observations, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
    assert envs.observation_space.contains(observations)
    assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, bool, bool)
    assert rewards.shape == terminated.shape == truncated.shape == (BALLS,)


def test_make_vec_makes_a_single_agent_by_default() -> None:
    envs = gym.make_vec("Unity-Basic-v0")
    assert envs.num_envs == 1
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_everything_returned_equals_gymnasiums_own_vector_env_of_single_agents(mode: AutoresetMode) -> None:
    ours = gym.make_vec("Unity-Basic-v0", num_envs=2, autoreset_mode=mode)
    reference = gym.make_vec(
        "Unity-Basic-v0", num_envs=2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )

    def without_extras(infos: dict[str, Any]) -> dict[str, Any]:
        """Remove our additional info keys, and masks of states that need no action."""
        kept = {key: value for key, value in infos.items() if not key.endswith("alive")}
        if "final_info" in kept:
            kept["final_info"] = {k: v for k, v in kept["final_info"].items() if not k.endswith("action_mask")}
        return kept

    assert ours.single_observation_space == reference.single_observation_space
    assert ours.action_space == reference.action_space
    for actual, expected in zip(ours.reset(), reference.reset(), strict=True):
        assert data_equivalence(without_extras(actual) if isinstance(actual, dict) else actual, expected)
    for _ in range(2 * EPISODE + 3):
        *arrays, infos = ours.step(np.full(2, RIGHT))
        *expected_arrays, expected_infos = reference.step(np.full(2, RIGHT))
        for actual, expected in zip(arrays, expected_arrays, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-6)
            assert actual.dtype == expected.dtype
        assert data_equivalence(without_extras(infos), without_extras(expected_infos))
    ours.close()
    reference.close()


def test_both_autoreset_modes_return_the_same_episode_ends(balls: Callable[..., UnityVectorEnv]) -> None:
    same, following = balls(seed=5, autoreset_mode="SameStep"), balls(seed=5)
    assert following.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    same.reset(seed=5)
    following.reset(seed=5)
    ended = np.zeros(BALLS, bool)
    for actions in tilts(100):
        observations, rewards, terminated, _, infos = same.step(actions)
        next_observations, next_rewards, next_terminated, _, next_infos = following.step(actions)
        assert "final_obs" not in next_infos
        if terminated.any():
            break
        assert data_equivalence(observations, next_observations)
    ended = infos["_final_obs"]
    assert data_equivalence(ended, terminated)
    assert data_equivalence(terminated, next_terminated)
    assert data_equivalence(rewards, next_rewards)
    assert data_equivalence(np.stack(infos["final_obs"][ended]), next_observations[ended])
    assert all(final is None for final in infos["final_obs"][~ended])
    assert not data_equivalence(observations[ended], next_observations[ended])
    assert data_equivalence(observations[~ended], next_observations[~ended])

    observations, rewards, terminated, truncated, _ = following.step(np.ones((BALLS, 2), np.float32))
    assert (rewards[ended] == 0).all()
    assert not (terminated | truncated)[ended].any()
    assert (observations[ended][:, 3] > 3).all()  # a new ball, high over the platform
    assert (np.abs(observations[ended][:, :2]) < 0.2).all()  # a new platform, hardly tilted
    assert (rewards[~ended] != 0).all()


def test_a_row_that_starts_ignores_its_action_with_next_step(balls: Callable[..., UnityVectorEnv]) -> None:
    runs = [balls(seed=5, autoreset_mode="NextStep") for _ in range(2)]
    for envs in runs:
        envs.reset(seed=5)
    for actions in tilts(100):
        ended, _ = (envs.step(actions)[2] for envs in runs)
        if ended.any():
            break
    ignored = np.zeros((2, BALLS, 2), np.float32)
    ignored[1, ended] = 1
    assert data_equivalence(runs[0].step(ignored[0])[:4], runs[1].step(ignored[1])[:4])


def test_equal_seeds_give_equal_episodes(balls: Callable[..., UnityVectorEnv]) -> None:
    envs = balls()

    def course(seed: Any) -> list[Any]:
        return [envs.reset(seed=seed), *(envs.step(actions) for actions in tilts(5))]

    assert data_equivalence(course(3), course(3))
    assert data_equivalence(course([1, 2, 3, 4]), course([1, 2, 3, 4]))
    assert not data_equivalence(course(3)[0], course(4)[0])
    assert not data_equivalence(course([1, 2, 3, 4])[0], course([1, 2, 3, 5])[0])
    envs.reset(seed=[None] * BALLS)
    with pytest.raises(InvalidValueError, match="seed must be"):
        envs.reset(seed=[1, None, 2, 3])


def test_options_are_environment_parameters(balls: Callable[..., UnityVectorEnv]) -> None:
    envs = balls(seed=1)
    envs.reset(options={"scale": 0.2})
    small = envs.step(np.zeros((BALLS, 2), np.float32))[0]
    envs.reset(options={"scale": 5.0})
    large = envs.step(np.zeros((BALLS, 2), np.float32))[0]
    assert not np.allclose(small, large)


def test_returned_arrays_are_not_overwritten(balls: Callable[..., UnityVectorEnv]) -> None:
    envs = balls()
    envs.reset()
    returned = envs.step(tilts(1)[0])
    kept = [np.copy(array) for array in returned[:4]]
    for actions in tilts(30):
        envs.step(actions)
    assert data_equivalence(list(returned[:4]), kept)


def test_masks_and_group_rewards_are_arrays(build: str) -> None:
    envs = gym.make_vec(
        "Unity-v0", num_envs=2, file_name=build, behavior="Striker?team=1", autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert envs.single_action_space == gym.spaces.MultiDiscrete([3, 2])
    _, infos = envs.reset()
    assert infos["action_mask"].tolist() == [[True] * 5, [True, True, False, True, True]]
    assert data_equivalence(infos["action_mask"], envs.action_masks())
    for _ in range(ENDS):
        _, rewards, _, truncated, infos = envs.step(np.array([[1, 0], [0, 1]]))
        assert rewards.tolist() == [1 + GROUP_REWARD, GROUP_REWARD]
        assert infos["group_reward"].tolist() == [GROUP_REWARD] * 2
        assert infos["_group_reward"].all()
    assert truncated.all()
    assert infos["final_info"]["group_reward"].tolist() == [GROUP_REWARD] * 2
    envs.close()


def test_rows_between_two_episodes_are_reported(build: str) -> None:
    envs = gym.make_vec(
        "Unity-v0", num_envs=2, file_name=build, behavior="Striker?team=0", autoreset_mode=AutoresetMode.SAME_STEP
    )
    envs.reset()
    rows = []
    for _ in range(ENDS + 1):
        _, rewards, terminated, _, infos = envs.step(np.zeros((2, 2), np.int64))
        rows.append((infos["alive"].tolist(), terminated.tolist(), rewards.tolist()))
    plays, waits = (
        ([True, True], [False, False], [GROUP_REWARD] * 2),
        ([False, True], [False, False], [0, GROUP_REWARD]),
    )
    assert rows == [
        *[plays] * (LEAVES - 1),
        ([False, True], [True, False], [GROUP_REWARD] * 2),
        *[waits] * (ENDS - LEAVES - 1),
        ([True, True], [False, True], [0, GROUP_REWARD]),
        plays,
    ]
    envs.close()


def test_hybrid_actions_and_several_sensors_are_dicts(build: str) -> None:
    envs = gym.make_vec("Unity-v0", num_envs=1, file_name=build, behavior="Keeper")
    observations, _ = envs.reset()
    assert {key: part.shape for key, part in observations.items()} == {"vector": (1, 2), "map": (1, 2, 2)}
    assert envs.observation_space.contains(observations)
    _, rewards, *_ = envs.step({"continuous": np.array([[0.5, 0]], np.float32), "discrete": np.array([1])})
    assert rewards.tolist() == [0.5]
    envs.close()


def test_every_agent_needs_an_environment(build: str) -> None:
    with pytest.raises(UnityGymError, match=r"show 2 agents.*pass num_envs=2"):
        gym.make_vec("Unity-v0", num_envs=1, file_name=build, behavior="Striker?team=0")
    with pytest.raises(UnityGymError, match=r"\['Keeper.team=0', 'Striker.team=0', 'Striker.team=1'\]"):
        gym.make_vec("Unity-v0", num_envs=5, file_name=build)
    with pytest.raises(UnityGymError, match=r"num_envs=5 .* n_instances=2"):
        gym.make_vec("Unity-3DBall-v0", num_envs=5, n_instances=2)
    with pytest.raises(UnityGymError, match="pass num_envs=2"):
        gym.make_vec("Unity-3DBall-v0", num_envs=1, num_areas=2)


def test_the_embedded_player_creates_as_many_areas_as_the_agents_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [changing_agents_player.launcher(tmp_path, "Pairs")]
    monkeypatch.setattr("unity_gym.player.player_command", lambda _: list(command))
    envs = gym.make_vec("Unity-v0", num_envs=8, n_instances=2, file_name="embedded:Pairs")
    assert envs.reset()[0].shape == (8, 1)
    envs.close()
    with pytest.raises(UnityGymError, match=r"2 agents of 'Pair.team=0', .* multiple of 4 with n_instances=2, got 6"):
        gym.make_vec("Unity-v0", num_envs=6, n_instances=2, file_name="embedded:Pairs")


def test_agents_that_spawn_late_need_a_row(build: str) -> None:
    envs = gym.make_vec("Unity-v0", num_envs=1, file_name=build, behavior="Keeper")
    envs.reset()
    action = {"continuous": np.zeros((1, 2), np.float32), "discrete": np.zeros(1, np.int64)}
    for _ in range(COMES - 1):
        envs.step(action)
    with pytest.raises(UnityGymError, match="2 agents at once and this environment 1 rows: pass num_envs=2"):
        envs.step(action)
    envs.close()


def test_a_row_waits_for_an_agent_that_spawns_late(build: str) -> None:
    envs = gym.make_vec("Unity-v0", num_envs=2, file_name=build, behavior="Keeper")
    observations, infos = envs.reset()
    assert infos["alive"].tolist() == [True, False]
    assert not observations["vector"][1].any()
    action = {"continuous": np.full((2, 2), 0.5, np.float32), "discrete": np.zeros(2, np.int64)}
    rows = []
    for _ in range(ENDS):
        _, rewards, terminated, _, infos = envs.step(action)
        rows.append((infos["alive"].tolist(), rewards.tolist(), terminated.tolist()))
    assert rows == [
        *[([True, False], [0.5, 0], [False, False])] * (COMES - 1),
        ([True, True], [0.5, 0], [False, False]),
        *[([True, True], [0.5, 0.5], [False, False])] * (ENDS - COMES - 1),
        ([True, False], [0.5, 0.5], [True, True]),
    ]
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_several_players_share_the_agents(mode: AutoresetMode) -> None:
    envs = gym.make_vec("Unity-Basic-v0", num_envs=4, n_instances=2, autoreset_mode=mode)
    envs.reset()
    for _ in range(EPISODE):
        _, rewards, terminated, _, _ = envs.step(np.array([RIGHT, 0, RIGHT, 0]))
    assert terminated.tolist() == [True, False, True, False]
    np.testing.assert_allclose(rewards, [0.99, -0.01, 0.99, -0.01], rtol=1e-5)
    envs.close()


def test_wrong_calls_raise_with_the_cause(balls: Callable[..., UnityVectorEnv]) -> None:
    with pytest.raises(InvalidValueError, match=r"NextStep.*'Disabled'"):
        balls(autoreset_mode=AutoresetMode.DISABLED)
    envs = balls()
    envs.reset()
    with pytest.raises(ActionError, match=r"\(4, 2\).*\(3, 2\)"):
        envs.step(np.zeros((3, 2), np.float32))
    envs.close()
    envs.close()
    with pytest.raises(UnityGymError, match="closed"):
        envs.step(np.zeros((4, 2), np.float32))


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_episode_statistics_work(mode: AutoresetMode) -> None:
    envs = wrappers.RecordEpisodeStatistics(gym.make_vec("Unity-Basic-v0", num_envs=2, autoreset_mode=mode))
    envs.reset()
    while envs.episode_count < 4:
        envs.step(np.full(2, RIGHT))
    assert list(envs.length_queue) == [EPISODE] * 4
    np.testing.assert_allclose(envs.return_queue, [0.93] * 4, rtol=1e-5)
    envs.close()


def test_gymnasiums_observation_wrappers_work_with_next_step(balls: Callable[..., UnityVectorEnv]) -> None:
    envs = wrappers.NormalizeObservation(wrappers.FlattenObservation(balls()))
    envs = wrappers.NormalizeReward(envs)
    envs.reset()
    for actions in tilts(30):
        observations, rewards, *_ = envs.step(actions)
    assert np.isfinite(observations).all()
    assert np.isfinite(rewards).all()


def test_gymnasiums_action_reward_and_info_wrappers_work(balls: Callable[..., UnityVectorEnv]) -> None:
    envs = wrappers.DictInfoToList(
        wrappers.ClipReward(wrappers.ClipAction(balls(autoreset_mode="SameStep")), -0.5, 0.05)
    )
    envs.reset()
    finals = []
    for actions in tilts(30):
        _, rewards, terminated, _, infos = envs.step(2 * actions)
        assert rewards.min() >= -0.5
        assert rewards.max() <= 0.05
        assert [("final_obs" in info) for info in infos] == terminated.tolist()
        finals += [info["final_obs"].shape for info in infos if "final_obs" in info]
    assert set(finals) == {(8,)}


def test_python_calls_do_not_grow_with_the_number_of_agents() -> None:
    calls = {}
    for agents in (10, 200):
        envs = gym.make_vec("Unity-3DBall-v0", num_envs=agents)
        envs.reset()
        actions = np.zeros((agents, 2), np.float32)
        envs.step(actions)
        profile = cProfile.Profile()
        profile.runcall(envs.step, actions)
        calls[agents] = pstats.Stats(profile).total_calls
        envs.close()
    assert calls[200] < calls[10] + 100
