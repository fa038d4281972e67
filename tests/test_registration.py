"""The registered ids are the scenes of the embedded player."""

import gymnasium as gym

import unity_gym  # noqa: F401  # registers the ids
from unity_gym import registration, scenes


def test_every_embedded_scene_has_an_id() -> None:
    assert sorted(registration.SCENES) == sorted(scenes.SCENES)
    assert {registration.environment_id(scene) for scene in scenes.SCENES} < set(gym.registry)
