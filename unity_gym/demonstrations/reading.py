"""Read `.demo` files of all versions of the package."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from unity_gym.demonstrations.data import (
    BODY,
    RECORDER,
    SUFFIX,
    Demonstration,
    DemonstrationHeader,
    concatenate,
    require_equal,
    require_visual_dtype,
)
from unity_gym.errors import ActionError, DemonstrationError, InvalidValueError, ProtocolError
from unity_gym.specs import ActionSpec, ActionTuple, Array
from unity_gym.wire.decode import UNREADABLE, BehaviorDecoder, action_spec
from unity_gym.wire.messages import (
    BrainParameters,
    DemonstrationMeta,
    FlatRecord,
    Observation,
    Record,
    ReplyAgent,
)
from unity_gym.wire.varints import unpack_varints

_API_VERSIONS = (0, 1)
_FIRST_PACKAGE = "1.0.0"  # assumed for files without dimension properties
_FEWEST_ENDS, _MAJORITY = 3, 0.75  # episodes and fraction needed to detect the content of done records

_CONTINUOUS, _DISCRETE = attrgetter("continuous_actions"), attrgetter("discrete_actions")
_DEPRECATED = attrgetter("vector_actions_deprecated")
_UNREADABLE = (ProtocolError, *UNREADABLE)

T = TypeVar("T")


def load(
    path: str | Path,
    visual_dtype: str = "uint8",
    uncompressed_layout: str = "auto",
    action_record: str = "auto",
    done_record: str = "auto",
) -> Demonstration:
    """Load a demonstration, or all `.demo` files of a folder, in the order of their names.

    :param path: Path of the file or folder.
    :param visual_dtype: Dtype of images: "uint8" (0 to 255) or "float32" (0 to 1).
    :param uncompressed_layout: Layout of uncompressed images in the file: "CHW", "HWC" or "auto". "auto" is that of
        Unity's packages 3.0.0 and 4.0.0, which declare C×H×W and write H×W×C. Files of `DemonstrationWriter` contain
        their layout.
    :param action_record: Record of the action that was taken on a record's observation: "same", "next" or "auto". Files
        of this package, converted files and programs that follow Unity's loader use "same"; Unity's recorder uses
        "next". "auto" is "same" if the file has this package's mark or its last record has no action at all, else
        "next".
    :param done_record: Observation in a record that is done: "last", "first" or "auto". "last" is that of its episode.
        "first" is that of the next episode, as in the packages of 2018 and 2019. "auto" is "first" if the file declares
        no dimension properties and the observations change more before such records than after them, else "last".
    :raises DemonstrationError: If there is no such file or no demonstration, a file is damaged, or behaviors differ.
    :raises InvalidValueError: If the dtype, layout or a record option is unsupported.
    """
    require_visual_dtype(visual_dtype)
    if uncompressed_layout not in ("auto", "CHW", "HWC"):
        raise InvalidValueError(f"uncompressed_layout must be 'auto', 'CHW' or 'HWC', got {uncompressed_layout!r}")
    if action_record not in ("auto", "same", "next"):
        raise InvalidValueError(f"action_record must be 'auto', 'same' or 'next', got {action_record!r}")
    if done_record not in ("auto", "last", "first"):
        raise InvalidValueError(f"done_record must be 'auto', 'last' or 'first', got {done_record!r}")
    path = Path(path)
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise DemonstrationError(f"the folder {path} holds no {SUFFIX} file: name the folder of the demonstrations")
    parts = [_Reader(file).read(visual_dtype, uncompressed_layout, action_record, done_record) for file in files]
    for part in parts[1:]:
        require_equal(part.spec, parts[0].spec, f"{part.headers[0].path}", f"{files[0]}")
    demonstration = parts[0] if len(parts) == 1 else concatenate(parts)
    if not len(demonstration):
        raise DemonstrationError(f"{path} holds no transition, which takes two records of one episode: record more")
    return demonstration


class _Reader:
    """Reader of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data = path.read_bytes()
        except OSError as error:
            raise DemonstrationError(f"cannot read the demonstration {path}: {error.strerror}") from error

    def read(self, visual_dtype: str, uncompressed_layout: str, action_record: str, done_record: str) -> Demonstration:
        header = self._read_header()
        parameters, at = self._message(BrainParameters.FromString, BODY, "the behavior's parameters")
        count = header.number_steps or self._count_records(at)
        if count < 1:
            raise DemonstrationError(
                f"{self.path}: the header counts {header.number_steps} records, and {len(self._data) - at} bytes "
                "without a whole record follow it: the program that wrote it was killed at the start; record it again"
            )
        offsets, pairs, parse = [], [], Record.FromString
        for number in range(count):
            if at == len(self._data):
                raise self._damaged(at, f"the header counts {count} records, the file ends after {number}")
            if number == 0 and self._message(FlatRecord.FromString, at, "record 0")[0].stored_vector_actions:
                parse = partial(_pair_of_flat_record, parameters)
            offsets.append(at)
            pair, at = self._message(parse, at, f"record {number}")
            pairs.append(pair)
        if action_record == "auto":
            is_aligned = parameters.recorder == RECORDER or not pairs[-1].action_info.ByteSize()
            action_record = "same" if is_aligned else "next"
        return self._demonstration(
            header, parameters, pairs, offsets, visual_dtype, uncompressed_layout, action_record, done_record
        )

    def _read_header(self) -> DemonstrationHeader:
        if len(self._data) < BODY or self._data[0] > BODY - 1:
            raise DemonstrationError(
                f"{self.path} is no demonstration, or was cut off: its {len(self._data)} bytes do not start with "
                f"a header of {BODY} bytes; name a {SUFFIX} file that Unity or unity_gym wrote"
            )
        meta, _ = self._message(DemonstrationMeta.FromString, 0, "the header")
        if meta.api_version not in _API_VERSIONS:
            raise DemonstrationError(
                f"{self.path} is a demonstration of version {meta.api_version}, or none at all; 0 and 1 can be read: "
                "record it again with an ML-Agents package of communication version 1"
            )
        return DemonstrationHeader(
            self.path, meta.demonstration_name, meta.number_steps, meta.number_episodes, meta.mean_reward
        )

    def _count_records(self, at: int) -> int:
        """Return the number of whole records from a byte on, where a program that was killed has counted none."""
        count = 0
        with contextlib.suppress(DemonstrationError):
            while self._data[at : at + 1] not in (b"", b"\0"):  # zeros, which a crash may leave, are no record
                _, at = self._message(bytes, at, "a record")
                count += 1
        if count:
            warnings.warn(
                f"the program that wrote {self.path} was killed before it closed the file: its {count} whole records "
                f"are read, {len(self._data) - at} bytes after them are not",
                stacklevel=4,
            )
        return count

    def _message(self, parse: Callable[[bytes], Any], at: int, what: str) -> tuple[Any, int]:
        """Return the length-delimited message at a byte, and the byte after it."""
        length, start, shift = 0, at, 0
        while True:
            if start == len(self._data) or shift > 28:
                raise self._damaged(at, f"the length of {what} is broken or cut off")
            byte = self._data[start]
            length |= (byte & 0x7F) << shift
            start, shift = start + 1, shift + 7
            if byte < 0x80:
                break
        end = start + length
        if end > len(self._data):
            raise self._damaged(at, f"{what} has {length} bytes, but the file ends after {len(self._data) - start}")
        try:
            return parse(self._data[start:end]), end
        except (DecodeError, ValueError) as error:
            raise self._damaged(at, f"{what} cannot be parsed ({error})") from error

    def _damaged(self, at: int, what: str) -> DemonstrationError:
        return DemonstrationError(
            f"{self.path}, byte {at}: {what}. The file is damaged or was cut off: copy it once more from its "
            "source, or record it again"
        )

    def _demonstration(
        self,
        header: DemonstrationHeader,
        parameters: Any,
        pairs: list[Any],
        offsets: list[int],
        visual_dtype: str,
        uncompressed_layout: str,
        action_record: str,
        done_record: str,
    ) -> Demonstration:
        infos = [pair.agent_info for pair in pairs]
        try:
            actions = action_spec(parameters)
            package_version = _package_version(parameters, infos[0])
            decoder = BehaviorDecoder(
                parameters.brain_name,
                actions,
                infos[0],
                package_version,
                visual_dtype,
                uncompressed_layout,
                checks_ids=False,
            )
        except _UNREADABLE as error:
            raise self._damaged(BODY, f"the behavior cannot be made out ({error})") from error
        if not decoder.spec.observation_specs:
            raise self._damaged(offsets[0], "record 0 holds no observation")
        done = np.fromiter(map(attrgetter("done"), infos), bool, len(infos))
        interrupted = done & np.fromiter(map(attrgetter("max_step_reached"), infos), bool, len(infos))
        for info in infos:
            info.done = False  # all records in one list, in their order
        records, _ = self._decode(decoder.decode, infos, offsets)
        if done_record == "auto":
            is_old = package_version == _FIRST_PACKAGE and _shows_next_episode(records.obs, done)
            done_record = "first" if is_old else "last"
        is_last = done if done_record == "last" else np.zeros_like(done)  # no action follows

        rows = np.flatnonzero(~is_last[:-1])  # the last record has no outcome
        ends = rows + 1
        acting = rows if action_record == "same" else ends
        acted = self._decode(
            lambda sent: _actions(actions, sent, parameters.brain_name),
            [pairs[record].action_info for record in acting],
            [offsets[record] for record in acting],
            acting,
        )
        masks = np.ones((len(rows), sum(actions.discrete_branches)), bool)
        if records.action_mask is not None:
            masks = ~np.concatenate(records.action_mask, axis=1)[rows]
        first = np.flatnonzero(np.append(True, (np.diff(rows) != 1) | done[rows[1:]]))[: len(rows)]
        return Demonstration(
            behavior_name=parameters.brain_name,
            spec=decoder.spec,
            headers=(header,),
            record_observations=records.obs,
            record_rewards=records.reward,
            record_done=done,
            rows=rows,
            next_rows=np.where(done[ends] & ~is_last[ends], rows, ends),
            actions=acted,
            action_masks=masks,
            rewards=records.reward[ends],
            group_rewards=records.group_reward[ends],
            terminated=(done & ~interrupted)[ends],
            truncated=interrupted[ends],
            episodes=np.stack([first, np.append(first[1:], len(rows))[: len(first)]], axis=1),
        )

    def _decode(
        self, decode: Callable[[list[Any]], T], messages: list[Any], offsets: list[int], numbers: Array | None = None
    ) -> T:
        """Decode the messages of all records at once; if that fails, find the invalid record."""
        try:
            return decode(messages)
        except _UNREADABLE as error:
            for index, message in enumerate(messages):
                try:
                    decode([message])
                except _UNREADABLE as cause:
                    number = index if numbers is None else numbers[index]
                    raise self._damaged(offsets[index], f"record {number}: {cause}") from cause
            raise self._damaged(offsets[0], str(error)) from error


