"""`UnityEnvironment`: results for a script, messages to the player, and failures."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from stand_ins.faulty_player import BEHAVIOR, launcher
from stand_ins.ports import free_port
from stand_ins.reply_messages import Agent, Sensor
from stand_ins.scene_launcher import SUFFIX, module_launcher
from stand_ins.unity_editor import Editor
from unity_gym import environment
from unity_gym.environment import UnityEnvironment, wire_seed
from unity_gym.errors import (
    ActionError,
    InvalidValueError,
    NotReadyError,
    PlayerError,
    PlayerTimeoutError,
    ProtocolError,
    UnityGymError,
)
from unity_gym.side_channels import FloatPropertiesChannel, RawBytesChannel, StatsSideChannel
from unity_gym.specs import ActionSpec, ActionTuple, DecisionStep, TerminalStep
from unity_gym.wire.messages import RESET, STEP, ListAgentAction, UnityMessage

POSIX = pytest.mark.skipif(os.name != "posix", reason="the player is a shell script")
KILLED = "killed by SIGKILL" if os.name == "posix" else "ended with exit code 9"
FIRST, SECOND = "First?team=0", "Second?team=1"


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left, f"still there: {left}"


def faulty_env(folder: Path, fault: str = "none", **options: Any) -> UnityEnvironment:
    return UnityEnvironment(launcher(folder, fault), **{"timeout_wait": 20, **options})


# --- Failures ---------------------------------------------------------------------------------------------------------


def assert_closed(env: UnityEnvironment, why: str) -> None:
    """Check that every call reports the closed environment and the cause, and that close() can be repeated."""
    for call in (env.reset, env.step, lambda: env.get_steps(BEHAVIOR)):
        with pytest.raises(NotReadyError, match=rf"(?s)is closed \(.*{why}.*make a new one"):
            call()
    env.close()


def test_an_error_of_the_output_of_the_notice_about_a_slow_start_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ClosedOutput(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise BrokenPipeError(record.getMessage())

    monkeypatch.setattr(environment, "_NOTICE", 0.0)
    handler, logger = ClosedOutput(logging.WARNING), logging.getLogger("unity_gym")
    logger.addHandler(handler)
    try:
        with pytest.raises(BrokenPipeError, match="embedded:Basic is still starting"):
            UnityEnvironment("embedded:Basic")
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("fault", "timeout", "error", "message"),
    [
        ("exit-at-start", 20, PlayerError, "exit code 3.*something is wrong with my start"),
        ("never-connect", 3, PlayerTimeoutError, "sent nothing for 3 s.*faulty player: never-connect"),
        ("version-2", 20, ProtocolError, r"version 2\.0\.0.*package 4\.0\.0.*uses 1\.5\.0.*faulty player: version-2"),
    ],
)
def test_a_failed_launch_reports_the_cause(
    tmp_path: Path, fault: str, timeout: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match="(?s)" + message) as raised:
        faulty_env(tmp_path, fault, timeout_wait=timeout)
    assert fault + SUFFIX in str(raised.value), "the error names the player"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no-behavior", "announces no behavior.*needs an active agent"),
        ("no-agents", r"announces \['Faulty\?team=0'\].*needs an active agent"),
    ],
)
def test_reset_raises_for_a_scene_without_agents(tmp_path: Path, fault: str, message: str) -> None:
    with faulty_env(tmp_path, fault) as env:
        env._timeout = 1  # only now: the launch may take longer
        with pytest.raises(PlayerTimeoutError, match="(?s)" + message) as raised:
            env.reset()
        assert fault + SUFFIX in str(raised.value)
        assert_closed(env, message)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("die-in-step", PlayerError, KILLED + ".*faulty player: about to die"),
        ("hang-in-step", PlayerTimeoutError, "sent nothing for 1 s.*faulty player: hang-in-step"),
        ("quit-in-step", PlayerError, "quit by itself.*faulty player: quit-in-step"),
        (
            "nan-observation",
            ProtocolError,
            r"'Faulty\?team=0', agent 1: sensor 0 \('VectorSensor_size3'\) holds NaN.*faulty player: nan-observation",
        ),
        ("nan-reward", ProtocolError, r"'Faulty\?team=0', agent 1: the reward holds NaN.*faulty player: nan-reward"),
        ("garbage", ProtocolError, "64 bytes that are no complete ML-Agents message.*faulty player: garbage"),
        ("truncated", ProtocolError, "no complete ML-Agents message.*faulty player: truncated"),
    ],
)
def test_a_failed_step_reports_the_cause_and_closes_the_environment(
    tmp_path: Path, fault: str, error: type[Exception], message: str
) -> None:
    with faulty_env(tmp_path, fault) as env:
        env.reset()
        env._timeout = 1 if fault == "hang-in-step" else 20
        with pytest.raises(error, match="(?s)" + message) as raised:
            env.step()
        assert fault + SUFFIX in str(raised.value)
        assert_closed(env, message)


def test_reset_raises_for_a_player_that_died_before_it(tmp_path: Path) -> None:
    with faulty_env(tmp_path, "die-in-handshake") as env:
        assert env._player is not None
        while psutil.pid_exists(env._player.pid):
            time.sleep(0.02)
        with pytest.raises(PlayerError, match=f"(?s)die-in-handshake{SUFFIX}.*{KILLED}"):
            env.reset()
        assert_closed(env, KILLED)


@POSIX
def test_a_step_raises_for_a_player_that_was_killed_since_the_last_one(tmp_path: Path) -> None:
    with faulty_env(tmp_path) as env:
        env.reset()
        assert env._player is not None
        os.kill(env._player.pid, signal.SIGKILL)
        with pytest.raises(PlayerError, match="SIGKILL"):
            env.step()
        assert_closed(env, "SIGKILL")


def test_a_taken_port_raises_with_the_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PlayerError, match=f"(?s){port}.*taken.*worker_id or base_port"):
            faulty_env(tmp_path, base_port=port - 1, worker_id=1)


@POSIX
def test_a_file_that_cannot_be_launched_raises_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match=r"missing\.x86_64"):
        UnityEnvironment(tmp_path / "missing")
    path = Path(launcher(tmp_path))
    path.chmod(0o644)
    with pytest.raises(PlayerError, match=r"not executable.*chmod \+x"):
        UnityEnvironment(path)
    with zipfile.ZipFile(tmp_path / "game.zip", "w") as archive:
        archive.write(path)
    with pytest.raises(PlayerError, match=r"game.zip' is an archive: .*game\.zip\. Unpack it, and give the path of"):
        UnityEnvironment(tmp_path / "game.zip")
    with pytest.raises(PlayerError, match="is a folder"):
        UnityEnvironment(tmp_path)


def test_an_exception_in_the_users_loop_ends_the_player(tmp_path: Path) -> None:
    def loop() -> None:
        with env:
            env.reset()
            env.step()
            raise ZeroDivisionError

    env = faulty_env(tmp_path)
    with pytest.raises(ZeroDivisionError):
        loop()
    assert_closed(env, r"close\(\) was called")


def test_close_can_be_called_twice(tmp_path: Path) -> None:
    env = faulty_env(tmp_path)
    env.close()
    env.close()
    assert_closed(env, r"close\(\) was called")


def test_an_unreferenced_environment_ends_its_player(tmp_path: Path) -> None:
    env = faulty_env(tmp_path)
    env.reset()
    del env


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"worker_id": 1}, UnityGymError, "worker_id must be 0 with the Editor.*got 1"),
        ({"visual_dtype": "float64"}, InvalidValueError, "'float32' or 'uint8', got 'float64'"),
        ({"uncompressed_layout": "CWH"}, InvalidValueError, "'auto', 'CHW' or 'HWC', got 'CWH'"),
        ({"num_areas": 0}, InvalidValueError, "num_areas must be a whole number from 1 to 2147483647, got 0"),
        ({"num_areas": 10**11}, InvalidValueError, "num_areas must be .* to 2147483647, got 100000000000"),
        ({"num_areas": 1.5}, InvalidValueError, "num_areas must be a whole number .*, got 1.5"),
        ({"base_port": 70000}, InvalidValueError, r"base_port must be a whole number, .*, got 70000 \+ 0"),
        ({"base_port": "5005"}, InvalidValueError, r"base_port must be a whole number, .*, got '5005' \+ 0"),
        ({"additional_args": "-level 3"}, InvalidValueError, "additional_args must be strings, .*, got '-level 3'"),
        ({"additional_args": ["-level", 3]}, InvalidValueError, r"must be strings, .*, got \['-level', 3\]"),
        ({"additional_args": 3}, InvalidValueError, "additional_args must be strings, .*, got 3"),
        ({"side_channels": [1]}, InvalidValueError, r"a list of SideChannel objects, got \[1\]"),
        ({"side_channels": StatsSideChannel()}, InvalidValueError, "a list of SideChannel objects, got <.*Stats"),
        ({"timeout_wait": None}, InvalidValueError, r"timeout_wait must be seconds above 0 \(inf .*\), got None"),
        ({"timeout_wait": 0}, InvalidValueError, r"timeout_wait must be seconds above 0 \(inf .*\), got 0"),
    ],
)
def test_an_invalid_option_raises_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        UnityEnvironment(**options)


def test_numbers_of_numpy_are_times_to_wait(tmp_path: Path) -> None:
    with faulty_env(tmp_path, timeout_wait=np.float32(20)) as env:
        env.reset()
        env.step()


def test_calls_in_the_wrong_order_and_unknown_names_leave_the_environment_usable(tmp_path: Path) -> None:
    with faulty_env(tmp_path) as env:
        assert env.behavior_specs == {}
        for call in (env.step, lambda: env.get_steps(BEHAVIOR), lambda: env.set_actions(BEHAVIOR, ActionTuple())):
            with pytest.raises(NotReadyError, match=r"reset\(\)"):
                call()
        env.reset()
        with pytest.raises(InvalidValueError, match=r"no behavior 'Faulty' .*\['Faulty\?team=0'\]"):
            env.get_steps("Faulty")
        with pytest.raises(InvalidValueError, match="no behavior 'Faulty'"):
            env.set_actions("Faulty", ActionTuple(np.zeros((1, 1))))
        env.step()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (ActionTuple(np.zeros((2, 1))), r"1 agents .* shape \(1, 1\), got \(2, 1\)"),
        (ActionTuple(np.zeros((1, 2))), r"got \(1, 2\)"),
        (ActionTuple(), r"got \(0, 0\)"),
        (ActionTuple(discrete=np.zeros((1, 1), int)), r"continuous actions .* got \(1, 0\)"),
        (ActionTuple(np.zeros((1, 1)), np.zeros((1, 1), int)), r"discrete actions .* \(1, 0\), got \(1, 1\)"),
        (ActionTuple(np.full((1, 1), np.nan)), "NaN"),
        (np.zeros((1, 1)), "an ActionTuple, got ndarray"),
    ],
)
def test_actions_that_do_not_fit_raise_and_leave_the_environment_usable(
    tmp_path: Path, action: Any, message: str
) -> None:
    with faulty_env(tmp_path) as env:
        env.reset()
        with pytest.raises(ActionError, match=message):
            env.set_actions(BEHAVIOR, action)
        with pytest.raises(ActionError, match=message):
            env.set_action_for_agent(BEHAVIOR, 1, action)
        env.step()


@pytest.mark.parametrize(
    ("continuous", "discrete", "message"),
    [
        ([[1j]], None, "float array.*complex128"),
        (["left"], None, "float array"),
        ([0.5], None, r"shape \(1,\)"),
        (None, [[0.5]], "no branch with the index 0.5"),
        (None, [[np.nan]], "no branch with the index nan"),
        (None, [0], r"integer array.*shape \(1,\)"),
        (None, [[0], [2**32 + 1]], "no branch with the index 4294967297"),
    ],
)
def test_arrays_that_are_no_actions_raise(continuous: Any, discrete: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        ActionTuple(continuous, discrete)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, bool])
def test_discrete_actions_are_whole_numbers_of_any_type(dtype: type) -> None:
    actions = ActionTuple(discrete=np.array([[0, 1]], dtype))  # `np.zeros((n, branches))` is common in scripts
    assert actions.discrete.dtype == np.int32
    assert actions.discrete.tolist() == [[0, 1]]


def test_random_actions_are_those_of_unitys_package_for_a_seed_of_numpy() -> None:
    np.random.seed(3)  # noqa: NPY002  # as scripts do
    action = ActionSpec(1, (3, 4)).random_action(3)
    np.testing.assert_array_equal(action.continuous.round(4), np.float32([[0.1016], [0.4163], [-0.4182]]))
    assert action.discrete.tolist() == [[0, 3], [1, 2], [1, 3]]


@pytest.mark.parametrize("action", [-1, 3])
def test_discrete_actions_outside_their_branch_raise(action: int) -> None:
    with pytest.raises(ActionError, match=r"outside its branches \(3,\)"):
        ActionSpec(0, (3,)).validate(ActionTuple(discrete=np.array([[0], [action]])), 2, "Ball")


# --- A player inside the test -----------------------------------------------------------------------------------------


class Scene:
    """Two behaviors: agents 3, 5 and 4 of "First" request decisions, and agent 9 of "Second", which appears in step 2.

    In step 1 agent 5 ends, and in step 3 no agent requests a decision. An observation is the step number over
    all resets and the agent's id.
    """

    def __init__(self) -> None:
        self.step = -1

    def __call__(self, _: Any) -> Any:
        self.step += 1
        output = UnityMessage().unity_output
        infos = output.rl_output.agent_infos
        if self.step == 0:
            first = output.rl_initialization_output.brain_parameters.add(brain_name=FIRST)
            first.action_spec.num_continuous_actions = 1
            first.action_spec.num_discrete_actions = 2
            first.action_spec.discrete_branch_sizes.extend([3, 300])
            second = output.rl_initialization_output.brain_parameters.add(brain_name=SECOND)
            second.action_spec.num_continuous_actions = 2
        if self.step != 3:
            infos[FIRST].value.extend(self.agent(number).message() for number in (3, 5, 4))
            if self.step == 1:
                infos[FIRST].value.add().CopyFrom(self.agent(5, done=True, interrupted=True).message())
            if self.step >= 2:
                infos[SECOND].value.add().CopyFrom(self.agent(9).message())
        return output

    def agent(self, number: int, **ending: Any) -> Agent:
        return Agent(number, [Sensor(np.array([self.step, number]))], number / 2, number / 4, group=1, **ending)


def actions_of(command: Any, behavior: str) -> list[tuple[list[float], bytes]]:
    encoded = command.unity_input.rl_input.agent_actions[behavior]
    return [
        (np.frombuffer(agent.continuous_actions, "<f4").tolist(), agent.discrete_actions)
        for agent in ListAgentAction.FromString(encoded).value
    ]


@pytest.fixture
def editor() -> Editor:
    return Editor(Scene())


def test_a_script_written_for_mlagents_envs_runs(editor: Editor) -> None:
    env = editor.connect(seed=7, num_areas=2)
    env.reset()
    assert list(env.behavior_specs) == [FIRST]
    assert env.behavior_specs[FIRST].action_spec == ActionSpec(1, (3, 300))
    decision_steps, terminal_steps = env.get_steps(FIRST)
    assert (len(decision_steps), len(terminal_steps)) == (3, 0)
    assert list(decision_steps) == [3, 5, 4]
    assert decision_steps.agent_id_to_index == {3: 0, 5: 1, 4: 2}
    assert 5 in decision_steps
    assert 9 not in decision_steps
    step = decision_steps[5]
    assert isinstance(step, DecisionStep)
    assert step.obs[0].tolist() == [0, 5]
    assert (step.reward, step.agent_id, step.group_id, step.group_reward) == (2.5, 5, 1, 1.25)
    assert type(step.reward) is type(step.group_reward) is np.float32
    assert step.action_mask is not None
    assert [mask.shape for mask in step.action_mask] == [(3,), (300,)]
    assert dict(decision_steps).keys() == {3, 5, 4}
    with pytest.raises(KeyError, match=r"agent 9 .*\[3, 5, 4\]"):
        decision_steps[9]
    env.set_actions(FIRST, env.behavior_specs[FIRST].action_spec.random_action(len(decision_steps)))
    env.step()
    decision_steps, terminal_steps = env.get_steps(FIRST)
    assert list(terminal_steps) == [5]
    assert 5 in decision_steps, "an ended agent has started its next episode in the same message"
    end = terminal_steps[5]
    assert isinstance(end, TerminalStep)
    assert end.interrupted is np.True_
    assert type(end.reward) is type(end.group_reward) is np.float32
    assert (end.reward, end.group_reward, end.group_id, end.agent_id) == (2.5, 1.25, 1, 5)
    env.close()
    editor.join()
    first = editor.received[0].unity_input.rl_initialization_input
    assert (first.seed, first.num_areas) == (7, 2)
    assert [message.unity_input.rl_input.command for message in editor.received[1:3]] == [RESET, STEP]
    assert editor.received[-1].header.status == 400


def test_a_behavior_that_appears_later_is_available_from_then_on(editor: Editor) -> None:
    with editor.connect() as env:
        env.reset()
        specs = env.behavior_specs
        for _ in range(2):
            assert list(specs) == [FIRST]
            env.step()
        assert list(specs) == [FIRST, SECOND]
        assert list(env.get_steps(SECOND)[0]) == [9]
        env.step()
        for name in (FIRST, SECOND):
            assert [len(steps) for steps in env.get_steps(name)] == [0, 0]
        env.step()
        assert list(env.get_steps(FIRST)[0]) == [3, 5, 4]
    editor.join()
    assert not editor.received[5].unity_input.rl_input.agent_actions, "no agent requested a decision"


def test_agents_without_an_action_take_the_zero_action(editor: Editor) -> None:
    with editor.connect() as env:
        env.reset()
        env.step()
        env.set_action_for_agent(FIRST, 4, ActionTuple(np.array([[0.5]]), np.array([[2, 299]])))
        env.step()
        env.step()
    editor.join()
    _, _, first, second, third, _ = editor.received
    zeros = actions_of(first, FIRST)
    assert [action[0] for action in zeros] == [[0.0]] * 3
    assert zeros[0] == zeros[1] == zeros[2]
    assert actions_of(second, FIRST)[:2] == zeros[:2]
    assert actions_of(second, FIRST)[2] == ([0.5], bytes([0x82, 0, 0xAB, 2]))  # varints of two bytes: 2 and 299
    assert actions_of(third, FIRST) == zeros, "an action holds for one step"
    assert actions_of(third, SECOND) == [([0.0, 0.0], b"")]


def test_an_action_for_one_agent_changes_neither_the_others_nor_the_callers_arrays(editor: Editor) -> None:
    continuous, discrete = np.full((3, 1), 0.25, np.float32), np.full((3, 2), 1, np.int32)
    with editor.connect() as env:
        env.reset()
        env.set_actions(FIRST, ActionTuple(continuous, discrete))
        env.set_action_for_agent(FIRST, 5, ActionTuple(np.array([[-1.0]]), np.array([[0, 1]])))
        env.step()
    editor.join()
    assert [action[0] for action in actions_of(editor.received[2], FIRST)] == [[0.25], [-1.0], [0.25]]
    assert (continuous == 0.25).all()
    assert (discrete == 1).all()


def test_an_action_for_an_agent_that_requests_none_raises(editor: Editor) -> None:
    with editor.connect() as env:
        env.reset()
        with pytest.raises(ActionError, match=rf"agent 9 .*{FIRST[:5]}.*\[3, 5, 4\]"):
            env.set_action_for_agent(FIRST, 9, ActionTuple(np.zeros((1, 1)), np.zeros((1, 2), int)))


def test_players_without_hybrid_actions_get_the_deprecated_field() -> None:
    def answer(_: Any) -> Any:
        output = UnityMessage().unity_output
        output.rl_initialization_output.brain_parameters.add(
            brain_name=FIRST, vector_action_size_deprecated=[3, 2], vector_action_space_type_deprecated=0
        )
        output.rl_output.agent_infos[FIRST].value.add().CopyFrom(Agent(1, [Sensor(np.zeros(2))]).message())
        return output

    editor = Editor(answer, hybrid_actions=False)
    with editor.connect() as env:
        env.reset()
        assert env.behavior_specs[FIRST].action_spec == ActionSpec(0, (3, 2))
        env.set_actions(FIRST, ActionTuple(discrete=np.array([[2, 1]])))
        env.step()
    editor.join()
    (agent,) = ListAgentAction.FromString(editor.received[2].unity_input.rl_input.agent_actions[FIRST]).value
    assert np.frombuffer(agent.vector_actions_deprecated, "<f4").tolist() == [2, 1]


def test_side_channel_messages_are_exchanged_with_each_step() -> None:
    echo, properties = RawBytesChannel(uuid.uuid4()), FloatPropertiesChannel()
    scene = Scene()

    def answer(command: Any) -> Any:
        output = scene(command)
        output.rl_output.side_channel = command.unity_input.rl_input.side_channel
        return output

    editor = Editor(answer)
    with editor.connect(side_channels=[echo, properties]) as env:
        echo.send_raw_data(b"with the reset")
        env.reset()
        assert echo.get_and_clear_received_messages() == [b"with the reset"]
        echo.send_raw_data(b"with the step")
        properties.set_property("speed", 2.0)
        env.step()
        assert echo.get_and_clear_received_messages() == [b"with the step"]
        env.step()
        assert echo.get_and_clear_received_messages() == []
        assert properties.get_property("speed") == 2.0


def test_agents_of_a_behavior_that_was_never_announced_raise() -> None:
    def answer(_: Any) -> Any:
        output = UnityMessage().unity_output
        output.rl_output.agent_infos[SECOND].value.add(id=1)
        return output

    with Editor(answer).connect() as env, pytest.raises(ProtocolError, match=r"\['Second\?team=1'\].*announced"):
        env.reset()


def test_images_have_the_requested_dtype_and_layout() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 4, 5))

    def answer(_: Any) -> Any:
        output = UnityMessage().unity_output
        output.rl_initialization_output.brain_parameters.add(brain_name=FIRST).action_spec.num_continuous_actions = 1
        agent = Agent(1, [Sensor(image / 255, "eye", (1, 2, 2))])
        output.rl_output.agent_infos[FIRST].value.add().CopyFrom(agent.message())
        return output

    for dtype, unit in (("uint8", 1), ("float32", 255)):
        with Editor(answer).connect(visual_dtype=dtype, uncompressed_layout="CHW") as env:
            env.reset()
            (column,) = env.get_steps(FIRST)[0].obs
            assert column.dtype == dtype
            np.testing.assert_allclose(column[0] * unit, image, atol=1e-3)
    with Editor(answer).connect() as env:
        env.reset()
        scrambled = env.get_steps(FIRST)[0].obs[0][0] * 255
        np.testing.assert_allclose(scrambled, image.reshape(4, 5, 3).transpose(2, 0, 1), atol=1e-3)


def test_after_ctrl_c_in_a_step_reset_launches_the_environment_again() -> None:
    scene, go_on = Scene(), threading.Event()

    def answer(command: Any) -> Any:
        if scene.step == 1:
            threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
            assert go_on.wait(20)
        return scene(command)

    editor = Editor(answer)
    with editor.connect() as env:
        env.reset()
        env.step()
        with pytest.raises(KeyboardInterrupt):
            env.step()
        with pytest.raises(NotReadyError, match=r"interrupted.*reset\(\)"):
            env.step()
        go_on.set()
        env.reset()
        assert scene.step == 3
        assert len(env.get_steps(FIRST)[0]) == 0
        env.step()
        assert env.get_steps(FIRST)[0].obs[0][0].tolist() == [4, 3]
    editor.join()
    commands = [message.unity_input.rl_input.command for message in editor.received[1:-1]]
    assert commands == [RESET, STEP, STEP, RESET, STEP]


# --- Processes --------------------------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("fault", ["none", "hang-in-step"], ids=["while it waits", "while it is waited for"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which process connects")
def test_an_editor_that_is_killed_is_noticed_at_once(tmp_path: Path, fault: str) -> None:
    port = free_port()
    editor = subprocess.Popen([launcher(tmp_path, fault), "--mlagents-port", str(port)], stdout=subprocess.DEVNULL)
    with UnityEnvironment(base_port=port, timeout_wait=60) as env:
        env.reset()
        killer = threading.Timer(0.5 if fault == "hang-in-step" else 0, editor.kill)
        killer.start()
        if fault == "none":
            killer.join()
        started = time.monotonic()
        with pytest.raises(PlayerError, match=r"(?s)ended or disconnected.*Unity Editor"):
            env.step()
        assert time.monotonic() - started < 2.5
    editor.wait()


FORKS = """
import os, sys, warnings
import gymnasium as gym
from unity_gym.errors import UnityGymError
warnings.simplefilter("ignore")
make = lambda: gym.make("unity_gym:Unity-v0", file_name=sys.argv[1], no_graphics=False)
kind, before = sys.argv[2:]
if before != "fresh":
    first = make()
    first.reset()
    if before == "closed":
        first.close()
