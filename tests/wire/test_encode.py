"""Encoding of actions and commands, compared with a slow parser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from unity_gym.specs import ActionSpec, ActionTuple, Array
from unity_gym.wire import encode
from unity_gym.wire.messages import RESET, STEP, ListAgentAction, UnityMessage


def varints(data: bytes) -> list[int]:
    """Decode packed varints, one at a time."""
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value, shift = 0, 0
    assert shift == 0, "the last varint is cut off"
    return numbers


def floats(data: bytes) -> list[float]:
    return [float(number) for number in np.frombuffer(data, "<f4")]


def parsed(encoded: bytes) -> list[Any]:
    return list(ListAgentAction.FromString(encoded).value)


def actions(spec: ActionSpec, n: int, seed: int = 0) -> ActionTuple:
    """Return random actions, with each branch's last action in the first row."""
    action = spec.random_action(n, np.random.default_rng(seed))
    if spec.discrete_size:
        action.discrete[0] = np.array(spec.discrete_branches) - 1
    return action


def assert_actions_are(encoded: bytes, action: ActionTuple) -> None:
    agents = parsed(encoded)
    assert [floats(agent.continuous_actions) for agent in agents] == action.continuous.tolist()
    assert [varints(agent.discrete_actions) for agent in agents] == action.discrete.tolist()
    assert not any(agent.vector_actions_deprecated or agent.value for agent in agents)


@settings(max_examples=80, deadline=None)
@given(
    continuous=st.integers(0, 40),
    branches=st.lists(st.integers(1, 200_000) | st.sampled_from([1, 127, 128, 129, 16384, 16385]), max_size=4),
    n=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_each_agent_receives_its_own_continuous_and_discrete_actions(
    continuous: int, branches: list[int], n: int, seed: int
) -> None:
    spec = ActionSpec(continuous, tuple(branches))
    action = actions(spec, n, seed)
    assert_actions_are(encode.ActionEncoder(spec).encode(action), action)


@pytest.mark.parametrize("size", [2, 127, 128, 129, 255, 256, 257, 16384, 16385, 200_000])
def test_every_discrete_action_of_a_branch_is_encoded(size: int) -> None:
    spec = ActionSpec(0, (size, 3))
    choices = np.unique(np.linspace(0, size - 1, 300).astype(np.int32))
    action = ActionTuple(discrete=np.stack([choices, choices % 3], axis=1))
    assert_actions_are(encode.ActionEncoder(spec).encode(action), action)


def test_protobuf_reads_the_values_as_the_player_declares_them() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="player.proto", syntax="proto3")
    agent = file.message_type.add(name="AgentAction")
    kinds = descriptor_pb2.FieldDescriptorProto
    agent.field.add(name="continuous", number=6, type=kinds.TYPE_FLOAT, label=kinds.LABEL_REPEATED)
    agent.field.add(name="discrete", number=7, type=kinds.TYPE_INT32, label=kinds.LABEL_REPEATED)
    agents = file.message_type.add(name="Agents")
    agents.field.add(
        name="value", number=1, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED, type_name=".AgentAction"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    player = message_factory.GetMessageClass(pool.FindMessageTypeByName("Agents"))
    spec = ActionSpec(2, (3, 128, 129, 200_000))
    action = actions(spec, 50)
    received: Any = player.FromString(encode.ActionEncoder(spec).encode(action))
    assert [list(agent.continuous) for agent in received.value] == action.continuous.tolist()
    assert [list(agent.discrete) for agent in received.value] == action.discrete.tolist()


def test_hundreds_of_agents_keep_their_order() -> None:
    spec = ActionSpec(3, (5, 300))
    action = actions(spec, 700)
    assert_actions_are(encode.ActionEncoder(spec).encode(action), action)


def test_no_agents_are_encoded_as_no_bytes() -> None:
    spec = ActionSpec(2, (3,))
    assert encode.ActionEncoder(spec).encode(spec.empty_action(0)) == b""


def test_more_than_127_values_per_agent_have_the_right_length_prefix() -> None:
    spec = ActionSpec(5000, ())
    action = actions(spec, 2)
    assert_actions_are(encode.ActionEncoder(spec).encode(action), action)


def test_strided_arrays_are_read_correctly() -> None:
    spec = ActionSpec(2, (9, 200))
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    discrete: Array = np.arange(16, dtype=np.int32).reshape(2, 8).T
    action = ActionTuple(numbers[::-1, ::3], discrete[4:])
    assert_actions_are(encode.ActionEncoder(spec).encode(action), action)


@pytest.mark.parametrize("spec", [ActionSpec(3, ()), ActionSpec(0, (2, 300))])
def test_packages_without_hybrid_actions_get_the_deprecated_field(spec: ActionSpec) -> None:
    action = actions(spec, 3)
    agents = parsed(encode.ActionEncoder(spec, deprecated=True).encode(action))
    expected = np.concatenate([action.continuous, action.discrete], axis=1)
    assert [floats(agent.vector_actions_deprecated) for agent in agents] == expected.tolist()
    assert not any(agent.continuous_actions or agent.discrete_actions for agent in agents)


@pytest.mark.parametrize("deprecated", [False, True])
def test_agents_that_take_no_actions_still_get_a_record_each(deprecated: bool) -> None:
    spec = ActionSpec(0, ())
    assert len(parsed(encode.ActionEncoder(spec, deprecated).encode(spec.empty_action(3)))) == 3


def test_a_step_carries_actions_by_behavior_and_side_channels() -> None:
    spec = ActionSpec(1, ())
    action = actions(spec, 2)
    encoded = encode.ActionEncoder(spec).encode(action)
    message = UnityMessage.FromString(encode.step({"Ball?team=0": encoded, "Üben": b""}, b"messages"))
    assert message.header.status == 200
    rl_input = message.unity_input.rl_input
    assert rl_input.command == STEP
    assert rl_input.side_channel == b"messages"
    assert set(rl_input.agent_actions) == {"Ball?team=0", "Üben"}
    assert_actions_are(rl_input.agent_actions["Ball?team=0"], action)


def test_a_reset_carries_side_channels_and_no_actions() -> None:
    message = UnityMessage.FromString(encode.reset(b"messages"))
    assert message.header.status == 200
    assert message.unity_input.rl_input.command == RESET
    assert message.unity_input.rl_input.side_channel == b"messages"
    assert not message.unity_input.rl_input.agent_actions


def test_the_initialization_contains_seed_areas_versions_and_every_capability() -> None:
    message = UnityMessage.FromString(encode.initialization(2**31 - 1, 12))
    assert message.header.status == 200
    first = message.unity_input.rl_initialization_input
    assert (first.seed, first.num_areas, first.communication_version) == (2**31 - 1, 12, "1.5.0")
    assert first.package_version
    assert [(field.number, value) for field, value in first.capabilities.ListFields()] == [
        (number, True) for number in range(1, 8)
    ]


def test_the_quit_message_ends_the_player() -> None:
    assert UnityMessage.FromString(encode.quit_message()).header.status == 400
