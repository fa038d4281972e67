"""Measure the steps per second of our low-level client, of SB3's `VecEnv` on it, of `mlagents_envs`, and of bare gRPC.

    python tests/benchmarks/client_speed.py [--peer-python PATH] [--seconds 0.5] [--rounds 15]

All clients use the same player (`stand_in_player.py`, run by this interpreter), each in its own process. They
alternate in short bursts, and a ratio compares two bursts of one round, so that other work on the machine slows both.
README.md in this folder explains the columns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import queue
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from stand_in_player import (
    BEHAVIOR,
    HEADER,
    METHOD,
    UNLIMITED,
    WORKLOADS,
    Workload,
    delimited,
    number,
    packed_floats,
    packed_numbers,
)

TIMEOUT = 60  # seconds that a client waits for the player
COMPARED = {"ours": ("bare", "peer"), "vec_env": ("ours",), "caller": ("grpcio",)}  # whose speeds are divided
Burst = dict[str, float]  # steps per second ("speed"), microseconds of processor time per step ("cpu")
QUIT = delimited(1, number(1, 400))
PLAYER = str(Path(__file__).with_name("stand_in_player.py"))


def run_bursts(step: Callable[[], object]) -> None:
    """Run one burst for each number of seconds on stdin and print its result as a line of JSON.

    A result holds the steps per second, and the microseconds of processor time per step over all threads.
    """
    for line in sys.stdin:
        steps, cpu, start = 0, time.process_time(), time.perf_counter()
        end = now = start
        end += float(line)
        while now < end:
            step()
            steps += 1
            now = time.perf_counter()
        cpu = time.process_time() - cpu
        print(json.dumps({"speed": steps / (now - start), "cpu": 1e6 * cpu / steps}), flush=True)


def measure_client(environment: str, actions: str, workload: Workload, port: int) -> dict[str, Any]:
    """Run the loop of a typical low-level script, with the same code for our client and for the peer.

    :param environment: Module of `UnityEnvironment`.
    :param actions: Module of `ActionTuple`.
    """
    environment_module, action_module = importlib.import_module(environment), importlib.import_module(actions)
    generator = np.random.default_rng(0)
    continuous = generator.uniform(-1, 1, (workload.agents, workload.continuous)).astype(np.float32)
    discrete = generator.integers(0, 2, (workload.agents, len(workload.branches)), dtype=np.int32)

    env = environment_module.UnityEnvironment(file_name=None, base_port=port, timeout_wait=TIMEOUT)
    env.reset()
    (name,) = env.behavior_specs

    def step() -> tuple[Any, Any]:
        chosen = action_module.ActionTuple()
        if workload.continuous:
            chosen.add_continuous(continuous)
        if workload.branches:
            chosen.add_discrete(discrete)
        env.set_actions(name, chosen)
        env.step()
        decision, terminal = env.get_steps(name)
        return decision, terminal

    run_bursts(step)
    decision, terminal = step()
    received = [*decision.obs, decision.reward, decision.group_reward, *(decision.action_mask or [])]
    received += [*terminal.obs, terminal.reward, terminal.group_reward]
    env.close()
    content = [[list(column.shape), float(np.sum(column, dtype=np.float64))] for column in received]
    return {"content": content, "context": context("numpy", "protobuf")}


def measure_vec_env(_: Workload, port: int) -> dict[str, Any]:
    """Run the loop of an SB3 algorithm: all agents are rows of a `UnityVecEnv`."""
    from sb3_ext import UnityVecEnv

    env = UnityVecEnv(file_name=None, base_port=port, timeout_wait=TIMEOUT)
    env.reset()
    actions = np.stack([env.action_space.sample() for _ in range(env.num_envs)])
    run_bursts(lambda: env.step(actions))
    env.close()
    return {"content": None, "context": context("numpy", "protobuf")}


def client_messages(workload: Workload) -> tuple[bytes, bytes, bytes]:
    """Return the messages that answer a player: its initialization, a RESET, and actions of all agents."""
    action = packed_floats(6, [0.5] * workload.continuous) + packed_numbers(7, (1,) * len(workload.branches))
    actions = delimited(1, BEHAVIOR) + delimited(2, delimited(1, action) * workload.agents)
    return (
        HEADER + delimited(3, delimited(2, delimited(2, "1.5.0"))),
        HEADER + delimited(3, delimited(1, number(4, 1))),
        HEADER + delimited(3, delimited(1, delimited(1, actions))),
    )


def measure_bare(workload: Workload, port: int) -> dict[str, Any]:
    """Run the bare transport: bytes to the main thread and back, because a user's loop runs there, and nothing read."""
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def exchange(request: bytes, _: grpc.ServicerContext) -> bytes:
        requests.put(request)
        return replies.get()

    service, method = METHOD[1:].split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(exchange)}
    server = grpc.server(futures.ThreadPoolExecutor(1), options=UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"localhost:{port}")
    server.start()

    *first, actions = client_messages(workload)
    for reply in first:
        requests.get(timeout=TIMEOUT)
        replies.put(reply)
    requests.get(timeout=TIMEOUT)

    def step() -> None:
        replies.put(actions)
        requests.get(timeout=TIMEOUT)

    run_bursts(step)
    replies.put(QUIT)
    server.stop(1).wait()
    return {"content": None, "context": context()}