if kind == "fork":
    child = os.fork()
    if child == 0:
        try:
            if before == "inherited":
                first.step(first.action_space.sample())
            else:
                make().close()
        except UnityGymError as error:
            print(error, flush=True)
            os._exit(3)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if before != "closed":
        first.step(first.action_space.sample())  # the parent's environment still works
        first.close()
    sys.exit(code)
if kind == "async":
    envs = gym.vector.AsyncVectorEnv([make] * 2)
else:
    from stable_baselines3.common.vec_env import SubprocVecEnv
    envs = SubprocVecEnv([make] * 2)
envs.reset()
envs.step(envs.action_space.sample() if kind == "async" else [envs.action_space.sample()] * 2)
envs.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize(
    ("kind", "before", "code", "message"),
    [
        ("fork", "open", 0, ""),
        ("fork", "inherited", 3, "(?s)made in process [0-9]+, from which this one .* was.*forked"),
        ("fork", "closed", 0, ""),
        ("async", "fresh", 0, ""),
        ("async", "closed", 0, ""),
        ("subproc", "fresh", 0, ""),
        ("subproc", "open", 0, ""),
    ],
)
def test_environments_in_forked_processes_work_or_raise_at_once(
    tmp_path: Path, kind: str, before: str, code: int, message: str
) -> None:
    if kind == "subproc":
        pytest.importorskip("stable_baselines3", reason="the extra sb3 is not installed")
    script = tmp_path / "script.py"  # a file, which forkserver and spawn can import
    body = FORKS.replace("\n", "\n    ")
    script.write_text(f"if __name__ == '__main__':{body}")
    command = [sys.executable, str(script), launcher(tmp_path), kind, before]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[1])
    assert finished.returncode == code, finished.stderr
    assert re.search(message, finished.stdout)


