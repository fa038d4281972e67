"""Samplers in the training process or elsewhere, connected by a `Channel`.

`RemoteSampler` calls a sampler that runs elsewhere, and restarts it after a failure. Its `Place` defines where that is:
`sb3_ext.processes` starts processes on this machine, and `sb3_ext.ray_cluster` actors on the nodes of a Ray cluster.
They run `sb3_ext.served_sampler`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

import torch

from sb3_ext.algorithm import acting_seed
from sb3_ext.curriculum import ParameterValue
from sb3_ext.experience import Trajectories
from sb3_ext.learner import Learner
from sb3_ext.restarts import RestartPolicy
from sb3_ext.sampler import Request, Sampler, Samples
from sb3_ext.served_sampler import SamplerArguments
from unity_gym.errors import PlayerError
from unity_gym.specs import Array, BehaviorSpec

_POLL = 0.002  # seconds between checks for updates while samplers work


class PlacedSampler(Protocol):
    """Interface of a `Sampler`, wherever it runs. `start` and `result` together are `Sampler.collect`."""

    is_collecting: bool
    """Whether samples are available or being collected, which `result` has not taken."""

    def appeared(self) -> dict[str, BehaviorSpec]:
        """See `Sampler.appeared`."""

    def assign(self, learner: Learner) -> None:
        """Set the policy of a learner's behavior, and let its agents act."""

    def start_matches(self) -> None:
        """See `Sampler.start_matches`."""

    def set_team(self, team: str, reset: bool = False, proceed: Callable[[], bool] = lambda: True) -> None:
        """See `Sampler.set_team`."""

    def set_parameters(
        self, values: Sequence[ParameterValue], reset: bool = False, proceed: Callable[[], bool] = lambda: True
    ) -> None:
        """See `Sampler.set_parameters`."""

    def publish(self, learner: Learner) -> None:
        """Send the latest weights of a learner to its agents."""

    def publish_snapshot(self, learner: Learner) -> None:
        """Add the latest snapshot of a learner as an opponent."""

    def peek(self, behavior: str) -> Trajectories | None:
        """See `Sampler.peek`."""

    def start(self, request: Request) -> None:
        """Start collecting."""

    def stop(self) -> None:
        """Stop collecting; `result` returns the samples so far."""

    def result(self, proceed: Callable[[], bool]) -> Samples:
        """Wait for the samples; `proceed` is called during the wait, which ends if it returns False."""


class LocalSampler:
    """Sampler in the training process, whose models act directly.

    :param sampler: The sampler.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._request = Request({}, {})
        self.is_collecting = False
        self.appeared, self.start_matches = sampler.appeared, sampler.start_matches
        self.set_team, self.set_parameters, self.peek = sampler.set_team, sampler.set_parameters, sampler.peek

    @property
    def decisions(self) -> Mapping[str, int]:
        """Number of decisions collected so far, per behavior."""
        return self._sampler.decisions

    def assign(self, learner: Learner) -> None:
        """See `PlacedSampler`."""
        self._sampler.assign(learner.name, learner.model.collector, learner.self_play, learner.deterministic)

    def publish(self, learner: Learner) -> None:
        """See `PlacedSampler`; the weights are those of the model."""

    def publish_snapshot(self, learner: Learner) -> None:
        """See `PlacedSampler`; the opponents are those of the learner."""

    def start(self, request: Request) -> None:
        """See `PlacedSampler`."""
        self._request, self.is_collecting = request, True

    def stop(self) -> None:
        """See `PlacedSampler`; this sampler collects during `result`."""

    def result(self, proceed: Callable[[], bool]) -> Samples:
        """See `PlacedSampler`."""
        self.is_collecting = False
        samples = self._sampler.collect(self._request, proceed)
        self._sampler.decisions = {}
        samples.matches = []  # the ratings of the learners are updated already
        return samples


class SamplerLostError(PlayerError):
    """Error of a sampler elsewhere that has ended unexpectedly, with its players."""


class Channel(Protocol):
    """Connection to a sampler elsewhere. Messages arrive in the order in which they are sent."""

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of the sampler; `receive` returns the result."""

    def notify(self, method: str, *arguments: Any) -> None:
        """Call a method of the sampler without a result, also during another call."""

    def poll(self, seconds: float) -> bool:
        """Wait for the next response at most for this time; return whether it has arrived."""

    def receive(self) -> Any:
        """Wait for the next response and return it; an exception is returned, too. The first one reports the start.

        :raises SamplerLostError: If the sampler has ended.
        """

    def end(self) -> None:
        """Start the shutdown of the sampler and its players."""

    def close(self) -> None:
        """Shut the sampler and its players down, and wait for the end."""


