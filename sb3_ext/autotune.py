"""`unity-learn autotune CONFIG`: measure which numbers of players, areas and workers train fastest on this machine."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from sb3_ext.console import print_line
from sb3_ext.curriculum import EnvironmentParameterManager
from sb3_ext.launching import require_demonstrations, with_seed
from sb3_ext.runs import Run
from sb3_ext.settings import CheckpointSettings, FixedSettings, RunSettings
from sb3_ext.training import Training, place_samplers
from unity_gym.errors import UnityGymError
from unity_gym.machine import usable_cores

_AREAS = (8, 16, 32, 64, 128)
_GAIN = 1.05  # minimum factor of the timesteps per second for a larger arrangement


class Arrangement(NamedTuple):
    """Arrangement of players; `num_areas` None uses the default of the scene."""

    num_envs: int = 1
    num_workers: int = 0
    threaded: bool = False
    num_areas: int | None = None

    @property
    def flags(self) -> str:
        """Command-line options of `unity-learn`."""
        flags = f"--num-envs {self.num_envs}"
        if self.num_workers:
            flags += f" --num-workers {self.num_workers}"
        if self.num_areas is not None:
            flags += f" --num-areas {self.num_areas}"
        return flags

    def of(self, settings: RunSettings) -> RunSettings:
        """Return settings of an unlimited run with this arrangement."""
        asked = settings.env_settings.model_dump(exclude_unset=True)
        asked |= {"num_envs": self.num_envs, "num_workers": self.num_workers}
        if self.num_areas is not None:
            asked["num_areas"] = self.num_areas
        endless = {"threaded": self.threaded, "max_steps": sys.maxsize}
        learning = endless | {"init_path": None}  # the speed does not depend on the weights
        behaviors = {
            name: given.model_copy(update=endless if isinstance(given, FixedSettings) else learning)
            for name, given in settings.behaviors.items()
        }
        default = settings.default_settings
        if default is not None:
            default = default.model_copy(update=learning)
        environment = type(settings.env_settings).model_validate(asked)
        return settings.model_copy(
            update={"env_settings": environment, "behaviors": behaviors, "default_settings": default}
        )


class _Trial(Training):
    """Training that counts its timesteps for some seconds."""

    def measure(self, seconds: float) -> float:
        """Return the timesteps per second of whole rounds of collecting and updating, for at least these seconds."""
        try:
            self._train_until_update(0)
            before, start = self._timesteps, time.monotonic()
            self._train_until_update(seconds)
            speed = (self._timesteps - before) / (time.monotonic() - start)
            for learner in self._learners.values():
                learner.model.finish_update()
            return speed
        finally:
            self._close()

    def _train_until_update(self, seconds: float) -> None:
        """Train for at least these seconds, and stop after an update."""
        end, version = time.monotonic() + seconds, self._version
        while time.monotonic() < end or self._version == version:
            version = self._version
            self._step()

    @property
    def _version(self) -> int:
        return sum(learner.model.version for learner in self._learners.values())

    @property
    def _timesteps(self) -> int:
        return sum(learner.model.num_timesteps for learner in self._learners.values())


def measure(settings: RunSettings, arrangement: Arrangement, seconds: float) -> float:
    """Train for these seconds in a temporary folder, and return the timesteps per second.

    :raises UnityGymError: If a player cannot be launched in this arrangement.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = arrangement.of(with_seed(settings))
        checkpoints = CheckpointSettings(results_dir=folder, run_id="autotune")  # always a new run
        own = own.model_copy(update={"checkpoint_settings": checkpoints})
        require_demonstrations(own)
        run = Run(own)
        curricula = EnvironmentParameterManager(own, run)
        with place_samplers(own, curricula, run, is_silent=True) as samplers:
            return _Trial(own, run, samplers, curricula, is_silent=True).measure(seconds)


def _larger(best: Arrangement, cores: int) -> Iterator[Arrangement]:
    """Yield arrangements with more players than the best one, in this process and in workers."""
    players = 2 * best.num_envs
    if players <= 2 * cores:
        yield best._replace(num_envs=players, num_workers=0)
        yield best._replace(num_envs=players, num_workers=min(players, cores))


def autotune(settings: RunSettings, seconds: float = 5.0) -> Arrangement:
    """Measure arrangements, print a table of them, and propose the fastest.

    It starts with one player and the areas of the settings, tries other numbers of areas, then more players and
    workers, as long as each is at least 5 % faster. Then it tries `threaded`, so that players continue during updates.

    :param settings: Settings of the run, whose file does not change.
    :param seconds: Duration of each measurement.
    :return: Fastest arrangement.
    :raises UnityGymError: If not even one player can be launched, or the settings do not contain a player.
    """
    if settings.env_settings.env_path is None:
        raise UnityGymError("autotune launches several players: name a build or an embedded scene with --env")
    if settings.ray is not None:
        raise UnityGymError("autotune measures this machine alone: remove the block ray from the settings")
    cores = usable_cores()
    print_line(f"{'timesteps/s':>12}  arrangement ({cores} cores, {seconds:g} s each)")
    given = settings.env_settings
    best, speed = Arrangement(num_areas=given.num_areas if "num_areas" in given.model_fields_set else None), 0.0

    def is_faster(trial: Arrangement) -> bool:
        nonlocal best, speed
        try:
            found = measure(settings, trial, seconds)
        except UnityGymError as error:
            if not speed:
                raise
            print_line(f"{'failed':>12}  {trial.flags}: {str(error).splitlines()[0]}")
            return False
        print_line(f"{found:12.0f}  {trial.flags}{', threaded: true' if trial.threaded else ''}")
        gains = found > _GAIN * speed
        if gains:
            best, speed = trial, found
        return gains

    is_faster(best)
    slower = 0
    for areas in _AREAS:
        slower = 0 if is_faster(best._replace(num_areas=areas)) else slower + 1
        if slower == 2 and best.num_areas is not None:
            break
    while max([is_faster(trial) for trial in _larger(best, cores)], default=False):
        pass
    is_faster(best._replace(threaded=True))
    is_faster(best._replace(threaded=True, num_workers=best.num_envs))
    mode = "threaded: true for each behavior in the file, and " if best.threaded else ""
    print_line(f"Fastest: {mode}{best.flags}")
    if best.threaded:
        print_line(
            "With threaded, agents act with weights that are one update old; without it, seeded runs repeat exactly."
        )
    return best
