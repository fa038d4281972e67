"""A player whose agents do everything that agents can do, at random, and that writes its own log.

Five behaviors, which together have every type of observation and of action. Each agent requests decisions with its
own period, or with that of a decision requester. At any moment of a tick agents get rewards, end their episodes (or
are interrupted, or reach their step limit), are disabled and return under new ids; groups get rewards, end together and
change their members; choosers change their behavior with an episode. The late ones spawn after a while. Sometimes
no agent requests a decision, so that messages contain ended agents only, or none is sent.

Started by `launcher`; the log goes to the player's log file with the suffix `.jsonl`. It is written from the scene's
own state: expected observations are computed again, rewards are logged when they are given. Each line is
an event of one agent in one message exchange (they are numbered), or of the whole scene:

- `{"event": "scene", "exchange", "sensors"}`: a scene starts, and this exchange is its first. `sensors` has the names
  and shapes of each behavior's sensors, in the order of the wire
- `{"event": "decision", "exchange", "behavior", "agent", "episode", "group", "reward", "group_reward", "observation",
  "mask"}`: the agent requests a decision. `reward` is the sum since its last event, `observation` a fingerprint of
  each sensor's, `mask` true for forbidden actions
- `{"event": "end", …, "interrupted"}`: its episode has ended; fields as above except `mask`
- `{"event": "action", "exchange", "behavior", "agent", "continuous", "discrete"}`: the action of the client
- `{"event": "reset", "exchange"}`: the client answered with a reset

Rewards are whole numbers, each given once, whose sums float32 represents exactly.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stand_ins.scene_launcher import module_launcher
from unity_gym.scenes import __main__ as player
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, Sensor, StackingSensor, VectorSensor, wire_order
from unity_gym.specs import ActionSpec, Array, DimensionProperty, ObservationType

LATE = 25  # the tick from which on there are late agents, and choosers of the second behavior


def fingerprint(column: Array) -> int:
    """Return the fingerprint of one sensor's observation in the client: images as uint8, all else as float32."""
    return zlib.crc32(np.ascontiguousarray(column).tobytes())


class Log:
    """The log file, and the number of the exchange that is being prepared."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)  # the content of a message is on the disk before it is sent
        self.exchange = 0
        self._awaits_answer = False
        self._rewards = 0

    def write(self, event: str, **content: Any) -> None:
        self._awaits_answer |= event in ("decision", "end")
        self._file.write(json.dumps({"event": event, "exchange": self.exchange} | content) + "\n")

    def answered(self, event: str | None = None) -> None:
        """Record the client's answer, if it had anything to answer."""
        if self._awaits_answer:
            if event is not None:
                self.write(event)
            self._awaits_answer = False
            self.exchange += 1

    def new_reward(self) -> int:
        """Return a number that no reward had before, in an irregular order."""
        self._rewards += 1
        return pow(17, self._rewards, 65521)  # 17 is a primitive root of this prime


class View(NamedTuple):
    """A sensor and its expected observation in the client: codes (k, 4) → (k, *shape), images as uint8."""

    sensor: Sensor
    read: Callable[[Array], Array]
    stacks: int = 1


