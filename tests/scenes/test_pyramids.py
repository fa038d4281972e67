"""Pyramids: observations, physics, rewards and resets, compared with Unity's own demonstration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.demonstrations import load
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.pyramids import LAYERS, Pyramids
from unity_gym.specs import ActionTuple, Array

NAME = "Pyramids?team=0"
DEMONSTRATION = Path(__file__).resolve().parents[2] / "../shared/unity/demonstrations/ExpertPyramid.demo"
NOTHING, FORWARD, BACKWARD, TURN_RIGHT, TURN_LEFT = range(5)
BLOCK, WALL, GOAL, SWITCH_OFF, SWITCH_ON, STONE, NO_HIT, FRACTION = range(8)
LENGTH = 35.0
TICK = 0.02

# Where the demonstrating agent was (x, z, yaw in degrees) in four records, for how many decisions it then touched
# nothing, and the roots (x, z) of stone pyramids that it saw. The places were found by matching rays.
COURSES = [
    (264, 10.617, 25.614, 74, 43, [(24.477, -3.207), (22.313, -31.400)]),
    (765, -41.171, -19.949, 156, 34, [(-9.391, -22.796)]),
    (1183, 13.834, -28.627, 81, 18, []),
    (
        1303,
        16.898,
        2.598,
        110,
        59,
        [(35.068, 5.716), (28.813, -40.094), (29.299, 29.954), (4.4, 19.794), (-29.291, 26.952)],
    ),
]


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, Pyramids]]:
    with held_scene(Pyramids) as (env, scene):
        yield env, scene


@pytest.fixture(scope="module")
def demonstration():
    if not DEMONSTRATION.exists():
        pytest.skip(f"Unity's demonstration is not at {DEMONSTRATION}")
    return load(DEMONSTRATION)


def columns(scene: Pyramids, start: str) -> list[int]:
    """Return the indices of the objects whose names start with `name`."""
    return [column for column, name in enumerate(scene.shapes.names) if name.startswith(start)]


def put(scene: Pyramids, x: float, z: float, degrees: float = 0, area: int = 0, speed: float = 0) -> None:
    """Place the agent on the ground, moving forward at a speed."""
    yaw = np.radians(degrees)
    scene.shapes.center[:, area, 0] = x, 0.5 - 2e-5, z
    scene.shapes.yaw[area, 0] = yaw
    scene.bodies.velocity[:, area, 0] = speed * np.sin(yaw), 0, speed * np.cos(yaw)


def move_away(scene: Pyramids) -> None:
    """Remove all objects except the agents and the walls."""
    things = [*columns(scene, "switch"), *columns(scene, "button"), *columns(scene, "stones")]
    scene.shapes.center[1, :, things] -= 100


def step(env: UnityEnvironment, *actions: int) -> None:
    """Make one decision of all requesting agents, with one action per agent or one for all."""
    n = len(env.get_steps(NAME)[0])
    chosen = np.broadcast_to(np.array(actions, np.int32).reshape(-1, 1), (n, 1))
    env.set_actions(NAME, ActionTuple(discrete=chosen))
    env.step()


def press(env: UnityEnvironment, scene: Pyramids) -> None:
    """Press the switch of the first area, which has landed."""
    scene.shapes.center[1, 0, 1], scene.bodies.velocity[1, 0, 1] = 2, 0
    x, _, z = scene.shapes.center[:, 0, 1]
    put(scene, x - 3, z, 90)
    step(env, FORWARD)
    step(env, FORWARD)
    assert scene.shapes.visible[0, 3]


def test_16_agents_observe_three_ray_sensors_and_a_vector_and_take_one_of_five_actions() -> None:
    with UnityEnvironment("embedded:Pyramids") as env:
        env.reset()
        spec = env.behavior_specs[NAME]
        assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
            ("RayPerceptionSensor", (56,)),
            ("RayPerceptionSensor1", (56,)),
            ("RayPerceptionSensor2", (56,)),
            ("VectorSensor_size4", (4,)),
        ]
        assert (spec.action_spec.continuous_size, spec.action_spec.discrete_branches) == (0, (5,))
        assert len(env.get_steps(NAME)[0]) == 16


def test_episodes_start_with_everything_in_a_zone_of_its_own() -> None:
    with held_scene(Pyramids, areas=64) as (env, scene):
        put(scene, 0, 0, speed=20)
        env.reset()
        shapes = scene.shapes
        roots = np.stack(
            [shapes.center[::2, :, column] for column in (0, 1)]
            + [shapes.center[::2, :, column] - [[0.43], [0.78]] for column in columns(scene, "stones")[::4]],
            axis=-1,
        )
        zones = np.rint(roots / 30)
        assert (np.abs(roots - 30 * zones) <= 25 / 2.1 + 1e-9).all()
        assert all(len(set(zip(*zones[:, area].astype(int), strict=True))) == 8 for area in range(64))
        degrees = np.degrees(shapes.yaw[:, 0])
        assert np.abs(degrees - np.rint(degrees)).max() < 1e-9
        assert len(set(np.rint(degrees))) > 30
        assert (shapes.center[1, :, 0] > 1.99).all()
        assert not scene.bodies.velocity[::2].any()
        assert not shapes.visible[:, 3:29].any()


@pytest.mark.parametrize(
    ("action", "ahead", "degrees"),
    [(NOTHING, 0, 0), (FORWARD, 2, 0), (BACKWARD, -2, 0), (TURN_RIGHT, 0, 20), (TURN_LEFT, 0, -20)],
)
def test_actions_push_and_turn_in_each_of_five_ticks(held, action, ahead, degrees) -> None:
    env, scene = held
    move_away(scene)
    put(scene, 0, 0, 30)
    scene.shapes.center[1, 0, 0] = 5  # in the air
    speed, moved = 0.0, 0.0
    for _ in range(5):
        speed = (speed + ahead) * 0.96
        moved += speed * TICK
    step(env, action)
    x, _, z = scene.shapes.center[:, 0, 0]
    assert (x, z) == pytest.approx((moved * np.sin(np.radians(30)), moved * np.cos(np.radians(30))))
    assert np.degrees(scene.shapes.yaw[0, 0]) == pytest.approx(30 + degrees)


def test_the_vector_contains_the_switch_and_the_velocity_along_the_agents_axes(held) -> None:
    env, scene = held
    move_away(scene)
    step(env, NOTHING)
    put(scene, 0, 0, 90)
    scene.shapes.center[1, 0, 0] = 5
    scene.bodies.velocity[:, 0, 0] = 3, 2, 1
    observed = scene.agents._sensors[3].observe(np.arange(1))
    assert observed[0] == pytest.approx([0, -1, 2, 3])
    scene._set_switch(np.arange(1), True)
    assert scene.agents._sensors[3].observe(np.arange(1))[0, 0] == 1


def test_rays_see_objects_by_their_heights(held) -> None:
    _, scene = held
    put(scene, 0, 0)
    scene._set_switch(np.arange(1), True)
    shapes = scene.shapes
    shapes.center[:, :, 1:] += 1000

    def see(thing: str, x: float, y: float, z: float) -> list[tuple[int, float]]:
        """Return the tags and distances of the middle rays of the three sensors."""
        column = shapes.index(thing)
        before = shapes.center[:, 0, column].copy()
        shapes.center[:, 0, column] = x, y, z
        seen = [sensor.observe(np.arange(1)).reshape(7, 8)[0] for sensor in scene.agents._sensors[:3]]
        shapes.center[:, 0, column] = before
        assert all(row[:7].sum() == 1 for row in seen)
        return [(int(row[:7].argmax()), float(row[FRACTION] * LENGTH)) for row in seen]

    ahead = pytest.approx(20 - 1 - 0.5, abs=0.02)
    assert see("gold", 0, 1, 20) == [(GOAL, ahead), (NO_HIT, LENGTH), (NO_HIT, LENGTH)]
    assert [tag for tag, _ in see("gold", 0, 5, 15)] == [NO_HIT, NO_HIT, GOAL]
    assert see("brick 1", 0, 0.5, 10)[0] == (BLOCK, pytest.approx(9, abs=1e-4))
    assert see("stones 0.0", 0, 0.5, 10)[0] == (STONE, pytest.approx(7.16, abs=1e-4))
    assert [tag for tag, _ in see("stones 0.2", 0, 2.5, 10)] == [NO_HIT, STONE, STONE]
    assert [tag for tag, _ in see("switch", 0, 2, 10)] == [SWITCH_ON] * 3
    scene._set_switch(np.arange(1), False)
    assert [tag for tag, _ in see("switch", 0, 2, 10)] == [SWITCH_OFF] * 3


def test_the_switch_gives_no_reward_and_spawns_a_pyramid_with_gold(held) -> None:
    env, scene = held
    press(env, scene)
    decisions, terminals = env.get_steps(NAME)
    assert not len(terminals)
    assert decisions.reward[0] == pytest.approx(-5 / 5000)
    assert decisions.obs[3][0, 0] == 1
    shapes = scene.shapes
    assert shapes.visible[0, 3:29].all()
    gold_x, gold_y, gold_z = shapes.center[:, 0, 3]
    bricks = shapes.center[:, 0, 4:29]
    assert gold_y == 5
    assert [(bricks[1] == height).sum() for height in (0.5, 1.5, 2.5, 3.5)] == [12, 8, 4, 1]
    assert np.abs(bricks[::2] - [[gold_x], [gold_z]]).max() < 2.5
    zone = np.rint(np.array([gold_x - 0.45, gold_z - 0.8]) / 30)
    others = [shapes.center[::2, 0, 1], *(shapes.center[::2, 0, c] for c in columns(scene, "stones")[::4])]
    assert all((np.rint(np.array(other) / 30) != zone).any() for other in others)

    # It stands until an agent touches it, and another touch of the switch changes nothing.
    before = shapes.center[:, 0, 3:29].copy()
    press(env, scene)
    assert (shapes.center[:, 0, 3:29] == before).all()


def test_the_gold_gives_two_and_ends_the_episode(held) -> None:
    env, scene = held
    press(env, scene)
    move_away(scene)
    shapes = scene.shapes
    shapes.center[:, 0, 3] = 0, 1, 3  # the gold on the floor
    put(scene, 0, 0)
    step(env, FORWARD)
    assert not len(env.get_steps(NAME)[1])
    step(env, FORWARD)
    while not len(env.get_steps(NAME)[1]):
        step(env, FORWARD)
    decisions, terminals = env.get_steps(NAME)
    assert terminals.reward[0] == 2
    assert not terminals.interrupted[0]
    assert not scene.shapes.visible[0, 3]
    assert not scene._is_on[0]
    while not len(decisions):
        env.step()
        decisions, _ = env.get_steps(NAME)
    assert -5 / 5000 < decisions.reward[0] <= 0  # penalty of idle ticks
    assert decisions.obs[3][0, 0] == 0


def test_every_tick_has_a_penalty_and_5000_ticks_interrupt_the_episode(held) -> None:
    env, scene = held
    scene.agents.step_count[:] = 4951  # one tick has passed
    total = 0.0
    for _ in range(10):
        step(env, NOTHING)
        decisions, terminals = env.get_steps(NAME)
        total += float(decisions.reward.sum()) if not len(terminals) else 0
    assert terminals.interrupted[0]
    assert total + terminals.reward[0] == pytest.approx(-50 / 5000)


def rammer(scene: Pyramids, retreats: Array) -> Array:
    """Return actions of policies that rush at the gold and step back where they get stuck.

    :param retreats: Remaining decisions of stepping back, int (areas,); changed in place.
    """
    x, _, z = scene.shapes.center[:, :, 3] - scene.shapes.center[:, :, 0]
    velocity, yaw = scene.bodies.velocity[:, :, 0], scene.shapes.yaw[:, 0]
    error = (np.arctan2(x, z) - yaw + np.pi) % (2 * np.pi) - np.pi
    ahead = velocity[0] * np.sin(yaw) + velocity[2] * np.cos(yaw)
    aim = np.where(np.abs(error) < np.radians(12), FORWARD, np.where(error > 0, TURN_RIGHT, TURN_LEFT))
    stuck = (aim == FORWARD) & (np.abs(ahead) < 4) & (np.hypot(x, z) < 5) & (retreats == 0)
    np.copyto(retreats, np.where(stuck, 6, np.maximum(retreats - 1, 0)))
    return np.where(retreats > 1, BACKWARD, aim)


def test_policies_that_charge_the_pyramid_get_the_gold() -> None:
    n = 16
    with held_scene(Pyramids, areas=n) as (env, scene):
        move_away(scene)
        scene._zones[:, 2] = 4
        scene._set_switch(np.arange(n), True)
        for area, angle in enumerate(np.linspace(0, 2 * np.pi, n, endpoint=False)):
            x, _, z = scene.shapes.center[:, area, 3]
            put(scene, x + 9 * np.sin(angle), z + 9 * np.cos(angle), np.degrees(angle) + 180, area, speed=16)
        retreats, rewards, slowest = np.zeros(n, int), {}, np.full(n, np.inf)
        for decision in range(400):
            decisions, terminals = env.get_steps(NAME)
            rewards |= {
                agent: reward
                for agent, reward in zip(terminals.agent_id.tolist(), terminals.reward.tolist(), strict=True)
                if agent not in rewards
            }
            if len(rewards) == n:
                break
            center = scene.shapes.center[:, :, 3:29]
            playing = np.array([area not in rewards for area in range(n)])
            assert (center[1, playing] >= scene.shapes.half[1, playing, 3:29] - 1e-9).all()
            if 2 <= decision < 5:
                speed = np.hypot(*scene.bodies.velocity[::2, :, 0])
                slowest = np.minimum(slowest, speed)
            step(env, *rammer(scene, retreats)[decisions.agent_id])
        assert sorted(rewards.values()) == [2] * n
        # The first contact takes a quarter or more of the speed: from 20.7, 37.8 and 38.6 m/s the demonstration's agent
        # goes to 15.7, 22.9 and 24.1 m/s.
        assert 10 < np.median(slowest) < 20


def test_a_heap_comes_to_rest_within_the_walls() -> None:
    with held_scene(Pyramids, areas=8) as (env, scene):
        move_away(scene)
        scene._zones[:, 2] = 8
        rows = np.arange(8)
        scene._set_switch(rows, True)
        # In the corner of the arena, with the agent on the inside.
        shift = 47 - scene.shapes.center[::2, :, 3]
        scene.shapes.center[::2, :, 3:29] += shift[..., np.newaxis]
        for area in rows:
            put(scene, 47 - 5 - area / 8, 47 - 6, 45, area, speed=20)
        for _ in range(6):
            step(env, FORWARD)
        assert (scene.heap.velocity != 0).any(axis=(0, 2)).all()
        for _ in range(8):
            step(env, BACKWARD)
        for _ in range(20):
            step(env, NOTHING)
        where = scene.shapes.center[:, :, 3:29]
        before = where.copy()
        step(env, NOTHING)
        assert (where == before).all()
        assert (where[::2] < 49.5).all()


def test_observations_have_the_values_of_unitys_demonstration(demonstration) -> None:
    expected = demonstration.record_observations
    n = 64
    with held_scene(Pyramids, areas=n) as (env, scene):
        rng, retreats = np.random.default_rng(0), np.zeros(n, int)
        rows = np.arange(n)
        scene._set_switch(rows[::2], True)
        seen = [[], [], [], []]
        for _ in range(200):
            decisions, _ = env.get_steps(NAME)
            for column, observation in zip(seen, decisions.obs, strict=True):
                column.append(observation)
            acts = np.where(rng.random(n) < 0.2, rng.integers(5, size=n), rammer(scene, retreats))
            step(env, *acts[decisions.agent_id])
    ours = [np.concatenate(column) for column in seen]
    for sensor, (actual, other) in enumerate(zip(ours[:3], expected[:3], strict=True)):
        actual, other = (observation.reshape(-1, 7, 8) for observation in (actual, other))
        for observation in (actual, other):
            flags = observation[..., :7]
            assert set(np.unique(flags)) == {0, 1}
            assert set(np.unique(flags.sum(axis=-1))) <= {0, 1}
            hit = observation[..., NO_HIT] == 0
            assert (observation[..., FRACTION][~hit] == 1).all()
            assert ((observation[..., FRACTION][hit] >= 0) & (observation[..., FRACTION][hit] <= 1)).all()
        # Rising rays pass over walls, stones and switches that are too far: never farther than in Unity.
        for tag in (WALL, STONE, GOAL):
            far = [observation[observation[..., tag] == 1][:, FRACTION].max() for observation in (actual, other)]
            assert sensor == 0 or far[0] <= far[1] + 0.02
    assert set(np.unique(expected[3][:, 0])) == {0, 1}
    assert np.abs(ours[3][:, 1:]).max() < 48


@pytest.mark.parametrize(
    ("x", "z", "degrees", "face"),
    [
        (42, 0, 0, 16.058),
        (42, 0, 180, 15.942),
        (-42, 0, 180, 16.058),
        (-42, 0, 0, 15.942),
        (0, -42, 90, 16.058),
        (0, -42, 270, 15.942),
        (0, 42, 270, 16.058),
        (0, 42, 90, 15.942),
    ],
)
def test_eight_side_walls_divide_the_outer_zones(held, x: float, z: float, degrees: float, face: float) -> None:
    """SideWall1 to SideWall8 of Unity's area, seen from between two of them."""
    _, scene = held
    move_away(scene)
    put(scene, x, z, degrees)
    ahead = scene.agents._sensors[0].observe(np.arange(1)).reshape(7, 8)[0]
    assert ahead[WALL] == 1
    assert ahead[FRACTION] * LENGTH == pytest.approx(face - 0.5, abs=1e-3)


