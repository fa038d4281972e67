"""`UnityEnvironment`: one player, step by step, with the names and semantics of Unity's Python API."""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

import numpy as np

from unity_gym.connection import PlayerConnection, wait
from unity_gym.errors import (
    ActionError,
    InvalidValueError,
    NotReadyError,
    PlayerError,
    PlayerQuitError,
    PlayerTimeoutError,
    ProtocolError,
    UnityGymError,
)
from unity_gym.peer import Peer
from unity_gym.player import EMBEDDED, Player
from unity_gym.side_channels import ReseedingChannel, SideChannel, SideChannels
from unity_gym.side_channels.channel import channel_list
from unity_gym.specs import ActionTuple, BehaviorSpec, DecisionSteps, TerminalSteps
from unity_gym.wire import encode
from unity_gym.wire.decode import UNREADABLE, BehaviorDecoder, action_spec, parse

_GRACE = 5.0  # seconds that a player has to quit by itself after the quit message
_COMPILATION = 600.0  # seconds that an embedded scene may take to compile its loops before it connects
_NOTICE = 5.0  # seconds after which a notice names the event that is waited for
_LISTENING = "Listening on port %d. Start training by pressing the Play button in the Unity Editor."  # Unity's words
_COMPILING = "%s is still starting: a first start compiles its loops, about a minute; a busy machine takes longer"
_log = logging.getLogger(__name__)
_MAX_REWARD = 1e18  # beyond, float32 sums and squares of rewards overflow


