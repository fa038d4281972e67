"""`render()` of the environments, with the embedded player and with a build that has a camera."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.passive_env_checker import env_render_passive_checker
from gymnasium.wrappers import RecordVideo, RenderCollection
from gymnasium.wrappers.vector import RecordVideo as RecordVectorVideo

import unity_gym
from unity_gym.errors import InvalidValueError, NotReadyError, PlayerError, UnityGymError
from unity_gym.registration import MULTI_AGENT_SCENES, SCENES, environment_id

HAS_DISPLAY = bool(os.environ.get("DISPLAY")) or sys.platform in ("darwin", "win32")
SINGLE_AGENT_IDS = [environment_id(scene) for scene in SCENES if scene not in MULTI_AGENT_SCENES]


def frame(env: gym.Env) -> np.ndarray:
    frame = env.render()
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    assert frame.shape[2] == 3
    assert not any(size % 2 for size in frame.shape[:2])  # video encoders take even sizes
    return frame


def agent_position(frame: np.ndarray) -> float:
    """Return the position of Basic's agent, the only blue object."""
    columns = np.flatnonzero((frame == (38, 110, 214)).all(axis=2).any(axis=0))
    return float(columns.mean()) / frame.shape[1] * 22 - 1


def test_the_image_shows_the_present_state_and_the_end_of_an_episode() -> None:
    env = gym.make("Unity-Basic-v0", render_mode="rgb_array")
    env.reset(seed=0)
    for position in range(10, 17):
        assert agent_position(frame(env)) == pytest.approx(position, abs=0.1)
        _, _, terminated, _, _ = env.step(2)
    assert terminated
    assert agent_position(frame(env)) == pytest.approx(17, abs=0.1)
    env.reset()
    assert agent_position(frame(env)) == pytest.approx(10, abs=0.1)
    env.close()


def test_rendering_does_not_change_the_course_of_a_scene() -> None:
    plain, drawn = gym.make("Unity-3DBall-v0"), gym.make("Unity-3DBall-v0", render_mode="rgb_array")
    first, _ = plain.reset(seed=3)
    np.testing.assert_array_equal(drawn.reset(seed=3)[0], first)
    for _ in range(40):
        frame(drawn)
        observation, _, terminated, _, _ = plain.step(np.ones(2, np.float32))
        np.testing.assert_array_equal(drawn.step(np.ones(2, np.float32))[0], observation)
        if terminated:
            np.testing.assert_array_equal(drawn.reset()[0], plain.reset()[0])
    plain.close()
    drawn.close()


