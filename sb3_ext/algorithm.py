"""Base class of the algorithms on the agent table."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule, TensorDict
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_ext.agents import (
    Agents,
    AgentTableLike,
    SpaceAdapter,
    UnityAgents,
    VecEnvAgents,
    memory_before,
    unity_behavior,
)
from sb3_ext.collector import Collection, Collector
from sb3_ext.experience import Trajectories
from sb3_ext.expert import DemonstrationSource
from sb3_ext.export import export_onnx
from sb3_ext.files import with_suffix, write_whole
from sb3_ext.hardware import cores_for_acting, one_thread, update_size, use_threads, use_threads_here
from sb3_ext.imitation import BehavioralCloning, checked_cloning
from sb3_ext.policies import AgentPolicy
from sb3_ext.replicas import Replicas, Share
from sb3_ext.reward_signals import Extrinsic, RewardSignal
from sb3_ext.sb3_names import Names
from sb3_ext.self_play import SelfPlay
from sb3_ext.vec_env import UnityVecEnv
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import ActionSpec, ActionTuple, Array, BehaviorSpec

if TYPE_CHECKING:
    from typing_extensions import Self

_PATIENCE = 100  # environment steps to wait for the outcomes of the last decisions
ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict)


class Linear:
    """Linear schedule from `initial` at the start to `final` at the end of training."""

    def __init__(self, initial: float, final: float) -> None:
        self.initial, self.final = initial, final

    def __call__(self, progress_remaining: float) -> float:
        """Return the value at this remaining progress (1 → 0)."""
        return self.final + (self.initial - self.final) * min(max(progress_remaining, 0.0), 1.0)


def schedule(value: float | Schedule, kind: str, final: float) -> Schedule:
    """Return a number as a schedule of this kind, or a function unchanged.

    :param value: Initial value, or a function of the remaining progress.
    :param kind: "constant" or "linear".
    :param final: Final value of a linear schedule, if it is less than `value`.
    """
    if callable(value) or kind == "constant":
        return FloatSchedule(value)
    return Linear(value, min(final, value))


def acting_generator(device: torch.device) -> torch.Generator:
    """Return a generator of sampled actions that continues torch's global one and leaves it unchanged."""
    generator = torch.Generator(device)
    if device.type == "cpu":
        generator.set_state(torch.get_rng_state())
    else:
        generator.manual_seed(torch.initial_seed())
    return generator


def acting_seed(name: str, timesteps: int, sampler: int = 0) -> int:
    """Return the seed of the sampled actions of a behavior in a sampler, which differs from that of all others.

    It depends on torch's seed. With the timesteps, a resumed training does not repeat the samples of its start.
    """
    return int(np.random.SeedSequence([torch.initial_seed(), timesteps, sampler, *name.encode()]).generate_state(1)[0])


class _Steps:
    """Results of the environment steps since the last call of `on_step`."""

    def __init__(self) -> None:
        self.decisions = 0
        self._rewards: list[Array] = []
        self._dones: list[Array] = []
        self._infos: list[dict[str, Any]] = []

    def add(self, decisions: int, rewards: Array, dones: Array, infos: list[dict[str, Any]]) -> None:
        """Add a step with this number of decisions."""
        self.decisions += decisions
        self._rewards.append(rewards)
        self._dones.append(dones)
        self._infos += infos

    def pop(self, decisions: int) -> tuple[Array, Array, list[dict[str, Any]]]:
        """Return rewards, dones and infos of all steps, one step after another, and subtract `decisions`."""
        self.decisions -= decisions
        steps = np.concatenate(self._rewards), np.concatenate(self._dones), self._infos
        self._rewards, self._dones, self._infos = [], [], []
        return steps


class LearningWorkers(Protocol):
    """Processes in which agents act while a model learns; see `sb3_ext.workers.Workers`."""

    def learn(self, model: UnityAlgorithm, callback: BaseCallback, log_interval: int | None) -> None:
        """Train until the model has made its timesteps, or its callback stops the training."""


