"""A player that sends prepared states, for games in which agents and sensors behave as in no embedded scene.

Each script yields one state after another: the agents of each behavior, and side-channel data where it sends some.
"""

from __future__ import annotations

import argparse
import itertools
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from stand_ins.faulty_player import connect_to
from stand_ins.scene_launcher import module_launcher
from unity_gym.specs import Array
from unity_gym.wire.messages import RESET, UnityMessage

CHANNEL = uuid.UUID("11111111-2222-3333-4444-555555555555")
"""On which `camera` sends "graphics" or "no graphics" and all that it has received on it."""


class Agent(NamedTuple):
    """The state of an agent.

    :param id: Its id.
    :param sensors: Observation of each sensor by name.
    :param done: Whether its episode has ended.
    """

    id: int
    sensors: Mapping[str, Any] = MappingProxyType({"vector": [1.0, 1.0]})
    done: bool = False


State = dict[str, list[Agent]]
Script = Iterator[State | tuple[State, bytes]]
_commands: list[Any] = []  # that were received, each an `RLInput`


def _image() -> Array:
    """Return what a camera sends."""
    image = np.full((3, 4, 4), 205 / 255)
    if "-nographics" not in sys.argv:
        image[1] = 0.1
    return image


def _frame(message: bytes) -> bytes:
    return CHANNEL.bytes_le + struct.pack("<i", len(message)) + message


def _messages(frames: bytes) -> Iterator[bytes]:
    """Yield the messages on `CHANNEL`."""
    while frames:
        end = 20 + struct.unpack_from("<i", frames, 16)[0]
        if frames[:16] == CHANNEL.bytes_le:
            yield frames[20:end]
        frames = frames[end:]


def camera() -> Script:
    text = b"no graphics" if "-nographics" in sys.argv else b"graphics"
    while True:
        text += b"".join(_messages(_commands[-1].side_channel))
        yield {"Watcher": [Agent(1, {"camera": _image()})]}, _frame(text)


def late_camera() -> Script:
    yield {"Guide": [Agent(1)]}
    while True:
        yield {"Guide": [Agent(1)], "Watcher": [Agent(2, {"camera": _image()})]}


def empty_grid() -> Script:
    """A grid sensor that detects its first object later."""
    for _ in range(3):
        yield {"Walker": [Agent(1, {"grid": np.zeros((2, 5, 5))})]}
    while True:
        yield {"Walker": [Agent(1, {"grid": np.eye(5)[None].repeat(2, 0)})]}


def freeze() -> Script:
    """A game that freezes in the second exchange of a step, in which agent 2 is waited for."""
    yield {"Walker": [Agent(1), Agent(2)]}
    yield {"Walker": [Agent(1)]}
    time.sleep(0.05)
    print("waits for the physics engine", flush=True)
    time.sleep(3600)


def unsorted_sensors() -> Script:
    """Unity sorts sensors by name and ignores case."""
    while True:
        yield {"Walker": [Agent(1, {"angle": [1.0, 1.0, 1.0], "Position": [100.0, 100.0, 100.0]})]}


def entities() -> Script:
    while True:
        yield {"Walker": [Agent(1, {"buffer": np.ones((4, 5)), "vector": [1.0, 1.0]})]}


def pause() -> Script:
    """Each episode has one decision, and the next one starts one exchange after its end."""
    while True:
        yield {"Walker": [Agent(1)]}
        if _commands[-1].command != RESET:
            yield {"Walker": [Agent(1, done=True)]}


def short() -> Script:
    """Each episode has one decision, and the message that ends it starts the next one."""
    while True:
        ended = [] if _commands[-1].command == RESET else [Agent(1, done=True)]
        yield {"Walker": [*ended, Agent(1)]}


def manager() -> Script:
    """An agent without sensors next to one with them."""
    while True:
        yield {"Manager": [Agent(1, {})], "Walker": [Agent(2)]}


def turns() -> Script:
    """Two agents that decide in turn; observations count an agent's decisions."""
    decisions = [0, 0]
    for exchange in itertools.count():
        now = exchange % 2
        decisions[now] += 1
        due = [0, 1] if not exchange else [now]
        yield {"Walker": [Agent(1 + agent, {"vector": [decisions[agent], 1.0]}) for agent in due]}


def periods() -> Script:
    """An agent that decides in each exchange, or, in the second player, in every other one."""
    is_second = any("player-1-" in argument for argument in sys.argv)  # in the name of its log
    while True:
        yield {"Walker": [Agent(1)]}
        if is_second:
            yield {"Walker": []}


def chess() -> Script:
    """The agent of the second team appears with its first turn."""
    yield {"Chess?team=0": [Agent(1)], "Chess?team=1": []}
    while True:
        yield {"Chess?team=1": [Agent(2)]}
        yield {"Chess?team=0": [Agent(1)]}


def silence() -> Script:
    """Agent 1 makes one decision and falls silent."""
    yield {"Walker": [Agent(1), Agent(2), Agent(3)]}
    while True:
        yield {"Walker": [Agent(2), Agent(3)]}


SCRIPTS: dict[str, Callable[[], Script]] = {
    script.__name__: script
    for script in (
        *(camera, late_camera, empty_grid, freeze, unsorted_sensors, entities, pause, short),
        *(manager, turns, periods, chess, silence),
    )
}


def launcher(folder: Path, script: str) -> str:
    """Return the path of an executable, written into the folder, that plays the script."""
    return module_launcher(folder, script, f"stand_ins.scripted_player {script}")


def _state(agents: State, announced: set[str], side_channel: bytes) -> bytes:
    message = UnityMessage()
    message.header.status = 200
    output = message.unity_output
    output.rl_output.side_channel = side_channel
    for behavior, states in agents.items():
        if behavior not in announced:
            announced.add(behavior)
            parameters = output.rl_initialization_output.brain_parameters.add(brain_name=behavior, is_training=True)
            parameters.action_spec.num_continuous_actions = 1
        for agent in states:
            info = output.rl_output.agent_infos[behavior].value.add(id=agent.id, done=agent.done)
            for name, values in agent.sensors.items():
                array = np.asarray(values, "<f4")
                properties = {1: [1], 2: [4, 1], 3: [1, 2, 2]}[array.ndim]
                observation = info.observations.add(shape=array.shape, dimension_properties=properties, name=name)
                observation.float_data.data = array.tobytes()
    encoded: bytes = message.SerializeToString()
    return encoded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("--mlagents-port", type=int, required=True)
    arguments, _ = parser.parse_known_args()
    exchange = connect_to(arguments.mlagents_port)
    message = UnityMessage()
    message.header.status = 200
    greeting = message.unity_output.rl_initialization_output
    greeting.communication_version, greeting.package_version = "1.5.0", "4.0.1"
    greeting.capabilities.base_rl = greeting.capabilities.hybrid_actions = True
    exchange(message.SerializeToString(), wait_for_ready=True)
    ready = UnityMessage()
    ready.header.status = 200
    command = UnityMessage.FromString(exchange(ready.SerializeToString()))
    announced: set[str] = set()
    script = SCRIPTS[arguments.script]()
    while command.header.status == 200:
        _commands.append(command.unity_input.rl_input)
        state = next(script)
        agents, side_channel = state if isinstance(state, tuple) else (state, b"")
        command = UnityMessage.FromString(exchange(_state(agents, announced, side_channel)))


if __name__ == "__main__":
    main()
