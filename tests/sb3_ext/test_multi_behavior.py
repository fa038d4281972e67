"""Several behaviors that learn together in a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.logger import configure

from sb3_ext import POCA, PPO, MultiBehaviorTraining, SelfPlay
from stand_ins import scripted_player
from unity_gym.errors import InvalidValueError, UnityGymError

SMALL = {"buffer_size": 128, "batch_size": 64, "policy_kwargs": {"hidden_units": 8, "num_layers": 1}, "seed": 1}


@pytest.fixture(scope="module")
def training() -> Iterator[MultiBehaviorTraining]:
    with MultiBehaviorTraining("Unity-StrikersVsGoalie-v0", num_areas=2, seed=0) as training:
        yield training


def models_of(training: MultiBehaviorTraining) -> dict[str, POCA]:
    return {name: POCA.from_spec("UnityPOCAPolicy", spec, **SMALL) for name, spec in training.behavior_specs.items()}


def test_behaviors_learn_in_turn_against_each_other_and_continue_after_a_save(
    training: MultiBehaviorTraining, tmp_path: Path
) -> None:
    models = models_of(training)
    assert models.keys() == {"Goalie", "Striker"}
    models["Striker"].set_logger(configure(str(tmp_path), ["csv"]))
    before = {name: model.policy.weights() for name, model in models.items()}
    self_play = {name: SelfPlay(save_steps=100, team_change=130) for name in models}
    training.learn(models, 300, self_play)
    for name, model in models.items():
        assert 300 <= model.num_timesteps < 300 + 8
        assert model._n_updates > 0
        assert any(not np.array_equal(before[name][key], value) for key, value in model.policy.weights().items())
        assert len(self_play[name].snapshots) > 1
    header = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    assert {"time/total_timesteps", "Self-play/ELO", "train/value_loss"} <= set(header)
    models["Goalie"].save(tmp_path / "goalie")
    models["Goalie"] = POCA.load(tmp_path / "goalie")
    updates = models["Goalie"]._n_updates
    training.learn(models, 200, self_play, reset_num_timesteps=False)
    assert models["Goalie"].num_timesteps >= 500
    assert models["Goalie"]._n_updates > updates


def test_behaviors_without_self_play_learn_at_the_same_time(training: MultiBehaviorTraining) -> None:
    models = {
        name: PPO.from_spec("UnityPolicy", spec, **SMALL)  # each type of algorithm can learn
        for name, spec in training.behavior_specs.items()
    }
    training.learn(models, 150)
    assert all(model.num_timesteps >= 150 and model._n_updates > 0 for model in models.values())


def test_missing_models_and_settings_are_named(training: MultiBehaviorTraining) -> None:
    models = models_of(training)
    with pytest.raises(InvalidValueError, match=r"'Goalie' has no model; there are models of \['Striker'\]"):
        training.learn({"Striker": models["Striker"]}, 10)
    with pytest.raises(InvalidValueError, match=r"self_play must have names of models, .*, got 'Keeper'"):
        training.learn(models, 10, {"Keeper": SelfPlay()})
    with pytest.raises(UnityGymError, match=r"model of behavior 'Goalie': .* incompatible with the behavior spec"):
        training.learn({"Goalie": models["Striker"], "Striker": models["Striker"]}, 10)


def test_the_last_decisions_are_learned_from_although_an_agent_has_fallen_silent(tmp_path: Path) -> None:
    with MultiBehaviorTraining(file_name=scripted_player.launcher(tmp_path, "silence")) as training:
        model = PPO.from_spec("UnityPolicy", training.behavior_specs["Walker"], **SMALL | {"buffer_size": 1000})
        training.learn({"Walker": model}, 200)
    assert model.num_timesteps >= 200
    assert model._n_updates == 3  # the epochs of one update
    assert not model.has_experience
