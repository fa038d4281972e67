"""Repetition of an update on an NVIDIA GPU with a single launch.

An update of a small network consists of hundreds of small computations, and starting them one by one takes several
times as long as the computations. A CUDA graph starts all of them at once:
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

Tensors = Sequence[torch.Tensor]
Results = dict[str, torch.Tensor]
T = TypeVar("T")

_CONSTANT = ("torch", "stable_baselines3", "sb3_ext")
"""Packages whose networks compute the same on each call; those of a user may read the time, count or print."""
_CALLS_BEFORE = 2  # which load the GPU's code and create the state of the optimizer
_MOST_KINDS = 4  # of graphs, each of which has memory of its own


class Repeated:
    """Updates of networks, recorded on an NVIDIA GPU and then repeated; elsewhere, computed as they are.

    Updates are recorded if all networks are from torch, Stable-Baselines3 or this package and the optimizer is Adam
    with `fused=True`.

    :param network: Networks of the updates.
    :param optimizer: Optimizer of the updates, which keep to its present learning rate.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._is_constant = all(type(part).__module__.split(".")[0] in _CONSTANT for part in network.modules())
        self._is_constant &= isinstance(optimizer, torch.optim.Adam) and bool(optimizer.defaults["fused"])
        self._has_failed = False
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _Graph] = {}

    @property
    def is_active(self) -> bool:
        """Whether updates are recorded."""
        device = self._optimizer.param_groups[0]["params"][0].device
        return self._is_constant and not self._has_failed and bool(device.type == "cuda")

    def __call__(self, compute: Callable[[Tensors], Results], inputs: Tensors, *variant: Hashable) -> Results:
        """Return the results of an update, as new tensors.

        :param compute: Update, which must not wait for the GPU or draw random numbers. Of all that it reads, only the
            inputs, the networks, the optimizer and tensors that are changed in place may change from call to call.
        :param inputs: Inputs. Each combination of shapes is recorded separately.
        :param variant: Other values that the update depends on, each combination of which is recorded separately.
        """
        if not self.is_active:
            return compute(inputs)
        kind = (variant, *((tensor.shape, tensor.dtype) for tensor in inputs))
        if kind not in self._calls and len(self._calls) >= _MOST_KINDS:
            return compute(inputs)
        self._calls[kind] += 1
        if self._calls[kind] <= _CALLS_BEFORE:
            return compute(inputs)
        graph = self._graphs.get(kind)
        if graph is None or graph.is_outdated:
            try:
                graph = self._graphs[kind] = _Graph(compute, inputs, self._optimizer)
            except RuntimeError as error:
                warnings.warn(f"updates take longer, as they could not be recorded on the GPU: {error}", stacklevel=2)
                graph, self._has_failed = None, True
                self._graphs.clear()
        return compute(inputs) if graph is None else graph.repeat(inputs)


class _Graph:
    """Recorded update.

    :param compute: Update; see `Repeated`.
    :param inputs: Inputs, whose values do not matter.
    :param optimizer: Optimizer of the update.
    :raises RuntimeError: If the update cannot be recorded.
    """

    def __init__(
        self, compute: Callable[[Tensors], Results], inputs: Tensors, optimizer: torch.optim.Optimizer
    ) -> None:
        self._optimizer, self._state = optimizer, optimizer.state
        self._inputs = [tensor.clone() for tensor in inputs]
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._rate_tensors = [torch.tensor(rate, device=inputs[0].device) for rate in self._rates]
        with _capturable(optimizer, self._rate_tensors), torch.cuda.device(inputs[0].device):
            self._graph, self._results = _record(lambda: _join(compute(self._inputs)))

    @property
    def is_outdated(self) -> bool:
        """Whether the optimizer has loaded another state."""
        return self._optimizer.state is not self._state

    def repeat(self, inputs: Tensors) -> Results:
        """Return the results of the update with these inputs."""
        torch._foreach_copy_(self._inputs, list(inputs))
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        if rates != self._rates:
            self._rates = rates
            for tensor, rate in zip(self._rate_tensors, rates, strict=True):
                tensor.fill_(rate)
        self._graph.replay()
        numbers, shapes = self._results
        parts = torch.split(numbers.clone(), [shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _join(results: Results) -> tuple[torch.Tensor, dict[str, torch.Size]]:
    """Return all numbers as one tensor, which a single copy keeps, and their shapes."""
    numbers = torch.cat([tensor.detach().reshape(-1) for tensor in results.values()])
    return numbers, {name: tensor.shape for name, tensor in results.items()}


def _record(compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a computation, and return its graph and results.

    :raises RuntimeError: If it cannot be recorded.
    """
    try:
        return _capture(compute)
    except RuntimeError:
        # After a failure, torch's generator draws no numbers until the end of the next graph.
        _capture(lambda: torch.zeros(1, device="cuda"))
        raise


def _capture(compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    present = torch.cuda.stream(torch.cuda.current_stream())  # to which torch does not return after a failure
    # Another thread may use the GPU meanwhile.
    with present, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        results = compute()
    return graph, results


@contextmanager
def _capturable(optimizer: torch.optim.Optimizer, rates: list[torch.Tensor]) -> Iterator[None]:
    """Let the optimizer read its learning rates from tensors, as a graph contains no changing numbers."""
    before = [{name: group[name] for name in ("lr", "capturable")} for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group.update(lr=rate, capturable=True)
    try:
        yield
    finally:
        for group, options in zip(optimizer.param_groups, before, strict=True):
            group.update(options)
