"""Stable-Baselines3 algorithms, policies and reward signals for Unity environments.

Data flow of one decision and its outcome:

1. A player sends the agents that request a decision and the ended episodes, as bytes (`unity_gym.wire`).
2. The pool writes them into the agent table: one row per agent (`unity_gym.pool`, `unity_gym.slots`).
3. A `Sampler` reads the table. Its `Collector` selects the actions of the rows with a policy and the recurrent state of
   each agent. For teams that do not learn, the `Matchmaker` of `self_play` selects them.
4. The pool encodes the actions and sends them; the next table contains their outcomes.
5. The collector's `TrajectoryBuffer` stores decision and outcome (`experience`, `groups`).
6. The sampler returns whole `Trajectories`, with the version of the acting weights.
7. A `Learner` passes them to its model, which converts them to tensors (`rollout`, `replay`) and updates its weights.
8. The new weights are sent to the samplers, with the next version (`placement`, `training`).
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sb3_ext.bc import BC
    from sb3_ext.callbacks import StatsCallback
    from sb3_ext.fixed import FixedModel
    from sb3_ext.imitation import BehavioralCloning
    from sb3_ext.multi_behavior import MultiBehaviorTraining
    from sb3_ext.onnx_policy import OnnxPolicy
    from sb3_ext.poca import POCA
    from sb3_ext.ppo import PPO, SB3_COMPAT
    from sb3_ext.reward_signals import GAIL, RND, Curiosity, Extrinsic
    from sb3_ext.sac import SAC
    from sb3_ext.self_play import SelfPlay
    from sb3_ext.self_play_env import SelfPlayCallback, SelfPlayVecEnv
    from sb3_ext.teacher import Teacher
    from sb3_ext.vec_env import UnityVecEnv
    from sb3_ext.workers import RayWorkers, Workers

__all__ = [
    "BC",
    "GAIL",
    "POCA",
    "PPO",
    "RND",
    "SAC",
    "SB3_COMPAT",
    "BehavioralCloning",
    "Curiosity",
    "Extrinsic",
    "FixedModel",
    "MultiBehaviorTraining",
    "OnnxPolicy",
    "RayWorkers",
    "SelfPlay",
    "SelfPlayCallback",
    "SelfPlayVecEnv",
    "StatsCallback",
    "Teacher",
    "UnityVecEnv",
    "Workers",
]

_MODULES = {
    "BC": "bc",
    "GAIL": "reward_signals",
    "POCA": "poca",
    "PPO": "ppo",
    "RND": "reward_signals",
    "SAC": "sac",
    "SB3_COMPAT": "ppo",
    "BehavioralCloning": "imitation",
    "Curiosity": "reward_signals",
    "Extrinsic": "reward_signals",
    "FixedModel": "fixed",
    "MultiBehaviorTraining": "multi_behavior",
    "OnnxPolicy": "onnx_policy",
    "RayWorkers": "workers",
    "SelfPlay": "self_play",
    "SelfPlayCallback": "self_play_env",
    "SelfPlayVecEnv": "self_play_env",
    "StatsCallback": "callbacks",
    "Teacher": "teacher",
    "UnityVecEnv": "vec_env",
    "Workers": "workers",
}

_EXTRA = ("torch", "stable_baselines3", "sb3_contrib", "pydantic", "yaml", "onnx", "matplotlib", "tensorboard", "tqdm")
_missing = [name for name in _EXTRA if find_spec(name) is None]
if _missing:
    raise ModuleNotFoundError(f"sb3_ext needs {', '.join(_missing)}: install the extra, pip install 'unity-gym[sb3]'")

if "OMP_WAIT_POLICY" not in os.environ:
    # Read by torch at its import: how often threads look for each other before they leave their cores; see `hardware`.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def __getattr__(name: str) -> object:
    """Import a class on first use, so that the command line answers before torch is imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sb3_ext.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
