"""The agents of one kind, all areas together, as columns with one row an agent.

A scene makes one `Agents` for each kind that differs in sensors, actions or code, with three callbacks that stand for
an agent script's methods. A callback gets `rows`, an array of agent indices (int, k), and works on all of them at once:

- `act(rows)`: `OnActionReceived`, with the actions in `continuous[rows]` and `discrete[rows]`
- `start_episode(rows)`: `OnEpisodeBegin`
- `read_mask(rows)`: `WriteDiscreteActionMask`, bool (k, choices over all branches), True = forbidden

What a scene does with its agents, in the words of Unity's scripts:

| Unity | here |
|---|---|
| `AddReward(x)`, `SetReward(x)` | `agents.reward[rows] += x`, `agents.reward[rows] = x` |
| `EndEpisode()`, `EpisodeInterrupted()` | `agents.end_episode(rows)`, `agents.end_episode(rows, interrupted=True)` |
| `RequestDecision()` | `agents.request_decision(rows)` |
| `gameObject.SetActive(false)`, `(true)` | `agents.disable(rows)`, `agents.enable(rows)`: new ids, no group |
| `group.RegisterAgent(agent)` | `agents.group_id[rows] = group`, with `group = academy.new_group()` |
| `group.AddGroupReward(x)` | `agents.group_reward[agents.group_id == group] += x` |
| `group.EndGroupEpisode()` | `agents.end_episode(np.flatnonzero(agents.group_id == group))` |
| another behavior for an agent | `agents.behavior[rows] = index` into the names that the kind was made with |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.messages import AgentInfoEncoder
from unity_gym.scenes.sensors import Sensor, wire_order
from unity_gym.specs import ActionSpec, Array


class Agents:
    """All agents of one kind.

    Columns, one entry an agent: `id` (int64), `group_id` (int64, 0 = none), `enabled` (bool), `behavior` (int64, index
    into `behaviors`), `step_count` (int64, ticks of the episode), `reward` and `group_reward` (float64, since the last
    message), `continuous` (float32, n × size), `discrete` (int64, n × branches), `mask` (bool, as last sent).

    :param academy: whose ticks they live in
    :param count: how many there are
    :param behaviors: name, or names, of the behaviors that the agents may have
    :param sensors: in any order; they are sent sorted by name
    :param actions: what the agents do
    :param team: part of the behavior's name on the wire
    :param decision_period: ticks between the decisions that are requested for the agents; 0: they request their own
    :param repeat_actions: with a decision period, act in each tick and not only after a decision
    :param max_step: ticks after which an episode is interrupted; 0: never
    """

    def __init__(
        self,
        academy: Academy,
        count: int,
        behaviors: str | Sequence[str],
        sensors: Sequence[Sensor],
        actions: ActionSpec,
        *,
        act: Callable[[Array], None],
        start_episode: Callable[[Array], None],
        read_mask: Callable[[Array], Array] | None = None,
        team: int = 0,
        decision_period: int = 0,
        repeat_actions: bool = True,
        max_step: int = 0,
    ) -> None:
        names = (behaviors,) if isinstance(behaviors, str) else behaviors
        self.behaviors = tuple(f"{name}?team={team}" for name in names)
        self.actions = actions
        self.max_step = max_step
        self.decision_period = decision_period
        self.repeat_actions = repeat_actions
        self._academy = academy
        self._act, self._start_episode, self._read_mask = act, start_episode, read_mask
        self._sensors = wire_order(sensors)

        choices = sum(actions.discrete_branches) if read_mask else 0
        self._encoder = AgentInfoEncoder(self._sensors, choices, count)
        self.rows = np.arange(count)
        self.id = academy.new_ids(count)
        self.group_id = np.zeros(count, np.int64)
        self.enabled = np.ones(count, bool)
        self.behavior = np.zeros(count, np.int64)
        self.step_count = np.zeros(count, np.int64)
        self.reward = np.zeros(count)
        self.group_reward = np.zeros(count)
        self.continuous = np.zeros((count, actions.continuous_size), np.float32)
        self.discrete = np.zeros((count, actions.discrete_size), np.int64)
        self.mask = np.zeros((count, choices), bool)
        self._done = np.zeros(count, bool)  # has sent a done notification and no decision request since
        self._decision_requested = np.zeros(count, bool)
        self._action_requested = np.zeros(count, bool)
        academy.add_agents(self)

    def __len__(self) -> int:
        return len(self.rows)

    def request_decision(self, rows: Array) -> None:
        """Send the observations of `rows` in the next academy step and act on the answer."""
        self._decision_requested[rows] = True
        self._action_requested[rows] = True

    def end_episode(self, rows: Array, interrupted: bool = False) -> None:
        """End the episodes of `rows` and start their next ones.

        The done notification takes the observations now, before `start_episode`, and goes out with the next academy
        step. An agent that has not been asked since its last one sends no second one, and keeps its reward.

        :param interrupted: the episodes were cut off rather than decided
        """
        self._notify_done(rows, interrupted)
        self.start_episode(rows)

    def disable(self, rows: Array) -> None:
        """Take `rows` out of the scene: they send a last done notification and leave their groups."""
        self._notify_done(rows, False)
        self._decision_requested[rows] = False
        self._action_requested[rows] = False
        self.enabled[rows] = False
        self.group_id[rows] = 0

    def enable(self, rows: Array) -> None:
        """Bring `rows` back as new agents, which ask for a decision at once, outside the rhythm of the others."""
        self.enabled[rows] = True
        self.id[rows] = self._academy.new_ids(len(rows))
        self.reward[rows] = 0
        self.group_reward[rows] = 0
        self._done[rows] = False
        self.start_episode(rows)
        self.request_decision(rows)

    def start_episode(self, rows: Array) -> None:
        """Start new episodes without a word about the old ones."""
        self.step_count[rows] = 0
        self._start_episode(rows)

    # The rest is called by the academy, in this order.

    def reset(self) -> None:
        """Reset: every enabled agent starts an episode; what was decided for it is void."""
        self.continuous[:] = 0
        self.discrete[:] = 0
        self.start_episode(np.flatnonzero(self.enabled))

    def request_periodic_decisions(self, academy_step: int) -> None:
        """Do what decision requesters do, with the academy's counter before it is raised."""
        if self.decision_period == 0:
            return
        if academy_step % self.decision_period == 0:
            self._decision_requested |= self.enabled
            self._action_requested |= self.enabled
        elif self.repeat_actions:
            self._action_requested |= self.enabled

    def send_requests(self) -> None:
        """Queue the agents that request a decision; their rewards start again from zero."""
        (rows,) = self._decision_requested.nonzero()
        if not len(rows):
            return
        self._decision_requested[rows] = False
        if self._read_mask is not None:
            self.mask[rows] = self._read_mask(rows)
        self._put(rows, done=False)
        self._done[rows] = False
        self.reward[rows] = 0
        self.group_reward[rows] = 0

    def act_and_count(self) -> None:
        """Act with the actions there are, then interrupt the episodes that are over their limit."""
        (rows,) = self._action_requested.nonzero()
        if len(rows):
            self._action_requested[:] = False
            self._act(rows)
        if self.max_step:
            over = self.step_count >= self.max_step
            if over.any():
                self.end_episode(np.flatnonzero(over & self.enabled), interrupted=True)

    def _notify_done(self, rows: Array, interrupted: bool) -> None:
        rows = rows[~self._done[rows]]
        if not len(rows):
            return
        self._put(rows, done=True, interrupted=interrupted)
        for sensor in self._sensors:
            sensor.reset(rows)
        self._done[rows] = True
        self._decision_requested[rows] = False
        self._action_requested[rows] = False
        for column in (self.reward, self.group_reward, self.continuous, self.discrete):
            column[rows] = 0

    def _put(self, rows: Array, done: bool, interrupted: bool = False) -> None:
        if len(self.behaviors) == 1:
            self._put_behavior(self.behaviors[0], rows, done, interrupted)
            return
        for index, behavior in enumerate(self.behaviors):
            mine = rows[self.behavior[rows] == index]
            if len(mine):
                self._put_behavior(behavior, mine, done, interrupted)

    def _put_behavior(self, behavior: str, rows: Array, done: bool, interrupted: bool) -> None:
        encoded = self._encoder.encode(
            self.id[rows],
            self.group_id[rows],
            self.reward[rows],
            self.group_reward[rows],
            done,
            interrupted,
            self.mask[rows] if self._read_mask is not None else None,
            [sensor.observe(rows) for sensor in self._sensors],
        )
        self._academy.communicator.put(behavior, encoded, self, None if done else rows)
