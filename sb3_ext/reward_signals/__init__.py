"""Reward signals: what agents are rewarded for, each with a discount, a strength and a value head of its own."""

from sb3_ext.reward_signals.signal import Extrinsic, RewardSignal

__all__ = ["Extrinsic", "RewardSignal"]
