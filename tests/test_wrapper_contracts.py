"""Every wrapper returns the data of the scene's own log, and every action reaches its agent.

In the stress scene agents do everything at random. `wrapper_contract` derives the expected results of a wrapper from
its log; each test documents what the wrapper omits by design. All of them omit the reward on an episode's first
entry, and episodes that end before their first decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import unity_gym
from sb3_ext import UnityVecEnv
from stand_ins import stress_player
from stand_ins.reference_table import Row
from stand_ins.wrapper_contract import Contract, SceneLog, Sensors, blank, has_ended, one_action, row_actions, seen
from unity_gym.environment import UnityEnvironment
from unity_gym.envs import UnitySingleAgentEnv, UnityVectorEnv

SEEDS = st.integers(0, 2**31 - 1)
few_scenes = settings(
    max_examples=3, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # no shrinking: a seed that fails is as simple as any other
STEPS = 40
RESETS = 0.04  # fraction of steps before which a wrapper is reset in mid-episode

SOLO, RUNNER, MEMBER, LATE = "Solo?team=0", "Runner?team=0", "Member?team=0", "Late?team=1"

Game: TypeAlias = tuple[Any, list[SceneLog]]
Make: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Return a function that creates an environment of the stress scene, closed after the module."""
    made = []

    def make(environment: Make, n_instances: int = 1, **options: Any) -> tuple[Any, list[SceneLog]]:
        folder = tmp_path_factory.mktemp("player")
        options |= {"n_instances": n_instances} if n_instances > 1 else {}
        env = environment(file_name=stress_player.launcher(folder), no_graphics=False, log_folder=folder, **options)
        made.append(env)
        return env, [SceneLog(folder / f"Player-{player}.jsonl") for player in range(n_instances)]

    yield make
    for env in made:
        env.close()


# One player, step by step


@pytest.fixture(scope="module", params=["uint8", "float32"])
def player(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    folder = tmp_path_factory.mktemp("player")
    env = UnityEnvironment(stress_player.launcher(folder), log_folder=folder, visual_dtype=request.param)
    env.reset()
    yield env, SceneLog(folder / "Player-0.jsonl")
    env.close()


@few_scenes
@given(seed=SEEDS)
def test_the_agent_table_is_filled_at_each_player_step(player: tuple[UnityEnvironment, SceneLog], seed: int) -> None:
    """Nothing is omitted."""
    env, log = player
    rng = np.random.default_rng(seed)
    env.reset(seed)
    log.read()
    assert log.newest in log.scenes
    for _ in range(STEPS):
        records = defaultdict(list)
        for record in log.records[log.newest]:
            records[record["behavior"], record["event"]].append(record)
        chosen = {}
        for behavior, spec in env.behavior_specs.items():
            decisions, terminals = env.get_steps(behavior)
            assert [sensor.name for sensor in spec.observation_specs] == [name for name, _ in log.sensors[behavior]]
            check_steps(decisions, records.pop((behavior, "decision"), []), log.sensors[behavior])
            check_steps(terminals, records.pop((behavior, "end"), []), log.sensors[behavior])
            actions = spec.action_spec.random_action(len(decisions), rng)
            if len(decisions) and rng.random() < 0.8:
                env.set_actions(behavior, actions)
            else:
                actions = spec.action_spec.empty_action(len(decisions))
            for agent, continuous, discrete in zip(decisions, actions.continuous, actions.discrete, strict=True):
                chosen[behavior, agent] = continuous.tolist(), discrete.tolist()
        assert not records
        exchange = log.newest
        if rng.random() < RESETS:
            env.reset()
            log.read()
            assert exchange in log.resets
            chosen = {}
        else:
            env.step()
            log.read()
        assert log.newest == exchange + 1
        assert log.actions[exchange] == chosen


def check_steps(steps: Any, records: list[dict[str, Any]], sensors: Sensors) -> None:
    """Compare DecisionSteps or TerminalSteps with the log of these agents."""
    assert steps.agent_id.tolist() == [record["agent"] for record in records]
    assert steps.group_id.tolist() == [record["group"] for record in records]
    assert steps.reward.tolist() == [record["reward"] for record in records]
    assert steps.group_reward.tolist() == [record["group_reward"] for record in records]
    for index, record in enumerate(records):
        observation = {name: column[index] for (name, _), column in zip(sensors, steps.obs, strict=True)}
        assert seen(observation, sensors) == record["observation"]
        if record["event"] == "end":
            assert steps.interrupted[index] == record["interrupted"]
        elif steps.action_mask is not None:
            forbidden = np.concatenate([branch[index] for branch in steps.action_mask]).tolist()
            assert forbidden == (record["mask"] or [False] * len(forbidden))


# One agent


@pytest.fixture(scope="module")
def solo(play: Make) -> Game:
    return play(UnitySingleAgentEnv, behavior=SOLO, observations="sensors")


@few_scenes
@given(seed=SEEDS)
def test_a_single_agent_environment_returns_from_decision_to_decision(solo: Game, seed: int) -> None:
    """After an episode end, `reset` waits for the next first decision; events until then are omitted."""
    env, logs = solo
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)

    def check(observation: Any, info: dict[str, Any], expected: Any) -> None:
        assert seen(observation, contract.sensors) == expected
        assert info["action_mask"].tolist() == row.allowed

    observation, info = env.reset(seed=seed)
    contract = Contract(logs, SOLO)
    (row,) = contract.table.rows
    check(observation, info, row.seen)
    for _ in range(STEPS):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        contract.step({SOLO: {0: one_action(action)}}, autoreset=False)
        assert (reward, terminated, truncated) == (row.reward, row.terminated, row.truncated)
        check(observation, info, row.final if has_ended(row) else row.seen)
        if has_ended(row) or rng.random() < RESETS:
            observation, info = env.reset()
            if has_ended(row):
                contract.resume()
            else:
                contract.reset()
            check(observation, info, row.seen)


