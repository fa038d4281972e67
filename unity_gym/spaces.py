"""Conversion between behavior specifications and Gymnasium spaces, and of their observations and actions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import gymnasium as gym
import numpy as np

from unity_gym.errors import ActionError, InvalidValueError
from unity_gym.specs import ActionSpec, ActionTuple, Array, BehaviorSpec, ObservationSpec

FORMS = ("split", "sensors")
VECTOR = "vector"
_TAKEN = re.compile(rf"|{VECTOR}|obs_\d+")  # names that a sensor must not have


class ObservationLayout:
    """Layout of a behavior's sensors: the observation space of one agent, and the observations of n agents.

    With "split" all rank-1 sensors are concatenated, in sensor order, under "vector", and every other sensor has its
    own name as key. With "sensors" each sensor has its own key. One entry is a plain `Box`; several are a `Dict`, in
    sensor order. A sensor without a name, or with the name of another, is `obs_<i>`.

    :param spec: Specification of the behavior.
    :param observations: Form of the observations: "split" or "sensors".
    :param visual_dtype: Dtype of image arrays: "uint8" (0 to 255) or "float32" (0 to 1).
    :raises InvalidValueError: If the form or dtype is unsupported.
    """

    def __init__(self, spec: BehaviorSpec, observations: str = "split", visual_dtype: str = "uint8") -> None:
        require_form(observations)
        self.spec = spec
        sensors = spec.observation_specs
        self._shapes = [sensor.shape for sensor in sensors]
        self._parts: dict[str, list[int]] = {}
        for index, (sensor, name) in enumerate(zip(sensors, _names(sensors), strict=True)):
            merge = observations == "split" and len(sensor.shape) == 1
            self._parts.setdefault(VECTOR if merge else name, []).append(index)
        boxes: dict[str, gym.Space[Any]] = {}
        for key, indices in self._parts.items():
            first = sensors[indices[0]]
            shape = first.shape if len(indices) == 1 else (sum(sensors[index].shape[0] for index in indices),)
            boxes[key] = _box(shape, first.is_visual, visual_dtype)
        self._single = len(boxes) == 1
        self.space: gym.Space[Any] = (
            next(iter(boxes.values())) if self._single else gym.spaces.Dict(list(boxes.items()))
        )

    @property
    def parts(self) -> dict[str, list[int]]:
        """The indices of each entry's sensors, in order."""
        return self._parts

    def select(self, arrays: Sequence[Array], rows: Any = slice(None)) -> Any:
        """Return a copy of the observations of `rows`: an array (rows, …), or a dict of arrays."""
        if self._single:
            return self._part(next(iter(self._parts.values())), arrays, rows)
        return {key: self._part(indices, arrays, rows) for key, indices in self._parts.items()}

    def sensor_arrays(self, observations: Any) -> list[Array]:
        """Return one array (rows, *shape) per sensor, from observations as `select` returns them."""
        arrays: dict[int, Array] = {}
        for key, indices in self._parts.items():
            part = observations if self._single else observations[key]
            if len(indices) == 1:
                arrays[indices[0]] = part
            else:
                ends = np.cumsum([self._shapes[index][0] for index in indices])[:-1]
                arrays.update(zip(indices, np.split(part, ends, axis=-1), strict=True))
        return [arrays[index] for index in range(len(arrays))]

    def select_rows(self, observations: Any, rows: Array) -> Any:
        """Return some rows of observations as `select` returns them."""
        return observations[rows] if self._single else {key: part[rows] for key, part in observations.items()}

    def overwrite(self, observations: Any, rows: Array, others: Any) -> None:
        """Overwrite rows of `observations` with `others`, one per row of `rows`; both as `select` returns them."""
        if self._single:
            observations[rows] = others
        else:
            for key, part in others.items():
                observations[key][rows] = part

    @staticmethod
    def _part(indices: list[int], arrays: Sequence[Array], rows: Any) -> Array:
        if len(indices) == 1:
            return np.array(arrays[indices[0]][rows])
        return np.concatenate([arrays[index][rows] for index in indices], axis=-1)


def require_form(observations: str) -> None:
    """Check the form of observations.

    :raises InvalidValueError: If `observations` is neither "split" nor "sensors".
    """
    if observations not in FORMS:
        raise InvalidValueError(f"observations must be 'split' or 'sensors', got {observations!r}")


