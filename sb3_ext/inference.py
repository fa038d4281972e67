"""Inference: agents act with the policies of a run, without training or output files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_ext.console import LOG, Progress, console_logging, print_line, reward_parts, summary_line
from sb3_ext.curriculum import EnvironmentParameterManager
from sb3_ext.from_settings import build_model
from sb3_ext.hardware import update_size, use_threads
from sb3_ext.launching import launch, with_seed
from sb3_ext.policies import AgentPolicy
from sb3_ext.run_checkpoints import load_policy
from sb3_ext.runs import Run
from sb3_ext.settings import FixedSettings, RewardSignal, RewardSignals, RunSettings
from unity_gym.envs.rendering import RENDER_FPS, render_frames
from unity_gym.errors import UnityGymError
from unity_gym.pool import PlayerPool
from unity_gym.slots import AgentTable
from unity_gym.specs import ActionTuple, Array


class Evaluation(NamedTuple):
    """Returns of a behavior's episodes: their number, mean and standard deviation."""

    episodes: int
    mean_reward: float
    std_reward: float


class ActingTeam:
    """Agents of one behavior and team that act with a policy.

    :param name: Name of the behavior, with its team if it has one.
    :param table: Table of the agents.
    :param policy: Policy of the behavior.
    :param deterministic: Select the most likely actions.
    """

    def __init__(self, name: str, table: AgentTable, policy: AgentPolicy, deterministic: bool) -> None:
        self.name, self.table = name, table
        self.timesteps = 0
        """Number of decisions of the agents."""
        self._policy, self._deterministic = policy, deterministic
        self._memory = np.zeros((0, policy.memory_size), np.float32)

    def select_actions(self) -> ActionTuple:
        """Return the actions of all rows; zeros for rows that do not request a decision."""
        table = self.table
        rows = np.flatnonzero(table.requests_decision)
        actions = table.spec.action_spec.empty_action(len(table))
        self._memory = _padded(self._memory, len(table))
        if len(rows):
            observations = [array[rows] for array in table.observations]
            chosen, self._memory[rows] = self._policy.select_actions(
                observations, table.action_mask[rows], self._memory[rows], self._deterministic
            )
            actions.continuous[rows], actions.discrete[rows] = chosen.continuous, chosen.discrete
        self.timesteps += len(rows)
        return actions

    def store_outcomes(self) -> None:
        """Reset the recurrent states of the agents whose episodes have ended."""
        self._memory = _padded(self._memory, len(self.table))
        self._memory[self.table.terminated | self.table.truncated] = 0


