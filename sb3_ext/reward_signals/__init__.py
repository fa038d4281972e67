"""Reward signals: what agents are rewarded for, each with a discount, a strength and a value head of its own."""

from sb3_ext.reward_signals.curiosity import Curiosity
from sb3_ext.reward_signals.gail import GAIL
from sb3_ext.reward_signals.rnd import RND
from sb3_ext.reward_signals.signal import Extrinsic, LearnedSignal, RewardSignal

__all__ = ["GAIL", "RND", "Curiosity", "Extrinsic", "LearnedSignal", "RewardSignal"]