def split_rows(observations: Any) -> Iterable[Any]:
    """Return the observation of each agent, from those of n agents as `ObservationLayout.select` returns them."""
    return records(**observations) if isinstance(observations, dict) else observations


def records(**arrays: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Return one dict per row from one or more arrays, without a Python loop over the rows."""
    return map(dict, map(zip, repeat(tuple(arrays)), zip(*arrays.values(), strict=True)))


def _names(sensors: Sequence[ObservationSpec]) -> list[str]:
    """Return the key of each sensor; "vector" is reserved for the concatenation, and `obs_<i>` for sensor i."""
    counts = Counter(sensor.name for sensor in sensors)
    return [
        f"obs_{index}" if _TAKEN.fullmatch(sensor.name) or counts[sensor.name] > 1 else sensor.name
        for index, sensor in enumerate(sensors)
    ]


def _box(shape: tuple[int, ...], visual: bool, visual_dtype: str) -> gym.spaces.Box:
    if not visual:
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    if visual_dtype == "uint8":
        return gym.spaces.Box(0, 255, shape, np.uint8)
    return gym.spaces.Box(0.0, 1.0, shape, np.float32)


def action_space(spec: ActionSpec) -> gym.Space[Any]:
    """Return the action space of one agent.

    Continuous actions are a `Box(-1, 1)`, one branch is a `Discrete`, several are a `MultiDiscrete`. Hybrid actions are
    a `Dict(continuous, discrete)`.

    :raises ActionError: If the behavior takes no actions at all.
    """
    if not spec.continuous_size and not spec.discrete_size:
        raise ActionError("this behavior takes no actions: give its agents an actuator or vector actions")
    continuous = gym.spaces.Box(-1.0, 1.0, (spec.continuous_size,), np.float32)
    if not spec.discrete_size:
        return continuous
    discrete: gym.Space[Any] = (
        gym.spaces.Discrete(spec.discrete_branches[0])
        if spec.discrete_size == 1
        else gym.spaces.MultiDiscrete(list(spec.discrete_branches))
    )
    if not spec.continuous_size:
        return discrete
    return gym.spaces.Dict({"continuous": continuous, "discrete": discrete})


def action_tuple(spec: ActionSpec, actions: Any, n: int) -> ActionTuple:
    """Return the actions of n agents as arrays.

    :param actions: Actions in the form of `action_space`, with a leading dimension n: an array (n, continuous size),
        (n,) or (n, branches), or a mapping of the two.
    :raises ActionError: If the shape differs, or the dtype is not numeric.
    """
    if spec.continuous_size and spec.discrete_size:
        if not isinstance(actions, dict) or set(actions) != {"continuous", "discrete"}:
            raise ActionError(
                f"a hybrid action is a dict of 'continuous' ({n}, {spec.continuous_size}) and 'discrete' "
                f"({n}, {spec.discrete_size}), got {type(actions).__name__} "
                f"{sorted(actions) if isinstance(actions, dict) else ''}"
            )
        continuous, discrete = actions["continuous"], actions["discrete"]
    else:
        continuous, discrete = (actions, None) if spec.continuous_size else (None, actions)
    return ActionTuple(
        _action_array(continuous, n, spec.continuous_size, "continuous"),
        _action_array(discrete, n, spec.discrete_size, "discrete"),
    )


def single_action_tuple(spec: ActionSpec, action: Any) -> ActionTuple:
    """Return one agent's action, in the form of `action_space`, as arrays of one row.

    :raises ActionError: If the action does not fit, see `action_tuple`.
    """
    try:
        one_row = (
            {key: np.asarray(part)[np.newaxis] for key, part in action.items()}
            if isinstance(action, dict)
            else np.asarray(action)[np.newaxis]
        )
        return action_tuple(spec, one_row, 1)
    except ValueError:  # an ActionError with the shapes of rows, or ragged lists, of which numpy makes no array
        raise ActionError(f"the action must fit {action_space(spec)}, got {action!r}") from None


def _action_array(part: Any, n: int, width: int, kind: str) -> Array:
    if part is None:
        return np.zeros((n, 0), np.float32 if kind == "continuous" else np.int32)
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise ActionError(
            f"{kind} actions of {n} agents have the shape ({n}, {width}), got rows of different shapes: {error}"
        ) from error
    if array.shape == (n,) and width == 1:
        array = array[:, np.newaxis]
    if array.shape != (n, width):
        raise ActionError(f"{kind} actions of {n} agents have the shape ({n}, {width}), got {array.shape}")
    return array