# --- Seeds ------------------------------------------------------------------------------------------------------------


def test_a_new_seed_launches_a_build_without_the_seed_channel_again(tmp_path: Path) -> None:
    with faulty_env(tmp_path, seed=3) as env:
        env.reset(seed=3)
        assert env._player is not None
        first = env._player.pid
        env.reset()
        env.step()
        assert env._player.pid == first
        env.reset(seed=4)
        assert env._player.pid != first
        assert env.seed == 4
        assert env.get_steps(BEHAVIOR)[0].obs[0][0, 0] == 0
        env.step()
        assert env.get_steps(BEHAVIOR)[0].obs[0][0, 0] == 1


@pytest.mark.parametrize("seed", [-1, -(2**40), 1.5, "3", True])
def test_invalid_seeds_raise_and_leave_the_scene_unchanged(editor: Editor, seed: Any) -> None:
    with pytest.raises(InvalidValueError, match="seed must be an integer of at least 0, got"):
        UnityEnvironment("no player is looked for", seed=seed)
    with editor.connect() as env:
        env.reset()
        received = len(editor.received)
        with pytest.raises(InvalidValueError, match="seed must be"):
            env.reset(seed=seed)
        assert len(editor.received) == received
        env.step()
        assert env.get_steps(FIRST)[0].obs[0][0].tolist() == [1, 3]


