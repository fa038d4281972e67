"""Samplers as actors on the nodes of a Ray cluster; see `sb3_ext.placement`. Requires the extra `ray`."""

from __future__ import annotations

import logging
import math
import os
import queue
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

import unity_gym
from sb3_ext.placement import Place, SamplerLostError
from sb3_ext.served_sampler import Mailbox, SamplerArguments, serve
from sb3_ext.settings import RaySettings
from unity_gym.errors import PlayerError, UnityGymError
from unity_gym.player import EMBEDDED, player_command
from unity_gym.specs import Array

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError
except ModuleNotFoundError as error:
    raise UnityGymError("samplers on a Ray cluster need the extra ray: pip install 'unity-gym[ray]'") from error

_END_TIMEOUT = 10  # seconds for an actor to end its players
_PATIENCE = 30  # seconds until a line is printed about a sampler that has not started
_HEAD_INTERVAL = 2  # seconds between checks of the head node
_HEAD_PATIENCE = 20  # seconds without the head node until the run ends; by default, Ray ends the process after 60


@contextmanager
def connect(settings: RaySettings, build: str | None, on_wait: Callable[[str], None] = print) -> Iterator[RayCluster]:
    """Connect to a Ray cluster, or start one on this machine, for the duration of the context.

    A script that has called `ray.init` keeps its connection.

    :param settings: Address of the cluster, and the resources per sampler.
    :param build: `file_name` of the players; None for the Unity Editor.
    :param on_wait: Function that receives a log line when a sampler does not start.
    :raises UnityGymError: If there is no such cluster, or `build` cannot be copied.
    """
    if build is None:
        raise UnityGymError("Ray launches the players on its nodes, got no player: name a build or scene with --env")
    if settings.ship_build:
        folder, build = _shipped(build)
        environment = {"working_dir": str(folder)}
    else:
        build = build if build.startswith(EMBEDDED) else str(Path(build).expanduser().absolute())
        environment = {}
    if is_connected := ray.is_initialized():
        if settings.ship_build:
            raise UnityGymError(
                "ray.ship_build sends the build when the run connects, but this script has called ray.init: pass "
                f"runtime_env={environment} to it, and {build!r} as env_path"
            )
    else:
        _connect(settings, environment)
    try:
        yield RayCluster(settings, build, on_wait)
    finally:
        if not is_connected:
            ray.shutdown()


def _shipped(build: str) -> tuple[Path, str]:
    """Return the folder to copy, and the path of the build relative to it."""
    path = Path(build).expanduser().absolute()
    if build.startswith(EMBEDDED) or not any(path.parent.glob(f"{escape(path.name)}*")):  # also without its suffix
        raise UnityGymError(
            f"ray.ship_build sends the folder of a build, got the player {build!r}: give the path of a build with "
            "--env, or leave ship_build out"
        )
    return path.parent, f"./{path.name}"


def _await_head(address: str) -> None:
    """Wait for a while until the head node answers, for which Ray would wait 15 minutes or longer.

    :param address: Host and port; nothing is checked for an address of another form.
    :raises UnityGymError: If it does not answer.
    """
    if not re.fullmatch(r"[^/]+:\d+", address):
        return
    deadline = time.monotonic() + _HEAD_PATIENCE
    while (error := _connection_error(_endpoint(address))) is not None:
        if time.monotonic() > deadline:
            raise UnityGymError(
                f"cannot connect to the Ray cluster at {address!r}, which has not answered for {_HEAD_PATIENCE} s "
                f"({error}): give the address that `ray start --head` printed, or none (and no RAY_ADDRESS) to start "
                "Ray on this machine"
            )
        time.sleep(0.1)


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _connection_error(endpoint: tuple[str, int]) -> OSError | None:
    """Connect to a host and port, and return what fails."""
    try:
        socket.create_connection(endpoint, _HEAD_INTERVAL).close()
    except OSError as error:
        return error
    return None


