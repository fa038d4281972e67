"""PushBlock: observations, physics, rewards and resets, compared with Unity's own demonstration and policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.demonstrations import load
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.push_block import PushBlock, PushBlockWithInput
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

NAME = "PushBlock?team=0"
SHARED = Path(__file__).resolve().parents[2] / "../shared/unity"
DEMONSTRATION = SHARED / "demonstrations/ExpertPushBlock.demo"
POLICY = SHARED / "models/PushBlock.onnx"
NOTHING, FORWARD, BACKWARD, TURN_RIGHT, TURN_LEFT, LEFT, RIGHT = range(7)
BLOCK_FLAG, GOAL_FLAG, WALL_FLAG, NO_HIT, FRACTION = range(5)
LENGTH = 12.0
TICK = 0.02

# Episodes of the demonstration: first and last record, where the agent (x, z, yaw in degrees) and the block (x, z)
# started. The places were found by matching rays of the first four records.
EPISODES = np.array(
    [
        (0, 19, 4.23, -0.38, 180, -1.82, -4.38),
        (19, 39, 0.35, 1.86, 160, -3.52, 1.66),
        (39, 51, 2.35, 5.85, 140, -1.86, -1.65),
        (70, 93, 5.30, 2.52, 220, -4.94, 5.49),
        (93, 113, -2.27, -1.05, 160, 0.75, 2.77),
        (113, 133, -5.24, -3.90, 160, 1.90, 0.02),
        (155, 175, -3.96, 5.12, 200, 4.48, -1.68),
        (175, 194, -2.80, 4.57, 180, 3.07, 2.85),
        (194, 209, 1.04, 5.33, 200, 4.67, 0.32),
        (466, 474, 2.74, 3.74, 160, 0.44, -5.16),
        (501, 525, 6.25, 5.83, 180, -3.75, 4.83),
        (551, 569, -1.53, 1.95, 160, -5.78, 1.15),
        (569, 585, 4.62, 2.33, 160, -0.29, 1.99),
        (725, 755, 5.59, -1.47, 180, -5.57, 0.44),
        (755, 776, -6.09, -2.59, 140, -3.50, 2.25),
        (776, 785, 1.82, 5.30, 180, -2.62, -5.70),
        (803, 818, -0.09, 0.40, 160, -5.86, -4.57),
        (818, 830, 6.24, 3.83, 180, 2.58, -1.08),
        (830, 838, 6.24, 2.68, 220, 1.80, -4.47),
        (859, 869, -1.61, 4.47, 200, 0.84, -1.74),
        (905, 925, 3.65, 4.31, 200, -5.39, 2.68),
        (945, 954, -2.15, 2.64, 200, -6.16, -5.75),
        (974, 987, 0.82, 2.93, 180, -5.97, -3.41),
        (987, 995, -1.28, 0.97, 200, -0.56, -4.63),
    ]
)


def parameters(**values: float) -> tuple[EnvironmentParametersChannel]:
    channel = EnvironmentParametersChannel()
    for name, value in values.items():
        channel.set_float_parameter(name, value)
    return (channel,)


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, PushBlock]]:
    with held_scene(PushBlock) as (env, scene):
        yield env, scene


def put(scene: PushBlock, thing: str, x: float, z: float, degrees: float = 0, area: int = 0) -> None:
    """Place the agent or the block on the ground, at rest."""
    column = scene.shapes.index(thing)
    height = {"agent": 0.5, "block": 0.375}[thing] - 2e-5
    scene.shapes.center[:, area, column] = x, height, z
    scene.shapes.yaw[area, column] = np.radians(degrees)
    scene.bodies.velocity[:, area, column] = 0


def place(scene: PushBlock, thing: str, area: int = 0) -> Array:
    """Return the position of an object: x, y, z."""
    return scene.shapes.center[:, area, scene.shapes.index(thing)].copy()


def step(env: UnityEnvironment, *actions: int) -> None:
    """Make one decision of all requesting agents, with one action per agent or one for all."""
    n = len(env.get_steps(NAME)[0])
    chosen = np.broadcast_to(np.array(actions, np.int32).reshape(-1, 1), (n, 1))
    env.set_actions(NAME, ActionTuple(discrete=chosen))
    env.step()


def newest(observation: Array) -> Array:
    """Return the newest rays of stacked ones (n, 105) as (n, rays, 5)."""
    return observation.reshape(-1, 3, 7, 5)[:, -1]


def rays(env: UnityEnvironment) -> tuple[Array, Array]:
    """Return the newest rays of the high and of the level sensor of the first agent."""
    offset, level = env.get_steps(NAME)[0].obs
    return newest(offset)[0], newest(level)[0]


def test_32_agents_observe_two_stacked_ray_sensors_and_take_one_of_seven_actions() -> None:
    with UnityEnvironment("embedded:PushBlock") as env:
        env.reset()
        spec = env.behavior_specs[NAME]
        assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
            ("StackingSensor_size3_OffsetRayPerceptionSensor", (105,)),
            ("StackingSensor_size3_RayPerceptionSensor", (105,)),
        ]
        assert (spec.action_spec.continuous_size, spec.action_spec.discrete_branches) == (0, (7,))
        assert len(env.get_steps(NAME)[0]) == 32


def test_an_agent_faces_the_goal_at_first_and_keeps_its_heading_over_episodes(held) -> None:
    env, scene = held
    assert scene.shapes.yaw[0, 0] == np.pi
    step(env, TURN_RIGHT)
    env.reset()
    assert np.degrees(scene.shapes.yaw[0, 0]) == pytest.approx(200)


def test_agents_and_blocks_start_apart_and_in_the_air() -> None:
    with held_scene(PushBlock, areas=64) as (env, scene):
        for _ in range(20):
            before = scene.shapes.center[:, :, 0].copy()
            env.reset()
            (agent_x, block_x), height, (agent_z, block_z) = (scene.shapes.center[axis, :, :2].T for axis in range(3))
            assert (np.abs([agent_x, block_x, agent_z, block_z]) <= 6.25).all()
            assert ((height > 0.99) & (height <= 1)).all()  # a tick after the reset
            assert (np.minimum(agent_z, block_z) - 2.5 > -8.35).all()
            assert (np.maximum(np.abs(agent_x - block_x), np.abs(agent_z - block_z)) >= 3.5).all()
            apart = np.maximum(np.abs(agent_x - before[0]), np.abs(agent_z - before[2]))
            assert (apart[before[1] > 0.49] >= 3).all()
        assert not scene.bodies.velocity[::2].any()


@pytest.mark.parametrize(
    ("action", "ahead", "right", "degrees"),
    [
        (NOTHING, 0, 0, 0),
        (FORWARD, 3, 0, 0),
        (BACKWARD, -3, 0, 0),
        (TURN_RIGHT, 0, 0, 20),
        (TURN_LEFT, 0, 0, -20),
        (LEFT, 0, -2.25, 0),
        (RIGHT, 0, 2.25, 0),
    ],
)
def test_actions_push_and_turn_in_each_of_five_ticks(held, action, ahead, right, degrees) -> None:
    env, scene = held
    put(scene, "block", 0, 6)
    put(scene, "agent", 0, 0, 30)
    scene.shapes.center[1, 0, 0] = 5  # in the air
    speed, moved = 0.0, 0.0
    for _ in range(5):
        speed = (speed + 1) * 0.92
        moved += speed * TICK
    step(env, action)
    x, _, z = place(scene, "agent")
    sin, cos = np.sin(np.radians(30)), np.cos(np.radians(30))
    assert x == pytest.approx(moved * (ahead * sin + right * cos))
    assert z == pytest.approx(moved * (ahead * cos - right * sin))
    assert np.degrees(scene.shapes.yaw[0, 0]) == pytest.approx(30 + degrees)


def test_the_ground_slows_by_twice_the_average_of_its_friction_and_the_agents() -> None:
    for ground in (0.0, 0.6):
        channels = parameters(dynamic_friction=ground, static_friction=ground)
        with held_scene(PushBlock, side_channels=channels) as (env, scene):
            put(scene, "block", 0, 6)
            put(scene, "agent", 0, 0)
            speed, moved = 0.0, 0.0
            for _ in range(5):
                speed = (speed + 3) * 0.92 - (ground + 0.6) * 24.525 * TICK * 0.92
                moved += speed * TICK
            step(env, FORWARD)
            assert place(scene, "agent") == pytest.approx([0, 0.49998, moved], abs=1e-3)


def test_gravity_changes_at_once() -> None:
    channel = EnvironmentParametersChannel()
    with held_scene(PushBlock, side_channels=(channel,)) as (env, scene):
        channel.set_float_parameter("gravity", 0.0)
        scene.bodies.velocity[1] = 0
        step(env, NOTHING)
        fallen = place(scene, "agent")[1]
        step(env, NOTHING)
        assert place(scene, "agent")[1] == fallen


def test_parameters_change_the_block() -> None:
    with held_scene(PushBlock, side_channels=parameters(block_scale=3, block_drag=5)) as (env, scene):
        put(scene, "agent", -9, 0)
        put(scene, "block", 0, 0)
        scene.shapes.center[1, 0, 1] = 5
        scene.bodies.velocity[0, 0, 1] = 10
        step(env, NOTHING)
        assert list(scene.shapes.half[:, 0, 1]) == [1.5, 0.375, 1.5]
        assert scene.bodies.velocity[0, 0, 1] == pytest.approx(10 * 0.9**5)


def test_a_new_block_size_counts_for_starts_one_episode_later() -> None:
    """Unity's script places the block and the agent before it reads the parameters."""
    channel = EnvironmentParametersChannel()
    with held_scene(PushBlock, areas=200, side_channels=(channel,)) as (env, scene):
        nearest = []
        for scale in (6.0, 6.0, 2.0, 2.0):
            channel.set_float_parameter("block_scale", scale)
            env.reset()
            assert (scene.shapes.half[0, :, 1] == scale / 2).all()
            (agent_x, block_x), _, (agent_z, block_z) = (scene.shapes.center[axis, :, :2].T for axis in range(3))
            nearest.append(np.maximum(np.abs(agent_x - block_x), np.abs(agent_z - block_z)).min())
        # 2.5 m around the agent, and half the size of the block in the episode before
        assert nearest == pytest.approx([3.5, 5.5, 5.5, 3.5], abs=0.3)