class LoggedAgents(Agents):
    """Agents that log their messages and actions.

    :param views: Sensors of the agents.
    :param mask: Function from codes (k, 4) to bool (k, actions), True for forbidden.
    """

    def __init__(
        self,
        scene: StressScene,
        count: int,
        behaviors: str | Sequence[str],
        views: Sequence[Callable[[LoggedAgents], View]],
        actions: ActionSpec,
        mask: Callable[[Array], Array] | None = None,
        **options: Any,
    ) -> None:
        self.scene = scene
        self.number = len(scene.kinds)
        self.episode = np.zeros(count, np.int64)
        self.period = scene.academy.rng.integers(1, 6, count)
        self.next_decision = scene.academy.rng.integers(0, 6, count)
        self.returns_at = np.zeros(count, np.int64)
        self._booked = np.zeros((count, 2))  # reward and group reward not yet sent
        self._asked: list[tuple[int, int]] = []  # exchange and row
        self._views = [view(self) for view in views]
        self._stacks: dict[tuple[str, int], list[Array]] = {}
        super().__init__(
            scene.academy,
            count,
            behaviors,
            [view.sensor for view in self._views],
            actions,
            act=lambda rows: scene.let_happen(self, rows),
            start_episode=self._start,
            read_mask=None if mask is None else lambda rows: mask(self.codes(rows)),
            **options,
        )

    def sensors(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(sensor.name, sensor.shape) for sensor in wire_order(view.sensor for view in self._views)]

    def codes(self, rows: Array) -> Array:
        """Return the codes of the observations; no two observations of a scene have the same code."""
        constant = np.ones(len(rows), np.int64)
        return np.stack([self.number * constant, rows, self.episode[rows], self.scene.moment * constant], axis=1)

    def give_reward(self, rows: Array, of_group: bool = False) -> None:
        amount = self.scene.log.new_reward()
        (self.group_reward if of_group else self.reward)[rows] += amount
        self._booked[rows, int(of_group)] += amount

    def enable(self, rows: Array) -> None:
        self._booked[rows] = 0
        super().enable(rows)

    def reset(self) -> None:
        self._asked.clear()
        super().reset()

    def act_and_count(self) -> None:
        if self.number == 0:
            self.scene.log.answered()
        for exchange, row in self._asked:
            self.scene.log.write(
                "action",
                exchange=exchange,
                behavior=self.behaviors[self.behavior[row]],
                agent=int(self.id[row]),
                continuous=self.continuous[row].tolist(),
                discrete=self.discrete[row].tolist(),
            )
        self._asked.clear()
        super().act_and_count()

    def _start(self, rows: Array) -> None:
        self.episode[rows] += 1
        if len(self.behaviors) > 1 and self.scene.tick >= LATE:
            self.behavior[rows] = self.scene.academy.rng.integers(0, len(self.behaviors), len(rows))

    def _put(self, rows: Array, done: bool, interrupted: bool = False) -> None:
        for row in rows.tolist():
            self.scene.log.write(
                "end" if done else "decision",
                behavior=self.behaviors[self.behavior[row]],
                agent=int(self.id[row]),
                episode=int(self.episode[row]),
                group=int(self.group_id[row]),
                reward=self._booked[row, 0],
                group_reward=self._booked[row, 1],
                observation={view.sensor.name: self._seen(view, row, done) for view in self._views},
                **({"interrupted": interrupted} if done else {"mask": self.mask[row].tolist()}),
            )
            self._booked[row] = 0
            if not done:
                self._asked.append((self.scene.log.exchange, row))
        super()._put(rows, done, interrupted)

    def _seen(self, view: View, row: int, done: bool) -> int:
        column = view.read(self.codes(np.array([row])))[0]
        if column.dtype != np.uint8:
            column = column.astype(np.float32)
        if view.stacks > 1:
            key = view.sensor.name, row
            stack = [*self._stacks.get(key, [np.zeros_like(column)] * view.stacks)[1:], column]
            self._stacks[key] = stack
            if done:
                del self._stacks[key]
            column = np.concatenate(stack)
        return fingerprint(column)


def vector(name: str = "code", kind: ObservationType = ObservationType.DEFAULT) -> Callable[[LoggedAgents], View]:
    """The four numbers of the code."""
    return lambda agents: View(VectorSensor(name, 4, lambda rows: agents.codes(rows), kind=kind), lambda codes: codes)


def stacked(stacks: int, count: int) -> Callable[[LoggedAgents], View]:
    """Two numbers of the code, now and before."""

    def view(agents: LoggedAgents) -> View:
        inner = VectorSensor("recent", 2, lambda rows: agents.codes(rows)[:, 2:])
        return View(StackingSensor(inner, stacks, count), lambda codes: codes[:, 2:], stacks)

    return view


