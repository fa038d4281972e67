"""CooperativePushBlock: observations, actions and rewards, and the result of Unity's own policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.cooperative_push_block import CooperativePushBlock
from unity_gym.specs import ActionTuple

NAME = "PushBlockCollab?team=0"
POLICY = Path(__file__).resolve().parents[2] / "../shared/unity/models/PushBlockCollab.onnx"
NOTHING, FORWARD = 0, 1
WALL, AGENT, GOAL, SMALL, LARGE, VERY_LARGE = range(6)  # channels
COST = 0.5 / 5000


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, CooperativePushBlock]]:
    """One area with its agents at the far wall and its blocks in front of them."""
    with held_scene(CooperativePushBlock) as (env, scene):
        for agent in range(3):
            put(scene, agent, 3 * agent - 3, 11.5, 180)
        for block in range(6):
            put(scene, 3 + block, 4 * block - 10, 6)
        yield env, scene


def put(scene: CooperativePushBlock, thing: int, x: float, z: float, degrees: float = 0, area: int = 0) -> None:
    """Place an agent (0 to 2) or a block (3 to 8) on the ground, at rest."""
    scene.shapes.center[:, area, thing] = x, scene.shapes.half[1, area, thing] - 2e-5, z
    scene.shapes.yaw[area, thing] = np.radians(degrees)
    scene.bodies.velocity[:, area, thing] = 0
    scene.bodies.spin[area, thing] = 0


def step(env: UnityEnvironment, *actions: int) -> None:
    n = len(env.get_steps(NAME)[0])
    chosen = np.array(actions or [NOTHING] * n, np.int32).reshape(n, 1)
    env.set_actions(NAME, ActionTuple(discrete=chosen))
    env.step()


def cells(env: UnityEnvironment, channel: int, agent: int = 0) -> set[tuple[int, int]]:
    return set(map(tuple, np.argwhere(env.get_steps(NAME)[0].obs[0][agent, channel]).tolist()))


def test_twelve_agents_in_four_groups_observe_a_grid_and_their_velocity() -> None:
    with UnityEnvironment("embedded:CooperativePushBlock") as env:
        env.reset()
        spec = env.behavior_specs[NAME]
        assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
            ("GridSensor-OneHot", (6, 20, 20)),
            ("RBSensor", (10,)),
        ]
        assert spec.action_spec.discrete_branches == (7,)
        decisions, _ = env.get_steps(NAME)
        assert decisions.group_id.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
        assert not any(mask.any() for mask in decisions.action_mask)
        assert decisions.obs[1][:, 3:].tolist() == [[0, 0, 0, 0, 0, 0, 1]] * 12


def test_the_grid_is_ahead_of_the_agent_with_its_right_edge_in_row_0(held) -> None:
    env, scene = held
    put(scene, 0, 0.3, 0, 90)
    put(scene, 1, 5.3, -2.1)  # 5 m ahead, 2.1 m to the right
    step(env)
    assert cells(env, AGENT) == {(row, column) for row in (7, 8) for column in (4, 5)}
    assert {column for _, column in cells(env, WALL)} == {12}  # 12.2 to 12.7 m ahead
    assert {row for row, _ in cells(env, GOAL)} == {0, 1}  # 8.35 m and more to the right
    assert not cells(env, AGENT, 1) & {(9, 0), (10, 0)}  # neither agents behind the grid nor the agent itself are in it


def test_the_grid_shows_the_corners_of_the_walls(held) -> None:
    """The boxes of WallsOuter in Unity's area: those on the right and left are 26 m long, the others 25 m."""
    env, scene = held
    for x, z, degrees in ((10, 10, 45), (10, -10, 135), (-10, -10, 225), (-10, 10, 315)):
        put(scene, 0, x, z, degrees)
        step(env)
        # The corner is 4.24 m ahead, the rest of the walls at most 3.89 m.
        assert {cell for cell in cells(env, WALL) if cell[0] in (9, 10) and cell[1] >= 4} == {(9, 4), (10, 4)}


def test_blocks_of_three_sizes_have_channels_of_their_own(held) -> None:
    env, scene = held
    put(scene, 0, 0, -5)
    for block, (x, z) in enumerate([(-5, 0), (500, 0), (0.5, 0.5), (510, 0), (6, 0), (520, 0)]):
        put(scene, 3 + block, x, z)
    step(env)
    assert [len(cells(env, channel)) for channel in (SMALL, LARGE, VERY_LARGE)] == [2 * 2, 3 * 3, 4 * 4]


def test_agents_observe_their_velocity_along_their_own_axes(held) -> None:
    _, scene = held
    put(scene, 0, 0, 0, 90)
    scene.bodies.velocity[:, 0, 0] = 3, 0, 1
    x, y, z = scene.agents._sensors[1].observe(np.arange(3))[0, :3]
    assert (x, y, z) == pytest.approx((-1, 0, 3), abs=1e-6)


