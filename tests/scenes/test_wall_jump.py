"""WallJump: its two behaviors, observations, jumps, rewards and resets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.wall_jump import WallJump
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

SMALL, BIG = "SmallWallJump?team=0", "BigWallJump?team=0"
AGENT, BLOCK, WALL = range(3)
STILL = (0, 0, 0, 0)
FORWARD, BACKWARD, JUMP = (1, 0, 0, 0), (2, 0, 0, 0), (0, 0, 0, 1)
REST = 0.95  # height of an agent's center on the platform


def parameters(**values: float) -> tuple[EnvironmentParametersChannel]:
    channel = EnvironmentParametersChannel()
    for name, value in values.items():
        channel.set_float_parameter(name, value)
    return (channel,)


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, WallJump]]:
    """Start one area without a wall in any episode, its agent at rest in front of the middle, facing +z."""
    heights = parameters(small_wall_height=0, big_wall_height=0)
    with held_scene(WallJump, side_channels=heights) as (env, scene):
        put(scene, 0, -10)
        put_block(scene, -7, -13)
        yield env, scene


def put(scene: WallJump, x: float, z: float, y: float = REST - 1e-4, degrees: float = 0) -> None:
    """Place the agent, at rest."""
    scene.shapes.center[:, 0, AGENT] = x, y, z
    scene.shapes.yaw[0, AGENT] = np.radians(degrees)
    scene.bodies.velocity[:, 0, AGENT] = 0


def put_block(scene: WallJump, x: float, z: float) -> None:
    scene.shapes.center[:, 0, BLOCK] = x, 1.5, z
    scene.bodies.velocity[:, 0, BLOCK] = 0


def place(scene: WallJump, thing: int = AGENT) -> Array:
    return scene.shapes.center[:, 0, thing].copy()


def act(env: UnityEnvironment, choose) -> dict[str, tuple]:
    """Make one decision: `choose` maps the ids of requesting agents to one action per branch; return the new steps."""
    for behavior in env.behavior_specs:
        ids = env.get_steps(behavior)[0].agent_id
        chosen = np.broadcast_to(np.array(choose(ids), np.int32), (len(ids), 4))
        env.set_actions(behavior, ActionTuple(discrete=chosen))
    env.step()
    return {behavior: env.get_steps(behavior) for behavior in env.behavior_specs}


def step(env: UnityEnvironment, action: tuple[int, ...] = STILL) -> tuple[list[float], list[float], list[bool]]:
    """Make one decision; return the rewards of requesting agents, those of ended ones, and which were interrupted."""
    steps = act(env, lambda _: action).values()
    decisions, terminals = zip(*steps, strict=True)
    return (
        [reward for part in decisions for reward in part.reward.tolist()],
        [reward for part in terminals for reward in part.reward.tolist()],
        [interrupted for part in terminals for interrupted in part.interrupted.tolist()],
    )


def heights(scene: WallJump) -> list[float]:
    """Return the agent's height after each tick from now on, filled while the scene runs."""
    seen: list[float] = []
    simulate = scene.simulate

    def watched() -> None:
        simulate()
        seen.append(float(scene.shapes.center[1, 0, AGENT]))

    scene.simulate = watched
    return seen


def observation(env: UnityEnvironment, sensor: int) -> Array:
    for behavior in env.behavior_specs:
        decisions, _ = env.get_steps(behavior)
        if len(decisions):
            return decisions.obs[sensor][0]
    raise AssertionError("no agent requests a decision")


def test_24_agents_have_one_of_two_behaviors_with_the_same_sensors_and_actions() -> None:
    with UnityEnvironment("embedded:WallJump", seed=1) as env:
        env.reset()
        assert set(env.behavior_specs) == {SMALL, BIG}
        for spec in env.behavior_specs.values():
            assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
                ("StackingSensor_size6_OffsetRayPerceptionSensor", (210,)),
                ("StackingSensor_size6_RayPerceptionSensor", (210,)),
                ("StackingSensor_size6_VectorSensor_size4", (24,)),
            ]
            assert (spec.action_spec.continuous_size, spec.action_spec.discrete_branches) == (0, (3, 3, 3, 2))
        ids = [set(env.get_steps(behavior)[0].agent_id.tolist()) for behavior in (SMALL, BIG)]
        assert ids[0] | ids[1] == set(range(24))
        assert not ids[0] & ids[1]


