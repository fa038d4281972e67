"""A random simulation of groups without a player, and the expected results of POCA, agent by agent in float64.

Members act at different times, die, are interrupted, spawn late, return and move to other groups. Groups end
together or are interrupted together. An observation's first number is the number of the decision, so that a rollout can
be compared with what happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from sb3_ext import POCA
from sb3_ext.agents import SpaceAdapter
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import (
    ActionSpec,
    Array,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

ACTIONS = ActionSpec(1, (3, 2))
SIZE = 3  # of an observation
SCALE = 1e-3  # of the number of a decision in it
SPEC = BehaviorSpec(
    [ObservationSpec((SIZE,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "view")],
    ACTIONS,
)


def make(**options: Any) -> POCA:
    """Return a model of the simulation's agents, without an environment."""
    model = POCA("UnityPOCAPolicy", None, device="cpu", seed=0, _init_setup_model=False, **options)
    layout = ObservationLayout(SPEC)
    model.observation_space, model.action_space = layout.space, action_space(ACTIONS)
    model.adapter = SpaceAdapter(model.observation_space, model.action_space, (SPEC, layout))
    model._setup_model()
    model.start(SPEC)
    return model


@dataclass
class Decision:
    """A decision: its agent, the other members of the group, and the outcome."""

    seen: Array
    agent: int
    episode: int
    members: list[int]
    """The newest decisions of all members of the group, including this one."""
    action: Array = field(default_factory=lambda: np.zeros(0))
    reward: float = 0.0
    follows: int | None = None
    """The agent's next decision in the trajectory."""
    end: list[Array] | None = None
    """What the members see after the trajectory that ends with this decision."""
    is_over: bool = False


@dataclass
class Agent:
    """Return the active agents."""

    group: int
    episode: int
    newest: int = -1
    last: int = -1
    """Of its trajectory, the newest decision of which it is known what came of it."""
    length: int = 0
    """Of its trajectory."""


