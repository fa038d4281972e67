"""Demonstrations as arrays of transitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unity_gym.errors import DemonstrationError, InvalidValueError
from unity_gym.specs import ActionTuple, Array, BehaviorSpec, ObservationSpec

SUFFIX = ".demo"
BODY = 33
"""Byte offset of the behavior's parameters in a file, after the header's space."""
RECORDER = "unity_gym"
"""Mark of files of this package, whose uncompressed images have the declared layout, C×H×W."""


class DemonstrationHeader(NamedTuple):
    """Header of a file. Unity also counts unfinished episodes, and divides the sum of all rewards by the count."""

    path: Path
    name: str
    number_steps: int
    number_episodes: int
    mean_reward: float


@dataclass(frozen=True, eq=False)
class Demonstration:
    """Transitions as arrays of n rows, in the recorded order. Row t is a decision and its outcome.

    - `spec`, `behavior_name`: those of the first file; images are C×H×W, also where the file's are H×W×C
    - `observations`, `next_observations`: one array (n, *shape) per sensor; float32, images of the chosen dtype
    - `actions`: float32 (n, continuous size) and int32 (n, branches)
    - `action_masks`: bool (n, sum of the branch sizes), True = **allowed**
    - `rewards`, `group_rewards`: float32 (n,), the agent's own and its group's
    - `terminated`, `truncated`: bool (n,). The last episode of a file may have neither: its recording stopped there.
    - `episodes`: int (k, 2), the first row of each episode and the row after its last
    - `headers`: one per file

    Rows index N records: `record_observations` (arrays (N, *shape)), `record_rewards` float32 (N,) and `record_done`
    bool (N,). Transition t leads from record `rows[t]` to record `next_rows[t]`. An algorithm that samples minibatches
    of images can index the records, and avoids the two copies that the properties make.
    """

    behavior_name: str
    spec: BehaviorSpec
    headers: tuple[DemonstrationHeader, ...]
    record_observations: list[Array]
    record_rewards: Array
    record_done: Array
    rows: Array
    next_rows: Array
    actions: ActionTuple
    action_masks: Array
    rewards: Array
    group_rewards: Array
    terminated: Array
    truncated: Array
    episodes: Array

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def observations(self) -> list[Array]:
        """The agent's observations when it acted."""
        return [_take(array, self.rows) for array in self.record_observations]

    @cached_property
    def next_observations(self) -> list[Array]:
        """The agent's observations at its next decision, or at the end of the episode.

        Where the file does not contain an episode's last observation, this is the one before it.
        """
        return [_take(array, self.next_rows) for array in self.record_observations]

    @property
    def episode_starts(self) -> Array:
        """Return a bool array (n,): True where an episode or a file starts."""
        starts = np.zeros(len(self), bool)
        starts[self.episodes[:, 0]] = True
        return starts


def fit(demonstration: Demonstration, spec: BehaviorSpec) -> Demonstration:
    """Return a demonstration with the sensors of a behavior.

    If one of the two has a single vector for all vectors of the other (45 values for sensors of 27 and 18), it is split
    or concatenated in the order of the sensors.

    :raises DemonstrationError: If the actions or other sensors differ; the message lists both, sensor by sensor.
    """
    recorded, target = demonstration.spec.observation_specs, spec.observation_specs
    vectors, parts = ([i for i, sensor in enumerate(s) if len(sensor.shape) == 1] for s in (recorded, target))
    other_shapes, target_others = ([sensor.shape for sensor in s if len(sensor.shape) != 1] for s in (recorded, target))
    sizes = [[s[i].shape[0] for i in indices] for s, indices in ((recorded, vectors), (target, parts))]
    is_concatenated = sizes[0] != sizes[1] and sum(sizes[0]) == sum(sizes[1]) and 1 in map(len, sizes)
    if not is_concatenated or other_shapes != target_others or demonstration.spec.action_spec != spec.action_spec:
        require_equal(demonstration.spec, spec, f"the demonstration {demonstration.headers[0].path}", "the behavior")
        return replace(demonstration, spec=demonstration.spec._replace(observation_specs=target))
    arrays = demonstration.record_observations
    values = np.concatenate([arrays[i] for i in vectors], axis=1)
    split = iter(np.split(values, np.cumsum(sizes[1])[:-1], axis=1))
    images = iter([array for array, sensor in zip(arrays, recorded, strict=True) if len(sensor.shape) != 1])
    fitted = [next(split) if len(sensor.shape) == 1 else next(images) for sensor in target]
    return replace(
        demonstration, spec=demonstration.spec._replace(observation_specs=target), record_observations=fitted
    )


