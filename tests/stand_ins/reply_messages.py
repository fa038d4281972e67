"""Plain descriptions of agents, and the messages that a player would send for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unity_gym.specs import Array
from unity_gym.wire.messages import AgentInfo, ReplyAgent

NONE, EQUIVARIANT, VARIABLE = 1, 2, 4


@dataclass
class Sensor:
    """One observation of one agent as the player sends it; `png` instead of `values` for a compressed image."""

    values: Array
    name: str = ""
    properties: Sequence[int] = ()
    kind: int = 0
    png: bytes | None = None
    mapping: Sequence[int] = ()


@dataclass
class Agent:
    """The data of one agent in one message; `mask` is True for forbidden actions, None for no mask."""

    id: int
    sensors: list[Sensor] = field(default_factory=list)
    reward: float = 0.0
    group_reward: float = 0.0
    group: int = 0
    done: bool = False
    interrupted: bool = False
    mask: Sequence[bool] | None = None

    def message(self) -> Any:
        """Return the `AgentInfo`."""
        info = AgentInfo(
            id=self.id,
            reward=self.reward,
            group_reward=self.group_reward,
            group_id=self.group,
            done=self.done,
            max_step_reached=self.interrupted,
            action_mask=bytes(self.mask or ()),
        )
        for sensor in self.sensors:
            observation = info.observations.add(
                shape=np.shape(sensor.values),
                name=sensor.name,
                dimension_properties=sensor.properties,
                observation_type=sensor.kind,
                compressed_channel_mapping=sensor.mapping,
            )
            if sensor.png is None:
                observation.float_data.data = np.asarray(sensor.values, "<f4").tobytes()
            else:
                observation.compression_type = 1
                observation.compressed_data = sensor.png
        return info


def messages(agents: Iterable[Agent]) -> list[Any]:
    """Return the `ReplyAgent` of each agent, after a round trip through bytes."""
    return [ReplyAgent.FromString(agent.message().SerializeToString()) for agent in agents]
