"""Launch options of players, and results that a pool collects."""

import os
import re
import shutil
import signal
import struct
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.wrappers import vector as wrappers

import unity_gym
from sb3_ext import UnityVecEnv
from stand_ins import all_sensors_player, changing_agents_player, faulty_player, scripted_player, stress_player
from stand_ins.reply_messages import Agent, Sensor
from stand_ins.scene_launcher import SUFFIX
from stand_ins.unity_editor import Editor
from unity_gym.environment import UnityEnvironment
from unity_gym.errors import (
    ActionError,
    InvalidValueError,
    NotReadyError,
    PlayerError,
    PlayerTimeoutError,
    UnityGymError,
)
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.side_channels import RawBytesChannel, StatsAggregationMethod, StatsSideChannel
from unity_gym.specs import ActionTuple
from unity_gym.wire.messages import ListAgentAction, UnityMessage


def test_a_build_with_cameras_is_launched_again_with_graphics(tmp_path: Path) -> None:
    env = gym.make("Unity-v0", file_name=changing_agents_player.launcher(tmp_path, "Camera"))
    observation, _ = env.reset()
    assert np.ptp(observation["camera"]) == 205 - 7
    env.close()


def test_a_blank_camera_raises(tmp_path: Path) -> None:
    with pytest.raises(UnityGymError, match=r"Watcher.*camera.*no_graphics"):
        gym.make("Unity-v0", file_name=changing_agents_player.launcher(tmp_path, "Camera"), no_graphics=True)


def test_messages_for_a_build_with_cameras_reach_the_player_that_stays(tmp_path: Path) -> None:
    channel = RawBytesChannel(scripted_player.CHANNEL)
    channel.send_raw_data(b", level 3")
    env = gym.make("Unity-v0", file_name=scripted_player.launcher(tmp_path, "camera"), side_channels=[channel])
    env.reset()
    assert channel.get_and_clear_received_messages() == [b"graphics, level 3"]
    channel.send_raw_data(b", level 4")
    env.step(env.action_space.sample())
    assert channel.get_and_clear_received_messages() == [b"graphics, level 3, level 4"]
    env.close()


@pytest.mark.parametrize(
    "make",
    [
        partial(gym.make, "Unity-v0"),
        partial(gym.make_vec, "Unity-v0", num_envs=1),
        unity_gym.parallel_env,
        unity_gym.aec_env,
        UnityVecEnv,
    ],
    ids=["make", "make_vec", "parallel", "aec", "vec_env"],
)
def test_a_message_that_is_queued_before_the_first_reset_is_sent_with_it(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    channel = RawBytesChannel(scripted_player.CHANNEL)
    build = scripted_player.launcher(tmp_path, "camera")
    env = make(file_name=build, side_channels=[channel], no_graphics=False)
    channel.get_and_clear_received_messages()
    channel.send_raw_data(b", level 3")
    env.reset()
    assert channel.get_and_clear_received_messages() == [b"graphics, level 3"]
    env.reset()  # in mid-episode
    assert channel.get_and_clear_received_messages() == [b"graphics, level 3"]
    env.close()


def test_a_message_that_is_queued_at_an_episode_end_is_sent_with_the_reset(tmp_path: Path) -> None:
    channel = RawBytesChannel(scripted_player.CHANNEL)
    env = gym.make("Unity-v0", file_name=scripted_player.launcher(tmp_path, "short"), side_channels=[channel])
    env.reset()
    assert env.step(env.action_space.sample())[2]
    channel.send_raw_data(b"level 3")
    env.reset()
    assert not channel.message_queue
    env.close()


def test_messages_that_are_queued_with_a_new_seed_reach_the_player_that_it_launches(tmp_path: Path) -> None:
    channel = RawBytesChannel(scripted_player.CHANNEL)
    build = scripted_player.launcher(tmp_path, "camera")
    env = gym.make("Unity-v0", file_name=build, side_channels=[channel], no_graphics=False)
    for seed in (4, 5):
        channel.get_and_clear_received_messages()
        channel.send_raw_data(b", level 3")
        env.reset(seed=seed)
        assert channel.get_and_clear_received_messages() == [b"graphics, level 3"]
    env.close()


def test_a_camera_that_appears_later_and_is_blank_raises(tmp_path: Path) -> None:
    file_name = scripted_player.launcher(tmp_path, "late_camera")
    with pytest.raises(UnityGymError, match=r"'Watcher' has the blank cameras \['camera'\].*no_graphics=False"):
        gym.make("Unity-v0", file_name=file_name, behavior="Watcher")
    env = gym.make("Unity-v0", file_name=file_name, behavior="Watcher", no_graphics=False)
    assert np.ptp(env.reset()[0]) > 0
    env.close()
    env = gym.make("Unity-v0", file_name=file_name, behavior="Guide")  # whose agents see no images
    env.close()


def test_a_player_that_freezes_while_a_step_waits_for_another_agent_is_named(tmp_path: Path) -> None:
    file_name = scripted_player.launcher(tmp_path, "freeze")
    env = gym.make_vec("Unity-v0", num_envs=2, file_name=file_name, no_graphics=False, timeout_wait=4)
    env.reset()
    with pytest.raises(PlayerTimeoutError, match=r"(?s)(sent nothing|not answer).*log.*waits for the physics") as error:
        env.step(env.action_space.sample())
    assert error.value.worker == 0
    env.close()


def test_a_grid_without_objects_is_allowed_without_graphics(tmp_path: Path) -> None:
    file_name = scripted_player.launcher(tmp_path, "empty_grid")
    with pytest.warns(UserWarning, match=r"sensors \['grid'\].*only zeros"):
        env = gym.make("Unity-v0", file_name=file_name, no_graphics=True)
    env.close()


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="the program Xvfb is not installed")
def test_a_virtual_screen_starts_and_ends_with_its_player(tmp_path: Path) -> None:
    env = gym.make("Unity-v0", file_name=changing_agents_player.launcher(tmp_path, "Camera"), display="xvfb")
    observation, _ = env.reset()
    screens = [child for child in psutil.Process().children(recursive=True) if child.name() == "Xvfb"]
    assert len(screens) == 1
    assert observation["vector"][0] >= 0
    env.close()
    assert not screens[0].is_running()


