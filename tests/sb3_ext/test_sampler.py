"""What a sampler returns of the episodes and the last decisions of its agents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from small_runs import learner_of

from sb3_ext.curriculum import ParameterValue
from sb3_ext.placement import LocalSampler
from sb3_ext.sampler import EpisodeStatistics, Request, Sampler, Samples
from sb3_ext.settings import Constant, ConstantParameters
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.slots import AgentTable
from unity_gym.specs import Array

ALL = np.ones(3, bool)


@dataclass
class Outcomes:
    """Part of an agent table of three rows with the outcomes of a step."""

    reward: Array
    group_reward: Array = field(default_factory=lambda: np.zeros(3))
    terminated: Array = field(default_factory=lambda: np.zeros(3, bool))
    truncated: Array = field(default_factory=lambda: np.zeros(3, bool))
    group_ended: Array = field(default_factory=lambda: np.zeros(3, bool))
    group_id: Array = field(default_factory=lambda: np.zeros(3, np.int64))

    def __len__(self) -> int:
        return 3


def outcomes(reward: Sequence[float], **columns: Sequence[float]) -> AgentTable:
    given = {name: np.array(column) for name, column in columns.items()}
    return cast(AgentTable, Outcomes(np.array(reward, float), **given))


def finished(statistics: EpisodeStatistics) -> dict[str, Any]:
    episodes = statistics.pop()
    assert episodes is not None
    assert statistics.pop() is None
    return {name: column.tolist() for name, column in episodes.items()}


def test_each_row_sums_the_rewards_and_decisions_of_one_episode_after_another() -> None:
    statistics = EpisodeStatistics()
    acted = np.array([True, False, True])
    assert not statistics.store_outcomes(outcomes([1, 2, 3]), acted)
    assert statistics.pop() is None
    assert statistics.store_outcomes(outcomes([10, 20, 30], terminated=[True, False, False]), ALL)
    assert statistics.store_outcomes(outcomes([4, 5, 6], truncated=[True, True, False]), ALL)
    assert finished(statistics) == {
        "reward": [11, 4, 27],
        "group_reward": [0, 0, 0],
        "length": [2, 1, 2],
        "is_whole": [True] * 3,
        "is_group_end": [False] * 3,
        "is_of_lesson": [True] * 3,
    }


def test_a_member_that_ends_before_its_group_has_no_whole_episode() -> None:
    statistics = EpisodeStatistics()
    groups = [1, 1, 0]
    statistics.store_outcomes(outcomes([1, 1, 1], group_reward=[2, 2, 0], group_id=groups), ALL)
    first = outcomes([0, 0, 0], terminated=[True, False, False], group_id=groups)
    assert not statistics.store_outcomes(first, ALL)
    second = outcomes(
        [5, 5, 5],
        group_reward=[0, 3, 0],
        terminated=[False, True, True],
        group_ended=[False, True, False],
        group_id=groups,
    )
    assert statistics.store_outcomes(second, ALL)
    episodes = finished(statistics)
    assert episodes["reward"] == [1, 6, 6]
    assert episodes["group_reward"] == [2, 5, 0]
    assert episodes["is_whole"] == [False, True, True]
    assert episodes["is_group_end"] == [False, True, False]


def test_episodes_of_a_former_lesson_and_of_a_lost_player_do_not_count() -> None:
    statistics = EpisodeStatistics()
    ends = {"terminated": [True, True, True]}
    statistics.store_outcomes(outcomes([1, 1, 1]), ALL)
    statistics.start_lesson(np.array([True, False, False]))
    statistics.discard(np.array([False, True, False]))
    assert statistics.store_outcomes(outcomes([1, 1, 1], **ends), ALL)
    episodes = finished(statistics)
    assert episodes["reward"] == [2, 2]  # rows 0 and 2
    assert episodes["is_of_lesson"] == [False, True]
    assert statistics.store_outcomes(outcomes([1, 2, 3], **ends), ALL)
    episodes = finished(statistics)
    assert episodes["reward"] == [1, 2, 3]
    assert episodes["is_of_lesson"] == [True] * 3
    statistics.store_outcomes(outcomes([1, 1, 1]), ALL)
    statistics.start_lesson(ALL)
    assert not statistics.store_outcomes(outcomes([1, 1, 1], **ends), ALL), "none counts for the lesson"


def test_a_reset_discards_the_running_episodes_and_all_that_was_noted_about_them() -> None:
    statistics = EpisodeStatistics()
    statistics.store_outcomes(outcomes([1, 1, 1], group_reward=[1, 1, 1]), ALL)
    statistics.start_lesson(ALL)
    statistics.discard(ALL)
    statistics.restart()
    statistics.store_outcomes(outcomes([5, 5, 5], terminated=[True] * 3), ALL)
    episodes = finished(statistics)
    assert episodes["reward"] == [5] * 3
    assert episodes["group_reward"] == [0] * 3
    assert episodes["length"] == [1] * 3
    assert episodes["is_of_lesson"] == [True] * 3


def test_agents_of_another_team_are_members_of_their_groups_from_their_first_step() -> None:
    statistics = EpisodeStatistics()
    statistics.store_outcomes(outcomes([0, 0, 0]), ALL)
    statistics.start_team(outcomes([0, 0, 0], group_id=[1, 1, 0]))
    assert statistics.store_outcomes(outcomes([1, 1, 1], terminated=[True] * 3, group_id=[1, 1, 0]), ALL)
    assert finished(statistics)["is_whole"] == [False, False, True]


def test_a_behavior_that_learns_again_returns_its_last_decisions_again_and_lessons_part_its_episodes() -> None:
    with closing(PlayerPool(PlayerOptions(file_name="embedded:Basic", num_areas=4, seed=0))) as pool:
        pool.reset()
        sampler = LocalSampler(Sampler(pool))
        learner_of(sampler, seed=0)

        def collect(decisions: dict[str, int], limits: dict[str, int] | None = None) -> Samples:
            sampler.start(Request(decisions, limits or {}))
            return sampler.result(lambda: True)

        for _ in range(2):
            part = collect({"Basic": 40})
            assert len(part.trajectories["Basic"]) == part.stored["Basic"] >= 40
            assert not part.finished
            assert not collect({"Basic": 1000}, {"Basic": 8}).trajectories
            rest = collect({})
            assert rest.finished == {"Basic"}
            assert len(rest.trajectories["Basic"]) == 8
            assert not collect({}).finished

        sampler.set_parameters([ParameterValue("width", Constant(sampler_parameters=ConstantParameters(value=1)), 0)])
        counts = collect({"Basic": 1000}).episodes["Basic"]["is_of_lesson"]
        assert np.count_nonzero(~counts) == 4  # the running episodes of four agents
        assert np.count_nonzero(counts) > 4