def test_an_agent_flush_with_its_block_moves_with_it(held) -> None:
    env, scene = held
    put(scene, "agent", 0, 6, 180)
    put(scene, "block", 0.3, 4.5)
    for _ in range(3):
        step(env, FORWARD)
        (x, _, z), (block_x, _, block_z) = place(scene, "agent"), place(scene, "block")
        assert (x, block_x) == pytest.approx((0, 0.3), abs=1e-9)
        assert z - block_z == pytest.approx(1.5, abs=1e-3)
        assert scene.bodies.velocity[2, 0, 0] == pytest.approx(scene.bodies.velocity[2, 0, 1], abs=1e-6)
    assert block_z < 3.6


def test_nothing_passes_walls_goal_and_each_other(held) -> None:
    env, scene = held
    rng = np.random.default_rng(0)
    put(scene, "agent", 0, 3, 180)
    put(scene, "block", 3, 5)
    for _ in range(200):
        step(env, rng.choice([FORWARD, FORWARD, FORWARD, BACKWARD, TURN_LEFT, TURN_RIGHT, LEFT]))
        for thing, reach in (("agent", 0.5), ("block", 1)):
            x, y, z = place(scene, thing)
            assert max(abs(x), z) < 12.5 - reach + 0.3
            assert z > -8.35 + reach - 0.7
            assert y > 0.3


