"""Proximal policy optimization with the hyperparameter semantics of Unity's trainer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, explained_variance, update_learning_rate
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_ext.algorithm import ACTION_SPACES, LearningWorkers, UnityAlgorithm, checked_signals, schedule
from sb3_ext.collector import Collection
from sb3_ext.cuda_graphs import Repeated, Tensors
from sb3_ext.experience import Trajectories
from sb3_ext.expert import DemonstrationSource
from sb3_ext.hardware import has_spare_core
from sb3_ext.imitation import BehavioralCloning, checked_cloning
from sb3_ext.policies import POLICY_ALIASES, UnityPolicy
from sb3_ext.reward_signals import RewardSignal
from sb3_ext.reward_signals.updates import SignalUpdates
from sb3_ext.rollout import CHUNK, Batch, Rollout, advantages
from sb3_ext.sb3_names import PPO_NAMES, Names
from unity_gym.errors import InvalidValueError, UnityGymError

SelfPPO = TypeVar("SelfPPO", bound="PPO")

SB3_COMPAT: dict[str, Any] = {
    "time_horizon": None,
    "rollout": "cut",
    "ratio": "action",
    "entropy": "sum",
    "advantage_normalization": "minibatch",
    "last_minibatch": "keep",
    "value_clipping": "clipped",
    "max_grad_norm": 0.5,
    "learning_rate_schedule": "constant",
    "action_scaling": "clip",
}
"""Options with which `PPO` and `POCA` train as Stable-Baselines3 does: `PPO(policy, env, **SB3_COMPAT)`.