def test_rays_meet_the_walls_of_the_northwestern_zone_where_unitys_demonstration_has_them(held, demonstration) -> None:
    _, scene = held
    move_away(scene)
    for record, x, z, degrees in ((333, -33.5304, 18.358, 334), (339, -39.0949, 29.0747, 254)):
        put(scene, x, z, degrees)
        for sensor in range(3):
            expected = demonstration.record_observations[sensor][record].reshape(7, 8)
            ours = scene.agents._sensors[sensor].observe(np.arange(1)).reshape(7, 8)
            seen = expected[:, WALL] == 1
            assert (ours[seen, WALL] == 1).all()
            assert np.abs(ours - expected)[seen, FRACTION].max() * LENGTH < 0.002


def test_a_switch_falls_from_two_meters_and_hides_nothing_until_then(held) -> None:
    env, scene = held
    height = scene.shapes.center[1, 0]
    assert height[1] == 4  # of its center
    move_away(scene)
    scene.shapes.center[:, 0, 1] = 0, 4, 10
    scene.shapes.center[::2, 0, 2] = 0, 10
    put(scene, 0, 0)
    step(env, NOTHING)
    assert not scene.agents._sensors[0].observe(np.arange(1)).reshape(7, 8)[0, SWITCH_OFF]
    for _ in range(7):
        step(env, NOTHING)
    assert height[1:3] == pytest.approx([2, 1.375], abs=1e-3)
    ahead = scene.agents._sensors[0].observe(np.arange(1)).reshape(7, 8)[0]
    assert ahead[SWITCH_OFF]
    assert ahead[FRACTION] * LENGTH == pytest.approx(10 - 2 - 0.5, abs=1e-3)


