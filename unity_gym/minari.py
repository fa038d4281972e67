"""Conversion of demonstrations to and from Minari datasets, a format for offline data: the extra `minari`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from unity_gym.demonstrations import Demonstration, DemonstrationHeader, fit
from unity_gym.errors import DemonstrationError, UnityGymError
from unity_gym.spaces import FORMS, ObservationLayout, action_space, action_tuple
from unity_gym.specs import (
    ActionSpec,
    ActionTuple,
    Array,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)

_CHANNELS_FIRST = "unity_gym_channels_first"  # metadata of datasets whose images are C×H×W


def to_minari(
    demonstration: Demonstration,
    dataset_id: str,
    *,
    observations: str = "split",
    data_format: str = "arrow",
    **metadata: Any,
) -> Any:
    """Write a demonstration as a Minari dataset.

    Spaces are those of `gymnasium.make`. A reward is the agent's own plus its group's. `infos` hold `group_reward`, of
    shape (steps + 1, 1), and, with discrete actions, `action_mask` of the state in which the action was selected. An
    episode at whose end recording stopped is truncated.

    :param demonstration: Demonstration of `unity_gym.demonstrations.load` or `record`.
    :param dataset_id: Name of the new dataset, such as "unity/Basic/expert-v0".
    :param observations: Form of the observations: "split" (rank-1 sensors concatenated) or "sensors" (one key per
        sensor).
    :param data_format: Minari's storage format, such as "arrow" or "hdf5".
    :param metadata: Additional arguments of `minari.create_dataset_from_buffers`, such as `algorithm_name`, `author` or
        `description`.
    :return: The `minari.MinariDataset`.
    :raises UnityGymError: If Minari is not installed.
    """
    minari, buffer = _minari(), _minari().data_collector.EpisodeBuffer
    spec = demonstration.spec
    arrays = demonstration.record_observations
    images = [array.dtype.name for array in arrays if array.ndim == 4]
    layout = ObservationLayout(spec, observations, *images[:1])
    actions = _in_space(spec.action_spec, demonstration.actions)
    buffers = []
    for number, (first, after) in enumerate(demonstration.episodes.tolist()):
        steps = slice(first, after)
        records = np.append(demonstration.rows[steps], demonstration.next_rows[after - 1])
        terminated, truncated = demonstration.terminated[steps], demonstration.truncated[steps].copy()
        truncated[-1] |= not terminated[-1]
        group_rewards = demonstration.group_rewards[steps]
        infos = {"group_reward": np.append(np.float32(0), group_rewards)[:, np.newaxis]}
        if demonstration.action_masks.shape[1]:
            masks = demonstration.action_masks[steps]
            infos["action_mask"] = np.concatenate([masks, np.ones_like(masks[:1])])
        buffers.append(
            buffer(
                id=number,
                observations=layout.select(arrays, records),
                actions={key: part[steps] for key, part in actions.items()}
                if isinstance(actions, dict)
                else actions[steps],
                rewards=list(demonstration.rewards[steps] + group_rewards),
                terminations=terminated.tolist(),
                truncations=truncated.tolist(),
                infos=infos,
            )
        )
    dataset = minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=layout.space,
        action_space=action_space(spec.action_spec),
        data_format=data_format,
        jpeg_encoding=False,  # JPEG is lossy
        **metadata,
    )
    dataset.storage.update_metadata({_CHANNELS_FIRST: True})
    return dataset


def from_minari(dataset: Any, spec: BehaviorSpec | None = None, behavior_name: str = "") -> Demonstration:
    """Read a Minari dataset as a demonstration for `BC`, `GAIL`, `demonstrations=...` and `save`.

    Each `Box` of the observation space becomes a sensor, in the order of `spec` if it has these keys, otherwise in that
    of the space. Images H×W×C become C×H×W. The bounds of continuous actions become −1 and 1. Masks and group rewards
    are read from `infos`, if it contains them in the form of `to_minari`.

    :param dataset: Dataset as a `minari.MinariDataset`, or the name of a local one.
    :param spec: Specification of the behavior, whose sensors the demonstration gets; see
        `unity_gym.demonstrations.fit`. By default it is derived from the dataset's spaces.
    :param behavior_name: Name of the behavior; by default the dataset's.
    :raises DemonstrationError: If a behavior cannot have the spaces, the dataset is empty or does not fit `spec`, or
        actions without bounds are outside of `[-1, 1]`.
    :raises UnityGymError: If Minari is not installed.
    """
    minari = _minari()
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    name = str(dataset.spec.dataset_id)
    boxes = list(_boxes(dataset.observation_space, (), name))
    if spec is not None:
        boxes = _in_sensor_order(boxes, spec, name)
    channels_last = [_CHANNELS_FIRST not in dataset.storage.metadata and _is_channels_last(box) for _, box in boxes]
    own = BehaviorSpec(
        [_sensor(box, path, last) for (path, box), last in zip(boxes, channels_last, strict=True)],
        _action_spec(dataset.action_space, name),
    )
    width = sum(own.action_spec.discrete_branches)
    episodes = [episode for episode in dataset.iterate_episodes() if len(episode)]
    if not episodes:
        raise DemonstrationError(f"the dataset {name} holds no transition: name another dataset")
    lengths = np.array(list(map(len, episodes)))
    after = np.cumsum(lengths)
    first = after - lengths
    rows = np.arange(after[-1]) + np.repeat(np.arange(len(episodes)), lengths)
    total, terminated, truncated = (
        np.concatenate([np.asarray(getattr(episode, part)) for episode in episodes])
        for part in ("rewards", "terminations", "truncations")
    )
    group = np.concatenate(
        [_info(episode, "group_reward", np.zeros((len(episode) + 1, 1)))[1:, 0] for episode in episodes]
    )
    masks = [_info(episode, "action_mask", np.ones((len(episode) + 1, width)))[:-1] for episode in episodes]
    rewards = (total - group).astype(np.float32)
    n_records = len(rows) + len(episodes)
    record_rewards, record_done = np.zeros(n_records, np.float32), np.zeros(n_records, bool)
    record_rewards[rows + 1] = rewards
    record_done[rows + 1] = terminated | truncated
    demonstration = Demonstration(
        behavior_name=behavior_name or name,
        spec=own,
        headers=(
            DemonstrationHeader(Path(name), name, len(record_done), len(episodes), float(total.sum() / len(episodes))),
        ),
        record_observations=_sensor_arrays(
            [np.concatenate([_at(episode.observations, path) for episode in episodes]) for path, _ in boxes],
            [box for _, box in boxes],
            channels_last,
        ),
        record_rewards=record_rewards,
        record_done=record_done,
        rows=rows,
        next_rows=rows + 1,
        actions=_joined(
            [_acted(own.action_spec, dataset.action_space, episode.actions, len(episode), name) for episode in episodes]
        ),
        action_masks=np.concatenate(masks).astype(bool),
        rewards=rewards,
        group_rewards=group.astype(np.float32),
        terminated=terminated.astype(bool),
        truncated=truncated.astype(bool) & ~terminated.astype(bool),
        episodes=np.stack([first, after], axis=1),
    )
    return demonstration if spec is None else fit(demonstration, spec)


def _minari() -> Any:
    try:
        import minari
        import minari.data_collector
    except ImportError as error:
        raise UnityGymError(
            "Minari datasets need the packages minari and pyarrow: install them with pip install 'unity-gym[minari]'"
        ) from error
    return minari


def _in_space(spec: ActionSpec, actions: ActionTuple) -> Any:
    """Return the actions of n agents in the form of their action space."""
    discrete = actions.discrete[:, 0] if spec.discrete_size == 1 else actions.discrete
    discrete = discrete.astype(np.int64)
    if not spec.discrete_size:
        return actions.continuous
    return {"continuous": actions.continuous, "discrete": discrete} if spec.continuous_size else discrete


def _acted(spec: ActionSpec, space: gym.Space[Any], actions: Any, n: int, name: str) -> ActionTuple:
    """Return the actions of n decisions, with the bounds of the space as −1 and 1."""
    converted = action_tuple(spec, actions, n)
    continuous, box = converted.continuous, space["continuous"] if isinstance(space, gym.spaces.Dict) else space
    if isinstance(box, gym.spaces.Box):
        bounded = np.isfinite(box.low) & np.isfinite(box.high)
        low, high = (np.where(bounded, bound, limit) for bound, limit in ((box.low, -1.0), (box.high, 1.0)))
        continuous = (continuous - (high + low) / 2) / ((high - low) / 2)
        if (np.abs(continuous[:, ~bounded]) > 1).any():
            raise DemonstrationError(
                f"the dataset {name} has actions without bounds, and some are outside of [-1, 1]: bound the space, "
                "for example with gymnasium.wrappers.RescaleAction, then record"
            )
    return ActionTuple(continuous.astype(np.float32), converted.discrete.astype(np.int32))


def _joined(parts: list[ActionTuple]) -> ActionTuple:
    return ActionTuple(
        np.concatenate([part.continuous for part in parts]), np.concatenate([part.discrete for part in parts])
    )


def _boxes(space: gym.Space[Any], path: tuple[Any, ...], name: str) -> Iterator[tuple[tuple[Any, ...], gym.spaces.Box]]:
    """Yield the boxes of a space, and the keys of each."""
    if isinstance(space, gym.spaces.Box) and 1 <= len(space.shape) <= 3:
        yield path, space
    elif isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _boxes(part, (*path, key), name)
    elif isinstance(space, gym.spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _boxes(part, (*path, index), name)
    else:
        raise DemonstrationError(
            f"the dataset {name} has observations {space}: a behavior observes arrays (Box) of 1 to 3 dimensions"
        )


def _in_sensor_order(
    boxes: list[tuple[tuple[Any, ...], gym.spaces.Box]], spec: BehaviorSpec, name: str
) -> list[tuple[tuple[Any, ...], gym.spaces.Box]]:
    """Return the boxes in the order of a behavior's sensors, if they have the keys of one of its spaces."""
    by_path = dict(boxes)
    for form in FORMS:
        paths = [path for path, _ in _boxes(ObservationLayout(spec, form).space, (), name)]
        if set(paths) == set(by_path):
            return [(path, by_path[path]) for path in paths]
    return boxes


