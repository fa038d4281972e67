"""The agents of one kind in all areas, as arrays with one row per agent.

A scene makes one `Agents` for each kind that differs in sensors, actions or code. Its three callbacks implement the
methods of an agent script. A callback gets `rows`, an array of agent indices (int, k), and processes all of them:

- `act(rows)`: `OnActionReceived`, with the actions in `continuous[rows]` and `discrete[rows]`
- `start_episode(rows)`: `OnEpisodeBegin`
- `read_mask(rows)`: `WriteDiscreteActionMask`, bool (k, sum of the branch sizes), True = forbidden

The operations of a scene on its agents, by their names in Unity's scripts:

| Unity | Here |
|---|---|
| `AddReward(x)`, `SetReward(x)` | `agents.reward[rows] += x`, `agents.reward[rows] = x` |
| `EndEpisode()`, `EpisodeInterrupted()` | `agents.end_episode(rows)`, `agents.end_episode(rows, interrupted=True)` |
| `RequestDecision()` | `agents.request_decision(rows)` |
| `gameObject.SetActive(false)`, `(true)` | `agents.disable(rows)`, `agents.enable(rows)`: new ids, no group |
| `group.RegisterAgent(agent)` | `agents.group_id[rows] = group`, with `group = academy.new_group()` |
| `group.AddGroupReward(x)` | `agents.group_reward[agents.group_id == group] += x` |
| `group.EndGroupEpisode()` | `agents.end_episode(np.flatnonzero(agents.group_id == group))` |
| Set another behavior | `agents.behavior[rows] = index`, an index into `behaviors` |
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

    Arrays, one entry per agent:

    - `id` (int64), `group_id` (int64, 0 = none), `enabled` (bool)
    - `behavior` (int64, index into `behaviors`), `step_count` (int64, ticks of the episode)
    - `reward` and `group_reward` (float64, since the last message)
    - `continuous` (float32, n × size), `discrete` (int64, n × branches), `mask` (bool, as last sent)

    :param academy: Academy whose ticks advance the agents.
    :param count: Number of agents.
    :param behaviors: Name or names of the behaviors that the agents may have.
    :param sensors: Sensors in any order; they are sent sorted by name.
    :param actions: Action specification of the agents.
    :param act: Callback that implements `OnActionReceived`.
    :param start_episode: Callback that implements `OnEpisodeBegin`.
    :param read_mask: Callback that implements `WriteDiscreteActionMask`. None: no masks are sent.
    :param team: Team id in the behavior's name on the wire.
    :param decision_period: Ticks between the automatic decision requests; 0: the scene requests decisions.
    :param repeat_actions: Whether agents with a decision period act in each tick, not only after a decision.
    :param max_step: Ticks after which an episode is interrupted; 0: never.
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
        """Send the observations of `rows` in the next academy step, then act with the received actions."""
        self._decision_requested[rows] = True
        self._action_requested[rows] = True

    def end_episode(self, rows: Array, interrupted: bool = False) -> None:
        """End the episodes of `rows` and start their next ones.

        The done notification contains the current observations, from before `start_episode`. The next academy step
        sends it. An agent without a decision request since its last notification sends no second one and keeps its
        reward.

        :param rows: Agent indices, int (k).
        :param interrupted: Whether the episodes were truncated instead of terminated.
        """
        self._notify_done(rows, interrupted)
        self.start_episode(rows)

    def disable(self, rows: Array) -> None:
        """Remove `rows` from the scene; they send a last done notification and leave their groups."""
        self._notify_done(rows, False)
        self._decision_requested[rows] = False
        self._action_requested[rows] = False
        self.enabled[rows] = False
        self.group_id[rows] = 0

    def enable(self, rows: Array) -> None:
        """Add `rows` again as new agents, which request a decision at once, independent of the decision period."""
        self.enabled[rows] = True
        self.id[rows] = self._academy.new_ids(len(rows))
        self.reward[rows] = 0
        self.group_reward[rows] = 0
        self._done[rows] = False
        self.start_episode(rows)
        self.request_decision(rows)

    def start_episode(self, rows: Array) -> None:
        """Start new episodes without done notifications for the old ones."""
        self.step_count[rows] = 0
        self._start_episode(rows)

    # The academy calls the methods below, in this order.

    def reset(self) -> None:
        """Start an episode of each enabled agent and discard the actions."""
        self.continuous[:] = 0
        self.discrete[:] = 0
        self.start_episode(np.flatnonzero(self.enabled))

    def request_periodic_decisions(self, academy_step: int) -> None:
        """Request decisions as Unity's decision requesters do, with the academy's counter before it is incremented."""
        if self.decision_period == 0:
            return
        if academy_step % self.decision_period == 0:
            self._decision_requested |= self.enabled
            self._action_requested |= self.enabled
        elif self.repeat_actions:
            self._action_requested |= self.enabled

    def send_requests(self) -> None:
        """Queue the agents that request a decision and set their rewards to zero."""
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
        """Act with the current actions, then interrupt the episodes that reached `max_step`."""
        (rows,) = self._action_requested.nonzero()
        if len(rows):
            self._action_requested[:] = False
            self._act(rows)
        if self.max_step:
            (over,) = (self.step_count >= self.max_step).nonzero()
            if len(over):
                self.end_episode(over[self.enabled[over]], interrupted=True)

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
        for array in (self.reward, self.group_reward, self.continuous, self.discrete):
            array[rows] = 0

    def _put(self, rows: Array, done: bool, interrupted: bool = False) -> None:
        if len(self.behaviors) == 1:
            self._put_behavior(self.behaviors[0], rows, done, interrupted)
            return
        for index, behavior in enumerate(self.behaviors):
            of_behavior = rows[self.behavior[rows] == index]
            if len(of_behavior):
                self._put_behavior(behavior, of_behavior, done, interrupted)

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
