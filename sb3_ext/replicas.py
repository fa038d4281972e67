"""Updates shared by several processes, each with a separate device.

The training process has everything: players, experience, checkpoints, logs. Each further process has a replica of the
model, receives the same experience, and computes the gradients of its part of each minibatch. The gradients are summed
over the processes, so that all replicas make the same steps. Except for rounding, they are the steps of a single
process: all replicas sample the same minibatches, and compute observation statistics from all of the experience.

`torch.nn.parallel.DistributedDataParallel` is not used, except for its primitive, an all-reduce of the gradients. It
averages the gradients of one call of one module's `forward`. But these losses call several methods of a policy, and
SAC has two backward passes.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import multiprocessing.connection
import pickle
import random
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from torch import distributed

from sb3_ext.child_processes import SCRIPT_HINT, first_message, leave_end_to_parent, starting_without_signals
from sb3_ext.hardware import require_device
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec

_HOST = "127.0.0.1"
_END_TIMEOUT = 10  # seconds for a process to end


def _store(port: int | None = None) -> Any:
    """Return the store with which the processes connect: a new one, or that of a port."""
    has_libuv = sys.platform != "win32"  # torch's builds for Windows are without it, and fail instead of doing without
    make: Any = distributed.TCPStore  # type: ignore[attr-defined]
    return make(_HOST, port or 0, is_master=port is None, wait_for_workers=False, use_libuv=has_libuv)


class Share:
    """Part of each minibatch that a process computes, and the sums over the processes.

    :param rank: Index of the process.
    :param size: Number of processes.
    :param port: Port of the store through which the processes connect; None for a single process.
    """

    def __init__(self, rank: int = 0, size: int = 1, port: int | None = None) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None
        if port is not None:
            store = _store(port)
            options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname=_HOST)]
            self._group = distributed.ProcessGroupGloo(store, rank, size, options)

    def part(self, sequences: int) -> slice | None:
        """Return the sequences of a minibatch that this process computes; None for all.

        Each process computes all of a minibatch with fewer sequences than processes.
        """
        if self.size == 1 or sequences < self.size:
            return None
        return slice(sequences * self.rank // self.size, sequences * (self.rank + 1) // self.size)

    def weight(self, count: int, whole: int, part: slice | None) -> float:
        """Return the factor of this process's loss, a mean, in the sum over the processes.

        :param count: Number of valid decisions that this process computes.
        :param whole: Number of valid decisions of the minibatch.
        :param part: Result of `part`.
        """
        return 1 / self.size if part is None else count / whole

    def sum_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Replace the gradients by their sums over the processes."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over the processes, computed in the memory of the host.

        :raises RuntimeError: If another process has ended.
        """
        if self.size == 1:
            return x
        total = x.detach().to("cpu", copy=True)
        self._group.allreduce([total]).wait()
        return total.to(x.device)


class Replicated(Protocol):
    """Attributes of a model that replicas require; see `UnityAlgorithm`."""

    replicated: ClassVar[tuple[str, ...]]
    share: Share

    @property
    def policy(self) -> Any:
        """Policy whose parameters the replicas share."""

    def save(self, path: io.BytesIO) -> None:
        """Save the model, from which each replica is loaded."""

    def set_logger(self, logger: Logger) -> None:
        """Set the logger; that of a replica has no output."""

    def start(self, spec: BehaviorSpec) -> None:
        """Prepare the model for the behavior."""

    def train_as_replica(self, state: dict[str, Any]) -> None:
        """Make the update of the first process with this replica's share of each batch."""