def _at(observations: Any, path: tuple[Any, ...]) -> Array:
    for key in path:
        observations = observations[key]
    return np.asarray(observations)


def _is_channels_last(box: gym.spaces.Box) -> bool:
    return len(box.shape) == 3 and box.shape[-1] in (1, 3, 4) and box.shape[0] not in (1, 3, 4)


def _sensor_arrays(arrays: list[Array], boxes: list[gym.spaces.Box], channels_last: list[bool]) -> list[Array]:
    """Return the observations of each sensor as float32, with images as C×H×W from 0 to 1, or all of them as uint8."""
    has_bytes = all(array.dtype == np.uint8 for array in arrays if array.ndim == 4)
    converted = []
    for values, box, last in zip(arrays, boxes, channels_last, strict=True):
        is_image = values.ndim == 4
        array = values if is_image and has_bytes else values.astype(np.float32)
        if is_image and not has_bytes and (box.low == 0).all() and (box.high == 255).all():
            array /= 255
        converted.append(np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if last else array)
    return converted


def _sensor(box: gym.spaces.Box, path: tuple[Any, ...], channels_last: bool) -> ObservationSpec:
    shape = (box.shape[2], *box.shape[:2]) if channels_last else box.shape
    plane = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
    properties = {
        1: (DimensionProperty.NONE,),
        2: (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
        3: (DimensionProperty.NONE, plane, plane),
    }[len(shape)]
    return ObservationSpec(shape, properties, ObservationType.DEFAULT, "/".join(map(str, path)))


def _action_spec(space: gym.Space[Any], name: str) -> ActionSpec:
    """Return the action specification of a space in the form of `unity_gym.spaces.action_space`."""
    match space:
        case gym.spaces.Box(shape=(size,)):
            return ActionSpec(size, ())
        case gym.spaces.Discrete(n=size, start=0):
            return ActionSpec(0, (int(size),))
        case gym.spaces.MultiDiscrete(nvec=sizes) if sizes.ndim == 1 and not space.start.any():
            return ActionSpec(0, tuple(map(int, sizes)))
        case gym.spaces.Dict() if set(space.spaces) == {"continuous", "discrete"}:
            continuous, discrete = (_action_spec(space[key], name) for key in ("continuous", "discrete"))
            return ActionSpec(continuous.continuous_size, discrete.discrete_branches)
    raise DemonstrationError(
        f"the dataset {name} has actions {space}: those of a behavior are a Box of one dimension, a Discrete or "
        "MultiDiscrete from 0, or a Dict of 'continuous' and 'discrete'"
    )


def _info(episode: Any, key: str, default: Array) -> Array:
    """Return an array of the episode's infos, if it has the right shape."""
    values = np.asarray((episode.infos or {}).get(key, default))
    return values if values.shape == default.shape else default