class UnityAlgorithm(BaseAlgorithm):
    """Base class of algorithms whose agents act asynchronously.

    On an unwrapped `UnityVecEnv`, each agent acts as soon as it requests a decision; on any other SB3 `VecEnv`, all act
    together. A custom loop calls `start`, then repeats `select_actions`, an environment step and `store_outcomes`, and
    calls `train` whenever `is_update_due`.

    A subclass also derives from a class of SB3, such as `OnPolicyAlgorithm`, builds `policy` and declares its
    `collection`.
    """

    batch_size: int
    counters: ClassVar[tuple[str, ...]] = ("num_timesteps", "_n_updates")
    """Attributes for the progress of the training, which checkpoints of a run contain in addition to the networks."""
    sb3_names: ClassVar[Names] = Names({}, {})
    """Parameters with other names in Stable-Baselines3's algorithm, and unsupported ones."""
    saved_parameters: ClassVar[tuple[str, ...]] = ("policy",)
    """Parameters that are part of a saved model's weights."""
    policy: AgentPolicy
    reward_signals: list[RewardSignal]
    signals: nn.ModuleDict
    cloning: BehavioralCloning | None = None
    learning_rate_schedule: str = "constant"
    """Schedule of a learning rate that is a number: "linear" or "constant"."""
    adapter: SpaceAdapter | None
    """Adapter between the spaces of the environment and the arrays of the networks."""
    self_play: SelfPlay | None = None
    """Opponents of the model, if any."""
    threaded: bool = False
    """Whether updates run in a thread while the agents act."""
    version: int = 0
    """Number of updates of the acting weights."""
    _agents: Agents | None = None
    _collector: Collector | None = None
    _generator: torch.Generator | None = None  # generator of the sampled actions
    _running: Future[None] | None = None  # update in a thread
    _acting_copy: AgentPolicy | None = None  # policy that acts during the update
    agents_wait_too: bool = True
    """Whether all agents wait while this process waits for an update."""
    _is_awaited: bool = False  # the agents wait for the running update

    learner_devices: tuple[str, ...] = ()
    """Devices of further processes that share each update, such as `("cuda:1",)` besides the model's own "cuda:0"."""
    replicated: ClassVar[tuple[str, ...]] = ()
    """Attributes of the learning state that `save` leaves out."""
    share: Share = Share()
    """Part of each minibatch that this process computes."""
    _replicas: Replicas | None = None  # the further processes

    collection: Collection
    """Experience that the algorithm needs."""

    @classmethod
    def from_spec(cls, policy: str | type[AgentPolicy], spec: BehaviorSpec, **options: Any) -> Self:
        """Build a model of a behavior, without an environment.

        :param policy: Policy argument of the constructor.
        :param spec: Specification of the behavior.
        :param options: Other arguments of the constructor.
        """
        model = cls(policy, None, _init_setup_model=False, **options)  # type: ignore[call-arg]
        model._set_spec(spec)
        model._setup_model()
        return model

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        if policy_name not in self.policy_aliases:
            raise InvalidValueError(
                f"policy of {type(self).__name__} must be one of {list(self.policy_aliases)} or a class, got "
                f"{policy_name!r}"
            )
        return self.policy_aliases[policy_name]

    def _set_spec(self, spec: BehaviorSpec) -> None:
        """Set the spaces to those of a behavior."""
        layout = ObservationLayout(spec)
        self.observation_space, self.action_space = layout.space, action_space(spec.action_spec)
        self.adapter = SpaceAdapter(self.observation_space, self.action_space, (spec, layout))

    @property
    def collector(self) -> Collector:
        """Collector that lets the agents act and stores their experience."""
        assert self._collector is not None, "after start"
        return self._collector

    @property
    def missing(self) -> int:
        """Number of decisions to be collected until an update is due."""
        raise NotImplementedError

    @property
    def decisions_at_once(self) -> int:
        """Number of decisions that all samplers together collect at a time, if they do not wait for each other."""
        raise NotImplementedError

    def add(self, trajectories: Trajectories) -> None:
        """Store trajectories of the agents, to learn from them in the next updates."""
        raise NotImplementedError

    def count(self, decisions: int) -> None:
        """Count decisions of the agents as timesteps."""
        self.num_timesteps += decisions

    def experience(self) -> list[Trajectories]:
        """Return the stored trajectories that no update has used yet."""
        return []

    @property
    def has_experience(self) -> bool:
        """Whether there are trajectories that no update has used yet."""
        return bool(self.experience())

    @property
    def is_update_due(self) -> bool:
        """Whether there is enough experience for an update."""
        return self.missing <= self.collector.collected

    def train(self) -> None:
        """Learn from the collected experience; with `threaded`, start to."""
        raise NotImplementedError

    def discard_experience(self) -> None:
        """Discard experience that no update has used yet, as the agents start new episodes."""

    @property
    def gamma(self) -> float:
        """Discount of the only reward signal, or of the first of several."""
        return self.reward_signals[0].gamma

    @gamma.setter
    def gamma(self, gamma: float) -> None:
        """Change the discount of the only reward signal.

        :raises UnityGymError: If `gamma` is not in `[0, 1]`, or there are several signals.
        """
        first = self.reward_signals[0]
        if gamma == first.gamma:
            return
        if not 0 <= gamma <= 1:
            raise UnityGymError(f"gamma must be in [0, 1], got {gamma}")
        if len(self.reward_signals) > 1:
            raise UnityGymError(
                f"gamma cannot be {gamma} here: each of the {len(self.reward_signals)} reward signals has a discount "
                "of its own. Pass the gamma of each in reward_signals"
            )
        changed = copy.copy(first)  # the signal itself is the user's
        changed.gamma = gamma
        self.reward_signals = [changed]
        if hasattr(self, "signals"):
            self._signals()[0].gamma = gamma

    @property
    def acting_policy(self) -> AgentPolicy:
        """Policy that acts now."""
        return self.policy if self._running is None or self._acting_copy is None else self._acting_copy

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        given: Any = env
        if isinstance(given, gym.vector.VectorEnv) or hasattr(given, "possible_agents"):
            raise UnityGymError(
                f"an algorithm needs a VecEnv, such as UnityVecEnv('Unity-3DBall-v0'), or a gymnasium.Env, got "
                f"{type(env).__name__}"
            )
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _adapter_of(self, env: VecEnv) -> SpaceAdapter:
        # The model's spaces equal those of the environment, but may list their keys in another order.
        return SpaceAdapter(self.observation_space, self.action_space, unity_behavior(env))

    def _check_options(self) -> None:
        """Check the values of parameters, those of the constructor or of `load`."""

    def _setup_lr_schedule(self) -> None:
        """Build the schedule of the learning rate; replace SB3's method, in which numbers are constant."""
        if isinstance(self.learning_rate, Linear):  # earlier versions saved the schedule of a number instead of it
            self.learning_rate = self.learning_rate.initial
        self.lr_schedule = schedule(self.learning_rate, self.learning_rate_schedule, 1e-10)

    def warn_of_schedule(self, total_timesteps: int, continues: bool) -> None:
        """Warn if a learning that starts now has hardly any effect, as its learning rate ends at 0.

        :param total_timesteps: Timesteps of this learning.
        :param continues: Whether it continues counting the timesteps of previous ones.
        """
        if not isinstance(self.lr_schedule, Linear):
            return
        remedy = "For a constant one, pass learning_rate_schedule='constant' to the model, or to load"
        if total_timesteps <= self.decisions_at_once:
            warnings.warn(
                f"the {total_timesteps} timesteps of this learning suffice for one update, at its end, where the "
                f"learning rate has decreased to 1e-10: nothing is learned. {remedy}",
                stacklevel=4,
            )
        elif continues and self.num_timesteps:
            warnings.warn(
                "this learning continues a previous one, and the learning rate has decreased to 1e-10 at the end of "
                f"each: several short learnings learn less than a long one. {remedy}",
                stacklevel=4,
            )

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """Set the progress of schedules; all agents act at once, so the last step may exceed `total_timesteps`."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(self._current_progress_remaining, 0.0)

    def _set_up_signals(self) -> None:
        """Build the algorithm's own copies of the reward signals."""
        assert self.adapter is not None
        self.reward_signals = checked_signals(self.reward_signals)
        if "gamma" in self.__dict__:  # set by `load(path, gamma=0.9)`
            self.gamma = self.__dict__.pop("gamma")
        self.signals = nn.ModuleDict()
        for signal in self.reward_signals:
            own = copy.deepcopy(signal)
            own.setup(self.adapter.spec)
            self.signals[signal.name] = own
        self.signals.to(self.device)

    def _set_up_cloning(self, given: DemonstrationSource | BehavioralCloning | None, batch_size: int) -> None:
        """Set up the algorithm's own copy of the user's behavioral cloning with the actor."""
        self.cloning = copy.copy(checked_cloning(given))
        if self.cloning is not None:
            self.cloning.setup(self.policy, self.lr_schedule(1), batch_size)

    @property
    def reserved_cores(self) -> int:
        """Number of cores that an update of the policy leaves to acting agents and to the updates of reward signals."""
        return cores_for_acting() if self.threaded else int(self.signals_learn_in_thread)

    @property
    def signals_learn_in_thread(self) -> bool:
        """Whether reward signals learn at the same time as the policy."""
        return False

    def _signals(self) -> list[RewardSignal]:
        return [signal for signal in self.signals.values() if isinstance(signal, RewardSignal)]

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        if self.env is None:
            raise UnityGymError(
                "this model has no environment to learn on: call set_env(env) first, or load it with load(path, env)"
            )
        self.warn_of_schedule(total_timesteps, continues=not reset_num_timesteps)
        use_threads([update_size(self.policy, self.batch_size)], reserved=self.reserved_cores)
        if self._agents is not None and not self._agents.are_current:
            self._last_obs = None  # SB3 resets the environment then
        before = self._last_obs
        self._steps = _Steps()
        prepared = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if self._agents is None or self._last_obs is not before:
            self._start_collection()
        return prepared

    def _learn_in_workers(
        self,
        workers: LearningWorkers,
        total_timesteps: int,
        callback: MaybeCallback,
        log_interval: int | None,
        tb_log_name: str,
        reset_num_timesteps: bool,
        progress_bar: bool,
    ) -> None:
        """Learn from agents in other processes; see `learn`."""
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        with self._learning():
            workers.learn(self, callback, log_interval)
        self._agents = self._last_obs = None  # so that the next `learn` resets the environment
        callback.on_training_end()

    def _start_collection(self) -> None:
        """Start with the agents of an environment that was reset, and discard their previous experience."""
        assert self.env is not None
        assert self.adapter is not None
        if isinstance(self.env, UnityVecEnv):
            self.start(self.env.table.spec)
            self._agents = UnityAgents(self.env)
            return
        # A model saved by an earlier version may have one flat sensor per key of the space instead of Unity's sensors.
        expected = self._adapter_of(self.env).spec if self.adapter.has_unity_sensors else self.adapter.spec
        self.start(expected)
        self._agents = VecEnvAgents(self.env, self.adapter, self._last_obs)

    def start(self, spec: BehaviorSpec) -> None:
        """Start collecting from agents of this behavior, at the start of their episodes.

        :raises UnityGymError: If the model is incompatible with the behavior spec.
        """
        self.require_spec(spec)
        self.finish_update()
        self.discard_experience()
        if self._generator is None:
            self._generator = acting_generator(self.device)
        self._collector = Collector(self.acting_policy, self.collection, self._generator)
        self._collector.version = self.version

    def reseed_actions(self, name: str) -> None:
        """Sample actions independently of other behaviors; see `acting_seed`."""
        assert self._generator is not None
        self._generator.manual_seed(acting_seed(name, self.num_timesteps))

    def require_spec(self, spec: BehaviorSpec) -> None:
        """Check that the model fits a behavior.

        :raises UnityGymError: If the model is incompatible with the behavior spec.
        """
        expected, actual = _form(self.policy.adapter.spec), _form(spec)
        if expected != actual:
            raise UnityGymError(
                f"this model is incompatible with the behavior spec: it takes {expected}, the environment has {actual}"
            )

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed all generators; see `BaseAlgorithm.set_random_seed`."""
        super().set_random_seed(seed)
        if seed is not None:
            self._generator = None

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Continue with another environment of the same behavior; see `BaseAlgorithm.set_env`."""
        self.n_envs = env.num_envs if isinstance(env, VecEnv) else 1  # any number of agents may act
        super().set_env(env, force_reset)
        self._agents = None

    def _act(self, callback: BaseCallback, learn: bool = True) -> bool:
        """Let the agents act in one environment step.

        `on_step` is called once per `num_envs` decisions. Until then rewards, dones and infos of the steps accumulate.

        :param callback: Callback of the training.
        :param learn: Whether to count and store the decisions; see `select_actions`.
        :return: False if the callback stopped the training, else True.
        """
        assert self._agents is not None
        assert self.env is not None
        before = self.num_timesteps
        actions = self.select_actions(self._agents.table, learn=learn)
        rewards, dones, infos = self._agents.step(actions)
        self.store_outcomes(self._agents.table)
        if isinstance(self._agents, VecEnvAgents):
            self._last_obs = self._agents.last_observations
        self._episode_num += int(np.count_nonzero(dones))
        self._update_info_buffer(infos, dones)
        self._steps.add(self.num_timesteps - before, rewards, dones, infos)
        if self._steps.decisions < self.env.num_envs:
            return True
        rewards, dones, infos = self._steps.pop(self.env.num_envs)
        new_obs = self._agents.last_observations
        callback.update_locals(locals())
        return callback.on_step()

    def _take_collected(self, include_open: bool = False) -> None:
        if self._collector is not None and (collected := self._collector.take(include_open)) is not None:
            self.add(collected)

    def _collect_rest(self, callback: BaseCallback) -> bool:
        """Step without storing decisions until all stored ones have their outcomes, and collect them.

        :return: False if the callback stopped the training, else True.
        """
        for _ in range(_PATIENCE):
            if not self.collector.has_open_decisions:
                break
            if not self._act(callback, learn=False):
                return False
        self._take_collected(include_open=True)
        return True

    def select_actions(self, table: AgentTableLike, deterministic: bool = False, learn: bool = True) -> ActionTuple:
        """Select the actions of the rows that request a decision.

        :param table: Table of the agents.
        :param deterministic: Whether to take the most likely actions.
        :param learn: Whether to count the decisions and store them for the next update.
        :return: Actions of all rows, zero for the others.
        """
        self.finish_update(wait=False)
        actions = self.collector.select_actions(table, deterministic)
        self.count(self.collector.store_decisions(table, learn))
        return actions

    def store_outcomes(self, table: AgentTableLike) -> None:
        """Store the outcomes of the decisions."""
        self.collector.store_outcomes(table)

    def _share_update(self) -> None:
        """Let the further processes share the update that starts now; start them if necessary.

        :raises UnityGymError: If a process cannot be started.
        """
        if not self.learner_devices:
            return
        if self._replicas is None:
            self._replicas = Replicas(self, self.learner_devices)
            self.share = self._replicas.share
        self._replicas.train(self.replica_state())

    def replica_state(self) -> dict[str, Any]:
        """Return the state that the next update needs, in addition to the state after the previous update.

        It includes the options, which a callback may have changed.
        """
        left_out = self._excluded_save_params()
        options = {name: value for name, value in vars(self).items() if _is_scalar(value) and name not in left_out}
        # A schedule may be a function that cannot be sent.
        return options | {"lr_schedule": FloatSchedule(self.lr_schedule(self._current_progress_remaining))}

    def train_as_replica(self, state: dict[str, Any]) -> None:
        """Make the same update as another process.

        :param state: Return value of `replica_state` in that process.
        """
        self.__dict__ |= state
        self.train()

    def stop_replicas(self) -> None:
        """End the further processes; the next update starts them again."""
        if self._replicas is not None:
            self._replicas.close()
        self._replicas, self.share = None, Share()

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """End the learning with the context; after an exception in it, the next `learn` resets the environment."""
        try:
            yield
        except BaseException:
            self._agents = self._last_obs = None  # the last step, or the storing of its outcomes, may be incomplete
            raise
        finally:
            self.end_learning()

    def end_learning(self) -> None:
        """Wait for a running update, and end the further processes."""
        try:
            self.finish_update()
        finally:
            self.stop_replicas()

    def _share_failed(self, error: RuntimeError) -> None:
        """Raise the error of another process if it caused an error in an update."""
        if self._replicas is not None and not isinstance(error, UnityGymError):
            failure = self._replicas.failure(error)
            self.stop_replicas()
            raise failure from error

    def _start_update(self, update: Callable[[], None]) -> None:
        """Run an update; with `threaded`, in a thread, while the agents act with a copy of the policy."""
        if not self.threaded or self.share.rank:  # a replica has no agents that could act meanwhile
            try:
                update()
            except RuntimeError as error:
                self._share_failed(error)
                raise
            self._end_update()
            return
        if self._acting_copy is None:
            self._acting_copy = self.policy.acting_copy()
            self._acting_copy.set_training_mode(False)
        else:
            self._acting_copy.load_acting(self.policy.state_dict())
        if self._collector is not None:
            self._collector.policy = self._acting_copy
        executor = one_thread()
        self._running = executor.submit(update)
        executor.shutdown(wait=False)  # its thread ends with the update

    def finish_update(self, wait: bool = True) -> None:
        """Finish a background update of `threaded`: act with the updated policy and re-raise the thread's exception.

        Until then the thread owns `policy`: `select_actions` and `predict` avoid it; saving and loading wait.

        :param wait: Whether to wait for the end of the update. False: return at once while it runs.
        """
        running = self._running
        if running is None or not (wait or running.done()):
            return
        self._is_awaited = self.agents_wait_too
        try:
            running.exception()  # waits
        finally:
            self._is_awaited = False
        self._running = None
        if self._collector is not None:
            self._collector.policy = self.policy
        try:
            running.result()
        except RuntimeError as error:
            self._share_failed(error)
            raise
        self._end_update()

    def _use_idle_cores(self) -> None:
        """Use the cores of the agents for the rest of an update in a thread, once all of them wait for its end."""
        if self._is_awaited:
            use_threads_here(update_size(self.policy, self.batch_size), reserved=int(self.signals_learn_in_thread))

    def _end_update(self) -> None:
        """Publish the result of a finished update."""
        self.version += 1
        if self._collector is not None:
            self._collector.version = self.version

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Return the actions for one observation or a batch; see `AgentPolicy.predict`.

        The recurrent state of rows of the model's own `UnityVecEnv` that request no decision stays the same. Without
        `action_masks`, the present observations of the model's own `UnityVecEnv` get its masks. For others, a
        warning reports that the model's environment masks actions.
        """
        if action_masks is None:
            action_masks = self._present_masks(observation)
        actions, memory = self.acting_policy.predict(observation, state, episode_start, deterministic, action_masks)
        if memory is not None:
            self._keep_memory_of_waiting_rows(observation, state, episode_start, memory)
        return actions, memory

    def _keep_memory_of_waiting_rows(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None,
        episode_start: np.ndarray | None,
        memory: tuple[np.ndarray, ...],
    ) -> None:
        """Keep the recurrent state of agents of the model's own `UnityVecEnv` that do not request a decision now."""
        unity = None if self.env is None else self.env.unwrapped
        if not isinstance(unity, UnityVecEnv):
            return
        waits = unity.table.alive & ~unity.table.requests_decision
        if not waits.any() or not unity.is_current(observation):
            return
        before = memory_before(state, episode_start, len(waits), memory[0].shape[1])
        memory[0][waits] = before[waits]

    def _present_masks(self, observation: np.ndarray | dict[str, np.ndarray]) -> np.ndarray | None:
        """Return the masks of the model's environment if it is in the state of this observation."""
        if self.env is None or not is_masking_supported(self.env):
            return None
        masks = np.asarray(get_action_masks(self.env))
        unity = self.env.unwrapped
        if isinstance(unity, UnityVecEnv) and unity.is_current(observation):
            return masks
        if not masks.all():
            warnings.warn(
                "predict() got no action_masks, and the environment masks actions: it may return some that the scene "
                "ignores. Pass action_masks=env.action_masks(), or evaluate with evaluate_policy of "
                "sb3_contrib.common.maskable.evaluation",
                stacklevel=3,
            )
        return None

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model, after a running update; see `BaseAlgorithm.save`.

        The file replaces an existing one only once it is complete.
        """
        self.finish_update()
        self.saved_by = self._class_name()
        save = partial(super().save, exclude=exclude, include=include)
        if isinstance(path, (str, os.PathLike)):
            write_whole(with_suffix(path, ".zip"), save)
        else:
            save(path)

    @classmethod
    def _class_name(cls) -> str:
        """Return the name of this class, or of the class of this package from which a user has derived it."""
        return next(base.__name__ for base in cls.__mro__ if base.__module__.startswith("sb3_ext."))

    def _require_own_class(self) -> None:
        """Check that the class that is loading a model has also saved it.

        :raises UnityGymError: If another class has saved it.
        """
        own = self._class_name()
        if (saved_by := self.__dict__.get("saved_by", own)) != own:
            raise UnityGymError(f"{saved_by} has saved this model, not {own}: load it with {saved_by}.load")

    @classmethod
    def load(
        cls,
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Load a model; see `BaseAlgorithm.load`.

        :param kwargs: Parameters to change, under the names here or in Stable-Baselines3.
        :raises UnityGymError: If a parameter does not exist, is given under two names, or is not supported, or another
            class has saved the model.
        """
        own_classes = [base for base in cls.__mro__ if issubclass(base, UnityAlgorithm) and "__init__" in vars(base)]
        parameters = {name for base in own_classes for name in inspect.signature(base).parameters}
        if unknown := sorted(kwargs.keys() - parameters):
            raise UnityGymError(
                f"{unknown[0]} cannot be changed by load: {cls.__name__} has no such parameter; see its documentation"
            )
        if saved := [name for name in cls.saved_parameters if name in kwargs]:
            raise UnityGymError(
                f"{saved[0]} cannot be changed by load, as the saved weights have it: build a new model with it"
            )
        gamma = {"gamma": kwargs.pop("gamma")} if "gamma" in kwargs else {}  # discount of the saved signal
        own = cls.sb3_names.translate(env, kwargs)
        others = {name: value for name, value in kwargs.items() if not cls.sb3_names.has(name)}
        given = others | own | gamma
        if "stats_window_size" in given:
            given["_stats_window_size"] = given.pop("stats_window_size")  # SB3's name of the attribute
        try:
            model = super().load(path, env, device, custom_objects, print_system_info, force_reset, **given)
        except TypeError as error:
            raise UnityGymError(
                f"{path} is no model of sb3_ext.{cls.__name__}: {error}. Load it with the class that saved it"
            ) from error
        except AssertionError as error:  # a file that was cut off can end with one of its parts, which are archives too
            raise UnityGymError(f"{path} is no complete model: {error}. Copy it again, or use another") from error
        model._check_options()
        return model

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Return the parameters after a running update; see `BaseAlgorithm.get_parameters`."""
        self.finish_update()
        return super().get_parameters()

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: torch.device | str = "auto",
    ) -> None:
        """Set the parameters, after a running update; see `BaseAlgorithm.set_parameters`.

        A model with behavioral cloning also takes parameters that were saved without it, and the other way round.

        :raises UnityGymError: If another class, or a model with other networks or reward signals, has saved them.
        """
        self.finish_update()
        self.stop_replicas()
        if isinstance(load_path_or_dict, dict):
            parameters: dict[str, Any] = load_path_or_dict
        else:
            parameters = load_from_zip_file(load_path_or_dict, load_data=False, device=device)[1]
        if self.cloning is None:
            parameters = {name: saved for name, saved in parameters.items() if name != "cloning"}
        elif "cloning" not in parameters:
            parameters = parameters | {"cloning": self.cloning.state_dict()}
        try:
            super().set_parameters(parameters, exact_match, device)
        except (RuntimeError, ValueError, KeyError) as error:
            names = [signal.name for signal in self.reward_signals]
            raise UnityGymError(
                f"the parameters do not fit this {type(self).__name__} with the reward signals {names}: "
                "build the model with the class, policy_kwargs and reward_signals of the one that saved them"
            ) from error

    def export_onnx(self, path: str | os.PathLike[str], deterministic: bool = False) -> None:
        """Write the policy as an ONNX file for Unity; see `sb3_ext.export.export_onnx`.

        :param path: Path of the file.
        :param deterministic: Whether the file of a policy that uses its previous action always returns the most likely
            actions. By default it always samples.
        :raises UnityGymError: If `export_onnx` raises, or the environment's `VecNormalize` normalizes observations.
        """
        self.finish_update()
        wrapper = self.get_vec_normalize_env()
        if wrapper is not None and wrapper.norm_obs:
            raise UnityGymError(
                "cannot export: the policy needs VecNormalize's statistics, which an ONNX file cannot store: learn "
                "with policy_kwargs={'normalize': True} and VecNormalize(norm_obs=False)"
            )
        export_onnx(self.policy, path, deterministic)

    def _excluded_save_params(self) -> list[str]:
        of_acting = ["_agents", "_steps", "_collector", "_generator"]
        of_threads = ["_running", "_acting_copy", "_is_awaited", "agents_wait_too"]
        of_replicas = ["learner_devices", "share", "_replicas"]
        return [*super()._excluded_save_params(), *of_acting, *of_threads, *of_replicas]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "signals", *(["cloning"] if self.cloning is not None else [])], []


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def checked_signals(signals: Sequence[RewardSignal] | None) -> list[RewardSignal]:
    """Return the reward signals of an algorithm (default: `Extrinsic()`).

    :raises UnityGymError: If there are none, two have the same name, or one is no reward signal.
    """
    chosen: list[RewardSignal] = [Extrinsic()] if signals is None else list(signals)
    if not all(isinstance(signal, RewardSignal) for signal in chosen):
        raise UnityGymError(
            f"reward_signals is a list such as [Extrinsic(), Curiosity(strength=0.02)], got {signals!r}"
        )
    names = [signal.name for signal in chosen]
    if not names or len(set(names)) < len(names):
        raise UnityGymError(f"reward_signals must be one or more with different names, got {names}")
    return chosen


def _form(spec: BehaviorSpec) -> tuple[list[tuple[Any, ...]], ActionSpec]:
    """Return the parts of a spec that a model depends on: all except the names of the sensors."""
    return [tuple(sensor[:3]) for sensor in spec.observation_specs], spec.action_spec