def test_two_of_five_episodes_are_small_and_each_behavior_has_its_walls() -> None:
    with held_scene(WallJump, areas=200) as (env, scene):
        episodes = dict.fromkeys((0.0, 2.0, 4.0), 0)
        for _ in range(10):
            step(env)
            assert ((scene.shapes.half[1, :, WALL] == 4) == (scene.agents.behavior == 1)).all()
            for height in episodes:
                episodes[height] += int((scene.shapes.half[1, :, WALL] == height).sum())
            env.reset()
        shares = np.array(list(episodes.values())) / 2000
        assert shares == pytest.approx([0.2, 0.2, 0.6], abs=0.04)


def test_an_end_belongs_to_the_old_behavior_and_the_next_decision_to_the_new_one() -> None:
    with held_scene(WallJump, areas=24) as (env, scene):
        asked = {SMALL: set(env.get_steps(SMALL)[0].agent_id), BIG: set(env.get_steps(BIG)[0].agent_id)}
        changes = 0
        for decision in range(60):
            if decision % 6 == 0:
                scene.shapes.center[0, :, AGENT] = 40  # off the platform
            for behavior, (decisions, terminals) in act(env, lambda _: STILL).items():
                assert set(terminals.agent_id) <= asked[behavior]
                other = {SMALL: BIG, BIG: SMALL}[behavior]
                for agent in decisions.agent_id:
                    changes += agent in asked[other]
            for behavior in (SMALL, BIG):
                decisions, _ = env.get_steps(behavior)
                for agent in decisions.agent_id.tolist():
                    asked[SMALL].discard(agent)
                    asked[BIG].discard(agent)
                    asked[behavior].add(agent)
        assert changes > 30


def test_a_behavior_is_announced_when_its_first_agent_requests_a_decision() -> None:
    known = []
    for seed in range(1, 30):
        with held_scene(WallJump, areas=1, seed=seed) as (env, scene):
            known = [list(env.behavior_specs)]
            for _ in range(40):
                scene.shapes.center[0, :, AGENT] = 40
                step(env)
                known.append(list(env.behavior_specs))
        if known[0] == [SMALL]:
            break
    assert known[0] == [SMALL]
    assert known[-1] == [SMALL, BIG]


def test_an_episode_starts_in_front_of_the_wall_with_the_old_heading() -> None:
    with held_scene(WallJump, areas=64) as (env, scene):
        assert (scene.shapes.yaw[:, AGENT] == np.pi).all()
        act(env, lambda _: (0, 2, 0, 0))
        env.reset()
        assert np.degrees(scene.shapes.yaw[:, AGENT]) == pytest.approx(210)
        x, y, z = scene.shapes.center[:, :, AGENT]
        assert (np.abs(x) <= 9).all()
        assert np.ptp(x) > 12
        assert (z == -12).all()
        assert ((y > 0.94) & (y <= 1)).all()
        x, y, z = scene.shapes.center[:, :, BLOCK]
        assert (np.abs(x) <= 8.2).all()
        assert (y == 1.5).all()
        assert ((z >= -9.8) & (z <= -2.7)).all()


@pytest.mark.parametrize(
    ("action", "ahead", "right", "degrees"),
    [
        ((1, 0, 0, 0), 3, 0, 0),
        ((2, 0, 0, 0), -3, 0, 0),
        ((0, 1, 0, 0), 0, 0, -30),
        ((0, 2, 0, 0), 0, 0, 30),
        ((0, 0, 1, 0), 0, -1.8, 0),
        ((1, 0, 2, 0), 0, 1.8, 0),  # a step aside replaces one forward
    ],
)
def test_actions_move_and_turn_on_the_ground(held, action, ahead, right, degrees) -> None:
    env, scene = held
    step(env, action)
    push, speed, moved = np.hypot(ahead, right), 0.0, 0.0
    for _ in range(5 if push else 0):
        speed = (speed + push) * 0.96 - 2 * 0.6 * 26.9775 * 0.02 * 0.96
        moved += speed * 0.02
    x, y, z = place(scene)
    assert (x, z + 10) == pytest.approx((moved * right / max(push, 1), moved * ahead / max(push, 1)), abs=1e-3)
    assert y == pytest.approx(REST, abs=1e-4)
    assert np.degrees(scene.shapes.yaw[0, AGENT]) == pytest.approx(degrees)


