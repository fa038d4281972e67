"""Minari's `DataCollector` around what `gymnasium.make` returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import unity_gym  # noqa: F401  # registers the ids

pytestmark = pytest.mark.ecosystem
minari = pytest.importorskip("minari", reason="run scripts/ecosystem.sh minari_collector")


class WithoutStats(minari.StepDataCallback):
    """Leaves out the statistics of the scene, which come with some steps only: Minari needs the same keys in all."""

    def __call__(self, env: Any, obs: Any, info: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        info = {key: value for key, value in info.items() if key != "stats"}
        return super().__call__(env, obs, info, *arguments, **options)


@pytest.mark.parametrize(
    "env_id", ["Unity-Basic-v0", "Unity-GridWorld-v0", "Unity-Hallway-v0", "Unity-PushBlockWithInput-v0"]
)
def test_episodes_are_collected_and_their_environment_is_made_again(
    env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(
        gym.make(env_id, max_episode_steps=20),
        record_infos=True,
        step_data_callback=WithoutStats,
        data_format="arrow",
    )
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    dataset = env.create_dataset("unity/collected-v0")
    env.close()
    assert dataset.total_episodes == 3
    made_again = dataset.recover_environment()
    made_again.reset()
    made_again.close()
