"""The expected results of a wrapper for a stress scene, derived from the scene's own log.

`Contract` follows a wrapper call by call. It reads the agents' messages in the log and keeps the rows of their table by
the rules of `reference_table`. From these alone it derives when a wrapper's step ends and which action each agent must
have received. It fails if the number of player steps differs, or if an action reached another agent or decision.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stand_ins.reference_table import Entry, Model, Row
from stand_ins.stress_player import fingerprint
from unity_gym.specs import Array

Sensors = Sequence[tuple[str, Sequence[int]]]  # name and shape, in the order of the wire
Action = tuple[list[float], list[int]]  # continuous and discrete


class SceneLog:
    """The log of one player, as far as it has been written.

    `records`: events of agents per exchange; `actions`: per exchange, by (behavior, agent); `resets`: the
    exchanges that were answered with a reset; `scenes`: the first exchange of each scene; `sensors`: by behavior.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open()
        self.records: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.actions: dict[int, dict[tuple[str, int], Action]] = defaultdict(dict)
        self.resets: set[int] = set()
        self.scenes: set[int] = set()
        self.sensors: dict[str, Sensors] = {}
        self.read()

    def read(self) -> None:
        """Read the new lines: all events up to the message that the client has."""
        for line in self._file:
            record = json.loads(line)
            kind, exchange = record["event"], record["exchange"]
            if kind in ("decision", "end"):
                self.records[exchange].append(record)
            elif kind == "action":
                self.actions[exchange][record["behavior"], record["agent"]] = record["continuous"], record["discrete"]
            elif kind == "reset":
                self.resets.add(exchange)
            else:
                self.scenes.add(exchange)
                self.sensors = record["sensors"]

    @property
    def newest(self) -> int:
        return max(self.records)


def seen(observation: Any, sensors: Sensors) -> dict[str, int]:
    """Return the fingerprints of a wrapper's observation: an array, or a dict in the form "split" or "sensors"."""
    alone = sensors[0][0] if len(sensors) == 1 else "vector"
    parts = dict(observation) if isinstance(observation, Mapping) else {alone: observation}
    if "vector" in parts:
        numbers, start = parts.pop("vector"), 0
        for name, shape in sensors:
            if len(shape) == 1:
                parts[name] = numbers[start : start + shape[0]]
                start += shape[0]
        assert start == len(numbers)
    assert {name: part.shape for name, part in parts.items()} == {name: tuple(shape) for name, shape in sensors}
    return {name: fingerprint(_as_logged(part)) for name, part in parts.items()}


def _as_logged(part: Array) -> Array:
    if part.ndim != 3:
        assert part.dtype == np.float32
    elif part.dtype != np.uint8:
        assert part.dtype == np.float32
        part = np.rint(part * 255).astype(np.uint8)
    return part


def blank(sensors: Sensors) -> dict[str, int]:
    """Return the fingerprints of zeros."""
    return {name: fingerprint(np.zeros(shape, np.uint8 if len(shape) == 3 else np.float32)) for name, shape in sensors}


def one_action(action: Any) -> Action:
    """Return one agent's action in the format of the log."""
    if isinstance(action, Mapping):
        return action["continuous"].tolist(), np.atleast_1d(action["discrete"]).tolist()
    action = np.atleast_1d(action)
    return (action.tolist(), []) if action.dtype.kind == "f" else ([], action.tolist())


def row_actions(actions: Any, rows: int) -> dict[int, Action]:
    """Return the actions of all rows of a vector environment."""
    if isinstance(actions, Mapping):
        return {row: one_action({key: part[row] for key, part in actions.items()}) for row in range(rows)}
    return {row: one_action(actions[row]) for row in range(rows)}


def entry(record: Mapping[str, Any]) -> Entry:
    return Entry(
        record["agent"],
        record["observation"],
        record["reward"],
        record["group_reward"],
        record["group"],
        record.get("interrupted", False),
        record.get("mask", ()),
    )


