"""The rules of the agent table, one agent at a time: a reference for the table and for the wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Entry:
    """The content of one message for one agent; `seen` stands for its observations."""

    id: int
    seen: Any = 0.0
    reward: float = 0.0
    group_reward: float = 0.0
    group: int = 0
    interrupted: bool = False
    forbidden: Sequence[bool] = (False, False, False)


@dataclass
class Row:
    """One row of the reference."""

    player: int = -1
    id: int = -1
    group: int = 0
    seen: Any = 0.0
    final: Any = 0.0
    reward: float = 0.0
    group_reward: float = 0.0
    allowed: list[bool] = field(default_factory=list)
    alive: bool = False
    requests_decision: bool = False
    terminated: bool = False
    truncated: bool = False
    group_ended: bool = False
    running: bool = False
    ended_at: int = 0

    def add(self, entry: Entry) -> None:
        if self.running and not (self.terminated or self.truncated):
            self.reward += entry.reward
            self.group_reward += entry.group_reward

    def end(self, seen: Any, interrupted: bool, exchange: int) -> None:
        if self.running and not (self.terminated or self.truncated):
            self.truncated, self.terminated, self.final = interrupted, not interrupted, seen
        self.alive = self.requests_decision = False
        self.ended_at = exchange


class Model:
    """The rules of the agent table.

    :param reserved: Number of rows at the start.
    :param n_actions: Number of discrete actions of all branches.
    """

    def __init__(self, reserved: int = 0, n_actions: int = 3) -> None:
        self.is_fixed = reserved > 0
        self.n_actions = n_actions
        self.rows = [Row(allowed=[True] * n_actions) for _ in range(reserved)]
        self.exchange = 0

    def start_step(self) -> None:
        self.reset_outcomes()
        for row in self.rows:
            row.requests_decision, row.running = False, row.alive

    def reset_outcomes(self) -> None:
        for row in self.rows:
            row.reward = row.group_reward = 0.0
            row.terminated = row.truncated = row.group_ended = row.running = False

    def find(self, player: int, agent: int) -> Row | None:
        return next((row for row in self.rows if (row.player, row.id) == (player, agent)), None)

    def update(self, deciding: Sequence[Entry], ended: Sequence[Entry], player: int) -> list[int]:
        self.exchange += 1
        before = self.ended()
        for entry in ended:
            row = self.find(player, entry.id)
            if row is not None and row.alive:
                row.add(entry)
                row.end(entry.seen, entry.interrupted, self.exchange)
        self.end_groups(before)
        found = [self.find(player, entry.id) for entry in deciding]
        taken = [row for row in found if row is not None]
        for is_last in (False, True):  # only rows that no group takes are for anyone
            for position, entry in enumerate(deciding):
                if found[position] is None:
                    row = self.free(entry, player, taken, deciding, is_last and self.is_fixed)
                    if row is not None:
                        taken.append(row)
                        found[position] = row
        for position, entry in enumerate(deciding):
            row = found[position]
            if row is None:
                row = Row()
                self.rows.append(row)
                found[position] = row
            if (row.player, row.id) != (player, entry.id):
                row.player, row.id = player, entry.id
            row.add(entry)
            row.seen, row.group, row.alive, row.requests_decision = entry.seen, entry.group, True, True
            row.allowed = [not forbidden for forbidden in entry.forbidden]
        return [next(i for i, row in enumerate(self.rows) if row is match) for match in found]

    def ended(self) -> list[Row]:
        return [row for row in self.rows if row.terminated or row.truncated]

    def end_groups(self, before: list[Row]) -> None:
        living = [(row.player, row.group) for row in self.rows if row.alive]
        for row in self.ended():
            if not any(row is other for other in before):
                row.group_ended = row.group > 0 and (row.player, row.group) not in living

    def free(
        self, entry: Entry, player: int, taken: list[Row], deciding: Sequence[Entry], takes_any: bool
    ) -> Row | None:
        dead = [row for row in self.rows if not row.alive and not any(row is other for other in taken)]
        gone = [row for row in dead if row.player == player]
        living = {row.group for row in self.rows if row.player == player and row.alive}
        living |= {other.group for other in deciding}
        candidates = (
            [row for row in gone if row.group == entry.group]
            or [row for row in gone if row.group not in living]
            or [row for row in dead if row.player < 0]
            or [row for row in dead if takes_any]
        )
        return min(candidates, key=lambda row: row.ended_at >= self.exchange, default=None)

    def truncate_episodes(self, player: int) -> None:
        before = self.ended()
        for row in self.rows:
            if row.alive and row.player == player:
                row.end(row.seen, True, self.exchange)
        self.end_groups(before)

    def restart(self) -> None:
        for row in self.rows:
            row.player = row.id = -1
            row.group, row.seen, row.allowed = 0, 0.0, [True] * self.n_actions