class UnityEnvironment:
    """Interface to the agents of a Unity player that is launched, or of an Editor that is waited for.

    A script written for `mlagents_envs.environment.UnityEnvironment` runs after changing its import. One difference is
    visible: images are C×H×W also from players that send H×W×C.

    :param file_name: Build to launch; "embedded:<Scene>" for a scene of the embedded player; None waits for the Play
        button of the Editor (port 5004).
    :param worker_id: Number that is added to `base_port`, and also numbers the log file.
    :param base_port: Port to listen on; by default 5004 for the Editor and a free one for a launched player.
    :param seed: Seed of the player's random numbers, not negative. One from 2**31 on is hashed to an int32.
    :param no_graphics: Whether to launch without rendering; cameras then send blank images.
    :param no_graphics_monitor: Whether to render in worker 0 only.
    :param timeout_wait: Longest time in seconds that a call waits for the player, however many messages it takes. A
        call that launches the player has as much time again. The compilation of an embedded scene, at its first start,
        does not count.
    :param additional_args: Additional command-line arguments of the player.
    :param side_channels: Channels to register in addition to the reseeding one.
    :param log_folder: Folder of the player's log; by default the log is temporary.
    :param num_areas: Number of training areas that a scene with an area replicator builds. With 1 the embedded player
        has its scene's own number; `additional_args=["--areas", "1"]` asks it for one.
    :param visual_dtype: Dtype of image observations: "float32" (0 to 1) or "uint8" (0 to 255).
    :param uncompressed_layout: Layout of uncompressed images in memory: "CHW", "HWC", or "auto". "auto" is the declared
        one, but H×W×C from packages 3.0.0 and 4.0.0, which declare C×H×W and send H×W×C.
    :param environment_variables: Environment variables of the launched process, in addition to those of this one.
    :param trust_peer: Whether to accept any process that connects to the port. By default, on Linux, it must belong to
        the launched player or, for the Editor, to the same user. Set it if a wrapper detaches the player, such
        as docker.
    :raises PlayerError: If the player could not be started or did not connect in time.
    :raises ProtocolError: If the player uses another major version of the protocol.
    """

    API_VERSION = encode.COMMUNICATION_VERSION
    DEFAULT_EDITOR_PORT = 5004
    BASE_ENVIRONMENT_PORT = 5005
    _registry: type[SideChannels] = SideChannels

    def __init__(
        self,
        file_name: str | Path | None = None,
        worker_id: int = 0,
        base_port: int | None = None,
        seed: int = 0,
        no_graphics: bool = False,
        no_graphics_monitor: bool = False,
        timeout_wait: float = 60,
        additional_args: Sequence[str] | None = None,
        side_channels: Sequence[SideChannel] | None = None,
        log_folder: str | Path | None = None,
        num_areas: int = 1,
        *,
        visual_dtype: str = "float32",
        uncompressed_layout: str = "auto",
        environment_variables: Mapping[str, str] | None = None,
        trust_peer: bool = False,
    ) -> None:
        if file_name is None and worker_id != 0:
            raise UnityGymError(
                f"worker_id must be 0 with the Editor, which is one player, got {worker_id}: name a build in file_name"
            )
        if visual_dtype not in ("float32", "uint8"):
            raise InvalidValueError(f"visual_dtype must be 'float32' or 'uint8', got {visual_dtype!r}")
        if uncompressed_layout not in ("auto", "CHW", "HWC"):
            raise InvalidValueError(f"uncompressed_layout must be 'auto', 'CHW' or 'HWC', got {uncompressed_layout!r}")
        if not isinstance(num_areas, (int, np.integer)) or not 1 <= num_areas < 2**31:
            raise InvalidValueError(f"num_areas must be a whole number from 1 to 2147483647, got {num_areas!r}")
        if not isinstance(timeout_wait, (int, float, np.number)) or not timeout_wait > 0:
            raise InvalidValueError(f"timeout_wait must be seconds above 0 (inf for no limit), got {timeout_wait!r}")
        if base_port is not None and not (
            isinstance(base_port, (int, np.integer)) and 1 <= base_port + worker_id <= 65535
        ):
            raise InvalidValueError(
                f"base_port must be a whole number, with worker_id from 1 to 65535, got {base_port!r} + {worker_id}"
            )
        wire_seed(seed)
        self.file_name = None if file_name is None else str(file_name)
        self.seed = seed
        self._worker_id = worker_id
        if base_port is not None:
            self._port = base_port + worker_id
        else:
            self._port = self.DEFAULT_EDITOR_PORT if file_name is None else 0
        self._no_graphics = no_graphics or (no_graphics_monitor and worker_id != 0)
        self._timeout = timeout_wait
        self._arguments = argument_list(additional_args or ())
        self._log_folder = log_folder
        self._num_areas = num_areas
        self._environment_variables = dict(environment_variables or {})
        self._image_options = visual_dtype, uncompressed_layout
        self._reseeding = ReseedingChannel()
        self._side_channels = self._registry([*channel_list(side_channels or ()), self._reseeding])
        self._can_reseed = True
        self._trust_peer = trust_peer
        self._closed_because: str | None = None
        self._connection: PlayerConnection | None = None
        self._player: Player | None = None
        self.launched_at = 0.0
        """The time, as of `time.monotonic()`, at which the player was ready for its first command."""
        self._launch()

    def _launch(self) -> None:
        """Start the player, wait for it and exchange the first messages."""
        self._is_launched = False
        self._decoders: dict[str, BehaviorDecoder] = {}
        self._announced: dict[str, Any] = {}  # the brain parameters of each behavior
        self._encoders: dict[str, encode.ActionEncoder] = {}
        self._specs: dict[str, BehaviorSpec] = {}
        self._steps: dict[str, tuple[DecisionSteps, TerminalSteps]] = {}
        self._actions: dict[str, ActionTuple] = {}
        self._was_reset = False
        self._is_at_start = False  # the state is the one that `seed` leads to, with one RESET and no step
        self._is_unread = False  # a message is being sent, or its reply has not been decoded yet
        self._awaits_state = True  # the reply is one to a command, not to a request for images alone
        self._dispatched: bytes | bytearray = b""  # the message whose side channels were read last
        try:
            connection = self._connection = PlayerConnection(self._port)
            if self.file_name is None:
                # Without logging only warnings are shown.
                level = logging.INFO if _log.isEnabledFor(logging.INFO) else logging.WARNING
                _log.log(level, _LISTENING, connection.port)
            accepts: Callable[[Peer], bool] = Peer.is_same_user
            if self.file_name is not None:
                self._player = Player(
                    self.file_name,
                    connection.port,
                    no_graphics=self._no_graphics,
                    arguments=self._arguments,
                    log_folder=self._log_folder,
                    worker_id=self._worker_id,
                    environment_variables=self._environment_variables,
                )
                # without a reference to the player: the server's threads hold this function
                accepts = partial(Peer.belongs_to, player=self._player.pid)
            connection.listen((lambda _: True) if self._trust_peer else accepts)
            self._deadline = time.monotonic() + self._timeout  # the time until which a call waits for the player
            first = _parse(self._receive_first()).unity_output.rl_initialization_output
            self._check_version(first.communication_version, first.package_version)
            self._package_version = first.package_version
            _log.info(
                "Connected to Unity environment with package version %s and communication version %s",
                first.package_version,
                first.communication_version,
            )
            self._capabilities = first.capabilities
            connection.send(encode.initialization(wire_seed(self.seed), self._num_areas))
            _parse(self._receive())  # empty: the player now waits for its first command
            self._is_launched = True
            self.launched_at = time.monotonic()
            self._deadline = self.launched_at + self._timeout
        except UnityGymError as error:
            self._fail(error)
            raise
        except BaseException as error:
            self._end_player(0.0)  # the next reset() launches it again
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise PlayerError(
                    "the player could not be launched: this process has as many open files as it may. Raise the limit "
                    "(`ulimit -n 4096`; each player takes 7), close environments that are not needed, or launch fewer "
                    "players"
                ) from error
            raise

    def _check_version(self, communication_version: str, package_version: str) -> None:
        own_version = encode.COMMUNICATION_VERSION
        if communication_version.partition(".")[0] != own_version.partition(".")[0]:
            raise ProtocolError(
                f"the player uses communication version {communication_version or 'unknown'} (ML-Agents package "
                f"{package_version or 'unknown'}); this package uses {own_version}: build the player with a package "
                "whose communication version is 1.x (1.0.0 or newer)"
            )

    def _receive_first(self) -> bytes | bytearray:
        """Wait until the player connects; an embedded scene may have to be compiled first.

        :raises PlayerError: If the player ended or did not connect in time.
        """
        if self.file_name is None or not self.file_name.startswith(EMBEDDED):
            return self._receive()
        due = time.monotonic() + _NOTICE

        def check() -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = math.inf
                _log.warning(_COMPILING, self.file_name)
            self._check()

        try:
            assert self._connection is not None
            return self._connection.receive(max(self._timeout, _COMPILATION), check)
        finally:
            self._deadline = time.monotonic() + self._timeout

    def _receive(self) -> bytes | bytearray:
        """Wait for the player's next message.

        :raises PlayerError: If the player ended or did not answer in time.
        """
        assert self._connection is not None
        remaining = self._deadline - time.monotonic()
        return self._connection.receive(max(0.0, min(self._timeout, remaining)), self._check)

    def _check(self) -> None:
        """Raise an error if the launched player has ended; the connection detects the end of an Editor."""
        if self._player is not None:
            self._player.check()

    def _fail(self, error: UnityGymError) -> None:
        """End the player; add its name and the end of its log to the error, if the error lacks them."""
        if error.worker is not None or isinstance(error, NotReadyError):
            return
        error.worker = self._worker_id
        if self.file_name is None:
            error.args = (f"{error}\nplayer: the Unity Editor on port {self._port}; it connects when you press Play",)
        elif self.file_name not in str(error):
            log = "" if self._player is None else f"\nend of its log:\n{self._player.log_tail()}"
            error.args = (f"{error}\nplayer {self._worker_id}: {self.file_name}{log}",)
        self._shut(str(error))

    @property
    def package_version(self) -> str:
        """The version of the ML-Agents package in the player."""
        return str(self._package_version)

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        """The specification of each behavior that has had an agent; empty before the first `reset`."""
        return MappingProxyType(self._specs)

    def reset(self, seed: int | None = None, timeout: float | None = None) -> None:
        """Send RESET: every agent starts a new episode.

        :param seed: Seed with which the scene starts from scratch. The embedded player does so while it runs; another
            build is launched again. The Editor can do neither: it accepts the seed that it was started with, before the
            first step. Where the state is already the one that the seed leads to, nothing is sent.
        :param timeout: Seconds that the call may take; by default `timeout_wait`.
        :raises PlayerError: If no behavior has an agent within the timeout, or the player fails.
        :raises InvalidValueError: If the seed is negative or no integer; the scene does not change.
        :raises UnityGymError: If the Editor cannot use this seed; the scene does not change.
        """
        self._require_open()
        self._deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        if not self._is_launched:  # an earlier reset was interrupted
            self._side_channels.player_restarted()
            self._launch()
        elif self._is_unread:  # an interrupted step left its reply unread
            self._finish_exchange()
        if seed is not None:
            wire_seed(seed)  # raises if it is invalid, before any change
        if seed is None or (seed == self.seed and not self._was_reset):
            self._exchange_reset()
        elif seed == self.seed and self.is_at_start:
            return
        elif self.file_name is None:
            raise UnityGymError(
                f"the Editor cannot be given the seed {seed} while it plays: stop and start Play mode and connect with "
                f"seed={seed}, or name a build in file_name"
            )
        elif not self._reseed(seed):
            self._restart(seed)
        self._is_at_start = seed is not None or not self._was_reset
        self._was_reset = True

    @property
    def is_at_start(self) -> bool:
        """Whether `seed` and one reset led to this state: no step has followed, and no message is queued."""
        return self._is_at_start and not self.has_queued_messages

    @property
    def has_queued_messages(self) -> bool:
        """Whether a message on a side channel waits for the next reset or step."""
        return self._side_channels.has_queued

    def relaunch(self) -> None:
        """End the player, launch it again with the same port and seed, and send RESET; also after it has failed.

        Side channels send their settings to the new player again.

        :raises PlayerError: If the player cannot be started.
        """
        self._restart(self.seed)
        self._is_at_start = self._was_reset = True

    def _reseed(self, seed: int) -> bool:
        """Reseed the running player, and return False if it does not support the channel.

        The messages of the other channels are then those of the player that is launched next.
        """
        if not self._can_reseed:
            return False
        self._reseeding.send(wire_seed(seed))
        self._side_channels.hold(exempt=self._reseeding)
        try:
            self._exchange_reset()
            self._can_reseed = self._reseeding.acknowledged == wire_seed(seed)
        finally:
            if self._can_reseed:
                self._release_messages()
            else:
                self._side_channels.take_back()
        if self._can_reseed:
            self.seed = seed
        return self._can_reseed

    def _release_messages(self) -> None:
        """Pass on the messages of the player that were held.

        :raises ProtocolError: If a side channel cannot read one.
        """
        try:
            self._side_channels.release()
        except UnityGymError as error:
            self._fail(error)
            raise

    def _restart(self, seed: int) -> None:
        self._is_launched = False
        self._end_player(_GRACE if self._closed_because is None else 0.0)
        self._closed_because = None
        self.seed = seed
        self._side_channels.player_restarted()
        self._launch()
        self._exchange_reset()

    def _exchange_reset(self) -> None:
        self._send(encode.reset(self._side_channels.collect()))
        self._finish_exchange()
        while not self._specs:
            self._send(encode.step({}, self._side_channels.collect()))
            self._finish_exchange(
                "the player offers no behavior with an agent in time (it announces "
                f"{sorted(self._announced) or 'no behavior'}): the scene needs an active agent with Behavior "
                "Parameters and a Decision Requester, or a longer timeout_wait"
            )

    @property
    def announced_behaviors(self) -> list[str]:
        """Names of the behaviors that the player has announced, also of those without an agent yet."""
        return list(self._announced)

    def step(self) -> None:
        """Send the actions that were set, the zero action for agents without one, and receive the next state.

        :raises NotReadyError: If it is called before `reset` or after `close`.
        :raises PlayerError: If the player fails.
        """
        self.step_async()
        self.step_wait()

    def step_async(self) -> None:
        """Send the actions: the first half of `step`."""
        self._require_ready()
        encoded = {}
        for name, (decisions, _) in self._steps.items():
            n = len(decisions)
            if n:
                action = self._actions.get(name) or self._specs[name].action_spec.empty_action(n)
                encoded[name] = self._encoders[name].encode(action)
        self._send(encode.step(encoded, self._side_channels.collect()))

    def has_reply(self) -> bool:
        """Return whether `step_wait` would return at once.

        :raises PlayerError: If the player ended or did not answer in time.
        :raises NotReadyError: If the environment is closed.
        """
        self._require_reset()
        assert self._connection is not None
        try:
            return self._connection.poll(self._timeout, self._check)
        except UnityGymError as error:
            self._fail(error)
            raise

    @staticmethod
    def wait_any(environments: Iterable[UnityEnvironment], seconds: float) -> None:
        """Wait until `has_reply` may have changed for one of these environments, or for this time."""
        wait([each._connection for each in environments if each._connection is not None], seconds)

    def step_wait(self) -> None:
        """Receive the next state: the second half of `step`."""
        self._require_reset()
        self._deadline = time.monotonic() + self._timeout
        self._finish_exchange()

    def time_out(self) -> NoReturn:
        """Close the player, which has not answered in the time that its caller had for several exchanges.

        :raises PlayerTimeoutError: Always.
        """
        error = PlayerTimeoutError(
            f"the player does not answer, and the {self._timeout:g} s of this call are over: if it needs longer, raise "
            "timeout_wait; otherwise look for an error in its log"
        )
        self._fail(error)
        raise error

    def _send(self, message: bytes) -> None:
        assert self._connection is not None
        self._is_at_start = False
        self._awaits_state = True
        self._is_unread = True  # before the message is sent, so that any interruption is noticed
        self._connection.send(message)
        self._side_channels.clear_collected()
        self._actions = {}

    def _finish_exchange(self, lateness: str | None = None) -> None:
        """Receive one message and decode it.

        :param lateness: Message of the error after the timeout; by default that the player sent nothing.
        """
        try:
            if lateness is not None and time.monotonic() >= self._deadline:
                raise PlayerTimeoutError(lateness)
            self._read(self._receive())
        except UnityGymError as error:
            if lateness is not None and isinstance(error, PlayerTimeoutError):
                error.args = (lateness,)
            self._fail(error)
            raise
        except UNREADABLE as cause:
            unreadable = ProtocolError(f"the player's message cannot be read: {type(cause).__name__}: {cause}")
            self._fail(unreadable)
            raise unreadable from cause
        self._is_unread = False

    def _read(self, data: bytes | bytearray) -> None:
        """Decode one message. An interrupted call can be repeated.

        :raises PlayerQuitError: If the player reports that it quits.
        :raises ProtocolError: If the message is broken.
        """
        output = _parse(data).unity_output
        if output.HasField("rl_initialization_output"):
            for parameters in output.rl_initialization_output.brain_parameters:
                self._announce(parameters)
        if output.rl_output.side_channel and self._dispatched is not data:
            self._dispatched = data
            self._side_channels.dispatch(output.rl_output.side_channel)
        if not self._awaits_state:
            return
        agents = {name: infos.value for name, infos in output.rl_output.agent_infos.items()}
        for name in [name for name in self._announced if name not in self._specs and agents.get(name)]:
            self._start_behavior(name, self._announced[name], agents[name][0])
        unknown = [name for name in agents if name not in self._specs and agents[name]]
        if unknown:
            raise ProtocolError(f"agents of behaviors {unknown} appeared before the player announced these behaviors")
        steps = {name: decoder.decode(agents.get(name, ())) for name, decoder in self._decoders.items()}
        for name, pair in steps.items():
            for part in pair:
                _require_sane_rewards(name, part)
        self._steps = steps

    def _announce(self, parameters: Any) -> None:
        """Store the brain parameters of a behavior; one that has agents keeps its actions."""
        name = parameters.brain_name
        if name in self._specs and action_spec(parameters) != self._specs[name].action_spec:
            raise ProtocolError(
                f"behavior {name!r} started with {self._specs[name].action_spec} and is announced again with "
                f"{action_spec(parameters)}: a behavior keeps its actions while the player runs"
            )
        self._announced[name] = parameters

    def _start_behavior(self, name: str, parameters: Any, first: Any) -> None:
        actions = action_spec(parameters)
        self._decoders[name] = BehaviorDecoder(name, actions, first, self._package_version, *self._image_options)
        self._encoders[name] = encode.ActionEncoder(actions, deprecated=not self._capabilities.hybrid_actions)
        self._specs[name] = self._decoders[name].spec
        _log.info("Connected new brain: %s", name)

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        """Return the behavior's agents that request a decision, and those whose episode ended.

        :raises InvalidValueError: If the behavior does not exist.
        """
        self._require_behavior(behavior_name)
        return self._steps[behavior_name]

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        """Set the actions of all agents that request a decision, in the order of `get_steps(…)[0]`.

        Continuous actions are sent unchanged, also outside [-1, 1], as are masked-out ones: the scene handles both.

        :raises ActionError: If a shape or value is wrong.
        :raises InvalidValueError: If the behavior does not exist.
        """
        self._require_behavior(behavior_name)
        n = len(self._steps[behavior_name][0])
        self._specs[behavior_name].action_spec.validate(action, n, behavior_name)
        self._actions[behavior_name] = action

    def clear_actions(self) -> None:
        """Discard the actions that were set since the last step."""
        self._actions = {}

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: ActionTuple) -> None:
        """Set the action of one agent, as an `ActionTuple` of one row.

        :raises ActionError: If a shape or value is wrong, or the agent requests no decision.
        :raises InvalidValueError: If the behavior does not exist.
        """
        self._require_behavior(behavior_name)
        spec = self._specs[behavior_name].action_spec
        spec.validate(action, 1, behavior_name)
        row = self._row(behavior_name, agent_id)
        previous = self._actions.get(behavior_name) or spec.empty_action(len(self._steps[behavior_name][0]))
        updated = ActionTuple(
            previous.continuous.copy(), previous.discrete.copy()
        )  # copies: the caller owns these arrays
        updated.continuous[row] = action.continuous[0]
        updated.discrete[row] = action.discrete[0]
        self._actions[behavior_name] = updated

    def _row(self, behavior_name: str, agent_id: int) -> int:
        """Return the row of an agent that requests a decision.

        :raises ActionError: If it requests none.
        """
        decisions = self._steps[behavior_name][0]
        if agent_id not in decisions.agent_id_to_index:
            raise ActionError(
                f"agent {agent_id} of behavior {behavior_name!r} requests no decision; these do: "
                f"{decisions.agent_id.tolist()}"
            )
        return decisions.agent_id_to_index[agent_id]

    def close(self) -> None:
        """Close the player. Can be called any number of times."""
        self._shut("close() was called", _GRACE)

    def _shut(self, reason: str, grace: float = 0.0) -> None:
        """Close permanently; a player that failed gets no time to quit by itself."""
        if self._closed_because is None:
            self._closed_because = reason
        self._end_player(grace)

    def _end_player(self, grace: float) -> None:
        if self._connection is not None:
            self._connection.close(encode.quit_message())
            self._connection = None
        if self._player is not None:
            self._player.close(grace)
            self._player = None

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise NotReadyError(f"this environment is closed ({self._closed_because}); make a new one")

    def _require_reset(self) -> None:
        self._require_open()
        if not (self._is_launched and self._was_reset):
            raise NotReadyError("this environment has not been reset: call reset() first")

    def _require_ready(self) -> None:
        """Check that the player waits for a command."""
        self._require_reset()
        if self._is_unread:
            raise NotReadyError("the last step was interrupted before its reply arrived: call reset()")

    def _require_behavior(self, name: str) -> None:
        self._require_reset()
        if name not in self._specs:
            raise InvalidValueError(f"no behavior {name!r} in this player; it has {sorted(self._specs)}")

    def __enter__(self) -> UnityEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parse(data: bytes | bytearray) -> Any:
    """Parse a message of the player.

    :raises PlayerQuitError: If it reports that the player quits.
    :raises ProtocolError: If it is broken or reports an unknown status.
    """
    message = parse(data)
    if message.header.status == encode.STATUS_END:
        raise PlayerQuitError("the player quit by itself: its application ended or left play mode")
    if message.header.status != encode.STATUS_OK:
        raise ProtocolError(
            f"the player reports the status {message.header.status} ({message.header.message[:200]!r}) where "
            f"{encode.STATUS_OK} is good: its log may name the reason"
        )
    return message


