"""Each type of hostile or invalid content has the result that docs/environments/protocol-answers.md documents."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from stand_ins.reply_messages import EQUIVARIANT, NONE, Agent, Sensor, messages
from stand_ins.unity_editor import Editor
from unity_gym import environment
from unity_gym.errors import NotReadyError, ProtocolError
from unity_gym.side_channels import IncomingMessage, SideChannel, SideChannels, StatsSideChannel
from unity_gym.specs import ActionSpec
from unity_gym.wire.decode import BehaviorDecoder, action_spec
from unity_gym.wire.messages import BrainParameters, Observation, UnityMessage
from unity_gym.wire.png import SIGNATURE

SHAPE = (3, 5, 7)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels: bytes, height: int = 5, width: int = 7, bits: int = 8, color: int = 2, interlaced: int = 0) -> bytes:
    """Return a PNG whose header may contradict its scanlines."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlaced)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 9)) + chunk(b"IEND", b"")


LINE = bytes(1 + 3 * 7)


def camera(data: bytes, shape: tuple[int, ...] = SHAPE) -> list[Any]:
    """Return the message of an agent with one camera."""
    sensor = Sensor(np.zeros(0), "eye", (NONE, EQUIVARIANT, EQUIVARIANT), png=data)
    (info,) = messages([Agent(1, [sensor])])
    observation = Observation.FromString(info.observations[0])
    observation.shape[:] = shape
    info.observations[0] = observation.SerializeToString()
    return [info]


def decode(infos: list[Any]) -> Any:
    decoder = BehaviorDecoder("Ball", ActionSpec(1, ()), infos[0], "4.0.0", "uint8")
    return decoder.decode(infos)[0].obs[0]


def test_a_decompression_bomb_allocates_nothing() -> None:
    bomb, long = png(bytes(1 << 26), 18000, 18000), png(bytes(1 << 26))
    decode(camera(png(5 * LINE)))  # late imports happen here
    tracemalloc.start()
    try:
        for shape in (SHAPE, (3, 18000, 18000), (3, 2**31 - 1, 2**31 - 1)):
            with pytest.raises(ProtocolError, match=r"'Ball', sensor 0 \('eye'\)"):
                decode(camera(bomb, shape))
        with pytest.raises(ProtocolError, match="more pixels"):
            decode(camera(long))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (png(4 * LINE), "fewer pixels"),
        (png(6 * LINE), "more pixels"),
        (png(5 * (b"\5" + LINE[1:])), "line 0 has an unknown filter"),
        (png(5 * LINE, color=3), "color type 3"),
        (png(5 * LINE, bits=16), "16 bits"),
        (png(5 * LINE, interlaced=1), "interlacing 1"),
        (png(5 * LINE, width=8), r"\(5, 8\) pixels where the sensor has \(5, 7\)"),
        (SIGNATURE + chunk(b"IEND", b""), "no header"),
        (png(5 * LINE)[:-12], "cut off"),
        (png(5 * LINE) * 2, "6 channels together where the sensor has 3"),
    ],
)
def test_an_image_that_does_not_fit_the_sensor_raises(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode(camera(data))


@pytest.mark.parametrize("color", [0, 2, 4, 6])
@pytest.mark.parametrize("kind", range(5))
def test_every_png_filter_is_decoded_for_every_color_type(kind: int, color: int) -> None:
    samples = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    image = np.random.default_rng(kind).integers(0, 256, (5, 7, samples))
    lines = []
    for y, row in enumerate(image):
        above = image[y - 1] if y else np.zeros_like(row)
        left, corner = (np.vstack([np.zeros((1, samples), int), part])[:-1] for part in (row, above))
        guess = left + above - corner
        nearest = np.select(
            [
                (abs(guess - left) <= abs(guess - above)) & (abs(guess - left) <= abs(guess - corner)),
                abs(guess - above) <= abs(guess - corner),
            ],
            [left, above],
            corner,
        )
        predicted = (0 * row, left, above, (left + above) // 2, nearest)[kind]
        lines.append(bytes([kind]) + ((row - predicted) % 256).astype(np.uint8).tobytes())
    expected = image[:, :, :3] if samples > 2 else np.repeat(image[:, :, :1], 3, axis=2)
    np.testing.assert_array_equal(decode(camera(png(b"".join(lines), color=color)))[0], expected.transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(1,) * 70, (-1,), (2**31 - 1, 2**31 - 1), (0, 5, 7), (3, -5, -7)])
def test_an_impossible_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match=r"'Ball', sensor 0 \('eye'\): it has the shape"):
        decode(camera(png(5 * LINE), shape))