def test_a_jump_rises_for_eleven_ticks_to_three_meters_and_lands_after_22(held) -> None:
    env, scene = held
    seen = heights(scene)
    for action in (JUMP, STILL, STILL, STILL, STILL, STILL):
        step(env, action)
    assert int(np.argmax(seen)) == 10
    assert max(seen) == pytest.approx(3.57, abs=0.01)
    landed = next(tick for tick, height in enumerate(seen, start=1) if height < REST)
    assert landed == 22
    assert seen[-1] == pytest.approx(REST, abs=1e-3)


def test_a_running_jump_covers_five_meters(held) -> None:
    env, scene = held
    seen = heights(scene)
    for action in ((1, 0, 0, 1), FORWARD, FORWARD, FORWARD):
        step(env, action)
    assert place(scene)[2] + 10 == pytest.approx(4.7, abs=0.5)
    assert max(seen) == pytest.approx(3.57, abs=0.01)


def test_agents_cannot_jump_in_the_air(held) -> None:
    env, scene = held
    put(scene, 0, -10, y=2.0)
    seen = heights(scene)
    step(env, JUMP)
    assert max(seen) < 2


def test_a_step_forward_counts_half_in_the_air(held) -> None:
    env, scene = held
    put(scene, 0, -10, y=6.0)
    step(env, FORWARD)
    speed, moved = 0.0, 0.0
    for _ in range(5):
        speed = (speed + 1.5) * 0.96
        moved += speed * 0.02
    assert place(scene)[2] + 10 == pytest.approx(moved)
    # Gravity and the extra pull, from rest.
    speed, fallen = 0.0, 0.0
    for _ in range(5):
        speed = (speed + (26.9775 + 111) * 0.02) * 0.96
        fallen += speed * 0.02
    assert place(scene)[1] == pytest.approx(6 - fallen)


def test_the_goal_sets_the_reward_to_one(held) -> None:
    env, scene = held
    put(scene, 6, 0.2)
    rewards, ended, _ = step(env)
    assert (rewards, ended) == (pytest.approx([-5 * 0.0005]), [])
    scene.bodies.velocity[2, 0, AGENT] = 20
    _, ended, interrupted = step(env)
    assert (ended, interrupted) == ([1.0], [False])


def test_the_goal_counts_from_the_tick_after_the_entry(held) -> None:
    """PhysX tests triggers at the positions before the move, as it does contacts."""
    env, scene = held
    put(scene, 6, 0.38)  # the front is 5 cm before the goal
    scene.bodies.velocity[2, 0, AGENT] = 20
    _, ended, _ = step(env)
    assert ended == [1.0]
    rewards, _, _ = step(env)
    assert rewards == pytest.approx([-3 * 0.0005])  # the ticks after the second one


def test_the_goal_counts_with_feet_on_the_ground_only(held) -> None:
    env, scene = held
    put(scene, 6, 3, y=4)
    step(env)  # five ticks of falling, to about 1.8
    assert place(scene)[1] > 1.6
    _, ended, _ = step(env)
    assert ended == [1.0]


@pytest.mark.parametrize("thing", [AGENT, BLOCK])
def test_a_fall_sets_the_reward_to_minus_one(held, thing: int) -> None:
    env, scene = held
    scene.shapes.center[0, 0, thing] = 10.6
    _, ended, interrupted = step(env)
    assert (ended, interrupted) == ([-1.0], [False])
    rewards, _, _ = step(env)
    assert rewards == pytest.approx([-4 * 0.0005])  # the idle ticks since
    assert (np.abs(scene.shapes.center[0, 0, :2]) < 9.2).all()


def test_2000_ticks_give_minus_one_and_interrupt_the_episode(held) -> None:
    env, _ = held
    total = 0.0
    for _ in range(400):
        rewards, ended, interrupted = step(env)
        total += sum(ended or rewards)
    assert (len(ended), interrupted) == (1, [True])
    assert total == pytest.approx(-1, abs=1e-5)


def test_vectors_contain_the_position_and_ground_contact(held) -> None:
    env, scene = held
    step(env)
    newest = observation(env, 2).reshape(6, 4)[-1]
    assert newest == pytest.approx([0, REST / 20, (-10 + 4) / 20, 1], abs=1e-4)
    put(scene, 3, 2, y=6)
    step(env)
    stack = observation(env, 2).reshape(6, 4)
    assert stack[-2] == pytest.approx(newest)
    assert stack[-1][[0, 2, 3]] == pytest.approx([3 / 20, 6 / 20, 0])


