"""Behavioral cloning as an algorithm: a policy imitates demonstrations or a teacher."""

from __future__ import annotations

import copy
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import configure_logger

from sb3_ext.agents import AgentTableLike
from sb3_ext.algorithm import ACTION_SPACES, UnityAlgorithm
from sb3_ext.collector import Collection
from sb3_ext.experience import Trajectories
from sb3_ext.expert import DemonstrationSource, Expert, demonstration_exists, require_demonstration
from sb3_ext.imitation import compare, imitation_loss, refresh_memory, sequence_length
from sb3_ext.policies import POLICY_ALIASES, AgentPolicy, UnityPolicy
from sb3_ext.rollout import Batch, Rollout
from sb3_ext.teacher import Teacher
from sb3_ext.vec_env import UnityVecEnv
from unity_gym.demonstrations import Demonstration, load
from unity_gym.errors import NotReadyError, UnityGymError
from unity_gym.specs import ActionTuple

SelfBC = TypeVar("SelfBC", bound="BC")
Sequences = tuple[torch.Tensor, torch.Tensor]
"""Decisions of a rollout, int64 (sequences, length), and a bool array of that shape, False for padding."""

_CHUNK = 4096  # decisions that are scored at once
_ONE_SOURCE = "BC learns from demonstrations or from a teacher: give one of them"
_MIN_STD = 0.01  # minimum standard deviation of raw continuous actions


