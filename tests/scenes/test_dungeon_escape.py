"""DungeonEscape: observations, deaths of agents, and episode ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.dungeon_escape import DungeonEscape
from unity_gym.specs import ActionTuple, Array, DecisionSteps, TerminalSteps

NAME = "DungeonEscape?team=0"
NOTHING, FORWARD = 0, 1
WALL, AGENT, DRAGON, KEY, LOCK, PORTAL, NO_HIT, FRACTION = range(8)
LENGTH = 40.0


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, DungeonEscape]]:
    """Start one platform with its agents in a row at the left wall, facing right, and a dragon at rest at the top."""
    with held_scene(DungeonEscape) as (env, scene):
        for agent in range(3):
            put(scene, agent, -10, 2 * agent - 2, 90)
        scene.dragon_speed[:] = 0
        put_dragon(scene, 0, 8)
        yield env, scene


def put(scene: DungeonEscape, agent: int, x: float, z: float, degrees: float = 0) -> None:
    scene.shapes.center[:, 0, agent] = x, 0.5 - 2e-5, z
    scene.shapes.yaw[0, agent] = np.radians(degrees)
    scene.bodies.velocity[:, 0, agent] = 0


def put_dragon(scene: DungeonEscape, x: float, z: float) -> None:
    scene.shapes.center[::2, 0, scene.shapes.index("dragon")] = x, z


def step(env: UnityEnvironment, *actions: int) -> tuple[DecisionSteps, TerminalSteps]:
    """Make one decision; agents without an action do nothing."""
    n = len(env.get_steps(NAME)[0])
    chosen = np.zeros((n, 1), np.int32)
    chosen[: len(actions), 0] = actions
    env.set_actions(NAME, ActionTuple(discrete=chosen))
    env.step()
    return env.get_steps(NAME)


def is_there(scene: DungeonEscape, thing: str) -> bool:
    return bool(scene.shapes.visible[0, scene.shapes.index(thing)])


def rays(env: UnityEnvironment, agent: int = 0) -> Array:
    """Return the newest rays, one per row."""
    return env.get_steps(NAME)[0].obs[1][agent].reshape(3, 15, 8)[-1]


def feed(env: UnityEnvironment, scene: DungeonEscape) -> tuple[DecisionSteps, TerminalSteps]:
    """Move the first agent into the dragon."""
    put(scene, 0, 0, 5, 0)
    put_dragon(scene, 0, 6.8)
    return step(env, FORWARD)


def test_thirty_six_agents_in_groups_of_three_observe_velocity_rays_and_key_possession() -> None:
    with UnityEnvironment("embedded:DungeonEscape") as env:
        env.reset()
        spec = env.behavior_specs[NAME]
        assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
            ("RBSensor", (10,)),
            ("StackingSensor_size3_RayPerceptionSensor", (360,)),
            ("VectorSensor_size1", (1,)),
        ]
        assert spec.action_spec.discrete_branches == (7,)
        decisions, _ = env.get_steps(NAME)
        assert decisions.group_id.tolist() == np.repeat(np.arange(1, 13), 3).tolist()


def test_rays_see_walls_door_portal_and_pillars(held) -> None:
    env, scene = held
    put(scene, 0, 0, 0, 0)
    put_dragon(scene, -5, 0)
    step(env)
    assert rays(env)[0] == pytest.approx([0, 0, 0, 0, 1, 0, 0, (12.065 - 0.5) / LENGTH], abs=1e-4)
    put(scene, 0, 6, -7, 135)
    step(env)
    ahead = rays(env)[0]
    assert list(ahead[:NO_HIT]) == [0, 0, 0, 0, 0, 1]
    assert ahead[FRACTION] * LENGTH == pytest.approx((5.83 + 4.77) / np.sqrt(2) - 0.88 - 0.5, abs=0.05)
    put(scene, 0, 4.5, 0, 0)
    step(env)
    assert rays(env)[0] == pytest.approx([1, 0, 0, 0, 0, 0, 0, (4 - 0.8 - 0.5) / LENGTH], abs=1e-4)


def test_rays_see_the_dragons_key_before_the_dragon(held) -> None:
    env, scene = held
    put_dragon(scene, -5, 0)
    put(scene, 0, 5, -6, -60)  # before it
    put(scene, 1, -9, -2, 45)  # behind it
    put(scene, 2, -9, 5, 90)
    step(env)
    assert rays(env, 0)[:, KEY].any()
    assert rays(env, 1)[:, DRAGON].any()
    assert not rays(env, 1)[:, KEY].any()


def test_an_agent_that_touches_the_dragon_dies_with_it_and_the_key_is_dropped(held) -> None:
    env, scene = held
    step(env)
    decisions, terminals = feed(env, scene)
    assert terminals.agent_id.tolist() == [0]
    assert not terminals.interrupted[0]
    assert terminals.group_id.tolist() == [1]
    assert not terminals.group_reward.any()
    if not len(decisions):  # the death is sent at once, between decisions
        decisions, terminals = step(env)
    assert decisions.agent_id.tolist() == [1, 2]
    assert decisions.group_id.tolist() == [1, 1]
    assert [is_there(scene, thing) for thing in ("dragon", "key on dragon", "key", "tombstone")] == [0, 0, 1, 1]
    key, tombstone = (scene.shapes.center[::2, 0, scene.shapes.index(thing)] for thing in ("key", "tombstone"))
    way = np.array([11.58, -11.59 - 6.8]) / np.hypot(11.58, 11.59 + 6.8)  # of the dragon, from (0, 6.8) to the portal
    assert key == pytest.approx(np.array([0, 6.8]) + 0.186 * np.array([-way[1], way[0]]), abs=1e-6)  # at its left
    assert tombstone == pytest.approx([0, 5.4], abs=0.3)


def test_the_dragon_carries_its_key_low_at_the_front_right(held) -> None:
    env, scene = held
    put_dragon(scene, -5, 0)
    step(env)
    shapes, key, dragon = scene.shapes, scene.shapes.index("key on dragon"), scene.shapes.index("dragon")
    apart, yaw = shapes.center[:, 0, key] - shapes.center[:, 0, dragon], shapes.yaw[0, dragon]
    assert np.sin(yaw) * apart[0] + np.cos(yaw) * apart[2] == pytest.approx(0.939)
    assert np.cos(yaw) * apart[0] - np.sin(yaw) * apart[2] == pytest.approx(0.186)
    low, high = (shapes.center[1, 0, key] + side * shapes.half[1, 0, key] for side in (-1, 1))
    assert (low, high) == pytest.approx((0.195, 0.651))


def test_the_tombstone_is_a_slab_on_a_low_foot_that_stops_agents(held) -> None:
    env, scene = held
    feed(env, scene)
    shapes = scene.shapes
    slab, foot = shapes.index("tombstone"), shapes.index("foot of tombstone")
    assert 2 * shapes.half[:, 0, slab] == pytest.approx([1.05, 1.42, 0.33])
    assert 2 * shapes.half[:, 0, foot] == pytest.approx([1.21, 0.44, 0.52])
    assert shapes.center[::2, 0, slab].tolist() == shapes.center[::2, 0, foot].tolist()
    x, z = shapes.center[::2, 0, foot]
    put(scene, 1, x, z - 2, 0)
    for _ in range(6):
        step(env, FORWARD)
    assert shapes.center[2, 0, 1] == pytest.approx(z - 0.26 - 0.5, abs=0.05)  # before the foot, 0.1 m before the slab


def test_the_key_opens_the_door_and_rewards_the_active_agents(held) -> None:
    env, scene = held
    feed(env, scene)
    put(scene, 1, 0, 6.8)
    decisions, _ = step(env)
    while not len(decisions):
        decisions, _ = step(env)
    decisions, _ = step(env)
    assert decisions.obs[2].tolist() == [[1], [0]]
    assert not is_there(scene, "key")

    put(scene, 2, 1, 11.5, 0)
    assert not len(step(env, NOTHING, FORWARD)[1])  # not without the key
    put(scene, 1, -1, 11.2, 0)
    _, terminals = step(env, FORWARD, NOTHING)
    assert terminals.agent_id.tolist() == [1, 2]
    assert terminals.group_reward.tolist() == [1, 1]
    assert not terminals.interrupted.any()
    assert terminals.obs[2].tolist() == [[1], [0]]
    # The dead agent returns as a new one, in the old group.
    decisions, _ = env.get_steps(NAME)
    while len(decisions) < 3:
        known = set(decisions.agent_id.tolist())
        decisions, _ = step(env)
        assert known <= {1, 2, 3}
    assert sorted(decisions.agent_id.tolist()) == [1, 2, 3]
    assert decisions.group_id.tolist() == [1, 1, 1]
    assert not decisions.obs[2].any()
    assert is_there(scene, "dragon")
    assert not is_there(scene, "tombstone")


def test_the_dragon_reaches_the_portal_and_the_episode_ends_without_a_reward(held) -> None:
    env, scene = held
    put_dragon(scene, 9.3, -9.3)
    scene.dragon_speed[:] = 5
    way = []
    for _ in range(30):
        way.append(scene.shapes.center[::2, 0, scene.shapes.index("dragon")].copy())
        _, terminals = step(env)
        if len(terminals):
            break
    assert terminals.agent_id.tolist() == [0, 1, 2]
    assert not terminals.interrupted.any()
    assert not terminals.group_reward.any()
    assert np.hypot(*(way[1] - way[0])) == pytest.approx(5 * 5 * 0.02)


def test_dragons_start_in_four_places_and_with_speeds_from_one_to_seven() -> None:
    with held_scene(DungeonEscape, areas=100) as (_, scene):
        places = scene.shapes.center[::2, :, scene.shapes.index("dragon")].T
        starts = {tuple(place) for place in (np.round(places / 8) * 8 + 0.0).tolist()}
        assert starts == {(0, 8), (8, 0), (0, -8), (-8, 0)}
        assert scene.dragon_speed.min() > 1
        assert scene.dragon_speed.max() < 7
        assert np.ptp(scene.dragon_speed) > 5
        agents = scene.shapes.center[::2, :, :3]
        assert np.abs(agents).max() <= 6.25
        pillars = scene.shapes.center[::2, :1, 5:9]
        apart = np.abs(agents[:, :, :, np.newaxis] - pillars[:, :, np.newaxis]).max(axis=0)
        assert apart.min() > 2.5 + 0.84


def test_an_agent_that_touches_the_portal_dies_and_the_last_one_ends_the_episode(held) -> None:
    env, scene = held
    step(env)
    for agent in range(3):
        put(scene, agent, 10.5, -10.5, 135)
        _, terminals = step(env, FORWARD)
        assert terminals.agent_id.tolist() == ([0], [1], [2])[agent]
        assert not terminals.interrupted.any()
        while not len(env.get_steps(NAME)[0]):
            step(env)
    assert scene.agents.enabled.all()
    assert sorted(scene.agents.id.tolist()) == [2, 3, 4]
    assert scene.agents.group_id.tolist() == [1, 1, 1]


def test_the_key_in_the_portal_ends_the_episode(held) -> None:
    env, scene = held
    step(env)
    scene.has_key[0, 0] = True
    put(scene, 0, 10.5, -10.5, 135)
    _, terminals = step(env, FORWARD)
    assert terminals.agent_id.tolist() == [0, 1, 2]
    assert not terminals.group_reward.any()
    assert not scene.has_key.any()


def test_15000_ticks_interrupt_the_episode_of_the_remaining_agents(held) -> None:
    env, scene = held
    feed(env, scene)
    scene.ticks[:] = 15000 - 2
    terminals = step(env)[1]
    while not len(terminals):
        terminals = step(env)[1]
    assert terminals.agent_id.tolist() == [1, 2]
    assert terminals.interrupted.all()


def test_after_the_last_agent_died_nothing_happens_until_the_step_limit(held) -> None:
    env, scene = held
    step(env)
    for agent in (1, 2):
        put(scene, agent, 10.5, -10.5, 135)
        step(env, *[FORWARD] * len(env.get_steps(NAME)[0]))
        while not len(env.get_steps(NAME)[0]):
            step(env)
    scene.ticks[:] = 15000 - 100
    _, terminals = feed(env, scene)
    assert terminals.agent_id.tolist() == [0]
    before = scene.ticks[0]
    env.step()  # no agent requests a decision until all of them return
    decisions, terminals = env.get_steps(NAME)
    assert not len(terminals)
    assert len(decisions) == 3
    assert scene.ticks[0] < before


def test_agents_cannot_pass_walls_pillars_door_and_portal(held) -> None:
    env, scene = held
    rng = np.random.default_rng(0)
    for _ in range(120):
        step(env, *rng.choice([1, 1, 1, 2, 3, 4, 5, 6], len(env.get_steps(NAME)[0])))
        x, _, z = scene.shapes.center[:, 0, :3][:, scene.agents.enabled]
        assert max(np.abs(x).max(initial=0), np.abs(z).max(initial=0)) < 12.5
        assert (x - z).max(initial=0) < 23.5
        for pillar in range(5, 9):
            px, _, pz = scene.shapes.center[:, 0, pillar]
            assert (np.maximum(np.abs(x - px), np.abs(z - pz)) > 0.7).all()


def escape(scene: DungeonEscape, rows: Array, rng: np.random.Generator) -> list[int]:
    """Walk the first active agent to the dragon; once it is dead, walk the others to the key, then to the door.

    Random moves lead them around obstacles.
    """
    shapes = scene.shapes
    actions = []
    for row in rows:
        area, agent = divmod(int(row), 3)
        alive = np.flatnonzero(scene.agents.enabled[3 * area : 3 * area + 3])
        if shapes.visible[area, shapes.index("dragon")]:
            goal = "dragon" if agent == alive[0] else ""
        elif shapes.visible[area, shapes.index("key")]:
            goal = "key" if agent == alive[0] else ""
        else:
            goal = "lock" if scene.has_key[area, agent] else ""
        if not goal or rng.random() < 0.2:
            actions.append(int(rng.integers(7)) if goal else NOTHING)
            continue
        x, _, z = shapes.center[:, area, shapes.index(goal)] - shapes.center[:, area, agent]
        off = (np.degrees(np.arctan2(x, z) - shapes.yaw[area, agent]) + 180) % 360 - 180
        actions.append(FORWARD if abs(off) < 15 else 3 if off > 0 else 4)
    return actions


def test_a_policy_that_sacrifices_one_agent_escapes() -> None:
    with held_scene(DungeonEscape, areas=12) as (env, scene):
        rng, won, lost = np.random.default_rng(0), 0, 0
        for _ in range(150):
            rows = {int(number): row for row, number in enumerate(scene.agents.id)}
            decisions, terminals = env.get_steps(NAME)
            groups, first = np.unique(terminals.group_id, return_index=True)
            whole = np.array([(terminals.group_id == group).sum() > 1 for group in groups], bool)
            won += int((whole & (terminals.group_reward[first] == 1)).sum())
            lost += int((whole & (terminals.group_reward[first] == 0)).sum())
            step(env, *escape(scene, np.array([rows[number] for number in decisions.agent_id.tolist()], int), rng))
    assert won > max(5, 2 * lost)
