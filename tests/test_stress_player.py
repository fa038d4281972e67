"""The stress scene does what the wrappers are tested with, and the same for the same seed."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from stand_ins import stress_player
from stand_ins.wrapper_contract import SceneLog
from unity_gym.environment import UnityEnvironment

EXCHANGES = 250


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> SceneLog:
    return played(tmp_path_factory.mktemp("player"))


def played(folder: Path) -> SceneLog:
    """The log of two halves with a reset between them."""
    with UnityEnvironment(stress_player.launcher(folder), seed=1, log_folder=folder) as env:
        for _ in range(2):
            env.reset()
            for _ in range(EXCHANGES // 2):
                env.step()
    return SceneLog(folder / "Player-0.jsonl")


def test_a_seed_determines_the_course(log: SceneLog, tmp_path: Path) -> None:
    assert played(tmp_path).said == log.said


def test_messages_are_of_every_kind(log: SceneLog) -> None:
    kinds = {frozenset(told["event"] for told in said) for said in log.said.values()}
    assert kinds == {frozenset({"decision"}), frozenset({"end"}), frozenset({"decision", "end"})}


def test_agents_end_in_every_way_in_every_behavior(log: SceneLog) -> None:
    ends = defaultdict(set)
    for said in log.said.values():
        for told in said:
            if told["event"] == "end":
                ends[told["behavior"]].add(told["interrupted"])
    assert ends.keys() == log.sensors.keys()
    assert all(ways == {False, True} for ways in ends.values())


def test_agents_spawn_late_change_their_behavior_and_return_under_new_ids(log: SceneLog) -> None:
    agents, first = defaultdict(set), {}
    for exchange in sorted(log.said):
        for told in log.said[exchange]:
            agents[told["behavior"]].add(told["agent"])
            first.setdefault(told["behavior"], exchange)
    assert min(first["Late?team=1"], first["Night?team=0"]) > 10
    assert agents["Day?team=0"] & agents["Night?team=0"]
    assert len(agents["Solo?team=0"]) > 2


def test_groups_change_receive_rewards_and_end_together(log: SceneLog) -> None:
    members = [[told for told in said if told["behavior"] == "Member?team=0"] for said in log.said.values()]
    assert len({told["group"] for said in members for told in said}) > 4
    assert any(told["group_reward"] for said in members for told in said)
    assert any(
        told["event"] == other["event"] == "end" and told["group"] == other["group"] > 0
        for said in members
        for told, other in pairwise(said)
    )
    groups = defaultdict(set)
    for said in members:
        for told in said:
            groups[told["agent"]].add(told["group"])
    assert any(len(mine) > 1 for mine in groups.values())


def test_episodes_start_with_a_reward_and_some_end_without_a_decision(log: SceneLog) -> None:
    started, paid_at_the_start, never_decided = set(), 0, 0
    for exchange in sorted(log.said):
        for told in log.said[exchange]:
            episode = told["behavior"], told["agent"], told["episode"]
            paid_at_the_start += episode not in started and told["event"] == "decision" and told["reward"] > 0
            never_decided += episode not in started and told["event"] == "end"
            started.add(episode)
    assert paid_at_the_start > 5
    assert never_decided > 1


def test_no_two_observations_are_equal_and_no_reward_is_given_twice(log: SceneLog) -> None:
    observations = [tuple(told["observation"].values()) for said in log.said.values() for told in said]
    assert len(set(observations)) == len(observations)
    rewards = [told["reward"] for said in log.said.values() for told in said if told["reward"]]
    assert len(set(rewards)) > 0.99 * len(rewards)  # two sums may be equal by chance
