"""`Workers` and `RayWorkers`: let the agents of a script's training act in other processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.console import LOG
from sb3_ext.learner import Learner
from sb3_ext.model_training import ModelTraining
from sb3_ext.placement import Place, PlacedSampler, RemoteSampler, started
from sb3_ext.player_copies import PlayerCopies
from sb3_ext.ppo import PPO
from sb3_ext.processes import Processes
from sb3_ext.sac import SAC
from sb3_ext.sampler import Samples, plain_name
from sb3_ext.served_sampler import SamplerArguments
from sb3_ext.settings import RaySettings
from sb3_ext.vec_env import UnityVecEnv
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.side_channels.stats import aggregate


class Workers:
    """Processes of this machine in which agents act, each with players like those of the environment.

        model = PPO("UnityPolicy", UnityVecEnv("Unity-3DBall-v0", n_instances=2))
        model.learn(1_000_000, workers=Workers(4))  # 8 players in 4 processes

    The processes run for the duration of `learn`, during which the environment's own players are idle. Each process
    acts with a copy of the policy, and receives the new weights after each update. Worker i has the seeds of the
    players from i * `n_instances` on. Failed workers and players are started again, at most 10 times each, and at most
    once per minute.

    The processes import the script: put its code below `if __name__ == "__main__":`.

    Callbacks are called once per `num_envs` decisions, when a worker returns its share. `dones` and `infos` are then
    those of the finished episodes; `rewards` and `new_obs` do not exist.

    :param number: Number of workers.
    :raises InvalidValueError: If it is below 1.
    """

    def __init__(self, number: int) -> None:
        if number < 1:
            raise InvalidValueError(
                f"the number of workers must be at least 1, got {number}: leave workers out for none"
            )
        self.number = number

    def _place(self, file_name: str) -> AbstractContextManager[Place]:  # noqa: ARG002
        """Create the place of the workers, as a context."""
        return nullcontext(Processes())

    @contextmanager
    def samplers(self, copies: PlayerCopies, is_asynchronous: bool) -> Iterator[list[RemoteSampler]]:
        """Start the workers, wait until their players are launched, and end them.

        :param copies: Players of the workers.
        :param is_asynchronous: Whether agents act asynchronously, as in `sb3_ext.sampler.Sampler`.
        :raises UnityGymError: If workers or players cannot be launched.
        """
        players = [copies.n_instances] * self.number
        with self._place(str(copies.options.file_name)) as place:
            arguments = [
                SamplerArguments(partial(copies.launch, number, place.build), number * players[0], {}, is_asynchronous)
                for number in range(self.number)
            ]
            with started(place, arguments, players, LOG.warning) as samplers:
                yield samplers

    def learn(self, model: UnityAlgorithm, callback: BaseCallback, log_interval: int | None) -> None:
        """Train a model until its timesteps are complete; its `learn` calls this.

        :param model: Model, after `_setup_learn`.
        :param callback: Callback, after `on_training_start`.
        :param log_interval: Number of updates between logs, as in `learn`.
        :raises UnityGymError: If the players of the model's environment cannot be launched in other processes.
        """
        env = model.env
        if not isinstance(env, UnityVecEnv):
            raise UnityGymError(
                f"workers launch the players of a UnityVecEnv, which is not in a wrapper, got {type(env).__name__}"
            )
        with self.samplers(env.copies(), model.threaded) as samplers:
            _CallbackTraining(samplers, plain_name(env.behavior), model, callback, log_interval).run()


class RayWorkers(Workers):
    """Ray actors in which agents act, on the nodes of a cluster; otherwise as `Workers`. Requires the extra `ray`.

    :param number: Number of workers.
    :param address: Address of the cluster; None for `RAY_ADDRESS`, the cluster of this machine, or a new one on this
        machine. "local": always a new one. A script that has called `ray.init` keeps its connection.
    :param num_cpus: CPUs that each worker reserves on its node.
    :param num_gpus: GPUs that each worker reserves, for players that render.
    :param ship_build: Copy the folder of the build to each node. Otherwise it exists there, under the same path.
    :raises InvalidValueError: If `number` is below 1.
    """

    def __init__(
        self,
        number: int,
        address: str | None = None,
        *,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        ship_build: bool = False,
    ) -> None:
        super().__init__(number)
        if min(num_cpus, num_gpus) < 0:
            raise InvalidValueError(f"num_cpus and num_gpus must be at least 0, got {num_cpus} and {num_gpus}")
        self._settings = RaySettings(
            address=address,
            num_cpus_per_sampler=num_cpus,
            num_gpus_per_sampler=num_gpus,
            ship_build=ship_build,
        )

    def _place(self, file_name: str) -> AbstractContextManager[Place]:
        from sb3_ext.ray_cluster import connect  # optional dependency

        return connect(self._settings, file_name, LOG.warning)


class _CallbackTraining(ModelTraining):
    """Training of one model with the callback and the log of its `learn`.

    :param samplers: Samplers of the agents.
    :param name: Name of the behavior.
    :param model: Model to train.
    :param callback: Callback, which is called as in `learn`.
    :param log_interval: Number of updates between logs, as in `learn`.
    """

    def __init__(
        self,
        samplers: Sequence[PlacedSampler],
        name: str,
        model: UnityAlgorithm,
        callback: BaseCallback,
        log_interval: int | None,
    ) -> None:
        self._model, self._callback, self._log_interval = model, callback, log_interval
        assert model.env is not None
        self._num_envs = model.env.num_envs
        self._decisions = self._rollouts = 0  # decisions since the last call of `on_step`
        self._infos: list[dict[str, Any]] = []
        self._is_in_rollout = False
        super().__init__(samplers, {name: model}, {name: model._total_timesteps}, {}, {})

    def _step(self) -> None:
        if not self._is_in_rollout:
            self._is_in_rollout = True
            self._callback.on_rollout_start()
        super()._step()

    def _proceed(self) -> bool:
        return super()._proceed() and not self._is_stopped

    def _take_statistics(self, samples: Samples) -> None:
        self._add_infos(samples)
        self._decisions += sum(samples.stored.values())
        model, reached = self._model, self._model.num_timesteps
        while self._decisions >= self._num_envs and not self._is_stopped:
            self._decisions -= self._num_envs
            model.num_timesteps = reached - self._decisions
            infos, self._infos = self._infos, []
            dones = np.array(["episode" in info for info in infos], bool)
            self._callback.update_locals({"self": model, "infos": infos, "dones": dones})
            self._is_stopped = not self._callback.on_step()
        model.num_timesteps = reached

    def _add_infos(self, samples: Samples) -> None:
        """Count finished episodes, and store their infos for the callback."""
        model, infos = self._model, []
        for episodes in samples.episodes.values():
            returns = episodes["reward"] + episodes["group_reward"]
            elapsed = round((time.time_ns() - model.start_time) / 1e9, 6)
            for total, length in zip(returns.tolist(), episodes["length"].tolist(), strict=True):
                infos.append({"episode": {"r": total, "l": length, "t": elapsed}})
        model._update_info_buffer(infos)
        before, model._episode_num = model._episode_num, model._episode_num + len(infos)
        infos += [{"stats": aggregate(players.values())} for players in samples.stats]
        self._infos += infos
        interval = self._log_interval
        if isinstance(model, SAC) and interval and model._episode_num // interval > before // interval:
            model.dump_logs()

    def _update(self, learner: Learner) -> None:
        if self._is_stopped:
            return
        if self._is_in_rollout:
            self._is_in_rollout = False
            self._callback.on_rollout_end()
        self._rollouts += 1
        if isinstance(self._model, PPO) and self._log_interval and self._rollouts % self._log_interval == 0:
            self._model.dump_logs(self._rollouts)
        super()._update(learner)

    def _take_update(self, learner: Learner) -> None:
        """See `JointTraining`; the log is written once per `log_interval`."""