class Place:
    """Place in which samplers are started."""

    build: str | None = None
    """`file_name` of the players in this place, if it differs from that of the settings."""
    repeats_launches = False
    """Whether a sampler that is lost during its launch is started again: if it probably does not end again."""

    def __init__(self) -> None:
        self._weights: dict[str, tuple[int, Any]] = {}

    def open(self, number: int, arguments: SamplerArguments) -> Channel:
        """Start a sampler; see `sb3_ext.served_sampler.serve`.

        :param number: Number of the sampler.
        """
        raise NotImplementedError

    def wait(self, channels: Sequence[Any], seconds: float) -> list[int]:
        """Wait until a response has arrived, at most for this time.

        :param channels: Channels that `open` returned.
        :return: Indices of the channels whose responses have arrived.
        """
        raise NotImplementedError

    def share(self, weights: Mapping[str, Array]) -> Any:
        """Return the object that represents these weights in messages to the samplers."""
        return weights

    def weights(self, learner: Learner) -> Any:
        """Return that object for the latest weights of a learner; it is created once per version."""
        name, version = learner.name, learner.model.version
        if name not in self._weights or self._weights[name][0] != version:
            self._weights[name] = version, self.share(learner.model.acting_policy.weights())
        return self._weights[name][1]


class RemoteSampler:
    """Sampler that runs elsewhere, and ends with this process.

    A sampler that ends unexpectedly is started again, within the restart limits of each of its players; its collected
    experience is lost.

    :param place: Place in which it runs.
    :param arguments: Arguments of the sampler.
    :param number: Number of the sampler.
    :param players: Number of its players.
    :param on_restart: Function that receives a log line about a restart.
    """

    def __init__(
        self,
        place: Place,
        arguments: SamplerArguments,
        number: int,
        players: int,
        on_restart: Callable[[str], None] = print,
    ) -> None:
        self._place, self._arguments, self._number = place, arguments, number
        self._players = range(arguments.first_player, arguments.first_player + players)
        self._restarts, self._on_restart = RestartPolicy(**arguments.restarts), on_restart
        self._learners: list[Learner] = []
        self._is_restored = True  # has the learners' policies, also after a restart
        self._team = ""
        self._parameters: dict[str, ParameterValue] = {}
        self.is_collecting = False
        self._channel = place.open(number, arguments)

    def wait(self, proceed: Callable[[], bool] = lambda: True) -> bool:
        """Wait until the players are launched.

        :param proceed: Function that is called during the wait, which ends if it returns False.
        :return: Whether the players are launched.
        :raises UnityGymError: If they cannot be launched.
        """
        while not self._channel.poll(_POLL):
            if not proceed():
                return False
        self._receive()
        return True

    def launch(self) -> None:
        """Wait until the players are launched; see `Place.repeats_launches`.

        :raises UnityGymError: If they cannot be launched.
        """
        try:
            self.wait()
        except SamplerLostError as error:
            if not self._place.repeats_launches:
                raise
            self._recover(error)

    def _call(self, method: str, *arguments: Any, proceed: Callable[[], bool] | None = None) -> Any:
        self._channel.call(method, *arguments)
        return self._receive(proceed)

    def _change(self, method: str, *arguments: Any, proceed: Callable[[], bool] | None = None) -> None:
        """Change the state of the sampler. If it is lost, `result` restores its state from this object's."""
        with suppress(SamplerLostError):
            self._call(method, *arguments, proceed=proceed)

    def _receive(self, proceed: Callable[[], bool] | None = None) -> Any:
        """Return the result of the last call, which `proceed` may stop."""
        stopped = False
        while proceed is not None and not self._channel.poll(_POLL):
            if not proceed() and not stopped:
                self._channel.notify("stop")
                stopped = True
        try:
            answer = self._channel.receive()
        finally:
            self.is_collecting = False
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def appeared(self) -> dict[str, BehaviorSpec]:
        """See `PlacedSampler`."""
        try:
            found: dict[str, BehaviorSpec] = self._call("appeared")
        except SamplerLostError as error:
            return self._recover(error).appeared
        return found

    def assign(self, learner: Learner) -> None:
        """See `PlacedSampler`."""
        self._learners.append(learner)
        self._change("assign", *self._assignment(learner))

    def _assignment(self, learner: Learner) -> tuple[Any, ...]:
        policy = learner.model.acting_policy.acting_copy().to("cpu")
        generator, here = torch.Generator(), learner.model.collector.generator
        if here is not None and self._number == 0 and here.device.type == "cpu" and self._is_restored:
            generator.set_state(here.get_state())
        else:
            generator.manual_seed(acting_seed(learner.name, learner.model.num_timesteps, self._number))
        state = (policy, learner.model.collection, generator.get_state(), learner.model.version, learner.self_play)
        # multiprocessing would share the memory of pickled tensors; these are copies.
        return learner.name, pickle.dumps(state), self._number, learner.deterministic

    def start_matches(self) -> None:
        """See `PlacedSampler`."""
        self._change("start_matches")

    def set_team(self, team: str, reset: bool = False, proceed: Callable[[], bool] = lambda: True) -> None:
        """See `PlacedSampler`."""
        self._team = team
        self._change("set_team", team, reset, proceed=proceed)

    def set_parameters(
        self, values: Sequence[ParameterValue], reset: bool = False, proceed: Callable[[], bool] = lambda: True
    ) -> None:
        """See `PlacedSampler`."""
        self._parameters |= {value.name: value for value in values}
        self._change("set_parameters", list(values), reset, proceed=proceed)

    def publish(self, learner: Learner) -> None:
        """See `PlacedSampler`; weights are sent also while the sampler collects.

        A sampler that is being restarted receives the latest ones with the policies.
        """
        if self._is_restored:
            self._channel.notify("load", learner.name, self._place.weights(learner), learner.model.version)

    def publish_snapshot(self, learner: Learner) -> None:
        """See `PlacedSampler`."""
        assert learner.self_play is not None
        self._change("add_snapshot", learner.name, *learner.self_play.newest_snapshot())

    def peek(self, behavior: str) -> Trajectories | None:
        """See `PlacedSampler`; None for a sampler that has ended unexpectedly."""
        try:
            shown: Trajectories | None = self._call("peek", behavior)
        except SamplerLostError:
            return None
        return shown

    def start(self, request: Request) -> None:
        """See `PlacedSampler`."""
        self.is_collecting = True
        self._channel.call("collect", request)

    def stop(self) -> None:
        """See `PlacedSampler`."""
        self._channel.notify("stop")

    def result(self, proceed: Callable[[], bool]) -> Samples:
        """See `PlacedSampler`."""
        try:
            samples: Samples = self._receive(proceed)
        except SamplerLostError as error:
            return self._recover(error, proceed)
        return samples

    def _recover(self, error: PlayerError, proceed: Callable[[], bool] = lambda: True) -> Samples:
        """Start the sampler again, in the state of the other ones, within the limits.

        :return: The behaviors of its agents, some of which may be new; nothing else.
        """
        while True:
            if not all(self._restarts.allows(player) for player in self._players):
                raise error
            self._on_restart(f"{error}; it is launched again")
            self._channel.close()
            self._is_restored = False
            self._channel = self._place.open(self._number, self._arguments)
            try:
                if self.wait(proceed):
                    return Samples(appeared=self._restore())
                self._channel.close()
                return Samples()
            except PlayerError as again:  # of the sampler, or of a player that has failed to launch
                error = again

    def _restore(self) -> dict[str, BehaviorSpec]:
        appeared: dict[str, BehaviorSpec] = self._call("appeared")
        for learner in self._learners:
            self._call("assign", *self._assignment(learner))
        self._call("set_parameters", list(self._parameters.values()), True)
        if self._team:
            self._call("set_team", self._team, False)
        self._call("start_matches")
        self._is_restored = True
        return appeared

    @staticmethod
    def wait_for_any(samplers: Sequence[RemoteSampler], seconds: float) -> list[int]:
        """Wait until the result of a sampler has arrived, at most for this time.

        :param samplers: At least one, all in the same place.
        :return: Indices of the samplers whose results have arrived.
        """
        return samplers[0]._place.wait([sampler._channel for sampler in samplers], seconds)

    def end(self) -> None:
        """Start the shutdown of the sampler and its players."""
        self._channel.end()

    def close(self) -> None:
        """Wait until the sampler and its players have ended."""
        self._channel.close()


