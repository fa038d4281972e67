"""Options of environments, behavior names, environment parameters of a reset, and the exported names."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import warnings
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
from pettingzoo.test import max_cycles_test, render_test
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

import unity_gym
from sb3_ext import UnityVecEnv
from stand_ins import changing_agents_player, stress_player
from stand_ins.unity_editor import Editor
from unity_gym.environment import UnityEnvironment
from unity_gym.envs import UnityParallelEnv, UnitySingleAgentEnv, UnityVectorEnv
from unity_gym.errors import InvalidValueError, PlayerError, UnityGymError, UnknownOptionError
from unity_gym.options import PlayerKeywords, PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.side_channels import FloatPropertiesChannel, OutgoingMessage
from unity_gym.wire.messages import UnityMessage

ENVIRONMENTS = [UnitySingleAgentEnv, UnityVectorEnv, UnityParallelEnv, UnityVecEnv]


@pytest.fixture
def no_player(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a player is launched."""

    def launch(*_: Any, **__: Any) -> None:
        raise AssertionError("a player is launched")

    monkeypatch.setattr(PlayerPool, "__init__", launch)


def test_the_types_of_options_are_those_of_their_values() -> None:
    assert get_type_hints(PlayerKeywords) == get_type_hints(PlayerOptions)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.usefixtures("no_player")
def test_a_misspelled_option_raises_with_the_nearest_name(environment: Any) -> None:
    python = r"__init__\(\) got an unexpected keyword argument"  # which TorchRL and Gymnasium look for
    with pytest.raises(UnknownOptionError, match=f"{python} 'time_scal'; the nearest is 'time_scale'"):
        environment(time_scal=1.0)
    with pytest.raises(TypeError, match=r"'max_episode_steps'$"):  # no name is similar
        environment(max_episode_steps=5)
    with pytest.raises(TypeError, match="'observation'; the nearest is 'observations'"):
        environment(observation="split")


@pytest.mark.parametrize("function", [*ENVIRONMENTS, unity_gym.parallel_env, unity_gym.aec_env])
def test_help_shows_every_option(function: Any) -> None:
    assert {option.name for option in fields(PlayerOptions)} <= set(inspect.signature(function).parameters)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.usefixtures("no_player")
def test_wrong_values_raise_before_a_player_is_launched(environment: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"render_mode.*'film'"):
        environment(render_mode="film")
    with pytest.raises(InvalidValueError, match=r"observations.*'flat'"):
        environment(observations="flat")
    if environment is not UnitySingleAgentEnv:
        with pytest.raises(InvalidValueError, match="wait_for must be 'all' or 'any', got 'some'"):
            environment(wait_for="some")


def test_the_package_exports_only_the_documented_names() -> None:
    classes = ["UnityAECEnv", "UnityEnvironment", "UnityParallelEnv", "UnitySingleAgentEnv", "UnityVectorEnv"]
    assert dir(unity_gym) == ["ActionTuple", *classes, "__version__", "aec_env", "parallel_env"]
    assert unity_gym.UnityEnvironment is UnityEnvironment
    with pytest.raises(AttributeError, match="nothing"):
        unity_gym.nothing  # noqa: B018


def test_metadata_is_no_shared_constant() -> None:
    env, parallel = gym.make("Unity-Basic-v0").unwrapped, unity_gym.parallel_env("Unity-Basic-v0")
    for one in (env, parallel):
        one.metadata["render_modes"].append("mine")
        assert "mine" not in type(one).metadata["render_modes"]
        one.close()
    assert "mine" not in UnityVectorEnv.metadata["render_modes"]


@pytest.mark.parametrize(
    ("options", "rows"),
    [({"env_id": "Unity-3DBall-v0"}, 12), ({"file_name": "embedded:3DBall", "num_areas": 3}, 3), ({"num_envs": 5}, 5)],
)
def test_a_vec_env_has_the_options_of_the_other_environments(options: dict[str, Any], rows: int) -> None:
    env = UnityVecEnv(**({"env_id": "Unity-3DBall-v0"} if "file_name" not in options else {}) | options)
    assert env.reset().shape == (rows, 8)
    assert env.step(np.zeros((rows, 2), np.float32))[3][-1]["alive"]
    env.close()