@pytest.mark.parametrize("options", [{"num_areas": 0}, {"base_port": -3}, {"additional_args": "--areas 1"}])
def test_an_invalid_option_is_named_before_a_player_starts(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(InvalidValueError, match=name):
        PlayerPool(PlayerOptions(file_name="embedded:Basic", **options))


def test_a_missing_xvfb_raises_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(PlayerError, match="install xvfb"):
        gym.make("Unity-v0", file_name=changing_agents_player.launcher(tmp_path, "Camera"), display="xvfb")
    with pytest.raises(InvalidValueError, match="display"):
        gym.make("Unity-v0", file_name=changing_agents_player.launcher(tmp_path, "Camera"), display="wayland")


# Gymnasium's checker has no observation of a first reset that raised.
@pytest.mark.parametrize(
    "make",
    [partial(gym.make, disable_env_checker=True), partial(gym.make_vec, num_envs=2)],
    ids=["make", "make_vec"],
)
def test_a_first_reset_that_was_interrupted_is_sent_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(make("Unity-Basic-v0")) as env:
        player = env.unwrapped._pool.players[0]
        with monkeypatch.context() as patch:
            patch.setattr(player, "reset", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                env.reset(seed=1)
        env.reset()
        env.action_space.seed(0)
        env.step(env.action_space.sample())


def test_statistics_are_in_the_infos_of_every_environment(tmp_path: Path) -> None:
    file_name = changing_agents_player.launcher(tmp_path)
    vec_env = UnityVecEnv(file_name=file_name, behavior="Striker?team=1")
    vec_env.reset()
    assert "stats" not in vec_env.reset_infos[0], "no tick has passed"
    for tick in (1, 2):
        *_, infos = vec_env.step(np.zeros((2, 2), int))
        assert infos[0]["stats"] == {"arena/tick": tick, "arena/ticks": 1}
    vec_env.close()
    vector_env = gym.make_vec("Unity-v0", num_envs=2, file_name=file_name, behavior="Striker?team=1")
    vector_env.reset()
    *_, columns = vector_env.step(np.zeros((2, 2), int))
    assert columns["_stats"].tolist() == [True, True]
    assert {name: array.tolist() for name, array in columns["stats"].items()} == {
        "arena/tick": [1, 1],
        "_arena/tick": [True, True],
        "arena/ticks": [1, 1],
        "_arena/ticks": [True, True],
    }
    listed = wrappers.DictInfoToList(vector_env)
    *_, infos = listed.step(np.zeros((2, 2), int))
    assert [info["stats"] for info in infos] == [{"arena/tick": 2, "arena/ticks": 1}] * 2
    vector_env.close()
    env = unity_gym.parallel_env(file_name=file_name)
    _, parallel_infos = env.reset()
    *_, parallel_infos = env.step(
        {agent: env.action_space(agent).sample(parallel_infos[agent]["action_mask"]) for agent in env.agents}
    )
    assert all(info["stats"]["arena/ticks"] == 1 for info in parallel_infos.values())
    env.close()


def test_a_statistics_channel_of_the_user_receives_all_statistics(tmp_path: Path) -> None:
    channel = StatsSideChannel()
    env = UnityEnvironment(changing_agents_player.launcher(tmp_path), side_channels=[channel])
    env.reset()
    for _ in range(3):
        env.step()
    ticks = channel.get_and_reset_stats()["arena/tick"]
    assert ticks == [(tick, StatsAggregationMethod.MOST_RECENT) for tick in (1, 2, 3)]
    assert channel.get_and_reset_stats() == {}
    env.close()


def test_reset_waits_for_a_behavior_that_appears_late(tmp_path: Path) -> None:
    options = {"file_name": stress_player.launcher(tmp_path), "no_graphics": False, "log_folder": tmp_path, "seed": 1}
    env = unity_gym.parallel_env(behavior="Late", **options)
    assert env.possible_agents[0] == "late_0"
    env.close()
    with pytest.raises(InvalidValueError, match=r"no behavior 'Never' .* within 100 exchanges; it has .*'Solo.team=0'"):
        unity_gym.parallel_env(behavior="Never", **options)


def silent_build(folder: Path, after: str = "") -> str:
    """Return a build that never connects, and runs the shell command `after` before it falls silent."""
    build = folder / "silent.x86_64"
    build.write_text(f"#!/bin/sh\ncd {folder}\necho $$ >> started\n{after}\nexec sleep 300\n")
    build.chmod(0o755)
    (folder / "started").touch()
    return str(build)


def assert_launches_have_ended(folder: Path) -> None:
    """Check that no launch waits in a thread and no silent build runs."""
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("launch of player")]
    for number in (folder / "started").read_text().split():
        assert not psutil.pid_exists(int(number))


def test_a_player_that_cannot_be_launched_ends_the_launches_of_the_others(tmp_path: Path) -> None:
    build = silent_build(tmp_path, "mkdir first || exit 3")
    started = time.monotonic()
    with pytest.raises(PlayerError, match="ended with exit code 3"):
        PlayerPool(PlayerOptions(file_name=build, timeout_wait=60), n_instances=3)
    assert time.monotonic() - started < 30
    assert_launches_have_ended(tmp_path)


@pytest.mark.parametrize("seconds", [0.01, 0.05, 0.3])
def test_ctrl_c_while_players_start_ends_their_launches(tmp_path: Path, seconds: float) -> None:
    options = PlayerOptions(file_name=silent_build(tmp_path), timeout_wait=60)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(KeyboardInterrupt):
            PlayerPool(options, n_instances=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 30
    assert_launches_have_ended(tmp_path)


def test_ctrl_c_that_does_not_wake_the_main_thread_ends_the_launches(tmp_path: Path) -> None:
    """A signal just before a wait of the main thread, or one that another thread gets, does not end that wait."""
    options = PlayerOptions(file_name=silent_build(tmp_path), timeout_wait=60)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupt = threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGALRM))
    started = time.monotonic()
    try:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            PlayerPool(options, n_instances=2)
    finally:
        interrupt.join()
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 30
    assert_launches_have_ended(tmp_path)


