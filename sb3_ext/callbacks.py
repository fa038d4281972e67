"""Callbacks for SB3's algorithms."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback


class StatsCallback(BaseCallback):
    """Callback that logs the statistics of a Unity scene (its `StatsRecorder`), under the scene's names, as means.

    It reads `info["stats"]`, and supports `UnityVecEnv` and single environments of `unity_gym`.
    """

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            for key, value in info.get("stats", {}).items():
                self.logger.record_mean(key, value)
        return True