class Contract:
    """The expected agent tables of one or more players, updated with the calls of a wrapper.

    It starts with the newest scene of each log.

    :param logs: Logs of the players, after a reset with a seed and no step.
    :param behavior: Behavior of the wrapper; by default all.
    :param rows: Number of reserved rows.
    """

    def __init__(self, logs: Sequence[SceneLog], behavior: str | None = None, rows: int = 0) -> None:
        self.logs = logs
        self.tables: dict[str, Model] = {}
        self._behavior, self._rows = behavior, rows
        self._read_logs()
        self._at = [max(log.scenes) for log in logs]
        self._actions: dict[str, dict[int, Action]] = {}
        self._start()

    @property
    def table(self) -> Model:
        """Table of the only behavior."""
        (table,) = self.tables.values()
        return table

    @property
    def sensors(self) -> Sensors:
        """Table of the only behavior."""
        return self.logs[0].sensors[next(iter(self.tables))]

    def reset(self) -> None:
        """Record a reset of the wrapper."""
        self._read_logs()
        for table in self.tables.values():
            table.start_step()
        for player, log in enumerate(self.logs):
            assert self._at[player] in log.resets
            assert not log.actions[self._at[player]]
            self._at[player] += 1
            for table in self.tables.values():
                table.truncate_episodes(player)
        self._start()

    def _start(self) -> None:
        for player in range(len(self.logs)):
            self._listen(player)
        self._actions = {}
        while not self.tables:  # the wrapper waits for the first agent of its behavior
            self._exchange(range(len(self.logs)))
        self._exchange_until_ready(autoreset=True)
        self.nothing_more_was_exchanged()

    def resume(self) -> None:
        """Record steps with zero actions until an agent requests a decision."""
        self._read_logs()
        for table in self.tables.values():
            table.reset_outcomes()
        self._actions = {}
        self._exchange_until_ready(autoreset=True)
        self.nothing_more_was_exchanged()

    def step(self, actions: Mapping[str, Mapping[int, Action]], autoreset: bool) -> None:
        """Record a step of the wrapper with these actions, by behavior and row.

        Rows without a request at the start take the zero action for the whole step. The step ends when no row still
        acts and one requests a decision or, without autoreset, has ended.
        """
        self._start_step(actions)
        self._exchange_until_ready(autoreset)
        self.nothing_more_was_exchanged()

    def step_once(self, actions: Mapping[str, Mapping[int, Action]]) -> None:
        """Record one player step per player, maybe followed by others."""
        self._start_step(actions)

    def _start_step(self, actions: Mapping[str, Mapping[int, Action]]) -> None:
        self._read_logs()
        self._actions = {
            name: {row: action for row, action in some.items() if self.tables[name].rows[row].requests_decision}
            for name, some in actions.items()
        }
        for table in self.tables.values():
            table.start_step()
        self._exchange(range(len(self.logs)))

    def _read_logs(self) -> None:
        for log in self.logs:
            log.read()

    def nothing_more_was_exchanged(self) -> None:
        """Check that the wrapper has made no other player step; all logs are then read."""
        self._read_logs()
        assert self._at == [log.newest for log in self.logs]

    def _exchange_until_ready(self, autoreset: bool) -> None:
        while waiting := [player for player in range(len(self.logs)) if not self._is_ready(player, autoreset)]:
            self._exchange(waiting)

    def _is_ready(self, player: int, autoreset: bool) -> bool:
        player_rows = [row for table in self.tables.values() for row in table.rows if row.player == player]
        if any(row.alive and not row.requests_decision for row in player_rows):
            return False
        return any(row.requests_decision or (not autoreset and has_ended(row)) for row in player_rows)

    def _exchange(self, players: Iterable[int]) -> None:
        for player in players:
            assert self._at[player] < self.logs[player].newest, "the wrapper stopped before its step was over"
            self._check_actions(player)
            self._at[player] += 1
            self._listen(player)

    def _check_actions(self, player: int) -> None:
        exchange = self._at[player]
        log = self.logs[player]
        asked = [
            (record["behavior"], record["agent"]) for record in log.records[exchange] if record["event"] == "decision"
        ]
        assert sorted(log.actions[exchange]) == sorted(asked), "the acting agents differ from the requesting ones"
        for (behavior, agent), (continuous, discrete) in log.actions[exchange].items():
            expected: Action = [0.0] * len(continuous), [0] * len(discrete)
            if behavior in self._actions:
                table = self.tables[behavior]
                row = next(i for i, row in enumerate(table.rows) if (row.player, row.id) == (player, agent))
                expected = self._actions[behavior].get(row, expected)
            assert (continuous, discrete) == expected, (behavior, agent, exchange)

    def _listen(self, player: int) -> None:
        records: dict[str, tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
        for record in self.logs[player].records[self._at[player]]:
            if self._behavior in (None, record["behavior"]):
                records[record["behavior"]][record["event"] == "end"].append(entry(record))
        for behavior in self.tables.keys() | records.keys():
            table = self.tables.setdefault(behavior, Model(self._rows))
            table.update(*records[behavior], player)


def has_ended(row: Row) -> bool:
    return row.terminated or row.truncated
