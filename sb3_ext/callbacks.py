"""Callbacks for SB3's algorithms."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback


class StatsCallback(BaseCallback):
    """Logs the statistics that a Unity scene sends (its `StatsRecorder`), under the scene's names, as means.

    Works with `UnityVecEnv` and with single environments of `unity_gym`: it reads `info["stats"]`.
    """

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            for key, value in info.get("stats", {}).items():
                self.logger.record_mean(key, value)
        return True
