"""Statistics of a training: TensorBoard tags by one rule, and their values between two summaries."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from sb3_ext.console import reward_parts
from sb3_ext.files import saving
from sb3_ext.plugins import StatsWriter
from sb3_ext.run_logs import Timers
from unity_gym.side_channels import EnvironmentStats, StatsAggregationMethod
from unity_gym.specs import Array

_TENSORBOARD_TAGS = {
    "train/policy_gradient_loss": "Losses/Policy Loss",
    "train/actor_loss": "Losses/Policy Loss",
    "train/q1_loss": "Losses/Q1 Loss",
    "train/q2_loss": "Losses/Q2 Loss",
    "train/value_loss": "Losses/Value Loss",
    "train/baseline_loss": "Losses/Baseline Loss",
    "train/cloning_loss": "Losses/Pretraining Loss",
    "train/imitation_loss": "Losses/Cloning Loss",
    "validation/loss": "Losses/Validation Loss",
    "validation/accuracy": "Policy/Validation Accuracy",
    "validation/mean_absolute_error": "Policy/Validation Error",
    "train/continuous_ent_coef": "Policy/Continuous Entropy Coeff",
    "train/discrete_ent_coef": "Policy/Discrete Entropy Coeff",
    "train/entropy": "Policy/Entropy",
    "train/learning_rate": "Policy/Learning Rate",
    "train/clip_range": "Policy/Epsilon",
    "train/beta": "Policy/Beta",
    "train/gail_grad_mag_loss": "Policy/GAIL Grad Mag Loss",
    "rollout/experience_age": "Policy/Experience Age",
}
_REWARD_TAGS = ("Environment/Cumulative Reward", "Environment/Group Cumulative Reward")
_LARGEST_IN_HISTOGRAM = 1e19  # TensorBoard's bins end at 1e20
_ABBREVIATIONS = {"gail": "GAIL", "rnd": "RND"}
_VALUES = {"value": "Value", "reward": "Reward", "value_estimate": "Value Estimate"}
_VALUES["baseline_estimate"] = "Baseline Estimate"


def tensorboard_tag(record: str, signals: Iterable[str]) -> str | None:
    """Return the tag of a record of a model, as in Unity's trainer; None for records that are not written.

    Reward signals: `…/<signal>_reward` (and value, value_estimate, baseline_estimate) is "Policy/<Signal> Reward";
    `…/<signal>_<name>_loss` is "Losses/<Signal> <Name> Loss"; `…/<signal>_<name>` is "Policy/<Signal> <Name>".

    :param record: Name in the model's logger.
    :param signals: Names of the model's reward signals.
    """
    if record in _TENSORBOARD_TAGS:
        return _TENSORBOARD_TAGS[record]
    group, _, rest = record.partition("/")
    for signal in signals:
        name = rest.removeprefix(f"{signal}_")
        if name == rest or group not in ("train", "rollout"):
            continue
        if name in _VALUES:
            # The reward of the scene is counted per episode instead.
            return None if (signal, name) == ("extrinsic", "reward") else f"Policy/{signal.title()} {_VALUES[name]}"
        title = _ABBREVIATIONS.get(signal, signal.title())
        words = " ".join("KL" if word == "kl" else word.title() for word in name.split("_"))
        return f"{'Losses' if name.endswith('loss') else 'Policy'}/{title} {words}"
    return None


class Statistics:
    """Statistics of one behavior between two summaries.

    :param folder: Folder of the TensorBoard file; None for no file.
    :param first_step: Current timesteps of the training; points of a previous run after them are hidden.
    :param signals: Names of the reward signals.
    :param writers: Further statistics writers, which receive the same numbers.
    :param hyperparameters: Text under Hyperparameters in TensorBoard.
    """

    def __init__(
        self,
        folder: Path | None,
        first_step: int,
        signals: Collection[str],
        writers: Sequence[StatsWriter] = (),
        hyperparameters: str = "",
    ) -> None:
        self._writers, self._hyperparameters = writers, hyperparameters
        self._folder, self._first_step, self._signals = folder, first_step, list(signals)
        self._values: dict[str, list[float]] = defaultdict(list)
        self._methods = dict.fromkeys(_REWARD_TAGS, StatsAggregationMethod.HISTOGRAM)  # by tag; the others are means
        self._board: SummaryWriter | None = None
        self.returns: list[float] = []
        """Returns of episodes, with group rewards, except for members that ended before their group."""

    def add(self, values: Mapping[str, Iterable[float]]) -> None:
        """Add values, by tag."""
        for tag, numbers in values.items():
            self._values[tag] += numbers

    def add_stats(self, steps: Iterable[Mapping[int, EnvironmentStats]]) -> None:
        """Add the statistics of the scenes; see `sb3_ext.sampler.Samples`."""
        for players in steps:
            for player, stats in players.items():
                for tag, pairs in stats.items():
                    self._add_pairs(tag, pairs, player)

    def _add_pairs(self, tag: str, pairs: Iterable[tuple[float, StatsAggregationMethod]], player: int) -> None:
        for value, method in pairs:
            if method is StatsAggregationMethod.MOST_RECENT:
                if player > 0:  # as in Unity, the most recent value is that of the first player
                    continue
                self._values[tag].clear()
            self._values[tag].append(value)
            self._methods[tag] = method

    def add_records(self, records: Mapping[str, float]) -> None:
        """Add the records of a model."""
        for record, number in records.items():
            if (tag := tensorboard_tag(record, self._signals)) is not None:
                self._values[tag].append(abs(number) if record == "train/policy_gradient_loss" else number)

    def add_episodes(self, episodes: Mapping[str, Array], strength: float | None) -> None:
        """Add finished episodes; see `sb3_ext.sampler.Samples`.

        :param strength: Factor of the scene's reward; None if it is not a reward signal.
        """
        returns = episodes["reward"] + episodes["group_reward"]
        self._values["Environment/Cumulative Reward"] += episodes["reward"].tolist()
        # A member that ended before its group is not counted, as in Unity.
        if episodes["is_group_end"].any():
            ended = episodes["group_reward"][episodes["is_group_end"]]
            self._values["Environment/Group Cumulative Reward"] += ended.tolist()
        self.returns += returns[episodes["is_whole"]].tolist()
        if strength is not None:
            self._values["Policy/Extrinsic Reward"] += (returns * strength).tolist()
        # As in Unity, the decision after which the episode ended is not counted.
        self._values["Environment/Episode Length"] += (episodes["length"] - 1).tolist()

    def write(self, name: str, step: int, timers: Timers) -> None:
        """Write the values, aggregated.

        :param name: Name of the behavior.
        :raises UnityGymError: If the TensorBoard file cannot be written.
        """
        # The records of an update are means per decision, but the tags are sums over episodes.
        lengths = self._values.get("Environment/Episode Length", [])
        for signal in self._signals:
            tag = f"Policy/{signal.title()} Reward"
            if signal != "extrinsic" and tag in self._values:
                mean = np.mean(self._values.pop(tag))
                if lengths:
                    self._values[tag] = [float(mean * (np.mean(lengths) + 1))]
        means = {tag: float(np.mean(values)) for tag, values in self._values.items()}
        sums = {tag for tag, method in self._methods.items() if method is StatsAggregationMethod.SUM}
        numbers = means | {tag: float(np.sum(self._values[tag])) for tag in means.keys() & sums}
        if self._folder is not None:
            for tag, value in means.items():
                timers.gauge(f"{name}.{tag.replace('/', '.').replace(' ', '')}.mean", value)
            self._write_board(self._folder, step, numbers)
        for writer in self._writers:  # the last, as one may raise to end the run
            writer.write_stats(name, step, numbers)

    def _write_board(self, folder: Path, step: int, numbers: Mapping[str, float]) -> None:
        with saving(folder):
            if self._board is None:
                self._board = SummaryWriter(str(folder), purge_step=self._first_step + 1)
                if self._hyperparameters:  # as a code block; the tag is Hyperparameters/text_summary
                    self._board.add_text("Hyperparameters", textwrap.indent(self._hyperparameters, "    "), step)
            for tag, number in numbers.items():
                self._board.add_scalar(tag, number, step)
                if self._methods.get(tag) is StatsAggregationMethod.HISTOGRAM:
                    values = np.clip(self._values[tag], -_LARGEST_IN_HISTOGRAM, _LARGEST_IN_HISTOGRAM)
                    self._board.add_histogram(f"{tag}_hist", values, step)
            self._board.flush()

    def reward_parts(self) -> list[str]:
        """Return the rewards since the last summary in printed form."""
        return reward_parts(*(self._values.get(tag, []) for tag in _REWARD_TAGS))

    def clear(self) -> None:
        """Start the next summary."""
        self._values.clear()
        self.returns = []

    def close(self) -> None:
        """Close the TensorBoard file."""
        if self._board is not None:
            self._board.close()
