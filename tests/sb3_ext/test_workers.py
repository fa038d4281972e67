"""`learn(workers=…)`: agents act in other processes, and the model learns the same."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import assert_equal
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecMonitor

from sb3_ext import (
    POCA,
    PPO,
    SAC,
    MultiBehaviorTraining,
    RayWorkers,
    SelfPlay,
    SelfPlayVecEnv,
    StatsCallback,
    UnityVecEnv,
    Workers,
)
from sb3_ext.child_processes import first_message
from sb3_ext.player_copies import PlayerCopies
from stand_ins import changing_agents_player
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.side_channels import IncomingMessage, SideChannel

NETWORK = {"hidden_units": 16, "num_layers": 1}
POLICIES = {PPO: "UnityPolicy", SAC: "UnitySACPolicy"}
OPTIONS: dict[Any, dict[str, Any]] = {
    PPO: {"buffer_size": 240, "batch_size": 60, "policy_kwargs": NETWORK},
    SAC: {"buffer_size": 900, "batch_size": 32, "policy_kwargs": NETWORK, "steps_per_update": 10.0},
}


def no_worker_remains() -> bool:
    return not [child for child in multiprocessing.active_children() if child.name.startswith("sampler-")]


class Calls(BaseCallback):
    """A callback that counts calls and finished episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.timesteps: list[int] = []
        self.events: list[str] = []
        self.episodes: list[dict[str, float]] = []

    def _on_rollout_start(self) -> None:
        self.events.append("start")

    def _on_rollout_end(self) -> None:
        self.events.append("end")

    def _on_step(self) -> bool:
        self.timesteps.append(self.num_timesteps)
        found = [info["episode"] for info in self.locals["infos"] if "episode" in info]
        assert len(found) == np.sum(self.locals["dones"])
        self.episodes += found
        return True


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_one_worker_gives_the_weights_and_the_log_of_the_main_process(kind: type[PPO] | type[SAC]) -> None:
    learned: list[Any] = []
    calls: list[Calls] = []
    for workers in (None, Workers(1)):
        with closing(UnityVecEnv("Unity-3DBall-v0", seed=3, num_areas=6)) as env:
            env.set_options({"mass": 2.0})
            model = kind(
                kind.__name__.replace("PPO", "UnityPolicy").replace("SAC", "UnitySACPolicy"),
                env,
                seed=5,
                device="cpu",
                **OPTIONS[kind],
            )
            calls.append(Calls())
            model.learn(600, callback=calls[-1], workers=workers)
            learned.append(model)
    assert no_worker_remains()
    first, second = learned
    assert first._n_updates == second._n_updates >= 6
    assert_equal(first.policy.state_dict(), second.policy.state_dict())
    assert first.num_timesteps == second.num_timesteps
    assert calls[0].timesteps == calls[1].timesteps
    assert calls[0].events == calls[1].events
    for episodes in ([call.episodes for call in calls], [model.ep_info_buffer for model in learned]):
        found = [sorted((round(episode["r"], 4), episode["l"]) for episode in part) for part in episodes]
        assert found[0] == found[1]
        assert len(found[0]) > 3


def test_workers_act_for_a_model_whose_own_samples_come_from_a_generator_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_gpu = SimpleNamespace(device=torch.device("cuda"), get_state=lambda: torch.zeros(16, dtype=torch.uint8))
    monkeypatch.setattr("sb3_ext.algorithm.acting_generator", lambda _: on_gpu)
    with closing(UnityVecEnv("Unity-Basic-v0", num_areas=4)) as env:
        model = PPO("UnityPolicy", env, seed=5, device="cpu", **OPTIONS[PPO])
        model.learn(240, workers=Workers(1))
        assert model._n_updates == 3


def test_a_callback_ends_the_training_and_the_next_one_continues_in_the_main_process(tmp_path: Path) -> None:
    with closing(UnityVecEnv("Unity-Basic-v0", num_areas=4)) as env:
        model = PPO("UnityPolicy", env, seed=5, device="cpu", threaded=True, **OPTIONS[PPO])
        model.set_logger(configure(str(tmp_path), ["csv"]))
        enough = StopTrainingOnMaxEpisodes(60)
        model.learn(100_000, callback=[enough, StatsCallback()], workers=Workers(2), log_interval=2)
        assert enough.n_episodes >= 60
        stopped = model.num_timesteps
        assert stopped < 10_000
        assert no_worker_remains()
        model.learn(240, reset_num_timesteps=False)
        assert model.num_timesteps >= stopped + 240
    header = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    assert {"rollout/ep_rew_mean", "time/fps", "time/iterations", "train/value_loss"} <= set(header)