def entities() -> Callable[[LoggedAgents], View]:
    """A list of up to five entities of three numbers; how many there are changes."""

    def read(codes: Array) -> Array:
        there = np.arange(5) < codes[:, 3:] % 6
        return np.where(there[:, :, np.newaxis], 1.0 + codes[:, np.newaxis, 1:], 0.0)

    properties = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    return lambda agents: View(
        VectorSensor("entities", (5, 3), lambda rows: read(agents.codes(rows)), properties=properties), read
    )


def image(codes: Array, shape: tuple[int, int, int]) -> Array:
    """uint8 (k, *shape), the code in its first pixels."""
    pixels = np.arange(np.prod(shape)) * 37 + codes.sum(axis=1)[:, np.newaxis]
    pixels[:, :2] = codes[:, 3:] // (1, 256)
    pixels[:, 2:4] = codes[:, 1:3]
    images: Array = pixels.reshape(-1, *shape).astype(np.uint8)
    return images


def camera(*shape: int) -> Callable[[LoggedAgents], View]:
    """PNG images."""
    name, (channels, height, width) = f"camera{shape[0]}", shape

    def read(codes: Array) -> Array:
        return image(codes, (channels, height, width))

    return lambda agents: View(
        ImageSensor(name, (channels, height, width), lambda rows: read(agents.codes(rows))), read
    )


def raw_camera(*shape: int) -> Callable[[LoggedAgents], View]:
    """Uncompressed images in the memory layout of the player's package version: height, width, channel."""
    channels, height, width = shape

    def read(codes: Array) -> Array:
        return image(codes, (channels, height, width))

    def lying(codes: Array) -> Array:
        values: Array = (read(codes).transpose(0, 2, 3, 1) / 255).reshape(-1, *shape)
        return values

    plane = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
    properties = (DimensionProperty.NONE, plane, plane)
    return lambda agents: View(
        VectorSensor("raw camera", shape, lambda rows: lying(agents.codes(rows)), properties=properties), read
    )


def forbids(*branches: int) -> Callable[[Array], Array]:
    """Return a mask over these branches that changes with each step and allows the last action of each."""
    allowed = np.cumsum(branches) - 1

    def mask(codes: Array) -> Array:
        forbidden: Array = (codes.sum(axis=1)[:, np.newaxis] >> np.arange(sum(branches))) & 1 == 1
        forbidden[:, allowed] = False
        return forbidden

    return mask