class Replicas:
    """Further processes that share the updates of a model.

    :param model: Model, before its next update.
    :param devices: One device per process.
    :raises UnityGymError: If a device does not exist, or a process cannot be started.
    """

    def __init__(self, model: Replicated, devices: Sequence[str]) -> None:
        self._devices = devices
        for device in devices:
            require_device(device)
        content = io.BytesIO()
        model.save(content)
        further = {name: getattr(model, name) for name in model.replicated}
        # multiprocessing would share the memory of pickled tensors; these are copies.
        state = pickle.dumps((type(model), content.getvalue(), further))
        size = len(devices) + 1
        self._store = _store()
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        self._have_started = False
        atexit.register(self.close)  # before multiprocessing joins the processes, which ignore its SIGTERM
        try:
            for rank, device in enumerate(devices, 1):
                connection, remote_end = context.Pipe()
                arguments = (remote_end, rank, size, self._store.port, device, torch.get_num_threads())
                process = context.Process(target=_replicate, args=arguments, daemon=True, name=f"learner-{rank}")
                with starting_without_signals():
                    process.start()
                    self._connections.append(connection)
                    self._processes.append(process)
                remote_end.close()
            for process, connection in zip(self._processes, self._connections, strict=True):
                first_message(connection, process.sentinel)
                connection.send_bytes(state)
            for connection in self._connections:
                if (failure := connection.recv()) is not None:
                    raise UnityGymError(failure)
            self.share = Share(0, size, self._store.port)
            self._have_started = True
        except BaseException as error:
            failure = self.failure(error) if isinstance(error, (EOFError, OSError, RuntimeError)) else None
            self.close()
            if failure is not None:
                raise failure from error
            raise

    def train(self, state: dict[str, Any]) -> None:
        """Let the replicas compute the same update as this process; see `UnityAlgorithm.replica_state`."""
        message = pickle.dumps((state, _random_states()))
        for connection in self._connections:
            with suppress(OSError):  # the first sum raises the error
                connection.send_bytes(message)

    def failure(self, error: BaseException) -> UnityGymError:
        """Return the reason why a sum over the processes failed."""
        multiprocessing.connection.wait([process.sentinel for process in self._processes], _END_TIMEOUT)
        for rank, (process, connection) in enumerate(zip(self._processes, self._connections, strict=True), 1):
            name = f"the process of learner {rank} on {self._devices[rank - 1]}"
            with suppress(EOFError, OSError):
                if connection.poll() and (reason := connection.recv()) is not None:
                    return UnityGymError(f"{name} failed: {reason}")
            process.join(0.1)
            if process.exitcode:
                if not self._have_started:
                    return UnityGymError(
                        f"{name} ended with exit code {process.exitcode} before it had started. {SCRIPT_HINT}"
                    )
                return UnityGymError(
                    f"{name} ended with exit code {process.exitcode}. A run of unity-learn is saved until then: "
                    "continue it with --resume"
                )
        return UnityGymError(f"the processes of the learners have lost their connection: {error}")

    def close(self) -> None:
        """End the processes, also after Ctrl-C during the shutdown."""
        atexit.unregister(self.close)
        for connection in self._connections:
            connection.close()
        try:
            for process in self._processes:
                process.join(_END_TIMEOUT)
        finally:
            for process in self._processes:
                process.kill()
                process.join()


def _replicate(connection: Connection, rank: int, size: int, port: int, device: str, threads: int) -> None:
    """Run the process of a replica: load its state, and compute each update that is sent, until the connection ends."""
    leave_end_to_parent()
    torch.set_num_threads(threads)
    try:
        connection.send(None)  # it runs, and takes its state
        kind, content, further = pickle.loads(connection.recv_bytes())
        model: Replicated = kind.load(io.BytesIO(content), device=device)
        model.set_logger(Logger(None, []))
        model.start(model.policy.adapter.spec)
        for name, value in further.items():
            setattr(model, name, value.to(device) if isinstance(value, torch.Tensor) else value)
        connection.send(None)
        model.share = Share(rank, size, port)
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                return
            update, states = pickle.loads(message)
            try:
                _set_random_states(states)
                model.train_as_replica(update)
            except RuntimeError as error:
                if "gloo" in str(error).lower() or "connection" in str(error).lower():
                    return  # another process has ended, which the training process reports
                raise
    except Exception as error:
        with suppress(OSError):
            reason = str(error) if isinstance(error, UnityGymError) else traceback.format_exc()
            connection.send(reason)


def _random_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def _set_random_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
