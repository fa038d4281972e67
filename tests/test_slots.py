"""The agent table: important cases, and random messages against a slow reference of one agent at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stand_ins.reference_table import Entry, Model
from unity_gym.slots import AgentTable, indices
from unity_gym.specs import (
    ActionSpec,
    Array,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

SPEC = BehaviorSpec(
    [
        ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "position"),
        ObservationSpec((1, 2, 2), (DimensionProperty.NONE,) * 3, ObservationType.DEFAULT, "eye"),
    ],
    ActionSpec(0, (2, 1)),
)


def observations(entries: Sequence[Entry]) -> list[Array]:
    seen = np.array([entry.seen for entry in entries])
    return [
        np.repeat(seen[:, np.newaxis], 2, axis=1).astype(np.float32),
        np.broadcast_to(seen[:, np.newaxis, np.newaxis, np.newaxis], (len(entries), 1, 2, 2)).astype(np.uint8),
    ]


def columns(entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "obs": observations(entries),
        "reward": np.array([entry.reward for entry in entries], np.float32),
        "group_reward": np.array([entry.group_reward for entry in entries], np.float32),
        "agent_id": np.array([entry.id for entry in entries], np.int32),
        "group_id": np.array([entry.group for entry in entries], np.int32),
    }


def update_table(
    table: AgentTable, deciding: Sequence[Entry] = (), ended: Sequence[Entry] = (), player: int = 0
) -> list[int]:
    """Update the table with one message; return the rows of the requesting agents."""
    masks = np.array([entry.forbidden for entry in deciding], bool).reshape(-1, 3)
    decisions = DecisionSteps(**columns(deciding), action_mask=[masks[:, :2], masks[:, 2:]])
    terminals = TerminalSteps(**columns(ended), interrupted=np.array([entry.interrupted for entry in ended], bool))
    rows: list[int] = indices(table.update(decisions, terminals, player)).tolist()
    return rows


def new_table(*ids: int, group: int = 0) -> AgentTable:
    """Return a table whose agents have these ids and had their first decision in an earlier step."""
    table = AgentTable(SPEC, "uint8")
    update_table(table, [Entry(number, seen=number, group=group) for number in ids])
    table.start_step()
    return table


def test_agents_get_rows_in_the_order_in_which_they_appear() -> None:
    table = AgentTable(SPEC, "uint8")
    assert len(table) == 0
    assert update_table(table, [Entry(9), Entry(4)]) == [0, 1]
    assert update_table(table, [Entry(7), Entry(4)]) == [2, 1]
    assert table.agent_id.tolist() == [9, 4, 7]
    assert table.alive.all()
    assert table.requests_decision.all()


def test_arrays_have_the_dtypes_and_shapes_of_the_sensors() -> None:
    table = new_table(1, 2, 3)
    assert [(column.shape, column.dtype) for column in table.observations] == [
        ((3, 2), np.dtype(np.float32)),
        ((3, 1, 2, 2), np.dtype(np.uint8)),
    ]
    assert [column.dtype for column in AgentTable(SPEC).observations] == [np.float32, np.float32]
    assert table.action_mask.shape == (3, 3)
    assert table.reward.dtype == table.group_reward.dtype == np.float32
    for column in (table.requests_decision, table.alive, table.terminated, table.truncated, table.action_mask):
        assert column.dtype == bool


def test_arrays_stay_the_same_objects_until_an_agent_spawns() -> None:
    table = new_table(1, 2)
    before = [*table.observations, *table.final_observations, table.reward, table.requests_decision, table.action_mask]
    for _ in range(3):
        table.start_step()
        update_table(table, [Entry(2, 5.0)], ended=[Entry(1)])
    after = [*table.observations, *table.final_observations, table.reward, table.requests_decision, table.action_mask]
    assert all(old is new for old, new in zip(before, after, strict=True))


def test_masks_are_inverted_to_true_for_allowed_over_all_branches() -> None:
    table = AgentTable(SPEC)
    update_table(table, [Entry(1, forbidden=(True, False, False)), Entry(2)])
    assert table.action_mask.tolist() == [[False, True, True], [True, True, True]]


def test_an_id_keeps_its_row_over_its_episodes() -> None:
    table = new_table(1, 2)
    update_table(table, ended=[Entry(1), Entry(2)])
    table.start_step()
    assert update_table(table, [Entry(2), Entry(1)]) == [1, 0]


def test_an_episode_end_and_the_next_first_decision_in_one_message_share_a_row() -> None:
    table = new_table(1)
    update_table(table, [Entry(1, seen=50, reward=9.0)], ended=[Entry(1, seen=40, reward=2.0, group_reward=0.5)])
    assert table.terminated.tolist() == [True]
    assert table.truncated.tolist() == [False]
    assert (table.reward[0], table.group_reward[0]) == (2.0, 0.5)
    assert table.final_observations[0].tolist() == [[40, 40]]
    assert table.observations[0].tolist() == [[50, 50]]
    assert table.requests_decision[0]
    assert table.alive[0]


def test_an_interrupted_episode_is_truncated() -> None:
    table = new_table(1, 2)
    update_table(table, ended=[Entry(1, interrupted=True), Entry(2)])
    assert table.truncated.tolist() == [True, False]
    assert table.terminated.tolist() == [False, True]
    assert not table.alive.any()
    assert not table.requests_decision.any()


def test_reward_on_the_first_entry_of_an_episode_is_dropped() -> None:
    table = AgentTable(SPEC)
    update_table(table, [Entry(1, reward=3.0, group_reward=4.0)])
    assert table.reward.tolist() == table.group_reward.tolist() == [0.0]
    update_table(table, ended=[Entry(1)])
    table.start_step()
    update_table(table, [Entry(1, reward=5.0)])
    assert table.reward.tolist() == [0.0]
    table.start_step()
    update_table(table, [Entry(1, reward=6.0)])
    assert table.reward.tolist() == [6.0]


def test_rewards_of_several_player_steps_of_one_step_are_summed() -> None:
    table = new_table(1, 2)
    update_table(table, [Entry(1, reward=1.0, group_reward=0.1)])
    update_table(table, [Entry(1, reward=2.0, group_reward=0.2), Entry(2, reward=8.0)])
    update_table(table, ended=[Entry(1, reward=4.0)])
    assert table.reward.tolist() == [7.0, 8.0]
    np.testing.assert_allclose(table.group_reward, [0.3, 0.0])


def test_rewards_after_an_episode_end_in_the_same_step_are_dropped() -> None:
    table = new_table(1)
    update_table(table, [Entry(1, seen=2)], ended=[Entry(1, seen=3, reward=1.0)])
    update_table(table, [Entry(1, seen=4, reward=16.0)])
    assert table.reward.tolist() == [1.0]
    assert table.observations[0].tolist() == [[4, 4]]


def test_only_the_first_of_two_episode_ends_in_one_step_counts() -> None:
    table = new_table(1)
    update_table(table, [Entry(1, seen=2)], ended=[Entry(1, seen=3, reward=1.0)])
    update_table(table, [Entry(1, seen=4)], ended=[Entry(1, seen=5, reward=2.0, interrupted=True)])
    assert table.terminated.tolist() == [True]
    assert table.truncated.tolist() == [False]
    assert table.reward.tolist() == [1.0]
    assert table.final_observations[0].tolist() == [[3, 3]]
    assert table.observations[0].tolist() == [[4, 4]]


def test_the_end_of_an_agent_that_never_requested_a_decision_is_ignored() -> None:
    table = new_table(1)
    update_table(table, [Entry(1)], ended=[Entry(99, reward=5.0)])
    assert len(table) == 1
    assert not table.terminated.any()
    update_table(table, ended=[Entry(1, reward=1.0)])
    table.start_step()
    update_table(table, ended=[Entry(1, reward=7.0)])  # a second end without a decision in between
    assert not table.terminated.any()
    assert table.reward.tolist() == [0.0]


def test_the_next_step_resets_rewards_dones_and_decisions_and_keeps_the_rest() -> None:
    table = new_table(1)
    update_table(table, [Entry(1, seen=6)], ended=[Entry(1, reward=1.0, group_reward=1.0)])
    table.start_step()
    for column in (table.reward, table.group_reward, table.requests_decision, table.terminated, table.truncated):
        assert not column.any()
    assert table.alive[0]
    assert table.observations[0].tolist() == [[6, 6]]


def test_outcomes_can_be_discarded_without_the_decisions() -> None:
    table = new_table(1, 2)
    update_table(table, [Entry(1), Entry(2, reward=1.0)], ended=[Entry(1, reward=2.0, group_reward=3.0)])
    table.reset_outcomes()
    assert table.requests_decision.all()
    update_table(table, ended=[Entry(2, reward=4.0)])
    assert not any(column.any() for column in (table.reward, table.group_reward, table.terminated))


def test_a_new_id_takes_the_row_of_the_agent_that_ended_in_the_same_message() -> None:
    table = new_table(1)
    assert update_table(table, [Entry(2, seen=8, reward=9.0)], ended=[Entry(1, seen=7, reward=1.0)]) == [0]
    assert table.agent_id.tolist() == [2]
    assert table.reward.tolist() == [1.0]
    assert table.terminated[0]
    assert table.requests_decision[0]


def test_a_new_id_prefers_the_lowest_row_of_its_group_that_was_free_before() -> None:
    table = new_table(1, 2, 3, 4)
    update_table(table, ended=[Entry(4), Entry(3)])
    assert update_table(table, [Entry(5)], ended=[Entry(1)]) == [2]
    assert update_table(table, [Entry(6), Entry(7), Entry(8)]) == [0, 3, 4]
    assert table.agent_id.tolist() == [6, 2, 5, 7, 8]


def test_an_agent_that_returns_keeps_its_row_from_new_ones() -> None:
    table = new_table(1, 2)
    assert update_table(table, [Entry(3), Entry(1)], ended=[Entry(1), Entry(2)]) == [1, 0]


def test_an_id_whose_row_was_taken_is_treated_as_new() -> None:
    table = new_table(1)
    update_table(table, ended=[Entry(1)])
    assert update_table(table, [Entry(2)]) == [0]
    assert update_table(table, [Entry(1)]) == [1]


def test_a_new_id_takes_no_row_of_another_group_with_active_agents() -> None:
    table = AgentTable(SPEC)
    update_table(table, [Entry(1, group=1), Entry(2, group=1), Entry(3, group=2)])
    update_table(table, ended=[Entry(1, group=1), Entry(3, group=2)])
    assert update_table(table, [Entry(4, group=2)]) == [2]
    assert update_table(table, [Entry(5, group=2)]) == [3], "row 0 is of group 1, in which agent 2 is active"
    assert update_table(table, [Entry(6, group=1)]) == [0]
    assert table.group_id.tolist() == [1, 1, 2, 2]


def test_a_new_group_takes_the_rows_of_an_inactive_group() -> None:
    table = new_table(1, 2, group=1)
    update_table(table, ended=[Entry(1, group=1), Entry(2, group=1)])
    assert update_table(table, [Entry(3, group=2), Entry(4, group=2), Entry(5, group=2)]) == [0, 1, 2]
    assert table.group_id.tolist() == [2, 2, 2]


def test_a_row_of_its_group_is_left_to_a_later_agent() -> None:
    table = AgentTable(SPEC, reserved=3)
    update_table(table, [Entry(1, group=1), Entry(2, group=2), Entry(3, group=2)])
    update_table(table, ended=[Entry(1, group=1), Entry(2, group=2)])
    assert update_table(table, [Entry(4, group=3), Entry(5, group=1)]) == [1, 0], "row 1 is of group 2, with agent 3"


def test_many_new_agents_take_as_many_calls_as_a_few() -> None:
    def calls(agents: int) -> int:
        table = new_table(*range(agents))
        entries = [Entry(number, group=number % 5) for number in range(agents, 2 * agents)]
        message = DecisionSteps(**columns(entries), action_mask=None)
        ended = [Entry(number) for number in range(agents)]
        terminals = TerminalSteps(**columns(ended), interrupted=np.zeros(agents, bool))
        count = 0

        def profile(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(profile)
        try:
            table.update(message, terminals)
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # numpy's first call may import
    assert calls(1000) == calls(10)


def test_the_same_id_in_two_players_means_two_agents() -> None:
    table = AgentTable(SPEC)
    assert update_table(table, [Entry(1, seen=1)], player=0) == [0]
    assert update_table(table, [Entry(1, seen=2)], player=1) == [1]
    table.start_step()
    update_table(table, ended=[Entry(1, reward=1.0)], player=1)
    assert table.terminated.tolist() == [False, True]
    assert table.player.tolist() == [0, 1]
    assert update_table(table, [Entry(2)], player=0) == [2], "the free row is of another player"


def test_truncate_episodes_affects_the_running_episodes_of_one_player() -> None:
    table = AgentTable(SPEC)
    update_table(table, [Entry(1, seen=3), Entry(2, seen=4)], player=0)
    update_table(table, [Entry(1, seen=5)], player=1)
    update_table(table, ended=[Entry(2, seen=6)], player=0)
    table.start_step()
    table.truncate_episodes(0)
    assert table.truncated.tolist() == [True, False, False]
    assert table.final_observations[0][0].tolist() == [3, 3]
    assert table.alive.tolist() == [False, False, True]
    update_table(table, [Entry(1, seen=7, reward=9.0)], player=0)
    assert table.reward.tolist() == [0.0, 0.0, 0.0], "reward that survives a RESET comes with a first entry"


def test_a_group_ends_with_its_last_members_and_not_with_the_first() -> None:
    table = new_table(1, 2, 3, group=4)
    update_table(table, [Entry(2, group=4), Entry(3, group=4)], [Entry(1, group=4)])
    assert table.terminated.tolist() == [True, False, False]
    assert not table.group_ended.any()
    table.start_step()
    again = [Entry(number, group=4) for number in (1, 2, 3)]  # the next episode, of the same group, in one message
    update_table(table, again, [Entry(2, group=4), Entry(3, group=4, interrupted=True)])
    assert table.group_ended.tolist() == [False, True, True]
    table.start_step()
    assert not table.group_ended.any()


def test_agents_of_one_player_and_group_share_a_group_and_others_do_not() -> None:
    table = AgentTable(SPEC, "uint8")
    for player in (0, 1):
        update_table(table, [Entry(1, group=4), Entry(2, group=4), Entry(3, group=5), Entry(4)], player=player)
    assert len(np.unique(table.group)) == 6
    assert table.group[0] == table.group[1]
    assert table.group[4] == table.group[5]
    assert (table.group < 0).tolist() == [False, False, False, True] * 2
    table.start_step()
    update_table(table, (), [Entry(4)])
    assert table.terminated[3]
    assert not table.group_ended[3]  # there is none


def test_an_episode_that_started_within_a_step_gets_no_reward_until_the_next() -> None:
    table = new_table(1)
    update_table(table, [Entry(2)])
    update_table(table, [Entry(2, reward=1.0)])
    update_table(table, [Entry(2)], ended=[Entry(2, reward=2.0)])
    assert table.reward.tolist() == [0.0, 0.0]
    assert not table.terminated.any()
    table.start_step()
    update_table(table, ended=[Entry(2, reward=4.0)])
    assert table.reward.tolist() == [0.0, 4.0]
    assert table.terminated.tolist() == [False, True]


def test_reserved_rows_wait_for_agents_of_any_group_and_player() -> None:
    table = AgentTable(SPEC, "uint8", reserved=3)
    assert len(table) == 3
    assert table.agent_id.tolist() == table.player.tolist() == [-1, -1, -1]
    assert not table.alive.any()
    assert table.action_mask.all()
    assert update_table(table, [Entry(1, group=1), Entry(2, group=1)], player=0) == [0, 1]
    assert update_table(table, [Entry(1)], player=1) == [2]
    update_table(table, ended=[Entry(1, group=1)], player=0)
    assert update_table(table, [Entry(2)], player=1) == [0], "in a fixed table no row is reserved for a group or player"
    assert update_table(table, [Entry(3)], player=1) == [3], "four agents are active at once"


def test_after_a_restart_agents_get_rows_as_in_a_new_table() -> None:
    table = new_table(5, 6, 7, group=4)
    update_table(table, ended=[Entry(5, group=4)])
    update_table(table, [Entry(8, seen=8, group=4, forbidden=(True, True, True))])
    table.start_step()
    table.truncate_episodes(0)
    table.restart()
    assert table.truncated.tolist() == [True, True, True]
    assert table.final_observations[0][0].tolist() == [8, 8]
    assert not any(column.any() for column in table.observations)
    assert table.action_mask.all()
    assert update_table(table, [Entry(6, reward=1.0), Entry(5)]) == [0, 1]
    assert table.reward.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("ids", [[2**31 - 1, 0, 1], [1000, 10, 100]])
def test_ids_of_any_size_and_order_are_found_again(ids: list[int]) -> None:
    table = new_table(*ids)
    update_table(table, [Entry(number, reward=number) for number in reversed(ids)])
    assert table.reward.tolist() == np.array(ids, np.float32).tolist()


def assert_equal(table: AgentTable, model: Model) -> None:
    rows = model.rows
    for name, expected in (
        ("agent_id", [row.id for row in rows]),
        ("player", [row.player for row in rows]),
        ("group_id", [row.group for row in rows]),
        ("reward", [row.reward for row in rows]),
        ("group_reward", [row.group_reward for row in rows]),
        ("alive", [row.alive for row in rows]),
        ("requests_decision", [row.requests_decision for row in rows]),
        ("terminated", [row.terminated for row in rows]),
        ("group_ended", [row.group_ended for row in rows]),
        ("truncated", [row.truncated for row in rows]),
    ):
        assert getattr(table, name).tolist() == expected, name
    for actual, seen in ((table.observations, "seen"), (table.final_observations, "final")):
        for column, expected_column in zip(
            actual, observations([Entry(0, getattr(row, seen)) for row in rows]), strict=True
        ):
            np.testing.assert_array_equal(column, expected_column, err_msg=seen)
    assert table.action_mask.tolist() == [row.allowed for row in rows]


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, list[Entry], list[Entry]]:
    """Generate a message: a player, its requesting and its ended agents; an agent may be in both, or new."""

    def entries() -> list[Entry]:
        agents = draw(st.lists(st.integers(0, 7), unique=True, max_size=5))
        return [
            Entry(
                agent * 300_000_007 % 2**31,
                draw(st.integers(0, 255)),
                draw(st.integers(-4, 4)),  # whole numbers: sums do not depend on the order
                draw(st.integers(-4, 4)),
                group=agent % 3,
                interrupted=draw(st.booleans()),
                forbidden=draw(st.tuples(st.booleans(), st.booleans(), st.booleans())),
            )
            for agent in agents
        ]

    return draw(st.integers(0, 1)), entries(), entries()


EVENTS = st.lists(
    st.sampled_from(["step", "forget", "cut 0", "cut 1", "restart"]) | exchanges() | exchanges(), max_size=14
)


@settings(max_examples=300, deadline=None)
@given(EVENTS, st.sampled_from([0, 0, 3, 6]))
def test_for_random_messages_the_table_equals_a_reference_of_single_agents(
    events: list[str | tuple[int, list[Entry], list[Entry]]], reserved: int
) -> None:
    table, model = AgentTable(SPEC, "uint8", reserved), Model(reserved)
    for event in events:
        if isinstance(event, tuple):
            player, deciding, ended = event
            assert update_table(table, deciding, ended, player) == model.update(deciding, ended, player)
        elif event == "step":
            table.start_step()
            model.start_step()
        elif event == "forget":
            table.reset_outcomes()
            model.reset_outcomes()
        else:
            for player in (0, 1) if event == "restart" else (int(event[-1]),):
                table.truncate_episodes(player)
                model.truncate_episodes(player)
            if event == "restart":
                table.restart()
                model.restart()
        assert_equal(table, model)