def _connect(settings: RaySettings, environment: dict[str, str]) -> None:
    address = settings.address or os.environ.get("RAY_ADDRESS", "")
    _await_head(address)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    # Most projects let git ignore builds, which Ray would then leave out.
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    # Ray starts actors with niceness 15, so that an update on the same cores would slow all samplers down.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray ends this process, without a checkpoint, that long after the head node: time for an update and a checkpoint.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    try:
        ray.init(
            settings.address,
            include_dashboard=False,
            logging_level=logging.WARNING,
            runtime_env=environment or None,
        )
    except SystemExit as stop:  # raised by Ray's own handler of SIGTERM
        if stop.code != signal.SIGTERM:
            raise
        raise KeyboardInterrupt(stop.code) from None
    except Exception as error:  # of many classes, including those of other packages
        with suppress(Exception):
            ray.shutdown()
        place = f"at {address!r}" if address else "on this machine"
        sent = f" (or send {environment['working_dir']})" if environment else ""
        if _asks_for_token(error):
            raise UnityGymError(
                f"the Ray cluster {place} asks for its token: copy the head node's ~/.ray/auth_token to this machine, "
                "and set the environment variable RAY_AUTH_MODE=token for this command and each `ray start`"
            ) from error
        raise UnityGymError(
            f"cannot connect to the Ray cluster {place}{sent}: {error}. Give the address that `ray start --head` "
            "printed, or none (and no RAY_ADDRESS) to start Ray on this machine"
        ) from error
    finally:
        if is_main:  # Ray's own handler exits without a checkpoint
            signal.signal(signal.SIGTERM, before)


def _asks_for_token(error: BaseException | None) -> bool:
    """Return whether a cluster asks for its token, which Ray reports in an error inside of this one."""
    while error is not None:
        if "AuthenticationError" in f"{type(error)}{error}":
            return True
        error = error.__cause__ or error.__context__
    return False


class HeadNode:
    """Head node of the cluster. Ray ends this process some time after the node, without a checkpoint.

    :param address: Host and port. If they are out of reach from the start, as through a Ray Client, nothing is checked.
    """

    def __init__(self, address: str) -> None:
        self._address, self._endpoint = address, _endpoint(address)
        self._is_in_reach = _connection_error(self._endpoint) is None
        self._checked = time.monotonic()
        self._lost: float | None = None  # time of the first check that failed

    def require(self) -> None:
        """Raise an error if the node has not answered for a while.

        :raises UnityGymError: In this case.
        """
        now = time.monotonic()
        if not self._is_in_reach or now - self._checked < _HEAD_INTERVAL:
            return
        if (error := _connection_error(self._endpoint)) is None:
            self._lost = None
        else:
            self._lost = self._lost or now
            if now - self._lost > _HEAD_PATIENCE:
                raise UnityGymError(
                    f"the head node of the Ray cluster, {self._address}, has not answered for {_HEAD_PATIENCE} s "
                    f"({error}): start the cluster again, and continue the run with --resume"
                )
        self._checked = time.monotonic()


