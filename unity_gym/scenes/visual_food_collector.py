"""VisualFoodCollector: FoodCollector with camera observations.

From Unity's scene: the behavior, four agents per area, 84 × 84 pixels, the camera's position, angle and background, and
the direction of the light. Also from it are the sizes of food, eyes, mouths, headbands and laser beams, and the change
of colors for half a second after a meal. Agents, their parts, food and walls have materials of known colors, most of
which GridWorld's objects have, too. Estimated: the colors of laser beams and floor, the light on faces that are not
level, the height of the walls, and that there are no shadows.
"""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.drawing import (
    LIT_AGENT,
    LIT_EX,
    LIT_EYE,
    LIT_FLOOR,
    LIT_HEADBAND,
    LIT_PLUS,
    LIT_WALL,
    YELLOW,
)
from unity_gym.scenes.food_collector import FoodCollector
from unity_gym.scenes.perspective import Solids, draw
from unity_gym.scenes.rotations import about_y
from unity_gym.scenes.sensors import ImageSensor, Sensor, VectorSensor
from unity_gym.specs import Array

_PIXELS = 84
_ANGLE = 60.0  # degrees
_NEAR = 0.3  # m
_AHEAD = 0.15  # m, from an agent's center to its camera
_SKY = np.array([119, 144, 155])
_FOOD_RADIUS = 0.5  # m; food collides at 0.75 m, so that it floats
_EFFECT_TICKS = 25  # duration of the color change after a meal
_LASER_LENGTH = 20.0  # m
# The parts of an agent: center and half of its extents in m, relative to its own center.
_BODY = ((0.0, 0.0, 0.0), (0.5, 0.5, 0.5))
_EYES = tuple(((x, 0.074, 0.5), (0.147, 0.147, 0.001)) for x in (0.3, -0.3))
_MOUTH = ((0.0, -0.183, 0.5), (0.138, 0.021, 0.001))
_HEADBAND = ((0.0, 0.341, 0.0), (0.522, 0.096, 0.522))
_LASER = ((0.0, -0.06, _LASER_LENGTH / 2), (0.385, 0.13, _LASER_LENGTH / 2))
_PARTS = (_BODY, *_EYES, _MOUTH, _HEADBAND, _LASER)
_COLORS = (LIT_AGENT, LIT_EYE, LIT_EYE, LIT_EYE, LIT_HEADBAND, YELLOW)
_BODY_PART, _LASER_PART = 0, len(_PARTS) - 1
_OFFSETS, _HALVES = np.array(_PARTS).transpose(1, 0, 2)  # (parts, 3)


