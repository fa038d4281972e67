"""MA-POCA: the members of a group learn from the group's rewards, including those after their deaths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, PyTorchObs, Schedule

from sb3_ext.algorithm import LearningWorkers
from sb3_ext.distributions import ActionDistribution
from sb3_ext.expert import DemonstrationSource
from sb3_ext.group_index import GroupIndex
from sb3_ext.groups import GroupRollout, Groups
from sb3_ext.hardware import to_device
from sb3_ext.imitation import BehavioralCloning
from sb3_ext.networks.group import GroupBody
from sb3_ext.networks.layers import value_layer
from sb3_ext.policies import UnityPolicy
from sb3_ext.ppo import PPO
from sb3_ext.reward_signals import Extrinsic, RewardSignal
from sb3_ext.rollout import CHUNK, Batch, Rollout
from sb3_ext.sb3_names import SB3_NETWORKS
from sb3_ext.vec_env import UnityVecEnv
from unity_gym.errors import UnityGymError

SelfPOCA = TypeVar("SelfPOCA", bound="POCA")


class UnityPOCAPolicy(UnityPolicy):
    """Policy with the actor of `UnityPolicy` and one critic of whole groups, which only learning needs.

    The critic has one value head per reward signal and two outputs. V(s) uses the observations of all members of the
    group. The baseline b of a member uses its own observation and the observations and actions of the others. Both
    are on the axis of the critics, V first. The policy's recurrent state is the actor's. The rollout's groups store the
    critic's: V's, then b's. The parameters are those of `UnityPolicy`.

    :raises UnityGymError: If a shared or a second critic is given, or the attention heads do not divide the width.
    """

    def _build_critics(self, heads: int, shared_critic: bool, second_critic: str | None) -> None:
        if shared_critic or second_critic:
            raise UnityGymError(
                "POCA's one critic is that of the group: leave shared_critic and second_critic out, or use PPO"
            )
        self.critic = self.second_critic = self.second_value_head = None
        self.group_body = GroupBody(self.adapter.spec, self.critic_settings, self.body.normalization)
        self.value_head = value_layer(self.group_body.features + 1, heads)

    def _learning_parts(self) -> list[Any]:
        return [self.value_head, self.group_body]

    def combined(self, values: torch.Tensor) -> torch.Tensor:
        """Return V(s), (n, signals), from V and b (n, 2, signals)."""
        return values[:, 0]

    def baseline(self, values: torch.Tensor) -> torch.Tensor:
        """Return b, (n, signals), from V and b (n, 2, signals)."""
        return values[:, 1]

    def critic_values(self, observations: Sequence[torch.Tensor], memory: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Raise an error, as single agents have no value here.

        :raises UnityGymError: Always.
        """
        raise UnityGymError("POCA's critic needs the groups of the agents: see group_values")

    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, ActionDistribution]:
        """Return V and b (m, 2, signals) and log-probabilities (m, act_dim) of decisions, and their distribution."""
        _, distribution = self._forward_actor(batch)
        groups = _groups_of(batch.rollout)
        features, counts = self._features(groups, batch.decisions)
        if self.group_body.memory is not None:
            features, _ = self._update_memory(features, groups.memory[batch.index[:: batch.length]], batch.length)
        return self._both(features, counts), distribution.log_probs_per_dimension(batch.actions), distribution

    def predict_values(self, obs: PyTorchObs) -> torch.Tensor:
        """Return V (n, signals) of agents without a group, at the start of an episode; see `UnityPolicy.forward`."""
        observations = self._sensor_tensors(obs)
        n = len(observations[0])
        alone = torch.arange(n, device=self.device).unsqueeze(1)
        features = self.group_body(observations, GroupIndex(alone, torch.ones_like(alone, dtype=torch.bool)))
        if self.group_body.memory is not None:
            features, _ = self.group_body.memory(features, features.new_zeros(n, self.settings.memory_size), 1)
        return self._head(features, torch.ones(n, device=self.device))

    @torch.no_grad()
    def group_values(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the critic's values of a rollout, and update the groups' recurrent states as `refresh_memory` does.

        :return: V and b of the decisions' states (n, 2, signals). V (…, signals) and the critic's recurrent states
            (…, 2, memory size) after the trajectories.
        """
        groups = _groups_of(rollout)
        features, counts = self._all_features(groups)
        ends = torch.arange(len(groups.end_members))
        end_features = torch.cat([self._end_features(groups, part) for part in torch.split(ends, CHUNK)])
        memory = groups.memory[: len(ends)]
        if self.group_body.memory is not None:
            features, memory = self._follow(rollout, features)
            end_features, _ = self.group_body.memory(end_features, memory[:, 0], 1)
        following = self._head(end_features, to_device(groups.end_members.present.sum(1), end_features.device))
        return self._both(features, counts), following, memory

    @torch.no_grad()
    def refresh_memory(self, rollout: Rollout) -> None:
        """Recompute the recurrent states of the actor, as `UnityPolicy` does, and of the critic.

        If a trajectory continues one that was cut, the critic's state carries over. Otherwise the groups' state at the
        trajectory's first decision stays.
        """
        super().refresh_memory(rollout)
        self._follow(rollout, self._all_features(_groups_of(rollout))[0])

    def _features(self, groups: Groups, decisions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features of V and b (m, 2, width) before the LSTM, and member counts (m,).

        :param groups: Groups of a rollout.
        :param decisions: Decisions, int64 (m,), on the CPU.
        """
        states, state = torch.unique(groups.state[decisions], return_inverse=True)
        members = groups.members[states]
        used, sets = members.used()
        is_own = (members.rows[state] == decisions.unsqueeze(1)) & members.present[state]
        indices = used, state, is_own.int().argmax(1), sets.present.sum(1)[state]
        device = groups.actions.device
        used, state, own, counts = (to_device(index, device) for index in indices)
        seen = [array.index_select(0, used) for array in groups.observations]
        features = self.group_body(seen, sets.to_device(device), groups.actions[used], state, own)
        of_states, of_baselines = features.split([len(states), len(decisions)])
        return torch.stack([of_states[state], of_baselines], 1), counts

    def _all_features(self, groups: Groups) -> tuple[torch.Tensor, torch.Tensor]:
        decisions = torch.arange(len(groups.state))
        parts = [self._features(groups, part) for part in torch.split(decisions, CHUNK)]
        features, counts = zip(*parts, strict=True)
        return torch.cat(features), torch.cat(counts)

    def _end_features(self, groups: Groups, trajectories: torch.Tensor) -> torch.Tensor:
        """Return features of V (t, width) before the LSTM, after these trajectories, int64 (t,) on the CPU."""
        used, sets = groups.end_members[trajectories].used()
        device = groups.actions.device
        used = to_device(used, device)
        features: torch.Tensor = self.group_body(
            [array[used] for array in groups.end_observations], sets.to_device(device)
        )
        return features

    def _follow(self, rollout: Rollout, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the critic's recurrent states along a rollout, and store them in the groups.

        :param rollout: Rollout with its groups.
        :param features: Features (n, 2, width) before the LSTM.
        :return: Features (n, 2, features) after the LSTM, and the recurrent state after each trajectory.
        """
        groups, length = _groups_of(rollout), self.settings.sequence_length
        decisions, valid = (part.to(features.device) for part in rollout.sequences(length))
        first = decisions[:, 0]
        trajectory = rollout.trajectory[first]
        continues_previous = torch.zeros_like(groups.ended)  # whether a trajectory continues the one before it
        continues_previous[1:] = (groups.row[1:] == groups.row[:-1]) & ~groups.ended[:-1]
        is_start = ~continues_previous[trajectory]
        is_start[1:] &= trajectory[1:] != trajectory[:-1]
        number = torch.arange(len(first), device=first.device)
        place = number - torch.where(is_start, number, 0).cummax(0).values
        output = features.new_zeros((len(rollout), 2, self.group_body.features))
        after = features.new_zeros((len(first), *groups.memory.shape[1:]))
        for step in range(int(place.max()) + 1):
            sequences = torch.nonzero(place == step).squeeze(1)
            members, counts = decisions[sequences], valid[sequences]
            if step:
                groups.memory[first[sequences]] = after[sequences - 1]
            x, after[sequences] = self._update_memory(
                features[members.reshape(-1)], groups.memory[first[sequences]], length, counts.sum(1)
            )
            output[members[counts]] = x[counts.reshape(-1)]
        last = torch.ones_like(is_start)
        last[:-1] = trajectory[1:] != trajectory[:-1]
        return output, after[last]

    def _update_memory(
        self, features: torch.Tensor, memory: torch.Tensor, length: int, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the LSTM to the features of V and b.

        :param features: Features (m, 2, width).
        :param memory: Recurrent states (…, 2, size).
        :param length: Decisions per sequence.
        :param counts: Valid decisions of each sequence; None for all.
        :return: Features (m, 2, features), and the recurrent states after the sequences.
        """
        assert self.group_body.memory is not None
        both = features.transpose(0, 1).flatten(0, 1), memory.transpose(0, 1).flatten(0, 1)
        x, after = self.group_body.memory(*both, length, None if counts is None else counts.repeat(2))
        return x.unflatten(0, (2, -1)).transpose(0, 1), after.unflatten(0, (2, -1)).transpose(0, 1)

    def _both(self, features: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return V and b (n, 2, signals) from their features (n, 2, features) and the member counts (n,)."""
        return torch.stack([self._head(part, counts) for part in features.unbind(1)], 1)

    def _head(self, features: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return values (n, signals) from features (n, features) and member counts (n,).

        The attention averages over the members and loses their count, so its logarithm is an additional input. Its
        scale does not depend on the largest group so far.
        """
        size = counts.to(features.dtype).log().unsqueeze(1)
        values: torch.Tensor = self.value_head(torch.cat([features, size], 1))
        return values


class MlpPOCAPolicy(UnityPOCAPolicy):
    """`UnityPOCAPolicy` with the dense layers of Stable-Baselines3's `MlpPolicy`."""

    network_defaults = SB3_NETWORKS["MlpPolicy"]


class CnnPOCAPolicy(UnityPOCAPolicy):
    """`UnityPOCAPolicy` with the encoder of Stable-Baselines3's `CnnPolicy`, and one layer for the critic."""

    network_defaults = SB3_NETWORKS["CnnPolicy"] | {"net_arch": {"pi": [], "vf": [64]}}


class MultiInputPOCAPolicy(UnityPOCAPolicy):
    """`UnityPOCAPolicy` with the encoders and dense layers of Stable-Baselines3's `MultiInputPolicy`."""

    network_defaults = SB3_NETWORKS["MultiInputPolicy"]


class POCA(PPO):
    """Multi-Agent POsthumous Credit Assignment with the hyperparameter semantics of Unity's trainer.

    Paper: https://arxiv.org/abs/2111.05992.

    POCA is `PPO` with a centralized critic. The returns are λ-returns of V, the value of the group's state. The
    advantage of a decision is its return minus a counterfactual baseline. The baseline depends on the actions of all
    other members, but not on the agent's own. After an agent's death, its return bootstraps from the value of the
    remaining members. So it includes the rewards until the last of them has ended. Each agent acts only on its own
    observations.

    On an unwrapped `UnityVecEnv`, the groups are those of the scene. They have any number of agents, which may die or
    spawn mid-episode; an agent without a group is a group of one. On any other SB3 `VecEnv`, each sub-environment is
    a group.

    Parameters that are not listed here are those of `PPO`. There is no `second_critic`.

    :param policy: "UnityPolicy" for `UnityPOCAPolicy`, or "MlpPolicy", "CnnPolicy" or "MultiInputPolicy" with their
        networks.
    :param env: Environment to learn on.
    :param groupmate_rewards: Whether to add to the extrinsic reward the individual rewards that the other members
        received between this decision and the agent's next one.
    :param baseline_coef: Weight of the baseline's loss relative to V's; `vf_coef` scales both.
    :raises InvalidValueError: If an option does not have the given value.
    :raises UnityGymError: If `PPO` or `UnityPOCAPolicy` raises.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "UnityPolicy": UnityPOCAPolicy,
        "UnityPOCAPolicy": UnityPOCAPolicy,
        "MlpPolicy": MlpPOCAPolicy,
        "CnnPolicy": CnnPOCAPolicy,
        "MultiInputPolicy": MultiInputPOCAPolicy,
    }
    policy: UnityPOCAPolicy
    replicated: ClassVar[tuple[str, ...]] = ("_critic_rows", "_critic_memory")
    _rollout_class: ClassVar[type[Rollout]] = GroupRollout

    def __init__(
        self,
        policy: str | type[UnityPOCAPolicy],
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
        groupmate_rewards: bool = True,
        baseline_coef: float = 0.5,
        demonstrations: DemonstrationSource | BehavioralCloning | None = None,
        rollout: str | None = None,
        ratio: str = "dimension",
        entropy: str = "unity",
        value_clipping: str = "larger",
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
        self.groupmate_rewards, self.baseline_coef = groupmate_rewards, baseline_coef
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            batch_size=batch_size,
            n_epochs=n_epochs,
            time_horizon=time_horizon,
            gae_lambda=gae_lambda,
            clip_range=clip_range,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            target_kl=target_kl,
            reward_signals=reward_signals,
            n_steps=n_steps,
            gamma=gamma,
            clip_range_vf=clip_range_vf,
            normalize_advantage=normalize_advantage,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            demonstrations=demonstrations,
            rollout=rollout,
            ratio=ratio,
            entropy=entropy,
            value_clipping=value_clipping,
            combine_advantages=combine_advantages,
            advantage_normalization=advantage_normalization,
            last_minibatch=last_minibatch,
            learning_rate_schedule=learning_rate_schedule,
            clip_range_schedule=clip_range_schedule,
            ent_coef_schedule=ent_coef_schedule,
            action_scaling=action_scaling,
            threaded=threaded,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def _setup_model(self) -> None:
        super()._setup_model()
        self.collection = replace(self.collection, groups=True)

    def _start_collection(self) -> None:
        assert self.env is not None
        if not isinstance(self.env, UnityVecEnv) and isinstance(self.env.unwrapped, UnityVecEnv):
            raise UnityGymError(
                f"POCA has no groups behind {type(self.env).__name__}: learn on the UnityVecEnv itself. It "
                "has the statistics of Monitor; normalize=True in policy_kwargs does what VecNormalize does"
            )
        super()._start_collection()

    def discard_experience(self) -> None:
        """Discard the stored trajectories, as `PPO` does, and the critic's recurrent states."""
        super().discard_experience()
        self._critic_rows = np.zeros(0, np.int64)
        # Recurrent states of V and b per row of `_critic_rows`, after the latest rollout.
        self._critic_memory = torch.zeros((0, 2, self.policy.settings.memory_size), device=self.device)

    @torch.no_grad()
    def _estimate(self, rollout: Rollout) -> None:
        super()._estimate(rollout)
        baselines = self.policy.baseline(rollout.values).mean(0).tolist()
        for signal, baseline in zip(self._signals(), baselines, strict=True):
            self._records[f"rollout/{signal.name}_baseline_estimate"] = baseline

    def _state_values(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        groups = _groups_of(rollout)
        before, row = self._critic_memories(groups.row)
        groups.memory = before.new_zeros((len(rollout), *before.shape[1:]))
        changes = groups.row[1:] != groups.row[:-1]
        is_first, is_last = (torch.ones_like(groups.ended) for _ in range(2))
        is_first[1:], is_last[:-1] = changes, changes
        starts = torch.from_numpy(rollout.lengths.cumsum() - rollout.lengths).to(self.device)
        groups.memory[starts[is_first]] = before[row[is_first]]
        values, following, after = self.policy.group_values(rollout)
        before[row[is_last]] = after[is_last] * ~groups.ended[is_last, None, None]
        return values, following

    def _critic_memories(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the critic's recurrent states of all rows so far, and the index of each of `rows` there."""
        numbers = rows.cpu().numpy()
        seen = np.union1d(self._critic_rows, numbers)
        if len(seen) > len(self._critic_rows):
            memory = self._critic_memory.new_zeros((len(seen), *self._critic_memory.shape[1:]))
            memory[torch.from_numpy(np.searchsorted(seen, self._critic_rows))] = self._critic_memory
            self._critic_rows, self._critic_memory = seen, memory
        return self._critic_memory, torch.from_numpy(np.searchsorted(seen, numbers)).to(self.device)

    def _rewards(self, signal: RewardSignal, batch: Batch) -> torch.Tensor:
        rewards = super()._rewards(signal, batch)
        if self.groupmate_rewards and isinstance(signal, Extrinsic):
            rewards = rewards + _groups_of(batch.rollout).groupmate_rewards[batch.index]
        return rewards

    def _value_loss(self, batch: Batch, error: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        of_states, of_baselines = (batch.mean(part) for part in error.unbind(1))
        loss = of_states + self.baseline_coef * of_baselines
        return loss, {"value_loss": of_states, "baseline_loss": of_baselines}

    @property
    def _repeats_updates(self) -> bool:
        """Whether all updates are the same computation: not with groups, whose sizes differ."""
        return False

    def learn(
        self: SelfPOCA,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "POCA",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        workers: LearningWorkers | None = None,
    ) -> SelfPOCA:
        """Learn for `total_timesteps` decisions of all agents together; see `PPO.learn`."""
        return super().learn(
            total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar, workers
        )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_critic_memory", "_critic_rows"]


def _groups_of(rollout: Rollout) -> Groups:
    assert isinstance(rollout, GroupRollout)
    return rollout.groups
