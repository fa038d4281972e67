"""Stable-Baselines3 algorithms, policies and reward signals for Unity environments."""

from sb3_ext.callbacks import StatsCallback
from sb3_ext.vec_env import UnityVecEnv

__all__ = ["StatsCallback", "UnityVecEnv"]
