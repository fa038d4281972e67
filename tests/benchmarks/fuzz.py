"""Feed mutated bytes to everything that reads them, and require one of our errors or a sane result for each.

    python tests/benchmarks/fuzz.py [--seconds 60] [--seed 0] [--only replies] [--cases 1000000]
    python tests/benchmarks/fuzz.py --replay images:1234 [--seed 0]

Five readers share the time: the replies of a player, the images in them, demonstrations, frames of side channels and
YAML settings. A case of the replies is one environment, of any of the five kinds, whose player sends a few states, of
which at least one is mutated; one in 200 sends them over a socket. A case is made from the seed, the reader and its
number alone, so that any one can be replayed. The exit code is 1 if a case raised anything but an error of ours or took
longer than 5 s, or if the process grew beyond 1 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import resource
import struct
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import grpc
import gymnasium as gym
import numpy as np
from typing_extensions import override

from sb3_ext import UnityVecEnv
from sb3_ext.settings.reading import loads
from unity_gym import demonstrations, environment
from unity_gym.connection import PlayerConnection
from unity_gym.envs import UnityParallelEnv, UnitySingleAgentEnv, UnityVectorEnv
from unity_gym.errors import UnityGymError
from unity_gym.side_channels import (
    EngineConfigurationChannel,
    FloatPropertiesChannel,
    RawBytesChannel,
    RenderingChannel,
    SideChannels,
    StatsSideChannel,
)
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout
from unity_gym.specs import (
    ActionSpec,
    ActionTuple,
    Array,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)
from unity_gym.wire.encode import STATUS_END
from unity_gym.wire.messages import UnityMessage
from unity_gym.wire.png import encode_images

ROOT = Path(__file__).resolve().parents[2]
SLOWEST = 5.0  # seconds that a case may take
LARGEST = 1 << 30  # bytes that the process may hold

Random = np.random.Generator
Game: TypeAlias = Iterator[tuple[bytes, bool]]
"""The messages of a player, and which of them are mutated."""


# --- mutation of bytes and of protobuf messages

_INTEGERS = (0, 1, 2, 3, 7, 127, 128, 255, 400, 65537, 2**31 - 1, -1, -2, -(2**31))
_FLOATS = (0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf"), 3e38, 1e-45)


def mutate_bytes(rng: Random, data: bytes, most: int = 4) -> bytes:
    """Flip, overwrite, insert, delete, repeat or cut a few pieces."""
    mutated = bytearray(data)
    for _ in range(rng.integers(1, most + 1)):
        at = int(rng.integers(len(mutated) + 1))
        length = int(rng.integers(1, 9)) if rng.random() < 0.8 else int(rng.integers(1, len(data) + 2))
        match rng.integers(7):
            case 0 if at < len(mutated):
                mutated[at] ^= 1 << int(rng.integers(8))
            case 1 if at < len(mutated):
                mutated[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
            case 2:
                mutated[at:at] = rng.bytes(length)
            case 3:
                del mutated[at : at + length]
            case 4:
                mutated[at:at] = mutated[at : at + length]
            case 5:
                mutated[at : at + 4] = struct.pack("<i", int(rng.choice(_INTEGERS)))
            case 6 if rng.random() < 0.3:
                del mutated[at:]
            case _:
                mutated[at : at + length] = rng.bytes(length)
    return bytes(mutated)


def mutate_message(rng: Random, message: Any) -> None:
    """Change one field somewhere in a protobuf message."""
    present = [pair for pair in message.ListFields() if pair[0].message_type is not None]
    if present and rng.random() < 0.85:
        field, value = present[int(rng.integers(len(present)))]
        if field.message_type.GetOptions().map_entry:
            keys = list(value)
            mutate_message(rng, value[keys[int(rng.integers(len(keys)))]])
        elif not isinstance(value, type(message)) and hasattr(value, "__len__"):
            mutate_list_of_messages(rng, value)
        else:
            mutate_message(rng, value)
        return
    fields = [field for field in message.DESCRIPTOR.fields if field.message_type is None]
    if not fields:
        message.Clear()
        return
    field = fields[int(rng.integers(len(fields)))]
    value = getattr(message, field.name)
    if isinstance(value, bool | int | float | str | bytes):
        with contextlib.suppress(ValueError, TypeError):
            setattr(message, field.name, other_value(rng, value))
    elif rng.random() < 0.2 or isinstance(next(iter(value), None), str | bytes):
        del value[:]
    elif len(value) and rng.random() < 0.7:
        value[int(rng.integers(len(value)))] = int(rng.choice(_INTEGERS))
    else:
        with contextlib.suppress(TypeError):  # of texts
            value.extend([int(rng.choice(_INTEGERS))] * int(rng.choice([1, 2, 70])))


def mutate_list_of_messages(rng: Random, messages: Any) -> None:
    """Change, repeat or delete one of them."""
    at = int(rng.integers(len(messages)))
    match rng.integers(6):
        case 0:
            messages.add().CopyFrom(messages[at])
        case 1:
            del messages[at]
        case _:
            mutate_message(rng, messages[at])


def other_value(rng: Random, value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int(rng.choice(_INTEGERS))
    if isinstance(value, float):
        return float(rng.choice(_FLOATS))
    if isinstance(value, str):
        return "".join(map(chr, rng.integers(1, 0x2FF, int(rng.integers(9)))))
    return mutate_bytes(rng, value)


# --- replies

PIXELS = (3, 6, 8)  # of the cameras below: channels, height, width
BEHAVIOR = "Fuzz?team=0"


def camera_png(rng: Random, shape: tuple[int, ...] = PIXELS) -> bytes:
    """Random pixels, as a player encodes them."""
    return encode_images(rng.integers(0, 256, (1, *shape), dtype=np.uint8))[0]


def state(rng: Random, is_first: bool, most_agents: int = 3) -> Any:
    """A valid reply: agents with vectors, entities, a camera and an uncompressed image, some of which ended."""
    message = UnityMessage()
    message.header.status = 200
    output = message.unity_output
    output.rl_output.SetInParent()
    if is_first:
        parameters = output.rl_initialization_output.brain_parameters.add(brain_name=BEHAVIOR, is_training=True)
        parameters.action_spec.num_continuous_actions = 2
        parameters.action_spec.num_discrete_actions = 2
        parameters.action_spec.discrete_branch_sizes.extend([3, 2])
    is_mapped = rng.random() < 0.5
    for number in range(int(rng.integers(1, most_agents + 1))):
        agent = output.rl_output.agent_infos[BEHAVIOR].value.add(id=number, reward=0.5, group_reward=0.25, group_id=1)
        agent.done = not is_first and rng.random() < 0.3
        agent.max_step_reached = agent.done and rng.random() < 0.5
        agent.action_mask = bytes(rng.integers(0, 2, 5).tolist()) if rng.random() < 0.5 else b""
        for shape, flags in (((4,), (1,)), ((3, 2), (4, 1)), (PIXELS, (1, 2, 2)), ((1, 2, 3), (1, 2, 2))):
            sensor = agent.observations.add(shape=shape, dimension_properties=flags, name=f"sensor{shape}")
            if shape == PIXELS:
                sensor.compression_type = 1
                sensor.compressed_data = camera_png(rng)
                if is_mapped:
                    sensor.compressed_channel_mapping.extend([0, 1, 2])
            else:
                sensor.float_data.data = rng.normal(size=shape).astype("<f4").tobytes()
    if rng.random() < 0.5:
        output.rl_output.side_channel = frames(rng)
    return message


@cache
def valid_states(number: int, most_agents: int) -> list[tuple[Any, bytes]]:
    """The first states of a game, parsed and encoded. Games of one number are the same, so that few have to be made."""
    rng = np.random.default_rng(number)
    states = [state(rng, index == 0, most_agents) for index in range(_STATES)]
    return [(message, message.SerializeToString()) for message in states]


@cache
def handshake() -> tuple[bytes, bytes]:
    """The two messages before the first state."""
    hello = UnityMessage()
    hello.header.status = 200
    greeting = hello.unity_output.rl_initialization_output
    greeting.communication_version, greeting.package_version = "1.5.0", "4.0.0"
    greeting.capabilities.base_rl = greeting.capabilities.hybrid_actions = True
    ready = UnityMessage()
    ready.header.status = 200
    return hello.SerializeToString(), ready.SerializeToString()


def mutated_state(rng: Random, message: Any, encoded: bytes) -> bytes:
    """Change a state's fields, or its bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, encoded)
    mutated = UnityMessage()
    mutated.CopyFrom(message)
    for _ in range(int(rng.integers(1, 4))):
        mutate_message(rng, mutated)
    return bytes(mutated.SerializeToString())