def test_a_fast_agent_plows_through_the_switch_as_in_unitys_demonstration(held, demonstration) -> None:
    """The switch weighs 1 kg: contacts take 1/26 of the agent's speed per tick, then throw the switch up."""
    env, scene = held
    move_away(scene)
    chosen = dict(zip(demonstration.rows.tolist(), demonstration.actions.discrete[:, 0].tolist(), strict=True))
    record, degrees = 333, 334
    put(scene, -33.5304, 18.358, degrees)
    scene.shapes.center[:, 0, 1] = -38.84, 2, 27.585  # where rays meet it
    scene.bodies.velocity[1, 0, 1] = 0
    right, _, ahead = demonstration.record_observations[3][record, 1:]
    sin, cos = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    scene.bodies.velocity[:, 0, 0] = cos * right + sin * ahead, 0, cos * ahead - sin * right
    for decision, most in enumerate((0.01, 0.01, 0.15, 0.5, 0.5)):  # m/s; the hit is in the third decision
        step(env, chosen[record + decision])
        ours = env.get_steps(NAME)[0].obs[3][0]
        expected = demonstration.record_observations[3][record + decision + 1]
        assert np.abs(ours - expected)[1:].max() < most
        assert scene._is_on[0] == expected[0]
    assert scene.shapes.center[0, 0, 1] == -38.84
    assert scene.shapes.center[1, 0, 1] > 2.5


