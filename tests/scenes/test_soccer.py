"""SoccerTwos and StrikersVsGoalie: observations, actions and rewards, and the results of Unity's own policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.soccer import Soccer, SoccerTwos, StrikersVsGoalie
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

BLUE, PURPLE = "SoccerTwos?team=0", "SoccerTwos?team=1"
STRIKER, GOALIE = "Striker?team=0", "Goalie?team=1"
POLICY = Path(__file__).resolve().parents[2] / "../shared/unity/models/SoccerTwos.onnx"
BALL = 4
SUNK = np.sqrt(0.624**2 - 0.5**2)  # m from the goal at which the ball touches its floor
TICK = 0.02


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, SoccerTwos]]:
    """Start one pitch with its agents in its corners, facing the other goal, and the ball in the middle."""
    with held_scene(SoccerTwos) as (env, scene):
        for player, (x, z) in enumerate([(-11, 5), (-11, -5), (11, 5), (11, -5)]):
            put(scene, player, x, z, 90 if x < 0 else -90)
        put(scene, BALL, 0, 0)
        yield env, scene


def put(scene: Soccer, disc: int, x: float, z: float, degrees: float = 0) -> None:
    scene.shapes.center[::2, 0, disc] = x, z
    scene.shapes.yaw[0, disc] = np.radians(degrees)
    scene.pitch.velocity[:, 0, disc] = 0


def place(scene: Soccer, disc: int) -> list[float]:
    return scene.shapes.center[::2, 0, disc].tolist()


def step(env: UnityEnvironment, actions: dict[str, list[list[int]]] | None = None) -> None:
    """Make one decision; agents without an action do nothing."""
    for behavior in env.behavior_specs:
        n = len(env.get_steps(behavior)[0])
        chosen = np.zeros((n, 3), np.int32)
        if actions and behavior in actions:
            chosen[: len(actions[behavior])] = actions[behavior]
        env.set_actions(behavior, ActionTuple(discrete=chosen))
    env.step()


def rays(env: UnityEnvironment, behavior: str, sensor: int, width: int, agent: int = 0) -> Array:
    """Return the newest rays of a sensor, one per row."""
    stacked = env.get_steps(behavior)[0].obs[sensor][agent]
    return stacked.reshape(3, -1, width)[-1]


def test_both_teams_of_soccer_twos_see_rays_ahead_and_behind_in_groups_of_two() -> None:
    with UnityEnvironment("embedded:SoccerTwos") as env:
        env.reset()
        assert sorted(env.behavior_specs) == [BLUE, PURPLE]
        for behavior, color, group in ((BLUE, "Blue", 1), (PURPLE, "Purple", 2)):
            spec = env.behavior_specs[behavior]
            assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
                (f"StackingSensor_size3_{color}RayPerceptionSensor", (264,)),
                (f"StackingSensor_size3_{color}RayPerceptionSensorReverse", (72,)),
            ]
            assert spec.action_spec.discrete_branches == (3, 3, 3)
            assert env.get_steps(behavior)[0].group_id.tolist() == [group] * 2


def test_eight_pitches_with_two_strikers_against_a_goalie() -> None:
    with UnityEnvironment("embedded:StrikersVsGoalie") as env:
        env.reset()
        assert sorted(env.behavior_specs) == [GOALIE, STRIKER]
        strikers, goalies = (env.behavior_specs[name].observation_specs for name in (STRIKER, GOALIE))
        assert [(sensor.name, sensor.shape) for sensor in strikers] == [
            ("StackingSensor_size3_BlueRayPerceptionSensor", (231,)),
            ("StackingSensor_size3_BlueRayPerceptionSensorReverse", (63,)),
        ]
        assert [(sensor.name, sensor.shape) for sensor in goalies] == [
            ("StackingSensor_size3_PurpleGoalieRayPerceptionSensor", (738,))
        ]
        assert env.get_steps(STRIKER)[0].group_id.tolist() == np.repeat(np.arange(1, 17, 2), 2).tolist()
        assert env.get_steps(GOALIE)[0].group_id.tolist() == list(range(2, 18, 2))


def test_rays_see_the_ball_goals_walls_and_both_teams_by_their_own_colors(held) -> None:
    env, scene = held
    put(scene, 0, -5, 0, 90)
    put(scene, 1, -5, 5, 90)
    put(scene, 2, 5, -6, -90)
    step(env)
    ahead = rays(env, BLUE, 0, 8)
    reach = np.sqrt((0.5 + 0.624) ** 2 - 0.5**2)  # of a sphere half a meter above the ball's middle
    assert ahead[0] == pytest.approx([1, 0, 0, 0, 0, 0, 0, (5 - reach) / 20], abs=1e-5)
    behind = rays(env, BLUE, 1, 8)
    assert behind[0] == pytest.approx([0, 1, 0, 0, 0, 0, 0, (17.373 - 5 - 0.5) / 20], abs=1e-5)  # its own goal
    assert list(behind[1][:6]) == [0, 0, 0, 1, 0, 0]  # to its back left: a wall
    put(scene, 0, -5, 3, 0)
    step(env)
    assert rays(env, BLUE, 0, 8)[0][4] == 1  # its own team
    put(scene, 0, 5, -3, 180)
    step(env)
    assert rays(env, BLUE, 0, 8)[0][5] == 1  # the other team
    put(scene, 2, 0, 0, -90)
    put(scene, BALL, 0, 6)
    step(env)
    assert rays(env, PURPLE, 0, 8)[0][2] == 1  # the other team's goal
    assert rays(env, PURPLE, 1, 8)[0][1] == 1


def test_a_goalie_has_rays_all_around_and_four_tags() -> None:
    with held_scene(StrikersVsGoalie) as (env, scene):
        for player, (x, z) in enumerate([(-11, 5), (-11, -5), (11, 0)]):
            put(scene, player, x, z, -90)
        put(scene, 3, 3, 0)
        step(env)
        seen = rays(env, GOALIE, 0, 6)
        assert seen.shape == (41, 6)
        assert list(seen[0][:4]) == [1, 0, 0, 0]  # ahead: the ball
        assert list(seen[39][:4]) == list(seen[40][:4]) == [0, 1, 0, 0]  # behind: its goal
        put(scene, 3, 0, 6)
        step(env)
        # The blue goal is walled up.
        assert list(seen := rays(env, GOALIE, 0, 6)[0]) == pytest.approx([0, 0, 0, 0, 1, 1])  # 26 m away
        put(scene, 2, 0, 0, -90)
        step(env)
        seen = rays(env, GOALIE, 0, 6)[0]
        assert seen == pytest.approx([0, 0, 1, 0, 0, (15.01 - 0.5) / 20], abs=1e-5)


def distance(push: float, ticks: int = 5) -> float:
    speed, moved = 0.0, 0.0
    for _ in range(ticks):
        speed = (speed + push) * (1 - 3 * TICK) - 0.35 * 9.81 * TICK
        moved += speed * TICK
    return moved


@pytest.mark.parametrize(
    ("action", "direction", "push"),
    [
        ([1, 0, 0], (1, 0), 2.0),
        ([2, 0, 0], (-1, 0), 2.0),
        ([0, 1, 0], (0, -1), 0.6),
        ([0, 2, 0], (0, 1), 0.6),
        ([1, 1, 0], (0, -1), 0.6),  # a step aside replaces one forward
    ],
)
def test_agents_accelerate_forward_or_aside(held, action, direction, push) -> None:
    env, scene = held
    put(scene, 0, -5, 3, 90)
    step(env, {BLUE: [action]})
    moved = np.array(place(scene, 0)) - (-5, 3)
    assert moved == pytest.approx(distance(push) * np.array(direction), abs=1e-6)


def test_agents_turn_by_two_degrees_per_tick(held) -> None:
    env, scene = held
    step(env, {BLUE: [[0, 0, 1], [0, 0, 2]]})
    assert np.degrees(scene.shapes.yaw[0, :2]) == pytest.approx([80, 100])


def test_strikers_are_faster_and_goalies_move_aside_as_fast_as_forward() -> None:
    with held_scene(StrikersVsGoalie) as (env, scene):
        for player, (x, z) in enumerate([(-11, 0), (-11, -5), (11, 0)]):
            put(scene, player, x, z, 90)
        put(scene, 3, 0, 6)
        step(env, {STRIKER: [[1, 0, 0]], GOALIE: [[0, 1, 0]]})
        assert place(scene, 0)[0] + 11 == pytest.approx(distance(2.6))
        assert -place(scene, 2)[1] == pytest.approx(distance(2.0))
        assert env.get_steps(STRIKER)[0].reward == pytest.approx([-5 / 5000] * 2)
        assert env.get_steps(GOALIE)[0].reward == pytest.approx([5 / 5000])


@pytest.mark.parametrize(("x", "scorer"), [(15.5, 0), (-15.5, 1)])
def test_a_goal_rewards_the_scoring_team_less_over_time_and_gives_the_other_minus_one(held, x, scorer) -> None:
    env, scene = held
    scene.ticks[:] = 1000 - 5
    put(scene, BALL, x - np.sign(x) * (SUNK + 0.1), 2)
    step(env)
    assert not len(env.get_steps(BLUE)[1])
    put(scene, BALL, x - np.sign(x) * SUNK, 2)
    step(env)
    rewards = [env.get_steps(name)[1].group_reward.tolist() for name in (BLUE, PURPLE)]
    assert rewards[scorer] == pytest.approx([1 - 1001 / 5000] * 2)
    assert rewards[1 - scorer] == [-1, -1]
    for name in (BLUE, PURPLE):
        terminals = env.get_steps(name)[1]
        assert not terminals.interrupted.any()
        assert not terminals.reward.any()
    assert np.abs(place(scene, BALL)).max() <= 2.5
    assert scene.ticks.tolist() == [0]


@pytest.mark.parametrize("side", [-1, 1])
def test_a_ball_that_touches_the_net_from_the_front_is_a_goal(held, side) -> None:
    env, scene = held
    put(scene, BALL, side * 14.6, 3.9)  # the net's front is at 15.5 m and 4.15 m to 4.25 m to the side of the middle
    scene.pitch.velocity[0, 0, BALL] = side * 10
    step(env)
    assert env.get_steps((PURPLE, BLUE)[side > 0])[1].group_reward.tolist() == pytest.approx([1, 1], abs=0.01)


def test_rays_meet_walls_and_nets_at_the_places_of_unitys_boxes(held) -> None:
    env, scene = held
    put(scene, 0, 0, 3, 0)
    put(scene, 1, 0, 0, 90)
    put(scene, 2, 3, 2, 90)
    put(scene, BALL, -6, -6)
    step(env)
    assert rays(env, BLUE, 0, 8)[0] == pytest.approx([0, 0, 0, 1, 0, 0, 0, (7.508 - 3 - 0.5) / 20], abs=1e-5)
    assert rays(env, BLUE, 0, 8, 1)[0] == pytest.approx([0, 0, 1, 0, 0, 0, 0, (17.356 - 0.5) / 20], abs=1e-5)
    put(scene, 1, 0, 0, -90)
    step(env)
    assert rays(env, BLUE, 0, 8, 1)[0] == pytest.approx([0, 1, 0, 0, 0, 0, 0, (17.373 - 0.5) / 20], abs=1e-5)


def test_next_to_the_goal_the_ball_stays_in_play(held) -> None:
    env, scene = held
    put(scene, BALL, 14.2, 5)
    scene.pitch.velocity[0, 0, BALL] = 10
    for _ in range(3):
        step(env)
        assert not len(env.get_steps(BLUE)[1])
    assert scene.pitch.velocity[0, 0, BALL] < 0


def test_5000_ticks_without_a_goal_interrupt_the_match(held) -> None:
    env, scene = held
    scene.ticks[:] = 5000 - 3
    step(env)
    for name in (BLUE, PURPLE):
        terminals = env.get_steps(name)[1]
        assert terminals.interrupted.tolist() == [True, True]
        assert not terminals.group_reward.any()


def test_matches_start_at_unitys_positions() -> None:
    with held_scene(SoccerTwos, areas=200) as (_, scene):
        x, _, z = scene.shapes.center[:, :, :4]
        assert z.T.tolist() == [[1.2] * 200, [-1.2] * 200] * 2
        # Unity's agents start 5 m behind their places in the prefab, so that the teams are apart.
        shift = x - [-8.19, -8.19, 8.19, 8.19]
        assert (shift.min(), shift.max()) == pytest.approx((-5, 5), abs=0.1)
        degrees = np.degrees(scene.shapes.yaw[:, :4]) * [1, 1, -1, -1]
        assert (degrees.min(), degrees.max()) == pytest.approx((80, 100), abs=0.3)
        assert np.abs(scene.shapes.center[::2, :, BALL]).max() == pytest.approx(2.5, abs=0.1)


def test_a_goalie_starts_between_the_ball_and_its_goal() -> None:
    with held_scene(StrikersVsGoalie, areas=200) as (_, scene):
        x, _, z = scene.shapes.center[:, :, :3]
        assert z.T.tolist() == [[1.2] * 200, [-1.2] * 200, [0] * 200]
        shift = x - [-8.19, -8.19, 9]  # 5 m behind their places in the prefab
        assert (shift.min(), shift.max()) == pytest.approx((-5, 5), abs=0.1)


def test_a_kick_adds_force_if_the_agent_moves_forward(held) -> None:
    env, scene = held
    speeds = []
    for action in (1, 2):
        put(scene, 0, -1.2, 0, 90 if action == 1 else -90)  # forward or backward, the force has the same direction
        put(scene, BALL, 0, 0)
        scene.pitch.rolling[:] = 0
        scene.pitch._touching[:] = False
        step(env, {BLUE: [[action, 0, 0]]})
        speeds.append(scene.pitch.velocity[0, 0, BALL])
    forward, backward = speeds
    assert 0 < backward < 6
    # 2000 N push 3 kg for a tick; as it comes to roll, the ball keeps five sevenths, less drag.
    assert 2000 / 3 * TICK / 2 < forward - backward < 2000 / 3 * TICK


def test_the_parameter_ball_touch_rewards_touches() -> None:
    channel = EnvironmentParametersChannel()
    channel.set_float_parameter("ball_touch", 0.5)
    with held_scene(SoccerTwos, side_channels=(channel,)) as (env, scene):
        for player, (x, z) in enumerate([(-1.2, 0), (-11, -5), (11, 5), (11, -5)]):
            put(scene, player, x, z, 90)
        put(scene, BALL, 0, 0)
        step(env, {BLUE: [[1, 0, 0]]})
        assert env.get_steps(BLUE)[0].reward == pytest.approx([0.2 * 0.5, 0])


def test_the_ball_bounces_off_walls_and_starts_to_roll(held) -> None:
    env, scene = held
    put(scene, BALL, 0, 6.5)
    scene.pitch.velocity[1, 0, BALL] = 4
    scene.pitch.rolling[:] = [[0], [4]]
    step(env)
    step(env)
    speed = scene.pitch.velocity[1, 0, BALL]
    # Drag, 0.8 of the speed after the bounce, and five sevenths of that in the end, as its rolling stops at the wall.
    assert speed == pytest.approx(-4 * 0.8 * 5 / 7 * 0.98**10, abs=0.15)
    assert scene.pitch.rolling[1, 0] == pytest.approx(speed, abs=0.1)


def test_friction_slows_a_fast_ball_as_its_spin_is_limited_to_7_radians_per_second(held) -> None:
    env, scene = held
    put(scene, BALL, -5, 6)
    scene.pitch.velocity[0, 0, BALL] = 15
    step(env)
    step(env)
    assert scene.pitch.velocity[0, 0, BALL] == pytest.approx(7 * 0.624, abs=0.2)


def test_no_agent_leaves_the_pitch(held) -> None:
    env, scene = held
    rng = np.random.default_rng(0)
    for _ in range(150):
        step(env, {name: rng.choice([0, 1, 1], (2, 3)).tolist() for name in (BLUE, PURPLE)})
        x, z = np.abs(scene.shapes.center[::2, 0, :5])
        assert z.max() < 7.508
        assert x.max() < 17.4
        assert (x + z / np.sqrt(3))[x < 15].max() < 17.9


def unity_player() -> Callable[[list[Array]], Array]:
    runtime = pytest.importorskip("onnxruntime")
    if not POLICY.exists():
        pytest.skip(f"Unity's policy is not at {POLICY}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    policy = runtime.InferenceSession(str(POLICY), options)
    rng = np.random.default_rng(0)

    def choose(observations: list[Array]) -> Array:
        n = len(observations[0])
        inputs = {
            "vector_observation": np.concatenate(observations, axis=1),
            "action_masks": np.ones((n, 9), np.float32),
        }
        (logarithms,) = policy.run(["discrete_actions"], inputs)
        odds = np.exp(logarithms.reshape(n, 3, 3))
        return (odds.cumsum(axis=2) > rng.random((n, 3, 1)) * odds.sum(axis=2, keepdims=True)).argmax(axis=2)

    return choose


@pytest.mark.parametrize("side", [BLUE, PURPLE])
def test_unitys_policy_beats_a_random_team(side: str) -> None:
    choose, rng = unity_player(), np.random.default_rng(1)
    with UnityEnvironment("embedded:SoccerTwos", seed=2, additional_args=["--areas", "16"]) as env:
        env.reset()
        results: list[float] = []
        for _ in range(160):
            for behavior in env.behavior_specs:
                decisions, terminals = env.get_steps(behavior)
                if behavior == side:
                    results += np.sign(terminals.group_reward[::2]).tolist()
                n = len(decisions)
                chosen = choose(decisions.obs) if behavior == side and n else rng.integers(0, 3, (n, 3))
                env.set_actions(behavior, ActionTuple(discrete=chosen.astype(np.int32)))
            env.step()
        decided = [result for result in results if result]
        assert len(decided) > 30
        assert np.mean(np.array(decided) > 0) >= 0.9