def mutated_game(rng: Random, most_agents: int) -> Game:
    """A player's messages of which one or two states, and seldom its start, are mutated."""
    is_first_good = rng.random() < 0.3
    bad = {int(rng.integers(is_first_good, _STATES)) for _ in range(2 - is_first_good)}
    for message in handshake():
        is_mutated = rng.random() < 0.025
        yield mutate_bytes(rng, message) if is_mutated else message, is_mutated
    for number, (message, encoded) in enumerate(valid_states(int(rng.integers(_GAMES)), most_agents)):
        yield mutated_state(rng, message, encoded) if number in bad else encoded, number in bad


def mutated_answers(rng: Random, most_agents: int) -> Game:
    """A player's messages of which all states but the first are mutated."""
    states = valid_states(int(rng.integers(_GAMES)), most_agents)
    yield from ((message, False) for message in [*handshake(), states[0][1]])
    for _ in range(_COPIES):
        yield mutated_state(rng, *states[int(rng.integers(1, _STATES))]), True


class EndOfScriptError(UnityGymError):
    """The player of a case has no more messages."""


class Script:
    """Stands in for a `PlayerConnection`: its player sends the given messages, and then nothing."""

    messages: Game = iter(())
    mutated_replies = 0  # that were read by any environment
    port = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def poll(self, *_: Any) -> bool:
        return True

    def receive(self, *_: Any) -> bytes:
        for message, is_mutated in self.messages:
            Script.mutated_replies += is_mutated
            return message
        raise EndOfScriptError("the script is over")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Wire(PlayerConnection):
    """A real connection, to which a thread of this process sends the script over a socket, and then a quit message."""

    player: threading.Thread

    def __init__(self, port: int = 0) -> None:  # noqa: ARG002  # any free port is as good as the Editor's
        super().__init__()

    @override
    def listen(self, accepts: Callable[[Any], bool]) -> None:
        super().listen(accepts)
        Wire.player = threading.Thread(target=self.play, args=(self.port, Script.messages), daemon=True)
        Wire.player.start()

    @staticmethod
    def play(port: int, messages: Game) -> None:
        goodbye = UnityMessage()
        goodbye.header.status = STATUS_END
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, contextlib.suppress(grpc.RpcError):
            exchange = channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")
            for message, is_mutated in chain(messages, [(goodbye.SerializeToString(), False)]):
                Script.mutated_replies += is_mutated
                if UnityMessage.FromString(exchange(message, timeout=SLOWEST)).header.status == STATUS_END:
                    return