class BC(UnityAlgorithm):
    """Behavioral cloning (Pomerleau 1991): supervised learning of the expert's action in each state.

    Offline, BC learns from demonstrations and validates on a fraction of them. Learning stops when the validation loss
    has not fallen for `patience` epochs, and the best weights are restored. `validation_scores` contains the validation
    scores; see `score`. Online, with a teacher, the agents of the environment execute the teacher's actions while the
    policy learns from the decisions recorded so far. Call `teacher.stop()`, `teacher.start()` and `teacher.clear()` at
    any time.

    The loss is that of `sb3_ext.imitation`. It does not change the standard deviations of continuous actions. They are
    set to the root mean square of the validation error, their maximum-likelihood estimate. The critic is not trained.

    A timestep, of which `learn` counts `total_timesteps`, is one decision learned from, counted in each epoch.

    :param policy: "UnityPolicy", or a network of Stable-Baselines3: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
    :param env: Environment with the agents of the policy, in which a teacher acts. None learns offline, for the
        behavior of the demonstrations.
    :param learning_rate: Learning rate, a number or a function of the remaining progress (1 → 0).
    :param batch_size: Decisions per minibatch.
    :param demonstrations: Path of a `.demo` file or a folder of them, or a loaded demonstration.
    :param teacher: Policy that acts instead of demonstrations for the agents of `env`, a `UnityVecEnv`; see `Teacher`.
        Or a `Teacher` that acts in another loop, which calls `train`.
    :param validation_fraction: Fraction of the demonstrations to validate on, in [0, 1): whole episodes, or the end of
        each demonstration if there are too few episodes.
    :param patience: Epochs without a lower validation loss, after which `learn` stops.
    :param teacher_steps_per_epoch: Decisions of the teacher per update. In a training run with demonstrations,
        decisions of the agents per update.
    :param n_epochs: Epochs per update, in a training run.
    :param window: Number of updates whose decisions are learned from, the newest ones, in a training run with another
        behavior as the teacher.
    :param action_scaling: Action scaling of `UnityPolicy`.
    :param stats_window_size: Episodes over which the logged return of the teacher is averaged.
    :param tensorboard_log: Folder for TensorBoard; None for no log.
    :param policy_kwargs: Parameters of `UnityPolicy`, such as `hidden_units` and `normalize`.
    :param verbose: Output: 0 for none, 1 for progress, 2 for debugging.
    :param seed: Seed of NumPy, torch and the environment.
    :param device: "cpu", "cuda" or "auto".
    :raises DemonstrationError: If a demonstration does not exist or is incompatible with the behavior spec. The message
        compares both, sensor by sensor.
    :raises UnityGymError: If demonstrations and a teacher are given, or neither, or a hyperparameter is out of range.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = POLICY_ALIASES
    policy: UnityPolicy
    collection = Collection("cut", None)

    def __init__(
        self,
        policy: str | type[UnityPolicy],
        env: GymEnv | str | None = None,
        learning_rate: float | Schedule = 1e-3,
        batch_size: int = 64,
        *,
        demonstrations: DemonstrationSource | None = None,
        teacher: Any = None,
        validation_fraction: float = 0.1,
        patience: int = 10,
        teacher_steps_per_epoch: int = 1000,
        n_epochs: int = 1,
        window: int = 20,
        action_scaling: str = "unity",
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        self.batch_size, self.validation_fraction, self.patience = batch_size, validation_fraction, patience
        self.teacher_steps_per_epoch, self.action_scaling = teacher_steps_per_epoch, action_scaling
        self.demonstrations, self.n_epochs, self.window = demonstrations, n_epochs, window
        self._check_options()
        self.reward_signals = []
        self._collected = 0  # decisions since the last update of a run
        self._watched: list[Trajectories] = []  # trajectories of a run's teacher, the oldest first
        self._unseen = 0  # number of new ones among them
        self._parts: tuple[Sequences, Sequences | None] | None = None  # training and validation part
        super().__init__(
            policy,
            env,
            learning_rate,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            supported_action_spaces=ACTION_SPACES,
        )
        self.validation_scores: dict[str, float] = {}
        """Scores of the policy on decisions that it has not learned from; see `score`."""
        self.adapter = None if self.env is None else self._adapter_of(self.env)
        self.teacher: Teacher | None = teacher  # until `_setup_model`, any policy
        self._expert: Expert | None = None
        if _init_setup_model:
            if demonstrations is None and teacher is None:
                raise UnityGymError(_ONE_SOURCE)
            self._setup_model()

    def _teacher(self, policy: Any) -> Teacher:
        if isinstance(policy, Teacher):
            if self.adapter is None:
                self._set_spec(policy.spec)
            return policy
        if not isinstance(self.env, UnityVecEnv):
            raise UnityGymError(
                f"a teacher acts with the agents of a UnityVecEnv (not wrapped), not with {type(self.env).__name__}: "
                "give one as env, or a Teacher that a loop of yours lets act"
            )
        return Teacher(policy, self.env.table.spec, self.env.layout)

    def _check_options(self) -> None:
        for name in ("batch_size", "patience", "teacher_steps_per_epoch", "n_epochs", "window"):
            if (number := getattr(self, name)) < 1:
                raise UnityGymError(f"{name} must be at least 1, got {number}")
        if not 0 <= self.validation_fraction < 1:
            raise UnityGymError(
                f"validation_fraction must be a share from 0 to below 1, got {self.validation_fraction}"
            )

    def _setup_model(self) -> None:
        """Build the policy, and read the demonstrations; if those of a saved model are missing, only learning fails."""
        self._require_own_class()
        self._setup_lr_schedule()
        shown = self.demonstrations
        if self.teacher is not None:
            if shown is not None:
                raise UnityGymError(_ONE_SOURCE)
            self.teacher = self._teacher(self.teacher)
        self._trained = 0  # decisions of the teacher up to the last epoch; a loaded model has a new teacher
        if shown is not None and self.adapter is None:
            require_demonstration(shown)
            shown = shown if isinstance(shown, Demonstration) else load(Path(shown))
            self._set_spec(shown.spec)
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            adapter=self.adapter,
            action_scaling=self.action_scaling,
            **self.policy_kwargs,
        ).to(self.device)
        self.adapter = self.policy.adapter
        if shown is not None and demonstration_exists(shown):
            self._expert = self._read(shown)

    def select_actions(self, table: AgentTableLike, deterministic: bool = False, learn: bool = False) -> ActionTuple:  # noqa: ARG002
        """Select actions as `UnityAlgorithm.select_actions` does; decisions of the student are not stored."""
        return super().select_actions(table, deterministic, learn=False)

    def _read(self, demonstration: DemonstrationSource) -> Expert:
        policy = self.policy
        return Expert(demonstration, policy.adapter.spec, policy.body.state_size, self.device)

    def _excluded_save_params(self) -> list[str]:
        in_runs = ["_collected", "_watched", "_unseen", "_parts"]
        return [*super()._excluded_save_params(), "teacher", "_expert", *in_runs]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        if self.env is not None:
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        # As SB3 does, without an environment to reset.
        self.start_time = time.time_ns()
        self.ep_info_buffer, self.ep_success_buffer = deque(maxlen=self._stats_window_size), deque()
        self.num_timesteps = 0 if reset_num_timesteps else self.num_timesteps
        self._num_timesteps_at_start = self.num_timesteps
        self._total_timesteps = total_timesteps = total_timesteps + self.num_timesteps
        if not self._custom_logger:
            self._logger = configure_logger(self.verbose, self.tensorboard_log, tb_log_name, reset_num_timesteps)
        return total_timesteps, self._init_callback(callback, progress_bar)

    def _start_collection(self) -> None:
        super()._start_collection()
        if self.teacher is not None:
            self.teacher.start_episodes()

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        callbacks = [*callback] if isinstance(callback, list) else [callback] if callback is not None else []
        return super()._init_callback([*callbacks, *([_Progress()] if progress_bar else [])])

    def learn(
        self: SelfBC,
        total_timesteps: int = 1_000_000,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "BC",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfBC:
        """Learn from the expert for `total_timesteps` decisions, or until the validation loss stops falling.

        :param log_interval: Epochs between two log entries; None for no log.
        :raises NotReadyError: If the teacher has no recorded decisions and does not record, or a loaded model has no
            teacher.
        """
        if self.teacher is None and self.demonstrations is None:
            raise NotReadyError(
                "this model has nothing to learn from, as a saved model does not contain its teacher: pass it to "
                "BC.load(path, env, teacher=teacher)"
            )
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        with self._learning():
            if self.teacher is None:
                self._learn_from_demonstrations(total_timesteps, callback, log_interval)
            else:
                self._learn_from_teacher(self.teacher, total_timesteps, callback, log_interval)
        callback.on_training_end()
        self.policy.set_training_mode(False)
        return self

    def _learn_from_demonstrations(
        self, total_timesteps: int, callback: BaseCallback, log_interval: int | None
    ) -> None:
        expert, shown, kept = self._split_demonstrations()
        policy = self.policy
        best: dict[str, torch.Tensor] | None = None
        if kept is not None and self.validation_scores:  # what was learned before may remain the best
            best, self.validation_scores = copy.deepcopy(policy.state_dict()), self._score(expert, kept)
        stale_epochs = epochs = 0
        while self.num_timesteps < total_timesteps and stale_epochs < self.patience:
            continues = self._train_epoch(expert, shown, callback)
            epochs += 1
            if kept is not None:
                scores = self._score(expert, kept)
                stale_epochs += 1
                if best is None or scores["loss"] < self.validation_scores["loss"]:
                    best, self.validation_scores, stale_epochs = copy.deepcopy(policy.state_dict()), scores, 0
                self._record_scores(scores)
            if log_interval is not None and epochs % log_interval == 0:
                self._dump()
            if not continues:
                break
        if best is not None:
            policy.load_state_dict(best)
        self._set_log_std(expert, shown if kept is None else kept)

    def _learn_from_teacher(
        self, teacher: Teacher, total_timesteps: int, callback: BaseCallback, log_interval: int | None
    ) -> None:
        epochs, continues = 0, True
        while continues and self.num_timesteps < total_timesteps:
            if self.env is not None and teacher.is_recording:
                self._watch(teacher)
            continues = self._train(teacher, callback)
            epochs += 1
            if log_interval is not None and epochs % log_interval == 0:
                self._dump()

    def train(self) -> None:
        """Make the update that is due, for a loop that lets agents act.

        With a `Teacher`, the update is one epoch over its recorded decisions. In a training run, it is `n_epochs`
        epochs over the demonstrations, or over the trajectories that `watch` has stored.

        :raises NotReadyError: If there is nothing to learn from.
        :raises UnityGymError: If there is no teacher, and no agents act.
        """
        if self.teacher is not None:
            self._train(self.teacher, None)
            return
        if self._collector is None:
            raise UnityGymError("demonstrations are learned from by learn(): train() is for a teacher, and for runs")
        self._collected = 0
        if self.demonstrations is not None:
            self._train_on_demonstrations()
        else:
            self._train_on_watched()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self._end_update()

    def _split_demonstrations(self) -> tuple[Expert, Sequences, Sequences | None]:
        """Return the demonstrations with their training and validation part; a new policy normalizes by the former."""
        if self._expert is None:
            assert self.demonstrations is not None
            self._expert = self._read(self.demonstrations)
        expert, policy = self._expert, self.policy
        if self._parts is None:
            with torch.random.fork_rng(devices=[]):  # a resumed training validates on the same part
                torch.manual_seed(0)
                self._parts = _split(expert, sequence_length(policy), self.validation_fraction)
        shown, kept = self._parts
        if policy.has_fresh_normalization:
            decisions, valid = shown
            policy.body.update_normalization([array[decisions[valid]] for array in expert.observations])
        return expert, shown, kept

    def _train_on_demonstrations(self) -> None:
        expert, shown, kept = self._split_demonstrations()
        for _ in range(self.n_epochs):
            self._train_epoch(expert, shown, None)
        if kept is not None:
            self.validation_scores = self._score(expert, kept)
            self._record_scores(self.validation_scores)
        self._set_log_std(expert, shown if kept is None else kept)

    def _train_on_watched(self) -> None:
        if not self._watched:
            raise NotReadyError("no decision of the teacher was recorded: let the teacher's behavior act first")
        policy, length = self.policy, sequence_length(self.policy)
        newest = Rollout.from_trajectories(Trajectories.join(self._watched[-self._unseen :]), self.device)
        policy.body.update_normalization(newest.observations)
        if self._n_updates:
            # Decisions that were not learned from yet are validation data.
            self.validation_scores = self._score(newest, newest.sequences(length))
            self._record_scores(self.validation_scores)
        self._unseen, most = 0, self.window * self.teacher_steps_per_epoch
        while sum(map(len, self._watched[1:])) >= most:
            del self._watched[0]
        # Merged, so that recurrent states follow from the start of an episode.
        rollout = Rollout.from_trajectories(Trajectories.join(self._watched).merged(), self.device)
        for _ in range(self.n_epochs):
            self._train_epoch(rollout, rollout.sequences(length), None)
        self._set_log_std(rollout, rollout.sequences(length))

    def discard_experience(self) -> None:
        """End the episodes of the teacher that are running, as its agents start new ones; what was watched is kept."""
        ended = np.zeros(0, np.int64)
        for trajectories in reversed(self._watched):
            rows = trajectories.ends["row"]
            newest = len(rows) - 1 - np.unique(rows[::-1], return_index=True)[1]  # the last part of each row
            trajectories.ends["is_episode_end"][newest[~np.isin(rows[newest], ended)]] = True
            ended = np.union1d(ended, rows)

    def watch(self, trajectories: Trajectories, teacher: AgentPolicy) -> None:
        """Store trajectories of another behavior, to learn from them in the next updates.

        :param trajectories: Trajectories of the teacher, with rows that differ from those of other samplers.
        :param teacher: Policy that acted.
        """
        n, size = len(trajectories), self.policy.body.state_size
        performed = teacher.environment_actions(trajectories.decisions["action"])
        decisions = {
            "action": np.concatenate([performed.continuous, performed.discrete], 1).astype(np.float32),
            "log_prob": np.zeros((n, 0), np.float32),
            "memory": np.zeros((n, size), np.float32),
        }
        for name, array in trajectories.decisions.items():
            if name in ("mask", "reward", "group_reward") or name.startswith("observation_"):
                decisions[name] = array
        ends = {name: array for name, array in trajectories.ends.items() if name.startswith("observation_")}
        ends |= {name: trajectories.ends[name] for name in ("mask", "terminated", "is_episode_end", "row")}
        ends["memory"] = np.zeros((len(trajectories.lengths), size), np.float32)
        self._watched.append(Trajectories(decisions, ends, trajectories.lengths))
        self._unseen += 1
        self._collected += n

    @property
    def missing(self) -> int:
        """Number of decisions of the agents until an update may be due."""
        if self.demonstrations is None:  # the teacher's decisions count
            return self.teacher_steps_per_epoch
        return max(self.teacher_steps_per_epoch - self._collected, 1)

    @property
    def is_update_due(self) -> bool:
        """Whether there are enough decisions of the teacher or, with demonstrations, of the agents for an update."""
        return self._collected >= self.teacher_steps_per_epoch

    def add(self, trajectories: Trajectories) -> None:
        """Count the agents' decisions, which are not learned from."""
        if self.demonstrations is not None:
            self._collected += len(trajectories)

    def _watch(self, teacher: Teacher) -> None:
        """Let the teacher act until it has recorded `teacher_steps_per_epoch` more decisions."""
        assert self._agents is not None
        end = teacher.number + self.teacher_steps_per_epoch
        while teacher.number < end:
            actions = teacher.select_actions(self._agents.table)
            _, dones, infos = self._agents.step(actions)
            teacher.store_outcomes(self._agents.table)
            self._update_info_buffer(infos, dones)

    def _train(self, teacher: Teacher, callback: BaseCallback | None) -> bool:
        policy = self.policy
        rollout, number = teacher.recorded(policy.body.state_size, self.device)
        sequences = rollout.sequences(sequence_length(policy))
        is_new = number >= self._trained
        self._trained = teacher.number
        if is_new.any():
            policy.body.update_normalization([array[is_new] for array in rollout.observations])
            has_new = is_new[sequences[0]].any(1)
            newest = sequences[0][has_new], sequences[1][has_new]
            self.validation_scores = self._score(rollout, newest)
            self._record_scores(self.validation_scores)
            self._set_log_std(rollout, newest)
        return self._train_epoch(rollout, sequences, callback)

    def _train_epoch(self, rollout: Rollout, sequences: Sequences, callback: BaseCallback | None) -> bool:
        """Learn from each sequence once, in random order; return False if the callback stopped the training."""
        policy = self.policy
        policy.set_training_mode(True)
        refresh_memory(policy, rollout)
        decisions, valid = sequences
        order = torch.randperm(len(decisions))
        losses = []
        for part in torch.split(order, max(self.batch_size // decisions.shape[1], 1)):
            self._update_learning_rate(policy.optimizer)
            batch = Batch(rollout, decisions[part], valid[part].reshape(-1))
            loss = imitation_loss(compare(policy, batch), batch)
            policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            policy.optimizer.step()
            losses.append(loss.detach())
            self._n_updates += 1
            if callback is not None:  # in learn(), where each decision learned from is a timestep
                self.num_timesteps += int(valid[part].sum())
                self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
                callback.update_locals(locals())
                if not callback.on_step():
                    return False
        self.logger.record("train/imitation_loss", torch.stack(losses).mean().item())
        policy.set_training_mode(False)
        return True

    def score(self, demonstration: DemonstrationSource) -> dict[str, float]:
        """Compare the policy with a demonstration.

        :param demonstration: Path of a `.demo` file or a folder of them, or a loaded demonstration.
        :return: `loss`; with discrete actions `accuracy`, the fraction of them that are the policy's most likely; with
            continuous actions in `[-1, 1]` their `mean_absolute_error`.
        :raises DemonstrationError: If a demonstration does not exist or is incompatible with the behavior spec.
        """
        expert = self._read(demonstration)
        return self._score(expert, expert.sequences(sequence_length(self.policy)))

    @torch.no_grad()
    def _score(self, rollout: Rollout, sequences: Sequences) -> dict[str, float]:
        self.policy.set_training_mode(False)
        refresh_memory(self.policy, rollout)
        sums: dict[str, float] = defaultdict(float)
        for batch in _batches(rollout, sequences):
            comparison, count = compare(self.policy, batch), int(batch.count)
            metrics = {"loss": imitation_loss(comparison, batch)}
            if comparison.agrees is not None:
                metrics["accuracy"] = batch.mean(comparison.agrees.to(torch.float32))
            if comparison.error is not None:
                metrics["mean_absolute_error"] = batch.mean(comparison.error.abs())
            for name, number in metrics.items():
                sums[name] += number.item() * count
        total_count = int(sequences[1].sum())
        return {name: total / total_count for name, total in sums.items()}

    @torch.no_grad()
    def _set_log_std(self, rollout: Rollout, sequences: Sequences) -> None:
        """Set the standard deviations to the root mean squared error of raw continuous actions."""
        refresh_memory(self.policy, rollout)
        squares = [
            comparison.error[batch.valid].square()
            for batch in _batches(rollout, sequences)
            if (comparison := compare(self.policy, batch)).error is not None
        ]
        if squares:
            errors = torch.cat(squares)
            zero, one = (self.policy.mean_actions(raw(errors[:1])) for raw in (torch.zeros_like, torch.ones_like))
            std = errors.mean(0).sqrt() / (one - zero)[0]
            self.policy.head.log_std.copy_(std.clamp(min=_MIN_STD).log())

    def _record_scores(self, scores: Mapping[str, float]) -> None:
        for name, number in scores.items():
            self.logger.record(f"validation/{name}", number)

    def _dump(self) -> None:
        if self.ep_info_buffer:
            self.logger.record("rollout/ep_rew_mean", np.mean([info["r"] for info in self.ep_info_buffer]))
        seconds = (time.time_ns() - self.start_time) / 1e9
        self.logger.record("time/time_elapsed", int(seconds), exclude="tensorboard")
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)


class _Progress(ProgressBarCallback):
    """Progress bar of decisions learned from."""

    def _on_step(self) -> bool:
        self.pbar.update(self.num_timesteps - self.model._num_timesteps_at_start - self.pbar.n)
        return True


def _split(rollout: Rollout, length: int, part: float) -> tuple[Sequences, Sequences | None]:
    """Return training and validation part (None for none), in sequences of `length` decisions."""
    decisions, valid = rollout.sequences(length)
    trajectory = rollout.trajectory.cpu()[decisions[:, 0]]
    n = len(rollout.lengths)
    if part * n >= 1:
        chosen = torch.randperm(n)[: round(part * n)]
        is_validation = torch.isin(trajectory, chosen)
    else:
        count = trajectory.bincount()  # sequences per trajectory
        n_validation = (part * count).round().clamp(min=1) if part else torch.zeros_like(count)
        number = torch.arange(len(trajectory)).to(trajectory) - (count.cumsum(0) - count)[trajectory]
        is_validation = number >= (count - n_validation)[trajectory]
    if not is_validation.any() or is_validation.all():
        return (decisions, valid), None
    return (decisions[~is_validation], valid[~is_validation]), (decisions[is_validation], valid[is_validation])


def _batches(rollout: Rollout, sequences: Sequences) -> Iterator[Batch]:
    """Yield sequences in order, `_CHUNK` decisions at a time."""
    decisions, valid = sequences
    size = max(_CHUNK // decisions.shape[1], 1)
    for part, is_valid in zip(torch.split(decisions, size), torch.split(valid, size), strict=True):
        yield Batch(rollout, part, is_valid.reshape(-1))