# --- Stepping players independently -----------------------------------------------------------------------------------

BEHAVIOR = faulty_player.BEHAVIOR


def faulty_pool(folder: Path, fault: str = "none", n: int = 2, once: bool = False, **options: Any) -> PlayerPool:
    """Faulty players after their reset."""
    file_name = faulty_player.launcher(folder, fault, once)
    pool = PlayerPool(PlayerOptions(file_name=file_name, **{"timeout_wait": 20, "seed": 5, **options}), n)
    pool.reset()
    return pool


def actions(pool: PlayerPool) -> dict[str, ActionTuple]:
    return {name: table.spec.action_spec.empty_action(len(table)) for name, table in pool.tables.items()}


def ticks(pool: PlayerPool) -> list[float]:
    """Return the number of steps of each player, from its observation."""
    table = pool.tables[BEHAVIOR]
    return [float(table.observations[0][table.player == worker][0, 0]) for worker in range(len(pool.players))]


def test_players_that_have_answered_are_stepped_while_others_are_slow(tmp_path: Path) -> None:
    pool = faulty_pool(tmp_path, "slow-steps", once=True)
    pool.send(actions(pool))
    (quick,) = pool.receive()
    slow = 1 - quick
    for _ in range(3):
        pool.send(actions(pool), [quick])
        assert pool.receive() == [quick]
    assert pool.under_way == [slow]
    assert pool.receive(timeout=0.01) == []
    assert (ticks(pool)[quick], ticks(pool)[slow]) == (4, 0)
    rewards = pool.tables[BEHAVIOR].reward
    rows = [int(np.flatnonzero(pool.tables[BEHAVIOR].player == worker)[0]) for worker in (quick, slow)]
    assert rewards[rows].tolist() == [4, 0], "the outcomes of the quick one's last step"
    assert pool.receive() == [slow]
    assert rewards[rows].tolist() == [4, 1], "what the quick one got has stayed"
    pool.send(actions(pool))
    assert pool.receive(minimum=2) == [0, 1]
    assert pool.under_way == []
    pool.step_once(actions(pool))
    assert sorted(ticks(pool)) == [3, 6]
    pool.close()