def connected_to(connection: type[Script] | type[Wire]) -> contextlib.AbstractContextManager[object]:
    """Replace the connection of new environments."""
    return mock.patch.object(environment, "PlayerConnection", connection)


class Reader:
    """An agent table and an observation layout for each behavior of a `UnityEnvironment`."""

    def __init__(self, env: environment.UnityEnvironment, visual_dtype: str) -> None:
        self.env, self._visual_dtype = env, visual_dtype
        self._tables: dict[str, tuple[AgentTable, ObservationLayout | None]] = {}

    def read(self) -> None:
        for name, spec in self.env.behavior_specs.items():
            if name not in self._tables:
                layout = ObservationLayout(spec) if spec.observation_specs else None
                self._tables[name] = AgentTable(spec, self._visual_dtype), layout
            table, layout = self._tables[name]
            table.start_step()
            table.update(*self.env.get_steps(name))
            if layout is not None:
                layout.select(table.observations)


def play_low_level(visual_dtype: str) -> None:
    """`UnityEnvironment`, step by step."""
    channels = [StatsSideChannel(), FloatPropertiesChannel()]
    with environment.UnityEnvironment(None, side_channels=channels, visual_dtype=visual_dtype) as env:
        reader = Reader(env, visual_dtype)
        env.reset()
        for _ in range(_STATES - 1):
            reader.read()
            env.step()
        reader.read()


def play_copies(visual_dtype: str) -> None:
    """Copies of a `UnityEnvironment` after its reset, of which each reads one state: most states end an environment."""
    last: UnityGymError | None = None
    with environment.UnityEnvironment(None, side_channels=all_channels(), visual_dtype=visual_dtype) as env:
        env.reset()
        reader = Reader(env, visual_dtype)
        for _ in range(_COPIES):
            reader.env = copy(env)
            vars(reader.env).update({key: dict(value) for key, value in vars(env).items() if type(value) is dict})
            try:
                reader.env.step()
                reader.read()
            except EndOfScriptError:
                raise
            except UnityGymError as error:
                last = error
    if last is not None:
        raise last


def play_gym(visual_dtype: str) -> None:
    """`gymnasium.Env`."""
    with UnitySingleAgentEnv(visual_dtype=visual_dtype) as env:
        env.reset()
        while True:
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()