class RayCluster(Place):
    """Place that starts each sampler as a Ray actor.

    :param settings: Resources per sampler.
    :param build: `file_name` of the players on the nodes.
    :param on_wait: Function that receives a log line when a sampler does not start.
    """

    repeats_launches = True  # Ray may have chosen a node that has just ended

    def __init__(self, settings: RaySettings, build: str, on_wait: Callable[[str], None] = print) -> None:
        super().__init__()
        self._settings, self.build, self._on_wait = settings, build, on_wait
        self.head = HeadNode(ray.get_runtime_context().gcs_address)
        decorate: Any = ray.remote
        self._actor_class = decorate(concurrency_groups={"calls": 1, "answers": 1})(SamplerActor)

    def open(self, number: int, arguments: SamplerArguments) -> ActorChannel:
        """See `Place`.

        :raises UnityGymError: If Ray cannot reserve such resources.
        """
        cpus, gpus = self._settings.num_cpus_per_sampler, self._settings.num_gpus_per_sampler
        options = self._actor_class.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
        try:
            actor = options.remote(unity_gym.__version__)
        except ValueError as error:  # such as 1.5 GPUs
            reason = " ".join(map(str, error.args))
            raise UnityGymError(
                f"Ray cannot reserve {_amount(cpus, 'CPU')} and {_amount(gpus, 'GPU')} for a sampler ({reason}): "
                "correct ray.num_cpus_per_sampler and ray.num_gpus_per_sampler"
            ) from error
        return ActorChannel(actor, number, self, actor.serve.remote(arguments, self.build))

    def wait(self, channels: Sequence[ActorChannel], seconds: float) -> list[int]:
        """See `Place`.

        :raises UnityGymError: If the cluster has ended.
        """
        self.head.require()
        ended = [position for position, channel in enumerate(channels) if channel.answer is None]
        if ended:
            return ended
        answers = [channel.answer for channel in channels]
        if not ray.wait(answers, num_returns=1, timeout=seconds)[0]:
            return []
        arrived = {*ray.wait(answers, num_returns=len(answers), timeout=0)[0]}  # all, so that none is ignored
        return [position for position, answer in enumerate(answers) if answer in arrived]

    def report_wait(self, number: int) -> None:
        """Print a line about a sampler that has not started. Ray reports what is free only for all nodes together."""
        needed = {"CPU": self._settings.num_cpus_per_sampler, "GPU": self._settings.num_gpus_per_sampler}
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call,unused-ignore]
        amounts = " and ".join(_amount(count, kind) for kind, count in needed.items())
        resources = ", ".join(f"{free.get(kind, 0):g} of {_amount(total.get(kind, 0), kind)}" for kind in needed)
        self._on_wait(
            f"Sampler {number} has not started within {_PATIENCE} s. It needs a node that has {amounts} free; all "
            f"nodes together have {resources}. If no node has them, add one, or lower num_workers, or "
            "ray.num_cpus_per_sampler and ray.num_gpus_per_sampler"
        )

    def share(self, weights: Mapping[str, Array]) -> Any:
        """Put weights into the object store, from which each node reads them once."""
        return ray.put(weights)


def _amount(count: float, kind: str) -> str:
    """Return a number of CPUs or GPUs in words, such as "1 CPU" or "1.5 GPUs"."""
    return f"{count:g} {kind}" if count == 1 else f"{count:g} {kind}s"