def test_reset_names_environment_parameters_that_are_no_numbers() -> None:
    env = gym.make("Unity-Basic-v0")
    with pytest.raises(InvalidValueError, match="'a': 'b'"):
        env.reset(options={"a": "b"})
    with pytest.raises(InvalidValueError, match="'a': inf"):
        env.reset(options={"a": float("inf")})
    with pytest.raises(InvalidValueError, match=r"a dict, such as .*, got 5"):
        env.reset(options=5)  # type: ignore[arg-type]
    env.reset(options={"a": np.float32(1), "b": 2})
    env.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"environment_parameters": [1]}, InvalidValueError, r"environment parameters must be a dict, .*, got \[1\]"),
        ({"side_channels": FloatPropertiesChannel()}, InvalidValueError, "a list of SideChannel objects, got <.*Float"),
        ({"log_folder": 3}, PlayerError, "Cannot write the player's log: .* not int. Choose another log_folder."),
    ],
)
def test_options_of_the_wrong_type_raise(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gym.make("Unity-Basic-v0", **options)


def test_strings_that_unity_cannot_read_raise() -> None:
    with pytest.raises(InvalidValueError, match=r"ASCII.*'größe'"):
        OutgoingMessage().write_string("größe")
    with pytest.raises(InvalidValueError, match="ASCII"):
        FloatPropertiesChannel().set_property("größe", 1.0)


def test_waiting_for_the_editor_is_reported_as_unity_does(caplog: pytest.LogCaptureFixture) -> None:
    line = "Listening on port {}. Start training by pressing the Play button in the Unity Editor."
    for level in (logging.WARNING, logging.INFO):  # that of scripts, that of unity-learn
        caplog.clear()
        with caplog.at_level(level, "unity_gym"):
            editor = Editor(lambda _: UnityMessage().unity_output)
            env = editor.connect()
        assert ("unity_gym.environment", level, line.format(editor.port)) in caplog.record_tuples
        env.close()
        editor.join()


# Behavior names


def test_agents_of_two_behaviors_that_are_alike_share_the_rows() -> None:
    options = {"num_envs": 6, "timeout_wait": 200}  # the first start compiles the scene
    envs = gym.make_vec("Unity-WallJump-v0", behavior=("SmallWallJump", "BigWallJump"), **options)
    default = gym.make_vec("Unity-WallJump-v0", **options)
    for one in (envs, default):
        one.reset(seed=1)
        behaviors = set()
        for _ in range(3):
            one.step(one.action_space.sample())
            assert one.reset()[1]["alive"].all()
            behaviors |= set(one._pool.controlled_behaviors)
        assert behaviors == {"SmallWallJump?team=0", "BigWallJump?team=0"}
        one.close()


def test_a_name_without_a_team_selects_all_teams() -> None:
    envs = gym.make_vec("Unity-SoccerTwos-v0", num_envs=4, behavior="SoccerTwos")
    assert envs.reset()[0].shape == (4, 336)
    assert envs._pool.controlled_behaviors == ["SoccerTwos?team=0", "SoccerTwos?team=1"]
    envs.close()


def test_behaviors_that_differ_cannot_share_rows(tmp_path: Path) -> None:
    with pytest.raises(UnityGymError, match=r"'Keeper.team=0', 'Striker.team=0'.* differ"):
        UnityVecEnv(file_name=changing_agents_player.launcher(tmp_path))


@pytest.mark.parametrize(
    ("steps", "text"),
    [(150, "'Late?team=1' has appeared and is not controlled"), (20, "learn from such rows as if they had acted")],
)
def test_users_are_warned_once(tmp_path: Path, steps: int, text: str) -> None:
    """Warnings about late behaviors without control, and about rows that SB3's algorithms cannot distinguish."""
    options = {"file_name": stress_player.launcher(tmp_path), "no_graphics": False, "log_folder": tmp_path, "seed": 1}
    env = UnityVecEnv(behavior="Runner", num_envs=12, wait_for="any", **options)
    env.reset()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(steps):
            env.step(np.stack([env.action_space.sample() for _ in range(12)]))
    env.close()
    assert [text in str(one.message) for one in warned].count(True) == 1


# PettingZoo's conventions


def test_pettingzoo_environments_are_pickled_as_their_arguments() -> None:
    for env in (unity_gym.parallel_env("Unity-Basic-v0", seed=3), unity_gym.aec_env("Unity-Basic-v0", seed=3)):
        copy = pickle.loads(pickle.dumps(env))
        env.reset()
        copy.reset()
        assert copy.possible_agents == env.possible_agents == ["basic_0"]
        env.close()
        copy.close()


def test_pettingzoos_tests_of_cycles_and_images_pass() -> None:
    made = []

    def make(function: Any, **options: Any) -> Any:
        made.append(function("Unity-3DBall-v0", num_areas=2, **options))
        return made[-1]

    max_cycles_test(
        SimpleNamespace(
            parallel_env=lambda **options: make(unity_gym.parallel_env, **options),
            env=lambda **options: make(unity_gym.aec_env, **options),
        )
    )
    for env in made:
        env.close()


@pytest.mark.skipif(not os.environ.get("DISPLAY"), reason="needs a screen: run it under xvfb-run")
def test_pettingzoos_render_test_passes() -> None:
    render_test(lambda **options: unity_gym.aec_env("Unity-Basic-v0", **options))


def test_spaces_are_available_by_agent_too() -> None:
    parallel = unity_gym.parallel_env("Unity-SoccerTwos-v0", action_mask="info")
    names = ["soccertwos_0_0", "soccertwos_0_1", "soccertwos_1_0", "soccertwos_1_1"]
    assert sorted(parallel.possible_agents) == names
    assert parallel.observation_spaces == {
        agent: parallel.observation_space(agent) for agent in parallel.possible_agents
    }
    assert parallel.action_spaces == {agent: parallel.action_space(agent) for agent in parallel.possible_agents}
    observations, infos = parallel.reset()
    for agent, observation in observations.items():
        assert parallel.observation_space(agent).contains(observation)
        assert infos[agent]["action_mask"].shape == (9,)
    parallel.close()
    turns = unity_gym.aec_env("Unity-SoccerTwos-v0", action_mask=None)
    assert isinstance(turns, OrderEnforcingWrapper)
    turns.reset()
    assert "action_mask" not in turns.last()[4]
    assert turns.last()[4]["requests_decision"]
    turns.close()