class GroupSimulation:
    """A simulation that drives a model and records the expected results.

    :param model: Model of `make`.
    :param groups: Initial number of members per group; 0 stands for an agent without a group.
    """

    def __init__(self, model: POCA, groups: tuple[int, ...], seed: int = 0) -> None:
        self.model, self.table = model, AgentTable(SPEC)
        model._agents = SimpleNamespace(table=self.table)
        self.rng = np.random.default_rng(seed)
        self.decisions: list[Decision] = []
        self.agents: dict[int, Agent] = {}
        self.happened: Counter[str] = Counter()
        self._ids, self._episodes = 0, 0
        self._size = dict(enumerate(groups, 1))
        self._arriving = [(number if size else 0) for number, size in self._size.items() for _ in range(max(size, 1))]

    def live(self, updates: int) -> None:
        """Continue until the model has made `updates` updates."""
        while updates:
            self._exchange()
            if self.model.is_update_due:
                if self.model.rollout == "cut":
                    for id_ in self._staying:
                        if self.agents[id_].length:
                            self._end(self.agents[id_], id_)
                self.model.train()
                updates -= 1
            self._act()

    def _chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def _see(self, number: float) -> Array:
        return np.array([number * SCALE, *self.rng.normal(size=SIZE - 1)], np.float32)

    def _exchange(self) -> None:
        """Simulate a message: episode ends and requested decisions."""
        before = {id_: Agent(**vars(agent)) for id_, agent in self.agents.items()}
        ends: dict[int, bool] = {}  # whether it was interrupted
        for group in {agent.group for agent in self.agents.values() if agent.group}:
            members = [id_ for id_, agent in self.agents.items() if agent.group == group]
            if self._chance(0.06):
                interrupted = self._chance(0.5)
                ends |= dict.fromkeys(members, interrupted)
                if not interrupted and self._chance(0.3):
                    ends[members[0]] = True  # some of them only
                self.happened["interrupted together" if interrupted else "ended together"] += 1
        for id_, agent in self.agents.items():
            if id_ not in ends and self._chance(0.06):
                ends[id_] = self._chance(0.5)
                if agent.group:
                    self.happened["interrupted alone" if ends[id_] else "died"] += 1
        restless = {self.agents[id_].group for id_ in ends}
        deciding = [id_ for id_ in self.agents if id_ not in ends and self._chance(0.8)]
        for id_ in deciding:
            if self._chance(0.02):
                self.agents[id_].group = int(self.rng.integers(1, len(self._size) + 1))
                self.happened["moved"] += 1
        back, leaving = [], dict(ends)
        for id_ in ends:
            agent = self.agents.pop(id_)
            if self._chance(0.5):
                back.append((id_, agent.group))
            else:
                self._arriving.append(agent.group)
        self._staying = set(self.agents)
        for group in list(self._arriving):
            if group not in restless and self._chance(0.5):
                self._arriving.remove(group)
                self._ids += 1
                back.append((self._ids, group))
                self.happened["came late"] += group in {self.agents[id_].group for id_ in self._staying} - {0}
        for id_, group in back:
            self._episodes += 1
            self.agents[id_] = Agent(group, self._episodes)
            deciding.append(id_)
        self._before, self._ends, self._deciding = before, leaving, deciding
        self._simulate_message()

    def _simulate_message(self) -> None:
        ends, deciding = self._ends, self._deciding
        rewards = {id_: self.rng.normal(size=2).astype(np.float32) for id_ in {*ends, *deciding}}
        seen = {id_: self._see(len(self.decisions) + place) for place, id_ in enumerate(deciding)}
        final = {id_: self._see(-1) for id_ in ends}
        masks = [self.rng.random((len(deciding), n)) < 0.3 for n in ACTIONS.discrete_branches]
        for mask in masks:
            mask[:, 0] = False
        groups, former = ({id_: agent.group for id_, agent in all_.items()} for all_ in (self.agents, self._before))
        self.table.start_step()
        self.table.update(
            _steps(DecisionSteps, deciding, seen, rewards, groups, masks),
            _steps(TerminalSteps, list(ends), final, rewards, former, list(ends.values())),
        )
        self.model.store_outcomes(self.table)
        self._seen, self._final = seen, final
        # A decision requested in this step did not cause its rewards.
        self._note({id_: reward for id_, reward in rewards.items() if id_ in self._before})

    def _note(self, rewards: dict[int, Array]) -> None:
        """Compute the outcomes of the open decisions, and the trajectories that end."""
        for id_, agent in self._before.items():
            own, of_group = rewards.get(id_, np.zeros(2))
            mates = [other for other, mate in self._before.items() if other != id_ and _together(mate, agent)]
            others = sum(float(rewards[mate][0]) for mate in mates if mate in rewards)
            self.decisions[agent.newest].reward += float(own) + float(of_group) + others
        for id_, was in self._before.items():
            if id_ in self._ends:
                was.last = was.newest
                self._end(was, id_)
            elif id_ in self._deciding:
                agent = self.agents[id_]
                agent.last, agent.length = agent.newest, agent.length + 1
                if agent.length == self.model.time_horizon:
                    self._end(agent, id_)

    def _end(self, agent: Agent, id_: int) -> None:
        """End the trajectory of an agent, with its episode or because it is cut."""
        ended = id_ in self._ends and id_ not in self._staying
        decision = self.decisions[agent.last]
        decision.follows, agent.length = None, 0
        # members that continue, and members that join them
        mates = [other for other in self._staying if other == id_ or _together(self.agents[other], agent)]
        if mates:
            coming = set(self.agents) - self._staying - ({id_} if self._ends.get(id_) else set())
            mates += [other for other in coming if _together(self.agents[other], agent)]
        decision.end = [self._seen.get(mate, self.decisions[self.agents[mate].newest].seen) for mate in mates]
        if ended and not mates:
            gone = [other for other in self._ends if other == id_ or _together(self._before[other], agent)]
            interrupted = [other for other in gone if self._ends[other]]
            decision.is_over = not interrupted
            decision.end = [self._final[other] for other in interrupted or gone]
        elif ended and self._ends[id_]:  # a single interrupted agent: its last state is bootstrapped
            decision.end.append(self._final[id_])

    def _act(self) -> None:
        first = len(self.decisions)
        for id_ in self._deciding:
            agent = self.agents[id_]
            number = len(self.decisions)
            if agent.newest >= 0 and agent.length:
                self.decisions[agent.newest].follows = number
            self.decisions.append(Decision(self._seen[id_], id_, agent.episode, []))
            agent.newest = number
        for id_ in self._deciding:
            agent = self.agents[id_]
            self.decisions[agent.newest].members = [
                other.newest for other in self.agents.values() if other is agent or _together(other, agent)
            ]
        actions = self._raw_actions()
        for decision, action in zip(self.decisions[first:], actions, strict=True):
            decision.action = action

    def _raw_actions(self) -> list[Array]:
        """Return the model's actions in the order of the simulation's decisions."""
        policy = self.model.policy
        noted: dict[int, Array] = {}
        act = policy.act

        def noting(observations: list[torch.Tensor], *rest: Any, **options: Any) -> Any:
            result = act(observations, *rest, **options)
            numbers = np.rint(observations[0][:, 0].numpy() / SCALE).astype(int)
            noted.update(zip(numbers.tolist(), result[0].double().numpy(), strict=True))
            return result

        policy.act = noting  # type: ignore[method-assign]
        self.model.select_actions(self.table)
        del policy.act
        return [noted[number] for number in sorted(noted)]


def _together(first: Agent, second: Agent) -> bool:
    return first.group == second.group > 0


def _steps(
    kind: Any, ids: list[int], seen: dict[int, Any], rewards: dict[int, Any], groups: dict[int, int], last: Any
) -> Any:
    own = np.array([rewards[id_] for id_ in ids], np.float32).reshape(-1, 2)
    observations = [np.array([seen[id_] for id_ in ids], np.float32).reshape(-1, SIZE)]
    numbers, group = np.array(ids, np.int32), np.array([groups[id_] for id_ in ids], np.int32)
    if kind is DecisionSteps:
        return DecisionSteps(observations, own[:, 0], numbers, last, group, own[:, 1])
    return TerminalSteps(observations, own[:, 0], np.array(last, bool), numbers, group, own[:, 1])
