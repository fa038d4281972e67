"""A player with one agent and the fault that ``--fault`` names. Without a fault it runs until the client disconnects.

It accepts the arguments of :class:`unity_gym.player.Player` and ignores unknown ones.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from stand_ins.scene_launcher import module_launcher
from unity_gym.wire.messages import RESET, UnityMessage

BEHAVIOR = "Faulty?team=0"
_KILL = 9  # SIGKILL; on Windows the exit code
FAULTS = {
    "none": "answers every step",
    "exit-at-start": "ends with exit code 3 before it connects",
    "never-connect": "runs, but never connects",
    "never-speak": "opens a connection and sends nothing",
    "die-in-handshake": "kills itself while it waits for the first command",
    "hang-in-handshake": "sends its first message, then nothing more",
    "hang-in-reset": "never answers the reset",
    "die-in-reset": "kills itself in the reset",
    "slow-steps": "takes 0.5 s for each step",
    "hang-in-step": "answers the reset, then never comes back from its first step",
    "hang-deaf": "the same, and ignores SIGTERM",
    "die-in-step": "answers the reset, then kills itself in its first step",
    "die-with-children": "starts another process, then kills itself in its first step",
    "exit-in-step": "ends with exit code 7 in its first step",
    "disconnect": "closes its connection in its first step and lives on",
    "quit-in-step": "answers the reset, then says in its first step that it quits, as a stopped Editor does",
    "version-2": "speaks major version 2 of the protocol",
    "no-behavior": "announces no behavior and has no agents",
    "no-agents": "announces its behavior, but never has an agent",
    "vanish": "has no agent from its first step on, without saying that it ended, and answers for ever",
    "silent-for-150": "has no agent in its first 150 steps, and answers",
    "end-for-ever": "ends its agent in its first step and answers for ever, without another episode",
    "nan-observation": "sends a NaN in the observation of its first step",
    "nan-reward": "sends NaN as the reward of its first step",
    "infinite-group-reward": "sends an infinite group reward in its first step",
    "huge-reward": "sends a reward of 1e25 in its first step",
    "garbage": "sends bytes that are no message in its first step",
    "truncated": "sends half of its message in its first step",
    "empty-message": "sends a message without content in its first step",
    "status-500": "sends its first step with the status 500",
    "short-observation": "sends fewer numbers than the shape says in its first step",
    "new-sensor": "has one sensor more in its first step",
    "no-sensor": "has no sensor in its first step",
    "wrong-mask": "sends a mask that is too short in its first step",
    "twins": "sends its agent twice in its first step",
    "negative-id": "has the agent id -1 in its first step",
    "unknown-behavior": "has an agent of a behavior that was not announced in its first step",
    "broken-side-channel": "sends side-channel data that end too early in its first step",
    "broken-statistic": "sends a statistic with an unknown aggregation in its first step",
}
_STATISTICS = bytes.fromhex("b7f7d8a1c8cef950b78bd3e165a78520")  # the channel's UUID, little-endian fields


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", type=int, required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none", help=str(FAULTS))
    parser.add_argument("--marker", type=Path, help="a file: only the player that makes it has the fault")
    arguments, _ = parser.parse_known_args()
    fault = arguments.fault
    if arguments.marker is not None:
        try:
            arguments.marker.touch(exist_ok=False)
        except FileExistsError:
            fault = "none"
    print(f"faulty player: {fault}", flush=True)
    if fault == "exit-at-start":
        print("faulty player: something is wrong with my start", file=sys.stderr, flush=True)
        sys.exit(3)
    if fault == "never-connect":
        time.sleep(3600)
    if fault == "hang-deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault == "die-with-children":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    if fault == "never-speak":
        with socket.create_connection(("127.0.0.1", arguments.mlagents_port)):
            time.sleep(3600)
    play(connect_to(arguments.mlagents_port), fault)


def launcher(folder: Path, fault: str = "none", once: bool = False) -> str:
    """The path of an executable, written into ``folder``, that plays with this fault, or whose first process does."""
    options = f'--fault {fault} --marker "{folder}/{fault}.marker"' if once else f"--fault {fault}"
    return module_launcher(folder, fault, f"stand_ins.faulty_player {options}")


def connect_to(port: int) -> grpc.UnaryUnaryMultiCallable:
    """Connect to the client on this port; return the call that exchanges raw messages."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    channel = grpc.insecure_channel(f"localhost:{port}", options=options)
    return channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")