def wire_seed(seed: int) -> int:
    """Return the int32 that is sent for a seed: the seed itself below 2**31, otherwise a hash.

    :raises InvalidValueError: If the seed is negative or no integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidValueError(f"seed must be an integer of at least 0, got {seed!r}")
    return int(seed) if seed < 2**31 else int(np.random.SeedSequence(int(seed)).generate_state(1)[0] >> 1)


def argument_list(arguments: Sequence[str]) -> list[str]:
    """Return the additional command-line arguments of a player.

    :raises InvalidValueError: If they are no sequence of strings.
    """
    is_list = isinstance(arguments, Sequence) and not isinstance(arguments, str)
    if not is_list or not all(isinstance(argument, str) for argument in arguments):
        raise InvalidValueError(f"additional_args must be strings, such as ['-level', '3'], got {arguments!r}")
    return list(arguments)


def _require_sane_rewards(behavior: str, steps: DecisionSteps | TerminalSteps) -> None:
    """Check that no reward is NaN, infinite or too large to learn from.

    :raises ProtocolError: If a reward is invalid.
    """
    for kind, rewards in (("reward", steps.reward), ("group reward", steps.group_reward)):
        if rewards.dot(rewards) < _MAX_REWARD**2:  # false for NaN, too
            continue
        wrong = ~(np.abs(rewards) <= _MAX_REWARD)
        if wrong.any():
            raise ProtocolError(
                f"behavior {behavior!r}, agent {int(steps.agent_id[wrong][0])}: the {kind} is "
                f"{float(rewards[wrong][0]):g}; rewards must be finite and at most {_MAX_REWARD:g} in magnitude: "
                "correct the scene"
            )
