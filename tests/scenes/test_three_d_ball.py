"""3DBall: the timing of messages, physics, and the return of Unity's own policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from stand_ins.raw_client import continuous, parameter
from unity_gym.demonstrations import load
from unity_gym.scenes.three_d_ball import ThreeDBall
from unity_gym.specs import ActionTuple

BALL = "3DBall?team=0"
UNITY = Path(__file__).resolve().parents[2] / "../shared/unity"
POLICY = UNITY / "models/3DBall.onnx"
DEMONSTRATION = UNITY / "demonstrations/Expert3DBall.demo"


def still(message):
    return continuous(np.zeros((len(message.deciding(BALL)), 2)))


def test_agents_observe_eight_numbers_under_unitys_name(launch) -> None:
    agents = launch("3DBall").start().agents[BALL]
    assert [agent.id for agent in agents] == list(range(12))
    for agent in agents:
        (observation,) = agent.observations
        assert agent.sensors == ["VectorSensor_size8"]
        assert (agent.reward, agent.group_id, agent.group_reward, len(agent.mask)) == (0, 0, 0, 0)
        assert np.abs(observation[:2]).max() <= np.sin(np.radians(10))
        assert observation[3] == 4
        assert np.abs(observation[[2, 4]]).max() <= 1.5
        assert not observation[5:].any()


def test_a_lost_ball_sets_the_reward_and_the_idle_ticks_belong_to_the_next_episode(launch) -> None:
    client = launch("3DBall")
    message = client.start()
    kinds = set()
    lost: dict[int, bool] = {}  # per id of an agent that ended: whether it requested a decision in the same message
    for _ in range(150):
        message = client.step(BALL, still(message))
        ended, deciding = message.ended(BALL), message.deciding(BALL)
        together = bool(deciding)
        kinds.add((bool(ended), together))
        lost |= {agent.id: together for agent in ended}
        for agent in ended:
            x, y, z = agent.observations[0][2:5]
            assert agent.reward == -1
            assert not agent.interrupted
            assert y < -2 or abs(x) > 3 or abs(z) > 3
        for agent in deciding:
            # Without an idle tick the new episode starts with reward 0; any number of idle ticks sets 0.1.
            assert agent.reward == np.float32(0 if lost.pop(agent.id, False) else 0.1)
    assert kinds == {(False, True), (True, True), (True, False)}


def test_an_episode_of_5000_ticks_is_interrupted_after_1000_decisions(launch) -> None:
    client = launch("3DBall", "--areas", "1")
    message = client.start(side_channel=parameter("gravity", 0))
    rewards = []
    for _ in range(1000):
        assert not message.ended(BALL)
        message = client.step(BALL, still(message))
        rewards.append(message.agents[BALL][0].reward)
    last, first = message.agents[BALL]
    assert (last.id, last.done, last.interrupted) == (0, True, True)
    assert (first.id, first.done, first.reward) == (0, False, 0)
    assert sum(rewards) == pytest.approx(100)


def test_a_reset_sends_no_terminal_steps_and_keeps_the_reward_of_the_next_tick(launch) -> None:
    client = launch("3DBall")
    before = client.start()
    before = client.step(BALL, still(before))
    after = client.reset()
    assert not after.ended(BALL)
    assert [agent.id for agent in after.agents[BALL]] == list(range(12))
    for old, new in zip(before.agents[BALL], after.agents[BALL], strict=True):
        assert new.reward == np.float32(0.1)
        # one tick of free fall since the reset
        assert new.observations[0][3] == pytest.approx(4 - 9.81 * 0.02**2)
        assert new.observations[0][2] != old.observations[0][2]


def test_a_still_platform_lets_the_ball_roll_with_five_sevenths_of_the_slope(launch) -> None:
    client = launch("3DBall", "--areas", "50")
    message = client.start()
    for _ in range(11):  # 55 ticks; the ball lands after about 23
        before, message = message, client.step(BALL, still(message))
    compared = 0
    ended = {agent.id for agent in message.ended(BALL)}
    for old, new in zip(before.deciding(BALL), message.deciding(BALL), strict=True):
        z_tilt, x_tilt, *_ = new.observations[0]
        tilt = 2 * np.arcsin(np.hypot(z_tilt, x_tilt))
        if new.id in ended or tilt < 0.05 or np.abs(new.observations[0][[2, 4]]).max() > 2.3:
            continue
        gain = np.linalg.norm(new.observations[0][5:] - old.observations[0][5:]) / 0.1
        assert gain == pytest.approx(5 / 7 * 9.81 * np.sin(tilt), rel=0.02)
        compared += 1
    assert compared > 10


def test_the_spin_of_a_ball_is_limited_to_unitys_default_of_7_rad_per_second() -> None:
    with held_scene(ThreeDBall) as (_, scene):
        scene.offset[:, 0] = 0, 4, 0
        scene.spin[:, 0] = 12, 0, 16
        scene.simulate()
        assert scene.spin[:, 0] == pytest.approx([4.2, 0, 5.6])


def test_actions_tilt_by_two_degrees_per_tick_up_to_a_quarter(launch) -> None:
    client = launch("3DBall", "--areas", "1")
    message = client.start()
    tilts = []
    for _ in range(8):
        tilts.append(np.degrees(2 * np.arcsin(message.agents[BALL][-1].observations[0][0])))
        message = client.step(BALL, continuous(np.array([[5.0, 0.0]])))  # clipped to 1
        assert not message.ended(BALL)
    assert tilts[1] - tilts[0] == pytest.approx(10, abs=0.2)
    assert 2 * np.degrees(np.arcsin(0.25)) <= max(tilts) <= 2 * np.degrees(np.arcsin(0.25)) + 2.1


def test_unitys_own_policy_keeps_the_balls(launch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if not POLICY.exists():
        pytest.skip("Unity's 3DBall.onnx is not there")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    policy = onnxruntime.InferenceSession(POLICY, options)
    areas = 120
    client = launch("3DBall", "--areas", str(areas))
    message = client.start()
    running, returns, seen = np.zeros(areas), {}, []
    while len(returns) < areas:
        deciding = message.deciding(BALL)
        if deciding:
            observations = np.stack([agent.observations[0] for agent in deciding])
            seen.append(observations)
            (actions,) = policy.run(["deterministic_continuous_actions"], {"obs_0": observations})
            message = client.step(BALL, continuous(actions))
        else:
            message = client.step(BALL, [])
        for agent in message.deciding(BALL):
            running[agent.id] += agent.reward
        for agent in message.ended(BALL):
            returns.setdefault(agent.id, running[agent.id] + agent.reward)  # the first episode of each
    assert np.mean(list(returns.values())) >= 95
    # The means of tilt and offset that the policy's normalizer holds; those of the velocity come from balls that fell
    # in early training.
    means = np.concatenate(seen).mean(axis=0)
    assert means[:5] == pytest.approx([-0.0026, 0.0031, 0.027, 3.093, 0.055], abs=0.25)


def test_the_hard_version_observes_the_last_nine_offsets_and_tilts_and_no_velocity(launch) -> None:
    hard = "3DBallHard?team=0"
    client = launch("3DBallHard")
    first = client.start()
    second = client.step(hard, continuous(np.zeros((12, 2))))
    for before, after in zip(first.agents[hard], second.agents[hard], strict=True):
        prefix = "StackingSensor_size9_ObservableAttribute:Ball3DHardAgent."
        assert before.sensors == [prefix + "PositionDelta", prefix + "Rotation"]
        (offsets, tilts), (later_offsets, later_tilts) = before.observations, after.observations
        assert (offsets.shape, tilts.shape) == ((27,), (18,))
        assert not offsets[:24].any()
        assert not tilts[:16].any()
        assert offsets[25] == 4
        assert later_offsets[21:24].tolist() == offsets[24:].tolist()
        assert later_tilts[14:16].tolist() == tilts[16:].tolist()


def test_the_image_is_in_perspective_and_a_nearer_ball_looks_larger() -> None:
    with held_scene(ThreeDBall) as (_, scene):
        sizes = []
        for z in (2.0, -2.0):  # the camera looks along z
            scene.offset[:, 0] = 0, 3, z
            image = scene.render(0)
            assert image.shape == (320, 480, 3)
            red, blue = image[..., 0].astype(int), image[..., 2].astype(int)
            sizes.append(np.count_nonzero(red > blue + 60))  # the orange ball
        platform = np.count_nonzero(blue > red + 60)
        assert sizes[1] > 1.4 * sizes[0] > 0
        assert 0.1 < platform / image[..., 0].size < 0.4


@pytest.mark.skipif(not DEMONSTRATION.exists(), reason="the demonstration is not there")
def test_each_recorded_decision_moves_the_ball_as_in_unity() -> None:
    demonstration = load(DEMONSTRATION)
    (recorded,) = (array.astype(float) for array in demonstration.record_observations)
    actions = demonstration.actions.continuous.astype(np.float32)
    errors = []
    with held_scene(ThreeDBall) as (env, scene):
        for now, action, following in zip(recorded, actions, recorded[1:], strict=False):
            about_y = scene.rotation[2, 0] if errors else 0.0
            about_z, about_x = now[:2]
            w = np.sqrt(1 - about_x**2 - about_y**2 - about_z**2)
            scene.rotation[:, 0] = w, about_x, about_y, about_z
            scene.offset[:, 0], scene.velocity[:, 0] = now[2:5], now[5:8]
            env.set_actions(BALL, ActionTuple(action[np.newaxis]))
            env.step()
            errors.append(np.r_[scene.offset[:, 0] - following[2:5], scene.velocity[:, 0] - following[5:8]])
    _, height, _, _, vertical, _ = np.sqrt(np.square(errors[10:]).mean(0))  # the spin is not recorded: it starts at 0
    assert height < 0.0018  # m
    assert vertical < 0.03  # m/s
