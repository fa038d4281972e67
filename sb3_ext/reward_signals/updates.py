"""Updates of reward signals, which do not depend on those of the policy and can run at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import torch
from typing_extensions import Self

from sb3_ext.hardware import one_thread
from sb3_ext.reward_signals.signal import RewardSignal
from sb3_ext.rollout import Decisions


class SignalUpdates:
    """Updates of reward signals from minibatches, in their order; a context that ends after the last of them.

    An exception in the context cancels the updates that have not started.

    :param signals: Reward signals.
    :param log: Logger values per name, to which those of each update are appended.
    :param in_thread: Whether the updates run in a thread of their own, at the same time as those of the policy.
    """

    def __init__(self, signals: Iterable[RewardSignal], log: dict[str, list[Any]], in_thread: bool) -> None:
        self._signals = [signal for signal in signals if signal.learns]
        self._log = log
        self._executor = one_thread("signals") if in_thread and self._signals else None
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            if self._executor is not None:
                self._executor.shutdown(cancel_futures=True)

    def add(self, minibatch: Decisions) -> None:
        """Update all signals from a minibatch; in a thread, after those of the minibatches before."""
        if self._executor is None:
            self._update(minibatch)
        else:
            self._running.append(self._executor.submit(self._update, minibatch))

    def finish(self) -> None:
        """Wait for the updates so far, and raise the exception of the first that failed."""
        for update in self._running:
            update.result()
        self._running.clear()

    def _update(self, minibatch: Decisions) -> None:
        for signal in self._signals:
            for name, value in signal.update(minibatch).items():
                self._log[f"{signal.name}_{name}"].append(torch.as_tensor(value))