def test_rays_see_wall_block_and_goal() -> None:
    with held_scene(WallJump, side_channels=parameters(big_wall_height=8, small_wall_height=8, no_wall_height=8)) as (
        env,
        scene,
    ):
        put(scene, 0, -10)
        put_block(scene, 4, -10)
        step(env)
        rising, level = (observation(env, sensor).reshape(6, 7, 5)[-1] for sensor in (0, 1))
        wall, goal, block, nothing = np.eye(4)
        assert level[0] == pytest.approx([*wall, (7.27 - 0.5) / 20], abs=1e-4)  # ahead
        assert level[5] == pytest.approx([*block, (2.5 - 0.5) / 20], abs=1e-4)  # to the right
        assert level[6] == pytest.approx([*nothing, 1])  # to the left: the platform below is no hit
        # The rising ray starts at 3.45: 0.9 m higher 7 m ahead, it passes over a wall of 4 m by less than its radius.
        assert list(rising[0][:4]) == list(wall)
        assert list(rising[5][:4]) == list(nothing)
        put_block(scene, -7, -13)
        put(scene, 6, 0)
        step(env)
        level = observation(env, 1).reshape(6, 7, 5)[-1]
        assert level[0] == pytest.approx([*goal, (0.93 - 0.5) / 20], abs=1e-4)


def test_a_low_wall_stops_a_walk_and_not_a_jump(held) -> None:
    env, scene = held
    scene.shapes.half[1, 0, WALL] = 2
    put(scene, -5, -4)
    for _ in range(6):
        step(env, FORWARD)
    assert place(scene)[2] == pytest.approx(-2.73 - 0.5, abs=0.05)
    put(scene, -5, -4.2)
    for action in ((1, 0, 0, 1), FORWARD, FORWARD, FORWARD):
        step(env, action)
    assert place(scene)[2] > -0.7


def test_only_from_the_block_a_jump_passes_a_high_wall(held) -> None:
    env, scene = held
    scene.shapes.half[1, 0, WALL] = 4
    over = (1, 0, 0, 1), FORWARD, FORWARD, FORWARD, FORWARD
    put(scene, -5, -4.2)
    for action in over:
        step(env, action)
    assert place(scene)[2] < -3
    put_block(scene, -5, -4.23)
    put(scene, -5, -4.2, y=3.0)
    for action in over:
        step(env, action)
    assert place(scene)[2] > -0.7


def test_an_agent_pushes_the_block_which_keeps_its_height(held) -> None:
    env, scene = held
    put_block(scene, 0, -7)
    for _ in range(4):
        step(env, FORWARD)
    assert place(scene, BLOCK)[2] > -4
    assert place(scene, BLOCK)[1] == 1.5
    assert place(scene, BLOCK)[0] == pytest.approx(0)


def walks(scene: WallJump, rows: Array) -> Array:
    """Return actions of a walker with yaw 180° (backward is +z, left +x): past block and wall to the goal."""
    x, _, z = scene.shapes.center[:, rows, AGENT]
    speed_x, _, speed_z = scene.bodies.velocity[:, rows, AGENT]
    block_x = scene.shapes.center[0, rows, BLOCK]
    walled = (scene.shapes.half[1, rows, WALL] > 0.5) & (z > -5) & (z < -1)
    lane = np.where((z < -0.5) & (block_x > 2.5), block_x - 3, 6.4)
    off = lane - (x + 0.1 * speed_x)
    onward = (speed_z < 4) & ((z < -0.7) | (np.abs(off) <= 0.6))
    action = np.zeros((len(rows), 4), int)
    action[:, 0] = np.where(onward | walled, 2, np.where((z > 1.5) & (speed_z > 3), 1, 0))
    action[:, 2] = np.where((np.abs(off) > 0.5) & ~((z > -5.5) & (z < -0.7)), np.where(off > 0, 1, 2), 0)
    action[:, 3] = walled & (z < -3.2)
    return action


def test_a_walker_reaches_the_goal_without_a_wall_and_over_a_low_one() -> None:
    with held_scene(WallJump, areas=24, side_channels=parameters(big_wall_height=4)) as (env, scene):
        ended, jumped = [], 0
        for _ in range(120):
            jumped += int((scene.shapes.center[1, :, AGENT] > 3).sum())
            for _, terminals in act(env, lambda ids: walks(scene, ids)).values():
                ended += terminals.reward.tolist()
        assert len(ended) > 60
        assert np.mean(ended) > 0.95
        assert jumped > 60
