"""The message classes: generated from the .proto file, and compatible with those of `mlagents_envs`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2

from unity_gym.wire import generate
from unity_gym.wire.messages import UnityMessage


def test_the_stored_descriptor_set_equals_the_output_of_protoc() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools brings protoc")
    made = descriptor_pb2.FileDescriptorSet.FromString(generate.compile_descriptor_set())
    checked_in = descriptor_pb2.FileDescriptorSet.FromString(generate.DESCRIPTOR_SET.read_bytes())
    assert made == checked_in, "run: python -m unity_gym.wire.generate"


def test_a_message_survives_a_round_trip() -> None:
    message = UnityMessage()
    message.header.status = 200
    message.unity_output.rl_output.agent_infos["Ball?team=0"].value.add(id=7, reward=0.5).observations.add(shape=[3])
    assert UnityMessage.FromString(message.SerializeToString()) == message


# The names that mlagents_envs registers in protobuf's default pool, first in one order, then in the other.
_PEER = """
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="unity.proto", package="communicator_objects", syntax="proto3")
for name in ("UnityMessageProto", "UnityMessage", "AgentInfo", "Observation"):
    file.message_type.add(name=name).field.add(name="theirs", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""
_OURS = """
from unity_gym.wire.messages import UnityMessage
message = UnityMessage.FromString(bytes([10, 3, 8, 200, 1]))
assert message.header.status == 200 and message.DESCRIPTOR.full_name == "unity_gym.wire.UnityMessage"
"""


@pytest.mark.parametrize("script", [_PEER + _OURS, _OURS + _PEER], ids=["they come first", "we come first"])
def test_messages_of_another_package_with_the_same_file_and_names_work_in_one_process(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_default_descriptor_pool_contains_none_of_our_messages() -> None:
    script = """
import unity_gym.wire.messages
from google.protobuf import descriptor_pool
for find in (descriptor_pool.Default().FindFileByName, descriptor_pool.Default().FindMessageTypeByName):
    for name in ("unity.proto", "unity_gym.wire.UnityMessage"):
        try:
            find(name)
        except KeyError:
            continue
        raise SystemExit(f"{name} is in the default pool")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