def test_the_block_in_the_goal_gives_five_and_ends_the_episode(held) -> None:
    env, scene = held
    put(scene, "agent", 5, 5)
    put(scene, "block", 0, -6.9)
    step(env, NOTHING)
    assert not len(env.get_steps(NAME)[1])
    assert env.get_steps(NAME)[0].reward[0] == pytest.approx(-5 / 5000)

    # The contact counts from 2 cm: 0.45 m before the goal it comes in the second tick.
    scene.bodies.velocity[2, 0, 1] = -22
    step(env, NOTHING)
    decisions, terminals = env.get_steps(NAME)
    assert terminals.reward[0] == pytest.approx(5 - 3 / 5000)
    assert not terminals.interrupted[0]
    assert not len(decisions)
    env.step()
    decisions, terminals = env.get_steps(NAME)
    assert not len(terminals)
    assert decisions.reward[0] == pytest.approx(-2 / 5000)  # penalty of the idle ticks
    assert not decisions.obs[0].reshape(3, 35)[:2].any()  # stacks start with zeros


def test_5000_ticks_give_minus_one_and_interrupt_the_episode(held) -> None:
    env, _ = held
    total = 0.0
    for _ in range(1000):
        step(env, NOTHING)
        decisions, terminals = env.get_steps(NAME)
        total += float(decisions.reward.sum()) if not len(terminals) else 0
    assert terminals.interrupted[0]
    assert total + terminals.reward[0] == pytest.approx(-1, abs=1e-5)


