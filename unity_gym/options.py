"""The options of players, which every environment takes as keyword arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TypeVar

from typing_extensions import ParamSpec, TypedDict

from unity_gym.errors import UnknownOptionError
from unity_gym.side_channels import SideChannel

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class PlayerOptions:
    """Options for launching and configuring players: the keyword arguments that every environment takes.

    :param file_name: Build to launch; "embedded:<Scene>" for the embedded player; None waits for the Editor.
    :param seed: Seed of the first player's random numbers (player i gets seed + i); None draws one.
    :param no_graphics: Whether to launch without rendering. By default a build is launched without rendering. If it has
        cameras, which are blank then, it is launched once more with rendering. With True, blank cameras raise an error,
        and sensors with only zeros, as of a grid without objects, a warning.
    :param no_graphics_monitor: Whether to launch all players except the first without rendering; with `no_graphics`,
        the first, too.
    :param display: Virtual screen on which the players draw: "xvfb" (the program Xvfb), for a machine without a screen.
    :param time_scale: Simulated seconds per second.
    :param width: Width of the player's window in pixels; with `height`.
    :param height: Height of the player's window in pixels; with `width`.
    :param quality_level: Index of one of the project's quality levels.
    :param target_frame_rate: Target number of frames per second; -1 for as many as possible.
    :param capture_frame_rate: Number of frames per simulated second.
    :param base_port: Port of the first player (player i uses base_port + i); by default 5004 for the Editor, otherwise
        free ones.
    :param timeout_wait: Longest time in seconds that a call waits for the players; a call that launches one has as much
        time again.
    :param additional_args: Additional command-line arguments of the player.
    :param environment_parameters: Values that the scene reads by name, sent before the first reset.
    :param side_channels: Custom side channels; with one player only.
    :param log_folder: Folder of the players' logs.
    :param num_areas: Number of training areas per player. The embedded player lays out as many; a build does so with an
        area replicator in its scene. By default the scene's own number.
    :param visual_dtype: Dtype of image observations: "uint8" (0 to 255) or "float32" (0 to 1).
    :param uncompressed_layout: Layout of uncompressed images in memory: "CHW", "HWC" or "auto"; see `UnityEnvironment`.
    :param trust_peer: Whether to accept any process that connects to a player's port; see `UnityEnvironment`.
    """

    file_name: str | Path | None = None
    seed: int | None = None
    no_graphics: bool | None = None
    no_graphics_monitor: bool = False
    display: str | None = None
    time_scale: float = 20.0
    width: int | None = None
    height: int | None = None
    quality_level: int | None = None
    target_frame_rate: int | None = None
    capture_frame_rate: int | None = None
    base_port: int | None = None
    timeout_wait: float = 60.0
    additional_args: Sequence[str] = ()
    environment_parameters: Mapping[str, float] = field(default_factory=dict)
    side_channels: Sequence[SideChannel] = ()
    log_folder: str | Path | None = None
    num_areas: int | None = None
    visual_dtype: str = "uint8"
    uncompressed_layout: str = "auto"
    trust_peer: bool = False


class PlayerKeywords(TypedDict, total=False):
    """The types of the keyword arguments that become `PlayerOptions`."""

    file_name: str | Path | None
    seed: int | None
    no_graphics: bool | None
    no_graphics_monitor: bool
    display: str | None
    time_scale: float
    width: int | None
    height: int | None
    quality_level: int | None
    target_frame_rate: int | None
    capture_frame_rate: int | None
    base_port: int | None
    timeout_wait: float
    additional_args: Sequence[str]
    environment_parameters: Mapping[str, float]
    side_channels: Sequence[SideChannel]
    log_folder: str | Path | None
    num_areas: int | None
    visual_dtype: str
    uncompressed_layout: str
    trust_peer: bool


def takes_player_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function with `**options: Unpack[PlayerKeywords]`, so that it first reports unknown options.

    `help()` lists the options one by one.

    :raises UnknownOptionError: If the decorated function has no such option; the message names a similar one.
    """
    signature = inspect.signature(function)
    own = {name: p for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
    added = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default if option.default is not MISSING else {},
            annotation=option.type,
        )
        for option in fields(PlayerOptions)
        if option.name not in own
    ]
    names = [*own, *(parameter.name for parameter in added)]

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs.keys() - set(names):
            similar = "".join(f"; the nearest is {each!r}" for each in difflib.get_close_matches(name, names, 1))
            raise UnknownOptionError(  # in Python's words, by which libraries recognize options to leave out
                f"{function.__name__}() got an unexpected keyword argument {name!r}{similar}"
            )
        return function(*args, **kwargs)

    checked.__signature__ = signature.replace(parameters=[*own.values(), *added])  # type: ignore[attr-defined]
    return checked
