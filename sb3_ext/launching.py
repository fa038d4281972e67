"""Launch the players of a run as its settings describe them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from stable_baselines3.common.utils import set_random_seed

from sb3_ext.console import LOG
from sb3_ext.curriculum import EnvironmentParameterManager
from sb3_ext.expert import demonstration_exists
from sb3_ext.sampler import plain_name
from sb3_ext.settings import BCSettings, BehaviorSettings, Curriculum, RunSettings
from unity_gym.errors import UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.registration import registered_options

_PATIENCE = 100  # environment steps until each behavior of the settings has an agent


def with_seed(settings: RunSettings) -> RunSettings:
    """Return the settings with a seed, which is random if none is given."""
    environment = settings.env_settings
    if environment.seed >= 0:
        return settings
    drawn = environment.model_copy(update={"seed": int(np.random.SeedSequence().generate_state(1)[0] >> 1)})
    return settings.model_copy(update={"env_settings": drawn})


def with_samplers(settings: RunSettings) -> RunSettings:
    """Return the settings with `num_workers` and `num_envs` derived from the block `ray`.

    :raises UnityGymError: If `ray` and `env_settings` contradict each other.
    """
    environment, ray = settings.env_settings, settings.ray
    if ray is None:
        return settings
    given = environment.model_fields_set
    samplers = ray.samplers or environment.num_workers or 1
    players = environment.num_envs if ray.players_per_sampler is None else samplers * ray.players_per_sampler
    if ray.players_per_sampler is None and "num_envs" not in given:
        players = samplers
    for key, value, reason in (
        ("num_workers", samplers, f"ray.samplers is {ray.samplers}"),
        (
            "num_envs",
            players,
            f"there are {samplers} samplers and ray.players_per_sampler is {ray.players_per_sampler}",
        ),
    ):
        if key in given and getattr(environment, key) not in (0, value):
            raise UnityGymError(
                f"env_settings.{key} is {getattr(environment, key)}, but {reason}: give one of them, or both alike"
            )
    if players < samplers:
        raise UnityGymError(f"{samplers} samplers cannot share num_envs={players}: each needs a player")
    changed = environment.model_copy(update={"num_workers": samplers, "num_envs": players})
    return settings.model_copy(update={"env_settings": changed})


@contextmanager
def launch(
    settings: RunSettings,
    curricula: EnvironmentParameterManager,
    log_folder: Path | None,
    areas_to_draw: int = 0,
    first_player: int = 0,
) -> Iterator[PlayerPool]:
    """Launch the players of a run as a context, and end them after it.

    :param settings: Settings of the run, with a seed.
    :param curricula: Parameters of the scene.
    :param log_folder: Folder of the players' logs; None for a temporary one.
    :param areas_to_draw: Areas of each player to draw; see `PlayerPool`.
    :param first_player: Number of the first player among those of all processes.
    :return: Players, after a reset, with the behaviors of the settings.
    :raises UnityGymError: If the settings are invalid, or a player fails.
    """
    environment = settings.env_settings
    options = player_options(settings, curricula, log_folder, first_player)
    if options.file_name is None and environment.num_envs > 1:
        raise UnityGymError(
            "num_envs is more than 1, but the Editor is one player: name a build or scene with --env, or leave "
            "--num-envs out"
        )
    set_random_seed(environment.seed)
    with closing(PlayerPool(options, environment.num_envs, areas_to_draw=areas_to_draw)) as pool:
        curricula.send(pool, first_player=first_player)
        pool.reset()
        _await_behaviors(settings, pool)
        yield pool


def player_name(settings: RunSettings) -> str | None:
    """Return the `file_name` of the players of a run; None for the Unity Editor."""
    name = settings.env_settings.env_path
    if name is not None and re.fullmatch(r"(unity_gym:)?Unity-(.*-)?v\d+", name):
        found: str | None = registered_options(name).get("file_name")
        return found
    return name


def player_options(
    settings: RunSettings, curricula: EnvironmentParameterManager, log_folder: Path | None, first_player: int = 0
) -> PlayerOptions:
    """Return the options for launching the players of a run."""
    environment, engine = settings.env_settings, settings.engine_settings
    given = environment.model_fields_set
    no_graphics = engine.no_graphics if "no_graphics" in engine.model_fields_set else None
    if engine.no_graphics_monitor:
        no_graphics = engine.no_graphics or first_player > 0
    return PlayerOptions(
        file_name=player_name(settings),
        seed=environment.seed,
        no_graphics=no_graphics,
        no_graphics_monitor=engine.no_graphics_monitor and first_player == 0,
        display=engine.display,
        time_scale=engine.time_scale,
        width=engine.width,
        height=engine.height,
        quality_level=engine.quality_level,
        target_frame_rate=engine.target_frame_rate,
        capture_frame_rate=engine.capture_frame_rate,
        base_port=environment.base_port if "base_port" in given else None,
        timeout_wait=environment.timeout_wait,
        trust_peer=environment.trust_peer,
        additional_args=environment.env_args or (),
        environment_parameters=curricula.constants,
        log_folder=log_folder,
        num_areas=environment.num_areas if "num_areas" in given else None,
    )


def require_demonstrations(settings: RunSettings) -> None:
    """Check that the demonstrations exist, before a player is launched in vain."""
    named = settings.behaviors if settings.default_settings is None else {"": settings.default_settings}
    for name, behavior in (named | settings.behaviors).items():
        block = f"behaviors.{name}" if name else "default_settings"
        imitators = {
            "reward_signals.gail": behavior.reward_signals.gail,
            "behavioral_cloning": behavior.behavioral_cloning,
        }
        paths = {f"{path}.demo_path": imitator.demo_path for path, imitator in imitators.items() if imitator}
        if isinstance(behavior, BCSettings):
            if name:
                require_source(name, behavior)
                _require_teacher(name, behavior, settings)
            paths |= {} if behavior.demo_path is None else {"demo_path": behavior.demo_path}
        for path, demonstration in paths.items():
            if not demonstration_exists(demonstration):
                raise UnityGymError(
                    f"{block}.{path} is {demonstration!r}, which is not there, seen from {Path.cwd()}: "
                    "give the path of a .demo file or of a folder of them, or delete the block"
                )


def require_source(name: str, settings: BehaviorSettings) -> None:
    """Check that a behavior with the trainer bc has one source of training data, and no settings that bc lacks.

    :param name: Name of the behavior.
    :raises UnityGymError: If it has no source or both, or settings that bc lacks.
    """
    if not isinstance(settings, BCSettings):
        return
    if (settings.demo_path is None) == (settings.teacher is None):
        given = "neither" if settings.teacher is None else "both"
        raise UnityGymError(f"behaviors.{name} must have demo_path or teacher, got {given}: bc learns from one of them")
    for key in settings.lacks:
        if getattr(settings, key):
            raise UnityGymError(f"behaviors.{name}.{key} must be left out, as trainer_type bc does not have it")
    unused = [signal for signal, _ in settings.reward_signals.items() if signal != "extrinsic"]
    if unused:
        LOG.warning("behaviors.%s.reward_signals: %s not used by trainer_type bc", name, ", ".join(unused))


def _require_teacher(name: str, student: BCSettings, settings: RunSettings) -> None:
    teacher = student.teacher
    if teacher == name:
        raise UnityGymError(f"behaviors.{name}.teacher must be another behavior, got {teacher!r}")
    if teacher is not None and teacher not in settings.behaviors and settings.default_settings is None:
        behaviors = ", ".join(sorted(settings.behaviors.keys() - {name})) or "none"
        raise UnityGymError(
            f"behaviors.{name}.teacher must be another behavior under behaviors ({behaviors}), got {teacher!r}: add it "
            "there. With trainer_type fixed, it acts with an .onnx file or a function"
        )


def _followed_by_lessons(settings: RunSettings) -> set[str]:
    """Return the behaviors in the completion criteria of lessons."""
    curricula = [given for given in settings.environment_parameters.values() if isinstance(given, Curriculum)]
    criteria = [lesson.completion_criteria for given in curricula for lesson in given.curriculum]
    return {needed.behavior for needed in criteria if needed is not None}


def _await_behaviors(settings: RunSettings, pool: PlayerPool) -> None:
    """Check that settings and players have the same behaviors.

    A behavior of the settings may appear later in the run. It is regarded as a wrong name if it does not appear soon,
    and the players have a behavior that the settings do not contain.
    """
    for _ in range(_PATIENCE):
        shown = {plain_name(name) for name in pool.tables}
        missing = (settings.behaviors.keys() | _followed_by_lessons(settings)) - shown
        unnamed = shown - settings.behaviors.keys()
        if settings.default_settings is None or not missing or not unnamed:
            break
        pool.step_once({})
    else:
        raise UnityGymError(
            f"the settings name the behaviors {sorted(missing)}, which the players do not have; they have "
            f"{sorted(shown)}. Correct or delete the names under behaviors; if their agents appear later in the run, "
            "list all behaviors there"
        )
    for name in sorted(unnamed):
        settings.behavior(name)  # raises an error if there are no settings for it
    if missing:
        LOG.warning("No agent of %s has appeared; training starts when one does", ", ".join(sorted(missing)))
