"""Teachers of behavioral cloning: policies whose actions for the agents of an environment are recorded."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

from sb3_ext.agents import AgentTableLike
from sb3_ext.rollout import Rollout
from unity_gym.demonstrations.recording import supported_arguments
from unity_gym.errors import NotReadyError
from unity_gym.spaces import ObservationLayout, action_tuple
from unity_gym.specs import ActionTuple, Array, BehaviorSpec


class Teacher:
    """Teacher that acts for agents and, while it records, stores their observations and actions for a student.

    A loop that steps the agents calls `select_actions`, steps, and calls `store_outcomes`, as with an algorithm.

    :param policy: Model with SB3's `predict`, such as `OnnxPolicy`, or a callable. `predict` gets `action_masks`,
        `state` and `episode_start` if its signature has them. A callable returns the actions of n agents, in the form
        of the action space, for their observations in the form of `ObservationLayout`. In arrays of the recurrent
        state, if any, the first axis is the agents, or the second as in sb3-contrib's RecurrentPPO.
    :param spec: Specification of the teacher's behavior.
    :param layout: Form of the observations (default: "split").
    :param sample_actions: Whether to execute sampled teacher actions but record the deterministic ones, so that the
        student learns to recover from errors (DART, https://arxiv.org/abs/1703.09327). False: execute the deterministic
        ones, too.
    """

    def __init__(
        self,
        policy: Any,
        spec: BehaviorSpec,
        layout: ObservationLayout | None = None,
        sample_actions: bool = True,
    ) -> None:
        self.spec, self.is_recording = spec, True
        self._policy, self._layout = policy, layout or ObservationLayout(spec)
        self._sample_actions = sample_actions
        self._state: tuple[Array, ...] | None = None
        # sb3-contrib's states are (layers, agents, size).
        self._axis = int(isinstance(getattr(policy, "policy", policy), RecurrentActorCriticPolicy))
        self._starts = np.ones(0, bool)  # per row: the next decision is the first of an episode
        self._trajectory = np.zeros(0, np.int64)  # per row, or −1
        self.number = 0
        """Number of decisions recorded so far, including cleared ones."""
        self.clear()

    def start(self) -> None:
        """Record from now on."""
        self.is_recording = True

    def stop(self) -> None:
        """Stop recording, but continue to act."""
        self.is_recording = False

    def clear(self) -> None:
        """Discard the recorded decisions."""
        self._kept: dict[str, list[Array]] = defaultdict(list)
        self._count = self._trajectories = 0
        self._trajectory.fill(-1)

    def start_episodes(self) -> None:
        """Start new episodes of all agents, after a reset of the environment."""
        self._starts.fill(True)
        self._trajectory.fill(-1)

    def __len__(self) -> int:
        """Return the number of recorded decisions."""
        return self._count

    def select_actions(self, table: AgentTableLike) -> ActionTuple:
        """Select actions for the rows that request a decision; return those of all rows, zeros for the others."""
        rows = np.flatnonzero(table.requests_decision)
        actions = self.spec.action_spec.empty_action(len(table))
        if len(rows):
            self._require_rows(len(table))
            best, done = self._choose(table, rows)
            actions.continuous[rows], actions.discrete[rows] = done.continuous, done.discrete
            if self.is_recording:
                self._keep(table, rows, best)
            else:
                self._trajectory[rows] = -1  # unrecorded decisions interrupt the trajectory
        return actions

    def store_outcomes(self, table: AgentTableLike) -> None:
        """Store which episodes ended."""
        self._require_rows(len(table))
        ended = table.terminated | table.truncated
        self._starts |= ended
        self._trajectory[ended] = -1

    def _choose(self, table: AgentTableLike, rows: Array) -> tuple[ActionTuple, ActionTuple]:
        """Return the deterministic actions of these rows, and the actions to execute."""
        spec, observations = self.spec.action_spec, self._layout.select(table.observations, rows)
        predict = getattr(self._policy, "predict", None)
        if predict is None:
            chosen = action_tuple(spec, self._policy(observations), len(rows))
            return chosen, chosen
        state = None if self._state is None else tuple(part.take(rows, self._axis) for part in self._state)
        options = supported_arguments(
            predict,
            state=state,
            episode_start=self._starts[rows],
            action_masks=table.action_mask[rows] if spec.discrete_size else None,
        )
        best, after = predict(observations, deterministic=True, **options)
        done = best
        if self._sample_actions:  # the state may contain the action that is executed
            done, after = predict(observations, deterministic=False, **options)
        if after is not None:
            if self._state is None:
                self._state = tuple(self._empty_state(part, len(table)) for part in after)
            for part, new in zip(self._state, after, strict=True):
                part.swapaxes(0, self._axis)[rows] = new.swapaxes(0, self._axis)
        self._starts[rows] = False
        return action_tuple(spec, best, len(rows)), action_tuple(spec, done, len(rows))

    def _empty_state(self, part: Array, n: int) -> Array:
        """Return zeros for n agents in the form of an array of the recurrent state."""
        shape = list(part.shape)
        shape[self._axis] = n
        return np.zeros(shape, part.dtype)

    def _keep(self, table: AgentTableLike, rows: Array, actions: ActionTuple) -> None:
        fresh = rows[self._trajectory[rows] < 0]
        self._trajectory[fresh] = self._trajectories + np.arange(len(fresh))
        self._trajectories += len(fresh)
        for index, array in enumerate(table.observations):
            self._kept[f"observation_{index}"].append(array[rows])
        self._kept["action"].append(np.concatenate([actions.continuous, actions.discrete.astype(np.float32)], 1))
        self._kept["mask"].append(table.action_mask[rows])
        self._kept["trajectory"].append(self._trajectory[rows])
        self._kept["number"].append(np.arange(self.number, self.number + len(rows)))
        self._count += len(rows)
        self.number += len(rows)

    def _require_rows(self, rows: int) -> None:
        more = rows - len(self._starts)
        if more > 0:
            self._starts = np.pad(self._starts, (0, more), constant_values=True)
            self._trajectory = np.pad(self._trajectory, (0, more), constant_values=-1)
            if self._state is not None:
                self._state = tuple(
                    np.concatenate([part, self._empty_state(part, more)], self._axis) for part in self._state
                )

    def recorded(self, memory_size: int = 0, device: torch.device | str = "cpu") -> tuple[Rollout, torch.Tensor]:
        """Return the recorded decisions for imitation, without rewards and without the states after trajectories.

        :param memory_size: Size of the student's recurrent state per decision, filled with 0.
        :param device: Device of the tensors.
        :return: Trajectories without gaps, and the number of each decision in order of time, int64 (n,) on the CPU.
        :raises NotReadyError: If there are no recorded decisions.
        """
        if not self._count:
            raise NotReadyError("the teacher's record is empty: start() it, and let the teacher act")
        kept = {name: np.concatenate(parts) for name, parts in self._kept.items()}
        self._kept = defaultdict(list, {name: [array] for name, array in kept.items()})
        order = np.argsort(kept["trajectory"], kind="stable")
        lengths = np.unique(kept["trajectory"], return_counts=True)[1]
        n, last = len(order), np.cumsum(lengths) - 1
        arrays = {name: torch.tensor(array[order], device=device) for name, array in kept.items()}
        arrays |= {
            "log_prob": torch.zeros((n, 0), device=device),
            "memory": torch.zeros((n, memory_size), device=device),
            "reward": torch.zeros(n, device=device),
            "group_reward": torch.zeros(n, device=device),
        }
        rollout = Rollout(
            arrays,
            lengths=lengths,
            end_observations=[
                arrays[f"observation_{index}"][last] for index in range(len(self.spec.observation_specs))
            ],
            end_memory=torch.zeros((len(lengths), memory_size), device=device),
            terminated=np.zeros(len(lengths), bool),
        )
        return rollout, torch.from_numpy(kept["number"][order])
