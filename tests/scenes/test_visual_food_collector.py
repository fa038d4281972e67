"""VisualFoodCollector: images of its cameras."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes import drawing, rotations
from unity_gym.scenes.perspective import draw
from unity_gym.scenes.visual_food_collector import VisualFoodCollector
from unity_gym.specs import ActionTuple, Array

NAME = "VisualFoodCollector?team=0"
GOOD, BAD = 0, 25  # the first piece of each kind
SKY = (119, 144, 155)


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, VisualFoodCollector]]:
    """Start one area with its food far up in the air; the first agent looks along z from the middle, past others."""
    with held_scene(VisualFoodCollector) as (env, scene):
        scene.food[1] = 1e6
        put(scene, 0, 0, 0)
        for agent in range(1, 4):
            put(scene, agent, 5 * agent - 10, -45)
        yield env, scene


def put(scene: VisualFoodCollector, agent: int, x: float, z: float, degrees: float = 0) -> None:
    scene.shapes.center[:, 0, agent] = x, 0.5, z
    scene.shapes.yaw[0, agent] = np.radians(degrees)
    scene.bodies.velocity[:, 0, agent] = 0


def put_food(scene: VisualFoodCollector, piece: int, x: float, z: float) -> None:
    scene.food[:, 0, piece] = x, 0.75, z
    scene.food_velocity[:, 0, piece] = 0


def look(scene: VisualFoodCollector, agent: int = 0) -> Array:
    """Return the image of an agent's camera, float (84, 84, 3)."""
    return scene._see(np.array([agent]))[0, 0].astype(float)


def share(image: Array, color: drawing.Color) -> Array:
    """Return the pixels of a color, whatever their brightness, bool (84, 84)."""
    direction = (image + 1) / np.linalg.norm(image + 1, axis=2, keepdims=True)
    seen: Array = direction @ (np.array(color) / np.linalg.norm(color)) > 0.99
    return seen


def step(env: UnityEnvironment, continuous: tuple[float, ...] = (0, 0, 0), shoot: int = 0) -> None:
    """Make one decision of the first agent; the others do nothing."""
    n = len(env.get_steps(NAME)[0])
    action = ActionTuple(np.zeros((n, 3), np.float32), np.zeros((n, 1), np.int32))
    action.continuous[0], action.discrete[0] = continuous, shoot
    env.set_actions(NAME, action)
    env.step()


def test_sixteen_agents_have_a_camera_a_flag_and_a_hybrid_action() -> None:
    env = UnityEnvironment("embedded:VisualFoodCollector", visual_dtype="uint8")
    try:
        env.reset()
        spec = env.behavior_specs[NAME]
        camera, flag = spec.observation_specs
        assert (camera.name, camera.shape) == ("CameraSensor", (3, 84, 84))
        assert (flag.name, flag.shape) == ("VectorSensor_size1", (1,))
        assert (spec.action_spec.continuous_size, spec.action_spec.discrete_branches) == (3, (2,))
        images, flags = env.get_steps(NAME)[0].obs
        assert images.shape == (16, 3, 84, 84)
        assert images.dtype == np.uint8
        assert not flags.any()
        assert images[:, :, 0].reshape(16, -1).std() > 0
    finally:
        env.close()


def test_the_sky_is_above_the_floor_below_and_the_walls_lie_between(held) -> None:
    image = look(held[1])
    assert (image[:30] == SKY).all()
    assert len(np.unique(image[50:].reshape(-1, 3), axis=0)) == 1
    assert not (image[41] == SKY).any()  # the far wall stands on the horizon


def test_food_is_seen_where_it_lies_at_its_size(held) -> None:
    _, scene = held
    put_food(scene, GOOD, 1.5, 8.15)
    put_food(scene, BAD, -1.5, 8.15)
    image = look(scene)
    for color, sign in ((drawing.LIT_PLUS, 1), (drawing.LIT_EX, -1)):
        rows, columns = np.nonzero(share(image, color))
        focal = 42 / np.tan(np.radians(30))  # pixels; the camera is 0.15 m ahead of the center
        assert columns.mean() + 0.5 - 42 == pytest.approx(sign * focal * 1.5 / 8, abs=1)
        assert 42 - rows.mean() - 0.5 == pytest.approx(focal * 0.25 / 8, abs=1)
        assert len(rows) == pytest.approx(np.pi * (focal * 0.5 / 8) ** 2, rel=0.15)