# A row per agent


def shown(row: Row, sensors: Sensors) -> Any:
    """The expected results of a vector environment for a row."""
    return row.seen or blank(sensors)


def check_masks(masks: Any, rows: list[Row]) -> None:
    for mask, row in zip(masks, rows, strict=True):
        assert mask.tolist() == (row.allowed if row.id >= 0 else [True] * len(mask))


def one_row(observations: Any, row: int) -> Any:
    return (
        {key: part[row] for key, part in observations.items()}
        if isinstance(observations, Mapping)
        else observations[row]
    )


@pytest.fixture(
    scope="module",
    params=[(RUNNER, 2, 12, "all"), (MEMBER, 1, 7, "all"), (RUNNER, 2, 12, "any")],
    ids=["two players", "groups", "any"],
)
def vec_env(play: Make, request: pytest.FixtureRequest) -> Game:
    behavior, n_instances, num_envs, wait_for = request.param
    return play(UnityVecEnv, n_instances, behavior=behavior, num_envs=num_envs, wait_for=wait_for)


@few_scenes
@given(seed=SEEDS)
def test_sb3s_vec_env_reports_every_row(vec_env: Game, seed: int) -> None:
    """A row with an earlier request than others repeats its action and sums its rewards. After its end it repeats it
    too, and the results in the rest of the step are omitted."""
    env, logs = vec_env
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)
    env.seed(seed)
    observations = env.reset()
    contract = Contract(logs, env.behavior, env.num_envs)
    rows = contract.table.rows
    returns, lengths = np.zeros(len(rows)), np.zeros(len(rows), int)

    def check() -> None:
        for index, row in enumerate(rows):
            assert seen(one_row(observations, index), contract.sensors) == shown(row, contract.sensors)
        if env.has_attr("action_masks"):
            check_masks(env.env_method("action_masks"), rows)

    check()
    for _ in range(STEPS):
        actions = np.stack([env.action_space.sample() for _ in rows])
        lengths += [row.requests_decision for row in rows]
        observations, rewards, dones, infos = env.step(actions)
        if "requests_decision" in infos[0]:
            contract.step_once({env.behavior: row_actions(actions, len(rows))})
            contract.nothing_more_was_exchanged()
            assert [info["requests_decision"] for info in infos] == [row.requests_decision for row in rows]
        else:
            contract.step({env.behavior: row_actions(actions, len(rows))}, autoreset=True)
        check()
        assert rewards.tolist() == [row.reward + row.group_reward for row in rows]
        assert dones.tolist() == [has_ended(row) for row in rows]
        assert [info["alive"] for info in infos] == [row.alive for row in rows]
        returns += rewards
        for index, (row, info) in enumerate(zip(rows, infos, strict=True)):
            assert has_ended(row) == ("terminal_observation" in info) == ("episode" in info)
            if has_ended(row):
                assert seen(info["terminal_observation"], contract.sensors) == row.final
                assert info["TimeLimit.truncated"] == row.truncated
                assert (info["episode"]["r"], info["episode"]["l"]) == (returns[index], lengths[index])
                returns[index] = lengths[index] = 0
        if rng.random() < RESETS:
            observations = env.reset()
            contract.reset()
            check()
            returns[:] = lengths[:] = 0


