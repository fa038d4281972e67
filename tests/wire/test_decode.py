"""Decoding of replies, compared with a slow decoder of one agent at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stand_ins.reply_messages import EQUIVARIANT, NONE, VARIABLE, Agent, Sensor, messages
from unity_gym.errors import ProtocolError
from unity_gym.specs import (
    ActionSpec,
    DecisionStep,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalStep,
    TerminalSteps,
)
from unity_gym.wire.decode import BehaviorDecoder, action_spec, parse
from unity_gym.wire.messages import BrainParameters, UnityMessage

BRANCHES = (3, 2)
SPEC = ActionSpec(1, BRANCHES)


def decoder(agent: Agent, actions: ActionSpec = SPEC) -> BehaviorDecoder:
    return BehaviorDecoder("Ball", actions, messages([agent])[0], "4.0.0")


def sensors(rng: np.random.Generator) -> list[Sensor]:
    """A vector, a list of entities, a vector of one number, a scalar and an empty vector."""
    return [
        Sensor(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in (("vector", (5,)), ("entities", (4, 3)), ("one", (1,)), ("scalar", ()), ("empty", (0,)))
    ]


def assert_columns_are(steps: tuple[DecisionSteps, TerminalSteps], agents: Sequence[Agent]) -> None:
    """Compare the arrays with the data of each agent."""
    decisions, terminals = steps
    assert list(decisions) == [agent.id for agent in agents if not agent.done]
    assert list(terminals) == [agent.id for agent in agents if agent.done]
    for agent in agents:
        found = terminals[agent.id] if agent.done else decisions[agent.id]
        assert found.agent_id == agent.id
        assert found.group_id == agent.group
        assert found.reward == np.float32(agent.reward)
        assert found.group_reward == np.float32(agent.group_reward)
        assert len(found.obs) == len(agent.sensors)
        for seen, sensor in zip(found.obs, agent.sensors, strict=True):
            np.testing.assert_array_equal(seen, sensor.values, strict=True)
        if isinstance(found, TerminalStep):
            assert found.interrupted is np.bool_(agent.interrupted)
        else:
            forbidden = [False] * sum(BRANCHES) if agent.mask is None else list(agent.mask)
            assert isinstance(found, DecisionStep)
            assert found.action_mask is not None
            assert [mask.tolist() for mask in found.action_mask] == [forbidden[:3], forbidden[3:]]
    for part in (decisions, terminals):
        assert part.reward.dtype == part.group_reward.dtype == np.float32
        assert part.agent_id.dtype == part.group_id.dtype == np.int32
        assert all(column.flags.writeable and column.flags.c_contiguous for column in part.obs)
    assert terminals.interrupted.dtype == bool


@settings(max_examples=60, deadline=None)
@given(
    agents=st.lists(
        st.builds(
            Agent,
            id=st.integers(0, 2**31 - 1),
            reward=st.floats(width=32, allow_nan=False, allow_infinity=False),
            group_reward=st.floats(width=32, allow_nan=False, allow_infinity=False),
            group=st.integers(0, 2**31 - 1),
            done=st.booleans(),
            interrupted=st.booleans(),
            mask=st.none() | st.lists(st.booleans(), min_size=5, max_size=5),
        ),
        unique_by=lambda agent: agent.id,
        max_size=6,
    ),
    seed=st.integers(0, 99),
)
def test_arrays_contain_the_data_of_each_agent(agents: list[Agent], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for agent in agents:
        agent.sensors = sensors(rng)
    assert_columns_are(decoder(Agent(0, sensors(rng))).decode(messages(agents)), agents)


def test_hundreds_of_agents_some_of_them_terminal_keep_their_order() -> None:
    rng = np.random.default_rng(0)
    agents = [
        Agent(
            int(number),
            sensors(rng),
            reward=float(rng.normal()),
            group_reward=float(rng.normal()),
            group=int(number) % 4,
            done=bool(number % 7 == 0),
            interrupted=bool(number % 14 == 0),
            mask=None if number % 3 else rng.integers(0, 2, 5).astype(bool).tolist(),
        )
        for number in rng.permutation(600)
    ]
    assert_columns_are(decoder(agents[0]).decode(messages(agents)), agents)


@pytest.mark.parametrize("done", [False, True])
def test_decision_or_terminal_steps_without_agents_are_empty_with_the_right_shapes(done: bool) -> None:
    rng = np.random.default_rng(1)
    agents = [Agent(3, sensors(rng), done=done)]
    reader = decoder(agents[0])
    empty = reader.decode(messages(agents))[0 if done else 1]
    for steps in (empty, *reader.decode([])):
        assert len(steps) == 0
        assert [column.shape for column in steps.obs] == [(0, 5), (0, 4, 3), (0, 1), (0,), (0, 0)]
    masks = reader.decode([])[0].action_mask
    assert masks is not None
    assert [mask.shape for mask in masks] == [(0, 3), (0, 2)]


def test_a_behavior_without_branches_has_no_masks() -> None:
    agent = Agent(1, [Sensor(np.zeros(2))])
    assert decoder(agent, ActionSpec(2, ())).decode(messages([agent]))[0].action_mask is None


def test_an_agent_without_sensors_is_still_an_agent() -> None:
    agents = [Agent(4, reward=1.0), Agent(5, done=True)]
    assert_columns_are(decoder(agents[0]).decode(messages(agents)), agents)


def test_the_arrays_of_one_reply_are_not_overwritten_by_the_next() -> None:
    rng = np.random.default_rng(2)
    first, second = [Agent(1, sensors(rng), reward=1.0)], [Agent(1, sensors(rng), reward=2.0)]
    reader = decoder(first[0])
    steps = reader.decode(messages(first))
    reader.decode(messages(second))
    assert_columns_are(steps, first)


def test_sensors_are_described_with_name_type_and_properties() -> None:
    agent = Agent(
        1,
        [
            Sensor(np.zeros((6, 4)), "entities", [VARIABLE, NONE]),
            Sensor(np.zeros(3), "goal", [NONE], kind=1),
            Sensor(np.zeros(2)),
        ],
    )
    assert decoder(agent).spec.observation_specs == [
        ObservationSpec(
            (6, 4), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE), ObservationType.DEFAULT, "entities"
        ),
        ObservationSpec((3,), (DimensionProperty.NONE,), ObservationType.GOAL_SIGNAL, "goal"),
        ObservationSpec((2,), (DimensionProperty.UNSPECIFIED,), ObservationType.DEFAULT, ""),
    ]
    assert EQUIVARIANT == DimensionProperty.TRANSLATIONAL_EQUIVARIANCE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("done", [False, True])
def test_a_non_finite_number_raises_with_behavior_agent_and_sensor(value: float, done: bool) -> None:
    agents = [
        Agent(5 + n, [Sensor(np.zeros(2), "speed"), Sensor(np.zeros((2, 2)), "map")], done=done) for n in range(3)
    ]
    reader = decoder(agents[0])
    agents[1].sensors[1].values[1, 0] = value
    with pytest.raises(ProtocolError, match=r"'Ball', agent 6: sensor 1 \('map'\).*1 of 3 agents"):
        reader.decode(messages(agents))
    agents[1].sensors[1].values[1, 0] = 0
    for field, what in (("reward", "the reward"), ("group_reward", "the group reward")):
        setattr(agents[2], field, value)
        with pytest.raises(ProtocolError, match=f"'Ball', agent 7: {what}"):
            reader.decode(messages(agents))
        setattr(agents[2], field, 0.0)
    reader.decode(messages(agents))


def test_opposite_infinities_do_not_cancel() -> None:
    agents = [Agent(1, [Sensor(np.array([np.inf, -np.inf]), "speed")])]
    with pytest.raises(ProtocolError, match="agent 1: sensor 0"):
        decoder(agents[0]).decode(messages(agents))


def test_very_large_finite_numbers_pass_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    huge = np.full((40, 3), 3e38, np.float32)
    agents = [Agent(n, [Sensor(row, "far")], reward=3e38, group_reward=-3e38) for n, row in enumerate(huge)]
    np.testing.assert_array_equal(decoder(agents[0]).decode(messages(agents))[0].obs[0], huge)
    assert not recwarn.list


@pytest.mark.parametrize("size", [0, 2, 4])
def test_data_of_another_length_raise_with_behavior_and_sensor(size: int) -> None:
    reader = decoder(Agent(1, [Sensor(np.zeros(3), "speed")]))
    agents = [Agent(1, [Sensor(np.zeros(3))]), Agent(2, [Sensor(np.zeros(size))])]
    with pytest.raises(ProtocolError, match=rf"'Ball', sensor 0 \('speed'\): .*\(3,\).* 12 bytes.*{4 * size}"):
        reader.decode(messages(agents))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_added_or_removed_sensors_raise(count: int) -> None:
    reader = decoder(Agent(1, [Sensor(np.zeros(3))] * 2))
    agents = [Agent(1, [Sensor(np.zeros(3))] * 2), Agent(2, [Sensor(np.zeros(3))] * count)]
    with pytest.raises(ProtocolError, match=rf"'Ball'.*2 sensors.*{count}"):
        reader.decode(messages(agents))


def test_a_mask_of_another_width_raises() -> None:
    agents = [Agent(1, mask=[False] * 5), Agent(2, mask=[False] * 4)]
    with pytest.raises(ProtocolError, match=r"'Ball'.*masks of \[4, 5\] choices.*5"):
        decoder(agents[0]).decode(messages(agents))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"action_spec": {"num_continuous_actions": 2}}, ActionSpec(2, ())),
        ({"action_spec": {"num_discrete_actions": 2, "discrete_branch_sizes": [3, 4]}}, ActionSpec(0, (3, 4))),
        (
            {"action_spec": {"num_continuous_actions": 1, "num_discrete_actions": 1, "discrete_branch_sizes": [9]}},
            ActionSpec(1, (9,)),
        ),
        ({"vector_action_size_deprecated": [3], "vector_action_space_type_deprecated": 1}, ActionSpec(3, ())),
        ({"vector_action_size_deprecated": [3, 2, 5]}, ActionSpec(0, (3, 2, 5))),
        ({}, ActionSpec(0, ())),
    ],
)
def test_action_specifications_of_new_and_old_packages_are_read(
    fields: dict[str, object], expected: ActionSpec
) -> None:
    assert action_spec(BrainParameters.FromString(BrainParameters(**fields).SerializeToString())) == expected


def test_bytes_that_are_no_message_raise_with_their_number() -> None:
    message = UnityMessage()
    message.unity_output.rl_output.agent_infos["Ball"].value.add(id=1)
    whole = message.SerializeToString()
    assert parse(whole).SerializeToString() == whole
    for raw in (whole[:-1], b"\xff" * 9):
        with pytest.raises(ProtocolError, match=f"{len(raw)} bytes"):
            parse(raw)