def test_every_transition_of_the_demonstration_without_a_contact_has_the_recorded_velocity(demonstration) -> None:
    velocities = demonstration.record_observations[3][:, 1:]
    rows = demonstration.rows[~(demonstration.terminated | demonstration.truncated)]
    rows = rows[(np.abs(velocities[rows, 1]) < 1e-6) & (np.abs(velocities[rows + 1, 1]) < 1e-6)]
    chosen = dict(zip(demonstration.rows.tolist(), demonstration.actions.discrete[:, 0].tolist(), strict=True))
    speeds = np.hypot(velocities[:, 0], velocities[:, 2])
    with held_scene(Pyramids, areas=len(rows)) as (env, scene):
        move_away(scene)
        scene.shapes.center[:, :, 0] = np.array([[0], [0.5 - 2e-5], [0]])
        scene.shapes.yaw[:, 0] = 0
        scene.bodies.velocity[:, :, 0] = velocities[rows].T
        step(env, *(chosen[row] for row in rows.tolist()))
        ours = env.get_steps(NAME)[0].obs[3][:, 1:]
    errors = np.abs(ours - velocities[rows + 1]).max(axis=1)
    assert (errors < 2e-3).mean() > 0.8  # the others meet something
    slowed = errors >= 2e-3
    assert speeds[rows + 1][slowed].mean() < np.hypot(*ours[slowed][:, ::2].T).mean()


