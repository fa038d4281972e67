"""Players that are launched together, with the side channels that their options ask for."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from unity_gym.display import VirtualDisplay
from unity_gym.environment import UnityEnvironment, argument_list, wire_seed
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.player import EMBEDDED
from unity_gym.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    EnvironmentStats,
    RenderingChannel,
    SideChannel,
    StatsSideChannel,
)
from unity_gym.side_channels.channel import channel_list
from unity_gym.side_channels.stats import aggregate
from unity_gym.wire import encode

# Seconds between two looks at the launches. No lock is waited for: Ctrl-C just before such a wait is noticed only after
# it, and one within a wait of `concurrent.futures` can leave its locks taken.
_LAUNCH_PERIOD = 0.005


class _Patience:
    """Whether to continue to wait for the players that share this object."""

    def __init__(self) -> None:
        self.proceed: Callable[[], bool] = lambda: True

    def check(self) -> None:
        """Raise an error that is no player's if `proceed` returns False, or raises an exception, which is its cause.

        :raises CancelledError: In these cases.
        """
        try:
            proceeds = self.proceed()
        except Exception as error:
            raise CancelledError from error
        if not proceeds:
            raise CancelledError


class _LaunchedPlayer(UnityEnvironment):
    """Player that is waited for as long as its caller continues to wait.

    :param patience: It is checked at most ten times per second while the player is silent.
    :param options: Parameters of `UnityEnvironment`.
    """

    def __init__(self, patience: _Patience, **options: Any) -> None:
        self._patience = patience
        super().__init__(**options)

    def _check(self) -> None:
        self._patience.check()
        super()._check()

    def reset_on_trial(self) -> None:
        """Send RESET. The messages of side channels are held until `accept` or `discard`."""
        self._side_channels.hold()
        self.reset()

    def accept(self) -> None:
        """Keep this player, and pass on its messages.

        :raises ProtocolError: If a side channel cannot read one.
        """
        self._release_messages()

    def request_images(self, channel: RenderingChannel) -> None:
        """Request images of the present state, for which `step_wait` waits.

        :param channel: Channel of this player, which has sent images before, so that the player knows the request.
        """
        self._require_ready()
        assert self._connection is not None
        self._awaits_state = False
        self._is_unread = True  # before the message is sent, so that any interruption is noticed
        self._connection.send(encode.step({}, channel.request_at_once()))

    def require_open(self) -> None:
        """Check that the player was not closed.

        :raises NotReadyError: If it was.
        """
        self._require_open()

    def discard(self) -> None:
        """Close this player as if it had never been launched: what was sent to it is queued again."""
        self.close()
        self._side_channels.take_back()


class LaunchedPlayers:
    """Players that are launched together, and their side channels.

    All start at the same time, as a build takes seconds to start. An error or an interrupt ends all launches.

    :param options: Options for launching and configuring each player.
    :param n_instances: Number of players.
    :param areas_to_draw: Number of areas per player that it draws on request.
    :raises PlayerError: If a player cannot be started.
    :raises UnityGymError: If several players are Editors, the Editor is to draw on a virtual screen, or custom side
        channels are passed with several players.
    """

    def __init__(self, options: PlayerOptions, n_instances: int = 1, areas_to_draw: int = 0) -> None:
        if n_instances < 1:
            raise UnityGymError(f"n_instances must be at least 1, got {n_instances}")
        if n_instances > 1 and options.file_name is None:
            raise UnityGymError("the Editor is one player: name a build in file_name, or leave n_instances at 1")
        if n_instances > 1 and options.side_channels:
            raise UnityGymError("a side channel belongs to one player: leave n_instances at 1 to pass side_channels")
        if options.display not in (None, "xvfb"):
            raise InvalidValueError(f"display must be None (this machine's screen) or 'xvfb', got {options.display!r}")
        if options.display is not None and options.file_name is None:
            raise UnityGymError("the Editor draws on its own screen: name a build, or leave display out")
        self.options = options
        self.players: list[_LaunchedPlayer] = []
        self.rendering: dict[int, RenderingChannel] = {}
        self._areas_to_draw = areas_to_draw
        self._probed: set[int] = set()  # the players whose first RESET was not requested yet
        self._without_graphics: dict[int, set[str]] = {}  # by player: the behaviors whose images have been checked
        self._parameters: dict[int, EnvironmentParametersChannel] = {}
        self._stats: dict[int, StatsSideChannel] = {}
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if options.seed is None else options.seed
        wire_seed(seed)
        self._display = VirtualDisplay() if options.display == "xvfb" else None
        self._patience = _Patience()
        try:
            self._launch_players(n_instances, seed)
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> NoReturn:
        """Raise an error, as the processes of the players have one owner.

        :raises UnityGymError: Always.
        """
        raise UnityGymError(
            "an environment with running players can be neither copied nor pickled: pass a function that makes one, "
            "such as lambda: gym.make(id), and save models without their environment"
        )

    def _launch_players(self, n_instances: int, seed: int) -> None:
        """Launch all players at the same time.

        An error or an interrupt ends the other launches: they would delay it until their time-outs.
        """
        started: list[int] = []
        ended: list[int] = []
        players: dict[int, _LaunchedPlayer] = {}
        failures: list[BaseException] = []

        def launch(worker: int) -> None:
            started.append(worker)  # before it checks: who sets `proceed` looks at this list afterwards
            try:
                self._patience.check()
                players[worker] = self._launch(worker, seed + worker)
            except BaseException as error:
                failures.append(error)
            finally:
                ended.append(worker)

        try:
            for worker in range(n_instances):
                threading.Thread(target=launch, args=(worker,), name=f"launch of player {worker}").start()
            while len(ended) < n_instances and not failures:
                time.sleep(_LAUNCH_PERIOD)
            if failures:
                raise failures[0]
        except BaseException:
            self._patience.proceed = lambda: False
            raise
        finally:
            while len(ended) < len(started):
                time.sleep(_LAUNCH_PERIOD)
            self.players += [players[worker] for worker in sorted(players)]

    def _launch(self, worker: int, seed: int) -> _LaunchedPlayer:
        options = self.options
        no_graphics = options.no_graphics
        if options.no_graphics_monitor and not no_graphics:
            no_graphics = worker != 0
        if options.file_name is None or str(options.file_name).startswith(EMBEDDED) or no_graphics is False:
            return self._start(worker, seed, no_graphics=bool(no_graphics))
        player = self._start(worker, seed, no_graphics=True)
        if not no_graphics:
            try:
                player.reset_on_trial()
                if any(_blank_sensors(player, behavior) for behavior in player.behavior_specs):
                    player.discard()
                    return self._start(worker, seed, no_graphics=False)
                player.accept()
            except BaseException:
                player.close()
                raise
            self._probed.add(worker)
        self._without_graphics[worker] = set()
        return player

    def _require_images(self, worker: int, behavior: str) -> None:
        """Check that the cameras of a behavior send images.

        :raises UnityGymError: If they are blank.
        """
        if behavior in self._without_graphics[worker]:
            return
        blank = _blank_sensors(self.players[worker], behavior)
        if gray := [name for name, is_black in blank.items() if not is_black]:
            raise UnityGymError(
                f"without graphics, behavior {behavior!r} has the blank cameras {gray}: pass no_graphics=False "
                "(on a machine without a screen together with display='xvfb')"
            )
        if blank:
            warnings.warn(
                f"behavior {behavior!r} has the sensors {list(blank)}, which send only zeros: if they are cameras and "
                "no grids, pass no_graphics=False",
                stacklevel=2,
            )
        self._without_graphics[worker].add(behavior)

    def _start(self, worker: int, seed: int, no_graphics: bool) -> _LaunchedPlayer:
        options = self.options
        arguments = argument_list(options.additional_args)
        if options.num_areas is not None and str(options.file_name).startswith(EMBEDDED):
            arguments += ["--areas", str(options.num_areas)]
        engine, parameters = EngineConfigurationChannel(), EnvironmentParametersChannel()
        self._parameters[worker] = parameters
        self._stats[worker] = StatsSideChannel()
        engine.set_configuration_parameters(
            width=options.width,
            height=options.height,
            quality_level=options.quality_level,
            time_scale=options.time_scale,
            target_frame_rate=options.target_frame_rate,
            capture_frame_rate=options.capture_frame_rate,
        )
        EnvironmentParametersChannel.check(options.environment_parameters)
        for key, value in options.environment_parameters.items():
            parameters.set_float_parameter(key, value)
        channels: list[SideChannel] = [engine, parameters, *channel_list(options.side_channels)]
        if not any(isinstance(channel, StatsSideChannel) for channel in channels):
            channels.append(self._stats[worker])
        if self._areas_to_draw:
            self.rendering[worker] = RenderingChannel()
            self.rendering[worker].draw(self._areas_to_draw)
            channels.append(self.rendering[worker])
        return _LaunchedPlayer(
            self._patience,
            file_name=options.file_name,
            worker_id=worker,
            base_port=options.base_port,
            seed=seed,
            no_graphics=no_graphics,
            timeout_wait=options.timeout_wait,
            additional_args=arguments,
            side_channels=channels,
            log_folder=options.log_folder,
            num_areas=1 if options.num_areas is None else options.num_areas,
            visual_dtype=options.visual_dtype,
            uncompressed_layout=options.uncompressed_layout,
            trust_peer=options.trust_peer,
            environment_variables={} if self._display is None else {"DISPLAY": self._display.name},
        )

    def set_environment_parameters(self, parameters: Mapping[str, float]) -> None:
        """Set environment parameters, which the scene reads by name; they are sent with the next environment step.

        :raises InvalidValueError: If a value is no finite number; then none of them is set.
        """
        EnvironmentParametersChannel.check(parameters)
        for channel in self._parameters.values():
            for key, value in parameters.items():
                channel.set_float_parameter(key, value)

    @property
    def environment_parameters(self) -> list[EnvironmentParametersChannel]:
        """The channel of each player, for samplers, which `set_environment_parameters` cannot set."""
        return [self._parameters[worker] for worker in sorted(self._parameters)]

    def pop_stats(self) -> dict[str, float]:
        """Return the statistics that the scenes sent since the last call, each aggregated as the scene requests.

        A histogram's value is its mean. Empty if the user passed a `StatsSideChannel`, which then receives all of them.
        """
        return aggregate(self.pop_stats_per_player().values())

    def pop_stats_per_player(self) -> dict[int, EnvironmentStats]:
        """Return the statistics as `pop_stats`, but all values, by the index of each player that sent some."""
        return {
            worker: channel.get_and_reset_stats() for worker, channel in sorted(self._stats.items()) if channel.stats
        }

    @property
    def has_queued_messages(self) -> bool:
        """Whether a message on a side channel of a player waits for its next reset or step."""
        return any(player.has_queued_messages for player in self.players)

    @contextmanager
    def waiting_while(self, proceed: Callable[[], bool]) -> Iterator[None]:
        """Leave this context, without an error, once `proceed` returns False while a call waits for a player.

        Messages may then be under way, and a player whose launch has ended is launched by the next reset.

        :param proceed: Function that is called at most ten times per second for each silent player.
        """
        before, self._patience.proceed = self._patience.proceed, proceed
        try:
            yield
        except CancelledError as end:
            if end.__cause__ is not None:
                raise end.__cause__ from end.__cause__.__cause__
        finally:
            self._patience.proceed = before

    def check_waiting(self) -> None:
        """Leave the context of `waiting_while` if its function returns False."""
        self._patience.check()

    def close(self) -> None:
        """Close all players. Can be called any number of times."""
        for player in self.players:
            player.close()
        if self._display is not None:
            self._display.close()


def _blank_sensors(player: UnityEnvironment, behavior: str) -> dict[str, bool]:
    """Return the visual sensors that show every agent one uniform color, and whether it is black.

    Cameras in a player without graphics do so, and grids without objects, which are black.
    """
    decisions, ends = player.get_steps(behavior)
    sensors = player.behavior_specs[behavior].observation_specs
    arrays = (decisions if len(decisions) else ends).obs
    return {
        sensor.name: not array.any()
        for sensor, array in zip(sensors, arrays, strict=True)
        if sensor.is_visual and not np.ptp(array, axis=(2, 3)).any()
    }