def test_statistics_of_the_scene_in_a_worker_are_logged_per_environment_step(tmp_path: Path) -> None:
    with closing(UnityVecEnv(file_name=changing_agents_player.launcher(tmp_path, "Counter"))) as env:
        model = PPO("UnityPolicy", env, device="cpu", buffer_size=40, batch_size=20, policy_kwargs=NETWORK)
        model.set_logger(configure(str(tmp_path), ["json"]))
        model.learn(40, callback=StatsCallback(), workers=Workers(1), log_interval=1)
    logged = json.loads((tmp_path / "progress.json").read_text().splitlines()[0])
    assert logged["tick/sum"] == 1
    assert logged["tick/average"] == logged["tick/distribution"] == pytest.approx(20, abs=5)


def test_behaviors_with_self_play_learn_the_same_with_a_worker() -> None:
    learned = []
    for workers in (None, Workers(1)):
        with MultiBehaviorTraining("Unity-StrikersVsGoalie-v0", num_areas=2, seed=0) as training:
            options: dict[str, Any] = {"buffer_size": 128, "batch_size": 64, "policy_kwargs": NETWORK, "seed": 1}
            specs = training.behavior_specs
            models = {name: POCA.from_spec("UnityPOCAPolicy", spec, **options) for name, spec in specs.items()}
            self_play = {name: SelfPlay(save_steps=100, team_change=130, swap_steps=50, seed=2) for name in models}
            training.learn(models, 300, self_play, workers=workers)
            learned.append((models, self_play))
    assert no_worker_remains()
    for name in ("Goalie", "Striker"):
        first, second = (models[name] for models, _ in learned)
        assert first._n_updates > 0
        assert_equal(first.policy.state_dict(), second.policy.state_dict())
        one, other = (self_play[name] for _, self_play in learned)
        assert [snapshot.step for snapshot in one.snapshots] == [snapshot.step for snapshot in other.snapshots]
        assert len(one.snapshots) > 1
        assert one.elo == other.elo


class _Channel(SideChannel):
    def __init__(self) -> None:
        super().__init__(uuid.uuid4())

    def on_message_received(self, msg: IncomingMessage) -> None:
        pass


def test_arguments_that_workers_cannot_copy_raise() -> None:
    with pytest.raises(InvalidValueError, match="the number of workers must be at least 1, got 0"):
        Workers(0)
    with pytest.raises(InvalidValueError, match="num_cpus and num_gpus must be at least 0, got -1 and 0"):
        RayWorkers(1, num_cpus=-1)
    with closing(UnityVecEnv("Unity-Basic-v0", side_channels=[_Channel()])) as env:
        model = PPO("UnityPolicy", env, device="cpu")
        with pytest.raises(UnityGymError, match="side_channels belong to the process of the script"):
            model.learn(10, workers=Workers(1))
        model = PPO("UnityPolicy", VecMonitor(env), device="cpu")
        with pytest.raises(UnityGymError, match="which is not in a wrapper, got VecMonitor"):
            model.learn(10, workers=Workers(1))
    with pytest.raises(UnityGymError, match="the Editor is one player"):
        PlayerCopies(PlayerOptions())
    with closing(SelfPlayVecEnv("Unity-SoccerTwos-v0", num_areas=1)) as game:
        model = PPO("UnityPolicy", game, device="cpu")
        with pytest.raises(UnityGymError, match=r"pass the model and self_play to MultiBehaviorTraining\.learn"):
            model.learn(10, workers=Workers(1))


def test_a_process_that_ends_without_a_message_is_noticed_while_the_pipe_is_open() -> None:
    """As on Windows, where this process has the other end of the pipe until that process takes it."""
    connection, remote_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    with connection, remote_end, pytest.raises(EOFError):
        first_message(connection, process.sentinel)
    process.join()


@pytest.mark.parametrize(
    ("lines", "process"),
    [
        ("model.learn(64, workers=Workers(1))", "the process of sampler 0"),
        ("model.learner_devices = ('cpu',); model.learn(64)", "the process of learner 1 on cpu"),
    ],
)
def test_a_script_whose_code_is_not_below_the_check_for_main_is_reported(
    tmp_path: Path, lines: str, process: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from sb3_ext import PPO, UnityVecEnv, Workers\n"
        "env = UnityVecEnv('Unity-Basic-v0', num_areas=4)\n"
        f"model = PPO('UnityPolicy', env, n_steps=8, batch_size=8, device='cpu')\n{lines}\n",
        encoding="utf-8",
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert f"{process} ended with exit code 1 before it had started. " in last
    assert last.endswith("needs its code below: if __name__ == '__main__':")