def play(exchange: grpc.UnaryUnaryMultiCallable, fault: str) -> None:
    """Run the player until the client sends a quit message or disconnects, or the fault occurs."""
    hello = UnityMessage()
    hello.header.status = 200
    greeting = hello.unity_output.rl_initialization_output
    greeting.name = "Faulty"
    greeting.communication_version = "2.0.0" if fault == "version-2" else "1.5.0"
    greeting.package_version = "4.0.0"
    greeting.capabilities.base_rl = True
    greeting.capabilities.hybrid_actions = True
    exchange(hello.SerializeToString())
    if fault == "hang-in-handshake":
        time.sleep(3600)
    ready = UnityMessage()
    ready.header.status = 200
    if fault == "die-in-handshake":
        threading.Timer(0.5, os.kill, (os.getpid(), _KILL)).start()
    command = UnityMessage.FromString(exchange(ready.SerializeToString()))
    step = 0
    while command.header.status == 200:
        if side_channel := command.unity_input.rl_input.side_channel:
            print(f"side channels: {side_channel.hex()}", flush=True)
        if command.unity_input.rl_input.command == RESET:
            print("faulty player: reset", flush=True)
        if fault == "die-in-reset":
            os.kill(os.getpid(), _KILL)
        if fault in ("hang-in-reset", "die-in-handshake"):
            time.sleep(3600)
        if fault == "slow-steps" and command.unity_input.rl_input.command != RESET:
            time.sleep(0.5)
        step = 0 if command.unity_input.rl_input.command == RESET else step + 1
        message = state(step, fault).SerializeToString()
        if step == 1:
            message = misbehave(message, fault)
        command = UnityMessage.FromString(exchange(message))


def state(step: int, fault: str) -> UnityMessage:
    """Return a state in which one agent requests a decision."""
    message = UnityMessage()
    message.header.status = 200
    output = message.unity_output
    output.rl_output.SetInParent()
    if fault == "no-behavior":
        return message
    if step == 0:
        parameters = output.rl_initialization_output.brain_parameters.add(brain_name=BEHAVIOR, is_training=True)
        parameters.action_spec.num_continuous_actions = 1
        if fault == "wrong-mask":
            parameters.action_spec.num_discrete_actions = 1
            parameters.action_spec.discrete_branch_sizes.append(3)
    agents = output.rl_output.agent_infos[BEHAVIOR]
    if fault == "silent-for-150" and 0 < step <= 150:
        return message
    if fault == "no-agents" or (step and fault == "vanish") or (step > 1 and fault == "end-for-ever"):
        return message
    values = np.array([step, 0.5, -0.5], "<f4")
    agent = agents.value.add(id=1, reward=float(step), done=step == 1 and fault == "end-for-ever")
    if step == 1 and fault == "nan-observation":
        values[1] = np.nan
    if step == 1 and fault == "nan-reward":
        agent.reward = np.nan
    sensors = {"new-sensor": 2, "no-sensor": 0}.get(fault, 1) if step else 1
    for _ in range(sensors):
        observation = agent.observations.add(shape=[3], dimension_properties=[1], name="VectorSensor_size3")
        observation.float_data.data = values[: 2 if step and fault == "short-observation" else 3].tobytes()
    if step == 1:
        spoil(output.rl_output, agent, fault)
    return message


def spoil(output: Any, agent: Any, fault: str) -> None:
    """Apply the fault to the state of the first step."""
    if fault == "infinite-group-reward":
        agent.group_reward = float("inf")
    elif fault == "huge-reward":
        agent.reward = 1e25
    elif fault == "wrong-mask":
        agent.action_mask = b"\0\1"
    elif fault == "twins":
        output.agent_infos[BEHAVIOR].value.add().CopyFrom(agent)
    elif fault == "negative-id":
        agent.id = -1
    elif fault == "unknown-behavior":
        output.agent_infos["Stranger?team=0"].value.add().CopyFrom(agent)
    elif fault == "broken-side-channel":
        output.side_channel = _STATISTICS + struct.pack("<i", 100) + b"short"
    elif fault == "broken-statistic":
        output.side_channel = _STATISTICS + struct.pack("<iisfi", 13, 1, b"s", 1.0, 99)


def misbehave(message: bytes, fault: str) -> bytes:
    """Return what the player sends in its first step instead of this message, if anything."""
    if fault in ("hang-in-step", "hang-deaf"):
        time.sleep(3600)
    elif fault == "exit-in-step":
        print("faulty player: out of order", file=sys.stderr, flush=True)
        os._exit(7)
    elif fault in ("die-in-step", "die-with-children"):
        print("faulty player: about to die", flush=True)
        os.kill(os.getpid(), _KILL)
    elif fault == "quit-in-step":
        quit_message = UnityMessage()
        quit_message.header.status = 400
        return bytes(quit_message.SerializeToString())
    elif fault == "empty-message":
        return b""
    elif fault == "status-500":
        spoiled = UnityMessage.FromString(message)
        spoiled.header.status = 500
        return bytes(spoiled.SerializeToString())
    elif fault == "garbage":
        return b"\xff" * 64
    elif fault == "truncated":
        return message[: len(message) // 2]
    return message


if __name__ == "__main__":
    main()
