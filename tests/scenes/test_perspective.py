"""Camera images: every pixel whose ray hits a solid shows it, whatever part of the image the solid is drawn into."""

from __future__ import annotations

import numpy as np
import pytest

from unity_gym.scenes.perspective import Solids, View, hit, photograph
from unity_gym.scenes.rotations import rotate, rotate_inverse
from unity_gym.specs import Array

HEIGHT, WIDTH, ANGLE, NEAR = 16, 24, 60.0, 0.5
SKY = (1, 2, 3)


def turned(rotation: Array, vector: Array, inverse: bool = False) -> Array:
    """Return a vector (3) after a rotation (x, y, z, w), or after its inverse."""
    result = np.empty(3)
    (rotate_inverse if inverse else rotate)(rotation, *vector, result)
    return result


def hits(solids: Solids, view: View) -> Array:
    """Return which pixels' rays hit the only solid, each computed for itself, bool (height, width)."""
    rotation = solids.rotation[0]
    start = turned(rotation, view.position - solids.center[0], inverse=True)
    scale = 2 * np.tan(np.radians(ANGLE) / 2) / HEIGHT
    found = np.zeros((HEIGHT, WIDTH), bool)
    for i, j in np.ndindex(HEIGHT, WIDTH):
        ray = np.array([(j + 0.5 - WIDTH / 2) * scale, (HEIGHT / 2 - i - 0.5) * scale, 1.0])
        local = turned(rotation, turned(view.rotation, ray), inverse=True)
        found[i, j] = hit(start, local, solids.half[0], solids.radius[0], NEAR) < 1e30
    return found


@pytest.mark.parametrize("kind", ["box", "capsule", "sphere"])
def test_a_solid_is_drawn_wherever_a_ray_hits_it(kind: str) -> None:
    """Some are partly behind the camera, or around it."""
    rng = np.random.default_rng(0)
    partly = 0
    for _ in range(60):
        half = {"box": rng.uniform(0.1, 6, 3), "capsule": [0, rng.uniform(0.1, 6), 0], "sphere": [0, 0, 0]}[kind]
        rotation, camera = (each / np.linalg.norm(each) for each in rng.normal(size=(2, 4)))
        solids = Solids(1)
        radius = 0 if kind == "box" else rng.uniform(0.2, 4)
        view = View(rng.uniform(-8, 8, 3), camera, ANGLE, NEAR)
        center = view.position + turned(camera, rng.uniform((-4, -3, -3), (4, 3, 10)))
        solids.put(0, center, (200, 200, 200), half=half, radius=radius, rotation=rotation)
        expected = hits(solids, view)
        image = photograph(solids, view, HEIGHT, WIDTH, sky=SKY)
        np.testing.assert_array_equal((image != SKY).any(axis=2), expected)
        partly += 0 < expected.sum() < expected.size
    assert partly >= 10