def concatenate(parts: list[Demonstration]) -> Demonstration:
    """Return the demonstrations of one behavior as one."""

    def joined(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    records = np.cumsum([0] + [len(part.record_done) for part in parts])
    transitions = np.cumsum([0] + [len(part) for part in parts])
    sensors = range(len(parts[0].record_observations))
    return Demonstration(
        behavior_name=parts[0].behavior_name,
        spec=parts[0].spec,
        headers=sum((part.headers for part in parts), ()),
        record_observations=[np.concatenate([part.record_observations[i] for part in parts]) for i in sensors],
        record_rewards=joined("record_rewards"),
        record_done=joined("record_done"),
        rows=np.concatenate([part.rows + start for part, start in zip(parts, records, strict=False)]),
        next_rows=np.concatenate([part.next_rows + start for part, start in zip(parts, records, strict=False)]),
        actions=ActionTuple(
            np.concatenate([part.actions.continuous for part in parts]),
            np.concatenate([part.actions.discrete for part in parts]),
        ),
        action_masks=joined("action_masks"),
        rewards=joined("rewards"),
        group_rewards=joined("group_rewards"),
        terminated=joined("terminated"),
        truncated=joined("truncated"),
        episodes=np.concatenate([part.episodes + start for part, start in zip(parts, transitions, strict=False)]),
    )


def require_equal(spec: BehaviorSpec, other: BehaviorSpec, name: str, other_name: str) -> None:
    """Check that behaviors are equal in what learning depends on: the shapes of the sensors, in order, and the actions.

    :param name: Name of the first behavior in the message.
    :param other_name: Name of the second behavior in the message.
    :raises DemonstrationError: If they differ; the message lists both, sensor by sensor.
    """
    pairs = list(zip_longest(spec.observation_specs, other.observation_specs))
    if all(a and b and a.shape == b.shape for a, b in pairs) and spec.action_spec == other.action_spec:
        return
    lines = [f"{name} does not fit {other_name} (images are shown as channels, height, width):"]
    for index, (a, b) in enumerate(pairs):
        verdict = "equal" if a and b and a.shape == b.shape else "DIFFERENT"
        lines.append(f"  sensor {index}: {_shown(a)} against {_shown(b)}: {verdict}")
    verdict = "equal" if spec.action_spec == other.action_spec else "DIFFERENT"
    lines.append(f"  actions: {tuple(spec.action_spec)} against {tuple(other.action_spec)}: {verdict}")
    lines.append("record with the behavior as it is now, or use the scene as it was when this was recorded")
    raise DemonstrationError("\n".join(lines))


def _shown(sensor: ObservationSpec | None) -> str:
    return "none" if sensor is None else f"{sensor.shape} {sensor.name!r}"


def _take(array: Array, rows: Array) -> Array:
    """Return these rows of an array; a view where they are consecutive."""
    if len(rows) and (np.diff(rows) == 1).all():
        return array[rows[0] : rows[-1] + 1]
    return array[rows]


def require_visual_dtype(visual_dtype: str) -> None:
    """Check the dtype of images.

    :raises InvalidValueError: If it is neither "uint8" nor "float32".
    """
    if visual_dtype not in ("uint8", "float32"):
        raise InvalidValueError(f"visual_dtype must be 'uint8' or 'float32', got {visual_dtype!r}")
