"""`Sampler`: the part of a training that lets all agents of some players act and stores their experience.

The arguments and results of its methods are plain data (arrays, numbers, strings), so that a sampler can run in a
separate process; see `sb3_ext.placement`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sb3_ext.collector import Collector
from sb3_ext.curriculum import ParameterValue, send_parameter
from sb3_ext.experience import Trajectories, concatenate
from sb3_ext.restarts import RestartPolicy
from sb3_ext.self_play import Match, Matchmaker, SelfPlay, number_and_name
from unity_gym.errors import PlayerError
from unity_gym.pool import PlayerPool
from unity_gym.side_channels import EnvironmentStats
from unity_gym.slots import AgentTable, with_rows
from unity_gym.specs import Array, BehaviorSpec

_TEAM_BITS = 24  # bits for the rows of one team
_PATIENCE = 100  # maximum environment steps until the outcomes of the last decisions, or until an agent acts


def plain_name(behavior: str) -> str:
    """Return the name of a behavior without its team: "Goalie" of "Goalie?team=1"."""
    return behavior.partition("?")[0]


@dataclass(frozen=True)
class Request:
    """Limits of a sampler. It stops after the environment step in which one of these is reached.

    :param collect: Number of decisions to collect, per learning behavior; these are then returned. Decisions of other
        behaviors are not stored, and the remaining ones that were stored are returned.
    :param limits: Maximum number of decisions, per behavior.
    :param until_episode: Stop after each step in which an episode that counts for lessons has ended.
    """

    collect: Mapping[str, int]
    limits: Mapping[str, int]
    until_episode: bool = False


@dataclass
class Samples:
    """Result of a sampler.

    - `decisions`: per behavior, number of decisions of its learning agents
    - `stored`: per behavior, number of these that were stored
    - `trajectories`: per behavior, trajectories for its learner
    - `episodes`: per behavior, arrays with one entry per finished episode: `reward` (the agent's own), `group_reward`,
      `length` (decisions), `is_whole` (bool, False for a member that ended before its group), `is_group_end` (bool),
      `is_of_lesson` (bool, whether it started in the running lessons)
    - `finished`: behaviors that no longer learn, whose remaining decisions were returned
    - `stats`: per environment step with statistics of the scenes, the values of each player, by its number
    - `appeared`: per new behavior, with its team, the specification
    - `matches`: results for the ratings of self-play
    - `seconds`: per part of the work, its duration and number of calls
    """

    decisions: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stored: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    trajectories: dict[str, Trajectories] = field(default_factory=dict)
    episodes: dict[str, dict[str, Array]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    stats: list[dict[int, EnvironmentStats]] = field(default_factory=list)
    appeared: dict[str, BehaviorSpec] = field(default_factory=dict)
    matches: list[Match] = field(default_factory=list)
    seconds: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add_time(self, part: str, started: float, calls: int = 1) -> float:
        """Add the time since `started`, and the number of calls that it completes, to this part; return the time."""
        now = time.perf_counter()
        total, count = self.seconds.get(part, (0.0, 0))
        self.seconds[part] = total + now - started, count + calls
        return now


class EpisodeStatistics:
    """Returns and lengths of the episodes in the rows of a table."""

    def __init__(self) -> None:
        self._returns, self._rewards = np.zeros(0), np.zeros(0)  # per row: with and without group rewards
        self._lengths = np.zeros(0, np.int64)
        self._is_member = np.zeros(0, bool)  # whether the agent belongs to a group
        self._is_of_lesson = np.zeros(0, bool)  # the episode started in the running lessons
        self._is_lost = np.zeros(0, bool)  # the next end is that of the player, which is no end of an episode
        self._finished: list[dict[str, Array]] = []

    def store_outcomes(self, table: AgentTable, acted: Array) -> bool:
        """Add an environment step.

        :param acted: Whether each row acted, bool (rows before the step,).
        :return: Whether an episode that counts for lessons has ended.
        """
        self._require_rows(len(table))
        self._lengths[: len(acted)] += acted
        self._rewards += table.reward
        self._returns += table.reward + table.group_reward
        ended = np.flatnonzero(table.terminated | table.truncated)
        rows = ended[~self._is_lost[ended]]
        if len(rows):
            is_group_end = table.group_ended[rows]
            self._finished.append(
                {
                    "reward": self._rewards[rows],
                    "group_reward": (self._returns - self._rewards)[rows],
                    "length": self._lengths[rows],
                    "is_whole": is_group_end | ~self._is_member[rows],
                    "is_group_end": is_group_end,
                    "is_of_lesson": self._is_of_lesson[rows],
                }
            )
        if len(ended):
            self._is_of_lesson[ended], self._is_lost[ended] = True, False
            for array in (self._returns, self._rewards, self._lengths):
                array[ended] = 0
        self._is_member = table.group_id > 0
        last = self._finished[-1] if len(rows) else None
        return last is not None and bool((last["is_whole"] & last["is_of_lesson"]).any())

    def pop(self) -> dict[str, Array] | None:
        """Return the finished episodes since the last call; None if there are none."""
        finished, self._finished = self._finished, []
        return concatenate(finished) if finished else None

    def discard(self, lost: Array) -> None:
        """Do not count the running episodes of rows in `lost`, bool (rows,), whose player has failed."""
        self._require_rows(len(lost))
        self._is_lost[: len(lost)] |= lost

    def start_lesson(self, alive: Array) -> None:
        """Note that lessons have changed: running episodes of rows in `alive`, bool (rows,), do not count for them."""
        self._is_of_lesson = ~alive[: len(self._is_of_lesson)]

    def start_team(self, table: AgentTable) -> None:
        """Switch to the agents of another table, whose episodes have just started."""
        self._require_rows(len(table))
        self._is_member = table.group_id > 0

    def restart(self) -> None:
        """Discard the running episodes, as the scene was reset."""
        for array in (self._returns, self._rewards, self._lengths):
            array.fill(0)
        self._is_of_lesson.fill(True)
        self._is_lost.fill(False)

    def _require_rows(self, rows: int) -> None:
        self._returns, self._rewards = with_rows(self._returns, rows), with_rows(self._rewards, rows)
        self._lengths, self._is_member = with_rows(self._lengths, rows), with_rows(self._is_member, rows)
        self._is_of_lesson = with_rows(self._is_of_lesson, rows, True)
        self._is_lost = with_rows(self._is_lost, rows)


@dataclass(frozen=True)
class _Assignment:
    """Policy of the agents of a behavior."""

    collector: Collector
    self_play: SelfPlay | None
    deterministic: bool


@dataclass
class _Behavior:
    """Behavior whose agents act, with its learning team."""

    team: str
    table: AgentTable
    collector: Collector
    self_play: SelfPlay | None
    deterministic: bool
    episodes: EpisodeStatistics = field(default_factory=EpisodeStatistics)


class Sampler:
    """Sampler that lets all agents of some players act, and stores their experience until `collect` returns it.

    :param pool: Players, after their reset.
    :param restarts: Limits for restarts of failed players; None for no restarts.
    :param first_player: Number of the first player among those of all samplers.
    :param is_asynchronous: Let the agents of each player act as soon as it has responded; otherwise all in turn.
    :param on_restart: Function that receives a log line when a player is launched again.
    """

    def __init__(
        self,
        pool: PlayerPool,
        restarts: RestartPolicy | None = None,
        first_player: int = 0,
        is_asynchronous: bool = False,
        on_restart: Callable[[str], None] = print,
    ) -> None:
        self._pool, self._restarts, self._first_player = pool, restarts, first_player
        self._is_asynchronous, self._on_restart = is_asynchronous, on_restart
        self._team = ""  # the learning team
        self._finished: set[str] = set()  # behaviors that no longer learn, of which everything was returned
        self._assignments: dict[str, _Assignment] = {}
        self._behaviors: dict[str, _Behavior] = {}
        self._appeared: set[str] = set()
        self._matchmaker = Matchmaker()
        self.decisions: Mapping[str, int] = {}
        """Number of decisions collected so far, per behavior."""

    def appeared(self) -> dict[str, BehaviorSpec]:
        """Return the specification of each behavior that was not returned before.

        The names contain the team and are sorted by it.
        """
        names = sorted(self._pool.tables.keys() - self._appeared, key=number_and_name)
        self._appeared.update(names)
        for name in names:
            if plain_name(name) in self._assignments:
                self._enter(name)
        return {name: self._pool.tables[name].spec for name in names}

    def assign(self, name: str, collector: Collector, self_play: SelfPlay | None, deterministic: bool = False) -> None:
        """Set the policy of a behavior's agents, including those that spawn later.

        :param name: Name of the behavior, without a team.
        :param collector: Collector with the policy of the learning team.
        :param self_play: Opponents of that team.
        :param deterministic: Select the most likely actions.
        """
        self._assignments[name] = _Assignment(collector, self_play, deterministic)
        if self._matchmaker.generator is None:
            self._matchmaker.generator = collector.generator
        for team in sorted(self._appeared, key=number_and_name):
            if plain_name(team) == name:
                self._enter(team)

    def _enter(self, team: str) -> None:
        name, table = plain_name(team), self._pool.tables[team]
        given = self._assignments[name]
        if name not in self._behaviors:
            self._behaviors[name] = _Behavior(team, table, given.collector, given.self_play, given.deterministic)
        elif given.self_play is None and team != self._behaviors[name].team:  # teams that train together
            collector = Collector(given.collector.policy, given.collector.collection, given.collector.generator)
            self._behaviors[team] = _Behavior(team, table, collector, None, given.deterministic)
        if given.self_play is not None:
            self._matchmaker.enter(team, table, given.self_play, given.deterministic)
            if team == self._team != self._matchmaker.learning:
                self._learn(team)

    def set_team(self, team: str, reset: bool = False, proceed: Callable[[], bool] = lambda: True) -> None:
        """Set the learning team; its opponents play for the others. Before the first call, no team learns.

        :param reset: Reset the scene first; running episodes are truncated, and used for training as such.
        :param proceed: Function that is called while a player resets. Its result False ends the wait; no team is set.
        """
        if reset:
            if not self._reset(proceed):
                return
            for name in self._acting():
                behavior = self._behaviors[name]
                behavior.collector.store_outcomes(behavior.table)
                behavior.episodes.restart()
        self._team = team
        if team in self._appeared:
            self._learn(team)
        if reset:
            self._matchmaker.store_outcomes()

    def _learn(self, team: str) -> None:
        behavior, table = self._behaviors[plain_name(team)], self._pool.tables[team]
        table.reserve(len(behavior.table))  # rows of the recurrent states do not change
        behavior.team, behavior.table = team, table
        behavior.episodes.start_team(table)
        self._matchmaker.learn(team)

    def start_matches(self) -> None:
        """Start the first matches of teams that appeared, after all of them are assigned."""
        self._matchmaker.start_matches()

    def load(self, behavior: str, weights: Mapping[str, Array], version: int) -> None:
        """Replace the acting weights of a behavior."""
        collector = self._assignments[behavior].collector
        collector.policy.load_acting(weights)
        collector.version = version

    def add_snapshot(self, behavior: str, step: int, weights: Mapping[str, Array]) -> None:
        """Add an opponent with these weights."""
        chosen = self._assignments[behavior]
        assert chosen.self_play is not None
        chosen.self_play.add_snapshot(chosen.collector.policy, step, weights)

    def set_parameters(
        self, values: Sequence[ParameterValue], reset: bool = False, proceed: Callable[[], bool] = lambda: True
    ) -> None:
        """Set environment parameters for the next lessons; running episodes do not count for them.

        :param values: Values or samplers of the parameters.
        :param reset: Reset the scene; collected experience is discarded.
        :param proceed: Function that is called while a player resets. Its result False ends the wait.
        """
        for number, channel in enumerate(self._pool.environment_parameters, self._first_player):
            for value in values:
                send_parameter(channel, value, number)
        if reset:
            if not self._reset(proceed):
                return
            self._matchmaker.store_outcomes()
        for behavior in self._behaviors.values():
            behavior.episodes.start_lesson(behavior.table.alive)
            if reset:
                behavior.collector.reset()
                behavior.episodes.restart()

    def peek(self, behavior: str) -> Trajectories | None:
        """Return the collected decisions of a behavior with an outcome, without removing them."""
        return self._concatenate([collector.peek() for collector in self._collectors(behavior)])

    def _collectors(self, name: str) -> list[Collector]:
        """Return the collectors of a behavior: of its learning team, and of teams that train together with it."""
        first = self._assignments[name].collector
        others = [other.collector for other in self._behaviors.values() if plain_name(other.team) == name]
        return [first, *(collector for collector in others if collector is not first)]

    @staticmethod
    def _concatenate(parts: Sequence[Trajectories | None]) -> Trajectories | None:
        """Join the trajectories of the teams of a behavior, with distinct rows."""
        found: list[Trajectories] = []
        for number, part in enumerate(parts):
            if part is not None:
                part.ends["row"] = part.ends["row"] + (number << _TEAM_BITS)
                found.append(part)
        return type(found[0]).join(found) if found else None

    def _acting(self) -> list[str]:
        """Return the names of behaviors whose team acts with the current policy; opponents play for the others."""
        learning = self._matchmaker.learning
        return [
            name
            for name, behavior in self._behaviors.items()
            if behavior.self_play is None or behavior.team == learning
        ]

    def collect(self, request: Request, proceed: Callable[[], bool] = lambda: True) -> Samples:
        """Let the agents act until a limit of the request is reached, or none of its behaviors has acted for a while.

        Another sampler may have agents of them then.

        :param proceed: Function that is called before each environment step, and during waits for a player. Its result
            False stops the sampler; the decisions of a step that it leaves have no outcome yet.
        """
        samples = Samples()
        self.decisions = samples.stored
        requested = request.collect.keys() | request.limits.keys()
        due: list[str] = []
        silent = 0  # steps without a decision of these behaviors
        with self._pool.waiting_while(proceed):
            if not requested:
                self._collect_rest(request, samples, proceed)
            while requested and silent < _PATIENCE and proceed():
                made = sum(samples.decisions[name] for name in requested)
                ended = self._step(request, samples)
                silent = 0 if sum(samples.decisions[name] for name in requested) > made else silent + 1
                due = [name for name, count in request.collect.items() if self._collected(name) >= count]
                self._take_rest(request, samples)
                is_over = any(samples.decisions[name] >= limit for name, limit in request.limits.items())
                if due or is_over or samples.appeared or (ended and request.until_episode):
                    break
        for name in due:
            collected = self._concatenate([collector.take() for collector in self._collectors(name)])
            if collected is not None:
                samples.trajectories[name] = collected
        for name, behavior in self._behaviors.items():
            if (episodes := behavior.episodes.pop()) is not None:
                plain = plain_name(name)
                before = [samples.episodes[plain]] if plain in samples.episodes else []
                samples.episodes[plain] = concatenate([*before, episodes])
        samples.matches = self._matchmaker.pop_matches()
        return samples

    def _collected(self, name: str) -> int:
        return sum(collector.collected for collector in self._collectors(name)) if name in self._behaviors else 0

    def _collect_rest(self, request: Request, samples: Samples, proceed: Callable[[], bool]) -> None:
        """Step until all stored decisions have an outcome, which takes few steps unless an agent has fallen silent."""
        for _ in range(_PATIENCE):
            if not self._take_rest(request, samples) or not proceed():
                return
            self._step(request, samples)
        self._take_rest(request, samples, waits_for_outcomes=False)

    def _take_rest(self, request: Request, samples: Samples, waits_for_outcomes: bool = True) -> bool:
        """Return the remaining decisions of behaviors that no longer learn, once they have an outcome.

        :param waits_for_outcomes: Wait for the outcomes of all decisions; else those without one are left out.
        :return: Whether outcomes are still missing.
        """
        waits = False
        for name in self._assignments:
            if name in request.collect:
                self._finished.discard(name)
            elif waits_for_outcomes and any(collector.has_open_decisions for collector in self._collectors(name)):
                waits = True
            elif name not in self._finished:
                self._finished.add(name)
                samples.finished.add(name)
                rests = [collector.take(include_open=True) for collector in self._collectors(name)]
                if (rest := self._concatenate(rests)) is not None:
                    samples.trajectories[name] = rest
        return waits

    def _step(self, request: Request, samples: Samples) -> bool:
        """Let the agents act, and store the outcomes.

        :return: Whether an episode that counts for lessons has ended.
        """
        acting = self._acting()
        acted, actions = {}, {}
        now = time.perf_counter()
        for name in acting:
            behavior, plain = self._behaviors[name], plain_name(name)
            table, collector = behavior.table, behavior.collector
            first = self._assignments[plain].collector  # with the policy of all teams
            collector.policy, collector.version = first.policy, first.version
            acted[name] = table.requests_decision.copy()
            actions[behavior.team] = collector.select_actions(table, behavior.deterministic)
        now = samples.add_time("decide", now)
        actions |= self._matchmaker.select_actions(without=[self._behaviors[name].team for name in acting])
        now = samples.add_time("opponents", now, calls=0)
        self._pool.send(actions, sorted(set(range(len(self._pool.players))) - set(self._pool.under_way)))
        now = samples.add_time("players", now, calls=0)
        for name in acting:  # while the players step
            behavior, plain = self._behaviors[name], plain_name(name)
            samples.decisions[plain] += int(np.count_nonzero(acted[name]))
            samples.stored[plain] += behavior.collector.store_decisions(behavior.table, plain in request.collect)
        now = samples.add_time("decide", now, calls=0)
        self._receive()
        now = samples.add_time("players", now)
        samples.appeared |= self.appeared()
        if stats := self._pool.pop_stats_per_player():
            samples.stats.append({self._first_player + player: values for player, values in stats.items()})
        self._matchmaker.store_outcomes()
        now = samples.add_time("opponents", now)
        ended = False
        for name in acting:
            behavior = self._behaviors[name]
            behavior.collector.store_outcomes(behavior.table)
            ended |= behavior.episodes.store_outcomes(behavior.table, acted[name])
        samples.add_time("observe", now)
        return ended

    def _receive(self) -> None:
        """Wait for all players, or for the first response.

        A player that fails is launched again; its running episodes are truncated, and not counted.
        """
        pool = self._pool
        needed = 1 if self._is_asynchronous else len(pool.players)
        answered: list[int] = []
        while len(answered) < needed:
            try:
                answered += pool.receive(minimum=needed - len(answered))
            except PlayerError as error:
                answered.append(self._relaunch(error, self._pool.relaunch))

    def _reset(self, proceed: Callable[[], bool]) -> bool:
        """Reset the scene; a player that fails meanwhile is launched again, which resets it, too.

        :return: Whether the scene was reset, which `proceed` has not ended.
        """
        players = self._pool.players
        with self._pool.waiting_while(proceed):
            self._pool.reset(on_failure=lambda error: self._relaunch(error, lambda worker: players[worker].relaunch()))
        return self._pool.is_at_start

    def _relaunch(self, error: PlayerError, relaunch: Callable[[int], None]) -> int:
        """Launch the failed player again, within the limits.

        :param relaunch: Function that launches the player of this index again.
        :return: Index of the player.
        """
        while True:
            self._pool.check_waiting()
            worker = error.worker
            if worker is None or self._restarts is None or not self._restarts.allows(self._first_player + worker):
                raise error
            reason = str(error).partition("\n")[0]
            self._on_restart(f"Player {self._first_player + worker} is launched again: {reason}")
            for name in self._acting():
                table = self._behaviors[name].table
                self._behaviors[name].episodes.discard(table.alive & (table.player == worker))
            try:
                relaunch(worker)
            except PlayerError as again:
                error = again
                error.worker = worker
            else:
                return worker
