"""Settings of a run: those of its behaviors and environment parameters, of players, engine, cluster and PyTorch."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from sb3_ext.plugins import WRITERS, plugin_names
from sb3_ext.settings.behaviors import AnyBehavior, BehaviorSettings
from sb3_ext.settings.blocks import (
    OWN,
    Argument,
    Block,
    Count,
    CountOrMinusOne,
    CountOrZero,
    Flag,
    NotNegative,
    PathText,
    Positive,
    Text,
    Whole,
    nothing_is_empty,
    rejection,
)
from sb3_ext.settings.document import SettingsError, did_you_mean, either
from sb3_ext.settings.parameters import EnvironmentParameter


class EnvSettings(Block):
    """Settings of the players. Player i has the seed `seed + i` and the port `base_port + i`.

    `num_workers` processes share the players; with 0, the training process steps them.
    """

    env_path: Text | None = None
    """Build, `Unity-<Scene>-v0`, or `Unity-v0` for the Editor."""
    env_args: list[Argument] | None = None
    """Command-line arguments for the player."""
    base_port: Annotated[Whole, Ge(1), Le(65535)] = 5005
    """Player i listens on `base_port + i`. Free ports are picked unless the key is given. For the Editor it is 5004
    unless `--base-port` is given."""
    num_envs: Count = 1
    """Number of players."""
    num_workers: Annotated[CountOrZero, OWN] = 0
    """Processes that share the players; 0: the training process steps them."""
    num_areas: Count = 1
    """Training areas per player. 1 in a file means the scene as it is; `--num-areas 1` is one area."""
    timeout_wait: Count = 60
    """Seconds to wait for a message of a player."""
    trust_peer: Annotated[Flag, OWN] = False
    """Accept any process that connects to a player's port, such as a player in a container."""
    seed: Annotated[CountOrMinusOne, Le(2**32 - 1)] = -1
    """Player i has the seed `seed + i`; -1: drawn at random."""
    max_lifetime_restarts: CountOrMinusOne = 10
    """Maximum number of restarts of failed players; -1: no limit."""
    restarts_rate_limit_n: CountOrMinusOne = 1
    """Maximum number of restarts within `restarts_rate_limit_period_s`; -1: no limit."""
    restarts_rate_limit_period_s: Count = 60
    """Length of that period in seconds."""

    @field_validator("num_workers")
    @classmethod
    def _players_for_each(cls, num_workers: int, info: ValidationInfo) -> int:
        num_envs = info.data.get("num_envs", 1)
        if num_workers > num_envs:
            raise rejection(f"give at most num_envs, which is {num_envs}: each worker needs a player")
        return num_workers

    @field_validator("num_envs")
    @classmethod
    def _ports_exist(cls, num_envs: int, info: ValidationInfo) -> int:
        base_port = info.data.get("base_port", 1)
        if base_port + num_envs - 1 > 65535:
            raise rejection(f"give fewer, or a lower base_port: the ports from {base_port} on end at 65535")
        return num_envs


class RaySettings(Block):
    """Settings of a Ray cluster, which runs the samplers of `num_workers`.

    `samplers` and `players_per_sampler` are another way to give `num_workers` and `num_envs`. Without an `address`, the
    cluster of this machine is used, and started if there is none.
    """

    address: Text | None = None
    """Address of the cluster; default: that of this machine. `local` always starts one."""
    samplers: Count | None = None
    """Number of samplers; default: `num_workers`, at least 1."""
    players_per_sampler: Count | None = None
    """Players per sampler; default: `num_envs` divided among the samplers."""
    num_cpus_per_sampler: NotNegative = 1.0
    """CPUs that each sampler reserves on its node for itself and its players."""
    num_gpus_per_sampler: NotNegative = 0.0
    """GPUs that each sampler reserves on its node, for players that render."""
    ship_build: Flag = False
    """Copy the folder of the build to each node."""