@contextmanager
def started(
    place: Place,
    arguments: Sequence[SamplerArguments],
    players: Sequence[int],
    on_restart: Callable[[str], None] = print,
) -> Iterator[list[RemoteSampler]]:
    """Start samplers, wait until their players are launched, and end them.

    :param place: Place of the samplers.
    :param arguments: Arguments of each sampler.
    :param players: Number of players of each sampler.
    :param on_restart: Function that receives a log line about a restart.
    :raises UnityGymError: If players cannot be launched.
    """
    with ExitStack() as stack:
        samplers: list[RemoteSampler] = []
        for number, (given, count) in enumerate(zip(arguments, players, strict=True)):
            samplers.append(RemoteSampler(place, given, number, count, on_restart))
            stack.callback(samplers[-1].close)
        stack.callback(_end_all, samplers)
        for sampler in samplers:
            sampler.launch()
        yield samplers


def _end_all(samplers: Sequence[RemoteSampler]) -> None:
    """End all samplers concurrently, and wait for each."""
    for sampler in samplers:
        sampler.end()


def wait_for_any(samplers: Sequence[PlacedSampler], seconds: float = _POLL) -> list[int]:
    """Wait until the result of a sampler has arrived, at most for this time.

    :param samplers: Samplers after `start`, at least one.
    :return: Indices of the samplers whose results have arrived; in this process all, as they collect in `result`.
    """
    remote = [sampler for sampler in samplers if isinstance(sampler, RemoteSampler)]
    return RemoteSampler.wait_for_any(remote, seconds) if len(remote) == len(samplers) else [*range(len(samplers))]
