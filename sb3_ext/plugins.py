"""Trainers, visual encoders, reward signals and statistics writers of other installed packages.

A package registers its classes and functions as entry points, whose names are used in a configuration file:

    # setup.cfg of the package                        # configuration file
    [options.entry_points]                            behaviors:
    sb3_ext.trainer_type =                              3DBall:
        my_ppo = my_package:MyPPO                         trainer_type: my_ppo
    sb3_ext.vis_encode_type =                             network_settings:
        my_cnn = my_package:my_cnn                          vis_encode_type: my_cnn
    sb3_ext.reward_signal =                               reward_signals:
        novelty = my_package:Novelty                        novelty: {strength: 0.1, size: 64}
    sb3_ext.stats_writer =                            stats_writers: [my_log]
        my_log = my_package:MyLog

- A trainer is a subclass of `sb3_ext.PPO`, `POCA` or `SAC`. Its `hyperparameters` are those of its base class and all
  keyword arguments that its own constructor adds.
- An encoder is called with the shape (C, H, W) of the images and a number of features. It returns a `torch.nn.Module`
  that maps float32 (n, C, H, W) in `[0, 1]` to (n, features).
- A reward signal is a subclass of `sb3_ext.reward_signals.RewardSignal`. The keys of its block are the arguments of its
  constructor; if that accepts any keyword, the keys of `network_settings` in the block are passed, too.
- A statistics writer is called with the folder of the run and returns a `StatsWriter`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, get_type_hints

from unity_gym.errors import UnityGymError

TRAINERS, ENCODERS, SIGNALS, WRITERS = (
    f"sb3_ext.{kind}" for kind in ("trainer_type", "vis_encode_type", "reward_signal", "stats_writer")
)

_OWN_WRITERS = {"mlflow": "sb3_ext.trackers:MLflowTracker", "wandb": "sb3_ext.trackers:WandbTracker"}


class StatsWriter(Protocol):
    """A receiver of the statistics of a run, in addition to TensorBoard."""

    def write_stats(self, behavior: str, step: int, stats: Mapping[str, float]) -> None:
        """Process the statistics since the previous summary.

        :param behavior: Name of the behavior.
        :param step: Multiple of `summary_freq` that has passed.
        :param stats: Values by their names in TensorBoard.
        """

    def close(self) -> None:
        """Finish, as the run has ended."""


class Parameter:
    """A keyword argument of a plugin's constructor.

    :param annotation: Type; `Any` without an annotation.
    :param default: Default value; `...` for a required argument.
    """

    def __init__(self, annotation: Any, default: Any) -> None:
        self.annotation, self.default = annotation, default


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages register in a group, sorted."""
    return sorted(_entry_points(group))


def load_plugin(group: str, name: str) -> Any:
    """Return the object that a package registers under a name.

    :param group: Group of the entry points: `TRAINERS`, `ENCODERS`, `SIGNALS` or `WRITERS`.
    :param name: Name of the entry point.
    :raises UnityGymError: If there is no such entry point, or importing it fails.
    """
    found = _entry_points(group)
    if name not in found:
        raise UnityGymError(f"no installed package registers {name!r} in {group}; known are {sorted(found)}")
    try:
        return found[name].load()
    except Exception as error:  # other packages can raise anything
        raise UnityGymError(
            f"{name!r} of {group} cannot be imported from {found[name].value!r}: {type(error).__name__}: {error}. "
            "Correct or uninstall the package that registers it"
        ) from error


def load_writers(names: list[str], folder: Path) -> list[StatsWriter]:
    """Return the statistics writers of these names for a run.

    :raises UnityGymError: If one cannot be loaded.
    """
    return [load_plugin(WRITERS, name)(folder) for name in names]


def parameters(plugin: type, base: type | None = None) -> dict[str, Parameter]:
    """Return the keyword arguments of a class's constructor by name.

    :param base: Class whose arguments are omitted.
    """
    base_parameters = set() if base is None else set(inspect.signature(base).parameters)
    hints = get_type_hints(plugin.__init__)  # type: ignore[misc]
    return {
        name: Parameter(hints.get(name, Any), ... if given.default is given.empty else given.default)
        for name, given in inspect.signature(plugin).parameters.items()
        if given.kind in (given.POSITIONAL_OR_KEYWORD, given.KEYWORD_ONLY)
        and not name.startswith("_")
        and name not in base_parameters
    }


def takes_any_keyword(plugin: type) -> bool:
    """Return whether the constructor of a class accepts any keyword argument."""
    return any(given.kind is given.VAR_KEYWORD for given in inspect.signature(plugin).parameters.values())


def _entry_points(group: str) -> dict[str, EntryPoint]:
    own = [EntryPoint(name, value, group) for name, value in _OWN_WRITERS.items() if group == WRITERS]
    return {entry.name: entry for entry in (*own, *entry_points(group=group))}
