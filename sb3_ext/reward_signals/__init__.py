"""Reward signals, each with its own discount, strength and value head."""

from sb3_ext.reward_signals.curiosity import Curiosity
from sb3_ext.reward_signals.gail import GAIL
from sb3_ext.reward_signals.rnd import RND
from sb3_ext.reward_signals.signal import Extrinsic, LearnedSignal, RewardSignal

__all__ = ["GAIL", "RND", "Curiosity", "Extrinsic", "LearnedSignal", "RewardSignal"]
