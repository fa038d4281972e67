"""Statistics of a run in TensorBoard."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext.learn import main
from sb3_ext.plugins import StatsWriter
from sb3_ext.run_logs import Timers
from sb3_ext.statistics import Statistics
from stand_ins import changing_agents_player, classroom_player
from unity_gym.errors import UnityGymError
from unity_gym.side_channels import StatsAggregationMethod

SEED = 3


@pytest.mark.parametrize("flags", [[], ["--num-workers", "2"]], ids=["here", "workers"])
def test_statistics_of_the_scene_are_aggregated_over_the_summary(tmp_path: Path, flags: Sequence[str]) -> None:
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"buffer_size": 100, "batch_size": 50, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "summary_freq": 100,
        "max_steps": 200,
    }
    file = tmp_path / "counter.yaml"
    file.write_text(yaml.safe_dump({"behaviors": {"Counter": behavior}}), encoding="utf-8")
    arguments = ["--env", changing_agents_player.launcher(tmp_path, "Counter"), "--num-envs", "2", *flags]
    assert main([str(file), *arguments, "--results-dir", str(tmp_path), "--run-id", "run", "--seed", str(SEED)]) == 0

    events = EventAccumulator(str(tmp_path / "run" / "Counter"), {"histograms": 0}).Reload()
    averages, latest, sums, means = (
        [event.value for event in events.Scalars(f"tick/{name}")]
        for name in ("average", "latest", "sum", "distribution")
    )
    histograms = [event.histogram_value for event in events.Histograms("tick/distribution_hist")]
    assert sums == [histogram.num for histogram in histograms]
    assert sums == pytest.approx([100] * 2, abs=10), "two players, one tick per decision"
    assert averages == means == pytest.approx([histogram.sum / histogram.num for histogram in histograms])
    timers = json.loads((tmp_path / "run" / "run_logs" / "timers.json").read_text(encoding="utf-8"))
    assert timers["gauges"]["Counter.tick.sum.mean"]["value"] == 1
    calls = {timers["children"][part]["count"] for part in ("decide", "opponents", "players", "observe")}
    assert len(calls) == 1, "each once per step"
    first = changing_agents_player.first_number(np.random.default_rng(SEED))  # of the first player
    assert [value - first for value in latest] == pytest.approx([50, 100], abs=20)


class Written(StatsWriter):
    def write_stats(self, behavior: str, step: int, stats: Mapping[str, float]) -> None:
        self.behavior, self.step, self.stats = behavior, step, stats


def test_episodes_and_records_are_aggregated_as_in_unitys_trainer() -> None:
    writer = Written()
    statistics = Statistics(None, 0, ["extrinsic", "curiosity"], [writer])
    statistics.add_episodes(
        {
            "reward": np.array([1.0, 2.0, 3.0]),
            "group_reward": np.array([0.0, 4.0, 8.0]),
            "length": np.array([3, 4, 5]),
            "is_whole": np.array([True, False, True]),
            "is_group_end": np.array([False, False, True]),
        },
        strength=0.5,
    )
    statistics.add_records(
        {
            "train/curiosity_reward": 0.25,
            "train/curiosity_forward_loss": 7.0,
            "train/policy_gradient_loss": -2.0,
            "train/entropy": -1.0,
            "rollout/extrinsic_reward": 9.0,
            "time/fps": 60.0,
        }
    )
    assert statistics.returns == [1, 11], "without the member that ended before its group"
    statistics.write("B", 100, Timers())
    assert (writer.behavior, writer.step) == ("B", 100)
    assert writer.stats == pytest.approx(
        {
            "Environment/Cumulative Reward": 2,
            "Environment/Group Cumulative Reward": 8,
            "Environment/Episode Length": 3,  # without the decision after which the episode ended
            "Policy/Extrinsic Reward": 3,  # half of the mean of 1, 6 and 11
            "Policy/Curiosity Reward": 1,  # 4 decisions of 0.25
            "Losses/Curiosity Forward Loss": 7,
            "Losses/Policy Loss": 2,
            "Policy/Entropy": -1,
        }
    )


def test_a_histogram_may_contain_the_largest_number_of_unity(tmp_path: Path) -> None:
    statistics = Statistics(tmp_path, 0, [], [])
    statistics.add_stats([{0: {"distance": [(3.4e38, StatsAggregationMethod.HISTOGRAM)]}}])
    statistics.write("B", 100, Timers())
    statistics.close()
    events = EventAccumulator(str(tmp_path), {"histograms": 0}).Reload()
    (histogram,) = events.Histograms("distance_hist")
    assert histogram.histogram_value.max == 1e19


def test_a_complete_behavior_gathers_no_more_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = {}

    def close(statistics: Statistics) -> None:
        assert statistics._folder is not None
        gathered[statistics._folder.name] = len(statistics.returns)

    monkeypatch.setattr(Statistics, "close", close)
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"buffer_size": 64, "batch_size": 32, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "summary_freq": 100_000,
    }
    behaviors = {"Teacher": behavior | {"max_steps": 100}, "Student": behavior | {"max_steps": 1600}}
    file = tmp_path / "classroom.yaml"
    file.write_text(yaml.safe_dump({"behaviors": behaviors}), encoding="utf-8")
    player = classroom_player.launcher(tmp_path)
    assert main([str(file), "--env", player, "--results-dir", str(tmp_path), "--run-id", "run"]) == 0
    episodes = 1600 / classroom_player.DECISIONS
    assert gathered["Student"] == pytest.approx(episodes, rel=0.1)
    assert 0 < gathered["Teacher"] < episodes / 4


def test_a_full_disk_is_reported_with_the_folder_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # TensorBoard's thread raises the error, too
    others = threading.enumerate()
    statistics = Statistics(tmp_path, 0, [], hyperparameters="learning_rate: 0.001\n" * 1000)
    statistics.add({"Policy/Entropy": [1.0]})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(UnityGymError) as error:
            statistics.write("Basic", 100, Timers())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    for thread in set(threading.enumerate()) - set(others):
        thread.join()
    reason = f"{tmp_path} cannot be written: File too large. Make room there, then continue with --resume"
    assert str(error.value) == reason
