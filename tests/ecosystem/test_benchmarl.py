"""BenchMARL's experiments on PettingZoo environments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unity_gym

pytestmark = pytest.mark.ecosystem
pettingzoo = pytest.importorskip(
    "benchmarl.environments.pettingzoo.common",
    reason="benchmarl is not installed: run scripts/ecosystem.sh benchmarl",
)
envs = pytest.importorskip("torchrl.envs")


class UnityTask(pettingzoo.PettingZooClass):  # type: ignore[misc]
    def get_env_fun(self, *, seed: int, device: str, **_: Any) -> Callable[[], Any]:
        areas = 1 if "Dungeon" in self.config["env_id"] else 2  # TorchRL needs all agents at each reset
        return lambda: envs.PettingZooWrapper(
            unity_gym.parallel_env(self.config["env_id"], num_areas=areas, action_mask=None),
            use_mask=True,
            done_on_any=False,
            seed=seed,
            device=device,
        )

    def supports_continuous_actions(self) -> bool:
        return "3DBall" in self.config["env_id"]

    def supports_discrete_actions(self) -> bool:
        return not self.supports_continuous_actions()

    def has_state(self) -> bool:
        return False

    def has_render(self, _: Any) -> bool:
        return False

    def max_steps(self, _: Any) -> int:
        return 100

    def observation_spec(self, env: Any) -> Any:
        spec = env.observation_spec.clone()
        for group in env.group_map:
            for key in set(spec[group].keys()) - {"observation", "vector"}:
                del spec[group][key]
        return spec


@pytest.mark.parametrize(
    ("algorithm", "env_id"),
    [
        ("MappoConfig", "Unity-3DBall-v0"),
        ("MasacConfig", "Unity-3DBall-v0"),
        ("QmixConfig", "Unity-PushBlock-v0"),
        ("IppoConfig", "Unity-DungeonEscape-v0"),
    ],
)
def test_algorithms(algorithm: str, env_id: str, tmp_path: Path) -> None:
    import benchmarl.algorithms
    from benchmarl.experiment import Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig

    settings = ExperimentConfig.get_from_yaml()
    settings.save_folder = str(tmp_path)
    settings.loggers, settings.evaluation, settings.create_json = [], False, False
    settings.max_n_iters, settings.max_n_frames = 1, None
    settings.on_policy_collected_frames_per_batch = settings.off_policy_collected_frames_per_batch = 120
    settings.on_policy_n_envs_per_worker = settings.off_policy_n_envs_per_worker = 1
    settings.on_policy_minibatch_size = settings.off_policy_train_batch_size = 30
    settings.on_policy_n_minibatch_iters = settings.off_policy_n_optimizer_steps = 1
    experiment = Experiment(
        task=UnityTask("unity", {"env_id": env_id}),
        algorithm_config=getattr(benchmarl.algorithms, algorithm).get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=0,
        config=settings,
    )
    experiment.run()
    assert experiment.total_frames == 120
    assert np.isfinite(experiment.mean_return) or "3DBall" not in env_id