def test_sending_twice_or_receiving_before_sending_raises(tmp_path: Path) -> None:
    pool = faulty_pool(tmp_path)
    with pytest.raises(NotReadyError, match="send"):
        pool.receive()
    pool.send(actions(pool), [1])
    for call in (pool.send, pool.step, pool.step_once):
        with pytest.raises(NotReadyError, match=r"players \[1\].*receive"):
            call(actions(pool))
    pool.send(actions(pool), [0])
    assert pool.receive(minimum=2) == [0, 1]
    pool.close()


@pytest.mark.parametrize("fault", ["die-in-step", "hang-in-step", "quit-in-step"])
def test_a_player_that_died_or_hangs_is_launched_again_while_others_continue(tmp_path: Path, fault: str) -> None:
    pool = faulty_pool(tmp_path, fault, 3, once=True, environment_parameters={"gravity": 2.5}, log_folder=tmp_path)
    pool.set_environment_parameters({"gravity": 3.5})
    for player in pool.players:
        player._timeout = 5 if fault == "hang-in-step" else 20
    processes = [player._player.pid for player in pool.players]
    pool.send(actions(pool))
    read = []

    def read_all() -> None:
        while True:
            read.extend(pool.receive())

    with pytest.raises(PlayerError) as error:
        read_all()
    failed = error.value.worker
    assert failed is not None
    assert fault + SUFFIX in str(error.value)
    table = pool.tables[BEHAVIOR]
    row = int(np.flatnonzero(table.player == failed)[0])
    pool.players[failed]._timeout = 20  # now for the launch
    pool.relaunch(failed)
    while len(read) < 2:
        read += pool.receive()
    assert sorted([*read, failed]) == [0, 1, 2]
    assert len(table) == 3
    assert table.truncated.tolist() == [r == row for r in range(3)]
    assert not table.terminated.any()
    assert table.final_observations[0][row].tolist() == [0, 0.5, -0.5]
    assert table.observations[0][row].tolist() == [0, 0.5, -0.5]
    assert table.player[row] == failed
    assert table.requests_decision.all()
    assert [player._player.pid == pid for player, pid in zip(pool.players, processes, strict=True)].count(False) == 1
    assert pool.players[failed].seed == 5 + failed
    assert f"faulty player: {fault}" in (tmp_path / f"Player-{failed}-prev.log").read_text()
    log = (tmp_path / f"Player-{failed}.log").read_text()
    assert struct.pack("<if", 0, 3.5).hex() in log, "the newest parameter"
    assert struct.pack("<if", 2, 20.0).hex() in log, "the time scale"
    pool.step_once(actions(pool))
    assert ticks(pool)[failed] == 1
    assert not table.truncated.any()
    pool.close()


def test_a_player_keeps_its_port(tmp_path: Path) -> None:
    pool = faulty_pool(tmp_path, base_port=25705)
    os.kill(pool.players[1]._player.pid, signal.SIGKILL)
    with pytest.raises(PlayerError, match="SIGKILL") as error:
        pool.step_once(actions(pool))
    assert error.value.worker == 1
    pool.relaunch(1)
    assert pool.players[1]._connection.port == 25706
    with pytest.raises(NotReadyError, match=r"interrupted.*reset"):
        pool.step_once(actions(pool))
    pool.reset()
    pool.step_once(actions(pool))
    assert ticks(pool) == [1, 1]
    pool.close()