@pytest.mark.parametrize(("block", "reward"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_block_in_the_goal_rewards_the_group_by_its_size_and_disappears(held, block: int, reward: int) -> None:
    env, scene = held
    step(env)
    half = scene.shapes.half[0, 0, 3 + block]
    put(scene, 3 + block, 0, -8.35 + half + 0.01)
    step(env)
    assert env.get_steps(NAME)[0].group_reward == pytest.approx([-5 * COST] * 3)
    put(scene, 3 + block, 0, -8.35 + half - 0.01)
    step(env)
    decisions, terminals = env.get_steps(NAME)
    assert decisions.group_reward == pytest.approx([reward - 5 * COST] * 3)
    assert not decisions.reward.any()
    assert not len(terminals)
    assert not scene.shapes.visible[0, 3 + block]
    step(env)
    assert env.get_steps(NAME)[0].group_reward == pytest.approx([-5 * COST] * 3)


def test_the_last_block_ends_the_episode_of_the_group(held) -> None:
    env, scene = held
    step(env)
    for block in range(5):
        put(scene, 3 + block, 4 * block - 8, -8)
    step(env)
    assert env.get_steps(NAME)[0].group_reward == pytest.approx([9 - 5 * COST] * 3)
    put(scene, 8, 0, -8)
    step(env)
    decisions, terminals = env.get_steps(NAME)
    assert terminals.group_reward == pytest.approx([3 - COST] * 3)
    assert not terminals.interrupted.any()
    assert terminals.group_id.tolist() == [1, 1, 1]
    assert not len(decisions)
    assert scene.shapes.visible.all()
    env.step()
    # penalties of the new episode's first ticks
    assert env.get_steps(NAME)[0].group_reward == pytest.approx([-4 * COST] * 3)


def test_an_episode_is_interrupted_after_5000_ticks_with_minus_one_half(held) -> None:
    env, scene = held
    step(env)
    scene.ticks[:] = 5000 - 3
    step(env)
    _, terminals = env.get_steps(NAME)
    assert terminals.interrupted.tolist() == [True] * 3
    # the penalty of the last tick belongs to the next episode
    assert terminals.group_reward == pytest.approx([-2 * COST] * 3)
    assert scene.ticks.tolist() == [0]


def test_areas_start_with_everything_apart_and_turned_at_random() -> None:
    with held_scene(CooperativePushBlock, areas=100) as (_, scene):
        things = scene.shapes.center[::2, :, :9]
        assert np.abs(things).max() < 6.3
        apart = np.abs(things[:, :, :, np.newaxis] - things[:, :, np.newaxis]).max(axis=0)
        assert apart[apart > 0].min() > 1.5  # distance of the block's surface from the agent's center
        assert 0.5 < np.mean(scene.shapes.yaw[:, :9]) / np.pi < 1.5
        assert np.ptp(scene.shapes.yaw[:, :9]) > 6


def test_a_reset_from_outside_changes_nothing(held) -> None:
    env, scene = held
    step(env)
    before, ticks = scene.shapes.center.copy(), int(scene.ticks[0])
    env.reset()
    assert scene.shapes.center == pytest.approx(before, abs=0.01)
    assert scene.ticks[0] == ticks + 1


def play(env: UnityEnvironment, decisions: int) -> tuple[list[float], float]:
    """Run Unity's policy; return the group returns of finished episodes and the mean total per area."""
    runtime = pytest.importorskip("onnxruntime")
    if not POLICY.exists():
        pytest.skip(f"Unity's policy is not at {POLICY}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    runtime.set_seed(0)
    policy = runtime.InferenceSession(str(POLICY), options)
    env.reset()
    ends: list[float] = []
    so_far = np.zeros(len(env.get_steps(NAME)[0]))
    total = np.zeros_like(so_far)
    for _ in range(decisions):
        asking, ended = env.get_steps(NAME)
        for steps in (ended, asking):
            so_far[steps.agent_id] += steps.group_reward
            total[steps.agent_id] += steps.group_reward
            if steps is ended:
                ends += so_far[ended.agent_id][::3].tolist()
                so_far[ended.agent_id] = 0
        if len(asking):
            grid, velocity = asking.obs
            inputs = {"obs_0": grid, "obs_1": velocity, "action_masks": np.ones((len(asking), 7), np.float32)}
            (chosen,) = policy.run(["discrete_actions"], inputs)
            env.set_actions(NAME, ActionTuple(discrete=chosen.astype(np.int32)))
        env.step()
    return ends, float(total.mean())


def test_unitys_policy_pushes_blocks_into_the_goal() -> None:
    with UnityEnvironment("embedded:CooperativePushBlock", seed=1) as env:
        _, total = play(env, 200)
    assert total > 3  # random actions achieve 0.1


@pytest.mark.slow
def test_unitys_policy_solves_its_scene() -> None:
    with UnityEnvironment("embedded:CooperativePushBlock", seed=1, additional_args=["--areas", "8"]) as env:
        ends, _ = play(env, 1500)
    assert len(ends) > 15
    assert np.mean(ends) > 11  # Unity documents this return for a trained group; the maximum is 12