class StressScene(Scene):
    default_areas = 1
    log: Log

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.log.answered()
        self.tick = self.moment = 0
        self.quiet_until, self.no_agent_ends = 0, False
        self.groups = [academy.new_group() for _ in range(3)]
        self.kinds: list[LoggedAgents] = []
        walk, runners = ActionSpec(3, ()), "Runner"
        make: Callable[[], LoggedAgents]
        for make in (
            lambda: LoggedAgents(self, 3, runners, [vector()], walk),
            lambda: LoggedAgents(self, 2, runners, [vector()], walk, decision_period=3, max_step=17),
            lambda: LoggedAgents(
                self, 3, ("Day", "Night"), [vector(), stacked(3, 3)], ActionSpec(0, (4,)), max_step=60
            ),
            lambda: LoggedAgents(
                self,
                5,
                "Member",
                [vector("goal", ObservationType.GOAL_SIGNAL), entities(), camera(1, 4, 5), camera(3, 6, 4)],
                ActionSpec(0, (2, 3)),
                forbids(2, 3),
            ),
            lambda: LoggedAgents(
                self,
                3,
                "Late",
                [camera(2, 5, 5), camera(4, 4, 4), raw_camera(2, 4, 3)],
                ActionSpec(2, (3, 2)),
                forbids(3, 2),
                team=1,
            ),
            lambda: LoggedAgents(self, 1, "Solo", [vector(), entities()], ActionSpec(1, (3,)), forbids(3), max_step=40),
        ):
            self.kinds.append(make())
        self.members, self.late = self.kinds[3:5]
        self.late.enabled[:] = False
        self.late.returns_at[:] = LATE
        self.members.group_id[:] = academy.rng.choice(self.groups, len(self.members))
        sensors = {behavior: kind.sensors() for kind in self.kinds for behavior in kind.behaviors}
        self.log.write("scene", sensors=sensors)

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)

    def reset_environment(self) -> None:
        self.log.answered("reset")

    def before_step(self) -> None:
        rng = self.academy.rng
        self.tick += 1
        if self.tick > self.quiet_until and rng.random() < 0.03:
            self.quiet_until = self.tick + rng.integers(1, 10)
            self.no_agent_ends = rng.random() < 0.5
        if self.tick > 1:  # the first episodes start within the first tick
            self._let_all_happen()
        for kind, period in zip(self.kinds, (0, 3, 0, 0, 0, 0), strict=True):
            kind.decision_period = 0 if self._is_quiet() else period
            due = kind.enabled & (kind.next_decision <= self.tick)
            if period == 0 and due.any() and not self._is_quiet():
                kind.request_decision(np.flatnonzero(due))
                kind.next_decision[due] = self.tick + kind.period[due]

    def after_step(self) -> None:
        self._let_all_happen()

    def simulate(self) -> None:
        self._let_all_happen()

    def _is_quiet(self) -> bool:
        return self.tick <= self.quiet_until

    def _let_all_happen(self) -> None:
        for kind in self.kinds:
            self.let_happen(kind, kind.rows)
        self._let_groups_happen()

    def let_happen(self, kind: LoggedAgents, rows: Array) -> None:
        """Apply random events to agents."""
        self.moment += 1
        rng = self.academy.rng

        def some(share: float) -> Array:
            return rows[kind.enabled[rows] & (rng.random(len(rows)) < share)]

        for row in some(0.15):
            kind.give_reward(np.array([row]))
        if self._is_quiet() and self.no_agent_ends:
            return
        kind.end_episode(some(0.02), interrupted=rng.random() < 0.4)
        leaving = some(0.01)
        if len(leaving):
            kind.disable(leaving)
            kind.returns_at[leaving] = self.tick + rng.integers(0, 12, len(leaving))
        returning = rows[~kind.enabled[rows] & (kind.returns_at[rows] <= self.tick)]
        if len(returning) and not self._is_quiet():
            kind.enable(returning)
            kind.next_decision[returning] = self.tick + kind.period[returning]

    def _let_groups_happen(self) -> None:
        rng, members = self.academy.rng, self.members
        present = np.flatnonzero(members.enabled)
        if len(present) and rng.random() < 0.1:
            members.group_id[rng.choice(present)] = rng.choice([0, *self.groups])
        if rng.random() < 0.02:
            self.groups[rng.integers(0, len(self.groups))] = self.academy.new_group()
        group_rows = np.flatnonzero(members.enabled & (members.group_id == rng.choice(self.groups)))
        if len(group_rows) and rng.random() < 0.1:
            members.give_reward(group_rows, of_group=True)
        if len(group_rows) and rng.random() < 0.02 and not (self._is_quiet() and self.no_agent_ends):
            members.end_episode(group_rows)


def launcher(folder: Path) -> str:
    """The path of an executable, written into `folder`, that plays the scene."""
    return module_launcher(folder, "Stress", "stand_ins.stress_player Stress")


if __name__ == "__main__":
    StressScene.log = Log(Path(sys.argv[sys.argv.index("-logFile") + 1]).with_suffix(".jsonl"))
    sys.exit(player.main(["__main__:StressScene", *sys.argv[2:]]))