def play_vector(visual_dtype: str) -> None:
    """Gymnasium's `VectorEnv`."""
    with contextlib.closing(UnityVectorEnv(3, visual_dtype=visual_dtype)) as env:
        env.reset()
        while True:
            env.step(env.action_space.sample())


def play_vec_env(visual_dtype: str) -> None:
    """Stable-Baselines3's `VecEnv`."""
    with contextlib.closing(UnityVecEnv(num_envs=3, visual_dtype=visual_dtype)) as env:
        env.reset()
        while True:
            samples = [env.action_space.sample() for _ in range(env.num_envs)]
            parts = isinstance(env.action_space, gym.spaces.Dict) and {
                key: np.stack([sample[key] for sample in samples]) for key in env.action_space.spaces
            }
            env.step(parts or np.stack(samples))  # type: ignore[arg-type]  # SB3 annotates no dicts


def play_parallel(visual_dtype: str) -> None:
    """PettingZoo's `ParallelEnv`."""
    with contextlib.closing(UnityParallelEnv(visual_dtype=visual_dtype)) as env:
        env.reset()
        while True:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            if not env.agents:
                env.reset()


_STATES = 4  # of one game
_GAMES = 512
_COPIES = 16
_PLAYS = [play_copies] * 8 + [play_low_level] * 4 + [play_gym, play_vector, play_vec_env, play_parallel]
_WIRED = 1 / 200  # of the cases


def fuzz_reply(rng: Random) -> None:
    """One environment whose player sends a few states, of which at least one is mutated."""
    play = _PLAYS[int(rng.integers(len(_PLAYS)))]
    visual_dtype = ("uint8", "float32")[int(rng.integers(2))]
    game = mutated_answers if play is play_copies else mutated_game
    Script.messages = game(rng, 1 if play is play_gym else 3)
    is_wired = play is not play_copies and rng.random() < _WIRED
    try:
        with connected_to(Wire if is_wired else Script), contextlib.suppress(EndOfScriptError):
            play(visual_dtype)
    finally:
        if is_wired:
            Wire.player.join(4 * SLOWEST)
            assert not Wire.player.is_alive(), "the player of a closed environment still waits for its answer"


# --- images


def chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG chunk with the right checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def hostile_png(rng: Random) -> bytes:
    """A PNG that is right in form, with wrong sizes, formats, filters, streams or chunks."""
    width, height = PIXELS[2], PIXELS[1]
    sizes = [width, height, width, height, 0, 1, 18000, 2**31 - 1, 2**32 - 1]
    color, bits = int(rng.choice([2, 2, 2, 0, 4, 6, 3, 1])), int(rng.choice([8, 8, 8, 1, 16, 0]))
    if rng.random() < 0.3:
        width, height = int(rng.choice(sizes)), int(rng.choice(sizes))
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color, 3)
    lines = rng.integers(0, 256, (PIXELS[1], 1 + samples * PIXELS[2]), dtype=np.uint8)
    lines[:, 0] = rng.integers(0, 5, PIXELS[1])
    pixels = lines.tobytes()
    match rng.integers(6):
        case 0:
            pixels = pixels[: int(rng.integers(len(pixels)))]
        case 1:
            pixels = bytes(int(rng.choice([1 << 16, 1 << 24])))
        case 2:
            pixels = rng.bytes(1) + pixels
    stream = zlib.compress(pixels, 1)
    if rng.random() < 0.3:
        stream = mutate_bytes(rng, stream)
    cut = int(rng.integers(len(stream) + 1))
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, int(rng.random() < 0.1))
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", stream[:cut]), chunk(b"IDAT", stream[cut:]), chunk(b"IEND", b"")]
    if rng.random() < 0.3:
        kinds = [b"tEXt", b"zTXt", b"IHDR", b"PLTE", b"ABCD", b"IEND", rng.bytes(4)]
        extra = chunk(kinds[int(rng.integers(len(kinds)))], zlib.compress(bytes(1 << 16)))
        parts.insert(int(rng.integers(5)), extra)
    if rng.random() < 0.1:
        del parts[int(rng.integers(len(parts)))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def fuzz_image(rng: Random) -> None:
    """One behavior whose agents send a mutated image each."""
    message = state(rng, True)
    agents = message.unity_output.rl_output.agent_infos[BEHAVIOR].value
    message.unity_output.rl_output.side_channel = b""
    del agents[int(rng.integers(1, 3)) :]
    for agent in agents:
        sensor = agent.observations[2]
        match rng.integers(6):
            case 0:
                sensor.compressed_data = mutate_bytes(rng, sensor.compressed_data)
            case 1:
                sensor.compressed_channel_mapping[:] = rng.integers(-2, 5, int(rng.integers(1, 8))).tolist()
            case 2:
                del agents[1:]
                sensor.shape[:] = rng.choice([1, 3, 6, 8, 18000, 2**31 - 1, 0, -1], 3).tolist()
                sensor.compressed_data = hostile_png(rng)
            case 3:
                sensor.compressed_data += hostile_png(rng)
            case _:
                sensor.compressed_data = hostile_png(rng)
    start = ((message, False) for message in handshake())
    Script.messages = iter([*start, (message.SerializeToString(), True)])
    visual_dtype = str(rng.choice(["uint8", "float32"]))
    with connected_to(Script), environment.UnityEnvironment(None, visual_dtype=visual_dtype) as env:
        env.reset()


# --- demonstrations


def write_demonstration(rng: Random, path: Path) -> None:
    """A valid demonstration with a vector, a camera and actions of both kinds."""
    flags = tuple(map(DimensionProperty, (1, 2, 2)))
    sensors = [
        ObservationSpec((4,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector"),
        ObservationSpec(PIXELS, flags, ObservationType.DEFAULT, "camera"),
    ]
    spec = BehaviorSpec(sensors, ActionSpec(2, (3, 200)))
    with demonstrations.DemonstrationWriter(path, BEHAVIOR, spec) as writer:
        for number in range(5):
            seen: list[Array] = [rng.normal(size=4).astype(np.float32), rng.integers(0, 256, PIXELS, dtype=np.uint8)]
            if number == 3:
                writer.add(seen, reward=1.0, truncated=True)
            else:
                writer.add(seen, ActionTuple(np.zeros((1, 2), np.float32), np.array([[2, 150]])), reward=1.0)


def fuzz_demonstration(rng: Random) -> None:
    """One mutated file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.demo"
        write_demonstration(rng, path)
        path.write_bytes(mutate_bytes(rng, path.read_bytes(), most=3))
        demonstration = demonstrations.load(path, str(rng.choice(["uint8", "float32"])))
        assert len(demonstration.observations[0]) == len(demonstration.actions.continuous) == len(demonstration)


# --- side channels

RAW = uuid.UUID(int=1)


def all_channels() -> list[Any]:
    """One channel of each kind."""
    rendering = RenderingChannel()
    rendering.draw(2)
    return [
        StatsSideChannel(),
        FloatPropertiesChannel(),
        EngineConfigurationChannel(),
        rendering,
        RawBytesChannel(RAW),
    ]


def frames(rng: Random) -> bytes:
    """A few valid frames of the channels on which a player speaks."""
    framed = bytearray()
    for _ in range(int(rng.integers(1, 4))):
        name = struct.pack("<i", 5) + b"Score"
        stats, properties, rendering, raw = all_channels()[0], all_channels()[1], all_channels()[3], RAW
        identifier, payload = [
            (stats.channel_id, name + struct.pack("<fi", 1.5, int(rng.integers(4)))),
            (properties.channel_id, name + struct.pack("<f", 0.5)),
            (rendering.channel_id, struct.pack("<iiii", int(rng.integers(2)), 0, 2, 3) + bytes(18)),
            (raw, rng.bytes(5)),
        ][int(rng.integers(4))]
        framed += identifier.bytes_le + struct.pack("<i", len(payload)) + payload
    return bytes(framed)


def fuzz_frames(rng: Random) -> None:
    """One block of mutated frames."""
    SideChannels(all_channels()).dispatch(mutate_bytes(rng, frames(rng)))


# --- settings

_CONFIGURATIONS = [path.read_text() for path in sorted((ROOT / "configs").rglob("*.yaml"))]
_TAGS = ["!!python/object:os.system ", "!!binary ", "!!set ", "!!omap ", "!!timestamp ", "!!int ", "!!float ", "!x "]
_MARKS = [
    "&a ",
    "*a",
    "<<: *a",
    "[",
    "]",
    "{",
    "}",
    "? ",
    "- ",
    ": ",
    "| ",
    "%",
    "\t",
    "\u2028",
    "\ud7ff",
    "'",
    '"',
    "#",
]
_VALUES = ["1e999", ".nan", "0x" + "f" * 5000, "9" * 5000, "2001-99-99", "null", "~", "1:60:60", "-.inf"]
_YAML = _TAGS + _MARKS + _VALUES


def aliases(rng: Random) -> str:
    """Aliases of aliases, in lists or merged blocks."""
    levels, width = int(rng.integers(2, 12)), int(rng.integers(2, 12))
    lines = ["a0: &a0 {x: 1}"]
    is_merged = rng.random() < 0.5
    for level in range(1, levels):
        names = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{names}]}}" if is_merged else f"[{names}]"))
    return "\n".join(lines) + "\n"


def fuzz_settings(rng: Random) -> None:
    """One mutated configuration."""
    text = _CONFIGURATIONS[int(rng.integers(len(_CONFIGURATIONS)))]
    match rng.integers(4):
        case 0:
            text = aliases(rng) + text
        case 1:
            text = mutate_bytes(rng, text.encode()).decode("utf-8", errors="replace")
        case 2:
            text += "[" * int(rng.choice([10, 900, 5000]))
        case _:
            for _ in range(int(rng.integers(1, 4))):
                at = int(rng.integers(len(text)))
                text = text[:at] + _YAML[int(rng.integers(len(_YAML)))] + text[at + int(rng.integers(3)) :]
    loads(text)


READERS: dict[str, Callable[[Random], None]] = {
    "replies": fuzz_reply,
    "images": fuzz_image,
    "demonstrations": fuzz_demonstration,
    "frames": fuzz_frames,
    "settings": fuzz_settings,
}


def run_case(reader: str, number: int, seed: int) -> str:
    """Run one case; return its outcome: "accepted", or the name of our error.

    :raises BaseException: Whatever else it raises.
    """
    try:
        READERS[reader](np.random.default_rng([seed, list(READERS).index(reader), number]))
    except UnityGymError as error:
        return type(error).__name__
    return "accepted"


def fuzz(reader: str, seconds: float, seed: int, cases: int | None = None) -> tuple[Counter[str], list[str], float]:
    """Run cases of one reader for some time, or at most so many.

    :return: how many cases had each outcome, the failures, and the seconds of the slowest case
    """
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    slowest, end, armed = 0.0, time.monotonic() + seconds, 0.0
    while time.monotonic() < end and len(failures) < 10 and (cases is None or outcomes.total() < cases):
        number = outcomes.total()
        if time.monotonic() - armed > SLOWEST:  # it starts a thread, which would take longer than most cases
            faulthandler.dump_traceback_later(20 * SLOWEST, exit=True, file=2)  # `main` redirects sys.stderr
            armed = time.monotonic()
        started = time.process_time()
        try:
            outcomes[run_case(reader, number, seed)] += 1
        except Exception as error:
            outcomes["RAW"] += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(f"{reader}:{number} {type(error).__name__}: {error!s:.150} ({last.filename}:{last.lineno})")
        duration = time.process_time() - started
        slowest = max(slowest, duration)
        if duration > SLOWEST:
            failures.append(f"{reader}:{number} took {duration:.1f} s")
    faulthandler.cancel_dump_traceback_later()
    return outcomes, failures, slowest


def largest_memory() -> int:
    """The most bytes that this process has held. Linux's `ru_maxrss` counts those of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="duration of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=READERS, help="one reader")
    parser.add_argument("--cases", type=int, help="end a reader after so many cases")
    parser.add_argument("--replay", metavar="READER:NUMBER", help="run this case and let its error through")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.replay:
        reader, number = arguments.replay.split(":")
        READERS[reader](np.random.default_rng([arguments.seed, list(READERS).index(reader), int(number)]))
        return 0
    readers = [arguments.only] if arguments.only else list(READERS)
    failures: list[str] = []
    for reader in readers:
        started = time.monotonic()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # "Waiting for the Unity Editor"
            outcomes, found, slowest = fuzz(reader, arguments.seconds / len(readers), arguments.seed, arguments.cases)
        failures += found
        shown = ", ".join(f"{name} {count}" for name, count in outcomes.most_common())
        mutated = f" with {Script.mutated_replies} mutated replies" if reader == "replies" else ""
        print(
            f"{reader}: {outcomes.total()} cases{mutated} in {time.monotonic() - started:.0f} s: {shown}; "
            f"slowest {1000 * slowest:.0f} ms",
            flush=True,
        )
    held = largest_memory()
    print(f"memory: {held / 2**20:.0f} MiB at most")
    if held > LARGEST:
        failures.append(f"the process held {held} bytes")
    for failure in failures:
        print(f"FAILED {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
