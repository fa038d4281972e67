"""`PlayerCopies`: launch players like those of an environment, in other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from stable_baselines3.common.utils import set_random_seed

from unity_gym.envs.launching import launch_rows
from unity_gym.errors import UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool


@dataclass(frozen=True)
class PlayerCopies:
    """Factory of players like those of an environment, which can be pickled.

    :param options: Options of the environment's players.
    :param n_instances: Number of players per copy.
    :param seed: Seed of a reset after the launch; None for none.
    :param share_table: Assign the agents to the rows of one table, as `UnityVecEnv` does.
    :param num_envs: Number of these rows; see `unity_gym.envs.launching.launch_rows`.
    :param behavior: Behaviors of these rows.
    :raises UnityGymError: If the players cannot be copied.
    """

    options: PlayerOptions
    n_instances: int = 1
    seed: int | None = None
    share_table: bool = False
    num_envs: int | None = None
    behavior: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.options.file_name is None:
            raise UnityGymError(
                "workers launch players, but the Editor is one player: name a build or scene, or leave workers out"
            )
        if self.options.side_channels:
            raise UnityGymError(
                "side_channels belong to the process of the script, and workers have players in others: leave "
                "side_channels or workers out"
            )

    @contextmanager
    def launch(self, number: int, file_name: str | None = None) -> Iterator[PlayerPool]:
        """Launch the players of a copy as a context, and end them after it.

        :param number: Number of the copy; copy 0 has the seed and the port of the environment.
        :param file_name: Name of the player on another machine, on which the logs stay; None for this machine.
        :return: Players, after a reset.
        """
        first, options = number * self.n_instances, self.options
        seed = None if options.seed is None else options.seed + first
        folder = None if options.log_folder is None or file_name else Path(options.log_folder) / f"worker-{number}"
        options = replace(
            options,
            file_name=file_name or options.file_name,
            seed=seed,
            base_port=None if options.base_port is None else options.base_port + first,
            log_folder=folder,
            no_graphics=True if options.no_graphics_monitor and number else options.no_graphics,
            no_graphics_monitor=options.no_graphics_monitor and not number,
        )
        if seed is not None:
            set_random_seed(seed)
        if self.share_table:
            pool = launch_rows(options, self.num_envs, self.n_instances, self.behavior)
        else:
            pool = PlayerPool(options, self.n_instances)
        with closing(pool):
            if not self.share_table:
                pool.reset()
            if self.seed is not None:
                pool.reset(self.seed + first)
            yield pool