def change_ids(agents: list[Agent]) -> None:
    agents[1].id = agents[0].id


def negate_id(agents: list[Agent]) -> None:
    agents[1].id = -1


def negate_group(agents: list[Agent]) -> None:
    agents[1].group = -3


def spoil_mask(agents: list[Agent]) -> None:
    agents[1].mask = [0, 2, 0]  # type: ignore[list-item]


def change_shape(agents: list[Agent]) -> None:
    agents[1].sensors[0].values = np.zeros((2, 3))


def drop_values(agents: list[Agent]) -> None:
    agents[1].sensors[0].values = np.zeros((3, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_ids, "agent 0 twice in one list"),
        (negate_id, "the negative id -1"),
        (negate_group, "the negative group id -3"),
        (spoil_mask, "other bytes than 0 and 1"),
        (change_shape, r"shape \(3, 2\); now agents sent \[\(2, 3\), \(3, 2\)\]"),
        (drop_values, "24 bytes, got"),
    ],
)
@pytest.mark.parametrize("done", [False, True])
def test_invalid_agents_raise(change: Callable[[list[Agent]], None], message: str, done: bool) -> None:
    agents = [Agent(number, [Sensor(np.zeros((3, 2)))], mask=[False] * 3, done=done) for number in range(2)]
    decoder = BehaviorDecoder("Ball", ActionSpec(0, (3,)), messages(agents)[0], "4.0.0")
    decoder.decode(messages(agents))
    change(agents)
    if done and change is spoil_mask:
        return  # an agent that ended takes no action
    with pytest.raises(ProtocolError, match=message):
        decoder.decode(messages(agents))


def test_the_same_agent_may_end_and_decide_in_one_reply() -> None:
    agents = [Agent(4, [Sensor(np.zeros(2))], done=True), Agent(4, [Sensor(np.zeros(2))])]
    decisions, terminals = BehaviorDecoder("Ball", ActionSpec(1, ()), messages(agents)[0], "").decode(messages(agents))
    assert list(decisions) == list(terminals) == [4]


def test_agents_whose_sensors_have_different_names_are_read() -> None:
    agents = [Agent(number, [Sensor(np.full(3, number), "x" * number)]) for number in range(3)]
    decoder = BehaviorDecoder("Ball", ActionSpec(1, ()), messages(agents)[0], "")
    np.testing.assert_array_equal(decoder.decode(messages(agents))[0].obs[0][:, 0], [0, 1, 2])


@pytest.mark.parametrize(
    "fields",
    [
        {"num_continuous_actions": -1},
        {"num_continuous_actions": 2**31 - 1},
        {"num_discrete_actions": 1, "discrete_branch_sizes": [2**31 - 1]},
        {"num_discrete_actions": 2, "discrete_branch_sizes": [3, 0]},
        {"num_discrete_actions": 3, "discrete_branch_sizes": [3, 2]},
        {"num_discrete_actions": 2**31 - 1},
    ],
)
def test_impossible_actions_raise(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="'Ball' announces"):
        action_spec(BrainParameters(brain_name="Ball", action_spec=fields))


def play(change: Callable[[Any, int], None]) -> Any:
    """Connect to a player with one agent; `change` is called with each `UnityOutput` and its number."""
    count = iter(range(1000))

    def answer(_: Any) -> Any:
        number, output = next(count), UnityMessage().unity_output
        if number == 0:
            parameters = output.rl_initialization_output.brain_parameters.add(brain_name="Ball")
            parameters.action_spec.num_continuous_actions = 2
        output.rl_output.agent_infos["Ball"].value.add().CopyFrom(Agent(1, [Sensor(np.zeros(3))]).message())
        change(output, number)
        return output

    return Editor(answer).connect()


def announce_other_actions(output: Any, number: int) -> None:
    if number == 2:
        parameters = output.rl_initialization_output.brain_parameters.add(brain_name="Ball")
        parameters.action_spec.num_continuous_actions = 3


