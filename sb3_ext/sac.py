"""Soft actor-critic with the hyperparameter semantics of Unity's trainer."""

from __future__ import annotations

import io
import math
import os
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_ext.agents import AgentTableLike
from sb3_ext.algorithm import ACTION_SPACES, LearningWorkers, UnityAlgorithm, checked_signals
from sb3_ext.collector import Collection
from sb3_ext.cuda_graphs import Repeated, Tensors
from sb3_ext.distributions import SquashedActions
from sb3_ext.experience import Trajectories
from sb3_ext.expert import DemonstrationSource
from sb3_ext.files import with_suffix, write_whole
from sb3_ext.hardware import to_device
from sb3_ext.imitation import BehavioralCloning, checked_cloning
from sb3_ext.networks.actions import first_actions
from sb3_ext.replay import ReplayBatch, ReplayBuffer
from sb3_ext.reward_signals import RewardSignal
from sb3_ext.rollout import as_tensor
from sb3_ext.sac_policy import POLICY_ALIASES, UnitySACPolicy
from sb3_ext.sb3_names import SAC_NAMES, Names
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import Array

SelfSAC = TypeVar("SelfSAC", bound="SAC")

_UPDATES_AT_ONCE = 16  # of a background thread: handing over decisions and weights then takes little of the time
_DISCRETE_TARGET = 0.2  # target entropy of a branch, as a fraction of its maximum entropy


