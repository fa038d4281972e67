"""The embedded player's command line, its handshake and its side channels."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import uuid
from typing import Any

import numpy as np
import pytest

from stand_ins.raw_client import RESEEDING, continuous, discrete, frame, new_seed, parameter, uniform_sampler
from unity_gym.errors import ProtocolError
from unity_gym.scenes.parameters import Sampler
from unity_gym.wire.messages import QUIT, RESET, STEP

BASIC, BALL = "Basic?team=0", "3DBall?team=0"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unity_gym.scenes", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["Pong"], ["Pong", "3DBall", "Basic"]),
        ([], ["3DBall", "Basic"]),
        (["Basic", "--time-scale", "20"], ["--time-scale", "--areas", "--mlagents-port"]),
        (["Basic", "stray"], ["stray", "--areas"]),
        (["Basic", "--areas", "0"], ["--areas", "'0'"]),
        (["Basic", "--mlagents-port"], ["--mlagents-port", "number"]),
    ],
)
def test_a_wrong_command_line_names_the_mistake_and_the_valid_options(arguments: list[str], named: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in named)
    assert "Traceback" not in result.stderr


def test_unity_flags_with_one_dash_are_ignored_and_the_log_file_is_used(launch, tmp_path) -> None:
    log = tmp_path / "player.log"
    client = launch("Basic", "-batchmode", "-nographics", "-screen-width", "80", "-logFile", str(log))
    client.start(seed=7)
    assert client.end() == (0, "")
    assert "Basic: 1 areas, seed 7" in log.read_text()


def test_the_handshake_follows_the_protocol(launch) -> None:
    client = launch("Basic")
    first = client.receive()
    assert first.status == 200
    assert first.initialization.name == "AcademySingleton"
    assert first.initialization.communication_version == "1.5.0"
    assert first.initialization.package_version == "3.0.0"
    capabilities = first.initialization.capabilities
    assert all(getattr(capabilities, field.name) for field in capabilities.DESCRIPTOR.fields)
    client.send(seed=1)
    second = client.receive()
    assert (second.status, second.agents, second.announced) == (200, {}, [])
    scene = client.reset()
    assert scene.announced == [BASIC]
    assert list(scene.initialization.brain_parameters[0].action_spec.discrete_branch_sizes) == [3]
    assert client.step(BASIC, discrete(0)).announced == []


@pytest.mark.parametrize(("status", "command"), [(400, 0), (200, QUIT)])
def test_the_player_quits_on_the_quit_message(launch, status: int, command: int) -> None:
    client = launch("Basic")
    client.start()
    code, output = client.end(status, command)
    assert code == 0
    assert "Traceback" not in output


def test_the_player_quits_when_the_client_disconnects(launch) -> None:
    client = launch("Basic")
    client.start()
    client.connection.close()
    code, output = client.finished()
    assert code == 0
    assert "the client disconnected" in output


@pytest.mark.parametrize("action", [b"\x05", b"\xff" * 9 + b"\x01"])
def test_a_discrete_action_outside_its_branch_ends_the_player_with_a_reason(launch, action: bytes) -> None:
    """The varints of 5 and -1, where a branch has five choices."""
    client = launch("GridWorld")
    client.start()
    client.answer(STEP, {"GridWorld?team=0": [{"discrete_actions": action}]})
    code, output = client.finished()
    assert code == 1
    assert "discrete actions must be from 0 to below the sizes of their branches [5], got " in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\xff" * 9, "no UnityMessage"),
        ([{"continuous_actions": bytes(3)}] * 12, "3 bytes of continuous actions, of 4 each"),
    ],
)
def test_a_message_that_cannot_be_decoded_ends_the_player_with_a_reason(launch, sent: Any, reason: str) -> None:
    client = launch("3DBall")
    client.start()
    if isinstance(sent, bytes):
        client.connection.send(sent)
    else:
        client.answer(STEP, {BALL: sent})
    code, output = client.finished()
    assert code == 1
    assert reason in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("scene", "name", "value", "reason"),
    [
        ("3DBall", "scale", 0, "'scale' must be above 0, got 0"),
        ("FoodCollector", "agent_scale", 0, "'agent_scale' must be above 0, got 0"),
        ("Walker", "hip_mass", -1, "'hip_mass' must be above 0, got -1"),
        ("PushBlock", "block_scale", 20, "2.5 m away from all things: make them smaller .* such as block_scale"),
    ],
)
def test_a_parameter_without_which_no_episode_can_start_ends_the_player_with_a_reason(
    launch, scene: str, name: str, value: float, reason: str
) -> None:
    client = launch(scene, "--areas", "1")
    client.start()
    client.answer(RESET, {}, parameter(name, value))
    code, output = client.finished()
    assert code == 1
    assert re.search(reason, output)
    assert "Traceback" not in output


def test_the_agent_of_the_newer_input_system_starts_at_an_occupied_place_after_50_tries(launch) -> None:
    client = launch("PushBlockWithInput", "--areas", "1")
    client.start(side_channel=parameter("block_scale", 20))
    assert len(client.reset().deciding("PushBlock?team=0")) == 1


@pytest.mark.parametrize(
    ("kind", "numbers", "low", "high"),
    [(0, (2, 1), 1, 2), (2, (4, 3, 1, 2), 1, 4), (1, (0, -1), -6, 6)],
    ids=["uniform", "ranges", "Gaussian"],
)
def test_a_sampler_takes_its_bounds_in_either_order(
    kind: int, numbers: tuple[float, ...], low: float, high: float
) -> None:
    drawn = Sampler(3, kind, numbers).draw(1000)
    assert low <= drawn.min() < drawn.mean() < drawn.max() <= high
    assert not ((drawn > 2) & (drawn < 3)).any() or kind == 1
    with pytest.raises(ProtocolError, match="must be finite"):
        Sampler(3, kind, (*numbers[:-1], np.inf))


def test_the_number_of_areas_comes_from_the_scene_the_client_or_the_command_line(launch) -> None:
    assert len(launch("3DBall").start().agents[BALL]) == 12
    assert len(launch("3DBall").start(num_areas=3).agents[BALL]) == 3
    assert len(launch("3DBall", "--areas", "2").start(num_areas=3).agents[BALL]) == 2


def test_a_new_seed_gives_the_same_course_whatever_came_before(launch) -> None:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (40, 12, 2))
    sampler = uniform_sampler("scale", 5, 0.5, 1.5)

    def course(client) -> list[bytes]:
        messages = [client.reset(new_seed(11))]
        messages += [client.step(BALL, continuous(action[: len(messages[-1].deciding(BALL))])) for action in actions]
        return [message.raw for message in messages]

    one, other = launch("3DBall"), launch("3DBall")
    one.start(seed=1, side_channel=sampler)
    other.start(seed=2, side_channel=sampler)
    other.step(BALL, continuous(actions[0]))
    first = course(one)
    assert first == course(other)
    assert first == course(one)
    assert one.reset(new_seed(12)).raw != first[0]


def test_a_new_seed_is_acknowledged_once_and_restarts_ids_and_episodes(launch) -> None:
    client = launch("Basic")
    message = client.start()
    for _ in range(7):
        message = client.step(BASIC, discrete(2))
    assert [agent.id for agent in message.deciding(BASIC)] == [1]
    message = client.reset(new_seed(-5))
    assert message.side_channel == frame(RESEEDING, struct.pack("<i", -5))
    assert message.announced == []
    (agent,) = message.agents[BASIC]
    assert (agent.id, agent.reward, agent.done) == (0, 0, False)
    assert client.step(BASIC, discrete(0)).side_channel == b""


def test_parameters_stay_when_a_new_seed_comes(launch) -> None:
    client = launch("3DBall")
    client.start(side_channel=parameter("gravity", 0))
    client.reset(new_seed(1))
    message = client.step(BALL, continuous(np.zeros((12, 2))))
    assert all(agent.observations[0][6] == 0 for agent in message.deciding(BALL))


def test_a_sampler_draws_for_each_agent_and_episode(launch) -> None:
    client = launch("3DBall")
    client.start(side_channel=uniform_sampler("scale", 3, 0.2, 1.0))

    def lowest_heights() -> list[float]:
        heights = np.full(12, 9.0)
        for _ in range(12):
            message = client.step(BALL, continuous(np.zeros((12, 2))))
            for agent in message.deciding(BALL):
                offset = agent.observations[0][2:5]
                heights[agent.id] = min(heights[agent.id], offset[1])
        return heights.tolist()

    first = lowest_heights()
    assert len(set(first)) == 12
    client.reset()
    assert all(a != b for a, b in zip(first, lowest_heights(), strict=True))


def test_an_unreadable_frame_is_logged_with_its_channel_and_the_player_continues(launch) -> None:
    unknown = uuid.UUID(int=77)
    client = launch("Basic")
    client.start(side_channel=frame(unknown, b"x") + frame(unknown, b"y") + frame(RESEEDING, b"\1"))
    client.step(BASIC, discrete(0), parameter("gravity", 1)[:-2])
    code, output = client.end()
    assert code == 0
    assert output.count(str(unknown)) == 1
    assert f"{RESEEDING}: a side-channel message of 1 bytes ends too early" in output
    assert "534c891e-810f-11ea-a9d0-822485860400 announces 19 bytes; 17 are there" in output
