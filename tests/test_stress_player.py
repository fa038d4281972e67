"""The stress scene covers all events that wrappers are tested with, and is reproducible by seed."""

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
    """Return the log of two halves with a reset between them."""
    with UnityEnvironment(stress_player.launcher(folder), seed=1, log_folder=folder) as env:
        for _ in range(2):
            env.reset()
            for _ in range(EXCHANGES // 2):
                env.step()
    return SceneLog(folder / "Player-0.jsonl")


def test_a_seed_determines_the_course(log: SceneLog, tmp_path: Path) -> None:
    assert played(tmp_path).records == log.records


def test_messages_are_of_every_kind(log: SceneLog) -> None:
    kinds = {frozenset(record["event"] for record in records) for records in log.records.values()}
    assert kinds == {frozenset({"decision"}), frozenset({"end"}), frozenset({"decision", "end"})}


def test_agents_end_in_every_way_in_every_behavior(log: SceneLog) -> None:
    ends = defaultdict(set)
    for records in log.records.values():
        for record in records:
            if record["event"] == "end":
                ends[record["behavior"]].add(record["interrupted"])
    assert ends.keys() == log.sensors.keys()
    assert all(ways == {False, True} for ways in ends.values())


def test_agents_spawn_late_change_their_behavior_and_return_under_new_ids(log: SceneLog) -> None:
    agents, first = defaultdict(set), {}
    for step_number in sorted(log.records):
        for record in log.records[step_number]:
            agents[record["behavior"]].add(record["agent"])
            first.setdefault(record["behavior"], step_number)
    assert min(first["Late?team=1"], first["Night?team=0"]) > 10
    assert agents["Day?team=0"] & agents["Night?team=0"]
    assert len(agents["Solo?team=0"]) > 2


def test_groups_change_receive_rewards_and_end_together(log: SceneLog) -> None:
    members = [
        [record for record in records if record["behavior"] == "Member?team=0"] for records in log.records.values()
    ]
    assert len({record["group"] for records in members for record in records}) > 4
    assert any(record["group_reward"] for records in members for record in records)
    assert any(
        record["event"] == other["event"] == "end" and record["group"] == other["group"] > 0
        for records in members
        for record, other in pairwise(records)
    )
    groups = defaultdict(set)
    for records in members:
        for record in records:
            groups[record["agent"]].add(record["group"])
    assert any(len(group_members) > 1 for group_members in groups.values())


def test_episodes_start_with_a_reward_and_some_end_without_a_decision(log: SceneLog) -> None:
    started, rewarded_at_start, never_decided = set(), 0, 0
    for step_number in sorted(log.records):
        for record in log.records[step_number]:
            episode = record["behavior"], record["agent"], record["episode"]
            rewarded_at_start += episode not in started and record["event"] == "decision" and record["reward"] > 0
            never_decided += episode not in started and record["event"] == "end"
            started.add(episode)
    assert rewarded_at_start > 5
    assert never_decided > 1


def test_no_two_observations_are_equal_and_no_reward_is_given_twice(log: SceneLog) -> None:
    observations = [tuple(record["observation"].values()) for records in log.records.values() for record in records]
    assert len(set(observations)) == len(observations)
    rewards = [record["reward"] for records in log.records.values() for record in records if record["reward"]]
    assert len(set(rewards)) > 0.99 * len(rewards)  # two sums may be equal by chance