def test_level_rays_see_block_goal_and_walls_and_high_ones_only_walls(held) -> None:
    env, scene = held
    put(scene, "agent", 6, -5, 180)
    put(scene, "block", 2, -5)
    step(env, NOTHING)
    high, level = rays(env)
    assert level[0] == pytest.approx([0, 1, 0, 0, (3.35 - 0.5) / LENGTH], abs=1e-5)  # ahead: the goal
    assert level[5] == pytest.approx([1, 0, 0, 0, (3 - 0.5) / LENGTH], abs=1e-5)  # to the right: the block
    assert level[6] == pytest.approx([0, 0, 1, 0, (6.5 - 0.5) / LENGTH], abs=1e-5)  # to the left: a wall
    # The high sphere's lowest point is as high as the walls, and at rest an agent is a little sunk: the sphere meets
    # the wall's edge where its center is above it.
    assert high[6] == pytest.approx([0, 0, 1, 0, 6.5 / LENGTH], abs=1e-3)
    assert high[0] == pytest.approx([0, 0, 1, 0, 7.5 / LENGTH], abs=1e-3)  # over the goal: the wall behind
    assert list(high[5]) == [0, 0, 0, 1, 1]  # over the block, and too far from the wall


def test_rays_do_not_see_a_block_that_the_agent_is_pressed_into(held) -> None:
    _, scene = held
    for gap, flags in ((0.2, [1, 0, 0, 0]), (0.0, [1, 0, 0, 0]), (-0.04, [0, 0, 0, 1])):
        put(scene, "agent", 0, -1)
        put(scene, "block", 0, 0.5 + gap)
        seen = scene.agents._sensors[1].observe(np.arange(1))
        assert list(newest(seen)[0, 0, :4]) == flags


def pushes(scene: PushBlock) -> Array:
    """Return actions that walk around the block, then push it, without turning. With yaw 180°, right is -x."""
    (x, block_x), _, (z, block_z) = (scene.shapes.center[axis, :, :2].T for axis in range(3))
    speed_x, _, speed_z = scene.bodies.velocity[:, :, 0]
    off = block_x - (x + 0.06 * speed_x)
    behind = z + 0.1 * speed_z > block_z + 1.6
    wanted = np.where(behind, off, off + 2.2 * np.where(x < block_x, -1, 1))
    aside = np.where(wanted > 0, LEFT, RIGHT)
    push = (np.abs(block_x - x) < 0.8) & (np.abs(off) < 1.2)
    align = np.where(np.abs(off) < 0.2, NOTHING, aside)
    around = np.where(np.abs(x - block_x) > 1.65, BACKWARD, aside)
    return np.where(behind, np.where(push, FORWARD, align), around)


def test_a_scripted_pushing_policy_scores_in_every_episode() -> None:
    with held_scene(PushBlock, areas=32) as (env, scene):
        scored = []
        for _ in range(250):
            decisions, terminals = env.get_steps(NAME)
            scored += list(terminals.reward)
            step(env, *pushes(scene)[decisions.agent_id])
        assert len(scored) > 60
        assert min(scored) > 4.99
        assert (scene.agents.step_count < 1000).all()


@pytest.fixture(scope="module")
def demonstration():
    if not DEMONSTRATION.exists():
        pytest.skip(f"Unity's demonstration is not at {DEMONSTRATION}")
    return load(DEMONSTRATION, action_record="same")  # as the file has them


def test_observations_have_the_values_of_unitys_demonstration(demonstration) -> None:
    expected = demonstration.record_observations
    with held_scene(PushBlock, areas=32, side_channels=parameters(gravity=9.81)) as (env, scene):
        seen = [[], []]
        for _ in range(150):
            decisions, _ = env.get_steps(NAME)
            for column, observation in zip(seen, decisions.obs, strict=True):
                column.append(observation)
            step(env, *pushes(scene)[decisions.agent_id])
    ours = [np.concatenate(column) for column in seen]
    for actual, other in zip(ours, expected, strict=True):
        assert actual.shape[1:] == other.shape[1:] == (105,)
        actual, other = newest(actual), newest(other)
        for flag in range(4):
            assert set(np.unique(actual[..., flag])) == set(np.unique(other[..., flag]))
        for observation in (actual, other):
            assert (observation[..., :4].sum(axis=-1) == 1).all()  # nothing untagged is ever hit
            assert (observation[..., FRACTION] <= 1).all()
            assert ((observation[..., NO_HIT] == 1) == (observation[..., FRACTION] == 1)).all()
    for observation in (ours[1], expected[1]):
        assert 0 <= newest(observation)[..., FRACTION].min() * LENGTH < 1e-3  # flush at the block