class ActorChannel:
    """Connection to a sampler in a Ray actor; see `Channel`.

    :param actor: Handle of a `SamplerActor`.
    :param number: Number of the sampler.
    :param cluster: The cluster.
    :param serving: Reference of the result of `serve`.
    """

    def __init__(self, actor: Any, number: int, cluster: RayCluster, serving: Any) -> None:
        self._actor, self._number, self._cluster, self._serving = actor, number, cluster, serving
        self._node_reference = actor.node.remote()
        self._node = ""  # set with the first response
        self._answer: Any = actor.answer.remote()
        self._late_from = time.monotonic() + _PATIENCE  # the time until which the sampler may start silently
        self._has_started = self._has_ended = False

    @property
    def answer(self) -> Any:
        """Reference of the next response; None if there is none."""
        return None if self._has_ended else self._answer

    @property
    def _awaited(self) -> list[Any]:
        """References of the next response and, before the first one, of `serve`.

        On a node that cannot read its arguments, `serve` fails without a response.
        """
        return [self._answer] if self._has_started else [self._answer, self._serving]

    def call(self, method: str, *arguments: Any) -> None:
        """See `Channel`."""
        self.notify(method, *arguments)
        if not self._has_ended:
            self._answer = self._actor.answer.remote()

    def notify(self, method: str, *arguments: Any) -> None:
        """See `Channel`. Ray replaces references among the arguments by their values."""
        if not self._has_ended:
            self._actor.deliver.remote(method, *arguments)

    def poll(self, seconds: float) -> bool:
        """See `Channel`.

        :raises UnityGymError: If the cluster has ended.
        """
        if self._has_ended:
            return True
        ready, _ = ray.wait(self._awaited, timeout=seconds)
        if not ready:
            self._cluster.head.require()
        if not ready and not self._has_started and time.monotonic() > self._late_from:
            self._late_from = math.inf
            if not ray.wait([self._node_reference], timeout=0)[0]:
                self._cluster.report_wait(self._number)
        return bool(ready)

    def receive(self) -> Any:
        """See `Channel`."""
        if self._has_ended:
            raise SamplerLostError(f"sampler {self._number}{self._node} has ended")
        while not self.poll(_HEAD_INTERVAL):
            continue
        try:
            self._node = self._node or f" on node {ray.get(self._node_reference)}"
            if self._serving in ray.wait(self._awaited)[0]:
                ray.get(self._serving)  # raises what it failed with
            answer = ray.get(self._answer)
            self._has_started = True
        except (RayActorError, ObjectLostError) as error:
            self._has_ended = True
            if isinstance(error, RayActorError) and error.actor_init_failed:
                raise UnityGymError(f"sampler {self._number} cannot start: {error}") from error
            lines = [line.strip() for line in str(error).splitlines()]
            raise SamplerLostError(f"sampler {self._number}{self._node} was lost: {lines[0].rstrip('.')}") from error
        except RayError as error:
            self._has_ended = True
            hint = "" if self._has_started else ". Each node needs the same unity-gym as the learner"
            raise UnityGymError(f"sampler {self._number}{self._node} failed: {error}{hint}") from error
        if isinstance(answer, BaseException):  # the last response
            self._has_ended = True
            if isinstance(answer, UnityGymError):
                answer.args = (f"sampler {self._number}{self._node}: {answer}",)
        return answer

    def end(self) -> None:
        """See `Channel`."""
        self.notify("stop")
        self.notify("close")

    def close(self) -> None:
        """See `Channel`."""
        if self._has_started and not self._has_ended:
            self.end()
            with suppress(RayError):
                ray.wait([self._serving], timeout=_END_TIMEOUT)
        self._has_ended = True
        with suppress(RayError):
            ray.kill(self._actor)


class SamplerActor:
    """A sampler on a node of the cluster. Messages are delivered while `serve` runs.

    :param version: Version of this package in the learner's process, which must be that of the node.
    """

    def __init__(self, version: str) -> None:
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_compatible = version == unity_gym.__version__
        if not self._is_compatible:
            self._answers.put(
                UnityGymError(
                    f"unity-gym is {unity_gym.__version__} on this node, and {version} where the learner runs: install "
                    "the same version on all nodes"
                )
            )

    def serve(self, arguments: SamplerArguments, build: str) -> None:
        """Run the sampler until it is closed.

        :param arguments: Arguments of the sampler.
        :param build: `file_name` of the players.
        """
        if not self._is_compatible:
            return
        try:
            player_command(build)
        except PlayerError as error:
            self._answers.put(
                PlayerError(f"{error} Each node needs it under this path; --ray-ship-build sends it to all of them")
            )
            return
        serve(Mailbox(self._calls, self._answers.put), arguments)

    @ray.method(concurrency_group="answers")
    def node(self) -> str:
        """Return name and address of the node."""
        own = ray.get_runtime_context().get_node_id()
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call,unused-ignore]
        (node,) = (node for node in nodes if node["NodeID"] == own)
        names = dict.fromkeys((node["NodeName"], node["NodeManagerHostname"], node["NodeManagerAddress"]))
        return " ".join(names)

    @ray.method(concurrency_group="calls")
    def deliver(self, method: str, *arguments: Any) -> None:
        """Call a method of the sampler."""
        self._calls.put((method, arguments))

    @ray.method(concurrency_group="answers")
    def answer(self) -> Any:
        """Wait for the next response of the sampler, and return it."""
        return self._answers.get()