class SAC(UnityAlgorithm, OffPolicyAlgorithm):
    """Soft Actor-Critic for continuous, discrete and hybrid actions.

    Hyperparameters have the semantics of Unity's trainer. Papers: https://arxiv.org/abs/1812.05905, for discrete
    actions https://arxiv.org/abs/1910.07207.

    SAC learns on any SB3 `VecEnv`; on an unwrapped `UnityVecEnv`, each agent acts as soon as it requests a decision.
    A timestep is one decision of one agent.

    The action a = (u, a₁ … a_B) has continuous actions u and discrete actions a_b. The former have one entropy
    coefficient α_u, each of the latter has its own α_b:

        Q(s, a) = mean over b of Q_b(s, u, a_b)
        V(s)    = mean over b of Σ π_b (min(Q₁_b, Q₂_b) − α_b log π_b) − α_u log π(u | s),   u ~ π(· | s)
        y       = r + γ (1 − terminated) V'(s')                                   with the target critics
        J(Q)    = ½ (Q − y)²,    J(π) = −V(s),    J(α) = −log α · (log π + target entropy)

    With continuous actions alone this is the SAC of the first paper, with discrete actions alone that of the second.
    The target entropy is −dim(u) for the continuous actions. For each branch it is 0.2 times the logarithm of the
    number of allowed actions. Each reward signal has its own Q, discount and V; the policy maximizes their mean.

    :param policy: "UnityPolicy" for `UnitySACPolicy`, or a network of Stable-Baselines3: "MlpPolicy", "CnnPolicy",
        "MultiInputPolicy".
    :param env: Environment to learn on.
    :param learning_rate: Learning rate, a number or a function of the remaining progress (1 → 0).
    :param buffer_size: Decisions in the replay buffer.
    :param batch_size: Decisions per gradient step.
    :param tau: τ, the fraction by which each update moves the target critics towards the critics.
    :param steps_per_update: Decisions per gradient step (default: 1).
    :param reward_signal_steps_per_update: Decisions per update of the reward signals (default: `steps_per_update`).
    :param buffer_init_steps: Decisions before the first gradient step (default: 0), at least `batch_size`.
    :param init_entcoef: Initial value of the entropy coefficients (default: 1.0).
    :param reward_signals: Reward signals, each with its discount (default: `Extrinsic()`).
    :param learning_starts: Alias of `buffer_init_steps`.
    :param train_freq: Steps of each environment between gradient steps, instead of `steps_per_update`.
    :param gradient_steps: Gradient steps every `train_freq` steps (default: 1); -1 for one per decision.
    :param gamma: Discount of the only reward `Extrinsic`, instead of `reward_signals`.
    :param ent_coef: Fixed value of the entropy coefficients; "auto" learns them from 1.0, and "auto_0.1" from 0.1, as
        `init_entcoef` does.
    :param target_entropy: Target entropy of the continuous actions; "auto" for −dim(u).
    :param target_update_interval: Gradient steps between updates of the target critics.
    :param action_noise: None; see `sb3_names.SAC_NAMES`.
    :param replay_buffer_class: None.
    :param replay_buffer_kwargs: None.
    :param optimize_memory_usage: False.
    :param n_steps: 1.
    :param use_sde: False.
    :param sde_sample_freq: -1.
    :param use_sde_at_warmup: False.
    :param demonstrations: Demonstrations to imitate after each gradient step: a `.demo` file, a folder of them or a
        loaded demonstration; or a `BehavioralCloning` with its options.
    :param learning_rate_schedule: "linear" (to 1e-10 at the end) or "constant", for a number.
    :param threaded: Run updates in a background thread, 16 at a time, while agents keep acting with the previous
        policy. The ratio of updates to timesteps stays. Seeded runs are not reproducible.
    :param stats_window_size: Episodes over which the logged return is averaged.
    :param tensorboard_log: Folder for TensorBoard; None for no log.
    :param policy_kwargs: Parameters of `UnitySACPolicy`, such as `hidden_units` and `normalize`.
    :param verbose: Output: 0 for none, 1 for progress, 2 for debugging.
    :param seed: Seed of NumPy, torch and the environment.
    :param device: "cpu", "cuda" or "auto".
    :raises InvalidValueError: If the schedule does not exist, or `target_entropy` is a string other than "auto".
    :raises UnityGymError: If a hyperparameter is out of range, two signals have the same name, sequences are longer
        than a minibatch, or `env` is wrapped in `VecNormalize`.
    :raises DemonstrationError: If a demonstration does not exist or is incompatible with the behavior spec.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = POLICY_ALIASES
    counters: ClassVar[tuple[str, ...]] = (*UnityAlgorithm.counters, "_owed", "_signals_owed")
    sb3_names: ClassVar[Names] = SAC_NAMES
    saved_parameters: ClassVar[tuple[str, ...]] = (*UnityAlgorithm.saved_parameters, "init_entcoef", "ent_coef")
    policy: UnitySACPolicy
    replay_buffer: ReplayBuffer  # type: ignore[assignment]
    replicated: ClassVar[tuple[str, ...]] = ("replay_buffer",)

    def __init__(
        self,
        policy: str | type[UnitySACPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        *,
        buffer_size: int = 50_000,
        batch_size: int = 128,
        tau: float = 0.005,
        steps_per_update: float | None = None,
        reward_signal_steps_per_update: float | None = None,
        buffer_init_steps: int | None = None,
        init_entcoef: float | None = None,
        reward_signals: Sequence[RewardSignal] | None = None,
        learning_starts: int | None = None,
        train_freq: int | tuple[int, str] | None = None,
        gradient_steps: int | None = None,
        gamma: float | None = None,
        ent_coef: float | str | None = None,
        target_entropy: float | str = "auto",
        target_update_interval: int = 1,
        action_noise: None = None,
        replay_buffer_class: None = None,
        replay_buffer_kwargs: None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        demonstrations: DemonstrationSource | BehavioralCloning | None = None,
        learning_rate_schedule: str = "constant",
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
            "steps_per_update": steps_per_update,
            "buffer_init_steps": buffer_init_steps,
            "init_entcoef": init_entcoef,
            "reward_signals": reward_signals,
            "learning_starts": learning_starts,
            "train_freq": train_freq,
            "gradient_steps": gradient_steps,
            "gamma": gamma,
            "ent_coef": ent_coef,
            "action_noise": action_noise,
            "replay_buffer_class": replay_buffer_class,
            "replay_buffer_kwargs": replay_buffer_kwargs,
            "optimize_memory_usage": optimize_memory_usage,
            "n_steps": n_steps,
            "use_sde": use_sde,
            "sde_sample_freq": sde_sample_freq,
            "use_sde_at_warmup": use_sde_at_warmup,
        }
        given |= self.sb3_names.translate(env, given)
        of_unity = {"steps_per_update": 1.0, "buffer_init_steps": 0, "init_entcoef": 1.0}
        given |= {name: value for name, value in of_unity.items() if given[name] is None}
        self.steps_per_update: float = given["steps_per_update"]
        self.buffer_init_steps: int = given["buffer_init_steps"]
        self.reward_signal_steps_per_update = reward_signal_steps_per_update
        self.init_entcoef, self.learns_ent_coef = given["init_entcoef"], ent_coef is None or isinstance(ent_coef, str)
        self.target_entropy, self.target_update_interval = target_entropy, target_update_interval
        self.buffer_size, self.batch_size, self.tau, self.threaded = buffer_size, batch_size, tau, threaded
        self.learning_rate_schedule, self.demonstrations = learning_rate_schedule, checked_cloning(demonstrations)
        self.reward_signals = checked_signals(given["reward_signals"])
        self._check_options()
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            learning_starts=self.buffer_init_steps,
            batch_size=batch_size,
            tau=tau,
            gamma=self.reward_signals[0].gamma,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            sde_support=False,
            supported_action_spaces=ACTION_SPACES,
        )
        self.adapter = None if self.env is None else self._adapter_of(self.env)
        self._owed = self._signals_owed = 0.0  # updates that are due
        self._unseen: list[Trajectories] = []  # trajectories that no statistics contain yet
        self._unsent: list[Trajectories] = []  # trajectories that the replicas have not received yet
        if _init_setup_model:
            self._setup_model()

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = UnityAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        if unwrap_vec_normalize(wrapped) is not None:
            raise UnityGymError(
                "SAC does not support VecNormalize: the replay buffer would mix different normalizations. Remove it "
                "and pass policy_kwargs={'normalize': True}"
            )
        return wrapped

    def _check_options(self) -> None:
        if self.learning_rate_schedule not in ("linear", "constant"):
            raise InvalidValueError(
                f"learning_rate_schedule must be 'linear' or 'constant', got {self.learning_rate_schedule!r}"
            )
        if self.learns_ent_coef and not self.init_entcoef > 0:
            raise UnityGymError(f"init_entcoef must be above 0, as its logarithm is learned, got {self.init_entcoef}")
        if self.init_entcoef < 0:
            raise UnityGymError(f"ent_coef must be at least 0, got {self.init_entcoef}")
        if self.target_entropy != "auto" and not isinstance(self.target_entropy, (int, float)):
            raise InvalidValueError(f"target_entropy must be 'auto' or a number, got {self.target_entropy!r}")
        per_update = ("steps_per_update", "reward_signal_steps_per_update", "target_update_interval")
        for name in ("batch_size", *per_update, "tau"):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise UnityGymError(f"{name} must be above 0, got {number}")
        if self.tau > 1:
            raise UnityGymError(f"tau must be at most 1, got {self.tau}")
        if self.buffer_size < self.batch_size:
            raise UnityGymError(
                f"buffer_size {self.buffer_size} does not hold a batch of {self.batch_size}: give more, or a smaller "
                "batch"
            )

    def _setup_model(self) -> None:
        """Build schedule, policy, reward signals and replay buffer; replace SB3's method, whose buffer is not used."""
        self._require_own_class()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            adapter=self.adapter,
            value_heads=[signal.name for signal in self.reward_signals],
            init_entcoef=self.init_entcoef,
            **self.policy_kwargs,
        ).to(self.device)
        self.adapter = self.policy.adapter
        self.policy.log_ent_coef.requires_grad_(self.learns_ent_coef)
        self._repeated = Repeated(self.policy, self.policy.optimizer)
        if self.target_entropy != "auto" and not self.adapter.spec.action_spec.continuous_size:
            raise UnityGymError(
                f"target_entropy is that of continuous actions, of which there are none, got {self.target_entropy}: "
                "leave it out"
            )
        network = self.policy.settings
        length = network.sequence_length if network.memory_size else 1
        if length > self.batch_size:
            raise UnityGymError(
                f"a minibatch holds whole sequences: sequence_length {length} is more than batch_size {self.batch_size}"
            )
        self._set_up_signals()
        self._set_up_cloning(self.demonstrations, self.batch_size)
        device, signals = self.device, self._signals()
        self._gamma = torch.tensor([signal.gamma for signal in signals], device=device)
        self._strength = torch.tensor([signal.strength for signal in signals], device=device)
        self._ends = torch.tensor([float(not signal.non_episodic) for signal in signals], device=device)
        branches = self.adapter.spec.action_spec.discrete_branches
        self._branch_offsets = first_actions(branches, device)
        sizes = torch.tensor(branches, dtype=torch.int64, device=device)
        self._branch = torch.repeat_interleave(sizes)  # branch of each discrete action
        self.replay_buffer = ReplayBuffer(self.buffer_size, length, self.policy.memory_size)
        self.collection = Collection("finished", length)
        self._unseen = []

    def count(self, decisions: int) -> None:
        """Count decisions of the agents as timesteps, and add up the updates that they make due."""
        super().count(decisions)
        if self._has_enough_experience:
            self._owed += decisions / self.steps_per_update
            if any(signal.learns for signal in self._signals()):
                self._signals_owed += decisions / (self.reward_signal_steps_per_update or self.steps_per_update)

    def add(self, trajectories: Trajectories) -> None:
        """Store trajectories in the replay buffer, after a running update has finished."""
        self.finish_update()
        self.replay_buffer.add(trajectories)
        self._unseen.append(trajectories)
        if self._replicas is not None:
            self._unsent.append(trajectories)

    def stop_replicas(self) -> None:
        """End the further processes; later ones start with all of the experience."""
        super().stop_replicas()
        self._unsent = []

    def replica_state(self) -> dict[str, Any]:
        """Return the state that replicas need; see `UnityAlgorithm.replica_state`."""
        unsent, self._unsent = self._unsent, []
        return super().replica_state() | {
            "_owed": self._owed,
            "_signals_owed": self._signals_owed,
            "_unseen": self._unseen,
            "_unsent": unsent,
        }

    def train_as_replica(self, state: dict[str, Any]) -> None:
        """Train as a replica; see `UnityAlgorithm.train_as_replica`."""
        for trajectories in state.pop("_unsent"):
            self.replay_buffer.add(trajectories)
        super().train_as_replica(state)

    @property
    def has_experience(self) -> bool:
        """Whether there is experience that no update has used yet."""
        return bool(self._unseen)

    def store_outcomes(self, table: AgentTableLike) -> None:
        """Store the outcomes of the decisions, and finished trajectories in the replay buffer unless an update runs."""
        super().store_outcomes(table)
        if self._running is None:
            self._take_collected()

    @property
    def missing(self) -> int:
        """Number of decisions to be collected until an update may be due."""
        return self.decisions_at_once

    @property
    def decisions_at_once(self) -> int:
        """Number of decisions that all samplers together collect at a time."""
        return math.ceil(_UPDATES_AT_ONCE * self.steps_per_update) if self.threaded else 1

    @property
    def _due(self) -> int:
        """Number of updates, of the policy or of the reward signals, that become due together."""
        return _UPDATES_AT_ONCE if self.threaded else 1

    @property
    def _needed(self) -> int:
        """Number of decisions before the first update."""
        return max(self.buffer_init_steps, self.batch_size)

    @property
    def _has_enough_experience(self) -> bool:
        """Whether the replay buffer has the decisions that the first update needs."""
        return self.replay_buffer.seen >= self._needed

    @property
    def is_update_due(self) -> bool:
        """Whether an update is due."""
        return self._has_enough_experience and max(self._owed, self._signals_owed) >= self._due

    def collect_rollouts(self, callback: BaseCallback, log_interval: int | None = None) -> bool:  # type: ignore[override]
        """Let the agents act until an update is due; replace SB3's method, in which all agents act at once.

        :param callback: Callback of the training.
        :param log_interval: Episodes between two log entries; None for no log.
        :return: False if the callback stopped the training, else True.
        """
        callback.on_rollout_start()
        continues = True
        while continues and not self.is_update_due and self.num_timesteps < self._total_timesteps:
            before = self._episode_num
            continues = self._act(callback)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if continues and log_interval is not None and self._episode_num // log_interval > before // log_interval:
                self.dump_logs()
        if continues and self.num_timesteps >= self._total_timesteps:
            continues = self._collect_rest(callback)
        callback.on_rollout_end()
        return continues

    def train(self) -> None:  # type: ignore[override]
        """Make the updates that are due, each from its own minibatch; with `threaded`, start to."""
        self.finish_update()
        self._take_collected()
        if not self._has_enough_experience:
            return
        self._share_update()
        due, signals_due = int(self._owed), int(self._signals_owed)
        self._owed -= due
        self._signals_owed -= signals_due
        unseen, self._unseen = self._unseen, []
        self._update_learning_rate(self.policy.optimizer)
        self._start_update(partial(self._make_updates, due, signals_due, unseen, self.num_timesteps))

    def _make_updates(self, due: int, signals_due: int, unseen: list[Trajectories], steps: int) -> None:
        """Make updates, possibly in a thread, and store logger values in `_means`.

        :param due: Number of updates of the policy.
        :param signals_due: Number of updates of the reward signals.
        :param unseen: Trajectories that no statistics contain yet.
        :param steps: Timesteps of the training.
        """
        policy = self.policy
        if not policy.training:  # after `predict`
            policy.set_training_mode(True)
        self._update_normalization(unseen)
        self._gamma = to_device(torch.tensor([signal.gamma for signal in self._signals()]), self.device)
        learning = [signal for signal in self._signals() if signal.learns]
        log: dict[str, list[torch.Tensor]] = defaultdict(list)
        number = max(due, signals_due if learning else 0)
        minibatches = self.replay_buffer.minibatches(number, self.batch_size, policy.body, self.device)
        for update, batch in enumerate(minibatches):
            self._use_idle_cores()
            if update < due:
                for name, values in self._update(batch).items():
                    log[name].append(values)
                if self.cloning is not None:
                    for name, values in self.cloning.update(steps).items():
                        log[f"cloning_{name}"].append(values)
            if update < signals_due:
                for signal in learning:
                    for name, value in signal.update(batch).items():
                        log[f"{signal.name}_{name}"].append(torch.as_tensor(value, device=self.device))
        # Mostly a single update is due at once.
        means = [values[0] if len(values) == 1 else torch.stack(values).mean(0) for values in log.values()]
        self._means = dict(zip(log, _numbers(means), strict=True))

    def _end_update(self) -> None:
        super()._end_update()
        self._record(self._means)

    def _update_normalization(self, unseen: list[Trajectories]) -> None:
        """Add the observations of trajectories to the running statistics.

        The first statistics are those of the whole replay buffer, which may be a loaded one. `join` orders trajectories
        by row, so that rounding does not depend on the number of parts.
        """
        parts: Iterable[list[Array]] = []
        if self.policy.has_fresh_normalization:
            parts = self.replay_buffer.observations()
        elif unseen:
            joined = Trajectories.join(unseen)
            parts = [[joined.decisions[f"observation_{index}"] for index in range(joined.sensors)]]
        for part in parts:
            sensors = [as_tensor(array, self.device) for array in part]
            self.policy.body.update_normalization(sensors)
            for signal in self._signals():
                signal.update_normalization(sensors)

    def _update(self, minibatch: ReplayBatch) -> dict[str, torch.Tensor]:
        """Make one gradient step by the equations of the class, all with the weights before the step.

        :return: Logger values, vectors by name.
        """
        part = self.share.part(minibatch.sequences)
        minibatch.prepare(self.policy.body)
        batch = minibatch if part is None else minibatch.part(part)
        weight = 1.0 if self.share.size == 1 else self.share.weight(batch.count, minibatch.count, part)
        given = {"next_noise": self._noise(minibatch, part), "noise": self._noise(minibatch, part)}
        with torch.no_grad():
            given["rewards"] = torch.stack([signal.rewards(batch) for signal in self._signals()], 1) * self._strength
        given["discount"] = self._gamma - batch.terminated.unsqueeze(1) * (self._gamma * self._ends)
        self._n_updates += 1
        moves_target = self._n_updates % self.target_update_interval == 0
        if self.share.size > 1 or not self._repeated.is_active:
            return self._step(batch, given, moves_target, weight)
        inputs = given | batch.tensors()

        def step(tensors: Tensors) -> dict[str, torch.Tensor]:
            fixed = dict(zip(inputs, tensors, strict=True))
            return self._step(batch.with_tensors(fixed), fixed, moves_target)

        options = (moves_target, self.tau, self.target_entropy, self.learns_ent_coef)
        return self._repeated(step, list(inputs.values()), *options)

    def _step(
        self, batch: ReplayBatch, given: Mapping[str, torch.Tensor], moves_target: bool, weight: float = 1.0
    ) -> dict[str, torch.Tensor]:
        """Make a gradient step; see `_update`.

        :param batch: Batch of m decisions.
        :param given: "next_noise" and "noise" of the next and the present actions, (m, continuous size) each;
            "rewards", and the "discount" of the next states, (m, signals) each.
        :param moves_target: Whether the target critics move afterwards.
        :param weight: Weight of the losses.
        """
        policy, action = self.policy, self.policy.adapter.spec.action_spec
        alpha = policy.log_ent_coef.detach().exp()
        memory = policy.split(batch.memory)[1]
        current, following = policy.actions_of(batch)

        # y = r + γ (1 − terminated) V'(s')
        with torch.no_grad():
            continuous, log_prob = following.rsample(given["next_noise"])
            next_q = policy.critic_target(self._following_states(batch, memory), continuous)
            next_value = self._soft_value(next_q, following, log_prob, alpha)
            target = torch.addcmul(given["rewards"], given["discount"], next_value)

        # J(Q) = ½ (Q − y)², averaged over the reward signals
        states, _ = policy.critic.observe(batch.inputs, memory, batch.length, policy.previous_actions(batch.actions))
        taken = batch.actions
        every_q = policy.critic(states, taken[:, : action.continuous_size] if action.continuous_size else None)
        if action.discrete_size:
            indices = taken[:, action.continuous_size :].to(torch.int64) + self._branch_offsets
            q = every_q.gather(3, indices[:, None].expand(2, -1, every_q.shape[2], -1)).mean(3)
        else:
            q = every_q.squeeze(3)
        q_losses = 0.5 * batch.means((q - target).square(), 1, 2)

        # J(π) = −V(s), for the actor alone
        continuous, log_prob = current.rsample(given["noise"])
        sampled_q = every_q.detach() if continuous is None else policy.critic(states.detach(), continuous)
        values = self._soft_value(sampled_q, current, log_prob, alpha)
        policy_loss = -batch.mean(values)

        # J(α) = −log α · (log π + target entropy)
        log_probs, targets = self._entropies(batch, current, log_prob)
        ent_coef_loss = log_probs.new_zeros(())
        if self.learns_ent_coef:
            ent_coef_loss = -(policy.log_ent_coef * (log_probs + targets)).sum()

        policy.clear_gradients()
        critic_loss = q_losses.sum() + ent_coef_loss
        if weight != 1:
            policy_loss, critic_loss = policy_loss * weight, critic_loss * weight
        policy_loss.backward(inputs=policy.actor_parameters)  # type: ignore[no-untyped-call]
        critic_loss.backward()  # type: ignore[no-untyped-call]
        self.share.sum_gradients(policy.parameters())
        policy.optimizer.step()
        if moves_target:
            policy.move_target(self.tau)
        return {
            "q_loss": q_losses.detach(),
            "actor_loss": policy_loss.detach(),
            "ent_coef_loss": ent_coef_loss.detach(),
            "value": batch.means(values.detach()),
            "reward": batch.means(given["rewards"]),
            "log_prob": log_probs,
            "ent_coef": alpha,
        }

    def _noise(self, minibatch: ReplayBatch, part: slice | None) -> torch.Tensor:
        """Draw the noise of continuous actions for the whole minibatch, and return this process's part of it."""
        shape = (len(minibatch), self.policy.adapter.spec.action_spec.continuous_size)
        if part is None:
            return torch.randn(shape, device=self.device)
        rows = slice(part.start * minibatch.length, part.stop * minibatch.length)
        return torch.randn(shape)[rows].to(self.device)

    def _following_states(self, batch: ReplayBatch, memory: torch.Tensor | None) -> torch.Tensor:
        """Return the features of the next states in the target critics."""
        observe = self.policy.critic_target.observe
        if memory is None:
            return observe(batch.next_inputs)[0]
        previous = self.policy.previous_actions(batch.actions)
        states = observe(batch.state_inputs, memory, batch.length + 1, previous)[0]
        states = states.view(batch.sequences, batch.length + 1, -1)
        return states[:, 1:].flatten(0, 1)

    def _soft_value(
        self, q: torch.Tensor, actions: SquashedActions, log_prob: torch.Tensor | None, alpha: torch.Tensor
    ) -> torch.Tensor:
        """Return V (m, signals).

        :param q: Q-values (2, m, signals, discrete actions or 1) at sampled continuous actions.
        :param actions: Action distribution.
        :param log_prob: Log-density of the sampled continuous actions (m, 1), if any.
        :param alpha: Entropy coefficients.
        """
        value = q.amin(0)
        if actions.log_probs is not None:
            branches = self.policy.adapter.spec.action_spec.discrete_size
            probabilities = actions.log_probs.exp()
            of_branches = alpha[-branches:][self._branch]
            value = (value * probabilities.unsqueeze(1)).sum(2)
            value = (value - (probabilities * actions.log_probs * of_branches).sum(1, keepdim=True)) / branches
        else:
            value = value.squeeze(2)
        return value if log_prob is None else torch.addcmul(value, log_prob, alpha[0], value=-1)

    @torch.no_grad()
    def _entropies(
        self, batch: ReplayBatch, actions: SquashedActions, log_prob: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means of expected log-probabilities and of target entropies, (entropy coefficients,) each."""
        log_probs, targets = [], []
        if log_prob is not None:
            log_probs.append(batch.means(log_prob.detach()))
            target = self.target_entropy
            target = -actions.spec.continuous_size if isinstance(target, str) else target
            targets.append(log_probs[0].new_full((1,), target))
        if actions.log_probs is not None:
            shape = (len(batch), len(self._branch_offsets))
            expected = actions.log_probs.exp() * actions.log_probs
            log_probs.append(batch.means(expected.new_zeros(shape).index_add_(1, self._branch, expected)))
            masks = batch.action_masks.to(expected.dtype)
            allowed = expected.new_zeros(shape).index_add_(1, self._branch, masks)
            targets.append(batch.means(_DISCRETE_TARGET * allowed.log()))
        return torch.cat(log_probs), torch.cat(targets)

    def _record(self, means: dict[str, Any]) -> None:
        """Log the mean values of the updates."""
        metrics = {name: value for name, value in means.items() if isinstance(value, float)}
        if "q_loss" in means:
            metrics["q1_loss"], metrics["q2_loss"] = means["q_loss"]
            metrics["value_loss"], metrics["critic_loss"] = sum(means["q_loss"]) / 2, sum(means["q_loss"])
            metrics["ent_coef"] = sum(means["ent_coef"]) / len(means["ent_coef"])
            metrics["entropy"] = -sum(means["log_prob"])
            for number in ("value", "reward"):
                metrics |= {
                    f"{signal.name}_{number}": value
                    for signal, value in zip(self._signals(), means[number], strict=True)
                }
            has_continuous = self.policy.adapter.spec.action_spec.continuous_size > 0
            if has_continuous:
                metrics["continuous_ent_coef"] = means["ent_coef"][0]
            if coefficients := means["ent_coef"][has_continuous:]:
                metrics["discrete_ent_coef"] = sum(coefficients) / len(coefficients)
        for name, value in metrics.items():
            self.logger.record_mean(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def learn(
        self: SelfSAC,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "SAC",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        workers: LearningWorkers | None = None,
    ) -> SelfSAC:
        """Learn for `total_timesteps` decisions of all agents together; see `OffPolicyAlgorithm.learn`.

        :param workers: Processes in which agents act, each with its own players: `Workers` or `RayWorkers`. None for
            the players of the environment.
        :raises UnityGymError: If workers cannot launch the players of the environment.
        """
        if workers is not None:
            self._learn_in_workers(
                workers, total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
            )
            return self
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        with self._learning():
            while self.num_timesteps < total_timesteps:
                if not self.collect_rollouts(callback, log_interval):
                    break
                self.train()
        callback.on_training_end()
        return self

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Write the replay buffer as an `.npz` file, which replaces an existing one only once it is complete.

        :param path: Path of the file, to which `.npz` is added if it has no suffix, or an open file.
        """
        if isinstance(path, (str, os.PathLike)):
            write_whole(with_suffix(path, ".npz"), self.replay_buffer.save)
        else:
            self.replay_buffer.save(path)  # type: ignore[arg-type]

    def load_replay_buffer(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        truncate_last_traj: bool = True,  # noqa: ARG002 (sequences always end where the file does)
    ) -> None:
        """Load the file of `save_replay_buffer`, or its newest decisions if it exceeds `buffer_size`.

        :param path: Path of the file, which may lack `.npz`, or an open file.
        :param truncate_last_traj: Parameter of SB3's method, without effect.
        :raises UnityGymError: If the file cannot be read, or is incompatible with the behavior spec.
        """
        buffer = ReplayBuffer(self.buffer_size, self.replay_buffer.sequence_length, self.policy.memory_size)
        try:
            if isinstance(path, (str, os.PathLike)):
                file_path = pathlib.Path(path)
                with (file_path if file_path.is_file() else with_suffix(path, ".npz")).open("rb") as file:
                    shapes = buffer.load(file)
            else:
                shapes = buffer.load(path)  # type: ignore[arg-type]
        except Exception as error:  # NumPy raises various errors for other files; loading executes no code
            raise UnityGymError(
                f"{path} cannot be used as a replay buffer: {error}. Delete it, or use another"
            ) from error
        spec = self.policy.adapter.spec
        action_size = spec.action_spec.continuous_size + spec.action_spec.discrete_size
        expected = {f"observation_{index}": sensor.shape for index, sensor in enumerate(spec.observation_specs)}
        expected |= {"action": (action_size,), "mask": (sum(spec.action_spec.discrete_branches),)}
        actual = {name: shape for name, shape in shapes.items() if name in expected or name.startswith("observation_")}
        if actual and expected != actual:
            raise UnityGymError(
                f"{path} is incompatible with the behavior spec: this model has {expected}, the file {actual}"
            )
        self.replay_buffer = buffer

    def _excluded_save_params(self) -> list[str]:
        built = ["_unseen", "_unsent", "_means", "_gamma", "_strength", "_ends", "_branch_offsets", "_branch"]
        return [*super()._excluded_save_params(), *built, "_repeated"]


def _numbers(tensors: list[torch.Tensor]) -> list[Any]:
    """Return a float per scalar, and a list of floats per vector, read from a GPU at once."""
    if not tensors:
        return []
    read = iter(torch.cat([tensor.reshape(-1) for tensor in tensors]).tolist())
    return [[next(read) for _ in range(len(tensor))] if tensor.dim() else next(read) for tensor in tensors]