def test_large_seeds_are_distinguished() -> None:
    assert [wire_seed(seed) for seed in (0, 3, 2**31 - 1)] == [0, 3, 2**31 - 1]
    large = [wire_seed(seed) for seed in (2**31, 2**31 + 3, 2**40 + 3, 2**64 + 3)]
    assert len({3, *large}) == 5
    assert all(0 <= seed < 2**31 for seed in large)
    editor = Editor(Scene())
    with editor.connect(seed=2**40 + 3):
        pass
    assert editor.received[0].unity_input.rl_initialization_input.seed == wire_seed(2**40 + 3)


def test_an_editor_accepts_the_seed_that_it_started_with_until_the_first_step(editor: Editor) -> None:
    with editor.connect(seed=3) as env:
        env.reset()
        received = len(editor.received)
        env.reset(seed=3)
        assert len(editor.received) == received, "it is in this state"
        env.step()
        received = len(editor.received)
        with pytest.raises(UnityGymError, match=r"Editor cannot be given the seed 3 .*seed=3"):
            env.reset(seed=3)
        assert len(editor.received) == received, "the scene is left alone"
        env.step()
        assert env.get_steps(FIRST)[0].obs[0][0].tolist() == [2, 3]


def test_a_seeded_episode_starts_with_one_reset_however_the_seed_is_given(tmp_path: Path) -> None:
    build = module_launcher(tmp_path, "build", "unity_gym.scenes 3DBall --areas 1")
    first = gym.make("Unity-v0", file_name=build, seed=7)  # without graphics, if it has no camera
    second = gym.make("Unity-v0", file_name=build)
    episodes = [first.reset(), second.reset(seed=7), second.reset(seed=7), first.reset(seed=7)]
    action = np.zeros(2, np.float32)
    second.step(action)
    episodes.append(second.reset(seed=7))
    for observation, _ in episodes:
        np.testing.assert_array_equal(observation, episodes[0][0])
    first.close()
    second.close()


