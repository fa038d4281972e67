"""How the player encodes agents with images."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.messages import AgentInfoEncoder
from unity_gym.scenes.sensors import ImageSensor, VectorSensor
from unity_gym.specs import Array
from unity_gym.wire.messages import ListAgentInfo


def _read_nothing(_: Array) -> Array:
    raise AssertionError


def test_images_of_several_sensors_and_of_any_size_are_inserted_in_the_order_of_the_sensors() -> None:
    sensors = [
        ImageSensor("front", (3, 4, 5), _read_nothing),
        VectorSensor("numbers", 2, _read_nothing),
        ImageSensor("rear", (6, 2, 2), _read_nothing),
    ]
    encoder = AgentInfoEncoder(sensors, 3, 4)
    front = [b"", b"f" * 127, b"g" * 16_384]
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    rear = [b"r" * 128, b"s" * 3_000_000, b"t"]
    masks = np.array([[True, False, False], [False] * 3, [False, True, True]])
    ids, groups, zeros = np.array([0, 300, 2**31 - 1]), np.array([0, 1, 2]), np.zeros(3)
    for k in (3, 1):
        encoded = encoder.encode(
            *(ids[:k], groups[:k], zeros[:k] + 0.5, zeros[:k] + 0.25),
            *(True, False, masks[:k], [front[:k], numbers[:k], rear[:k]]),
        )
        agents = ListAgentInfo.FromString(encoded).value
        assert len(agents) == k
        for i, info in enumerate(agents):
            observations = info.observations
            assert (info.id, info.group_id, info.reward, info.group_reward) == (ids[i], groups[i], 0.5, 0.25)
            assert list(info.action_mask) == masks[i].tolist()
            assert (
                np.frombuffer(observations[1].float_data.SerializeToString()[-8:], "<f4").tolist()
                == numbers[i].tolist()
            )
            assert (info.done, info.max_step_reached) == (True, False)
            assert [each.name for each in observations] == ["front", "numbers", "rear"]
            assert [list(each.shape) for each in observations] == [[3, 4, 5], [2], [6, 2, 2]]
            assert (observations[0].compressed_data, observations[2].compressed_data) == (front[i], rear[i])
