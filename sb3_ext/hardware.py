"""Device and number of threads of torch.

The number of threads on a processor depends on the size of an update: the weights of the policy, actor and critics
together, times the rows of a minibatch.

| weights × rows | threads |
|---|---|
| below 25 million | 1 |
| below 75 million | 2 |
| below 120 million | 4 |
| from 120 million | 8 |

Further threads make small updates slower. On 16 cores, the update of a minibatch takes, with 1, 2, 4 and 8 threads:

| | million | 1 | 2 | 4 | 8 |
|---|---|---|---|---|---|
| 3DBall | 2.3 | 1.4 ms | 1.4 ms | 1.4 ms | 1.3 ms |
| Hallway | 21 | 4.0 ms | 4.5 ms | 4.5 ms | 5.0 ms |
| PushBlock | 31 | 2.9 ms | 2.3 ms | 2.0 ms | 2.5 ms |
| Pyramids | 90 | 5.5 ms | 3.7 ms | 2.8 ms | 3.1 ms |
| Sorter | 127 | 165 ms | 105 ms | 64 ms | 43 ms |
| GridWorld | 153 | 22 ms | 13 ms | 8.5 ms | 7.6 ms |
| CooperativePushBlock | 494 | 103 ms | 63 ms | 41 ms | 26 ms |

`python tests/benchmarks/devices.py --devices cpu:1 cpu:2 cpu:4 cpu:8` measures them. There are never more threads than
physical cores. Updates that run while agents act leave half of the cores to them and their players, and those that run
while reward signals learn leave one core. Once all agents wait for the update, it uses their cores, too.

Threads of torch wait for each other without leaving their cores, on Linux for 300,000 attempts. If another process
takes one of these cores, such an update takes many times as long with two threads as with one. So this package sets
GOMP_SPINCOUNT to 5,000 attempts, unless the environment sets it or OMP_WAIT_POLICY, or has imported torch before.
Timesteps per second of
`python tests/benchmarks/throughput.py --modes synchronous --rows ppo/PushBlock ppo/Pyramids`, two rounds alone and one
with other work, with GOMP_SPINCOUNT=300000, GOMP_SPINCOUNT=5000 and OMP_NUM_THREADS=1, when the curiosity of Pyramids
still learned after the policy:

| | 300,000 | 5,000 | one thread |
|---|---|---|---|
| PushBlock, alone | 5,976 to 7,045 | 7,614 to 7,749 | 7,319 to 7,415 |
| PushBlock, with other work on both cores | 288 | 1,482 | 3,443 |
| Pyramids, alone | 3,077 to 3,140 | 2,753 to 2,766 | 2,409 to 2,487 |
| Pyramids, with other work on both cores | 82 | 804 | 1,017 |
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from unity_gym.errors import UnityGymError
from unity_gym.machine import usable_cores

_THREADS = ((25_000_000, 1), (75_000_000, 2), (120_000_000, 4), (float("inf"), 8))
"""Exclusive upper bound of weights times rows for a number of threads, and that number."""
_OMP_PAUSE_SOFT = 1  # of the OpenMP standard
_current = torch.get_num_threads()
_PHYSICAL_CORES = _current  # torch's default is a thread for each


def require_device(name: str | None) -> None:
    """Check that torch supports a device.

    :param name: Device, such as "cpu", "cuda", "cuda:1" or "mps", or several with commas; None for the default.
    :raises UnityGymError: If this machine, or its installation of torch, does not have it.
    """
    for part in () if name is None else name.split(","):
        _require_one_device(part)


def _require_one_device(name: str) -> None:
    kind, _, number = name.partition(":")
    count = _count(kind)
    if int(number or 0) < count:
        return
    available = [kind for kind in ("cpu", "cuda", "mps", "xpu") if _count(kind)]
    raise UnityGymError(
        f"torch {torch.__version__} has {count or 'no'} {kind} device{'' if count == 1 else 's'} on this machine, got "
        f"the device {name!r}: give one of {available}, or install a torch that is built for it"
    )


def _count(kind: str) -> int:
    """Return the number of devices of a kind."""
    if kind in ("cpu", "mps"):
        return int(kind == "cpu" or torch.backends.mps.is_available())
    backend = getattr(torch, kind, None)
    return 0 if backend is None else int(backend.device_count())


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return a tensor of the host on a device, without waiting for the work that a GPU has not done yet."""
    return tensor.to(device, non_blocking=torch.device(device).type == "cuda")


def update_size(policy: nn.Module, batch_size: int) -> int:
    """Return the number of weights of a policy times the rows of a minibatch."""
    return batch_size * sum(parameter.numel() for parameter in policy.parameters())


def threads_for(size: int, reserved: int = 0) -> int:
    """Return the number of threads for updates of a size, at most one per physical core; see `update_size`.

    :param reserved: Number of cores for other work, of which at least one is left to the updates.
    """
    threads = next(threads for limit, threads in _THREADS if size < limit)
    return min(threads, _PHYSICAL_CORES, max(usable_cores() - reserved, 1))


def use_threads(sizes: Iterable[int], reserved: int = 0) -> None:
    """Set the number of threads of torch for the largest of several updates, unless the user has chosen one.

    :param sizes: Size of the update of each policy; see `update_size`.
    :param reserved: Number of cores for other work during the updates.
    """
    global _current
    if _may_choose_threads():
        _current = max(threads_for(size, reserved) for size in sizes)
        torch.set_num_threads(_current)


def use_threads_here(size: int, reserved: int = 0) -> None:
    """Set the number of threads of torch for an update in this thread alone, unless the user has chosen one.

    :param size: Size of the update; see `update_size`.
    :param reserved: Number of cores for other work during the rest of the update.
    """
    if _may_choose_threads():
        torch.set_num_threads(threads_for(size, reserved))


def cores_for_acting() -> int:
    """Return the number of cores that updates leave to agents that act meanwhile: half of them, at least one."""
    return max(usable_cores() // 2, 1)


def has_spare_core() -> bool:
    """Return whether a thread next to an update may take a core of its own: not if the user has chosen the threads."""
    return usable_cores() > 1 and _may_choose_threads()


def one_thread(name: str = "") -> ThreadPoolExecutor:
    """Return an executor of one thread, in which torch has as many threads of its own as in this one.

    Each thread has its own number of OpenMP threads, of which MKL takes all cores by default.

    :param name: Start of the thread's name.
    """
    _end_idle_threads()
    return ThreadPoolExecutor(1, name, torch.set_num_threads, (torch.get_num_threads(),))


def _end_idle_threads() -> None:
    """End the threads that OpenMP keeps for later work of this thread.

    GNU's OpenMP counts them as busy. If the cores do not suffice for all threads of a process, each wait of a team puts
    its threads to sleep, and an update with two threads takes longer than with one.
    """
    if sys.platform == "linux":
        pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
        if pause is not None:
            pause(_OMP_PAUSE_SOFT)


def _may_choose_threads() -> bool:
    """Return whether the user has left the number of threads of torch to this package.

    A user chooses it with the environment variable OMP_NUM_THREADS, or by calling `torch.set_num_threads` after
    importing this package.
    """
    return "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() == _current
