"""Configuration files of ML-Agents: values, command-line flags, errors and legacy files."""

from __future__ import annotations

import copy
import json
import random
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from sb3_ext.curriculum import EnvironmentParameterManager
from sb3_ext.launching import player_options
from sb3_ext.runs import Run
from sb3_ext.settings import (
    Constant,
    Curriculum,
    FixedSettings,
    Memory,
    PPOHyperparameters,
    RunSettings,
    SACHyperparameters,
    SettingsError,
    Uniform,
    dump,
    load,
    loads,
)
from sb3_ext.settings.shipped import configuration_file
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool

ROOT = Path(__file__).resolve().parents[2]
MLAGENTS = Path(__file__).with_name("mlagents") / "3DBall_SAC" / "configuration.yaml"
OFFICIAL = ROOT / "../shared/facts/hyperparameters.json"
CONFIGS = sorted(set((ROOT / "configs").glob("*/*.yaml")) - set((ROOT / "configs" / "sweeps").iterdir()))


def title(path: Path) -> str:
    """Return the id of a shipped configuration: "algorithm/scene"."""
    return f"{path.parent.name}/{path.stem}"


def official() -> dict[str, Any]:
    """Return Unity's own configurations by "algorithm/scene"."""
    if not OFFICIAL.exists():
        pytest.skip("the shared folder with Unity's own configurations is not here")
    tree = json.loads(OFFICIAL.read_text(encoding="utf-8"))
    older = {name: entry["config"] for name, entry in tree["_legacy"].items()}
    return {name: config for name, config in tree.items() if not name.startswith("_")} | older


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, (*path, key))
    else:
        yield path, tree


def value_at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    # A bare number is a constant sampler.
    return tree["sampler_parameters"]["value"] if isinstance(tree, dict) and "sampler_type" in tree else tree


def behavior(**keys: Any) -> str:
    return yaml.safe_dump({"behaviors": {"Ball": {"trainer_type": "ppo", **keys}}}, sort_keys=False)