class EngineSettings(Block):
    """Settings of the player's engine."""

    width: Count = 84
    """Width of the window in pixels."""
    height: Count = 84
    """Height of the window in pixels."""
    quality_level: CountOrZero = 5
    """Index of the project's quality level."""
    time_scale: Positive = 20.0
    """Simulated seconds per second."""
    target_frame_rate: CountOrMinusOne = -1
    """Frames per second; -1: unlimited."""
    capture_frame_rate: CountOrZero = 60
    """Frames per simulated second; 0: variable."""
    no_graphics: Flag = False
    """Launch players without rendering."""
    no_graphics_monitor: Flag = False
    """Launch all players but the first without rendering."""
    display: Annotated[Literal["xvfb"] | None, OWN] = None
    """`xvfb`: each process that launches players starts a virtual screen for them (the program Xvfb)."""


class CheckpointSettings(Block):
    """Settings of the name, folder and checkpoints of the run."""

    run_id: Text = "ppo"
    """Name of the run and of its folder."""
    initialize_from: Text | None = None
    """Run with the initial weights of the networks."""
    resume: Flag = False
    """Continue the run of this name."""
    force: Flag = False
    """Delete the run of this name and start from scratch."""
    inference: Flag = False
    """Act without training."""
    results_dir: PathText = "results"
    """Folder for the folders of all runs."""


_DEVICE = r"(cpu|cuda|mps|xpu)(:\d+)?"


class TorchSettings(Block):
    """Settings of PyTorch."""

    device: Text | None = None
    """`cpu`, `cuda`, `cuda:1`, `mps` or `xpu`, several with commas; default: the GPU where there is one."""

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str | None) -> str | None:
        if device is not None and not all(re.fullmatch(_DEVICE, name) for name in device.split(",")):
            raise rejection(
                "give cpu, cuda, mps or xpu; one of several has a number: cuda:0; updates are shared by cuda:0,cuda:1"
            )
        return device


def _stats_writer(value: object) -> str:
    allowed = plugin_names(WRITERS)
    if isinstance(value, str) and value in allowed:
        return value
    names = f"known are {either(allowed)}{did_you_mean(value, allowed)}" if allowed else "none is installed"
    raise rejection(f"give the name of a statistics writer of an installed package; {names}")


class RunSettings(Block):
    """All settings of a run.

    `stats_writers` are those of plugins, in addition to TensorBoard; see `sb3_ext.plugins`.
    """

    default_settings: AnyBehavior | None = None
    """Settings of behaviors that `behaviors` does not contain, and defaults for those it does."""
    behaviors: Annotated[dict[str, AnyBehavior], BeforeValidator(nothing_is_empty)] = Field(default={})
    """Settings by behavior name."""
    env_settings: EnvSettings = EnvSettings()
    """Settings of the players."""
    ray: Annotated[RaySettings | None, BeforeValidator(nothing_is_empty), OWN] = None
    """Settings of the Ray cluster that runs the samplers of `num_workers`."""
    engine_settings: EngineSettings = EngineSettings()
    """Settings of the player's engine."""
    environment_parameters: Annotated[dict[str, EnvironmentParameter], BeforeValidator(nothing_is_empty)] = Field(
        default={}
    )
    """Number, sampler or curriculum of each environment parameter, by name."""
    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    """Settings of the run's name, folder and checkpoints."""
    torch_settings: TorchSettings = TorchSettings()
    """Settings of PyTorch."""
    debug: Flag = False
    """Print details, with time and source location."""
    stats_writers: Annotated[list[Annotated[str, BeforeValidator(_stats_writer)]], OWN] = Field(default=[])
    """Statistics writers of plugins, in addition to TensorBoard."""

    @property
    def behavior_blocks(self) -> list[BehaviorSettings]:
        """Settings of all behaviors: those of `behaviors`, and `default_settings` if it is given."""
        return [*self.behaviors.values(), *([] if self.default_settings is None else [self.default_settings])]

    def behavior(self, name: str) -> BehaviorSettings:
        """Return the settings of a behavior of the environment; a team (`Name?team=0`) has those of its name.

        :raises SettingsError: If `behaviors` does not contain it and there is no `default_settings`.
        """
        plain = name.split("?", 1)[0]
        found = self.behaviors.get(plain, self.default_settings)
        if found is None:
            raise SettingsError(
                f"behaviors.{plain} is missing: the environment has a behavior {plain!r}, the settings have "
                f"{', '.join(self.behaviors) or 'none'}. Rename one, or add default_settings for all that are not named"
                f"{did_you_mean(plain, self.behaviors)}"
            )
        return found