def test_only_render_draws() -> None:
    env = gym.make("Unity-Basic-v0", render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    channel = env._pool.rendering[0]
    drawn = channel.frames[0]
    for _ in range(3):
        env.step(2)
    assert channel.frames[0] is drawn
    assert agent_position(frame(env)) == pytest.approx(13, abs=0.1)
    env.close()


def test_parameters_that_were_set_before_an_image_are_sent_with_the_reset() -> None:
    env = gym.make("Unity-3DBall-v0", render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    small = frame(env)
    env._pool.set_environment_parameters({"scale": 5})
    np.testing.assert_array_equal(frame(env), small)
    env.reset()

    def area_of_ball(image: np.ndarray) -> int:
        return int((image[..., 0] > image[..., 2].astype(int) + 60).sum())

    assert area_of_ball(frame(env)) > 4 * area_of_ball(small)
    env.close()


def test_an_interrupted_image_is_followed_by_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, drawn = gym.make("Unity-3DBall-v0"), gym.make("Unity-3DBall-v0", render_mode="rgb_array")
    plain.reset(seed=3)
    drawn.reset(seed=3)
    player = drawn.unwrapped._pool.players[0]
    with monkeypatch.context() as patch:
        patch.setattr(player, "_receive", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            drawn.render()
    with pytest.raises(NotReadyError, match=r"interrupted.*reset\(\)"):
        drawn.step(np.ones(2, np.float32))
    np.testing.assert_array_equal(drawn.reset(seed=3)[0], plain.reset(seed=3)[0])
    after_step = [env.step(np.ones(2, np.float32))[0] for env in (plain, drawn)]
    np.testing.assert_array_equal(*after_step)
    plain.close()
    drawn.close()


def test_a_player_that_has_died_is_reported_by_render() -> None:
    env = gym.make("Unity-Basic-v0", render_mode="rgb_array")
    env.reset()
    os.kill(env.unwrapped._pool.players[0]._player.pid, signal.SIGKILL)
    with pytest.raises(PlayerError, match="Basic"):
        env.render()
    env.close()
    with pytest.raises(NotReadyError, match="closed"):
        env.unwrapped.render()


@pytest.mark.parametrize(
    "make",
    [
        lambda: gym.make("Unity-Basic-v0").unwrapped,
        lambda: gym.make_vec("Unity-Basic-v0"),
        lambda: unity_gym.parallel_env("Unity-Basic-v0"),
    ],
)
def test_without_a_render_mode_nothing_is_drawn_and_a_warning_says_so(make: Callable[[], Any]) -> None:
    env = make()
    env.reset()
    with pytest.warns(UserWarning, match="no render_mode: pass render_mode='rgb_array'"):
        assert env.render() is None
    env.close()


@pytest.mark.parametrize("env_id", SINGLE_AGENT_IDS)
def test_every_scene_draws_its_changes(env_id: str) -> None:
    env = gym.make(env_id, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)
    first = env_render_passive_checker(env)
    for _ in range(5):
        mask = env.action_masks()
        discrete = isinstance(env.action_space, gym.spaces.Discrete)
        env.step(env.action_space.sample(mask.astype(np.int8)) if discrete else env.action_space.sample())
    assert frame(env).shape == first.shape
    assert not np.array_equal(frame(env), first)
    env.close()


def test_gymnasiums_checker_passes_with_images() -> None:
    env = gym.make("Unity-Basic-v0", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=not HAS_DISPLAY)
    env.close()


def test_rendering_continues_after_a_new_seed() -> None:
    env = gym.make("Unity-3DBall-v0", render_mode="rgb_array")
    env.reset(seed=1)
    first = frame(env)
    env.reset(seed=2)
    assert not np.array_equal(frame(env), first)
    env.reset(seed=1)
    np.testing.assert_array_equal(frame(env), first)
    env.close()


def test_gymnasium_collects_frames_and_records_videos(tmp_path: Path) -> None:
    env = RenderCollection(gym.make("Unity-Basic-v0", render_mode="rgb_array"))
    env.reset()
    for _ in range(3):
        env.step(2)
    assert len(env.render()) == 4
    env.close()

    pytest.importorskip("moviepy")
    env = RecordVideo(
        gym.make("Unity-3DBall-v0", render_mode="rgb_array"), str(tmp_path), episode_trigger=lambda _: True
    )
    env.reset(seed=1)
    while not env.step(np.ones(2, np.float32))[2]:
        pass
    env.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000


def test_a_vector_environment_shows_each_agent(tmp_path: Path) -> None:
    envs = gym.make_vec("Unity-Basic-v0", num_envs=3, render_mode="rgb_array")
    envs.reset(seed=0)
    envs.step(np.array([0, 1, 2]))
    positions = [agent_position(frame) for frame in envs.render()]
    assert positions == pytest.approx([10, 9, 11], abs=0.1)
    envs.close()

    pytest.importorskip("moviepy")
    envs = gym.make_vec("Unity-3DBall-v0", num_envs=2, n_instances=2, render_mode="rgb_array")
    envs = RecordVectorVideo(envs, str(tmp_path), step_trigger=lambda step: step == 0, video_length=3)
    envs.reset()
    for _ in range(4):
        envs.step(np.ones((2, 2), np.float32))
    envs.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_a_multi_agent_environment_shows_its_first_area() -> None:
    env = unity_gym.parallel_env("Unity-FoodCollector-v0", num_areas=2, render_mode="rgb_array")
    env.reset(seed=1)
    first = frame(env)
    ahead = {"continuous": np.array([1, 0, 0], np.float32), "discrete": 0}
    env.step(dict.fromkeys(env.agents, ahead))
    assert not np.array_equal(frame(env), first)
    env.close()


def test_a_finished_episode_shows_its_last_state() -> None:
    env = unity_gym.parallel_env("Unity-Basic-v0", num_areas=1, render_mode="rgb_array")
    env.reset()
    while env.agents:
        env.step(dict.fromkeys(env.agents, 2))
    assert agent_position(frame(env)) == pytest.approx(17, abs=0.1)
    env.reset()
    assert agent_position(frame(env)) == pytest.approx(10, abs=0.1)
    env.close()


def test_the_last_agent_of_several_leaves_an_image() -> None:
    env = unity_gym.parallel_env("Unity-3DBall-v0", num_areas=2, render_mode="rgb_array")
    env.reset(seed=1)
    first = frame(env)
    while env.agents:
        env.step(dict.fromkeys(env.agents, np.ones(2, np.float32)))
    assert not np.array_equal(frame(env), first)
    env.close()


def build_without_images(tmp_path: Path, scene: str) -> Path:
    """Return a player of an embedded scene that, like a Unity build, has no side channel for images."""
    program = tmp_path / "build.x86_64"
    program.write_text(
        f"""#!{sys.executable}
import sys, uuid
from unity_gym.scenes import __main__, communicator
communicator.RENDERING = uuid.uuid4()
sys.exit(__main__.main(["{scene}", *sys.argv[1:]]))
"""
    )
    program.chmod(0o755)
    return program


def test_a_build_renders_its_camera_observation(tmp_path: Path) -> None:
    build = build_without_images(tmp_path, "GridWorld")
    arguments = {"file_name": build, "additional_args": ["--areas", "1"], "render_mode": "rgb_array"}
    env = gym.make("Unity-v0", **arguments)
    observation, _ = env.reset()
    (camera,) = (part for part in observation.values() if part.ndim == 3)
    np.testing.assert_array_equal(frame(env), camera.transpose(1, 2, 0))
    env.close()
    env = gym.make("Unity-v0", visual_dtype="float32", **arguments)
    observation, _ = env.reset()
    (camera,) = (part for part in observation.values() if part.ndim == 3)
    np.testing.assert_allclose(frame(env) / 255, camera.transpose(1, 2, 0), atol=1e-6)
    env.close()


def test_rendering_a_build_without_a_camera_raises(tmp_path: Path) -> None:
    with pytest.raises(UnityGymError, match=r"nothing to render.*VectorSensor_size8.*camera"):
        gym.make(
            "Unity-v0",
            file_name=build_without_images(tmp_path, "3DBall"),
            additional_args=["--areas", "1"],
            render_mode="rgb_array",
        )


def test_an_unknown_render_mode_raises() -> None:
    with pytest.raises(InvalidValueError, match=r"rgb_array.*human.*'ansi'"):
        gym.make("Unity-Basic-v0", render_mode="ansi")


@pytest.mark.skipif(HAS_DISPLAY, reason="there is a display")
def test_without_a_display_a_window_raises_with_the_remedy() -> None:
    pytest.importorskip("tkinter")
    with pytest.raises(UnityGymError, match=r"display.*rgb_array"):
        gym.make("Unity-Basic-v0", render_mode="human")


@pytest.mark.skipif(not HAS_DISPLAY, reason="there is no display")
def test_a_window_shows_the_scene() -> None:
    env = gym.make("Unity-Basic-v0", render_mode="human")
    env.reset()
    env.step(2)
    assert env.render() is None
    env.close()
    envs = gym.make_vec("Unity-3DBall-v0", num_envs=3, render_mode="human")
    envs.reset()
    envs.step(np.zeros((3, 2), np.float32))
    envs.close()