@pytest.fixture(
    scope="module",
    params=[
        (MEMBER, 6, "SameStep", "all"),
        (LATE, 3, "NextStep", "all"),
        (SOLO, 1, "NextStep", "all"),
        (RUNNER, 6, "SameStep", "any"),
        (RUNNER, 6, "NextStep", "any"),
    ],
    ids=lambda param: "-".join(map(str, param[2:])),
)
def envs(play: Make, request: pytest.FixtureRequest) -> tuple[Any, list[SceneLog], str, str]:
    behavior, num_envs, mode, wait_for = request.param
    env, logs = play(
        UnityVectorEnv,
        behavior=behavior,
        num_envs=num_envs,
        autoreset_mode=mode,
        wait_for=wait_for,
        observations="sensors",
    )
    return env, logs, behavior, wait_for


class ExpectedRows:
    """The expected results of a vector environment for the rows of one player, from the contract's table.

    `seen`, `rewards`, `group_rewards`, `ends` (rows) and `requests` (bool per row).
    """

    def __init__(self, contract: Contract, behavior: str, wait_for: str, same_step: bool) -> None:
        self._contract, self._behavior, self._wait_for, self._same_step = contract, behavior, wait_for, same_step
        self.rows = contract.table.rows
        self.start()

    def start(self) -> None:
        self.ends: set[int] = set()
        self._carried = [(0.0, 0.0)] * len(self.rows)
        self._withholds = False
        self._return(set(), {})

    def _return(self, record: set[int], first: Mapping[int, Any]) -> None:
        """Return the results with these observations, and without the outcomes of unreported rows."""
        sensors = self._contract.sensors
        ended = {index for index in record if has_ended(self.rows[index])}
        self.seen = [
            row.final if index in ended and not self._same_step else first.get(index, shown(row, sensors))
            for index, row in enumerate(self.rows)
        ]
        outcomes = [
            (row.reward + own, row.group_reward + group)
            for row, (own, group) in zip(self.rows, self._carried, strict=True)
        ]
        self.rewards = [sum(one) if index in record else 0 for index, one in enumerate(outcomes)]
        self.group_rewards = [one[1] if index in record else 0 for index, one in enumerate(outcomes)]
        if self._wait_for == "all":
            self._carried = [outcomes[index] if index in first else (0.0, 0.0) for index in range(len(self.rows))]
        self.ends = ended
        self.requests = [row.requests_decision for row in self.rows]

    def step(self, actions: Mapping[int, Any]) -> None:
        everyone = set(range(len(self.rows)))
        if self._wait_for == "any":
            self._step_any(actions, everyone)
            return
        record = everyone if self._same_step else everyone - self.ends
        started = {index for index in everyone - record if self.rows[index].requests_decision}
        if started and not any(self.rows[index].requests_decision for index in record):
            self._contract.nothing_more_was_exchanged()  # the player waits
            self._return(record, {})
            return
        first = {index: self.rows[index].seen for index in started}
        self._contract.step(
            {self._behavior: {index: action for index, action in actions.items() if index in record}},
            autoreset=self._same_step,
        )
        self._return(record, {index: seen for index, seen in first.items() if not has_ended(self.rows[index])})

    def _step_any(self, actions: Mapping[int, Any], everyone: set[int]) -> None:
        if self._withholds:
            self._withholds = False
            others = everyone - self.ends
            self._contract.nothing_more_was_exchanged()
            self._return(others, {})
            self.ends = set()
            return
        before = {index: shown(row, self._contract.sensors) for index, row in enumerate(self.rows)}
        self._contract.step_once({self._behavior: actions})
        self._contract.nothing_more_was_exchanged()
        ended = {index for index in everyone if has_ended(self.rows[index])}
        self._withholds = not self._same_step and any(self.rows[index].requests_decision for index in ended)
        if self._withholds:
            self._return(ended, before)
            self.requests = [False] * len(self.rows)
        else:
            self._return(everyone, {})


