"""Trainers, encoders, reward signals and statistics writers that an installed package registers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml

from sb3_ext.learn import main
from sb3_ext.settings import SettingsError, dump, loads
from unity_gym.errors import UnityGymError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

PACKAGE = '''
import json
import torch
from torch import nn
from sb3_ext import PPO, SAC
from sb3_ext.reward_signals import RewardSignal


class MyPPO(PPO):
    """PPO that clips gradients."""

    def __init__(self, *arguments, gradient_norm: float = 0.5, words: str = "none", **options):
        self.words = words
        super().__init__(*arguments, max_grad_norm=gradient_norm, **options)


class MySAC(SAC):
    """SAC with an argument that must be given."""

    def __init__(self, *arguments, speed: int, **options):
        super().__init__(*arguments, **options)


class Steady(RewardSignal):
    """The same reward for every decision."""

    name = "steady"

    def __init__(self, gamma: float = 0.99, strength: float = 1.0, size: float = 2.0):
        super().__init__(gamma, strength)
        self.size = size

    def rewards(self, batch):
        return torch.full((len(batch),), self.size)


class Misnamed(Steady):
    name = "other"


def tiny(shape, features):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], features))


def wrong(shape, features):
    return nn.Flatten()


class Log:
    """Lines of JSON."""

    def __init__(self, folder):
        self.path = folder / "log.jsonl"

    def write_stats(self, behavior, step, stats):
        with self.path.open("a") as file:
            file.write(json.dumps({"behavior": behavior, "step": step, **stats}) + "\\\\n")

    def close(self):
        self.path.with_suffix(".closed").touch()
'''
ENTRY_POINTS = """
[sb3_ext.trainer_type]
my_ppo = plugged_package:MyPPO
my_sac = plugged_package:MySAC
no_trainer = plugged_package:Log
broken = missing_package:Nothing

[sb3_ext.vis_encode_type]
tiny = plugged_package:tiny
wrong = plugged_package:wrong

[sb3_ext.reward_signal]
steady = plugged_package:Steady
misnamed = plugged_package:Misnamed

[sb3_ext.stats_writer]
log = plugged_package:Log
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package."""
    site = tmp_path / "site"
    metadata = site / "plugged_package-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "plugged_package.py").write_text(PACKAGE.replace("\\\\", "\\"))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "plugged_package", raising=False)


def test_settings_of_other_packages_are_checked_and_written_back() -> None:
    text = """
behaviors:
  Ball:
    trainer_type: my_ppo
    hyperparameters: {gradient_norm: 0.25, beta: 0.01}
    network_settings: {vis_encode_type: tiny}
    reward_signals:
      extrinsic: {}
      steady: {size: 3, strength: 0.5}