MEASURES: dict[str, Callable[[Workload, int], dict[str, Any]]] = {
    "bare": measure_bare,
    "ours": partial(measure_client, "unity_gym.environment", "unity_gym.specs"),
    "peer": partial(measure_client, "mlagents_envs.environment", "mlagents_envs.base_env"),
    "vec_env": measure_vec_env,
}


def context(*packages: str) -> str:
    """Return the versions that a figure depends on."""
    versions = [f"Python {platform.python_version()}", f"grpcio {grpc.__version__}"]
    if "numpy" in packages:
        versions.append(f"numpy {importlib.import_module('numpy').__version__}")
    if "protobuf" in packages:
        implementation = importlib.import_module("google.protobuf.internal.api_implementation").Type()
        versions.append(f"protobuf {importlib.import_module('google.protobuf').__version__} ({implementation})")
    return ", ".join(versions)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


class Client:
    """One client in a process of interpreter `python`, with a player of this interpreter."""

    def __init__(self, client: str, python: str, workload: str) -> None:
        port = str(free_port())
        self._player = subprocess.Popen([sys.executable, PLAYER, port, workload])
        self._process = subprocess.Popen(
            [python, __file__, "--measure", client, workload, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def burst(self, seconds: float) -> Burst:
        """Run one burst."""
        assert self._process.stdin
        print(seconds, file=self._process.stdin, flush=True)
        result: Burst = self._read()
        return result

    def finish(self) -> dict[str, Any]:
        """End the client and the player; return the content of a step and the versions."""
        assert self._process.stdin
        self._process.stdin.close()
        result: dict[str, Any] = self._read()
        self._process.wait(timeout=TIMEOUT)
        self._player.wait(timeout=TIMEOUT)
        return result

    def kill(self) -> None:
        """Kill both processes."""
        for process in (self._process, self._player):
            process.kill()
            process.wait()

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r}: the client ended")
        return json.loads(line)


def check_same_content(workload: str, contents: dict[str, Any]) -> None:
    """Check that both clients return the same arrays."""
    pairs = list(zip(contents["ours"], contents["peer"], strict=True))
    if any(a[0] != b[0] or abs(a[1] - b[1]) > 1e-4 * max(1, abs(b[1])) for a, b in pairs):
        raise SystemExit(f"{workload}: the clients read different columns; [shape, sum] of (ours, peer): {pairs}")


def compare(workload: str, pythons: dict[str, str], seconds: float, rounds: int) -> dict[str, str]:
    """Print the rows of one workload and return the versions that each client ran with."""
    clients = {}
    try:
        for name, python in pythons.items():
            clients[name] = Client(name, python, workload)
        results = take_turns({name: client.burst for name, client in clients.items()}, seconds, rounds)
        ends = {name: client.finish() for name, client in clients.items()}
    finally:
        for client in clients.values():
            client.kill()
    if {"ours", "peer"} <= ends.keys():
        check_same_content(workload, {name: end["content"] for name, end in ends.items()})
    print_rows(workload, results)
    return {name: end["context"] for name, end in ends.items()}


def take_turns(programs: Mapping[str, Callable[[float], Burst]], seconds: float, rounds: int) -> dict[str, list[Burst]]:
    """Run one burst of each program per round, after one to warm up, and return all of each program."""
    for burst in programs.values():
        burst(seconds)
    results: dict[str, list[Burst]] = {name: [] for name in programs}
    order = list(programs)
    for first in range(rounds):
        for name in order[first % len(order) :] + order[: first % len(order)]:
            results[name].append(programs[name](seconds))
    return results


def print_rows(workload: str, results: dict[str, list[Burst]]) -> None:
    """Print the row of each program."""
    for name, bursts in results.items():
        speeds = [burst["speed"] for burst in bursts]
        cpu = statistics.median(burst["cpu"] for burst in bursts)
        range_of_speeds = f"{statistics.median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f})"
        ratios = [ratio(name, other, results) for other in COMPARED.get(name, ()) if other in results]
        print(f"| `{workload}` | {name} | {range_of_speeds} | {cpu:.0f} | {'; '.join(ratios)} |", flush=True)


def ratio(client: str, other: str, results: dict[str, list[Burst]]) -> str:
    """Return the ratio of the speeds of two programs, with its quartiles."""
    pairs = zip(results[client], results[other], strict=True)
    ratios = [a["speed"] / b["speed"] for a, b in pairs]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75), method="weibull")
    return f"{middle:.2f} of {other} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peer-python", help="interpreter that has mlagents_envs 1.1.0; without it no peer is measured"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of one burst")
    parser.add_argument("--rounds", type=int, default=15, help="bursts of each client on each workload")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only this one; may be repeated")
    parser.add_argument("--client", choices=MEASURES, action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()

    pythons = dict.fromkeys(MEASURES, sys.executable) | {"peer": arguments.peer_python}
    if not arguments.peer_python:
        print("no --peer-python: mlagents_envs is not measured", file=sys.stderr)
        del pythons["peer"]
    pythons = {client: python for client, python in pythons.items() if client in (arguments.client or pythons)}
    print("| workload | client | steps/s | CPU per step, µs | ratio of neighboring bursts |\n|---|---|---|---|---|")
    for workload in arguments.workload or WORKLOADS:
        versions = compare(workload, pythons, arguments.seconds, arguments.rounds)
    print("\n" + "; ".join(f"{client}: {version}" for client, version in versions.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        name, workload_name, port = sys.argv[2:]
        print(json.dumps(MEASURES[name](WORKLOADS[workload_name], int(port))))
    else:
        main()