@few_scenes
@given(seed=SEEDS)
def test_gymnasiums_vector_env_reports_every_row(envs: tuple[Any, list[SceneLog], str, str], seed: int) -> None:
    """As for SB3. With NEXT_STEP, the step after a row's end is no step of the row: it returns the first observation,
    and rewards of it count for the next one."""
    env, logs, behavior, wait_for = envs
    rng = np.random.default_rng(seed)
    same_step = env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.action_space.seed(seed)
    observations, infos = env.reset(seed=seed)
    contract = Contract(logs, behavior, env.num_envs)
    rows = contract.table.rows
    expected = ExpectedRows(contract, behavior, wait_for, same_step)

    def check() -> None:
        for index in range(len(rows)):
            assert seen(one_row(observations, index), contract.sensors) == expected.seen[index]
        assert infos["alive"].tolist() == [row.alive for row in rows]
        if wait_for == "any":
            assert infos["requests_decision"].tolist() == expected.requests
        if "action_mask" in infos:
            check_masks(infos["action_mask"], rows)

    check()
    for _ in range(STEPS):
        actions = env.action_space.sample()
        observations, rewards, terminated, truncated, infos = env.step(actions)
        expected.step(row_actions(actions, len(rows)))
        check()
        assert rewards.tolist() == expected.rewards
        assert infos.get("group_reward", np.zeros(len(rows))).tolist() == expected.group_rewards
        assert np.flatnonzero(terminated | truncated).tolist() == sorted(expected.ends)
        for index in expected.ends:
            assert (terminated[index], truncated[index]) == (rows[index].terminated, rows[index].truncated)
        if same_step and expected.ends:
            assert np.flatnonzero(infos["_final_obs"]).tolist() == sorted(expected.ends)
            for index in expected.ends:
                assert seen(infos["final_obs"][index], contract.sensors) == rows[index].final
        else:
            assert "final_obs" not in infos
        if rng.random() < RESETS:
            observations, infos = env.reset()
            contract.reset()
            expected.start()
            check()


# An episode of all agents


