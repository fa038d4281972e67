"""Unity ML-Agents environments as Gymnasium and PettingZoo environments.

Importing this package registers the `Unity-…-v0` ids; `gymnasium.make("unity_gym:Unity-3DBall-v0")` does both in one.
"""

from unity_gym.registration import aec_env, parallel_env, register

__all__ = ["aec_env", "parallel_env"]

register()