stats_writers: [log]
"""
    settings = loads(text)
    behavior = settings.behavior("Ball")
    assert behavior.trainer_type == "my_ppo"
    assert behavior.hyperparameters.gradient_norm == 0.25  # type: ignore[attr-defined]
    assert behavior.hyperparameters.beta == 0.01  # type: ignore[attr-defined]
    assert behavior.hyperparameters.words == "none"  # type: ignore[attr-defined]
    signals = dict(behavior.reward_signals.items())
    assert list(signals) == ["extrinsic", "steady"]
    assert signals["steady"].size == 3  # type: ignore[attr-defined]
    assert signals["steady"].gamma == 0.99
    again = loads(dump(settings))
    assert again == settings
    tree = yaml.safe_load(dump(settings))
    assert tree["behaviors"]["Ball"]["hyperparameters"]["gradient_norm"] == 0.25
    assert tree["behaviors"]["Ball"]["reward_signals"]["steady"] == {**signals["steady"].model_dump()}
    assert tree["stats_writers"] == ["log"]
    assert "stats_writers" not in yaml.safe_load(dump(loads("default_settings: {}")))


def test_settings_of_other_packages_are_inherited_from_the_default_settings() -> None:
    settings = loads(
        "default_settings: {trainer_type: my_ppo, hyperparameters: {gradient_norm: 0.25}, reward_signals: {steady: }}\n"
        "behaviors: {Ball: {max_steps: 7}, Wall: {trainer_type: ppo}}"
    )
    ball, wall = settings.behavior("Ball"), settings.behavior("Wall")
    assert ball.hyperparameters.gradient_norm == 0.25  # type: ignore[attr-defined]
    assert (ball.max_steps, wall.trainer_type) == (7, "ppo")
    assert [name for name, _ in ball.reward_signals.items()] == ["steady"]


@pytest.mark.parametrize(
    ("behavior", "words"),
    [
        ("{trainer_type: my_poo}", "trainer_type is 'my_poo': give the name of a trainer; known: ppo, poca, sac, "),
        ("{trainer_type: my_poo}", "did you mean my_ppo?"),
        (
            "{trainer_type: my_ppo, hyperparameters: {gradient_nrm: 1}}",
            "hyperparameters.gradient_nrm is an unknown key",
        ),
        ("{trainer_type: my_ppo, hyperparameters: {gradient_norm: x}}", "gradient_norm is 'x': give a finite number"),
        ("{trainer_type: my_sac}", "behaviors.Ball.hyperparameters.speed is missing"),
        ("{network_settings: {vis_encode_type: tny}}", "did you mean tiny?"),
        ("{reward_signals: {stedy: {}}}", "behaviors.Ball.reward_signals.stedy is an unknown key"),
        ("{reward_signals: {steady: {sise: 1}}}", "behaviors.Ball.reward_signals.steady.sise is an unknown key"),
        ("{reward_signals: {steady: {size: x}}}", "behaviors.Ball.reward_signals.steady.size is 'x': give a finite"),
        ("{reward_signals: {steady: {network_settings: {}}}}", "steady.network_settings is an unknown key"),
    ],
)
def test_a_mistake_in_settings_of_other_packages_is_reported_at_its_place(behavior: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loads(f"behaviors: {{Ball: {behavior}}}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("behavior", "words"),
    [
        ("{trainer_type: no_trainer}", "must be a subclass of PPO, POCA or SAC, got <class"),
        (
            "{trainer_type: broken}",
            "'broken' of sb3_ext.trainer_type cannot be imported from 'missing_package:Nothing'",
        ),
        ("{reward_signals: {misnamed: {}}}", "the attribute name of Misnamed must be 'misnamed'"),
    ],
)
def test_a_package_that_registers_something_else_is_named(behavior: str, words: str) -> None:
    with pytest.raises(UnityGymError, match=words):
        loads(f"behaviors: {{Ball: {behavior}}}")


def test_an_unknown_statistics_writer_raises() -> None:
    with pytest.raises(SettingsError, match=r"stats_writers\[0\] is 'lag': .*known are log, mlflow or wandb; did you"):
        loads("default_settings: {}\nstats_writers: [lag]")


def test_a_visual_encoder_of_another_package_encodes_images() -> None:
    from sb3_ext.networks.encoders import visual_encoder

    assert visual_encoder("tiny", (3, 4, 5), 7)(torch.zeros(2, 3, 4, 5)).shape == (2, 7)
    with pytest.raises(UnityGymError, match=r"'wrong' must return .* to \(2, 7\), got \(2, 60\) numbers"):
        visual_encoder("wrong", (3, 4, 5), 7)


def test_a_run_uses_plugins_of_other_packages(tmp_path: Path) -> None:
    tree = yaml.safe_load((CONFIGS / "ppo" / "Basic.yaml").read_text(encoding="utf-8"))
    behavior = tree["behaviors"]["Basic"]
    behavior |= {"trainer_type": "my_ppo", "max_steps": 200, "summary_freq": 100}
    behavior["hyperparameters"] |= {"gradient_norm": 0.125, "words": "spoken", "buffer_size": 64}
    behavior["reward_signals"]["steady"] = {"size": 3}
    tree["stats_writers"] = ["log"]
    file = tmp_path / "Basic.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    arguments = [str(file), "--results-dir", str(tmp_path), "--run-id", "r"]
    assert main(arguments) == 0
    model = sys.modules["plugged_package"].MyPPO.load(tmp_path / "r" / "Basic" / "Basic-200.zip")
    assert (model.max_grad_norm, model.words) == (0.125, "spoken")
    assert model.policy.value_head.weight.shape[0] == 2
    lines = [json.loads(line) for line in (tmp_path / "r" / "log.jsonl").read_text().splitlines()]
    assert [(line["behavior"], line["step"]) for line in lines] == [("Basic", 100), ("Basic", 200)]
    assert all("Losses/Value Loss" in line for line in lines)
    assert (tmp_path / "r" / "log.closed").exists()
    assert main([*arguments, "--resume"]) == 0  # from the settings that were written