def send_half_a_sensor(output: Any, number: int) -> None:
    if number == 2:
        output.rl_output.agent_infos["Ball"].value[0].observations[0].float_data.data = bytes(7)


def send_an_unknown_type(output: Any, number: int) -> None:
    if number == 2:
        parameters = output.rl_initialization_output.brain_parameters.add(brain_name="Late")
        parameters.action_spec.num_continuous_actions = 1
        agent = Agent(2, [Sensor(np.zeros(3), kind=7)]).message()
        output.rl_output.agent_infos["Late"].value.add().CopyFrom(agent)


@pytest.mark.parametrize("change", [announce_other_actions, send_half_a_sensor, send_an_unknown_type])
def test_invalid_replies_close_the_environment(change: Callable[[Any, int], None]) -> None:
    env = play(change)
    env.reset()
    env.step()
    with pytest.raises(ProtocolError):
        env.step()
    with pytest.raises(NotReadyError, match="closed"):
        env.step()


def test_any_other_exception_of_decoding_raises_a_protocol_error(monkeypatch: pytest.MonkeyPatch) -> None:
    env = play(lambda *_: None)
    env.reset()
    for error in (MemoryError, OverflowError, KeyError, RecursionError, TypeError):
        monkeypatch.setattr(BehaviorDecoder, "decode", Mock(side_effect=error("odd")))
        env = play(lambda *_: None)
        with pytest.raises(ProtocolError, match=f"cannot be read: {error.__name__}"):
            env.reset()
        with pytest.raises(NotReadyError, match="closed"):
            env.reset()


def test_an_unknown_status_raises_with_its_text() -> None:
    reply = UnityMessage()
    reply.header.status, reply.header.message = 500, "out of memory"
    with pytest.raises(ProtocolError, match=r"status 500 \('out of memory'\)"):
        environment._parse(reply.SerializeToString())


def test_a_statistic_of_nan_is_dropped_with_one_warning() -> None:
    channel, output = StatsSideChannel(), UnityMessage().unity_output
    for value in (float("nan"), 1.5, float("inf")):
        payload = struct.pack("<i5sfi", 5, b"Score", value, 0)
        output.rl_output.side_channel += channel.channel_id.bytes_le + struct.pack("<i", len(payload)) + payload
    channels = SideChannels([channel])
    with pytest.warns(UserWarning, match="nan as the statistic 'Score'") as caught:
        channels.dispatch(2 * output.rl_output.side_channel)
    assert len(caught) == 1
    assert [value for value, _ in channel.stats["Score"]] == [1.5, 1.5]


def test_a_channel_that_cannot_read_its_bytes_is_named() -> None:
    class CustomChannel(SideChannel):
        def on_message_received(self, message: IncomingMessage) -> None:
            struct.unpack("<q", message.get_raw_bytes())

    channel = CustomChannel(uuid.uuid4())
    with pytest.raises(ProtocolError, match=rf"{channel.channel_id} \(CustomChannel\) cannot read its message"):
        SideChannels([channel]).dispatch(channel.channel_id.bytes_le + struct.pack("<i", 2) + b"xy")


def test_warnings_about_unknown_channels_are_limited() -> None:
    channels = SideChannels()
    with pytest.warns(UserWarning, match="not registered") as caught:
        channels.dispatch(b"".join(uuid.uuid4().bytes_le + struct.pack("<i", 0) for _ in range(50)))
    assert len(caught) == 16


def test_without_numba_a_camera_raises_and_names_the_extra() -> None:
    script = """
import sys
sys.modules["numba"] = None
import numpy as np
from unity_gym.wire.images import _decode
from unity_gym.wire.png import encode_images
_decode(encode_images(np.zeros((1, 3, 5, 7), np.uint8)), 3, 5, 7)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "images of cameras need numba: install it with pip install 'unity-gym[cameras]'" in finished.stderr


def fuzz(seconds: int) -> None:
    pytest.importorskip("stable_baselines3", reason="the extra sb3 is not installed")
    script = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
    command = [sys.executable, str(script), "--seconds", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 240, env=environment)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]


def test_mutated_bytes_raise_unity_gym_errors_or_give_valid_results() -> None:
    fuzz(10)


@pytest.mark.slow
def test_a_minute_of_mutated_bytes_raises_unity_gym_errors_or_gives_valid_results() -> None:
    fuzz(60)
