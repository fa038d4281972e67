"""Pool of players with one agent table per behavior, which are stepped together or each on its own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from unity_gym.connection import CHECK_PERIOD
from unity_gym.environment import UnityEnvironment, wire_seed
from unity_gym.errors import (
    ActionError,
    InvalidValueError,
    NotReadyError,
    PlayerError,
    PlayerTimeoutError,
    UnityGymError,
)
from unity_gym.launches import LaunchedPlayers
from unity_gym.options import PlayerOptions
from unity_gym.slots import AgentTable, Rows, indices, with_rows
from unity_gym.specs import ActionTuple, Array, BehaviorSpec, joined

_PATIENCE = 100  # environment steps until the first agent of a behavior, and until an agent's next decision
_GRACE = 0.5  # seconds in which a player that answers at all has answered
_LOWEST, _HIGHEST = np.array(-1, np.float32), np.array(1, np.float32)  # continuous actions
_ANY_MODE = (
    'Where agents decide at times of their own, as in turn-based games, pass wait_for="any": then a step is one '
    "exchange, and each agent acts when it requests a decision."
)


@dataclass(frozen=True)
class _Step:
    """Actions of the step that a player is in.

    :param actions: Actions of all rows, per table.
    :param acting: Rows that requested an action when the step started, per table.
    """

    actions: Mapping[str, ActionTuple] = field(default_factory=dict)
    acting: Mapping[str, Array] = field(default_factory=dict)


class _Guard:
    """Context that marks the state of a pool as inconsistent if an exception leaves it.

    It is entered three times per step, in less time than a `contextlib.contextmanager`.

    :param pool: The pool.
    """

    def __init__(self, pool: PlayerPool) -> None:
        self._pool = pool
        self._outer = False

    def __enter__(self) -> None:
        pool = self._pool
        self._outer, pool._is_interrupted = pool._is_interrupted, True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._pool._is_interrupted = self._outer


class PlayerPool(LaunchedPlayers):
    """Pool of n players whose agents share one `AgentTable` per behavior.

    `step` and `step_once` step all players together, always in the same order. `send` and `receive` step each player on
    its own, so that none waits for another::

        pool.reset()
        pool.send(actions)  # the first step of all players
        while True:
            workers = pool.receive()  # the players that have answered
            pool.send(act_for(workers), workers)

    Continuous actions outside [-1, 1] are clipped. NaN and a branch index outside its branch raise an `ActionError`
    before anything has changed. A masked-out action is sent unchanged; the scene handles it, as in Unity.

    A player that has ended or does not answer raises a `PlayerError`, whose `worker` is its index. `relaunch(worker)`
    replaces it while the others continue. After any other exception during a step, also a KeyboardInterrupt, only
    `reset` is possible: every other call raises an error.

    :param options: Options for launching and configuring each player.
    :param n_instances: Number of players.
    :param behavior: Names of the behaviors to control, one or several, each with or without its "?team=…"; the agents
        of all others take the zero action. By default all behaviors.
    :param areas_to_draw: Number of areas per player that `draw` draws; `rendering` maps the player's index to its
        channel, which has the images.
    :param rows: Number of rows to reserve in each table for agents that appear later.
    :param share_table: Whether the agents of all controlled behaviors share one table, named after the first behavior.
        It includes behaviors that appear later. All must be alike, see `BehaviorSpec.is_like`. By default each behavior
        has a table.
    :raises PlayerError: If a player cannot be started.
    :raises UnityGymError: If several players are Editors, the Editor is to draw on a virtual screen, or custom side
        channels are passed with several players.
    """

    def __init__(
        self,
        options: PlayerOptions,
        n_instances: int = 1,
        behavior: str | Sequence[str] | None = None,
        areas_to_draw: int = 0,
        rows: int = 0,
        share_table: bool = False,
    ) -> None:
        self.tables: dict[str, AgentTable] = {}
        self._selected = None if behavior is None else (behavior,) if isinstance(behavior, str) else tuple(behavior)
        self._rows = rows
        self._shares_table = share_table
        self._table_names: dict[str, str | None] = {}  # by behavior; None: not controlled
        self._misfits: list[str] = []  # behaviors that are incompatible with the shared table
        self._launched = False  # the first reset is over: a warning reports new behaviors
        self.is_at_start = False
        """Whether nothing but `reset` has been called: no step, and no `start_episodes`."""
        self._steps = [_Step()] * n_instances
        self._requesting: dict[tuple[str, int], Rows] = {}  # the rows that request an action, in the player's order
        self._under_way: set[int] = set()  # players with a message sent and no answer read
        self._unreported: list[int] = []  # players that were read in a call that then raised
        self._is_interrupted = False
        self._has_reported_rhythms = False
        super().__init__(options, n_instances, areas_to_draw)

    def reset(self, seed: int | None = None, on_failure: Callable[[PlayerError], object] | None = None) -> None:
        """Send RESET to all players and wait until each has an agent that requests a decision.

        :param seed: Seed with which every scene starts from scratch, player i with seed + i.
        :param on_failure: Function that receives the error of a player that fails in RESET, and calls `relaunch` of
            `players[error.worker]`; by default, the error is raised.
        :raises InvalidValueError: If the seed is negative, or no agent of the given behavior appears within 100
            environment steps.
        """
        if seed is not None:
            wire_seed(seed)
        self.is_at_start = False
        tables = self.tables.values()
        if self._is_interrupted:
            for table in tables:
                table.clear()
        deadline = self._deadline()
        with _Guard(self):
            for table in tables:
                table.start_step()
            self._steps = [_Step()] * len(self.players)
            self._under_way.clear()
            self._unreported.clear()
            self._requesting.clear()
            for worker, player in enumerate(self.players):
                started = time.monotonic()
                if not (seed is None and worker in self._probed and player.is_at_start):
                    try:
                        player.reset(None if seed is None else seed + worker, deadline - started)
                    except PlayerError as error:
                        if on_failure is None:
                            raise
                        on_failure(error)
                    if player.launched_at > started:
                        deadline = self._deadline()
                for table in tables:
                    table.truncate_episodes(worker)
                    if player.launched_at > started:
                        table.remove_agents(worker)
            self._probed.clear()
            if seed is not None:
                for table in tables:
                    table.restart()
            for worker in range(len(self.players)):
                self._read(worker)
            self._await_behavior(deadline)
            self._exchange_until_ready(deadline)
        self._is_interrupted = False
        self._launched = self.is_at_start = True

    def start_episodes(
        self,
        seed: int | None = None,
        environment_parameters: Mapping[str, float] | None = None,
        all_have_ended: bool = False,
    ) -> None:
        """Start episodes for the `reset()` of an environment, with RESET where it is needed.

        It is needed with a seed, with environment parameters or other queued messages, and where episodes are running,
        unless nothing has happened since `reset`.

        :param seed: Seed with which every scene starts from scratch, player i with seed + i.
        :param environment_parameters: Environment parameters by name, sent before.
        :param all_have_ended: Whether no episode is running, so that the next ones can start without RESET.
        :raises InvalidValueError: If the seed is negative, or a value is no finite number.
        """
        if environment_parameters:
            self.set_environment_parameters(environment_parameters)
        if seed is not None or self.has_queued_messages or not (self.is_at_start or all_have_ended):
            self.reset(seed)
        elif not self.is_at_start:
            self.resume()
        self.is_at_start = False

    def resume(self) -> None:
        """Continue after all episodes have ended, until each player has an agent that requests a decision."""
        if self._is_interrupted:
            self.reset()
            return
        with _Guard(self):
            for table in self.tables.values():
                table.reset_outcomes()
            self._steps = [_Step()] * len(self.players)
            self._exchange_until_ready(self._deadline())

    def step(
        self, actions: Mapping[str, ActionTuple], autoreset: bool = True, workers: Sequence[int] | None = None
    ) -> None:
        """Send each row's action and advance until every live row requests a decision again.

        An agent that requests a decision before the others repeats its action, and its rewards are summed; a warning
        reports this once. A row without a request at the start of the step receives the zero action.

        :param actions: Actions of all rows of each table, per behavior.
        :param autoreset: Whether to continue, where all agents of a player have ended, until one starts its next
            episode.
        :param workers: Indices of the players; by default all. The rows of the others stay unchanged.
        :raises ActionError: If an action does not fit; nothing has changed then.
        """
        workers = range(len(self.players)) if workers is None else workers
        deadline = self._deadline()
        self._start_step(actions, workers)
        with _Guard(self):
            if workers:
                self.receive(minimum=len(workers))
            self._exchange_until_ready(deadline, autoreset)

    def step_once(self, actions: Mapping[str, ActionTuple]) -> None:
        """Send the actions of the rows that request one, and receive one state from each player.

        No action is repeated and no agent is waited for, so that each row advances on its own.

        :param actions: Actions of all rows of each table, per behavior; rows without a request send none.
        :raises ActionError: If an action does not fit; nothing has changed then.
        """
        self._start_step(actions, range(len(self.players)))
        with _Guard(self):
            self.receive(minimum=len(self.players))

    def send(self, actions: Mapping[str, ActionTuple], workers: Iterable[int] | None = None) -> None:
        """Start a step of these players: send the actions of their rows that request one.

        The outcomes of their last step are reset; those of the other players' rows stay.

        :param actions: Actions of all rows of each table, per behavior. Only those of these players' rows that request
            one are read.
        :param workers: Indices of the players; by default all.
        :raises ActionError: If an action does not fit; nothing has changed then.
        :raises NotReadyError: If one of the players has not been read since the last `send`.
        """
        self._start_step(actions, list(range(len(self.players)) if workers is None else workers))

    def receive(self, timeout: float | None = None, minimum: int = 1) -> list[int]:
        """Wait until players have answered, and read their answers into the tables.

        :param timeout: Seconds to wait; by default as long as each player may take, `timeout_wait`.
        :param minimum: Number of players to wait for, at most those that have been sent to.
        :return: Players that were read, in ascending order: at least `minimum`, unless the timeout was reached.
        :raises PlayerError: If a player ended or did not answer in time; its index is in the error's `worker`. The
            answers of the others stay for the next call.
        :raises NotReadyError: If no player has been sent to.
        """
        if not (self._under_way or self._unreported):
            self._require_ready(())
            raise NotReadyError("receive() before send(): call send() first")
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        minimum = min(minimum - len(self._unreported), len(self._under_way))
        if timeout is None and len(self._under_way) == minimum == 1:
            arrived = list(self._under_way)  # `step_wait` waits for a single player in fewer calls
        else:
            arrived = self._wait_for(minimum, deadline)
        for worker in arrived:
            self.players[worker].step_wait()
            with _Guard(self):
                self._read(worker)
                self._under_way.discard(worker)
                self._unreported.append(worker)
        answered, self._unreported = sorted(self._unreported), []
        return answered

    def _wait_for(self, minimum: int, deadline: float) -> list[int]:
        """Return the players that have answered, after waiting for so many of them or until the deadline."""
        while True:
            arrived = [worker for worker in sorted(self._under_way) if self._has_reply(worker)]
            remaining = deadline - time.monotonic()
            if len(arrived) >= minimum or remaining <= 0:
                return arrived
            waiting = [self.players[worker] for worker in self._under_way.difference(arrived)]
            UnityEnvironment.wait_any(waiting, min(CHECK_PERIOD, remaining))

    @property
    def under_way(self) -> list[int]:
        """The players that have been sent to and not yet been read."""
        return sorted(self._under_way)

    def relaunch(self, worker: int) -> None:
        """Launch a player again, with the same port and seed, and reset it; also one that has failed.

        Its running episodes are truncated. The environment parameters, the engine configuration and the settings of
        other side channels are sent again. Afterwards it is ready for `send`.

        :param worker: Index of the player.
        :raises PlayerError: If it cannot be launched; the call can be repeated.
        """
        with _Guard(self):
            for table in self.tables.values():
                table.truncate_episodes(worker)
                table.remove_agents(worker)
            for behavior in self._table_names:
                self._requesting.pop((behavior, worker), None)
            self._under_way.discard(worker)
        self.players[worker].relaunch()
        with _Guard(self):
            self._read(worker)

    def draw(self) -> None:
        """Update the images in the channels of `rendering` to the present states, without a step.

        Players that have sent none with their first state, such as builds, are left out.

        :raises PlayerError: If a player fails.
        :raises NotReadyError: If a player has not been read since the last `send`, or a step was interrupted.
        """
        drawing = {worker: channel for worker, channel in self.rendering.items() if channel.frames}
        self._require_ready(drawing)
        for worker, channel in drawing.items():
            self.players[worker].request_images(channel)
        for worker in drawing:
            self.players[worker].step_wait()

    def _require_ready(self, workers: Iterable[int]) -> None:
        if self._is_interrupted:
            for player in self.players:
                player.require_open()
            raise NotReadyError("the last step was interrupted: call reset()")
        if busy := sorted(self._under_way.intersection(workers)):
            raise NotReadyError(f"the players {busy} have not answered their last step: call receive(), or reset()")

    def _has_reply(self, worker: int) -> bool:
        return self.players[worker].has_reply()

    def _start_step(self, actions: Mapping[str, ActionTuple], workers: Sequence[int]) -> None:
        """Send the actions to these players."""
        self._require_ready(workers)
        self.is_at_start = False
        step = _Step(actions, {name: self._table(name).requests_decision.copy() for name in actions})
        for name, action in actions.items():
            if len(action) != len(self.tables[name]):
                raise ActionError(
                    f"behavior {name!r} has {len(self.tables[name])} rows, got actions for {len(action)}: pass one "
                    "action per row of its table"
                )
        try:
            for worker in workers:
                self._set_actions(worker, step)
        except UnityGymError:
            for worker in workers:
                self.players[worker].clear_actions()
            raise
        with _Guard(self):
            all_players = len(workers) == len(self.players)
            for table in self.tables.values():
                for player in [None] if all_players else workers:
                    table.start_step(player)
            for worker in workers:
                self._steps[worker] = step
                self._under_way.add(worker)
                self.players[worker].step_async()

    def _table(self, behavior: str) -> AgentTable:
        if behavior not in self.tables:
            raise InvalidValueError(f"there is no behavior {behavior!r}; the players have {sorted(self.tables)}")
        return self.tables[behavior]

    def _deadline(self) -> float:
        """Return the time at which a call that starts now times out."""
        return time.monotonic() + self.options.timeout_wait

    def _exchange_until_ready(self, deadline: float, autoreset: bool = True) -> None:
        """Step the players that have an agent to wait for, until there is none.

        :param deadline: Time until which to wait.
        :param autoreset: Whether to wait for the next episode, see `step`.
        :raises PlayerTimeoutError: If that takes longer.
        """
        if not (waiting := self._waiting(autoreset)):
            return
        exchanges, requests = 1, {name: table.requests_decision.astype(int) for name, table in self.tables.items()}
        while waiting:
            self._exchange(waiting, deadline - time.monotonic())
            exchanges += 1
            if not self._has_reported_rhythms:
                self._count_requests(requests, waiting)
                if exchanges == _PATIENCE:
                    self._report_rhythms(requests, exchanges)
            if time.monotonic() >= deadline:
                raise PlayerTimeoutError(
                    f"after {self.options.timeout_wait:g} s and {exchanges} exchanges {self._silent_agents(waiting)} "
                    f"request no decision, although the player answers. {_ANY_MODE} Otherwise check that each agent "
                    f"has a Decision Requester, or raise timeout_wait\nplayer {waiting[0]}: {self.options.file_name}"
                )
            waiting = self._waiting(autoreset)
        if not self._has_reported_rhythms and (self._has_repeated_action(requests) or self._has_answered_request()):
            self._report_rhythms(requests, exchanges)

    def _waiting(self, autoreset: bool) -> list[int]:
        """Return the players that have an agent to wait for."""
        return [worker for worker in range(len(self.players)) if not self._ready(worker, autoreset)]

    def _count_requests(self, requests: dict[str, Array], workers: Sequence[int]) -> None:
        """Count the decisions that the agents of these players request now."""
        for name, table in self.tables.items():
            counts = requests.get(name, np.zeros(0, int))
            requests[name] = np.pad(counts, (0, len(table) - len(counts)))
        for (behavior, worker), rows in self._requesting.items():
            name = self._table_names[behavior] or ""
            if worker in workers and name in requests:
                requests[name][rows] += 1

    def _has_repeated_action(self, requests: Mapping[str, Array]) -> bool:
        """Return whether an agent that acted when the step started has requested two decisions in it."""
        for step in self._steps:
            for name, acting in step.acting.items():
                if (requests[name][: len(acting)][acting] > 1).any():
                    return True
        return False

    def _has_answered_request(self) -> bool:
        """Return whether a request that the next action is for was answered with a repeated action already."""
        pending = dict.fromkeys(self.tables, 0)
        for (behavior, _), rows in self._requesting.items():
            if (name := self._table_names[behavior]) is not None:
                pending[name] += len(indices(rows))
        return any(np.count_nonzero(table.requests_decision) > pending[name] for name, table in self.tables.items())

    def _report_rhythms(self, requests: Mapping[str, Array], exchanges: int) -> None:
        """Warn once that the agents request decisions at different times."""
        self._has_reported_rhythms = True
        groups = []
        for name, counts in requests.items():
            alive = self.tables[name].alive
            for count in np.unique(counts[alive])[::-1].tolist():
                ids = self.tables[name].agent_id[alive & (counts == count)].tolist()
                groups.append(f"{_listed(ids)} of behavior {name!r} {count}")
        warnings.warn(
            f"In one step of {exchanges} exchanges, the agents requested decisions at different times: "
            f"{', '.join(groups)}. An agent that requests one before the others repeats its action, its rewards are "
            f"summed, and its next action follows the observation before. {_ANY_MODE}",
            stacklevel=4,
        )

    def _silent_agents(self, workers: Sequence[int]) -> str:
        """Return the names of the living agents of these players that request no decision."""
        silent = []
        for name, table in self.tables.items():
            rows = np.isin(table.player, workers) & table.alive & ~table.requests_decision
            if rows.any():
                silent.append(f"{_listed(table.agent_id[rows].tolist())} of behavior {name!r}")
        return " and ".join(silent) or f"the agents of {sorted(self.tables)}, which have all ended,"

    def _exchange(self, workers: Sequence[int], timeout: float | None = None) -> None:
        """Step each of these players once: send to all, then receive from all."""
        for worker in workers:
            self._set_actions(worker, self._steps[worker])
            self._under_way.add(worker)
            self.players[worker].step_async()
        self.receive(timeout, len(workers))
        if self._under_way.intersection(workers):  # the time may have ended in the middle of an exchange
            self.receive(_GRACE, len(workers))
        if silent := self._under_way.intersection(workers):
            self.players[min(silent)].time_out()

    def _set_actions(self, worker: int, step: _Step) -> None:
        for behavior, name in self._table_names.items():
            rows = self._requesting.get((behavior, worker))
            if rows is None or name is None or name not in step.actions:
                continue
            action, table = step.actions[name], self.tables[name]
            covered = with_rows(step.acting[name], len(table))[rows]
            if not len(covered):
                continue
            spec = table.spec.action_spec
            if np.count_nonzero(covered) == len(covered):
                selected = ActionTuple(action.continuous[rows], action.discrete[rows])
            else:
                selected = spec.empty_action(len(covered))
                acting = indices(rows)[covered]
                selected.continuous[covered] = action.continuous[acting]
                selected.discrete[covered] = action.discrete[acting]
            if spec.continuous_size:  # clipped in less time than by np.clip
                selected.add_continuous(np.minimum(np.maximum(selected.continuous, _LOWEST), _HIGHEST))
            self.players[worker].set_actions(behavior, selected)

    def _read(self, worker: int) -> None:
        player = self.players[worker]
        behaviors: dict[str, list[str]] = {}  # by table
        for behavior, spec in player.behavior_specs.items():
            name = self._table_name(behavior, spec)
            if name is not None:
                if worker in self._without_graphics:
                    self._require_images(worker, behavior)
                behaviors.setdefault(name, []).append(behavior)
        for name, sources in behaviors.items():
            steps = [player.get_steps(behavior) for behavior in sources]
            rows = self.tables[name].update(*joined(steps), worker)
            if len(sources) == 1:
                self._requesting[sources[0], worker] = rows
                continue
            ends = np.cumsum([len(decisions) for decisions, _ in steps])
            for behavior, part in zip(sources, np.split(indices(rows), ends[:-1]), strict=True):
                self._requesting[behavior, worker] = part

    def _table_name(self, behavior: str, spec: BehaviorSpec) -> str | None:
        """Return the name of the table with the agents of a behavior, None if it is not controlled.

        A missing table is created.
        """
        if behavior in self._table_names:
            return self._table_names[behavior]
        name: str | None = behavior
        if not self._is_selected(behavior):
            name = None
        elif self._shares_table and self.tables:
            ((name, table),) = self.tables.items()
            if not table.spec.is_like(spec):
                self._misfits.append(behavior)
                name = None
        if name is None and self._launched:
            warnings.warn(
                f"behavior {behavior!r} has appeared and is not controlled: its agents take the zero action. "
                f"Controlled are {self.controlled_behaviors}. "
                + (
                    "It observes or does something else: use unity_gym.parallel_env to control both"
                    if behavior in self._misfits
                    else f"Pass behavior={(*(self._selected or ()), behavior)!r} to control it, too"
                ),
                stacklevel=2,
            )
        if name is not None and name not in self.tables:
            self.tables[name] = AgentTable(spec, self.options.visual_dtype, self._rows)
        self._table_names[behavior] = name
        return name

    def _is_selected(self, behavior: str) -> bool:
        return self._selected is None or bool({behavior, behavior.partition("?")[0]} & set(self._selected))

    @property
    def announced_behaviors(self) -> list[str]:
        """The selected behaviors that players have announced, also those without an agent yet."""
        announced = {behavior for player in self.players for behavior in player.announced_behaviors}
        return sorted(filter(self._is_selected, announced))

    @property
    def controlled_behaviors(self) -> list[str]:
        """The behaviors that have had an agent and whose agents have a table."""
        return sorted(behavior for behavior, name in self._table_names.items() if name is not None)

    @property
    def other_behaviors(self) -> list[str]:
        """The behaviors that are not controlled because they are incompatible with the shared table."""
        return sorted(self._misfits)

    def behavior_of(self, row: int) -> str | None:
        """Return the behavior in which a row of the shared table requests a decision; None: in none."""
        for (behavior, _), rows in self._requesting.items():
            if row in indices(rows):
                return behavior
        return None

    def _await_behavior(self, deadline: float) -> None:
        """Continue until the given behavior has an agent, which may request its first decision later or spawn later."""
        exchanges = 0
        while not self.tables and exchanges < _PATIENCE and time.monotonic() < deadline:
            self._exchange(range(len(self.players)), deadline - time.monotonic())
            exchanges += 1
        if not self.tables:
            available = sorted({name for player in self.players for name in player.behavior_specs})
            raise InvalidValueError(
                f"no behavior {', '.join(map(repr, self._selected or ()))} in {self.options.file_name} within "
                f"{exchanges} exchanges; it has {available}"
            )

    def only_table(self) -> tuple[str, AgentTable]:
        """Return the name and content of the shared table, after a reset.

        :raises UnityGymError: If the controlled behaviors differ in their observations or actions.
        """
        if self._misfits:
            raise UnityGymError(
                f"the agents of the behaviors {sorted([*self.controlled_behaviors, *self._misfits])} differ in "
                "observations or actions, and rows of one environment cannot: name one, or several that are alike, in "
                "behavior=..., or use unity_gym.parallel_env for all"
            )
        return next(iter(self.tables.items()))

    def require_rows(self, behavior: str, rows: int) -> None:
        """Check that a behavior still has this number of rows.

        :raises UnityGymError: If more agents are alive at once.
        """
        needed = len(self.tables[behavior])
        if needed != rows:
            raise UnityGymError(
                f"behavior {behavior!r} has {needed} agents at once and this environment {rows} rows: pass "
                f"num_envs={needed} to reserve a row for each, or use unity_gym.parallel_env"
            )

    def _ready(self, worker: int, autoreset: bool = True) -> bool:
        """Return whether no row of the player still acts, and one requests an action (without autoreset: or ended)."""
        requested = ended = False
        for table in self.tables.values():
            rows = slice(None) if len(self.players) == 1 else table.player == worker
            requests = table.requests_decision[rows]
            if np.count_nonzero(table.alive[rows] & ~requests):
                return False
            requested |= bool(np.count_nonzero(requests))
            ended |= not autoreset and bool(np.count_nonzero(table.terminated[rows] | table.truncated[rows]))
        return requested or ended


def _listed(agent_ids: list[int]) -> str:
    return f"agents {agent_ids[:10]}" + (f" and {len(agent_ids) - 10} more" if len(agent_ids) > 10 else "")
