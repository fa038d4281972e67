"""Message classes of `unity.proto`, built from the checked-in descriptor set in a separate descriptor pool.

The separate pool isolates the messages from those of an installed `mlagents_envs`. `generate.py` explains the choice of
a descriptor set instead of a generated module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("unity.binpb").read_bytes()).file:
    _POOL.AddSerializedFile(_file.SerializeToString())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"unity_gym.wire.{name}"))


UnityMessage = _message("UnityMessage")
Reply = _message("Reply")
ReplyAgent = _message("ReplyAgent")
RLInput = _message("RLInput")
ListAgentAction = _message("ListAgentAction")
RLOutput = _message("RLOutput")
ListAgentInfo = _message("ListAgentInfo")
AgentInfo = _message("AgentInfo")
Observation = _message("Observation")
BrainParameters = _message("BrainParameters")
DemonstrationMeta = _message("DemonstrationMeta")
AgentInfoActionPair = _message("AgentInfoActionPair")
Record = _message("Record")
FlatRecord = _message("FlatRecord")

STEP, RESET, QUIT = 0, 1, 2
