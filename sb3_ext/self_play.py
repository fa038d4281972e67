"""Opponents from the agents' own past, and their ratings.

One team learns at a time, and only its experience trains. Opponents act for the other teams: snapshots of the learning
policies, their newest weights, or model files. Opponents change only between matches.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from sb3_ext.onnx_policy import OnnxPolicy
from sb3_ext.policies import AgentPolicy
from unity_gym.errors import UnityGymError
from unity_gym.slots import AgentTable, with_rows
from unity_gym.specs import ActionTuple, Array, BehaviorSpec

_ELO_SCALE = 400.0  # difference of ratings with which wins are ten times as frequent as losses


class ActingPolicy(Protocol):
    """Policy that acts for agents."""

    memory_size: int

    def select_actions(
        self, observations: Sequence[Array], masks: Array, memory: Array, deterministic: bool = False
    ) -> tuple[ActionTuple, Array]:
        """Select actions; see `sb3_ext.policies.AgentPolicy.select_actions`."""


class LearningModel(Protocol):
    """Model whose earlier weights are its opponents: an algorithm of this package."""

    num_timesteps: int
    self_play: SelfPlay | None

    @property
    def policy(self) -> AgentPolicy:
        """Policy that learns."""

    @property
    def acting_policy(self) -> AgentPolicy:
        """Policy that acts now."""


@dataclass(eq=False)
class Opponent:
    """Opponent for a team: `get_policy()` returns its policy, `elo` is its rating, `step` that of a snapshot."""

    get_policy: Callable[[], ActingPolicy] = field(repr=False)
    elo: float
    step: int | None = None
    file: int | None = None
    """Number of the model file; None for snapshots and the newest weights."""


class Match(NamedTuple):
    """Result of a match: `behavior` scored `score` (1, ½ or 0) against `opponents`.

    Each is a behavior with `step` and `file` of its `Opponent`.
    """

    behavior: str
    score: float
    opponents: list[tuple[str, int | None, int | None]]


class SelfPlayState(NamedTuple):
    """State of self-play in a saved model.

    Ratings (of model files by path), snapshots as step, rating and weights, and the state of the random generator.
    """

    elo: float
    files: dict[str, float]
    snapshots: list[tuple[int, float, dict[str, Array]]]
    random_state: Mapping[str, Any]


class SelfPlay:
    """Opponents for the teams of one behavior that do not learn, and their ratings.

    Opponents are the last `window` snapshots of the behavior's policy, the model files of `opponents`, and the newest
    weights. The first snapshot is taken at the start, the others whenever a multiple of `save_steps` has passed.

    Each match that terminated changes the ratings of both sides (Elo 1978). The learning team's changes by K (s − e),
    where e = 1 / (1 + 10^((r_opponent − r) / 400)). The opponent's changes by the opposite. The score s is 1, ½ or 0 if
    the last reward is above, at or below 0: the sum of individual and group rewards of the agents that ended with the
    match. Several opposing teams share the change equally. Matches against the newest weights and truncated matches
    change no rating. The rating of a snapshot starts at that of the behavior.

    A `SelfPlay` belongs to the model of `setup` and is saved with it; a loaded model continues from the saved state.

    :param save_steps: Timesteps of the model between snapshots.
    :param team_change: Timesteps of the model until another team learns (default: 5 `save_steps`).
    :param swap_steps: Decisions of the behavior's teams that do not learn, until new opponents are sampled.
    :param window: Number of stored snapshots; 0 for none, so that only `opponents` and the newest weights play.
    :param play_against_latest_model_ratio: Probability that a sampled opponent is the newest weights.
    :param initial_elo: Initial rating of the model and of `opponents`.
    :param opponents: Paths of `.onnx` files of this behavior, each as probable as a snapshot.
    :param k_factor: Factor K (default: 1, as in Unity's trainer).
    :param seed: Seed of the opponent sampling.
    :raises UnityGymError: If a parameter is out of range, or there are no opponents.
    """

    def __init__(
        self,
        save_steps: int = 20_000,
        team_change: int | None = None,
        swap_steps: int = 2_000,
        window: int = 10,
        play_against_latest_model_ratio: float = 0.5,
        initial_elo: float = 1200.0,
        *,
        opponents: Sequence[str | os.PathLike[str]] = (),
        k_factor: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self.save_steps, self.swap_steps, self.window = save_steps, swap_steps, window
        self.team_change = 5 * save_steps if team_change is None else team_change
        self.play_against_latest_model_ratio, self.k_factor = play_against_latest_model_ratio, k_factor
        for name, least in {"save_steps": 1, "team_change": 1, "swap_steps": 1, "window": 0}.items():
            if getattr(self, name) < least:
                raise UnityGymError(f"{name} of SelfPlay must be at least {least}, got {getattr(self, name)}")
        if not window and not opponents and play_against_latest_model_ratio < 1:
            raise UnityGymError("window=0 keeps no snapshots: give the model files that play in opponents")
        if not 0 <= play_against_latest_model_ratio <= 1:
            raise UnityGymError(
                f"play_against_latest_model_ratio must be a share from 0 to 1, got {play_against_latest_model_ratio}"
            )
        self._initial_elo, self._paths = initial_elo, [os.fspath(path) for path in opponents]
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._kept = SelfPlayState(initial_elo, {}, [], self._rng.bit_generator.state)
        self._model: LearningModel | None = None
        self._decisions = 0  # since opponents were sampled

    def setup(self, model: LearningModel) -> None:
        """Start with the policy of a model; a model that was saved with self-play continues with its opponents.

        :raises UnityGymError: If a model file cannot be read, or is incompatible with the behavior spec.
        """
        if self._model is not model:
            state = (self if model.self_play is None else model.self_play)._keep()
            self._rng.bit_generator.state = state.random_state
            self._attach(lambda: model.acting_policy, model.policy.adapter.spec, state)
            for step, elo, weights in state.snapshots:
                self.add_snapshot(model.policy, step, weights, elo)
            self._model = model
        model.self_play = self
        self._decisions = 0
        self._next_save = _next_multiple(model.num_timesteps, self.save_steps)
        self._next_change = _next_multiple(model.num_timesteps, self.team_change)
        if not self.snapshots:
            self._take_snapshot(model)

    def _attach(self, newest: Callable[[], AgentPolicy], spec: BehaviorSpec, state: SelfPlayState) -> None:
        self.newest = Opponent(newest, state.elo)
        self._read_files(spec, state.files)
        self.snapshots: deque[Opponent] = deque(maxlen=self.window)

    def replica(self, policy: AgentPolicy, number: int) -> SelfPlay:
        """Return the same opponents for a sampler in another process, with `policy` as the newest weights.

        :param policy: Policy that acts in that process for the learning team.
        :param number: Number of the sampler; each samples other opponents.
        """
        twin = copy.copy(self)
        twin._rng = np.random.default_rng()
        twin._rng.bit_generator.state = self._kept.random_state
        if number:  # its state alone does not determine what `spawn` returns
            twin._rng = np.random.default_rng([number, *twin._rng.integers(2**32, size=4)])
        twin._attach(lambda: policy, policy.adapter.spec, self._kept)
        for step, elo, weights in self._kept.snapshots:
            twin.add_snapshot(policy, step, weights, elo)
        return twin

    def add_snapshot(
        self, policy: AgentPolicy, step: int, weights: Mapping[str, Array], elo: float | None = None
    ) -> None:
        """Add weights of this policy's actor as an opponent.

        :param policy: Policy with the networks of the weights.
        :param step: Timestep of the snapshot.
        :param weights: Weights and statistics by name.
        :param elo: Rating of the snapshot; by default that of the newest weights.
        """
        actor = policy.actor()
        actor.load_acting(weights)
        self.snapshots.append(_opponent(actor, self.elo if elo is None else elo, step))

    @property
    def steps_to_event(self) -> int:
        """Timesteps until a snapshot is due or another team learns."""
        assert self._model is not None, "after setup"
        return min(self._next_save, self._next_change) - self._model.num_timesteps

    def opponent(self, step: int | None, file: int | None) -> Opponent | None:
        """Return the snapshot of a step, a model file, or else the newest weights; None for a removed snapshot."""
        if file is not None:
            return self.files[file]
        if step is None:
            return self.newest
        return next((snapshot for snapshot in self.snapshots if snapshot.step == step), None)

    def rate(self, score: float, opponents: Sequence[Opponent]) -> None:
        """Update the ratings after one match of the newest weights."""
        opponents = [opponent for opponent in opponents if opponent is not self.newest]
        expected = [1 / (1 + 10 ** ((opponent.elo - self.elo) / _ELO_SCALE)) for opponent in opponents]
        for opponent, chance in zip(opponents, expected, strict=True):
            gain = self.k_factor * (score - chance) / len(opponents)
            self.newest.elo += gain
            opponent.elo -= gain

    def _read_files(self, spec: BehaviorSpec, ratings: Mapping[str, float]) -> None:
        self.files = [
            _opponent(OnnxPolicy(path, spec=spec), ratings.get(path, self._initial_elo), file=number)
            for number, path in enumerate(self._paths)
        ]

    @property
    def elo(self) -> float:
        """Rating of the newest weights."""
        newest: Opponent | None = getattr(self, "newest", None)
        return self._kept.elo if newest is None else newest.elo

    @property
    def ratings(self) -> list[float]:
        """Ratings of the newest weights, the snapshots and the model files."""
        if self._model is None:
            return [self._kept.elo, *(elo for _, elo, _ in self._kept.snapshots), *self._kept.files.values()]
        return [opponent.elo for opponent in (self.newest, *self.snapshots, *self.files)]

    def save_if_due(self) -> bool:
        """Take a snapshot if a multiple of `save_steps` has passed since the last one.

        :return: Whether `newest_snapshot` is new.
        """
        assert self._model is not None, "after setup"
        steps = self._model.num_timesteps
        is_due = steps >= self._next_save
        if is_due:
            self._next_save = _next_multiple(steps, self.save_steps)
            self._take_snapshot(self._model)
        return is_due and self.window > 0

    def newest_snapshot(self) -> tuple[int, dict[str, Array]]:
        """Return step and weights of the last snapshot."""
        actor, step = self.snapshots[-1].get_policy(), self.snapshots[-1].step
        assert isinstance(actor, AgentPolicy)
        assert step is not None
        return step, actor.weights()

    def poll_team_change(self) -> bool:
        """Return whether a multiple of `team_change` has passed since the previous call."""
        assert self._model is not None, "after setup"
        steps = self._model.num_timesteps
        is_due = steps >= self._next_change
        self._next_change = _next_multiple(steps, self.team_change)
        return is_due

    def poll_swap(self, decisions: int) -> bool:
        """Add decisions, and return whether `swap_steps` have passed since opponents were sampled."""
        self._decisions += decisions
        is_due = self._decisions >= self.swap_steps
        self._decisions %= self.swap_steps
        return is_due

    def sample_opponent(self) -> Opponent:
        """Sample an opponent."""
        if self._rng.random() < self.play_against_latest_model_ratio:
            return self.newest
        others = [*self.snapshots, *self.files]
        return others[self._rng.integers(len(others))]

    def _take_snapshot(self, model: LearningModel) -> None:
        step = model.num_timesteps
        if self.snapshots:  # a model may count its timesteps from 0 again, but a step is the name of one snapshot
            step = max(step, (self.snapshots[-1].step or 0) + 1)
        self.snapshots.append(_opponent(model.acting_policy.actor(), self.elo, step))

    def _keep(self) -> SelfPlayState:
        if self._model is None:
            return self._kept
        snapshots = []
        for snapshot in self.snapshots:
            actor, step = snapshot.get_policy(), snapshot.step
            assert isinstance(actor, AgentPolicy)
            assert step is not None
            snapshots.append((step, snapshot.elo, actor.weights()))
        files = {path: file.elo for path, file in zip(self._paths, self.files, strict=True)}
        return SelfPlayState(self.elo, files, snapshots, self._rng.bit_generator.state)

    def state_dict(self) -> dict[str, Any]:
        """Return ratings, snapshots and the state of the random generator as plain data."""
        return self._keep()._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the return value of `state_dict`, from which the model continues."""
        self._kept = SelfPlayState(**state)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that `save` of the model stores: weights instead of policies."""
        players = ("newest", "snapshots", "files")
        rest = {name: value for name, value in self.__dict__.items() if name not in players}
        return rest | {"_model": None, "_kept": self._keep()}


class FixedOpponents(SelfPlay):
    """Model files that act for a behavior that does not learn.

    :param opponents: Paths of the `.onnx` files.
    :param spec: Specification of the behavior.
    :param swap_steps: Decisions until new opponents are sampled.
    :param seed: Seed of the opponent sampling.
    """

    def __init__(
        self, opponents: Sequence[str | os.PathLike[str]], spec: BehaviorSpec, swap_steps: int, seed: int | None = None
    ) -> None:
        super().__init__(
            swap_steps=swap_steps, window=0, play_against_latest_model_ratio=0, opponents=opponents, seed=seed
        )
        self.snapshots = deque()
        self._read_files(spec, {})


def _opponent(policy: ActingPolicy, elo: float, step: int | None = None, file: int | None = None) -> Opponent:
    return Opponent(lambda: policy, elo, step, file)


def _next_multiple(steps: int, of: int) -> int:
    return (steps // of + 1) * of


@dataclass(eq=False)
class _Team:
    """Team with one entry per row of its table.

    The entries are the number of the match's matchup, the opponent's recurrent state, and the latest `alive` and
    `group` of the table.
    """

    table: AgentTable
    play: SelfPlay
    deterministic: bool
    matchup: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    memory: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    alive: Array = field(default_factory=lambda: np.zeros(0, bool))
    group: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def require_room(self, memory_size: int = 0) -> None:
        """Allocate an entry for each row of the table, with recurrent states of at least this size."""
        rows = len(self.table)
        self.matchup, self.alive = with_rows(self.matchup, rows), with_rows(self.alive, rows)
        self.memory = with_rows(self.memory, rows)
        self.memory = np.pad(self.memory, ((0, 0), (0, max(memory_size - self.memory.shape[1], 0))))


class Matchmaker:
    """Teams of a scene: the learning team and the opponents of the others.

    A match starts with an agent's episode and fixes the matchup (one policy per team). An agent that joins its group's
    running episode inherits its matchup. So agents that start together meet the same opponents, and results rate the
    policies that played.
    """

    def __init__(self) -> None:
        self.learning = ""
        """Name of the learning team, empty at first."""
        self._teams: dict[str, _Team] = {}
        self._matchups: dict[int, dict[str, Opponent]] = {0: {}}
        self._current = 0
        self._due: set[str] = set()  # teams for which new opponents are due
        self._matches: list[Match] = []
        self.generator: torch.Generator | None = None
        """Generator of the opponents' actions; None for torch's global one."""

    def enter(self, team: str, table: AgentTable, play: SelfPlay, deterministic: bool = False) -> None:
        """Add a team.

        :param team: Name of the behavior, with the number of the team.
        :param table: Table of the team's agents.
        :param play: Opponents that may act for the team, after their `setup`.
        :param deterministic: Whether the opponents take the most likely actions.
        """
        self._teams[team] = _Team(table, play, deterministic)
        self._draw([team])

    def learn(self, team: str) -> None:
        """Let this team learn, and sample new opponents for all others from their next matches."""
        self.learning = team
        self._draw([name for name in self._teams if name != team])

    def following(self, teams: Collection[str]) -> str | None:
        """Return the next learning team among `teams`, in the order of their numbers; None if there is no other."""
        order = sorted(self._teams, key=number_and_name)
        now = order.index(self.learning)
        return next((name for name in order[now + 1 :] + order[:now] if name in teams), None)

    def players(self, team: str) -> list[Opponent | None]:
        """Return the opponent in each row of a team; None where no match has started."""
        entry = self._teams[team]
        return [
            self._matchups[number].get(team) if alive else None
            for number, alive in zip(entry.matchup.tolist(), entry.alive.tolist(), strict=True)
        ]

    def select_actions(self, without: Collection[str]) -> dict[str, ActionTuple]:
        """Return the actions of all rows by team, without these teams; each opponent acts in one batch."""
        return {name: self._select_actions(name, team) for name, team in self._teams.items() if name not in without}

    def _select_actions(self, name: str, team: _Team) -> ActionTuple:
        table = team.table
        rows = np.flatnonzero(table.requests_decision)
        actions = table.spec.action_spec.empty_action(len(table))
        numbers, matchup = np.unique(team.matchup[rows], return_inverse=True)
        opponents = [self._matchups[number][name] for number in numbers.tolist()]
        for opponent in dict.fromkeys(opponents):
            acting = rows[np.array([other is opponent for other in opponents])[matchup]]
            policy = opponent.get_policy()
            size = policy.memory_size
            team.require_room(size)
            # A model file samples by itself.
            options = {"generator": self.generator} if isinstance(policy, AgentPolicy) else {}
            chosen, team.memory[acting, :size] = policy.select_actions(
                [array[acting] for array in table.observations],
                table.action_mask[acting],
                team.memory[acting, :size],
                team.deterministic,
                **options,
            )
            actions.continuous[acting], actions.discrete[acting] = chosen.continuous, chosen.discrete
        if name != self.learning and team.play.poll_swap(len(rows)):
            self._due.update(other for other, entry in self._teams.items() if entry.play is team.play)
        return actions

    def store_outcomes(self) -> None:
        """Update which matches ended and which start, after each environment step and each reset."""
        if self.learning:
            self._rate(self._teams[self.learning])
        if self._due:
            self._draw(sorted(self._due - {self.learning}))
        self.start_matches()

    def start_matches(self) -> None:
        """Start the matches of all rows whose episode starts."""
        for team in self._teams.values():
            self._start_matches(team)

    def _rate(self, team: _Team) -> None:
        table, n_rows = team.table, len(team.group)
        ends = (table.terminated | table.truncated)[:n_rows]
        rows = np.flatnonzero(ends & (table.group_ended[:n_rows] | (team.group < 0)))
        _, first, match = np.unique(team.group[rows], return_index=True, return_inverse=True)
        rewards = np.bincount(match, table.reward[rows] + table.group_reward[rows])
        is_whole = np.bincount(match, table.truncated[rows]) == 0
        matchups = team.matchup[rows[first]]
        for reward, number in zip(rewards[is_whole].tolist(), matchups[is_whole].tolist(), strict=True):
            score = 0.5 if reward == 0 else float(reward > 0)
            opponents = {name: opponent for name, opponent in self._matchups[number].items() if name != self.learning}
            team.play.rate(score, list(opponents.values()))
            others = [(name.partition("?")[0], opponent.step, opponent.file) for name, opponent in opponents.items()]
            self._matches.append(Match(self.learning.partition("?")[0], score, others))

    def pop_matches(self) -> list[Match]:
        """Return the results since the last call, which the ratings here already include."""
        matches, self._matches = self._matches, []
        return matches

    def _draw(self, teams: Sequence[str]) -> None:
        """Make a matchup with new opponents for these teams, and discard matchups that no match uses."""
        used = {self._current}.union(*(team.matchup[team.alive].tolist() for team in self._teams.values()))
        matchup = self._matchups[self._current] | {name: self._teams[name].play.sample_opponent() for name in teams}
        self._current += 1
        self._matchups = {number: self._matchups[number] for number in used} | {self._current: matchup}
        self._due = set()

    def _start_matches(self, team: _Team) -> None:
        table = team.table
        team.require_room()
        starts = table.requests_decision & ~(team.alive & ~(table.terminated | table.truncated))
        team.matchup[starts] = self._current
        team.memory[starts] = 0
        group, in_group = table.group, table.group_id > 0
        playing, starting = np.flatnonzero(table.alive & ~starts & in_group), np.flatnonzero(starts & in_group)
        if len(playing) and len(starting):
            groups, first = np.unique(group[playing], return_index=True)
            place = np.minimum(np.searchsorted(groups, group[starting]), len(groups) - 1)
            joins = groups[place] == group[starting]
            team.matchup[starting[joins]] = team.matchup[playing[first[place[joins]]]]
        team.alive, team.group = table.alive.copy(), group


def number_and_name(team: str) -> tuple[int, str]:
    """Return team number and behavior name of a string like "Name?team=1"."""
    name, _, number = team.partition("?team=")
    return int(number) if number.isdecimal() else 0, name