def test_actions_of_the_demonstration_lead_past_the_walls_and_stones_that_were_recorded(demonstration) -> None:
    """From the recorded positions, without later corrections."""
    chosen = dict(zip(demonstration.rows.tolist(), demonstration.actions.discrete[:, 0].tolist(), strict=True))
    first, decisions = np.array([course[0] for course in COURSES]), [course[4] for course in COURSES]
    same, errors = {WALL: [], STONE: []}, {WALL: [], STONE: []}
    with held_scene(Pyramids, areas=len(COURSES)) as (env, scene):
        move_away(scene)
        stones = columns(scene, "stones")
        for area, (record, x, z, degrees, _, roots) in enumerate(COURSES):
            put(scene, x, z, degrees, area)
            right, up, ahead = demonstration.record_observations[3][record, 1:]
            sin, cos = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
            scene.bodies.velocity[:, area, 0] = cos * right + sin * ahead, up, cos * ahead - sin * right
            for pyramid, root in enumerate(roots):
                layers = stones[4 * pyramid : 4 * pyramid + 4]
                scene._build(np.array([area]), slice(layers[0], layers[-1] + 1), LAYERS, np.array(root)[:, np.newaxis])
        for decision in range(max(decisions)):
            step(env, *(chosen[record + min(decision, last)] for record, last in zip(first, decisions, strict=True)))
            going = decision < np.array(decisions)
            for sensor in range(3):
                expected = demonstration.record_observations[sensor][(first + decision + 1)[going]].reshape(-1, 7, 8)
                ours = env.get_steps(NAME)[0].obs[sensor][going].reshape(-1, 7, 8)
                for tag in (WALL, STONE):
                    seen = expected[..., tag] == 1
                    both = seen & (ours[..., tag] == 1)
                    same[tag] += (ours[..., tag] == 1)[seen].tolist()
                    errors[tag] += (np.abs(ours - expected)[both][:, FRACTION] * LENGTH).tolist()
    assert np.mean(same[WALL]) > 0.95
    assert np.median(errors[WALL]) < 0.001
    assert np.quantile(errors[WALL], 0.9) < 0.01
    assert np.median(errors[STONE]) < 0.02
    assert np.quantile(errors[STONE], 0.9) < 0.05