def test_level_faces_have_the_colors_of_unitys_materials(held) -> None:
    _, scene = held
    for agent in range(4):
        put(scene, agent, 3 * agent, 0)
    scene.shapes.tag[0, 1] = scene._tag_of_frozen
    scene.good_until[0, 2] = scene.bad_until[0, 3] = 1000
    colors = [(62, 195, 255), (137, 139, 143), (140, 238, 151), (238, 92, 75)]  # GridWorld's, from Unity's images
    for agent, color in enumerate(colors):
        assert seen_from_above(scene, 3 * agent, 0) == color
    assert seen_from_above(scene, 0, 0.51) == (255, 213, 71)  # the headband around the agent
    put_food(scene, GOOD, -3, 0)
    put_food(scene, BAD, -6, 0)
    assert seen_from_above(scene, -3, 0) == pytest.approx(colors[2], abs=1)
    assert seen_from_above(scene, -6, 0) == pytest.approx(colors[3], abs=1)


def seen_from_above(scene: VisualFoodCollector, x: float, z: float) -> tuple[int, ...]:
    """Return the color that a camera straight above (x, z) sees in its middle."""
    scene._move_solids()
    image = np.empty((1, 1, 1, 3), np.uint8)
    everything, down = np.zeros((1, 2), np.int64), rotations.euler(90, 0)[np.newaxis]
    position = np.array([[x, 20.0, z]])
    solids = scene._solids.arrays
    draw(image, np.zeros(1, np.int64), everything, position, down, 1.0, 0.1, solids, np.zeros(3), False)
    return tuple(image.ravel().tolist())


def test_objects_outside_the_view_or_covered_are_not_seen(held) -> None:
    _, scene = held
    put_food(scene, GOOD, 8, 8)  # at 45°, beyond the 30° of the camera
    put_food(scene, GOOD + 1, 0, -5)
    put_food(scene, GOOD + 2, 0, 20)
    put_food(scene, BAD, 0, 4)
    image = look(scene)
    assert share(image, drawing.LIT_EX).any()
    assert not share(image, drawing.LIT_PLUS).any()
    scene.shapes.yaw[0, 0] = np.radians(45)
    assert share(look(scene), drawing.LIT_PLUS).any()


def test_agents_see_each_other_but_not_themselves(held) -> None:
    _, scene = held
    assert not share(look(scene), drawing.LIT_AGENT).any()
    put(scene, 1, 0, 5, degrees=180)
    image = look(scene)
    assert share(image, drawing.LIT_AGENT).sum() > 50
    eyes = (image < 50).all(axis=2)
    assert eyes.sum() > 5  # with the mouth, they face the camera
    assert np.ptp(image[eyes], axis=1).max() == 0  # gray
    scene.shapes.tag[0, 1] = scene._tag_of_frozen
    assert not share(look(scene), drawing.LIT_AGENT).any()


def test_a_frozen_agent_has_the_flag(held) -> None:
    env, scene = held
    put(scene, 1, 0, 8)
    step(env, shoot=1)
    assert env.get_steps(NAME)[0].obs[1][:, 0].tolist() == [0, 1, 0, 0]


def test_laser_beams_are_seen_from_outside_with_the_length_of_the_parameter(held) -> None:
    _, scene = held
    put(scene, 1, -5, 10, degrees=90)
    scene.shooting[0, 1] = True
    _, columns = np.nonzero(share(look(scene), drawing.YELLOW))
    assert columns.max() > 75  # to the right edge
    scene.laser_scale[0, 1] = 0.25
    _, columns = np.nonzero(share(look(scene), drawing.YELLOW))
    assert columns.max() < 50
    assert not share(look(scene, 1), drawing.YELLOW).any()


def test_eating_colors_an_agent_for_half_a_second(held) -> None:
    _, scene = held
    put(scene, 1, 0, 5, degrees=180)
    for piece, color in ((GOOD, drawing.LIT_PLUS), (BAD, drawing.LIT_EX)):
        put_food(scene, piece, 0.9, 5)
        scene.simulate()
        scene.food[1] = 1e6
        assert share(look(scene), color).sum() > 50
        for _ in range(26):
            scene.simulate()
        put(scene, 1, 0, 5, degrees=180)
        assert not share(look(scene), color).any()
    assert scene.agents.reward[1] == 0