def test_a_rejected_action_changes_nothing(tmp_path: Path) -> None:
    pool = faulty_pool(tmp_path)
    wrong = {BEHAVIOR: ActionTuple(np.array([[0.0], [np.nan]]))}
    for call in (pool.send, pool.step, pool.step_once):
        with pytest.raises(ActionError, match="NaN"):
            call(wrong)
        with pytest.raises(ActionError, match="2 rows, got actions for 1"):
            call({BEHAVIOR: ActionTuple(np.zeros((1, 1)))})
        assert pool.tables[BEHAVIOR].requests_decision.all()
    pool.step(actions(pool))
    assert ticks(pool) == [1, 1]
    pool.close()


# --- Waiting for all agents -------------------------------------------------------------------------------------------


def test_agents_that_request_decisions_at_different_times_are_reported_once(tmp_path: Path) -> None:
    pool = PlayerPool(
        PlayerOptions(file_name=all_sensors_player.launcher(tmp_path), no_graphics=False, timeout_wait=20)
    )
    pool.reset()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(30):
            pool.step(actions(pool))
    (warning,) = warned
    message = str(warning.message)
    counts = r"agents \[0\] of behavior 'Cow.team=0' 2, agents \[[\d, ]+\] of behavior 'Cow.team=0' 1\. An agent"
    assert re.search(counts, message)
    assert 'pass wait_for="any"' in message
    pool.close()


def test_an_agent_that_requests_nothing_for_long_is_reported(tmp_path: Path) -> None:
    pool = faulty_pool(tmp_path, "silent-for-150", 1)
    with pytest.warns(UserWarning, match=r"step of 100 exchanges.*agents \[1\] of behavior 'Faulty.team=0' 0"):
        pool.step(actions(pool))
    assert ticks(pool) == [151]
    pool.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("vanish", r"agents \[1\] of behavior 'Faulty.team=0' request no decision"),
        ("end-for-ever", "which have all ended, request no decision"),
    ],
)
def test_a_step_times_out_although_the_player_keeps_answering(tmp_path: Path, fault: str, message: str) -> None:
    pool = faulty_pool(tmp_path, fault, 1, timeout_wait=3)
    started = time.monotonic()
    with pytest.raises(PlayerTimeoutError, match=message), pytest.warns(UserWarning, match="exchanges"):
        pool.step(actions(pool))
    assert 3 <= time.monotonic() - started < 4
    with pytest.raises(NotReadyError, match="reset"):
        pool.step(actions(pool))
    pool.reset()
    assert ticks(pool) == [0]
    pool.close()


@pytest.mark.parametrize("scene", ["WallJump", "DungeonEscape"])
def test_scenes_whose_agents_act_together_are_not_reported(scene: str) -> None:
    pool = PlayerPool(PlayerOptions(file_name=f"embedded:{scene}", num_areas=4, seed=1, timeout_wait=250))
    pool.reset()
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            spec = {name: table.spec.action_spec for name, table in pool.tables.items()}
            pool.step({name: spec[name].random_action(len(table), rng) for name, table in pool.tables.items()})
    pool.close()


def test_after_a_rejected_action_the_next_one_is_taken_and_continuous_actions_are_clipped(tmp_path: Path) -> None:
    del tmp_path
    name = "Both?team=0"

    def answer(_: Any) -> Any:
        output = UnityMessage().unity_output
        actions = output.rl_initialization_output.brain_parameters.add(brain_name=name).action_spec
        actions.num_continuous_actions, actions.num_discrete_actions = 2, 1
        actions.discrete_branch_sizes.append(3)
        agent = Agent(1, [Sensor(np.zeros(2))], mask=[False, True, False])
        output.rl_output.agent_infos[name].value.add().CopyFrom(agent.message())
        return output

    def sent() -> tuple[list[float], bytes]:
        (agent,) = ListAgentAction.FromString(editor.received[-1].unity_input.rl_input.agent_actions[name]).value
        return np.frombuffer(agent.continuous_actions, "<f4").tolist(), agent.discrete_actions

    editor = Editor(answer)
    pool = PlayerPool(PlayerOptions(base_port=editor.port, timeout_wait=20))
    pool.reset()
    for call in (pool.step, pool.step_once):
        for wrong in ([[0]], [[3]]), ([[-1]], [[0]]):
            continuous = np.array([[np.nan, 0.0]]) if wrong[0] == [[0]] else np.zeros((1, 2))
            with pytest.raises(ActionError):
                call({name: ActionTuple(continuous, np.array(wrong[0]))})
        call({name: ActionTuple(np.array([[1.5, -0.5]]), np.array([[1]]))})
        assert sent() == ([1.0, -0.5], b"\x01"), "a number is clipped, a forbidden choice is sent as it is"
    pool.close()