class EpisodeAgents:
    """The agents of a PettingZoo episode and their expected results, from the contract's tables.

    An agent whose episode ended is omitted until the next reset; a new one takes part, unless its row has left.
    """

    def __init__(self, contract: Contract, env: Any) -> None:
        self._contract, self._env = contract, env
        self.start()

    def _rows(self) -> list[tuple[str, str, int, Row]]:
        """Yield agent, behavior, row index and row, in the order of the contract's tables."""
        return [
            (self._name(behavior, index), behavior, index, row)
            for behavior, table in self._contract.tables.items()
            for index, row in enumerate(table.rows)
        ]

    def _name(self, behavior: str, index: int) -> str:
        plain, _, team = behavior.lower().partition("?team=")
        names = f"{plain}_{team}_{index}", f"{plain}_{index}"
        return names[0] if names[0] in self._env.possible_agents else names[1]

    def start(self) -> None:
        self._behaviors = {agent: behavior for agent, behavior, _, _ in self._rows()}
        self.playing = {agent for agent, _, _, row in self._rows() if row.requests_decision}
        self._left: set[str] = set()
        self._reported = {agent: (row, False) for agent, _, _, row in self._rows() if row.requests_decision}

    @property
    def reported(self) -> set[str]:
        return set(self._reported)

    def step(self, actions: Mapping[str, Any]) -> None:
        """Record a step of the environment with these actions."""
        chosen: dict[str, dict[int, Any]] = defaultdict(dict)
        for agent, behavior, index, _ in self._rows():
            if agent in actions:
                chosen[behavior][index] = one_action(actions[agent])
        running = {agent for agent, _, _, row in self._rows() if row.alive}
        self._advance(chosen)
        self._behaviors = {agent: behavior for agent, behavior, _, _ in self._rows()}
        self._reported = {
            agent: (row, agent in self.playing and has_ended(row))
            for agent, _, _, row in self._rows()
            if agent in self.playing or (row.requests_decision and agent not in self._left)
        }
        self._left |= {agent for agent, (_, ended) in self._reported.items() if ended}
        self.playing = {agent for agent, (_, ended) in self._reported.items() if not ended}
        self.goes_on = not self.playing and all(has_ended(row) for agent, _, _, row in self._rows() if agent in running)

    def _advance(self, actions: Mapping[str, Mapping[int, Any]]) -> None:
        self._contract.step(actions, autoreset=False)

    def check_observation(self, agent: str, observation: Any) -> None:
        row, ended = self._reported[agent]
        if isinstance(observation, Mapping) and "action_mask" in observation:
            mask = observation["action_mask"]
            assert mask.tolist() == (row.allowed if row.allowed and not ended else [1] * len(mask))
            observation = observation["observation"]
        sensors = self._contract.logs[0].sensors[self._behaviors[agent]]
        assert seen(observation, sensors) == (row.final if ended else row.seen)

    def check_outcome(self, agent: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        row, ended = self._reported[agent]
        assert reward == row.reward + row.group_reward
        assert (terminated, truncated) == (row.terminated and ended, row.truncated and ended)
        assert info.get("group_reward", 0) == row.group_reward


def sample(env: Any, agent: str, rng: np.random.Generator) -> Any:
    space = env.action_space(agent)
    space.seed(int(rng.integers(2**31)))
    return space.sample()


@pytest.fixture(scope="module")
def game(play: Make) -> Game:
    return play(unity_gym.parallel_env)


@few_scenes
@given(seed=SEEDS)
def test_pettingzoos_parallel_env_reports_every_agent(game: Game, seed: int) -> None:
    """As a vector environment of all behaviors. An agent that ended is omitted until the next reset, and takes the
    zero action."""
    env, logs = game
    rng = np.random.default_rng(seed)
    agents = None
    for _ in range(STEPS):
        if agents is None or not env.agents or rng.random() < RESETS:
            goes_on = agents is not None and not env.agents and agents.goes_on
            observations, infos = env.reset(seed if agents is None else None)
            if agents is None:
                contract = Contract(logs)
            elif goes_on:
                contract.resume()
            else:
                contract.reset()
            agents = EpisodeAgents(contract, env)
            assert observations.keys() == infos.keys() == agents.reported
            assert not any(info.get("group_reward") for info in infos.values())
        else:
            actions = {agent: sample(env, agent, rng) for agent in env.agents}
            observations, *outcomes = env.step(actions)
            agents.step(actions)
            assert all(part.keys() == agents.reported for part in (observations, *outcomes))
            for agent in agents.reported:
                agents.check_outcome(agent, *(part[agent] for part in outcomes))
        for agent in agents.reported:
            agents.check_observation(agent, observations[agent])
        assert set(env.agents) == agents.playing


class Exchanges(EpisodeAgents):
    """As `EpisodeAgents`, where each step is one player step."""

    def _advance(self, actions: Mapping[str, Mapping[int, Any]]) -> None:
        self._contract.step_once(actions)

    def requesting(self) -> list[str]:
        return [agent for agent, _, _, row in self._rows() if agent in self.playing and row.requests_decision]

    def outcomes(self) -> dict[str, tuple[float, bool, bool]]:
        """Return reward, terminated and truncated."""
        return {
            agent: (row.reward + row.group_reward, row.terminated and ended, row.truncated and ended)
            for agent, (row, ended) in self._reported.items()
        }


@pytest.fixture(scope="module")
def any_game(play: Make) -> Game:
    return play(unity_gym.parallel_env, wait_for="any")


@few_scenes
@given(seed=SEEDS)
@example(seed=1691)  # an agent that has left its group gets its last group reward
def test_pettingzoos_parallel_env_reports_every_player_step(any_game: Game, seed: int) -> None:
    """With wait_for="any", agents that request no decision need no action."""
    env, logs = any_game
    rng = np.random.default_rng(seed)
    env.reset(seed)
    contract = Contract(logs)
    agents = Exchanges(contract, env)
    for _ in range(STEPS):
        if not env.agents:
            env.reset()
            (contract.resume if agents.goes_on else contract.reset)()
            agents = Exchanges(contract, env)
        assert sorted(env.requesting_agents()) == sorted(agents.requesting())
        actions = {agent: sample(env, agent, rng) for agent in agents.requesting()}
        if rng.random() < 0.5:
            actions = {agent: sample(env, agent, rng) for agent in env.agents} | actions
        observations, *outcomes, infos = env.step(actions)
        agents.step({agent: action for agent, action in actions.items() if agent in agents.requesting()})
        contract.nothing_more_was_exchanged()
        assert observations.keys() == agents.reported
        for agent in agents.reported:
            agents.check_observation(agent, observations[agent])
            agents.check_outcome(agent, *(part[agent] for part in outcomes), infos[agent])
            assert infos[agent]["requests_decision"] == (agent in agents.requesting())
        assert set(env.agents) == agents.playing


@pytest.fixture(scope="module")
def turns(play: Make) -> Game:
    return play(unity_gym.aec_env, observations="sensors")


@few_scenes
@given(seed=SEEDS)
def test_pettingzoos_aec_env_selects_deciding_agents_in_order(turns: Game, seed: int) -> None:
    """The turns are those of the agents that ended, then those of the agents that request a decision. The player
    advances after the last of them, until an agent requests a decision again."""
    env, logs = turns
    rng = np.random.default_rng(seed)
    env.reset(seed)
    contract = Contract(logs)
    agents = Exchanges(contract, env)
    returns = dict.fromkeys(agents.playing, 0.0)
    ended: set[str] = set()
    for _ in range(STEPS):
        actions = {}
        visited = []
        expected = agents.requesting()
        while len(visited) < len(ended) + len(expected):
            agent = env.agent_selection
            visited.append(agent)
            observation, reward, terminated, truncated, _ = env.last()
            assert reward == pytest.approx(returns[agent])
            assert (terminated or truncated) == (agent in ended)
            if agent in ended:
                env.step(None)
            else:
                agents.check_observation(agent, observation)
                actions[agent] = sample(env, agent, rng)
                returns[agent] = 0.0
                env.step(actions[agent])
        assert set(visited[: len(ended)]) == ended
        assert sorted(visited[len(ended) :]) == sorted(expected)
        ended = set()
        if not expected:
            assert not env.agents
            env.reset()
            (contract.resume if agents.goes_on else contract.reset)()
            agents = Exchanges(contract, env)
            returns = dict.fromkeys(agents.playing, 0.0)
            continue
        while True:
            agents.step(actions)
            actions = {}
            for agent, (reward, terminated, truncated) in agents.outcomes().items():
                returns[agent] = returns.get(agent, 0.0) + reward
                if terminated or truncated:
                    ended.add(agent)
            if agents.requesting() or not agents.playing:
                break
        contract.nothing_more_was_exchanged()