def test_a_list_of_seeds_has_one_per_row(tmp_path: Path) -> None:
    envs = gym.make_vec("Unity-v0", num_envs=2, n_instances=2, file_name=launcher(tmp_path), no_graphics=False)
    for seeds in ([1], [1, 2, 3], [1, -2]):
        with pytest.raises(InvalidValueError, match="list of 2 of them, one per row"):
            envs.reset(seed=seeds)
    envs.reset(seed=[1, 2])
    envs.close()


def test_an_environment_sends_one_reset_until_the_first_step(tmp_path: Path) -> None:
    env = gym.make("Unity-v0", file_name=launcher(tmp_path), log_folder=tmp_path)
    env.reset()
    env.step(env.action_space.sample())
    env.close()
    assert (tmp_path / "Player-0.log").read_text().count("faulty player: reset") == 1


def test_an_editor_cannot_be_given_a_new_seed(editor: Editor) -> None:
    with editor.connect(seed=3) as env:
        env.reset(seed=3)
        with pytest.raises(UnityGymError, match=r"seed 4.*seed=4"):
            env.reset(seed=4)
        env.step()


class SlowPlayer:
    """A replacement of `PlayerConnection` and the clock: each answer takes simulated seconds.

    :param delays: Seconds until each answer of the player to a command.
    """

    port = 1

    def __init__(self, delays: list[float]) -> None:
        self.now = 0.0
        self._delays = delays
        hello, ready, state = (UnityMessage() for _ in range(3))
        for message in (hello, ready, state):
            message.header.status = 200
        hello.unity_output.rl_initialization_output.communication_version = "1.5.0"
        state.unity_output.rl_output.SetInParent()
        self._start = [hello, ready]
        self._state = state

    def monotonic(self) -> float:
        return self.now

    def receive(self, timeout: float, *_: Any) -> bytes:
        message, delay = (self._start.pop(0), 0.0) if self._start else (self._state, self._delays.pop(0))
        self.now += min(delay, timeout)
        if delay > timeout:
            raise PlayerTimeoutError("sent nothing")
        return bytes(message.SerializeToString())

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("delays", [[9.0, 9.0], [6.0, 6.0], [11.0], [1.0] * 20])
def test_a_reset_takes_no_longer_than_the_timeout(monkeypatch: pytest.MonkeyPatch, delays: list[float]) -> None:
    player = SlowPlayer(delays)
    monkeypatch.setattr(environment, "time", player)
    monkeypatch.setattr(environment, "PlayerConnection", lambda *_: player)
    env = UnityEnvironment(timeout_wait=10)
    with pytest.raises(PlayerTimeoutError):
        env.reset()
    assert player.now == 10