Override some of them with `**(SB3_COMPAT | {"max_grad_norm": 1})`.
"""

_ALLOWED_VALUES = {
    "rollout": (None, "trajectories", "cut"),
    "ratio": ("dimension", "action"),
    "entropy": ("unity", "sum"),
    "combine_advantages": ("mean", "sum"),
    "advantage_normalization": ("recent", "buffer", "minibatch"),
    "last_minibatch": ("drop", "keep"),
    "value_clipping": ("larger", "clipped"),
    "learning_rate_schedule": ("linear", "constant"),
    "clip_range_schedule": ("linear", "constant"),
    "ent_coef_schedule": ("linear", "constant"),
}
_ENOUGH_ADVANTAGES = 1024  # decisions over which advantages are normalized


class PPO(UnityAlgorithm, OnPolicyAlgorithm):
    """Proximal Policy Optimization (clip version) with the hyperparameter semantics of Unity's trainer.

    Paper: https://arxiv.org/abs/1707.06347.

    PPO learns on any SB3 `VecEnv`; on an unwrapped `UnityVecEnv`, each agent acts as soon as it requests a decision.
    A timestep is one decision of one agent. Keyword options default to Unity's variant, except `rollout` and
    `advantage_normalization`; `SB3_COMPAT` selects Stable-Baselines3's. Parameters of Stable-Baselines3 keep their
    names: `n_steps` and `gamma` set `buffer_size` and `reward_signals`.

    :param policy: "UnityPolicy", or a network of Stable-Baselines3: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
    :param env: Environment to learn on.
    :param learning_rate: Learning rate, a number or a function of the remaining progress (1 → 0).
    :param buffer_size: Decisions per update, of all agents (default: 10240).
    :param batch_size: Decisions per minibatch.
    :param n_epochs: Epochs per update.
    :param time_horizon: Decisions after which a trajectory is cut; None for whole episodes.
    :param gae_lambda: λ of the generalized advantage estimates.
    :param clip_range: ε, a number or a function of the remaining progress.
    :param ent_coef: β, the weight of the entropy, a number or a function of the remaining progress.
    :param vf_coef: Weight of the value loss.
    :param max_grad_norm: Maximum norm of the gradient; None does not clip it.
    :param target_kl: Target of the KL divergence: an update stops at an approximate divergence of 1.5 times this value.
        None never stops an update early.
    :param reward_signals: Reward signals, each with its discount (default: `Extrinsic()`).
    :param n_steps: Steps of each environment per update, instead of `buffer_size`.
    :param gamma: Discount of the only reward `Extrinsic`, instead of `reward_signals`.
    :param clip_range_vf: Range around the old values to which values are clipped, a number or a function of the
        remaining progress; None does not clip.
    :param normalize_advantage: Whether to normalize advantages; see `advantage_normalization`.
    :param use_sde: False; see `sb3_names.PPO_NAMES`.
    :param sde_sample_freq: -1.
    :param rollout_buffer_class: None.
    :param rollout_buffer_kwargs: None.
    :param demonstrations: Demonstrations to imitate after each update: a `.demo` file, a folder of them or a loaded
        demonstration; or a `BehavioralCloning` with its options.
    :param rollout: "cut" cuts all trajectories at `buffer_size` decisions, so that none is older than the policy.
        "trajectories" updates when finished trajectories have more decisions, and leaves the others to the next update,
        as Unity's trainer does. None is "trajectories" for a policy with memory, whose sequences then start with the
        episodes, and "cut" for others and for whole episodes.
    :param ratio: "dimension" clips the ratio of each action dimension, "action" that of the whole action.
    :param entropy: "unity" for the mean over continuous dimensions plus the sum over branches, "sum" for the sum over
        all dimensions.
    :param value_clipping: Value loss with `clip_range_vf`: the "larger" of the losses of the new and of the clipped
        value, or the loss of the "clipped" value. Unity's trainer takes the larger, too, but clips around the returns,
        which has no effect.
    :param second_critic: "max", "min" or "mean" trains two critics; advantages, returns and bootstrapped values use
        this function of their estimates. Both learn the same returns. None for one critic.
    :param combine_advantages: "mean" or "sum" over the reward signals.
    :param advantage_normalization: Normalization over the "buffer", over each "minibatch", or by the statistics of the
        "recent" buffers that have 1,024 decisions or more, which is the newest one if it is as large. In smaller ones,
        often without a reward, normalization enlarges noise.
    :param last_minibatch: "drop" or "keep" a minibatch that is smaller than the others.
    :param learning_rate_schedule: "linear" (to 1e-10 at the end) or "constant", for a number.
    :param clip_range_schedule: "linear" (to 0.1) or "constant" (default: `learning_rate_schedule`).
    :param ent_coef_schedule: "linear" (to 1e-5) or "constant" (default: `learning_rate_schedule`).
    :param action_scaling: Action scaling of `UnityPolicy`.
    :param threaded: Run updates in a background thread while agents keep acting with the previous policy. Their
        decisions, with its log-probabilities, join the next rollout; if that fills first, agents wait. Seeded runs are
        not reproducible.
    :param stats_window_size: Episodes over which the logged return is averaged.
    :param tensorboard_log: Folder for TensorBoard; None for no log.
    :param policy_kwargs: Parameters of `UnityPolicy`, such as `hidden_units` and `normalize`.
    :param verbose: Output: 0 for none, 1 for progress, 2 for debugging.
    :param seed: Seed of NumPy, torch and the environment.
    :param device: "cpu", "cuda" or "auto".
    :raises InvalidValueError: If an option does not have the given value.
    :raises UnityGymError: If buffer_size, batch_size, n_epochs or time_horizon is below 1, two signals have the same
        name, or sequences are longer than a minibatch.
    :raises DemonstrationError: If a demonstration does not exist or is incompatible with the behavior spec.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = POLICY_ALIASES
    policy: UnityPolicy  # type: ignore[assignment]
    rollout_buffer = None  # type: ignore[assignment]  # SB3's is not used: see `collector`
    sb3_names: ClassVar[Names] = PPO_NAMES
    saved_parameters: ClassVar[tuple[str, ...]] = (*UnityAlgorithm.saved_parameters, "second_critic")
    counters: ClassVar[tuple[str, ...]] = (*UnityAlgorithm.counters, "_recent_advantages")
    _rollout_class: ClassVar[type[Rollout]] = Rollout

    def __init__(
        self,
        policy: str | type[UnityPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        *,
        buffer_size: int | None = None,
        batch_size: int = 1024,
        n_epochs: int = 3,
        time_horizon: int | None = 64,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        ent_coef: float | Schedule = 5e-3,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = None,
        target_kl: float | None = None,
        reward_signals: Sequence[RewardSignal] | None = None,
        n_steps: int | None = None,
        gamma: float | None = None,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: None = None,
        rollout_buffer_kwargs: None = None,
        demonstrations: DemonstrationSource | BehavioralCloning | None = None,
        rollout: str | None = None,
        ratio: str = "dimension",
        entropy: str = "unity",
        value_clipping: str = "larger",
        second_critic: str | None = None,
        combine_advantages: str = "mean",
        advantage_normalization: str = "recent",
        last_minibatch: str = "drop",
        learning_rate_schedule: str = "linear",
        clip_range_schedule: str | None = None,
        ent_coef_schedule: str | None = None,
        action_scaling: str = "unity",
        threaded: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        given: dict[str, Any] = {
            "buffer_size": buffer_size,
            "reward_signals": reward_signals,
            "n_steps": n_steps,
            "gamma": gamma,
            "use_sde": use_sde,
            "sde_sample_freq": sde_sample_freq,
            "rollout_buffer_class": rollout_buffer_class,
            "rollout_buffer_kwargs": rollout_buffer_kwargs,
        }
        given |= self.sb3_names.translate(env, given)
        buffer_size, reward_signals = given["buffer_size"], given["reward_signals"]
        if buffer_size is None:
            buffer_size = 10240
        self.rollout, self.ratio, self.entropy = rollout, ratio, entropy
        self.combine_advantages, self.advantage_normalization = combine_advantages, advantage_normalization
        self.last_minibatch, self.learning_rate_schedule = last_minibatch, learning_rate_schedule
        self.normalize_advantage, self.value_clipping = normalize_advantage, value_clipping
        self.clip_range_schedule = clip_range_schedule or learning_rate_schedule
        self.ent_coef_schedule = ent_coef_schedule or learning_rate_schedule
        self.buffer_size, self.batch_size, self.n_epochs = buffer_size, batch_size, n_epochs
        self.time_horizon, self.clip_range, self.clip_range_vf = time_horizon, clip_range, clip_range_vf
        self.target_kl, self.action_scaling, self.second_critic = target_kl, action_scaling, second_critic
        self.gae_lambda, self.max_grad_norm = gae_lambda, max_grad_norm  # type: ignore[assignment]
        self.threaded, self.demonstrations = threaded, checked_cloning(demonstrations)
        self.reward_signals = checked_signals(reward_signals)
        self._check_options()
        super().__init__(
            policy,  # type: ignore[arg-type]
            env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            n_steps=buffer_size,
            gamma=self.reward_signals[0].gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,  # type: ignore[arg-type]
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,  # type: ignore[arg-type]
            use_sde=False,
            sde_sample_freq=-1,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            supported_action_spaces=ACTION_SPACES,
            _init_setup_model=False,
        )
        self.adapter = None if self.env is None else self._adapter_of(self.env)
        self._records: dict[str, float] = {}  # logger values of an update
        self._inbox: list[Trajectories] = []  # experience of the next update
        self._recent_advantages: list[list[float]] = []  # per recent buffer: decisions, mean and variance
        if _init_setup_model:
            self._setup_model()

    def _check_options(self) -> None:
        for name, allowed in _ALLOWED_VALUES.items():
            if getattr(self, name) not in allowed:
                raise InvalidValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name in ("buffer_size", "batch_size", "n_epochs", "time_horizon"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise UnityGymError(f"{name} must be at least 1, got {size}")
        for name in ("clip_range", "clip_range_vf", "target_kl", "max_grad_norm"):
            number = getattr(self, name)
            if isinstance(number, (int, float)) and number <= 0:
                raise UnityGymError(f"{name} must be above 0, got {number}")
        if not 0 <= self.gae_lambda <= 1:
            raise UnityGymError(f"gae_lambda must be from 0 to 1, got {self.gae_lambda}")

    def _setup_model(self) -> None:
        """Build schedules, policy, reward signals and collection; replace SB3's method, whose buffer is not used."""
        self._require_own_class()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            adapter=self.adapter,
            value_heads=[signal.name for signal in self.reward_signals],
            second_critic=self.second_critic,
            action_scaling=self.action_scaling,
            **self.policy_kwargs,
        ).to(self.device)
        self.adapter = self.policy.adapter
        self._repeated = Repeated(self.policy, self.policy.optimizer)
        network = self.policy.settings
        if network.memory_size and network.sequence_length > self.batch_size:
            raise UnityGymError(
                f"a minibatch holds whole sequences: sequence_length {network.sequence_length} is more than batch_size "
                f"{self.batch_size}"
            )
        self._set_up_signals()
        self._set_up_cloning(self.demonstrations, self.batch_size)
        if self.rollout is None:
            self.rollout = "trajectories" if network.memory_size and self.time_horizon else "cut"
        self.collection = Collection("cut" if self.rollout == "cut" else "finished", self.time_horizon)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: Any,
        n_rollout_steps: int,
    ) -> bool:
        """Let the agents act until an update is due, or all timesteps and their outcomes are collected.

        SB3's method, which this one replaces, lets all agents act at once.

        :return: False if the callback stopped the training, else True.
        """
        self.acting_policy.set_training_mode(False)
        callback.on_rollout_start()
        while not self.is_update_due and self.num_timesteps < self._total_timesteps:
            if not self._act(callback):
                return False
        if self.num_timesteps >= self._total_timesteps and not self._collect_rest(callback):
            return False
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    @property
    def missing(self) -> int:
        """Number of decisions to be collected until an update is due."""
        needed = self.buffer_size + (self.rollout == "trajectories")
        return needed - sum(len(part) for part in self._inbox)

    @property
    def decisions_at_once(self) -> int:
        """Number of decisions that all samplers together collect at a time, which is that of an update."""
        return self.buffer_size

    @property
    def signals_learn_in_thread(self) -> bool:
        """Whether reward signals learn at the same time as the policy.

        Not on a GPU, and not in processes that share an update, which exchange gradients in one order.
        """
        learn = any(signal.learns for signal in self._signals())
        return learn and self.device.type == "cpu" and self.share.size == 1 and has_spare_core()

    def add(self, trajectories: Trajectories) -> None:
        """Store trajectories for the next update."""
        self._inbox.append(trajectories)

    def experience(self) -> list[Trajectories]:
        """Return the stored trajectories that no update has used yet."""
        return list(self._inbox)

    def discard_experience(self) -> None:
        """Discard the stored trajectories that no update has used yet."""
        self._inbox = []

    def replica_state(self) -> dict[str, Any]:
        """Return the state that replicas need; see `UnityAlgorithm.replica_state`."""
        epsilon, beta, epsilon_vf = self._limits(self._current_progress_remaining)
        limits = {"clip_range": FloatSchedule(epsilon), "ent_coef": FloatSchedule(beta), "clip_range_vf": epsilon_vf}
        return super().replica_state() | limits | {"_inbox": self._inbox}

    def train(self) -> None:
        """Update policy, critic and reward signals with the collected experience, if any; with `threaded`, start to."""
        self.finish_update()
        self._take_collected()
        if not self._inbox:
            return
        self._share_update()
        fresh = self.policy.has_fresh_normalization
        rollout = self._take_rollout()
        self._start_update(partial(self._update, rollout, fresh, self._current_progress_remaining, self.num_timesteps))

    def _end_update(self) -> None:
        super()._end_update()
        self.policy.set_training_mode(False)
        for name, value in self._records.items():
            self.logger.record(name, value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _limits(self, progress: float) -> tuple[float, float, float | None]:
        """Return ε, β and the range of `clip_range_vf` at this remaining progress."""
        return (
            schedule(self.clip_range, self.clip_range_schedule, 0.1)(progress),
            schedule(self.ent_coef, self.ent_coef_schedule, 1e-5)(progress),
            None if self.clip_range_vf is None else FloatSchedule(self.clip_range_vf)(progress),
        )

    def _update(self, rollout: Rollout, statistics_are_fresh: bool, progress: float, steps: int) -> None:
        """Update by the paper's equations, in their order, possibly in a thread; store logger values in `_records`.

        :param rollout: Decisions of the update.
        :param statistics_are_fresh: Whether the observation statistics already include this rollout.
        :param progress: Remaining progress of the training (1 → 0).
        :param steps: Timesteps of the training so far.
        """
        policy = self.policy
        policy.set_training_mode(True)
        learning_rate = self.lr_schedule(progress)
        epsilon, beta, epsilon_vf = self._limits(progress)
        update_learning_rate(policy.optimizer, learning_rate)
        self._records |= {
            "train/learning_rate": learning_rate,
            "train/clip_range": epsilon,
            "train/beta": beta,
        }
        if epsilon_vf is not None:
            self._records["train/clip_range_vf"] = epsilon_vf
        rollout.prepare(policy.body)
        self._estimate(rollout)
        if rollout.has_older:
            self._weight_older(rollout)
        log: dict[str, list[Any]] = defaultdict(list)
        log_ratios: list[torch.Tensor] = []  # of all minibatches, with their padding
        valid: list[torch.Tensor] = []  # parts of them, if there is padding
        limits: dict[str, Any] = {"epsilon": epsilon, "beta": beta}
        limits |= {} if epsilon_vf is None else {"epsilon_vf": epsilon_vf}
        repeats = self._repeats_updates
        if repeats:
            limits = {name: torch.tensor(limit, device=self.device) for name, limit in limits.items()}

        with SignalUpdates(self._signals(), log, self.signals_learn_in_thread) as signal_updates:
            for minibatch in self._minibatches(rollout, signal_updates):
                part = self.share.part(minibatch.sequences)
                batch = minibatch if part is None else minibatch.part(part)
                advantage = self._advantage(batch, minibatch)
                if repeats:
                    results = self._repeat(batch, advantage, limits)
                else:
                    loss, results = self._loss(batch, advantage, limits)
                # Only target_kl needs a value on the host before the end of the update.
                log_ratios.append(results.pop("log_ratio"))
                for name, result in results.items():
                    log[name].append(result)
                if batch.valid is not None:
                    valid.append(batch.valid)
                if repeats:
                    signal_updates.add(minibatch)
                    continue
                weight = 1.0 if self.share.size == 1 else self.share.weight(batch.count, minibatch.count, part)
                if self.target_kl is not None:
                    kl = self.share.sum(batch.mean(_approximate_kl(log_ratios[-1])) * weight)
                    if kl.item() > 1.5 * self.target_kl:
                        break
                signal_updates.add(minibatch)
                self._descend(loss if self.share.size == 1 else loss * weight)

        all_ratios = torch.cat(log_ratios)
        if valid:
            all_ratios = all_ratios[torch.cat(valid)]
        log["approx_kl"].append(_approximate_kl(all_ratios).mean())
        log["clip_fraction"].append(((all_ratios.exp() - 1).abs() > epsilon).float().mean())
        if self.cloning is not None:
            for name, value in self.cloning.update(steps).items():
                log[f"cloning_{name}"].append(value)
        if not statistics_are_fresh:
            policy.body.update_normalization(rollout.observations)
        self._record_update(rollout, log)

    @property
    def _repeats_updates(self) -> bool:
        """Whether all updates are the same computation, which a GPU can repeat."""
        return self._repeated.is_active and self.share.size == 1 and self.target_kl is None

    def _repeat(self, batch: Batch, advantage: torch.Tensor, limits: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Make a gradient step as a repeated computation, and return logger values; see `_loss`."""
        names = ["actions", "log_probs", "returns"]
        names += ["action_masks"] if self.policy.adapter.spec.action_spec.discrete_size else []
        names += ["memory"] if self.policy.memory_size else []
        names += ["values"] if "epsilon_vf" in limits else []
        inputs = {**limits, "advantage": advantage, **batch.tensors(names)}

        def step(tensors: Tensors) -> dict[str, torch.Tensor]:
            given = dict(zip(inputs, tensors, strict=True))
            loss, results = self._loss(batch.with_tensors(given), given["advantage"], given)
            self._descend(loss)
            return results

        options = (self.ratio, self.entropy, self.value_clipping, self.vf_coef, self.max_grad_norm)
        return self._repeated(step, list(inputs.values()), *options)

    def _advantage(self, batch: Batch, minibatch: Batch) -> torch.Tensor:
        """Return the weighted advantages (m, 1 or dimensions) of a part of a minibatch."""
        advantage = batch.advantages.unsqueeze(1)
        if self.normalize_advantage and self.advantage_normalization == "minibatch" and minibatch.count > 1:
            valid = minibatch.advantages if batch.valid is None else minibatch.advantages[minibatch.valid]
            advantage = (advantage - valid.mean()) / (valid.std() + 1e-8)
        return advantage if batch.weights is None else advantage * batch.weights

    def _loss(
        self, batch: Batch, advantage: torch.Tensor, limits: Mapping[str, Any]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of m decisions, and logger values by name.

        :param batch: Decisions.
        :param advantage: Advantages (m, 1 or dimensions).
        :param limits: Values "epsilon", "beta" and, with `clip_range_vf`, "epsilon_vf", as numbers or tensors.
        :return: Loss, and values without gradients. "log_ratio" is log r(θ) of the decisions, (m, 1 or dimensions).
        """
        epsilon, epsilon_vf = limits["epsilon"], limits.get("epsilon_vf")
        values, log_probs, distribution = self.policy.evaluate(batch)
        # r(θ) = π(a|s) / π_old(a|s)
        log_ratio = log_probs - batch.log_probs
        if self.ratio == "action":
            log_ratio = log_ratio.sum(1, keepdim=True)
        ratio = log_ratio.exp()
        # L^CLIP = E[min(r Â, clip(r, 1 − ε, 1 + ε) Â)]
        clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
        policy_loss = -batch.mean(torch.minimum(ratio * advantage, clipped * advantage))
        # L^VF = E[(V − R)²], averaged over the critics and reward signals
        error = (values - batch.returns).square()
        if epsilon_vf is not None:
            near = batch.values + (values - batch.values).clamp(-epsilon_vf, epsilon_vf)
            clipped_error = (near - batch.returns).square()
            error = clipped_error if self.value_clipping == "clipped" else torch.maximum(error, clipped_error)
        value_loss, results = self._value_loss(batch, error)
        # S[π]
        entropy = batch.mean(distribution.unity_entropy() if self.entropy == "unity" else distribution.entropy())
        loss = policy_loss + self.vf_coef * value_loss - limits["beta"] * entropy
        results |= {"loss": loss, "policy_gradient_loss": policy_loss, "entropy": entropy, "log_ratio": log_ratio}
        return loss, {name: result.detach() for name, result in results.items()}

    def _descend(self, loss: torch.Tensor) -> None:
        """Make a gradient step."""
        policy = self.policy
        policy.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.share.sum_gradients(policy.parameters())
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(policy.parameters(), self.max_grad_norm)
        policy.optimizer.step()

    def _minibatches(self, rollout: Rollout, signal_updates: SignalUpdates) -> Iterator[Batch]:
        """Yield the minibatches of all epochs; before each, the reward signals have learned from those of the last."""
        has_memory = bool(self.policy.settings.memory_size)
        length = self.policy.settings.sequence_length if has_memory else 1
        for epoch in range(self.n_epochs):
            signal_updates.finish()
            if epoch and has_memory:
                self.policy.refresh_memory(rollout)
            self._n_updates += 1
            for minibatch in rollout.shuffled(self.batch_size, length, drop_last=self.last_minibatch == "drop"):
                self._use_idle_cores()
                yield minibatch

    def _take_rollout(self) -> Rollout:
        """Return the stored trajectories as a rollout."""
        parts, self._inbox = self._inbox, []
        trajectories = type(parts[0]).join(parts)
        versions = trajectories.decisions["version"]
        self._records = {"rollout/experience_age": self.version - float(versions.mean())}
        rollout = self._rollout_class.from_trajectories(trajectories, self.device)
        rollout.environment_actions = self.policy.bounded_actions(rollout.actions)
        for signal in self._signals():
            signal.update_normalization(rollout.observations)
        # Observation statistics stay the same from the decision to the end of the update, so that the first ratio is 1.
        # Only the first statistics come from this rollout, as there are none before.
        if self.policy.has_fresh_normalization:
            self.policy.body.update_normalization(rollout.observations)
            if self.policy.settings.memory_size:
                self.policy.refresh_stored_memory(rollout, 1)
            rollout.log_probs = self._log_probs(rollout)
        rollout.has_older = self.threaded and bool((versions < self.version).any())
        return rollout

    @torch.no_grad()
    def _log_probs(self, rollout: Rollout) -> torch.Tensor:
        """Return the current log-probabilities of the rollout's actions, (n, act_dim)."""
        log_probs = [self.policy.log_probs(batch) for batch in rollout.in_order(CHUNK)]
        return torch.cat(log_probs).to(rollout.log_probs.dtype)

    def _weight_older(self, rollout: Rollout) -> None:
        """Clip around the policy before the update, also for decisions of an older policy.

        The advantages are weighted by π_now(a|s) / π_old(a|s), and r(θ) = π(a|s) / π_now(a|s): the decoupled objective
        of Hilton et al. 2021, https://arxiv.org/abs/2110.00641. Clipping around the older policy would limit changes
        that the update in between has made.
        """
        log_probs = self._log_probs(rollout)
        log_weights = log_probs - rollout.log_probs
        if self.ratio == "action":
            log_weights = log_weights.sum(1, keepdim=True)
        rollout.weights, rollout.log_probs = log_weights.exp(), log_probs

    @torch.no_grad()
    def _estimate(self, rollout: Rollout) -> None:
        """Set the values and returns of each reward signal, and the combined advantages, in the rollout."""
        critics, ends = self._state_values(rollout)
        # Sums over long trajectories use float64, on the CPU.
        host, exact = "cpu", torch.float64
        values, following = self.policy.combined(critics).to(host).to(exact), ends.to(host).to(exact).numpy()
        batches = list(rollout.in_order(CHUNK))
        estimates = []
        for index, signal in enumerate(self._signals()):
            rewards = torch.cat([self._rewards(signal, batch) for batch in batches])
            rewards = rewards.to(host).to(exact) * signal.strength
            self._records[f"rollout/{signal.name}_reward"] = rewards.mean().item()
            self._records[f"rollout/{signal.name}_value_estimate"] = values[:, index].mean().item()
            estimates.append(
                advantages(
                    rewards.numpy(),
                    values[:, index].numpy(),
                    following[:, index] if signal.non_episodic else np.where(rollout.is_over, 0, following[:, index]),
                    rollout.lengths,
                    signal.gamma,
                    self.gae_lambda,
                )
            )
        returns = torch.from_numpy(np.stack(estimates, 1)) + values
        each = returns - self.policy.baseline(critics).to(host)
        combined = each.mean(1) if self.combine_advantages == "mean" else each.sum(1)
        if self.normalize_advantage and self.advantage_normalization != "minibatch":
            combined = self._normalized(combined)
        rollout.values, rollout.returns = critics, returns.to(critics.dtype).to(critics.device).unsqueeze(1)
        rollout.advantages = combined.to(critics.dtype).to(critics.device)

    def _normalized(self, advantages: torch.Tensor) -> torch.Tensor:
        """Normalize the advantages of a buffer by the statistics of the recent buffers, or by its own."""
        recent = self._recent_advantages
        recent.append([len(advantages), advantages.mean().item(), advantages.var(correction=0).item()])
        enough = _ENOUGH_ADVANTAGES if self.advantage_normalization == "recent" else 1
        while sum(count for count, _, _ in recent[1:]) >= enough:
            del recent[0]
        counts, means, variances = np.array(recent).T
        mean = np.average(means, weights=counts)
        variance = np.average(variances + (means - mean) ** 2, weights=counts)
        normalized: torch.Tensor = (advantages - mean) / (np.sqrt(variance) + 1e-10)
        return normalized

    def _state_values(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values of the decisions' states (n, critics, signals) and after the trajectories (…, signals)."""
        policy, ends = self.policy, torch.arange(len(rollout.lengths), device=self.device)
        values = [policy.critic_values(batch.inputs(policy.body), batch.memory) for batch in rollout.in_order(CHUNK)]
        following = [
            policy.state_values([array[part] for array in rollout.end_observations], rollout.end_memory[part])
            for part in torch.split(ends, CHUNK)
        ]
        return torch.cat(values), torch.cat(following)

    def _rewards(self, signal: RewardSignal, batch: Batch) -> torch.Tensor:
        return signal.rewards(batch)

    def _value_loss(self, batch: Batch, error: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the value loss from the squared errors (m, critics, signals), and logger values by name."""
        loss = batch.mean(error)
        return loss, {"value_loss": loss}

    def _record_update(self, rollout: Rollout, log: dict[str, list[torch.Tensor]]) -> None:
        if self.policy.head.mean is not None:
            log["std"].append(self.policy.head.log_std.detach().exp().mean())
        means = torch.stack([torch.stack(values).mean().to(self.device) for values in log.values()])
        self._records |= {f"train/{name}": mean for name, mean in zip(log, means.tolist(), strict=True)}
        self._records["train/entropy_loss"] = -self._records["train/entropy"]
        self._records["train/explained_variance"] = float(
            explained_variance(
                rollout.values.cpu().numpy().ravel(), rollout.returns.expand_as(rollout.values).cpu().numpy().ravel()
            )
        )

    def learn(
        self: SelfPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "PPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        workers: LearningWorkers | None = None,
    ) -> SelfPPO:
        """Learn for `total_timesteps` decisions of all agents together; see `BaseAlgorithm.learn`.

        :param workers: Processes in which agents act, each with its own players: `Workers` or `RayWorkers`. None for
            the players of the environment.
        :raises UnityGymError: If workers cannot launch the players of the environment.
        """
        if workers is not None:
            self._learn_in_workers(
                workers, total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
            )
            return self
        with self._learning():
            super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        return self

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_records", "_inbox", "_repeated"]


def _approximate_kl(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return samples of KL(π_old ‖ π), (m,), from those of log r per dimension or whole action, (m, ratios).

    The divergences of the dimensions add up. The samples are never negative: http://joschu.net/blog/kl-approx.html.
    """
    return (log_ratio.exp() - 1 - log_ratio).sum(1)
