"""The remote side of a `sb3_ext.placement.RemoteSampler`: a sampler that responds to calls."""

from __future__ import annotations

import pickle
import queue
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from sb3_ext.collector import Collector
from sb3_ext.console import LOG
from sb3_ext.restarts import RestartPolicy
from sb3_ext.sampler import Sampler
from unity_gym.errors import UnityGymError
from unity_gym.pool import PlayerPool

_STOPPABLE = ("collect", "set_team", "set_parameters")  # methods that "stop" ends


class Mailbox:
    """Connection through which a served sampler receives calls and sends responses.

    :param calls: Queue of calls, each with method and arguments; None if no further calls are possible.
    :param send: Function that sends the response to a call.
    """

    def __init__(
        self, calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None], send: Callable[[Any], None]
    ) -> None:
        self._calls, self._send = calls, send

    def send(self, answer: Any) -> None:
        """Send the response to a call.

        :raises EOFError: If the learner has ended.
        """
        try:
            self._send(answer)
        except OSError as error:
            raise EOFError from error

    def recv(self) -> tuple[str, tuple[Any, ...]]:
        """Wait for the next call, and return method and arguments.

        :raises EOFError: If no further calls are possible.
        """
        call = self._calls.get()
        if call is None:
            raise EOFError
        return call

    def poll(self) -> bool:
        """Return whether a call has arrived."""
        return not self._calls.empty()


@dataclass(frozen=True)
class SamplerArguments:
    """Arguments of a served sampler, which can be pickled.

    :param launch: Function that launches the players, as a context.
    :param first_player: Number of its first player among those of all samplers.
    :param restarts: Restart limits per player; see `RestartPolicy`.
    :param is_asynchronous: Whether agents act asynchronously, as in `Sampler`.
    """

    launch: Callable[[], AbstractContextManager[PlayerPool]]
    first_player: int
    restarts: dict[str, Any]
    is_asynchronous: bool = False


class _ServedSampler(Sampler):
    """Sampler with the methods that `RemoteSampler` calls."""

    def assign(self, name: str, state: bytes, number: int, deterministic: bool) -> None:  # type: ignore[override]
        """Build the collector and the opponents from plain data."""
        policy, collection, generator_state, version, self_play = pickle.loads(state)
        policy.set_training_mode(False)
        generator = torch.Generator()
        generator.set_state(generator_state)
        collector = Collector(policy, collection, generator)
        collector.version = version
        opponents = None if self_play is None else self_play.replica(policy, number)
        super().assign(name, collector, opponents, deterministic)


def serve(mailbox: Mailbox, arguments: SamplerArguments) -> None:
    """Launch the players, and respond to calls until one is "close" or no further calls are possible.

    The first response, None, reports that the players are launched. An exception is the last response.
    """
    torch.set_num_threads(1)
    try:
        with arguments.launch() as pool, suppress(EOFError):
            mailbox.send(None)
            restarts = RestartPolicy(**arguments.restarts)
            sampler = _ServedSampler(pool, restarts, arguments.first_player, arguments.is_asynchronous, LOG.warning)
            for method, given in _calls(mailbox):
                if method == "load":
                    sampler.load(*given)
                    continue
                options = {"proceed": lambda: _follow(mailbox, sampler)} if method in _STOPPABLE else {}
                mailbox.send(getattr(sampler, method)(*given, **options))
    except Exception as error:  # of any class, to be raised by the learner
        with suppress(EOFError):
            mailbox.send(_sendable(error))


def _calls(mailbox: Mailbox) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield method and arguments of each call; "load" has no response."""
    while (call := mailbox.recv())[0] != "close":
        if call[0] != "stop":  # for a call that has finished already
            yield call


def _follow(mailbox: Mailbox, sampler: Sampler) -> bool:
    """Load weights that have arrived; return False if the learner requests a stop."""
    while mailbox.poll():
        method, given = mailbox.recv()
        if method != "load":
            return False
        sampler.load(*given)
    return True


def _sendable(error: Exception) -> Exception:
    if isinstance(error, UnityGymError):
        error.__traceback__ = None
        return error
    return UnityGymError("".join(traceback.format_exception(error)))
