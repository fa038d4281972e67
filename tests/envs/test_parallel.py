"""The PettingZoo environments with the embedded player, and with a player whose agents differ, spawn and leave."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import aec_to_parallel

import unity_gym
from stand_ins import changing_agents_player, scripted_player
from stand_ins.changing_agents_player import COMES, ENDS, GROUP_REWARD, LEAVES
from unity_gym.envs import UnityParallelEnv
from unity_gym.errors import ActionError, InvalidValueError, NotReadyError, UnityGymError
from unity_gym.pool import PlayerPool
from unity_gym.registration import SCENES, environment_id

SCENE_IDS = [environment_id(scene) for scene in SCENES]
STRIKERS = ["striker_0_0", "striker_0_1", "striker_1_0", "striker_1_1"]
KEEPER, LATE_KEEPER = "keeper_0_0", "keeper_0_1"


@pytest.fixture
def build(tmp_path: Path) -> str:
    return changing_agents_player.launcher(tmp_path)


@pytest.fixture
def arena(build: str) -> Iterator[UnityParallelEnv]:
    env = unity_gym.parallel_env(file_name=build)
    yield env
    env.close()


def sampled(env: UnityParallelEnv, observations: dict[str, Any]) -> dict[str, Any]:
    return {agent: env.action_space(agent).sample(observations[agent]["action_mask"]) for agent in env.agents}


def zeros(env: UnityParallelEnv) -> dict[str, Any]:
    hybrid = {"continuous": np.zeros(2, np.float32), "discrete": 0}
    return {agent: hybrid if agent.startswith("keeper") else np.zeros(2, np.int64) for agent in env.agents}


def play(env: UnityParallelEnv, steps: int) -> list[tuple[dict[str, Any], ...]]:
    return [env.step(zeros(env)) for _ in range(steps)]


def ticks(observations: dict[str, Any]) -> set[float]:
    seen = (observation["observation"] for observation in observations.values())
    return {float((one["vector"] if isinstance(one, dict) else one)[1]) for one in seen}


@pytest.mark.parametrize("env_id", SCENE_IDS)
class TestPettingZoosOwnTestsPass:
    def test_parallel_api(self, env_id: str) -> None:
        env = unity_gym.parallel_env(env_id)
        parallel_api_test(env, num_cycles=100)
        env.close()

    def test_aec_api(self, env_id: str) -> None:
        env = unity_gym.aec_env(env_id)
        api_test(env, num_cycles=50)
        env.close()

    def test_parallel_seed(self, env_id: str) -> None:
        parallel_seed_test(lambda: unity_gym.parallel_env(env_id), num_cycles=30)

    def test_aec_seed(self, env_id: str) -> None:
        seed_test(lambda: unity_gym.aec_env(env_id), num_cycles=30)


def test_pettingzoos_own_tests_pass_where_agents_differ_come_and_go(build: str) -> None:
    env = unity_gym.parallel_env(file_name=build)
    parallel_api_test(env, num_cycles=50)
    env.close()
    env = unity_gym.aec_env(file_name=build)
    api_test(env, num_cycles=50)
    env.close()
    seed_test(lambda: unity_gym.aec_env(file_name=build, seed=42), num_cycles=20)


def test_pettingzoos_conversion_to_parallel_works_where_agents_come_in_mid_game(build: str) -> None:
    """It expects turns in the order of `agents`, and iterates over this list while agents are added to it."""
    for game, reset in (({"file_name": build}, {}), ({"env_id": "Unity-WallJump-v0", "num_areas": 2}, {"seed": 0})):
        env = aec_to_parallel(unity_gym.aec_env(**game))
        observations, _ = env.reset(**reset)
        for agent in env.possible_agents:
            env.action_space(agent).seed(0)
        at_start = set(env.agents)
        appeared: set[str] = set()
        for _ in range(200):
            observations, *_ = env.step(sampled(env, observations))
            appeared.update(env.agents)
            if not env.agents:
                observations, _ = env.reset()
        assert appeared - at_start
        env.close()


def test_agents_are_named_after_behavior_team_and_row(arena: UnityParallelEnv) -> None:
    assert arena.possible_agents == [*STRIKERS, KEEPER]
    observations, infos = arena.reset()
    assert arena.agents == list(observations) == list(infos) == [*STRIKERS, KEEPER]


def test_every_observation_is_in_the_space_of_its_agent(arena: UnityParallelEnv) -> None:
    observations, _ = arena.reset()
    while arena.agents:
        assert all(arena.observation_space(agent).contains(observation) for agent, observation in observations.items())
        observations, *_ = arena.step(sampled(arena, observations))
    assert all(arena.observation_space(agent).contains(observation) for agent, observation in observations.items())


def test_an_agent_without_sensors_acts_among_others(tmp_path: Path) -> None:
    env = unity_gym.parallel_env(file_name=scripted_player.launcher(tmp_path, "manager"), no_graphics=False)
    observations, _ = env.reset()
    assert observations["manager_0"] == {}
    observations, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    assert env.observation_space("manager_0").contains(observations["manager_0"])
    env.close()


def test_names_contain_the_team_although_the_second_team_has_its_first_turn_later(tmp_path: Path) -> None:
    build = scripted_player.launcher(tmp_path, "chess")
    env = unity_gym.parallel_env(file_name=build, wait_for="any")
    env.reset()
    env.step({"chess_0_0": env.action_space("chess_0_0").sample()})
    assert env.possible_agents == ["chess_0_0", "chess_1_0"]
    env.close()
    alone = unity_gym.parallel_env(file_name=build, wait_for="any", behavior="Chess?team=0")
    assert alone.possible_agents == ["chess_0"]
    alone.close()


def test_behaviors_without_discrete_actions_have_box_observations() -> None:
    env = unity_gym.parallel_env("Unity-3DBall-v0", num_areas=2)
    observations, infos = env.reset()
    assert {agent: (observation.shape, observation.dtype) for agent, observation in observations.items()} == {
        "threedball_0": ((8,), np.float32),
        "threedball_1": ((8,), np.float32),
    }
    assert infos == {"threedball_0": {}, "threedball_1": {}}
    env.close()


def test_the_mask_is_in_the_observation_and_in_the_info(arena: UnityParallelEnv) -> None:
    observations, infos = arena.reset()
    for striker, allowed in (("striker_1_0", [1, 1, 1, 1, 1]), ("striker_1_1", [1, 1, 0, 1, 1])):
        mask = observations[striker]["action_mask"]
        assert mask.dtype == np.int8
        assert mask.tolist() == infos[striker]["action_mask"].tolist() == allowed


def test_spaces_sample_what_a_flat_mask_allows(arena: UnityParallelEnv) -> None:
    mask = np.array([0, 1, 0, 0, 1], np.int8)
    assert [arena.action_space(STRIKERS[0]).sample(mask).tolist() for _ in range(5)] == [[1, 1]] * 5
    samples = [arena.action_space(KEEPER).sample(np.array([0, 0, 1], np.int8)) for _ in range(5)]
    assert {int(sample["discrete"]) for sample in samples} == {2}
    assert all(arena.action_space(KEEPER).contains(sample) for sample in samples)


def test_each_agent_has_its_own_spaces(arena: UnityParallelEnv) -> None:
    first, second = arena.action_space(STRIKERS[0]), arena.action_space(STRIKERS[1])
    assert first == second
    assert first is not second
    with pytest.raises(InvalidValueError, match=r"'goalie_9_9'.*striker"):
        arena.action_space("goalie_9_9")


def test_each_agent_acts_and_gets_its_own_and_its_groups_reward(arena: UnityParallelEnv) -> None:
    arena.reset()
    actions = zeros(arena) | {STRIKERS[0]: np.array([2, 0]), STRIKERS[3]: np.array([1, 1])}
    actions[KEEPER] = {"continuous": np.array([0.25, 0], np.float32), "discrete": 2}
    _, rewards, _, _, infos = arena.step(actions)
    assert rewards == dict(zip([*STRIKERS, KEEPER], [2.5, 0.5, 0.5, 1.5, 0.25], strict=True))
    assert {agent: info.get("group_reward") for agent, info in infos.items()} == (
        dict.fromkeys(STRIKERS, GROUP_REWARD) | {KEEPER: None}
    )


def test_an_agent_that_terminates_early_stays_inactive_while_the_others_continue(arena: UnityParallelEnv) -> None:
    arena.reset()
    *_, before, end = play(arena, LEAVES)
    assert STRIKERS[0] in before[0]
    observations, rewards, terminations, truncations, _ = end
    assert observations[STRIKERS[0]]["observation"].tolist() == [0, LEAVES]
    assert rewards[STRIKERS[0]] == GROUP_REWARD
    assert [agent for agent, ended in terminations.items() if ended] == [STRIKERS[0]]
    assert not any(truncations.values())
    assert arena.agents == [*STRIKERS[1:], KEEPER]
    observations, *_ = play(arena, 1)[0]
    assert STRIKERS[0] not in observations
    assert STRIKERS[0] in arena.possible_agents
    observations, *_ = arena.step(zeros(arena) | {STRIKERS[0]: np.ones(2, np.int64)})
    assert STRIKERS[0] not in observations


def test_an_agent_that_spawns_late_joins_the_episode_and_possible_agents(arena: UnityParallelEnv) -> None:
    arena.reset()
    *_, (observations, rewards, terminations, truncations, infos) = play(arena, COMES)
    assert arena.possible_agents == [*STRIKERS, KEEPER, LATE_KEEPER]
    assert arena.agents == [*STRIKERS[1:], KEEPER, LATE_KEEPER]
    assert observations[LATE_KEEPER]["observation"]["vector"].tolist() == [1, COMES]
    assert (rewards[LATE_KEEPER], terminations[LATE_KEEPER], truncations[LATE_KEEPER]) == (0.0, False, False)
    assert LATE_KEEPER in infos
    assert arena.observation_space(LATE_KEEPER) == arena.observation_space(KEEPER)
    actions = zeros(arena)
    actions[LATE_KEEPER] = {"continuous": np.array([0.5, 0], np.float32), "discrete": 0}
    assert arena.step(actions)[1][LATE_KEEPER] == 0.5


def test_interrupted_episodes_are_truncated_and_others_terminated(arena: UnityParallelEnv) -> None:
    arena.reset()
    *_, (observations, _, terminations, truncations, _) = play(arena, ENDS)
    assert arena.agents == []
    assert {agent for agent, ended in terminations.items() if ended} == {STRIKERS[1], KEEPER, LATE_KEEPER}
    assert {agent for agent, ended in truncations.items() if ended} == {STRIKERS[2], STRIKERS[3]}
    assert ticks(observations) == {ENDS}


def test_after_all_agents_end_reset_continues_with_the_next_episode_and_all_agents(arena: UnityParallelEnv) -> None:
    arena.reset()
    for _ in range(2):
        while arena.agents:
            arena.step(zeros(arena))
        observations, _ = arena.reset()
        assert arena.agents == [*STRIKERS, KEEPER]
        assert ticks(observations) == {0}  # a RESET, which takes effect within a tick, shows the next one


def test_agents_that_return_before_the_others_start_wait_for_them() -> None:
    """Agents that died return in the exchange in which their group ends; those that ended follow in the next one."""
    env = unity_gym.parallel_env("Unity-DungeonEscape-v0", num_areas=1)
    env.reset(seed=0)
    for agent in env.possible_agents:
        env.action_space(agent).seed(0)
    has_died = False
    while not has_died:
        while env.agents:
            ended = env.step({agent: env.action_space(agent).sample() for agent in env.agents})[2]
        has_died = len(ended) < len(env.possible_agents)
        env.reset()
        assert env.agents == env.possible_agents
    env.close()


def test_an_agent_that_changes_its_behavior_continues_without_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    env = unity_gym.parallel_env("Unity-WallJump-v0", num_areas=1)
    env.reset(seed=0)
    monkeypatch.setattr(PlayerPool, "reset", lambda *_: pytest.fail("RESET was sent"))
    seen = set()
    for episode in range(12):
        seen.update(env.agents)
        while env.agents:
            env.step(dict.fromkeys(env.agents, np.array([1, 0, 0, episode % 2])))
        env.reset()
    assert seen == {"bigwalljump_0", "smallwalljump_0"}
    env.close()


def test_a_reset_in_mid_episode_starts_a_new_episode(arena: UnityParallelEnv) -> None:
    arena.reset()
    play(arena, LEAVES)
    observations, _ = arena.reset()
    assert arena.agents == [*STRIKERS, KEEPER]
    assert ticks(observations) == {1}


def test_episode_ends_one_after_another_are_followed_by_a_reset() -> None:
    """The first agents to end are in the middle of later episodes when the last one ends."""
    env = unity_gym.parallel_env("Unity-3DBall-v0", num_areas=3)
    env.reset(seed=1)
    actions = {agent: np.full(2, 0.3 * row, np.float32) for row, agent in enumerate(env.possible_agents)}
    while env.agents:
        env.step({agent: actions[agent] for agent in env.agents})
    observations, _ = env.reset()
    height = 3  # index of the ball's height above the platform, about 4 at the start of an episode
    assert all(
        observation[height] > 3 and np.allclose(observation[5:], 0, atol=0.5) for observation in observations.values()
    )
    env.close()


def test_equal_seeds_give_equal_episodes() -> None:
    env = unity_gym.parallel_env("Unity-3DBall-v0", num_areas=3)

    def game(seed: int) -> list[Any]:
        results = [env.reset(seed=seed)]
        while env.agents:
            results.append(env.step(dict.fromkeys(env.agents, np.array([0.5, -0.5], np.float32))))
        return results

    first, again, other = game(3), game(3), game(4)
    env.close()
    assert data_equivalence(first, again)
    assert not data_equivalence(first[0], other[0])


def test_returned_arrays_are_not_overwritten() -> None:
    env = unity_gym.parallel_env("Unity-3DBall-v0", num_areas=2)
    observations, _ = env.reset()
    kept = {agent: observation.copy() for agent, observation in observations.items()}
    env.step(dict.fromkeys(env.agents, np.ones(2, np.float32)))
    assert data_equivalence(observations, kept)
    env.close()


def test_a_single_behavior_can_be_controlled(build: str) -> None:
    env = unity_gym.parallel_env(file_name=build, behavior="Striker")
    assert env.possible_agents == STRIKERS
    env.reset()
    env.step(dict.fromkeys(STRIKERS, np.zeros(2, np.int64)))
    env.close()


def test_wrong_calls_raise_with_the_cause(arena: UnityParallelEnv) -> None:
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        arena.step({})
    arena.reset()
    actions = zeros(arena)
    with pytest.raises(ActionError, match=r"missing are \['keeper_0_0'\], unknown are \['goalie_9_9'\]"):
        arena.step({agent: actions[agent] for agent in STRIKERS} | {"goalie_9_9": 0})
    with pytest.raises(ActionError, match=r"missing are \['keeper_0_0'\], unknown are \[\]"):
        arena.step({agent: actions[agent] for agent in STRIKERS})
    with pytest.raises(ActionError, match=r"missing are \[\], unknown are \['goalie_9_9'\]"):
        arena.step(actions | {"goalie_9_9": 0})
    with pytest.raises(ActionError, match=rf"{STRIKERS[1]}: .*must fit MultiDiscrete.*got array\(\[0, 0, 0\]\)"):
        arena.step(actions | {STRIKERS[1]: np.zeros(3, np.int64)})
    with pytest.raises(ActionError, match=rf"{STRIKERS[0]}: .*must fit MultiDiscrete.*got None"):
        arena.step(actions | {STRIKERS[0]: None})
    with pytest.raises(ActionError, match=rf"{KEEPER}: .*must fit Dict.*'discrete'"):
        arena.step(actions | {KEEPER: {"continuous": np.zeros(2)}})
    arena.step(actions)
    with pytest.raises(InvalidValueError, match="Unity-3DBall-v0"):
        unity_gym.parallel_env("Unity-Nowhere-v0")


def test_a_closed_environment_can_be_closed_again_and_steps_no_more(arena: UnityParallelEnv) -> None:
    arena.reset()
    actions = zeros(arena)
    arena.close()
    arena.close()
    with pytest.raises(UnityGymError, match="closed"):
        arena.step(actions)
