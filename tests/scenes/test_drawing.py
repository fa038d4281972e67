"""Shapes are drawn at their positions in the world."""

from __future__ import annotations

import numpy as np
import pytest

from unity_gym.scenes.drawing import BLUE, RED, Canvas


def covered(canvas: Canvas, color: tuple[int, int, int] = BLUE) -> float:
    """Return the area of a color in m², including blended edges; the canvas is black with 10 pixels per meter."""
    return float((canvas.image / np.array(color)).mean(axis=2).sum()) / 100


@pytest.fixture
def canvas() -> Canvas:
    return Canvas(-10, -5, 10, 5, pixels=200, color=(0, 0, 0))


def test_the_image_has_the_proportions_of_the_world_and_even_sides() -> None:
    assert Canvas(0, 0, 2, 1, pixels=301).image.shape == (150, 300, 3)
    assert Canvas(-1, 0, 20, 1, pixels=401).image.shape == (20, 400, 3)


def test_right_and_up_in_the_world_are_right_and_up_in_the_image(canvas) -> None:
    canvas.rectangle(9.5, 4.5, 0.5, 0.5, BLUE)
    assert (canvas.image[:10, 190:] == BLUE).all()
    assert covered(canvas) == pytest.approx(1)


def test_shapes_cover_their_area_whatever_their_angle(canvas) -> None:
    canvas.rectangle(-5, 0, 2, 1, BLUE, angle=0.7)
    assert covered(canvas) == pytest.approx(8, rel=0.02)
    canvas.disc(5, 0, 2, BLUE)
    assert covered(canvas) == pytest.approx(8 + 4 * np.pi, rel=0.02)


def test_angles_are_counter_clockwise(canvas) -> None:
    canvas.rectangle(0, 0, 4, 0.5, BLUE, angle=np.pi / 4)
    assert tuple(canvas.image[50 - 20, 100 + 20]) == BLUE
    assert tuple(canvas.image[50 - 20, 100 - 20]) == (0, 0, 0)


def test_rings_and_lines_have_their_width(canvas) -> None:
    canvas.ring(-5, 0, 3, 0.5, BLUE)
    assert covered(canvas) == pytest.approx(2 * np.pi * 3 * 0.5, rel=0.02)
    canvas.image[:] = 0
    canvas.polyline([(0, -4), (0, 4), (8, 4)], 0.5, BLUE)
    assert covered(canvas) == pytest.approx(16 * 0.5 + np.pi * 0.25**2, rel=0.03)


def test_what_lies_outside_is_left_out_and_later_shapes_cover_earlier_ones(canvas) -> None:
    canvas.disc(-30, 0, 5, BLUE)
    canvas.rectangle(0, 20, 3, 3, BLUE)
    assert not canvas.image.any()
    canvas.rectangle(0, 0, 30, 30, BLUE)
    assert (canvas.image == BLUE).all()
    canvas.rectangle(0, 0, 30, 30, RED)
    assert (canvas.image == RED).all()