def _pair_of_flat_record(parameters: Any, encoded: bytes) -> Any:
    """Return a record of 2018 or 2019, which is one message, as `Record`: later ones have a separate action.

    Images are in front of the vector, as in later packages, which sort sensors by their names.

    :raises ValueError: If the record has another number of images than the behavior has cameras.
    """
    flat, info = FlatRecord.FromString(encoded), ReplyAgent.FromString(encoded)
    if not info.observations:  # which contain the images in the last of these packages, with their shapes
        for camera, image in zip(parameters.camera_resolutions, flat.visual_observations, strict=True):
            shape = camera.height, camera.width, 1 if camera.gray_scale else 3
            observation = Observation(shape=shape, compressed_data=image)
            info.observations.append(observation.SerializeToString())
    if vector := flat.stacked_vector_observation:
        observation = Observation(shape=[len(vector) // 4], float_data={"data": vector})
        info.observations.append(observation.SerializeToString())
    return Record(agent_info=info, action_info={"vector_actions_deprecated": flat.stored_vector_actions})


def _package_version(parameters: Any, info: Any) -> str:
    """Return a package version with the image layout of this file, as a file does not contain its own version.

    Packages that declare no dimension properties write H×W×C; of later ones 3.0.0 and 4.0.0 are the released ones.
    """
    if parameters.recorder == RECORDER:
        return RECORDER
    sensors = map(Observation.FromString, info.observations)
    return "4.0.0" if any(sensor.dimension_properties for sensor in sensors) else _FIRST_PACKAGE


def _actions(spec: ActionSpec, sent: list[Any], behavior: str) -> ActionTuple:
    """Return the actions of `AgentAction` messages; packages before 1.3 fill the deprecated field only.

    :raises ValueError: If they do not fit the specification.
    """
    if not sent:
        return spec.empty_action(0)
    continuous, discrete = list(map(_CONTINUOUS, sent)), list(map(_DISCRETE, sent))
    if any(continuous) or any(discrete):
        actions = ActionTuple(
            _continuous_actions(continuous, spec.continuous_size), _discrete_actions(discrete, spec.discrete_size)
        )
    elif spec.continuous_size:
        actions = ActionTuple(_continuous_actions(list(map(_DEPRECATED, sent)), spec.continuous_size))
    else:
        chosen = _continuous_actions(list(map(_DEPRECATED, sent)), spec.discrete_size)
        wrong = chosen != np.rint(np.clip(chosen, 0, np.array(spec.discrete_branches) - 1))
        if wrong.any():
            raise ActionError(f"the choice {chosen[wrong][0]} is none of the branches {spec.discrete_branches}")
        actions = ActionTuple(discrete=chosen.astype(np.int32))
    spec.validate(actions, len(sent), behavior)
    return actions


def _continuous_actions(packed: list[bytes], width: int) -> Array:
    if not set(map(len, packed)) <= {4 * width}:
        raise ValueError(f"an action of {width} numbers has {4 * width} bytes, got {sorted(set(map(len, packed)))}")
    return np.frombuffer(bytearray().join(packed), "<f4").reshape(len(packed), width)


def _discrete_actions(packed: list[bytes], branches: int) -> Array:
    joined = b"".join(packed)
    last = np.frombuffer(joined, np.uint8) < 0x80
    ends = np.cumsum(list(map(len, packed)), dtype=np.intp)
    counted = np.concatenate([[0], np.cumsum(last)])[ends]
    if (counted != branches * np.arange(1, len(packed) + 1)).any() or (len(last) and not last[-1]):
        raise ValueError(f"an action has one choice for each of the {branches} branches; a record has another number")
    return unpack_varints(joined).reshape(len(packed), branches)


def _shows_next_episode(arrays: Sequence[Array], done: Array) -> bool:
    """Return whether the records that are done hold the first observation of the next episode.

    Then the observations change more from the record before to such a record than from it to the one after. Both
    changes may be equal, as in a scene with few states. Then such records hold the observation of the file's first
    record.
    """
    at = np.flatnonzero(done[1:-1]) + 1
    if len(at) < _FEWEST_ENDS:
        return False
    before, after, to_first = np.zeros((3, len(at)))
    for array in arrays:
        here = array[at].astype(np.float32)
        axes, size = tuple(range(1, array.ndim)), max(1, math.prod(array.shape[1:]))
        for changes, other in ((before, array[at - 1]), (after, array[at + 1]), (to_first, array[:1])):
            changes += np.abs(here - other).sum(axis=axes) / size
    jumps = np.where(np.isclose(before, after), to_first == 0, before > after)
    return bool(jumps.mean() > _MAJORITY)