def message_of(text: str, flags: dict[str, object] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        loads(text, "my.yaml", flags)
    return str(caught.value)


# --- Values ----------------------------------------------------------------------------------------------------------


def test_every_official_configuration_is_read_value_by_value() -> None:
    configurations = official()
    assert len(configurations) >= 39
    for name, configuration in configurations.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settings = loads(yaml.safe_dump(configuration), name)
        resolved = settings.model_dump()
        for path, value in leaves(configuration):
            assert value_at(resolved, path) == value, (name, path)


def test_every_official_configuration_survives_writing_and_reading() -> None:
    for name, configuration in official().items():
        settings = loads(yaml.safe_dump(configuration), name)
        assert loads(dump(settings)) == settings, name


@pytest.mark.parametrize("path", CONFIGS, ids=title)
def test_shipped_configurations_have_unitys_hyperparameters(path: Path) -> None:
    load(path)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert tree.pop("env_settings")["env_path"] == f"embedded:{re.sub('(_curriculum|_randomize|RND)$', '', path.stem)}"
    under_another_name = {
        "imitation/3DBall": "ppo/3DBall",
        "poca/CooperativePushBlock": "poca/PushBlockCollab",
        "ppo/Match3Vector": "ppo/Match3",
        "ppo/Sorter": "ppo/Sorter_curriculum",
    }
    unitys = official()[under_another_name.get(title(path), title(path))]
    if title(path) == "imitation/3DBall":  # the scene may differ, the hyperparameters may not
        for behaviors in (tree["behaviors"], unitys["behaviors"]):
            del behaviors["3DBall"]["reward_signals"], behaviors["3DBall"]["max_steps"]
    elif title(path) == "ppo/Match3Vector":  # an embedded player has one of Unity's behaviors
        del tree["environment_parameters"]
        unitys = {"behaviors": {"Match3VectorObs": unitys["default_settings"]}}
    elif title(path) == "ppo/Sorter":
        del unitys["environment_parameters"]
    assert tree == yaml.safe_load(re.sub(r"Project/\S*/Demos/", "demonstrations/", yaml.safe_dump(unitys)))


def test_every_embedded_scene_has_a_configuration() -> None:
    scenes = "3DBall 3DBallHard Basic FoodCollector GridWorld Hallway Match3 Match3Vector PushBlock Pyramids Sorter"
    ours = {path.stem for path in CONFIGS if path.parent.name == "ppo"}
    variants = {"3DBall_randomize", "PyramidsRND", "Sorter_curriculum", "WallJump_curriculum"}
    limbs = {"Crawler", "Walker", "Worm"}
    assert ours == {*scenes.split(), "VisualFoodCollector", "WallJump", *limbs, *variants}


def test_every_configuration_of_unity_for_an_embedded_scene_is_shipped() -> None:
    other_scenes = {"ppo/Visual3DBall"}
    other_names = {"poca/PushBlockCollab": "poca/CooperativePushBlock"}
    expected = {other_names.get(name, name) for name in official()} - other_scenes
    assert expected <= {title(path) for path in CONFIGS}


def test_defaults_equal_those_of_ml_agents() -> None:
    settings = load(None).behavior("Anything")
    assert settings.trainer_type == "ppo"
    assert settings.hyperparameters == PPOHyperparameters(
        batch_size=1024,
        buffer_size=10240,
        learning_rate=3e-4,
        learning_rate_schedule="linear",
        beta=5e-3,
        epsilon=0.2,
        lambd=0.95,
        num_epoch=3,
        beta_schedule="linear",
        epsilon_schedule="linear",
        shared_critic=False,
    )
    assert [name for name, _ in settings.reward_signals.items()] == ["extrinsic"]
    assert settings.network_settings.model_dump() == {
        "normalize": False,
        "hidden_units": 128,
        "num_layers": 2,
        "vis_encode_type": "simple",
        "goal_conditioning_type": "hyper",
        "deterministic": False,
        "memory": None,
    }
    assert (settings.max_steps, settings.time_horizon, settings.summary_freq) == (500000, 64, 50000)
    assert (settings.keep_checkpoints, settings.checkpoint_interval) == (5, 500000)


def test_numbers_may_be_strings_and_whole_floats() -> None:
    ball = loads(behavior(max_steps="1.0e7", time_horizon=64.0, hyperparameters={"learning_rate": "3e-4"})).behavior(
        "Ball"
    )
    assert (ball.max_steps, ball.time_horizon, ball.hyperparameters.learning_rate) == (10_000_000, 64, 3e-4)


def test_arguments_of_the_player_may_be_numbers_and_booleans() -> None:
    """They become the strings that ML-Agents passes to the player."""
    settings = loads(
        behavior() + "env_settings: {env_args: [--level, 3, --speed, 1.5, --flag, true, --day, 2020-01-01]}"
    )
    expected = ["--level", "3", "--speed", "1.5", "--flag", "True", "--day", "2020-01-01"]
    assert settings.env_settings.env_args == expected
    assert loads(dump(settings)) == settings


def test_names_of_runs_may_be_whole_numbers_and_dates() -> None:
    settings = loads(behavior() + "checkpoint_settings: {run_id: 2020-01-02, initialize_from: 5}")
    assert settings.checkpoint_settings.run_id == "2020-01-02"
    assert settings.checkpoint_settings.initialize_from == "5"
    assert loads(dump(settings)) == settings


def test_beta_and_epsilon_follow_the_schedule_of_the_learning_rate() -> None:
    text = behavior(hyperparameters={"learning_rate_schedule": "constant", "epsilon_schedule": "linear"})
    hyperparameters = loads(text).behaviors["Ball"].hyperparameters
    assert isinstance(hyperparameters, PPOHyperparameters)
    assert (hyperparameters.beta_schedule, hyperparameters.epsilon_schedule) == ("constant", "linear")


def test_values_that_default_to_other_keys_follow_them() -> None:
    text = """
    behaviors:
      Soccer: {self_play: {save_steps: 300}, even_checkpoints: true, max_steps: 1000, keep_checkpoints: 3}
      Walker: {trainer_type: sac, hyperparameters: {steps_per_update: 20}}
    """
    settings = loads(text)
    soccer, walker = settings.behavior("Soccer?team=1"), settings.behavior("Walker").hyperparameters
    assert soccer.self_play
    assert soccer.self_play.team_change == 1500
    assert soccer.checkpoint_interval == 333
    assert isinstance(walker, SACHyperparameters)
    assert (walker.reward_signal_steps_per_update, walker.buffer_size) == (20, 50000)


def test_behaviors_inherit_block_by_block_from_default_settings() -> None:
    text = """
    default_settings:
      trainer_type: ppo
      hyperparameters: {batch_size: 64, learning_rate_schedule: constant}
      network_settings: {hidden_units: 32, memory: {sequence_length: 16}}
    behaviors:
      A: {hyperparameters: {buffer_size: 640}, network_settings: {num_layers: 1, memory: null}}
      B:
      C: {trainer_type: sac, reward_signals: {curiosity: {strength: 0.1}}, network_settings:}
    """
    settings = loads(text)
    a, b, c, other = (settings.behavior(name) for name in "ABCD")
    assert (a.hyperparameters.batch_size, a.hyperparameters.buffer_size) == (64, 640)
    assert (a.network_settings.hidden_units, a.network_settings.num_layers, a.network_settings.memory) == (32, 1, None)
    assert b == other == settings.default_settings
    assert b.network_settings.memory
    assert b.network_settings.memory == Memory(sequence_length=16, memory_size=128)
    assert isinstance(c.hyperparameters, SACHyperparameters)
    assert c.hyperparameters.batch_size == 128
    assert c.network_settings == b.network_settings
    assert [name for name, _ in c.reward_signals.items()] == ["extrinsic", "curiosity"]
    assert loads(dump(settings)) == settings


def test_a_signal_without_keys_has_the_defaults_and_only_listed_signals_are_used() -> None:
    signals = loads("behaviors: {Ball: {reward_signals: {rnd: }}}").behavior("Ball").reward_signals
    assert signals.extrinsic is None
    assert signals.rnd
    assert signals.rnd.learning_rate == 1e-4


def test_anchors_and_merge_keys_of_yaml_work() -> None:
    text = """
    behaviors:
      A: &a {max_steps: 10, reward_signals: {curiosity: {encoding_size: 16}}}
      B: *a
      C: {<<: *a, max_steps: 20}
    """
    with pytest.warns(UserWarning, match="encoding_size"):
        settings = loads(text)
    assert settings.behavior("A") == settings.behavior("B")
    assert settings.behavior("C").max_steps == 20
    assert all(signals.curiosity for signals in (settings.behavior(name).reward_signals for name in "ABC"))


def test_behavior_names_are_strings_as_written() -> None:
    settings = loads("behaviors: {on: {max_steps: 1}, 007: {max_steps: 2}, a.b: {max_steps: 3}}")
    assert [settings.behavior(name).max_steps for name in ("on", "007", "a.b")] == [1, 2, 3]
    assert loads(dump(settings)) == settings


def test_environment_parameters_are_numbers_samplers_or_curricula() -> None:
    text = """
    behaviors: {Ball: {}}
    environment_parameters:
      gravity: -9.81
      mass: {sampler_type: uniform, sampler_parameters: {min_value: 0.5, max_value: 10}}
      height:
        curriculum:
        - {name: low, value: 1, completion_criteria: {behavior: Ball, measure: progress, threshold: 0.5}}
        - {name: high, value: {sampler_type: gaussian, sampler_parameters: {st_dev: 0.5}}}
      width: {curriculum: [{name: only, value: 3, completion_criteria: null}]}
    """
    settings = loads(text)
    parameters = settings.environment_parameters
    assert isinstance(parameters["gravity"], Constant)
    assert parameters["gravity"].sampler_parameters.value == -9.81
    assert isinstance(parameters["mass"], Uniform)
    assert (parameters["mass"].sampler_parameters.max_value, parameters["mass"].sampler_parameters.seed) == (10, -1)
    assert isinstance(parameters["height"], Curriculum)
    assert [lesson.name for lesson in parameters["height"].curriculum] == ["low", "high"]
    assert isinstance(parameters["width"], Constant), "one lesson alone never changes"
    assert loads(dump(settings)) == settings


def test_keys_that_ml_agents_lacks_are_written_unless_they_have_their_defaults() -> None:
    text = """
    default_settings: {trainer_type: sac}
    behaviors:
      num_workers:
        trainer_type: ppo
        hyperparameters: {second_critic: SECOND}
        network_settings: {memory: {use_previous_action: PREVIOUS}}
        self_play: {opponents: OPPONENTS}
    env_settings: {num_envs: 2, num_workers: WORKERS}
    RAY
    environment_parameters: {opponents: 0}
    """
    own = {"second_critic", "use_previous_action", "opponents", "num_workers", "ray"}

    def written(**values: str) -> set[str]:
        given = text
        for name, value in values.items():
            given = given.replace(name, value)
        settings = loads(given)
        assert loads(dump(settings)) == settings
        tree = yaml.safe_load(dump(settings))
        assert tree["behaviors"].keys() == {"num_workers"}
        assert tree["environment_parameters"].keys() == {"opponents"}
        del tree["environment_parameters"]
        tree["behaviors"] = [*tree["behaviors"].values()]
        return {str(key) for path, _ in leaves(tree) for key in path} & own

    assert not written(SECOND="null", PREVIOUS="false", OPPONENTS="[]", WORKERS="0", RAY="")
    assert written(SECOND="min", PREVIOUS="true", OPPONENTS="[a.onnx]", WORKERS="2", RAY="ray:") == own


# --- The command line ------------------------------------------------------------------------------------------------


def test_a_flag_overrides_the_file_which_overrides_the_default() -> None:
    text = behavior() + "env_settings: {num_envs: 4, seed: 7}\nengine_settings:\n"
    settings = loads(
        text,
        flags={
            "env_settings.num_envs": 1,  # the default, but given on the command line
            "engine_settings.time_scale": 1,
            "checkpoint_settings.run_id": "first",
            "behaviors.*.network_settings.deterministic": True,
        },
    )
    assert (settings.env_settings.num_envs, settings.env_settings.seed, settings.env_settings.base_port) == (1, 7, 5005)
    assert (settings.engine_settings.time_scale, settings.checkpoint_settings.run_id) == (1, "first")
    assert settings.behavior("Ball").network_settings.deterministic


def options_of(folder: Path, flags: dict[str, object], **environment: object) -> PlayerOptions:
    """Return the options of the players of a file that ML-Agents wrote, with other `env_settings`."""
    tree = yaml.safe_load(MLAGENTS.read_text(encoding="utf-8"))
    tree["env_settings"] |= environment
    given = {f"env_settings.{key}": value for key, value in flags.items()}
    settings = loads(yaml.safe_dump(tree), "theirs.yaml", given | {"checkpoint_settings.results_dir": str(folder)})
    return player_options(settings, EnvironmentParameterManager(settings, Run(settings)), None)


def test_the_port_in_a_file_is_that_of_a_build_and_not_of_the_editor(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def port(path: str | None, in_file: int, **flags: object) -> int | None:
        return options_of(tmp_path, flags, env_path=path, base_port=in_file).base_port

    assert port("Game.x86_64", 5005) == port(None, 5005, env_path="Game.x86_64") == 5005
    assert port(None, 5005) is port("Unity-v0", 5005) is port("Game.x86_64", 5005, env_path="Unity-v0") is None
    assert port(None, 5005, base_port=5005) == port("Unity-v0", 5010, base_port="5005") == 5005
    assert not [warning for warning in recwarn if "base_port" in str(warning.message)]
    with pytest.warns(UserWarning, match=r"theirs\.yaml, line \d+: env_settings\.base_port is not used.*--base-port"):
        assert port(None, 5010) is None


def test_one_area_in_a_file_is_the_scene_as_it_is_and_on_the_command_line_one_area(tmp_path: Path) -> None:
    def options(in_file: object, **flags: object) -> PlayerOptions:
        return options_of(tmp_path, flags, env_path="Unity-3DBall-v0", num_areas=in_file)

    with closing(PlayerPool(options(1))) as pool:
        pool.reset()
        (table,) = pool.tables.values()
        assert len(table.requests_decision) == 12
    assert options(1, num_areas="1").num_areas == options(4, num_areas=1).num_areas == 1
    assert options(4).num_areas == 4
    with pytest.raises(SettingsError, match="num_areas is True"):
        options(True)


def test_flags_reach_behaviors_that_no_file_names() -> None:
    settings = load(None, {"behaviors.*.network_settings.deterministic": True})
    assert settings.behavior("Anything").network_settings.deterministic


def test_of_resume_and_force_the_one_on_the_command_line_wins() -> None:
    def chosen(text: str, *flags: str) -> tuple[bool, bool]:
        given = {f"checkpoint_settings.{flag}": True for flag in flags}
        checkpoints = loads(f"default_settings: {{}}\ncheckpoint_settings: {text}", flags=given).checkpoint_settings
        return checkpoints.resume, checkpoints.force

    assert chosen("{resume: true}", "force") == (False, True)
    assert chosen("{force: true}", "resume") == (True, False)
    assert chosen("{}", "resume", "force") == (True, True)
    assert chosen("{resume: true, force: true}") == (True, True)


@pytest.mark.parametrize(("text", "resume"), [("false", False), ("true", True)])
def test_resume_overrides_the_legacy_key_load_model(text: str, resume: bool) -> None:
    with pytest.warns(UserWarning, match="load_model is an old key that is not used in addition to resume"):
        settings = loads(f"default_settings: {{}}\ncheckpoint_settings: {{load_model: true, resume: {text}}}")
    assert settings.checkpoint_settings.resume is resume


def test_of_resume_and_initialize_from_the_one_on_the_command_line_wins_and_else_resume() -> None:
    def chosen(text: str, flags: dict[str, object]) -> tuple[bool, str | None]:
        checkpoints = loads(text, flags=flags).checkpoint_settings
        return checkpoints.resume, checkpoints.initialize_from

    resume, initialize = "checkpoint_settings: {resume: true}", "checkpoint_settings: {initialize_from: old}"
    assert chosen(resume, {"checkpoint_settings.initialize_from": "new"}) == (False, "new")
    assert chosen(initialize, {"checkpoint_settings.resume": True}) == (True, "old")
    with pytest.warns(UserWarning, match="initialize_from is used for behaviors without a checkpoint only"):
        assert chosen("checkpoint_settings: {initialize_from: old, resume: true}", {}) == (True, "old")


def test_a_wrong_flag_is_reported_as_a_flag() -> None:
    message = message_of(behavior(), {"env_settings.num_envs": 0})
    assert message == "command line: env_settings.num_envs is 0: give a number of at least 1"


# --- Errors ----------------------------------------------------------------------------------------------------------

# Templates in which @ is replaced by the mistake
CURRICULUM = """\
behaviors: {Ball: {}}
environment_parameters:
  height:
    curriculum:
    - {name: a, value: 1@}
    - {name: b, value: 2}
"""
LESSON = CURRICULUM.replace("@", ", completion_criteria: {@}")
HYPER = "behaviors:\n  Ball:\n    trainer_type: ppo\n    hyperparameters:\n      @\n"
NETWORK = "behaviors:\n  Ball:\n    network_settings:\n      @\n"
BALL = "behaviors:\n  Ball:\n    @\n"
SIGNAL = "behaviors:\n  Ball:\n    reward_signals:\n      @\n"
PARAMETER = "behaviors: {Ball: {}}\nenvironment_parameters:\n  mass: @\n"
B, H, N = "behaviors.Ball", "behaviors.Ball.hyperparameters", "behaviors.Ball.network_settings"
MASS = "environment_parameters.mass"
CRITERIA = "environment_parameters.height.curriculum[0].completion_criteria"

# text, line, key path, value, remedy
BROKEN = [
    # Unknown keys, with the nearest key or the right section
    ("behaviour: {Ball: {}}", 1, "behaviour", "{'Ball': {}}", "did you mean behaviors?"),
    ("Ball: {trainer_type: ppo}", 1, "Ball", "{'trainer_type': 'ppo'}", "write it under behaviors"),
    ("behaviors: {}\nenv_setting: {}", 2, "env_setting", "{}", "did you mean env_settings?"),
    ("behaviors: {}\ndefault: {}", 2, "default", "{}", "write default_settings"),
    (BALL.replace("@", "trainer: ppo"), 3, f"{B}.trainer", "'ppo'", "write trainer_type"),
    (BALL.replace("@", "maxsteps: 5"), 3, f"{B}.maxsteps", "5", "did you mean max_steps?"),
    (BALL.replace("@", "batch_size: 64"), 3, f"{B}.batch_size", "64", "it belongs under hyperparameters"),
    ("behaviors: {}\nmodel_path: x", 2, "model_path", "'x'", "checkpoint_settings.results_dir"),
    (HYPER.replace("@", "batchSize: 64"), 5, f"{H}.batchSize", "64", "did you mean batch_size?"),
    (HYPER.replace("@", "lambda: 0.9"), 5, f"{H}.lambda", "0.9", "write lambd"),
    (HYPER.replace("@", "tau: 0.9"), 5, f"{H}.tau", "0.9", "trainer_type sac"),
    (HYPER.replace("@", "hidden_units: 9"), 5, f"{H}.hidden_units", "9", "it belongs under network_settings"),
    (NETWORK.replace("@", "normalise: true"), 4, f"{N}.normalise", "True", "did you mean normalize?"),
    (
        NETWORK.replace("@", "memory: {size: 8}"),
        4,
        f"{N}.memory.size",
        "8",
        "delete it (known here: sequence_length, memory_size, use_previous_action)",
    ),
    (BALL.replace("@", "self_play: {windows: 8}"), 3, f"{B}.self_play.windows", "8", "did you mean window?"),
    (SIGNAL.replace("@", "intrinsic: {}"), 4, f"{B}.reward_signals.intrinsic", "{}", "did you mean extrinsic?"),
    (SIGNAL.replace("@", "rnd: {gama: 1}"), 4, f"{B}.reward_signals.rnd.gama", "1", "did you mean gamma?"),
    ("torch_settings: {devices: cpu}", 1, "torch_settings.devices", "'cpu'", "did you mean device?"),
    ("engine_settings: {num_envs: 2}", 1, "engine_settings.num_envs", "2", "it belongs under env_settings"),
    # Values of the wrong type
    (BALL.replace("@", "max_steps: many"), 3, f"{B}.max_steps", "'many'", "give a finite number"),
    (BALL.replace("@", "max_steps: 1.5"), 3, f"{B}.max_steps", "1.5", "give a whole number"),
    (BALL.replace("@", "max_steps: true"), 3, f"{B}.max_steps", "True", "give a finite number"),
    (BALL.replace("@", "max_steps:"), 3, f"{B}.max_steps", "no value", "give a finite number"),
    (BALL.replace("@", "threaded: 'no'"), 3, f"{B}.threaded", "'no'", "give true or false"),
    (BALL.replace("@", "init_path: 1.10"), 3, f"{B}.init_path", "1.1", "quotes"),
    (BALL.replace("@", "network_settings: 3"), 3, N, "3", "give a block of keys"),
    ("behaviors: [Ball]", 1, "behaviors", "['Ball']", "a key for each name"),
    ("behaviors: {Ball: ppo}", 1, B, "'ppo'", "give a block of keys"),
    (HYPER.replace("@", "learning_rate: .inf"), 5, f"{H}.learning_rate", "inf", "give a finite number"),
    ("env_settings: {env_args: --level 3}", 1, "env_settings.env_args", "'--level 3'", "give a list"),
    ("env_settings: {env_args: [--level, [3]]}", 1, "env_settings.env_args[1]", "[3]", "give a text"),
    ("checkpoint_settings: {run_id: 1.10}", 1, "checkpoint_settings.run_id", "1.1", "quotes"),
    ("checkpoint_settings: {run_id: true}", 1, "checkpoint_settings.run_id", "True", "quotes"),
    ("checkpoint_settings: {run_id: 2020-01-01 10:00:00}", 1, "checkpoint_settings.run_id", "2020", "quotes"),
    ("debug: 1", 1, "debug", "1", "give true or false"),
    # Values out of range
    (BALL.replace("@", "trainer_type: pro"), 3, f"{B}.trainer_type", "'pro'", "did you mean ppo?"),
    (HYPER.replace("@", "beta_schedule: liner"), 5, f"{H}.beta_schedule", "'liner'", "did you mean linear?"),
    (NETWORK.replace("@", "vis_encode_type: cnn"), 4, f"{N}.vis_encode_type", "'cnn'", "nature_cnn, resnet, match3"),
    (NETWORK.replace("@", "goal_conditioning_type: hype"), 4, f"{N}.goal_conditioning_type", "'hype'", "hyper?"),
    (HYPER.replace("@", "batch_size: -3"), 5, f"{H}.batch_size", "-3", "of at least 1"),
    (HYPER.replace("@", "buffer_size: 100"), 5, f"{H}.buffer_size", "100", "at least batch_size, 1024"),
    (HYPER.replace("@", "batch_size: 20000"), 4, f"{H}.buffer_size", "10240", "lower batch_size"),
    (HYPER.replace("@", "learning_rate: 0"), 5, f"{H}.learning_rate", "0", "above 0"),
    (HYPER.replace("@", "epsilon: -0.2"), 5, f"{H}.epsilon", "-0.2", "above 0"),
    (HYPER.replace("@", "lambd: 1.2"), 5, f"{H}.lambd", "1.2", "of at most 1"),
    (HYPER.replace("@", "num_epoch: 0"), 5, f"{H}.num_epoch", "0", "of at least 1"),
    (NETWORK.replace("@", "num_layers: 0"), 4, f"{N}.num_layers", "0", "of at least 1"),
    (NETWORK.replace("@", "memory: {memory_size: 7}"), 4, f"{N}.memory.memory_size", "7", "even number"),
    (
        HYPER.replace("@", "batch_size: 32\n    network_settings: {memory: {sequence_length: 64}}"),
        6,
        f"{N}.memory.sequence_length",
        "64",
        "hyperparameters.batch_size, 32",
    ),
    (
        BALL.replace("@", "even_checkpoints: true\n    keep_checkpoints: 0"),
        2,
        f"{B}.checkpoint_interval",
        "500000",
        "keep_checkpoints",
    ),
    (SIGNAL.replace("@", "extrinsic: {gamma: 1.01}"), 4, f"{B}.reward_signals.extrinsic.gamma", "1.01", "at most 1"),
    (SIGNAL.replace("@", "gail: {strength: 1}"), 4, f"{B}.reward_signals.gail.demo_path", "missing", "give it a value"),
    (BALL.replace("@", "reward_signals: {}"), 3, f"{B}.reward_signals", "{}", "name at least one signal"),
    (BALL.replace("@", "behavioral_cloning: {steps: 5}"), 3, f"{B}.behavioral_cloning.demo_path", "missing", "value"),
    (
        BALL.replace("@", "self_play: {play_against_latest_model_ratio: 2}"),
        3,
        f"{B}.self_play.play_against_latest_model_ratio",
        "2",
        "of at most 1",
    ),
    (
        BALL.replace("@", "trainer_type: ppo\n    hyperparameters: {shared_critic: true, second_critic: min}"),
        4,
        f"{B}.hyperparameters.second_critic",
        "'min'",
        "a shared critic has no second one",
    ),
    (BALL.replace("@", "hyperparameters: {beta: 1}"), 2, f"{B}.trainer_type", "missing", "ppo, poca, sac, bc or fixed"),
    ("env_settings: {num_envs: 0}", 1, "env_settings.num_envs", "0", "of at least 1"),
    ("env_settings: {seed: 4294967296}", 1, "env_settings.seed", "4294967296", "of at most 4294967295"),
    ("env_settings: {base_port: 65530, num_envs: 9}", 1, "env_settings.num_envs", "9", "end at 65535"),
    ("env_settings: {num_areas: -1}", 1, "env_settings.num_areas", "-1", "of at least 1"),
    ("engine_settings: {time_scale: -1}", 1, "engine_settings.time_scale", "-1", "above 0"),
    ("checkpoint_settings: {run_id: ''}", 1, "checkpoint_settings.run_id", "''", "give a text"),
    ("torch_settings: {device: gpu}", 1, "torch_settings.device", "'gpu'", "cpu, cuda, mps or xpu"),
    # Environment parameters
    (PARAMETER.replace("@", "heavy"), 3, MASS, "'heavy'", "a number, sampler_type"),
    (
        PARAMETER.replace("@", "{sampler_type: unifrom, sampler_parameters: {}}"),
        3,
        f"{MASS}.sampler_type",
        "'unifrom'",
        "uniform?",
    ),
    (
        PARAMETER.replace("@", "{min_value: 1}"),
        3,
        f"{MASS}.sampler_type",
        "no value",
        "sampler_type and sampler_parameters",
    ),
    (PARAMETER.replace("@", "{sampler_type: uniform}"), 3, f"{MASS}.sampler_parameters", "missing", "give it a value"),
    (
        PARAMETER.replace("@", "{sampler_type: uniform, sampler_parameters: {min_value: 3, max_value: 2}}"),
        3,
        f"{MASS}.sampler_parameters.max_value",
        "2",
        "give at least min_value, 3",
    ),
    (
        PARAMETER.replace("@", "{sampler_type: gaussian, sampler_parameters: {st_dev: -1}}"),
        3,
        f"{MASS}.sampler_parameters.st_dev",
        "-1",
        "of at least 0",
    ),
    (
        PARAMETER.replace("@", "{sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1], [3, 2]]}}"),
        3,
        f"{MASS}.sampler_parameters.intervals",
        "[[0, 1], [3, 2]]",
        "low <= high; [3.0, 2.0] is none",
    ),
    (PARAMETER.replace("@", "{curriculum: []}"), 3, f"{MASS}.curriculum", "[]", "give at least one entry"),
    (CURRICULUM.replace("@", ""), 5, CRITERIA, "no value", "the next lesson never starts"),
    (
        LESSON.replace("@", "behavior: Ball, measure: progress, threshold: 5"),
        5,
        f"{CRITERIA}.threshold",
        "5",
        "from 0 to 1",
    ),
    (
        LESSON.replace("@", "behavior: Ball, measure: reward_mean"),
        5,
        f"{CRITERIA}.measure",
        "'reward_mean'",
        "reward, progress or Elo",
    ),
    (
        LESSON.replace("@", "measure: reward"),
        5,
        f"{CRITERIA}.behavior",
        "missing",
        "give it a value",
    ),
    (
        LESSON.replace("@", "behavior: Bell"),
        5,
        f"{CRITERIA}.behavior",
        "'Bell'",
        "did you mean Ball?",
    ),
    # YAML syntax
    ("behaviors: {Ball: {max_steps: 1, max_steps: 2}}", 1, f"{B}.max_steps", "twice", "Delete one"),
    ("a:\n\t- b", 2, "no YAML", "token", "Correct the text"),
    ("behaviors: {Ball: ", 1, "no YAML", "expected", "Correct the text"),
    ("behaviors: &all {Ball: *all}", 1, "no YAML", "recursive", "Correct the text"),
    ("{[a]: b}", 1, "the file has a key that is no text", "", "Write a text"),
    ("- Ball", None, "no block of keys", "['Ball']", "Write at least behaviors"),
    ("", None, "empty", "", "Write at least behaviors"),
    # The oldest format
    ("default: {batchsize: 5}", 1, "default.batchsize", "5", "did you mean batch_size?"),
    ("default: {batch_size: 5}\nBall: {lambd: 5}", 2, "Ball.lambd", "5", "of at most 1"),
    ("default: {lambd: 5}\nBall: {batch_size: 5}", 1, "default.lambd", "5", "of at most 1"),
    ("default: {trainer: ppo}\nBall: Bal", 2, "Ball", "'Bal'", "known: default, Ball; did you mean Ball?"),
    ("default: {trainer: ppo}\nA: B\nB: A", 2, "A", "'B'", "A -> B -> A never ends"),
    ("default: {trainer: ppo}\nA: 5", 2, "A", "5", "the name of a section"),
    ("default: {trainer: sacc}", 1, "default.trainer", "'sacc'", "did you mean sac?"),
    (
        "A: {trainer: offline_bc, batch_size: 5}",
        None,
        "the file has no section that can be trained",
        "",
        "trainer: ppo",
    ),
    ("A: {batch_size: 5, use_recurrent: 'yes'}", 1, "A.use_recurrent", "'yes'", "give true or false"),
]


@pytest.mark.filterwarnings("ignore:.*oldest format")
@pytest.mark.filterwarnings("ignore:.*not used by trainer")
@pytest.mark.filterwarnings("ignore:.*ML-Agents has removed")
@pytest.mark.parametrize(
    ("text", "line", "path", "value", "remedy"), BROKEN, ids=[f"{case[2]} {case[3]}" for case in BROKEN]
)
def test_an_error_names_file_line_key_path_value_and_remedy(
    text: str, line: int | None, path: str, value: str, remedy: str
) -> None:
    message = message_of(text)
    assert message.startswith(f"my.yaml, line {line}" if line else "my.yaml: ")
    assert path in message
    assert value in message
    assert remedy in message
    assert "\n" not in message, "one mistake is one line"
    assert "pydantic" not in message


def test_a_tilde_stands_for_the_home_folder_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    text = (
        "behaviors: {Ball: {init_path: ~/a.zip, behavioral_cloning: {demo_path: ~/b.demo}, "
        "reward_signals: {gail: {demo_path: ~/c.demo}}, self_play: {opponents: [~/d.onnx]}}}"
    )
    settings = loads(text, flags={"checkpoint_settings.results_dir": "~/results"})
    ball = settings.behavior("Ball")
    assert settings.checkpoint_settings.results_dir == str(tmp_path / "results")
    assert ball.init_path == str(tmp_path / "a.zip")
    assert ball.behavioral_cloning is not None
    assert ball.behavioral_cloning.demo_path == str(tmp_path / "b.demo")
    assert dict(ball.reward_signals.items())["gail"].demo_path == str(tmp_path / "c.demo")
    assert ball.self_play is not None
    assert ball.self_play.opponents == [str(tmp_path / "d.onnx")]
    assert configuration_file("~/my.yaml") == tmp_path / "my.yaml"


def test_at_least_forty_errors_are_covered() -> None:
    assert len(BROKEN) >= 40


def test_all_mistakes_are_reported_at_once_and_each_once() -> None:
    text = """\
default_settings:
  trainer_type: sac
  hyperparameters: {tao: 0.1, batch_size: -1}
  max_steps: many
behaviors:
  A: {network_settings: {num_layers: 0}}
  B: {max_steps: 5, reward_signals: {gail: {strength: 1}}, keep_checkpoints: 1, keep_checkpoints: 2}
environment_parameters:
  height: {curriculum: [{name: a, value: 1, completion_criteria: {behavior: C, measure: sum}}, {name: b, value: x}]}
debug: maybe
"""
    assert [re.split(" is | has ", line)[0] for line in message_of(text).splitlines()] == [
        "my.yaml, line 3: default_settings.hyperparameters.tao",
        "my.yaml, line 3: default_settings.hyperparameters.batch_size",
        "my.yaml, line 4: default_settings.max_steps",
        "my.yaml, line 6: behaviors.A.network_settings.num_layers",
        "my.yaml, line 7: behaviors.B.keep_checkpoints",
        "my.yaml, line 7: behaviors.B.reward_signals.gail.demo_path",
        "my.yaml, line 9: environment_parameters.height.curriculum[0].completion_criteria.measure",
        "my.yaml, line 9: environment_parameters.height.curriculum[1].value",
        "my.yaml, line 10: debug",
    ]


@pytest.mark.filterwarnings("ignore:.*oldest format")
def test_all_mistakes_of_flat_sections_are_reported_at_once() -> None:
    text = "default: {batchsize: 5, lambd: 5}\nA: B\nB: A\nC: {num_layers: 0, use_recurrent: 'no'}\nD: E\nF: 3"
    assert [line.split(" is ")[0] for line in message_of(text).splitlines()] == [
        "my.yaml, line 1: default.batchsize",
        "my.yaml, line 1: default.lambd",
        "my.yaml, line 2: A",
        "my.yaml, line 4: C.use_recurrent",
        "my.yaml, line 4: C.num_layers",
        "my.yaml, line 5: D",
        "my.yaml, line 6: F",
    ]


def test_lessons_of_unknown_behaviors_are_reported_together_with_other_mistakes() -> None:
    message = message_of(LESSON.replace("@", "behavior: Bell") + "debug: 1\n")
    assert [line.split(": ")[1].split(" is ")[0] for line in message.splitlines()] == [f"{CRITERIA}.behavior", "debug"]


def test_a_mistake_in_default_settings_is_reported_there() -> None:
    message = message_of("behaviors: {Ball: {}}\ndefault_settings:\n  max_steps: -1")
    assert message.startswith("my.yaml, line 3: default_settings.max_steps is -1")


def test_the_traceback_does_not_contain_pydantics_error() -> None:
    with pytest.raises(SettingsError) as caught:
        loads("debug: maybe")
    assert caught.value.__suppress_context__


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_file_content_raises_only_a_settings_error() -> None:
    def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
            yield (*path, key)
            yield from places(value, (*path, key))

    old = {
        "default": {"trainer": "ppo", "use_recurrent": True, "reward_signals": {"gail": {"demo_path": "a"}}},
        "A": {},
    }
    trees = [old, *(yaml.safe_load(path.read_text(encoding="utf-8")) for path in CONFIGS)]
    values = [None, 5, -1, True, "", "x", "1e7", float("nan"), 10**400, [], [None], {}, {"a": 1}, {"curriculum": [5]}]
    chance = random.Random(1)
    messages: list[str] = []
    for _ in range(150):
        tree = copy.deepcopy(chance.choice(trees))
        *above, key = chance.choice(list(places(tree)))
        block = tree
        for part in above:
            block = block[part]
        block[key] = chance.choice(values)
        try:
            settings = loads(yaml.safe_dump(tree), "my.yaml")
        except SettingsError as error:
            messages.append(str(error))
        else:
            assert loads(dump(settings)) == settings
    assert 50 < len(messages) < 150
    assert all("my.yaml" in message for message in messages)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "3DBall.yaml").write_text(behavior(), encoding="utf-8")
    (tmp_path / "latin.yaml").write_bytes(b"behaviors: {B\xe4ll: {}}")
    message = r"3dbal\.yaml: there is no such file\. Give the path of a YAML file; did you mean 3DBall\.yaml\?"
    with pytest.raises(SettingsError, match=message):
        load(tmp_path / "3dbal.yaml")
    with pytest.raises(SettingsError, match=r"nowhere.x\.yaml: there is no such file"):
        load(tmp_path / "nowhere" / "x.yaml")
    with pytest.raises(SettingsError, match=r"latin\.yaml: this is no UTF-8 text"):
        load(tmp_path / "latin.yaml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path)


def test_a_behavior_without_settings_is_named_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"'3DBal'.*default_settings.*; did you mean 3DBall\?"):
        loads("behaviors: {3DBall: {}}").behavior("3DBal")


# --- Legacy files ----------------------------------------------------------------------------------------------------


def translated(text: str) -> tuple[RunSettings, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = loads(text, "old.yaml")
    return settings, [str(warning.message) for warning in caught]


def test_flat_sections_become_behaviors() -> None:
    text = """
default:
    trainer: ppo
    batch_size: 1024
    beta: 5.0e-3
    buffer_size: 10240
    hidden_units: 128
    max_steps: 5.0e4
    memory_size: 256
    normalize: false
    sequence_length: 64
    summary_path: ppo
    tau: 0.005
    use_recurrent: false
    reward_signals:
        extrinsic: {strength: 1.0, gamma: 0.99}
BananaLearning:
    batch_size: 512
    max_steps: 1.0e5
BananaTwin: BananaLearning
BananaTriplet: BananaTwin
HallwayLearning:
    use_recurrent: true
    sequence_length: 32
    hidden_units: 64
Crawler:
    reward_signals:
        gail: {strength: 1.0, gamma: 0.99, encoding_size: 64, demo_path: crawl.demo}
    pretraining: {demo_path: crawl.demo, strength: 0.5}
"""
    settings, warned = translated(text)
    banana, hallway, crawler = (settings.behavior(name) for name in ("BananaLearning", "HallwayLearning", "Crawler"))
    assert (banana.hyperparameters.batch_size, banana.hyperparameters.buffer_size, banana.max_steps) == (
        512,
        10240,
        100000,
    )
    assert banana.network_settings.memory is None
    assert settings.behavior("BananaTwin") == settings.behavior("BananaTriplet") == banana
    assert hallway.network_settings.memory
    assert hallway.network_settings.memory == Memory(sequence_length=32, memory_size=256)
    assert (hallway.network_settings.hidden_units, hallway.max_steps) == (64, 50000)
    assert [name for name, _ in crawler.reward_signals.items()] == ["gail"], "a section replaces blocks as a whole"
    assert crawler.reward_signals.gail
    assert crawler.reward_signals.gail.network_settings.hidden_units == 64
    assert crawler.behavioral_cloning
    assert crawler.behavioral_cloning.strength == 0.5
    assert warned[0] == "old.yaml: the file has the oldest format, with flat sections; it is translated"
    assert any("line 28: Crawler.reward_signals.gail.encoding_size is an old key" in text for text in warned)
    assert settings.default_settings is None, "Crawler would inherit its reward signals"
    assert loads(dump(settings)) == settings


def test_the_default_section_applies_to_brains_without_a_section() -> None:
    settings, _ = translated("default: {trainer: ppo, batch_size: 5}\nBall: {batch_size: 6}")
    assert settings.behavior("Other").hyperparameters.batch_size == 5
    assert loads(dump(settings)) == settings


def test_curiosity_of_the_first_format_is_read() -> None:
    settings, warned = translated(
        "default: {gamma: 0.9, use_curiosity: false, curiosity_strength: 0.01, curiosity_enc_size: 128}\n"
        "Pyramids: {use_curiosity: true, curiosity_enc_size: 256, tau: 0.1}"
    )
    signals = settings.behavior("Pyramids").reward_signals
    assert signals.extrinsic
    assert signals.extrinsic.gamma == 0.9
    assert signals.curiosity
    assert (signals.curiosity.strength, signals.curiosity.network_settings.hidden_units) == (0.01, 256)
    assert any("line 2: Pyramids.tau is 0.1: not used by trainer ppo" in text for text in warned)
    assert [name for name, _ in settings.behavior("Other").reward_signals.items()] == ["extrinsic"]


def test_renamed_keys_are_translated_with_a_warning() -> None:
    text = """
    behaviors:
      Ball:
        framework: pytorch
        reward_signals: {curiosity: {encoding_size: 64}, rnd: {encoding_size: 5, network_settings: {memory: {}}}}
        self_play: {play_against_current_best_ratio: 0.25}
    checkpoint_settings: {load_model: true, train_model: true}
    environment_parameters:
      height:
        curriculum:
        - First: {value: 1, completion_criteria: {behavior: Ball}}
        - Last: {value: 2, completion_criteria: {behavior: Ball}}
    """
    settings, warned = translated(text)
    ball = settings.behavior("Ball")
    assert ball.reward_signals.curiosity
    assert ball.reward_signals.curiosity.network_settings.hidden_units == 64
    assert ball.reward_signals.rnd
    assert ball.reward_signals.rnd.network_settings.hidden_units == 128
    assert ball.reward_signals.rnd.network_settings.memory is None
    assert ball.self_play
    assert ball.self_play.play_against_latest_model_ratio == 0.25
    assert settings.checkpoint_settings.resume
    height = settings.environment_parameters["height"]
    assert isinstance(height, Curriculum)
    assert [lesson.name for lesson in height.curriculum] == ["First", "Last"]
    assert height.curriculum[1].completion_criteria is None
    assert sorted(message.split(" ")[3] for message in warned) == [
        "behaviors.Ball.framework",
        "behaviors.Ball.reward_signals.curiosity.encoding_size",
        "behaviors.Ball.reward_signals.rnd.encoding_size",
        "behaviors.Ball.reward_signals.rnd.network_settings.memory",
        "behaviors.Ball.self_play.play_against_current_best_ratio",
        "checkpoint_settings.load_model",
        "checkpoint_settings.train_model",
        "environment_parameters.height.curriculum[0].First",
        "environment_parameters.height.curriculum[1].Last",
        "environment_parameters.height.curriculum[1].Last.completion_criteria",
    ]


def test_behaviors_written_as_a_python_object_are_read() -> None:
    text = """
default_settings: null
behaviors: !!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict
  args:
  - !!python/name:mlagents.trainers.settings.TrainerSettings ''
  dictitems:
    Ball: {trainer_type: ppo, max_steps: 7}
checkpoint_settings: {run_id: first, load_model: false, train_model: false}
"""
    settings, warned = translated(text)
    assert settings.behavior("Ball").max_steps == 7
    assert list(settings.behaviors) == ["Ball"]
    assert warned == []
    with pytest.raises(SettingsError, match=r"old\.yaml, line 7: behaviors\.Ball\.max_steps is 0"):
        translated(text.replace("max_steps: 7", "max_steps: 0"))
    empty = "behaviors: !!python/object/apply:mlagents.trainers.settings.TrainerSettings.DefaultTrainerDict\n- x\n"
    assert loads(empty).behaviors == {}
    with pytest.raises(SettingsError, match="no YAML"):
        loads("behaviors: !!python/object/apply:os.system [echo]")


def test_sections_of_removed_trainers_are_left_out_with_a_warning() -> None:
    text = """
default: {trainer: online_bc, brain_to_imitate: Teacher, batches_per_epoch: 5, graph_scope: x, hidden_units: 64}
Student: {max_steps: 10}
Copy: {trainer: offline_bc, demo_path: a.demo}
Ball: {trainer: ppo, batch_size: 32}
"""
    settings, warned = translated(text)
    assert list(settings.behaviors) == ["Ball"]
    assert settings.default_settings is None
    assert settings.behavior("Ball").network_settings.hidden_units == 64
    assert [line.split(", which")[0] for line in warned[1:]] == [
        "old.yaml, line 2: default has the trainer 'online_bc'",
        "old.yaml, line 3: Student has the trainer 'online_bc'",
        "old.yaml, line 4: Copy has the trainer 'offline_bc'",
    ]
    assert all("give trainer_type: bc with demo_path: FILE" in line and "teacher: NAME" in line for line in warned[1:])


def test_graph_scope_and_rates_that_counted_differently_are_not_used() -> None:
    settings, warned = translated("A: {trainer: sac, batch_size: 32, graph_scope: x, train_interval: 5, num_update: 2}")
    assert isinstance(settings.behavior("A").hyperparameters, SACHyperparameters)
    assert settings.behavior("A").hyperparameters.steps_per_update == 1
    assert [re.split(" is |: not used", line)[1:] for line in warned[1:]] == [
        ["'x'", " by trainer sac with these settings"],
        ["5", ", since it counted differently; give steps_per_update = agents * train_interval / num_update"],
        ["2", ", since it counted differently; give steps_per_update = agents * train_interval / num_update"],
    ]


OLD_CURRICULUM = """\
  Jumper:
    measure: progress
    thresholds: [0.1, 0.5]
    min_lesson_length: 100
    signal_smoothing: true
    parameters: {low: [0, 1, 2], high: [3, 4, 5]}
"""
OLD_SAMPLERS = """\
  resampling-interval: 5000
  mass: {sampler-type: uniform, min_value: 0.5, max_value: 10}
  scale: {sampler-type: multirange_uniform, intervals: [[0, 1], [2, 3]]}
"""


def test_a_curriculum_and_samplers_become_environment_parameters() -> None:
    text = f"""
behaviors:
  Jumper: {{trainer: ppo, batch_size: 64, use_recurrent: false, output_path: default}}
curriculum:
{OLD_CURRICULUM}parameter_randomization:
{OLD_SAMPLERS}"""
    settings, warned = translated(text)
    assert settings.behavior("Jumper").hyperparameters.batch_size == 64
    low, mass = settings.environment_parameters["low"], settings.environment_parameters["mass"]
    assert isinstance(low, Curriculum)
    assert [lesson.value.sampler_parameters.model_dump()["value"] for lesson in low.curriculum] == [0, 1, 2]
    criteria = [lesson.completion_criteria for lesson in low.curriculum]
    assert criteria[2] is None
    assert criteria[1]
    assert criteria[1].model_dump() == {
        "behavior": "Jumper",
        "measure": "progress",
        "threshold": 0.5,
        "min_lesson_length": 100,
        "signal_smoothing": True,
        "require_reset": False,
    }
    assert isinstance(mass, Uniform)
    assert (mass.sampler_parameters.min_value, mass.sampler_parameters.max_value) == (0.5, 10)
    assert settings.environment_parameters["scale"].model_dump()["sampler_type"] == "multirangeuniform"
    assert list(settings.environment_parameters) == ["mass", "scale", "low", "high"]
    assert [line.split(": ")[1].split(" ")[0] for line in warned] == [
        "behaviors",
        "behaviors.Jumper.output_path",
        "parameter_randomization.resampling-interval",
        "parameter_randomization",
        "curriculum",
    ]
    assert loads(dump(settings)) == settings


def test_a_sampler_comes_before_an_old_curriculum_of_the_same_parameter() -> None:
    samplers = OLD_SAMPLERS.replace("mass:", "low:")
    settings, warned = translated(
        f"behaviors: {{Jumper: {{}}}}\ncurriculum:\n{OLD_CURRICULUM}parameter_randomization:\n{samplers}"
    )
    assert isinstance(settings.environment_parameters["low"], Uniform)
    assert isinstance(settings.environment_parameters["high"], Curriculum)
    assert any("curriculum.Jumper.parameters.low is not used: it has a sampler, too" in line for line in warned)


@pytest.mark.filterwarnings("ignore:.*old key")
@pytest.mark.parametrize("old", ["play_against_current_self_ratio", "play_against_current_best_ratio"])
def test_a_mistake_in_an_old_key_of_self_play_is_reported_under_that_key(old: str) -> None:
    assert f"behaviors.Jumper.self_play.{old} is 2" in message_of(f"behaviors: {{Jumper: {{self_play: {{{old}: 2}}}}}}")


@pytest.mark.filterwarnings("ignore:.*old key")
def test_mistakes_in_an_old_curriculum_are_reported_with_their_line() -> None:
    text = "behaviors: {Jumper: {}}\ncurriculum:\n" + OLD_CURRICULUM.replace("0.5", "5").replace("0, 1, 2", "0, x")
    text += "  Other: {thresholds: 1, parameters: {}, tresholds: 2}\n  Third: 3\n"
    assert [line.split(" is ")[0] for line in message_of(text).splitlines()] == [
        "my.yaml, line 5: curriculum.Jumper.thresholds[1]",
        "my.yaml, line 8: curriculum.Jumper.parameters.low",
        "my.yaml, line 9: curriculum.Other.tresholds",
        "my.yaml, line 9: curriculum.Other.thresholds",
        "my.yaml, line 10: curriculum.Third",
    ]


@pytest.mark.parametrize("kind", ["curriculum", "curriculum of one behavior", "sampler"])
def test_a_file_of_only_a_curriculum_or_samplers_raises_with_the_remedy(kind: str) -> None:
    old = {"curriculum": OLD_CURRICULUM, "sampler": OLD_SAMPLERS}
    old["curriculum of one behavior"] = json.dumps(yaml.safe_load(OLD_CURRICULUM)["Jumper"])
    with pytest.raises(SettingsError, match="Write these lines into the configuration file") as caught:
        loads(old[kind], "old/Jumper.json")
    text = str(caught.value).partition("\n")[2]
    key = "parameter_randomization" if kind == "sampler" else "curriculum"
    block = {key: yaml.safe_load(OLD_SAMPLERS if kind == "sampler" else OLD_CURRICULUM)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = loads(yaml.safe_dump({"behaviors": {"Jumper": {}}} | block))
    assert loads("behaviors: {Jumper: {}}\n" + text) == expected


def test_schedules_and_rates_follow_others_except_those_of_default_settings() -> None:
    text = """
    default_settings: {trainer_type: ppo, hyperparameters: {learning_rate_schedule: constant}}
    behaviors:
      A: {hyperparameters: {learning_rate_schedule: linear}}
      B: {trainer_type: poca, hyperparameters: {learning_rate_schedule: constant}}
      C: {trainer_type: sac, hyperparameters: {steps_per_update: 3}}
    """
    a, b, c = (loads(text).behavior(name).hyperparameters.model_dump() for name in "ABC")
    # default_settings has all of its values filled in before behaviors inherit them, as in ML-Agents 1.1.0.
    schedules = ("learning_rate_schedule", "beta_schedule", "epsilon_schedule")
    assert [a[key] for key in schedules] == ["linear", "constant", "constant"]
    assert [b[key] for key in schedules] == ["constant", "constant", "constant"]
    assert c["reward_signal_steps_per_update"] == 3
    filled = "default_settings: {trainer_type: sac}\nbehaviors: {A: {hyperparameters: {steps_per_update: 3}}}"
    assert loads(filled).behavior("A").hyperparameters.model_dump()["reward_signal_steps_per_update"] == 1


@pytest.mark.filterwarnings("ignore:.*old key")
def test_an_error_in_a_translated_key_names_the_key_in_the_file() -> None:
    message = message_of(SIGNAL.replace("@", "curiosity: {encoding_size: -1}"))
    assert message.startswith("my.yaml, line 4: behaviors.Ball.reward_signals.curiosity.encoding_size is -1")


@pytest.mark.parametrize("block", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merged blocks"])
def test_nested_aliases_raise_before_they_are_expanded(block: str) -> None:
    levels = [f"a{level}: &a{level} " + block.format(", ".join([f"*a{level - 1}"] * 9)) for level in range(1, 10)]
    text = "\n".join(["a0: &a0 {x: 1}", *levels, "behaviors: {}"])
    started = time.process_time()
    with pytest.raises(SettingsError, match="more than 20000 values"):
        loads(text)
    assert time.process_time() - started < 2


def test_a_file_too_long_for_settings_raises_without_being_parsed() -> None:
    with pytest.raises(SettingsError, match="it has 300000 characters, at most 200000"):
        loads("#" * 300_000)


@pytest.mark.parametrize("value", ["!!timestamp x", "!!bool x", "!!int ''", "!!float ''", "!!set [1]", "!!omap 3"])
def test_a_value_that_does_not_fit_its_tag_raises(value: str) -> None:
    with pytest.raises(SettingsError):
        loads(f"behaviors: {value}")


def test_a_flat_section_inherits_no_key_within_a_block_of_the_default() -> None:
    text = """
default: {trainer: ppo, use_recurrent: true, self_play: {window: 20}, summary_freq: 5}
A: {use_recurrent: false}
B: {self_play: {save_steps: 5}}
"""
    with pytest.warns(UserWarning, match="oldest format"):
        settings = loads(text)
    assert settings.default_settings is None
    assert settings.behaviors["A"].network_settings.memory is None
    assert settings.behaviors["B"].network_settings.memory is not None
    play = [settings.behaviors[name].self_play for name in "AB"]
    assert [None if each is None else (each.window, each.save_steps) for each in play] == [(20, 20000), (10, 5)]
    assert {behavior.summary_freq for behavior in settings.behaviors.values()} == {5}
    with pytest.warns(UserWarning, match="oldest format"):
        settings = loads("default: {trainer: ppo, use_recurrent: true}\nA: {use_recurrent: false}")
    assert settings.default_settings is not None
    assert settings.behaviors["A"].network_settings.memory is None


def test_old_keys_of_the_checkpoint_settings_are_named_and_left_out() -> None:
    text = (
        "behaviors: {A: {trainer_type: ppo}}\ncheckpoint_settings: {save_freq: 50000, lesson: 0, keep_checkpoints: 5}"
    )
    with pytest.warns(UserWarning, match="is an old key that is not used") as caught:
        loads(text)
    assert [str(warning.message).partition(" is an old key")[0].split()[-1] for warning in caught] == [
        "checkpoint_settings.save_freq",
        "checkpoint_settings.keep_checkpoints",
    ]


def test_the_most_likely_actions_are_requested_of_fixed_policies_too() -> None:
    text = "behaviors: {A: {trainer_type: fixed, policy: A.onnx}, B: {trainer_type: ppo}}"
    settings = loads(text, flags={"behaviors.*.network_settings.deterministic": True})
    fixed, learning = settings.behaviors["A"], settings.behaviors["B"]
    assert isinstance(fixed, FixedSettings)
    assert fixed.is_deterministic
    assert learning.is_deterministic


def test_bc_inherits_no_key_that_it_lacks() -> None:
    text = """
default_settings:
  {trainer_type: ppo, threaded: true, self_play: {}, behavioral_cloning: {demo_path: a}, time_horizon: 5}
behaviors: {A: {trainer_type: bc, demo_path: a.demo}}
"""
    cloned = loads(text).behaviors["A"]
    assert (cloned.threaded, cloned.self_play, cloned.behavioral_cloning, cloned.time_horizon) == (False, None, None, 5)


def test_a_hyperparameter_of_another_trainer_is_named_as_such() -> None:
    message = message_of("behaviors: {A: {trainer_type: sac, hyperparameters: {beta: 0.01}}}")
    assert "it belongs under hyperparameters of trainer_type ppo" in message