def test_actions_of_the_demonstration_lead_to_the_recorded_observations(demonstration) -> None:
    """From the recorded start positions, without later corrections, episodes end when they ended in Unity.

    The demonstration was recorded with Earth's gravity: agents fall for 20 ticks. An action is in the record of the
    observation that it led to.
    """
    chosen = dict(zip(demonstration.rows.tolist(), demonstration.actions.discrete[:, 0].tolist(), strict=True))
    first, last = EPISODES[:, :2].astype(int).T
    flags, errors, ends = [], [], {}
    n = len(EPISODES)
    with held_scene(PushBlock, areas=n, side_channels=parameters(gravity=9.81)) as (env, scene):
        _, _, x, z, degrees, block_x, block_z = EPISODES.T
        scene.shapes.center[:, :, 0] = x, np.ones(n), z
        scene.shapes.center[:, :, 1] = block_x, np.ones(n), block_z
        scene.shapes.yaw[:, 0] = np.radians(degrees)
        scene.bodies.velocity[:] = 0
        for decision in range(1, 31):
            records = np.minimum(first + decision, last - 1)
            step(env, *(chosen.get(record, NOTHING) for record in records))
            while not len(env.get_steps(NAME)[0]):
                ends |= dict.fromkeys(env.get_steps(NAME)[1].agent_id.tolist(), decision)
                env.step()
            decisions, terminals = env.get_steps(NAME)
            ends |= {agent: decision for agent in terminals.agent_id.tolist() if agent not in ends}
            for agent in range(n):
                if agent not in ends and first[agent] + decision < last[agent]:
                    expected = newest(demonstration.record_observations[1][first[agent] + decision])[0]
                    ours = newest(decisions.obs[1][agent])[0]
                    same = (ours[:, :4] == expected[:, :4]).all(axis=1)
                    flags += same.tolist()
                    errors += (np.abs(ours - expected)[same, FRACTION] * LENGTH).tolist()
    as_recorded = [agent in ends and abs(first[agent] + ends[agent] - last[agent]) <= 1 for agent in range(n)]
    assert np.mean(as_recorded) > 0.9
    assert np.mean(flags) > 0.9
    assert np.median(errors) < 0.01


def test_with_input_two_axes_and_a_button_move_the_agent() -> None:
    with held_scene(PushBlockWithInput) as (env, scene):
        spec = env.behavior_specs[NAME].action_spec
        assert (spec.continuous_size, spec.discrete_branches) == (2, (2,))
        put(scene, "block", 0, 6)

        def act(axis: float, drive: float, jump: int = 0, decisions: int = 2) -> tuple[Array, float]:
            """Return the effect of the last five ticks of an action, from rest."""
            action = ActionTuple(np.array([[axis, drive]], np.float32), np.array([[jump]], np.int32))
            for _ in range(decisions):
                put(scene, "agent", 0, 0)
                env.set_actions(NAME, action)
                env.step()
            return place(scene, "agent"), np.degrees(scene.shapes.yaw[0, 0])

        (_, _, z), degrees = act(0.3, 1)
        assert (z > 0.4, degrees) == (True, 0)
        (_, _, slower), _ = act(0.3, 0.5)
        assert 0 < slower < z / 2
        (_, _, still), degrees = act(0.3, 0.2)
        assert (still, degrees) == pytest.approx((0, 20))
        assert act(-1, 0)[1] == pytest.approx(-20)

        # An action is an input event that the next tick reads.
        assert act(1, 0, decisions=1)[1] == pytest.approx(-4 + 4 * 4)
        assert act(0, 0, decisions=1)[1] == pytest.approx(4)

        # A press jumps, if it starts now and 3 s after the jump before.
        heights = [act(0, 0, jump, decisions=1)[0][1] for jump in (1, 1, 0, 1)]
        assert [height > 1 for height in heights] == [True, False, False, False]
        for _ in range(30):
            act(0, 0, decisions=1)
        assert act(0, 0, 1, decisions=1)[0][1] > 1


def test_unitys_policy_scores_in_its_scene() -> None:
    runtime = pytest.importorskip("onnxruntime")
    if not POLICY.exists():
        pytest.skip(f"Unity's policy is not at {POLICY}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    policy = runtime.InferenceSession(str(POLICY), options)
    with UnityEnvironment("embedded:PushBlockWithInput", seed=1) as env:
        env.reset()
        returns = []
        for _ in range(500):
            decisions, terminals = env.get_steps(NAME)
            returns += list(terminals.reward)
            n = len(decisions)
            inputs = {"vector_observation": np.concatenate(decisions.obs, axis=1), "action_masks": np.ones((n, 2))}
            inputs = {name: column.astype(np.float32) for name, column in inputs.items()}
            (moves,) = policy.run(["continuous_actions"], inputs)
            # Without its jumps, which a pause of 3 s of real time made rare in training.
            env.set_actions(NAME, ActionTuple(moves, np.zeros((n, 1), np.int32)))
            env.step()
        solved = sum(reward > 4 for reward in returns)
        assert solved > 32