class EpisodeReturns:
    """Returns of a team's episodes, the same number per agent.

    The episode of an agent in a group ends with the group. Its return is the mean over the members that are left then,
    and counts for all members. Returns include group rewards.

    :param table: Table of the agents, after a reset.
    :param episodes: Minimum number of episodes; None for no limit. Every agent contributes the same share of them, at
        least one: its first ones.
    """

    def __init__(self, table: AgentTable, episodes: int | None = None) -> None:
        self._table, self._episodes = table, episodes
        self._share: int | None = None  # episodes per agent or group; computed as soon as there are agents
        self._returns: Array = np.zeros(0)
        self._ended: Array = np.zeros(0, np.int64)  # per row: number of episodes that have ended
        self._group: Array = np.zeros(0, np.int64)  # per row: group of its current or last agent
        self._note_groups()
        self.values: list[float] = []
        """Returns of the episodes that have ended."""

    def store_outcomes(self) -> None:
        """Add the rewards and episode ends of an environment step."""
        table = self._table
        self._returns = _padded(self._returns, len(table)) + table.reward + table.group_reward
        self._ended, self._group = _padded(self._ended, len(table)), _padded(self._group, len(table))
        over = table.terminated | table.truncated
        last = np.flatnonzero(over & (table.group_ended | (self._group < 0)))  # the other members ended earlier
        for group in np.unique(self._group[last]).tolist():
            members = self._group == group
            if self._share is None or (self._ended[members] < self._share).any():
                self.values.append(float(self._returns[last[self._group[last] == group]].mean()))
            self._ended[members] += 1
        self._returns[over] = 0
        self._note_groups()

    def _note_groups(self) -> None:
        """Store the groups of the agents with a running episode; agents that have ended keep theirs."""
        table = self._table
        self._group = np.where(table.alive, table.group, _padded(self._group, len(table)))
        if self._share is None and self._episodes is not None and table.alive.any():
            self._share = -(-self._episodes // len(np.unique(self._group[table.alive])))

    @property
    def are_complete(self) -> bool:
        """Whether every agent with a running episode has contributed its share."""
        alive = self._table.alive
        return self._share is not None and bool(self.values) and bool((self._ended[alive] >= self._share).all())


class Video:
    """Video file that is written frame by frame.

    :param path: Path of the file, whose suffix is the format, such as .mp4.
    :param fps: Frames per second.
    :raises UnityGymError: If the path is unsuitable, or the package imageio-ffmpeg is missing.
    """

    def __init__(self, path: Path, fps: float) -> None:
        if not path.suffix or path.is_dir():
            raise UnityGymError(f"--record must be the path of a video file such as run.mp4, got {str(path)!r}")
        if not path.parent.is_dir():
            raise UnityGymError(
                f"{path} cannot be written: there is no folder {path.parent}. Make it, or correct --record"
            )
        try:
            import imageio_ffmpeg  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise UnityGymError("--record needs imageio-ffmpeg: pip install 'unity-gym[video]'") from error
        self._write_frames, self._path, self._fps = imageio_ffmpeg.write_frames, path, fps
        self._writer: Any = None

    def add(self, frame: Array) -> None:
        """Append a frame, uint8 (height, width, 3), with the size of the first one.

        :raises UnityGymError: If the file cannot be written.
        """
        with self._writing():
            if self._writer is None:
                size = (frame.shape[1], frame.shape[0])
                self._writer = self._write_frames(str(self._path), size, fps=self._fps, macro_block_size=2)
                self._writer.send(None)
            self._writer.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        """Complete the file.

        :raises UnityGymError: If the file cannot be written.
        """
        if self._writer is not None:
            with self._writing():
                self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise UnityGymError(
                f"{self._path} cannot be written as a video, see the lines of ffmpeg above. Give a path that ends in "
                ".mp4, in a folder with room that can be written"
            ) from error


class Inference:
    """Players whose agents act with the policies of a run.

    :param settings: Settings of the run.
    :param run: Folder of the policies.
    :param pool: Players, after a reset.
    :param episodes: Minimum number of episodes of each behavior; None for no limit.
    :param video: Video of the first player; None for no video.
    :raises UnityGymError: If a behavior has no policy, or one that is incompatible with the network or behavior.
    """

    def __init__(
        self, settings: RunSettings, run: Run, pool: PlayerPool, episodes: int | None, video: Video | None
    ) -> None:
        self._settings, self._run, self._pool, self._episodes, self._video = settings, run, pool, episodes, video
        self._policies: dict[str, AgentPolicy] = {}
        self.teams: dict[str, ActingTeam] = {}
        self.returns: dict[str, EpisodeReturns] = {}
        self._add_new_behaviors()
        self._record()

    @property
    def is_complete(self) -> bool:
        """Whether every behavior has completed its episodes."""
        return bool(self.returns) and all(returns.are_complete for returns in self.returns.values())

    def step(self) -> None:
        """Let the agents act once."""
        self._pool.step_once({name: team.select_actions() for name, team in self.teams.items()})
        for name, team in self.teams.items():
            team.store_outcomes()
            self.returns[name].store_outcomes()
        self._add_new_behaviors()
        self._record()

    def label(self, name: str) -> str:
        """Return the name of a behavior, with the team if it has several."""
        plain = name.partition("?")[0]
        return plain if sum(other.partition("?")[0] == plain for other in self.teams) == 1 else name

    def evaluations(self) -> dict[str, Evaluation]:
        """Return the results of each behavior with at least one episode, by `label`."""
        return {
            self.label(name): Evaluation(
                len(returns.values), float(np.mean(returns.values)), float(np.std(returns.values))
            )
            for name, returns in self.returns.items()
            if returns.values
        }

    def progress(self) -> list[str]:
        """Return the number of episodes and timesteps of each behavior so far, as text."""
        return [
            f"{self.label(name)} {len(self.returns[name].values)} of {self._episodes} in {team.timesteps} timesteps"
            for name, team in self.teams.items()
        ]

    def _add_new_behaviors(self) -> None:
        for name in sorted(self._pool.tables.keys() - self.teams.keys()):
            table, plain = self._pool.tables[name], name.partition("?")[0]
            settings = self._settings.behavior(name)
            if plain not in self._policies and isinstance(settings, FixedSettings):
                self._policies[plain] = build_model(table.spec, settings, None).policy
            if plain not in self._policies:
                # Acting requires neither reward signals nor demonstrations.
                extrinsic = RewardSignals(extrinsic=RewardSignal())
                acting = settings.model_copy(update={"reward_signals": extrinsic, "behavioral_cloning": None})
                policy = build_model(table.spec, acting, self._settings.torch_settings.device).policy
                load_policy(policy, self._run.policy_file(self._settings, plain))
                use_threads([update_size(policy, len(table))])
                self._policies[plain] = policy.actor()
            self.teams[name] = ActingTeam(name, table, self._policies[plain], settings.is_deterministic)
            self.returns[name] = EpisodeReturns(table, self._episodes)

    def _record(self) -> None:
        if self._video is not None:
            self._video.add(render_frames(self._pool, next(iter(self._pool.tables.values())))[0])


def run_inference(
    settings: RunSettings, episodes: int | None = None, record: str | None = None, as_json: bool = False
) -> None:
    """Let the agents act with the policies of a run until its episodes are complete or a signal arrives.

    Print the mean and standard deviation of the returns of each behavior at the end; without `episodes`, print them
    after each `summary_freq` timesteps, too.

    :param settings: Settings of the run, with `inference`.
    :param episodes: Minimum number of episodes of each behavior, the same number per agent; None for no limit.
    :param record: Path of a video of the first player; None for none.
    :param as_json: Print one JSON object, by behavior, instead of lines.
    :raises UnityGymError: If the settings or the run's folder are invalid, or a player fails.
    :raises KeyboardInterrupt: If a signal ends it.
    """
    if settings.ray is not None:
        raise UnityGymError("--inference acts in this process only: leave --ray out, and delete the block ray")
    evaluations = evaluate(settings, episodes, record)
    if as_json:
        print_line(json.dumps({name: evaluation._asdict() for name, evaluation in evaluations.items()}))
        return
    for name, (count, mean, std) in evaluations.items():
        print_line(f"{name}: mean reward {mean:.3f} ± {std:.3f} over {count} episodes")


def evaluate(settings: RunSettings, episodes: int | None, record: str | None = None) -> dict[str, Evaluation]:
    """Let the agents act with the policies of a run, and return the results of each behavior; see `run_inference`."""
    run = Run(settings)
    settings = with_seed(settings)
    parameters = EnvironmentParameterManager(settings, run)
    video = None if record is None else Video(Path(record), RENDER_FPS)
    with (
        console_logging(settings.debug, None if episodes is None else sys.stderr),
        launch(settings, parameters, None, areas_to_draw=int(video is not None)) as pool,
    ):
        started = time.monotonic()
        try:
            inference = Inference(settings, run, pool, episodes, video)
            shown, progress = dict.fromkeys(inference.teams, 0), Progress(episodes is not None)
            while not inference.is_complete:
                inference.step()
                if progress.is_due:
                    progress.report("Episodes", inference.progress())
                if episodes is None:
                    _log_summaries(settings, inference, shown, time.monotonic() - started)
        finally:
            if video is not None:
                video.close()
    return inference.evaluations()


def _log_summaries(settings: RunSettings, inference: Inference, shown: dict[str, int], seconds: float) -> None:
    """Print a line about each team that has completed `summary_freq` timesteps since its last one.

    :param shown: Timesteps at the last line, by team, which are updated in place.
    :param seconds: Seconds since the start.
    """
    for name, team in inference.teams.items():
        frequency = settings.behavior(name).summary_freq
        step = team.timesteps // frequency * frequency
        if step > shown.get(name, 0):
            shown[name] = step
            values = inference.returns[name].values
            LOG.info(summary_line(inference.label(name), step, seconds, reward_parts(values), "Not Training"))
            values.clear()


def _padded(array: Array, rows: int) -> Array:
    more = rows - len(array)
    return np.pad(array, ((0, more), *[(0, 0)] * (array.ndim - 1))) if more else array
