"""Players whose agents become the rows of one environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.player import EMBEDDED
from unity_gym.pool import PlayerPool

WAITS_FOR = ("all", "any")


def require_wait_for(wait_for: str) -> None:
    """Check the option `wait_for`.

    :raises InvalidValueError: If it is neither "all" nor "any".
    """
    if wait_for not in WAITS_FOR:
        raise InvalidValueError(f"wait_for must be 'all' or 'any', got {wait_for!r}")


def launch_rows(
    options: PlayerOptions,
    num_envs: int | None,
    n_instances: int = 1,
    behavior: str | Sequence[str] | None = None,
    areas_to_draw: int = 0,
) -> PlayerPool:
    """Launch and reset players whose agents of the given behaviors fit into the rows of one shared table.

    :param options: Options of each player. The embedded player lays out the areas that `num_envs` agents take, unless
        `num_areas` sets their number.
    :param num_envs: Number of rows; by default one for each agent that is alive after the reset.
    :param n_instances: Number of players to launch.
    :param behavior: Names of the behaviors to control, see `PlayerPool`.
    :param areas_to_draw: Number of areas to draw, see `PlayerPool`.
    :raises UnityGymError: If there are more agents than rows, or the areas cannot have this number of rows.
    """
    lays_out = num_envs is not None and options.num_areas is None and str(options.file_name).startswith(EMBEDDED)
    if num_envs is not None and lays_out:
        if num_envs < 1 or n_instances < 1 or num_envs % n_instances:
            raise UnityGymError(f"num_envs={num_envs} agents cannot be shared out over n_instances={n_instances}")
        options = replace(options, num_areas=num_envs // n_instances)
    # Its areas may turn out too many. The user's side channels then still have their messages.
    trial = replace(options, side_channels=()) if lays_out and options.side_channels else options
    pool = PlayerPool(trial, n_instances, behavior, areas_to_draw, rows=num_envs or 0, share_table=True)
    try:
        pool.reset()
        name, table = pool.only_table()
        agents = len(table)
        if trial is options and (num_envs is None or agents == num_envs):
            table.is_fixed = True
            return pool
        assert num_envs is not None
        per_area, rest = divmod(agents, num_envs)
        if not lays_out or rest:
            raise UnityGymError(
                f"num_envs is {num_envs} and the players show {agents} agents of {name!r}: pass num_envs={agents}"
            )
        if num_envs % (per_area * n_instances):
            raise UnityGymError(
                f"an area of {options.file_name} has {per_area} agents of {name!r}, so that num_envs is a multiple of "
                f"{per_area * n_instances} with n_instances={n_instances}, got {num_envs}"
            )
    except BaseException:
        pool.close()
        raise
    pool.close()
    options = replace(options, num_areas=num_envs // (per_area * n_instances))
    return launch_rows(options, num_envs, n_instances, behavior, areas_to_draw)