class VisualFoodCollector(FoodCollector):
    """State in addition to FoodCollector's, one entry per agent.

    `good_until` and `bad_until`: last ticks in which agents have the color of a good or bad meal. `laser_scale`: length
    of the drawn laser beams.
    """

    behavior = "VisualFoodCollector"
    agents_per_area = 4

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        shape = areas, self.agents_per_area
        self.good_until, self.bad_until = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.laser_scale = np.ones(shape)
        solids = self._solids = Solids(areas, self.agents_per_area * (len(_PARTS) - 1) + len(self.shapes.names) + 1)
        everywhere = slice(None)
        for agent in range(self.agents_per_area):
            for part, color in enumerate(_COLORS):
                solids.color[:, agent * len(_PARTS) + part] = color
        self._things = slice(self.agents_per_area * len(_PARTS), -1)
        for thing in range(self.agents_per_area, len(self.shapes.names)):
            tag = self.shapes.tags[self.shapes.tag[0, thing]]
            color = {"food": LIT_PLUS, "badFood": LIT_EX, "wall": LIT_WALL}[tag]
            radius = 0.0 if tag == "wall" else _FOOD_RADIUS
            half, center = self.shapes.half[:, 0, thing], self.shapes.center[:, 0, thing]
            place = everywhere, self._things.start + thing - self.agents_per_area
            solids.put(place, center, color, half=half, radius=radius)
        solids.put((everywhere, -1), (0, -1, 0), LIT_FLOOR, half=(50, 1, 50))

    def sensors(self) -> list[Sensor]:
        """Return the sensors: a camera, and whether the agent is frozen."""
        return [
            ImageSensor("CameraSensor", (3, _PIXELS, _PIXELS), self._see),
            VectorSensor("VectorSensor_size1", 1, self._observe_frozen),
        ]

    def _observe_frozen(self, rows: Array) -> Array:
        frozen: Array = self.shapes.tag[self._area[rows], self._agent[rows], np.newaxis] == self._tag_of_frozen
        return frozen

    def _start_episode(self, rows: Array) -> None:
        super()._start_episode(rows)
        place = self._area[rows], self._agent[rows]
        self.good_until[place] = self.bad_until[place] = 0
        self.laser_scale[place] = self.academy.parameters.values("laser_length", 1, len(rows))

    def simulate(self) -> None:
        """Move agents and food by a tick; a meal colors its agent for some ticks."""
        before = self.agents.reward.copy()
        super().simulate()
        earned = (self.agents.reward - before).reshape(self.good_until.shape)
        self.good_until[earned > 0] = self.bad_until[earned < 0] = self._tick + _EFFECT_TICKS

    def _see(self, rows: Array) -> Array:
        """Return the camera images of `rows`, uint8 (k, 1, height, width, 3)."""
        self._move_solids()
        images = np.empty((len(rows), _PIXELS, _PIXELS, 3), np.uint8)
        area, agent = self._area[rows], self._agent[rows]
        yaw = self.shapes.yaw[area, agent]
        ahead = _AHEAD * self.scale[area, agent] * np.array([np.sin(yaw), 0 * yaw, np.cos(yaw)])
        position = (self.shapes.center[:, area, agent] + ahead).T
        own = agent[:, np.newaxis] * len(_PARTS) + [0, len(_PARTS)]
        draw(images, area, own, position, about_y(yaw), _ANGLE, _NEAR, self._solids.arrays, _SKY, False)
        return images[:, np.newaxis]

    def _move_solids(self) -> None:
        """Update the solids of all things that move or change."""
        shapes, agents, parts = self.shapes, self.agents_per_area, len(_PARTS)
        solids, moving = self._solids, slice(agents * parts)
        shape = self.areas, agents, parts
        yaw = shapes.yaw[:, :agents, np.newaxis]
        sin, cos = np.sin(yaw), np.cos(yaw)
        scale = np.repeat(self.scale[..., np.newaxis], parts, axis=2)
        length = scale.copy()
        length[:, :, _LASER_PART] *= self.shooting * self.laser_scale
        x, y, z = (_OFFSETS * np.stack([scale, scale, length], axis=-1)).transpose(3, 0, 1, 2)
        center = np.stack([cos * x + sin * z, y, cos * z - sin * x], axis=-1)
        center += shapes.center[:, :, :agents].transpose(1, 2, 0)[:, :, np.newaxis]
        solids.center[:, moving] = center.reshape(self.areas, -1, 3)
        shown = np.ones(shape)
        shown[:, :, _LASER_PART] = self.shooting
        half = _HALVES * np.stack([scale, scale, length], axis=-1) * shown[..., np.newaxis]
        solids.half[:, moving] = half.reshape(self.areas, -1, 3)
        solids.rotation[:, moving] = about_y(np.repeat(yaw, parts, axis=2)).reshape(self.areas, -1, 4)
        color = solids.color[:, moving].reshape(*shape, 3)[:, :, _BODY_PART]
        color[:] = LIT_AGENT
        color[self.good_until > self._tick] = LIT_PLUS
        color[self.bad_until > self._tick] = LIT_EX
        color[shapes.tag[:, :agents] == self._tag_of_frozen] = LIT_WALL
        solids.color[:, np.arange(agents) * parts + _BODY_PART] = color
        solids.center[:, self._things] = shapes.center[:, :, agents:].transpose(1, 2, 0)
