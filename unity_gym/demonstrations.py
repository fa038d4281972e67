"""Demonstrations: convert Unity's `.demo` files to arrays of transitions, and back.

A file is a header, the behavior's actions, and one record per decision: the agent's observations, and the reward and
done flag caused by its last action. A record that is done holds the last observation of an episode; no action follows
it, whatever the file contains.

In files of Unity's recorder, the action taken on a record's observation is in the **next** record. In all versions the
recorder writes, before the agent acts, the action that led to the observation. Unity's own trainers read it as the
action of the same record, and so learn to act one decision late. The action is in the **same** record in files of
`DemonstrationWriter`. It is also there in old files that Unity converted, such as Expert3DBall, whose last record has
no action.

A record that is done contains the **last** observation of its episode. The first packages reset the agent before they
wrote it. There it contains the **first** observation of the next episode, on which the agent acts, and the last
observation of the episode is not in the file.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from google.protobuf.message import DecodeError
from gymnasium.vector import AutoresetMode

from unity_gym.envs.single_agent import UnitySingleAgentEnv
from unity_gym.errors import ActionError, DemonstrationError, InvalidValueError, NotReadyError, ProtocolError
from unity_gym.slots import AgentTable
from unity_gym.spaces import action_tuple, single_action_tuple
from unity_gym.specs import ActionSpec, ActionTuple, Array, BehaviorSpec, ObservationSpec
from unity_gym.wire.decode import UNREADABLE, BehaviorDecoder, action_spec
from unity_gym.wire.encode import ActionEncoder, brain_parameters, varint
from unity_gym.wire.messages import (
    AgentInfoActionPair,
    BrainParameters,
    DemonstrationMeta,
    ListAgentAction,
    Observation,
    Record,
)
from unity_gym.wire.png import encode_images
from unity_gym.wire.varints import unpack_varints

SUFFIX = ".demo"

_API_VERSIONS = (0, 1)
_BODY = 33  # byte offset of the behavior's parameters, after the header's space
_RECORDER = "unity_gym"  # marks files of this package, whose uncompressed images have the declared layout, C×H×W
_PNG = 1
_FIRST_PACKAGE = "1.0.0"  # assumed for files without dimension properties
_FEWEST_ENDS, _MAJORITY = 3, 0.75  # episodes and fraction needed to detect the content of done records

_CONTINUOUS, _DISCRETE = attrgetter("continuous_actions"), attrgetter("discrete_actions")
_DEPRECATED = attrgetter("vector_actions_deprecated")
_UNREADABLE = (ProtocolError, *UNREADABLE)

T = TypeVar("T")


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
    _require_visual_dtype(visual_dtype)
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
        _require_equal(part.spec, parts[0].spec, f"{part.headers[0].path}", f"{files[0]}")
    demonstration = parts[0] if len(parts) == 1 else _concatenate(parts)
    if not len(demonstration):
        raise DemonstrationError(f"{path} holds no transition, which takes two records of one episode: record more")
    return demonstration


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
        _require_equal(demonstration.spec, spec, f"the demonstration {demonstration.headers[0].path}", "the behavior")
        return demonstration
    arrays = demonstration.record_observations
    numbers = np.concatenate([arrays[i] for i in vectors], axis=1)
    split = iter(np.split(numbers, np.cumsum(sizes[1])[:-1], axis=1))
    images = iter([array for array, sensor in zip(arrays, recorded, strict=True) if len(sensor.shape) != 1])
    fitted = [next(split) if len(sensor.shape) == 1 else next(images) for sensor in target]
    return replace(
        demonstration, spec=demonstration.spec._replace(observation_specs=target), record_observations=fitted
    )


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
    :raises DemonstrationError: If the suffix differs, the folder does not exist, or the file exists.
    :raises InvalidValueError: If the dtype is unsupported.
    """

    def __init__(self, path: str | Path, behavior_name: str, spec: BehaviorSpec, visual_dtype: str = "uint8") -> None:
        _require_visual_dtype(visual_dtype)
        self.path = _new_file(path)
        self._name = re.sub(r"[^A-Za-z0-9 -]", "", self.path.stem)[:16]
        self._behavior_name, self._spec = behavior_name, spec
        self._shapes = [sensor.shape for sensor in spec.observation_specs]
        self._dtypes = [sensor.column_dtype(visual_dtype) for sensor in spec.observation_specs]
        self._heads = [_head(*pair) for pair in zip(spec.observation_specs, self._dtypes, strict=True)]
        self._mask_width = sum(spec.action_spec.discrete_branches)
        self._actions = ActionEncoder(spec.action_spec)
        self._steps = self._ended = 0
        self._in_episode = False
        self._reward = 0.0
        self._part = self.path.with_name(self.path.name + ".part")
        self._file = self._part.open("wb")
        parameters = brain_parameters(behavior_name, spec.action_spec)
        parameters.recorder = _RECORDER
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
                    "a record has an action unless its episode ended: pass one, or say what ended it"
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
        meta.demonstration_name = self._name[: _BODY - 1 - 2 - meta.ByteSize()]  # a string's key and length are 2 bytes
        encoded: bytes = meta.SerializeToString()
        return (varint(len(encoded)) + encoded).ljust(_BODY, b"\0")

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

    :raises DemonstrationError: If the path has another suffix, its folder does not exist, or the file exists.
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


