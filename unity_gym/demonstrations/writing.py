"""Write `.demo` files that Unity, its trainers and this package can read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from unity_gym.demonstrations.data import BODY, RECORDER, SUFFIX, Demonstration, require_visual_dtype
from unity_gym.errors import DemonstrationError, NotReadyError
from unity_gym.specs import ActionTuple, Array, BehaviorSpec, ObservationSpec
from unity_gym.wire.encode import ActionEncoder, brain_parameters, varint
from unity_gym.wire.messages import AgentInfoActionPair, DemonstrationMeta, ListAgentAction, Observation
from unity_gym.wire.png import encode_images

_PNG = 1


class DemonstrationWriter:
    """Writer of one agent's records into a `.demo` file that Unity, Unity's trainers and `load` can read.

    Use it as a context manager, or `close` it. Until then the records are next to the path under the suffix `.part`. A
    demonstration that is interrupted by an error is closed as well and keeps every record that was added.

    :param path: Path of the new file, with the suffix `.demo`; the demonstration's name is made of up to 16 letters of
        it.
    :param behavior_name: Name of the behavior.
    :param spec: Specification of the behavior.
    :param visual_dtype: Dtype of the images passed to `add`: "uint8" (0 to 255), written as PNG, or "float32" (0 to 1),
        written uncompressed.
    :raises DemonstrationError: If the suffix differs, the folder does not exist, or the file or its `.part` exists.
    :raises InvalidValueError: If the dtype is unsupported.
    """

    def __init__(self, path: str | Path, behavior_name: str, spec: BehaviorSpec, visual_dtype: str = "uint8") -> None:
        require_visual_dtype(visual_dtype)
        self.path = new_file(path)
        self._name = re.sub(r"[^A-Za-z0-9 -]", "", self.path.stem)[:16]
        self._behavior_name, self._spec = behavior_name, spec
        self._shapes = [sensor.shape for sensor in spec.observation_specs]
        self._dtypes = [sensor.array_dtype(visual_dtype) for sensor in spec.observation_specs]
        self._heads = [_head(*pair) for pair in zip(spec.observation_specs, self._dtypes, strict=True)]
        self._mask_width = sum(spec.action_spec.discrete_branches)
        self._actions = ActionEncoder(spec.action_spec)
        self._steps = self._ended = 0
        self._in_episode = False
        self._reward = 0.0
        self._part = _part_of(self.path)
        self._file = self._part.open("xb")
        parameters = brain_parameters(behavior_name, spec.action_spec)
        parameters.recorder = RECORDER
        self._file.write(self._header())
        self._append(parameters)

    def add(
        self,
        observations: Sequence[Array],
        action: ActionTuple | None = None,
        *,
        reward: float = 0.0,
        group_reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        action_mask: Array | None = None,
    ) -> None:
        """Add a record: the agent's observations, and its next action or the end of its episode.

        :param observations: Observations, one array of the sensor's shape per sensor; see `visual_dtype` for images.
        :param action: Action of one agent; None where the episode ended.
        :param reward: Reward for the agent's previous action, not for `action`.
        :param group_reward: Reward of its group for the same action.
        :param terminated: Whether the episode terminated; the observations are its last.
        :param truncated: Whether the episode was truncated here.
        :param action_mask: Mask, bool (sum of the branch sizes,), True = allowed; None allows everything.
        :raises DemonstrationError: If the observations do not fit the behavior, a value is NaN, or both action and end
            are missing.
        :raises ActionError: If the action does not fit.
        :raises NotReadyError: If the demonstration is closed.
        """
        if self._file.closed:
            raise NotReadyError(f"the demonstration {self.path} is closed: start a new one")
        done = terminated or truncated
        if action is None:
            if not done:
                raise DemonstrationError(
                    "a record has an action unless its episode ended: pass one, or give the reason of its end"
                )
            action = self._spec.action_spec.empty_action(1)
        self._spec.action_spec.validate(action, 1, self._behavior_name)
        if not np.isfinite([reward, group_reward]).all():
            raise DemonstrationError(f"rewards must be finite numbers, got {reward} and {group_reward}")
        pair = AgentInfoActionPair()
        info = pair.agent_info
        info.reward, info.group_reward = float(reward), float(group_reward)
        info.done, info.max_step_reached = done, truncated and not terminated
        if action_mask is not None:
            info.action_mask = self._forbidden(action_mask)
        self._add_observations(info, observations)
        pair.action_info.CopyFrom(ListAgentAction.FromString(self._actions.encode(action)).value[0])
        self._append(pair)
        self._steps += 1
        self._ended += done
        self._in_episode = not done
        self._reward += float(reward)

    def _add_observations(self, info: Any, observations: Sequence[Array]) -> None:
        arrays = list(map(np.asarray, observations))
        if [(array.shape, array.dtype) for array in arrays] != list(zip(self._shapes, self._dtypes, strict=True)):
            expected = [f"{dtype} {shape}" for shape, dtype in zip(self._shapes, self._dtypes, strict=True)]
            given = [f"{array.dtype} {array.shape}" for array in arrays]
            raise DemonstrationError(
                f"behavior {self._behavior_name!r} observes {', '.join(expected)}, got {', '.join(given)}: pass one "
                "array a sensor, not concatenated, of the dtype that the writer was made for"
            )
        for index, (head, array) in enumerate(zip(self._heads, arrays, strict=True)):
            observation = info.observations.add()
            observation.CopyFrom(head)
            if array.dtype == np.uint8:
                observation.compressed_data = encode_images(array[np.newaxis])[0]
            elif np.isfinite(array).all():
                observation.float_data.data = array.astype("<f4").tobytes()
            else:
                raise DemonstrationError(f"sensor {index} holds NaN or infinite values: correct the scene, then record")

    def _forbidden(self, allowed: Array) -> bytes:
        mask = np.asarray(allowed)
        if mask.shape != (self._mask_width,):
            raise DemonstrationError(
                f"an action mask of behavior {self._behavior_name!r} has the shape ({self._mask_width},), a place for "
                f"each choice of each branch, got {mask.shape}"
            )
        return (~mask.astype(bool)).tobytes()

    def close(self) -> None:
        """Write the header and rename the file to its path; a demonstration without a record leaves no file.

        Can be called any number of times.
        """
        if self._file.closed:
            return
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()
        if self._steps:
            os.replace(self._part, self.path)
        else:
            self._part.unlink()

    def _header(self) -> bytes:
        """Return the header, padded to its size; the name is shortened where long numbers need the space."""
        episodes = self._ended + self._in_episode
        meta = DemonstrationMeta(api_version=1, number_steps=self._steps, number_episodes=episodes)
        meta.mean_reward = self._reward / max(1, episodes)
        meta.demonstration_name = self._name[: BODY - 1 - 2 - meta.ByteSize()]  # a string's key and length are 2 bytes
        encoded: bytes = meta.SerializeToString()
        return (varint(len(encoded)) + encoded).ljust(BODY, b"\0")

    def _append(self, message: Any) -> None:
        encoded = message.SerializeToString()
        self._file.write(varint(len(encoded)) + encoded)

    def __enter__(self) -> DemonstrationWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def save(demonstration: Demonstration, path: str | Path) -> None:
    """Write a demonstration into a new `.demo` file.

    :raises DemonstrationError: If the path has another suffix, its folder does not exist, or the file or its `.part`
        exists.
    """
    arrays = demonstration.record_observations
    images = [array.dtype.name for array in arrays if array.ndim == 4]
    with DemonstrationWriter(path, demonstration.behavior_name, demonstration.spec, *images[:1]) as writer:
        for first, after in demonstration.episodes.tolist():
            rewards = (0.0, 0.0)
            for row in range(first, after):
                writer.add(
                    [array[demonstration.rows[row]] for array in arrays],
                    ActionTuple(demonstration.actions.continuous[[row]], demonstration.actions.discrete[[row]]),
                    reward=rewards[0],
                    group_reward=rewards[1],
                    action_mask=demonstration.action_masks[row] if demonstration.action_masks.shape[1] else None,
                )
                rewards = float(demonstration.rewards[row]), float(demonstration.group_rewards[row])
            terminated = bool(demonstration.terminated[after - 1])
            writer.add(
                [array[demonstration.next_rows[after - 1]] for array in arrays],
                reward=rewards[0],
                group_reward=rewards[1],
                terminated=terminated,
                truncated=not terminated,
            )


def _head(sensor: ObservationSpec, dtype: np.dtype[Any]) -> Any:
    """Return all fields of a sensor's `Observation` except its data."""
    head = Observation(shape=sensor.shape, observation_type=sensor.observation_type.value, name=sensor.name)
    head.dimension_properties.extend(map(int, sensor.dimension_property))
    if dtype == np.uint8:
        head.compression_type = _PNG
        channels = sensor.shape[0]
        head.compressed_channel_mapping.extend([*range(channels), *[-1] * (-channels % 3)])
    return head


def new_file(path: str | Path) -> Path:
    """Return the path of a file that can be written.

    :raises DemonstrationError: If the path has another suffix, its folder does not exist, or the file or its `.part`
        exists.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise DemonstrationError(f"a demonstration has the suffix {SUFFIX!r}, which Unity looks for, got {path.name!r}")
    if not path.parent.is_dir():
        raise DemonstrationError(f"there is no folder {path.parent} for the demonstration {path.name}: make it first")
    if path.exists():
        raise DemonstrationError(f"{path} is there already: name another file, or delete that one first")
    if (part := _part_of(path)).exists():
        raise DemonstrationError(
            f"{part} is there already, of a demonstration that is being recorded or was killed: name another file, or "
            f"first keep its records by renaming it to another name with the suffix {SUFFIX!r}, or delete it"
        )
    return path


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")
