"""Gymnasium and PettingZoo environments over the agent table."""

from unity_gym.envs.single_agent import UnitySingleAgentEnv

__all__ = ["UnitySingleAgentEnv"]