class RecordDemonstration(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the agent until `save` or `close`.

    An episode that a reset, `save` or `close` interrupts is recorded as truncated. Put wrappers that change actions
    around this one, so that it records the actions that Unity receives.

    :param env: Environment of `gymnasium.make("Unity-…-v0")`.
    :param path: Path of the new file, with the suffix `.demo`.
    :raises DemonstrationError: If the environment has several agents, or `DemonstrationWriter` rejects the path.
    """

    def __init__(self, env: gym.Env[Any, Any], path: str | Path) -> None:
        super().__init__(env)
        agent = env.unwrapped
        if not isinstance(agent, UnitySingleAgentEnv):
            raise DemonstrationError(
                f"only a Unity environment with one agent can be recorded, not {type(agent).__name__}: make one with "
                'gymnasium.make("Unity-…-v0")'
            )
        if env.action_space != agent.action_space:
            raise DemonstrationError(
                f"a wrapper below changes the actions, from {agent.action_space} to {env.action_space}: put "
                "RecordDemonstration below it"
            )
        self.path = _new_file(path)
        self._agent = agent
        self._writer: DemonstrationWriter | None = None
        self._saved = False
        self._seen: dict[str, Any] | None = None  # the record without its action
        self._acted = False  # whether the agent has acted in this episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        self._cut()
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen = self._look(self._agent.table.observations)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and record."""
        result = self.env.step(action)
        if not self._saved and self._seen is not None:
            self._add(action=single_action_tuple(self._agent.table.spec.action_spec, action), **self._seen)
            self._acted = True
            self._look_after_step(terminated=result[2], truncated=result[3])
        return result

    def _look_after_step(self, terminated: bool, truncated: bool) -> None:
        table = self._agent.table
        ended = bool(table.terminated[0] or table.truncated[0])  # False: an outer limit may have ended the episode
        seen = self._look(table.final_observations if ended else table.observations)
        seen |= {"reward": float(table.reward[0]), "group_reward": float(table.group_reward[0])}
        if terminated or truncated:
            self._add(terminated=terminated, truncated=truncated, **seen)
            self._seen, self._acted = None, False
        else:
            self._seen = seen

    def _look(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """Return a copy of the agent's observations and action mask."""
        table = self._agent.table
        mask = table.action_mask[0].copy() if table.action_mask.shape[1] else None
        return {"observations": [array[0].copy() for array in arrays], "action_mask": mask}

    def _add(self, **record: Any) -> None:
        if self._writer is None:
            images = [array.dtype.name for array in self._agent.table.observations if array.ndim == 4]
            self._writer = DemonstrationWriter(
                self.path, self._agent.behavior_name, self._agent.table.spec, *images[:1]
            )
        self._writer.add(**record)

    def _cut(self) -> None:
        """Record a running episode as truncated."""
        if self._seen is not None and self._acted and not self._saved:
            self._add(truncated=True, **self._seen)
        self._seen, self._acted = None, False

    def save(self) -> None:
        """Stop recording and write the file; the environment continues without it. Without a step there is no file."""
        self._cut()
        self._saved = True
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        """Save, and close the environment."""
        try:
            self.save()
        finally:
            super().close()


def record(env: Any, policy: Any, path: str | Path, n_episodes: int = 10, seed: int | None = None) -> Demonstration:
    """Let a policy act for whole episodes, record them and read the file.

    Of an environment with several agents, the episodes that start first are recorded, one after the other in the file.

    :param env: Environment of `gymnasium.make("Unity-…-v0")`, of `gymnasium.make_vec` with `autoreset_mode="SameStep"`,
        or a `UnityVecEnv`, each also in wrappers; it stays open.
    :param policy: Callable from observation to action, or a model with SB3's `predict`, which is called for
        deterministic actions. `predict` gets `action_masks`, `state` and `episode_start` if its signature has them.
        With several agents observations and actions are those of all rows.
    :param path: Path of the new file, with the suffix `.demo`.
    :param n_episodes: Number of episodes to record.
    :param seed: Seed of the first reset.
    :raises DemonstrationError: If `n_episodes` is below 1, the file exists, or the environment cannot be recorded.
    """
    if n_episodes < 1:
        raise DemonstrationError(f"n_episodes must be at least 1, got {n_episodes}")
    if isinstance(env, gym.Env):
        _record_agent(env, policy, path, n_episodes, seed)
    else:
        _record_rows(env, policy, path, n_episodes, seed)
    return load(path)


def _record_agent(env: gym.Env[Any, Any], policy: Any, path: str | Path, n_episodes: int, seed: int | None) -> None:
    recorder = RecordDemonstration(env, path)
    choose = _Chooser(policy)
    try:
        for episode in range(n_episodes):
            observation, info = recorder.reset(seed=seed if episode == 0 else None)
            choose.start_episode()
            ended = False
            while not ended:
                observation, _, terminated, truncated, info = recorder.step(
                    choose(observation, info.get("action_mask"))
                )
                ended = terminated or truncated
    finally:
        recorder.save()


def _record_rows(env: Any, policy: Any, path: str | Path, n_episodes: int, seed: int | None) -> None:
    """Record the agents in the rows of a vector environment of Gymnasium or Stable-Baselines3."""
    agents: Any = getattr(env, "unwrapped", None)
    table = getattr(agents, "table", None)
    if not isinstance(table, AgentTable):
        raise DemonstrationError(
            f"only a Unity environment can be recorded, not {type(env).__name__}: make one with "
            'gymnasium.make("Unity-…-v0"), gymnasium.make_vec or UnityVecEnv'
        )
    if getattr(agents, "autoreset_mode", AutoresetMode.SAME_STEP) is not AutoresetMode.SAME_STEP:
        raise DemonstrationError(
            "a vector environment that resets in the next step ignores some actions and cannot be recorded: make it "
            'with autoreset_mode="SameStep"'
        )
    is_gymnasiums = isinstance(env, gym.vector.VectorEnv)
    spec, n = table.spec, len(table)
    choose = _Chooser(policy, n)
    episodes: list[list[dict[str, Any]] | None] = [None] * n  # the records of each running episode to be recorded
    rewards = np.zeros((2, n))  # own and of the group, since the row's last decision
    started = ended = 0
    images = [array.dtype.name for array in table.observations if array.ndim == 4]
    with DemonstrationWriter(path, agents.behavior, spec, *images[:1]) as writer:
        if not is_gymnasiums and seed is not None:
            env.seed(seed)
        observation = env.reset(seed=seed)[0] if is_gymnasiums else env.reset()
        starts = np.ones(n, bool)  # no decision of this episode yet
        while ended < n_episodes:
            acting = table.alive & table.requests_decision
            masks = table.action_mask.copy() if table.action_mask.shape[1] else None
            action = choose(observation, masks)
            taken = action_tuple(spec.action_spec, action, n)
            for row in np.flatnonzero(acting).tolist():
                if starts[row]:
                    episodes[row] = [] if started < n_episodes else None
                    started += 1
                if (records := episodes[row]) is not None:
                    records.append(
                        {
                            "observations": [array[row].copy() for array in table.observations],
                            "action": ActionTuple(taken.continuous[[row]], taken.discrete[[row]]),
                            "action_mask": None if masks is None else masks[row],
                            "reward": rewards[0, row],
                            "group_reward": rewards[1, row],
                        }
                    )
            rewards[:, acting] = 0
            starts &= ~acting
            observation = env.step(action)[0]
            rewards += table.reward, table.group_reward
            dones = table.terminated | table.truncated
            for row in np.flatnonzero(dones).tolist():
                if (records := episodes[row]) is not None:
                    for one in records:
                        writer.add(**one)
                    writer.add(
                        [array[row] for array in table.final_observations],
                        reward=rewards[0, row],
                        group_reward=rewards[1, row],
                        terminated=bool(table.terminated[row]),
                        truncated=bool(table.truncated[row]),
                    )
                    ended += 1
                    episodes[row] = None
            rewards[:, dones] = 0
            starts |= dones
            choose.starts = dones


class _Chooser:
    """Callable that selects actions with any policy that `record` accepts.

    :param n: Number of agents.
    """

    def __init__(self, policy: Any, n: int = 1) -> None:
        self._policy = policy
        self._predict = getattr(policy, "predict", None)
        self._takes = set(inspect.signature(self._predict).parameters) if self._predict is not None else set()
        self._n = n
        self.start_episode()

    def start_episode(self) -> None:
        self._state: Any = None
        self.starts = np.ones(self._n, bool)

    def __call__(self, observation: Any, masks: Array | None) -> Any:
        if self._predict is None:
            return self._policy(observation)
        offered = {"state": self._state, "episode_start": self.starts, "action_masks": masks}
        action, self._state = self._predict(
            observation, deterministic=True, **{name: part for name, part in offered.items() if name in self._takes}
        )
        self.starts = np.zeros(self._n, bool)
        return action


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
        parameters, at = self._message(BrainParameters, _BODY, "the behavior's parameters")
        if header.number_steps < 1:
            raise DemonstrationError(
                f"{self.path}: the header counts {header.number_steps} records, and {len(self._data) - at} bytes of "
                "records follow it: the program that wrote it was killed before it closed the file; record it again"
            )
        offsets, pairs = [], []
        for number in range(header.number_steps):
            if at == len(self._data):
                raise self._damaged(
                    at, f"the header counts {header.number_steps} records, the file ends after {number}"
                )
            offsets.append(at)
            pair, at = self._message(Record, at, f"record {number}")
            pairs.append(pair)
        if action_record == "auto":
            is_aligned = parameters.recorder == _RECORDER or not pairs[-1].action_info.ByteSize()
            action_record = "same" if is_aligned else "next"
        return self._demonstration(
            header, parameters, pairs, offsets, visual_dtype, uncompressed_layout, action_record, done_record
        )

    def _read_header(self) -> DemonstrationHeader:
        if len(self._data) < _BODY or self._data[0] > _BODY - 1:
            raise DemonstrationError(
                f"{self.path} is no demonstration, or was cut off: its {len(self._data)} bytes do not start with "
                f"a header of {_BODY} bytes; name a {SUFFIX} file that Unity or unity_gym wrote"
            )
        meta, _ = self._message(DemonstrationMeta, 0, "the header")
        if meta.api_version not in _API_VERSIONS:
            raise DemonstrationError(
                f"{self.path} is a demonstration of version {meta.api_version}, or none at all; 0 and 1 can be read: "
                "record it again with an ML-Agents package of communication version 1"
            )
        return DemonstrationHeader(
            self.path, meta.demonstration_name, meta.number_steps, meta.number_episodes, meta.mean_reward
        )

    def _message(self, kind: Any, at: int, what: str) -> tuple[Any, int]:
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
            return kind.FromString(self._data[start:end]), end
        except DecodeError as error:
            raise self._damaged(at, f"{what} cannot be parsed ({error})") from error

    def _damaged(self, at: int, what: str) -> DemonstrationError:
        return DemonstrationError(
            f"{self.path}, byte {at}: {what}. The file is damaged or was cut off: copy it once more from where it "
            "came, or record it again"
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
            raise self._damaged(_BODY, f"the behavior cannot be made out ({error})") from error
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


def _package_version(parameters: Any, info: Any) -> str:
    """Return a package version with the image layout of this file, as a file does not contain its own version.

    Packages that declare no dimension properties write H×W×C; of later ones 3.0.0 and 4.0.0 are the released ones.
    """
    if parameters.recorder == _RECORDER:
        return _RECORDER
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
        actions = ActionTuple(_floats(continuous, spec.continuous_size), _choices(discrete, spec.discrete_size))
    elif spec.continuous_size:
        actions = ActionTuple(_floats(list(map(_DEPRECATED, sent)), spec.continuous_size))
    else:
        chosen = _floats(list(map(_DEPRECATED, sent)), spec.discrete_size)
        wrong = chosen != np.rint(np.clip(chosen, 0, np.array(spec.discrete_branches) - 1))
        if wrong.any():
            raise ActionError(f"the choice {chosen[wrong][0]} is none of the branches {spec.discrete_branches}")
        actions = ActionTuple(discrete=chosen.astype(np.int32))
    spec.validate(actions, len(sent), behavior)
    return actions


def _floats(packed: list[bytes], width: int) -> Array:
    if not set(map(len, packed)) <= {4 * width}:
        raise ValueError(f"an action of {width} numbers has {4 * width} bytes, got {sorted(set(map(len, packed)))}")
    return np.frombuffer(bytearray().join(packed), "<f4").reshape(len(packed), width)


def _choices(packed: list[bytes], branches: int) -> Array:
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


def _take(array: Array, rows: Array) -> Array:
    """Return these rows of an array; a view where they are consecutive."""
    if len(rows) and (np.diff(rows) == 1).all():
        return array[rows[0] : rows[-1] + 1]
    return array[rows]


def _concatenate(parts: list[Demonstration]) -> Demonstration:
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


def _require_equal(spec: BehaviorSpec, other: BehaviorSpec, whose: str, others: str) -> None:
    """Compare what learning depends on: the shapes of the sensors, in their order, and the actions."""
    pairs = list(zip_longest(spec.observation_specs, other.observation_specs))
    if all(a and b and a.shape == b.shape for a, b in pairs) and spec.action_spec == other.action_spec:
        return
    lines = [f"{whose} does not fit {others} (images are shown as channels, height, width):"]
    for index, (a, b) in enumerate(pairs):
        verdict = "equal" if a and b and a.shape == b.shape else "DIFFERENT"
        lines.append(f"  sensor {index}: {_shown(a)} against {_shown(b)}: {verdict}")
    verdict = "equal" if spec.action_spec == other.action_spec else "DIFFERENT"
    lines.append(f"  actions: {tuple(spec.action_spec)} against {tuple(other.action_spec)}: {verdict}")
    lines.append("record with the behavior as it is now, or use the scene as it was when this was recorded")
    raise DemonstrationError("\n".join(lines))


def _shown(sensor: ObservationSpec | None) -> str:
    return "none" if sensor is None else f"{sensor.shape} {sensor.name!r}"


def _head(sensor: ObservationSpec, dtype: np.dtype[Any]) -> Any:
    """Return all fields of a sensor's `Observation` except its data."""
    head = Observation(shape=sensor.shape, observation_type=sensor.observation_type.value, name=sensor.name)
    head.dimension_properties.extend(map(int, sensor.dimension_property))
    if dtype == np.uint8:
        head.compression_type = _PNG
        channels = sensor.shape[0]
        head.compressed_channel_mapping.extend([*range(channels), *[-1] * (-channels % 3)])
    return head


def _require_visual_dtype(visual_dtype: str) -> None:
    if visual_dtype not in ("uint8", "float32"):
        raise InvalidValueError(f"visual_dtype must be 'uint8' or 'float32', got {visual_dtype!r}")


def _new_file(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != SUFFIX:
        raise DemonstrationError(f"a demonstration has the suffix {SUFFIX!r}, which Unity looks for, got {path.name!r}")
    if not path.parent.is_dir():
        raise DemonstrationError(f"there is no folder {path.parent} for the demonstration {path.name}: make it first")
    if path.exists():
        raise DemonstrationError(f"{path} is there already: name another file, or delete that one first")
    return path
