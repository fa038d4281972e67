"""Images in perspective: camera images of spheres, capsules and boxes.

    solids = Solids(2)
    solids.put(0, center=(0, -1, 0), half=(50, 1, 50), color=FLOOR, tile=2)
    solids.put(1, center=(0, 1, 0), radius=1, color=BLUE)
    image = photograph(solids, View((0, 3, -8), rotations.euler(15, 0)), height=320, width=480)

Each solid is drawn into a part of the image that contains it: the rectangle around the corners of a box, or around the
bounding sphere of a round solid. The nearest solid is visible. One distant light shades the colors. There are no
reflections; shadows on tiled solids are optional.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from unity_gym.scenes.drawing import BACKGROUND, Color
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.rotations import dot, euler, local_axis, rotate_inverse
from unity_gym.specs import Array

_AMBIENT = 0.6  # share of the brightness without direct light
_SHADOW = 0.75  # share of the brightness in a shadow on tiled ground
_MISSED = 1e30


class Solids:
    """Rounded boxes: spheres (all of `half` is 0), capsules (all but one of `half` is 0) or boxes (`radius` is 0).

    Arrays, one entry per solid: `center` (3, m), `rotation` (x, y, z, w), `half` (3, m: half its extents before
    rounding), `radius` (m), `color` (3, 0 to 255), `tile` (m; if positive, every second tile of this size is darker).
    Solids without a size are not drawn.

    :param shape: Number of solids, or number of scenes and number of solids per scene.
    """

    def __init__(self, *shape: int) -> None:
        self.center = np.zeros((*shape, 3))
        self.rotation = np.zeros((*shape, 4))
        self.rotation[..., 3] = 1
        self.half = np.zeros((*shape, 3))
        self.radius = np.zeros(shape)
        self.color = np.zeros((*shape, 3))
        self.tile = np.zeros(shape)

    def put(
        self,
        index: Any,
        center: tuple[float, float, float] | Array,
        color: Color,
        half: tuple[float, float, float] | Array = (0, 0, 0),
        radius: float = 0,
        rotation: Array | None = None,
        tile: float = 0,
    ) -> None:
        """Set all arrays of one or several solids; `index` is a NumPy index."""
        self.center[index], self.color[index], self.half[index], self.radius[index] = center, color, half, radius
        self.rotation[index] = (0, 0, 0, 1) if rotation is None else rotation
        self.tile[index] = tile

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Arguments of the compiled loops."""
        return self.center, self.rotation, self.half, self.radius, self.color, self.tile


class View(NamedTuple):
    """Position of a camera (3, m), its rotation (x, y, z, w; it looks along z), and its vertical angle in degrees."""

    position: tuple[float, float, float] | Array
    rotation: Array
    angle: float = 50.0
    near: float = 0.1
    """Least visible distance in m."""


def photograph(solids: Solids, view: View, height: int = 320, width: int = 480, sky: Color = BACKGROUND) -> Array:
    """Return a camera image with shadows, uint8 (height, width, 3), row 0 at the top.

    :param solids: Solids to draw.
    :param view: View of the camera.
    :param height: Height of the image in pixels.
    :param width: Width of the image in pixels.
    :param sky: Background color.
    :return: Image of the camera.
    """
    image = np.empty((1, height, width, 3), np.uint8)
    position = np.asarray(view.position, np.float64)[np.newaxis]
    rotation = np.asarray(view.rotation, np.float64)[np.newaxis]
    center, turned, half, radius, color, tile = (array[np.newaxis] for array in solids.arrays)
    arrays = center, turned, half, radius, color, tile
    first, own = np.zeros(1, np.int64), np.zeros((1, 2), np.int64)
    draw(image, first, own, position, rotation, view.angle, view.near, arrays, np.array(sky), True)
    frame: Array = image[0]
    return frame


def follow(position: Array, towards: Array, distance: float, height: float) -> View:
    """Return the view of a camera behind `position` (3).

    The camera looks down and in the horizontal direction of `towards` (3).

    :param position: Position to follow (3), in m.
    :param towards: Direction of the view (3).
    :param distance: Horizontal distance of the camera in m.
    :param height: Height of the camera above `position` in m.
    :return: View of the camera.
    """
    yaw = math.degrees(math.atan2(towards[0], towards[2]))
    pitch = math.degrees(math.atan2(height, distance))
    back = np.array([math.sin(math.radians(yaw)), 0.0, math.cos(math.radians(yaw))]) * distance
    return View(position - back + np.array([0, height, 0]), euler(pitch, yaw))


_LIGHT = np.array([0.542, 0.643, -0.542])  # direction towards the light, as in Unity's scenes


@kernel
def draw(
    images: Array,
    scenes: Array,
    own: Array,
    position: Array,
    rotation: Array,
    angle: float,
    near: float,
    solids: tuple[Array, Array, Array, Array, Array, Array],
    sky: Array,
    shadows: bool,
) -> None:
    """Draw the images of cameras into `images`, uint8 (cameras, height, width, 3).

    :param images: Array that receives the images.
    :param scenes: Scene of each camera, int (cameras).
    :param own: First solid that each camera does not see, and the one after the last, int (cameras, 2).
    :param position: Positions of the cameras in m, (cameras, 3).
    :param rotation: Rotations of the cameras, (cameras, 4).
    :param angle: Vertical angle of all cameras in degrees.
    :param near: Least visible distance in m.
    :param solids: Arrays of `Solids`, each with the scenes as an additional first axis.
    :param sky: Background color, (3).
    :param shadows: Whether solids cast shadows on tiled ones.
    """
    height, width = images.shape[1], images.shape[2]
    scale = 2 * math.tan(math.radians(angle) / 2) / height  # at a distance of 1 m, a pixel's edge in meters
    depth = np.empty((height, width))
    right, up, ahead = np.empty((3, 3))
    own_right, own_up, own_ahead, own_light = np.empty((4, 3))
    local, start, normal, apart = np.empty((4, 3))
    corners = np.empty((8, 3))
    for camera in range(len(images)):
        image, scene = images[camera], scenes[camera]
        center, turned, half, radius = solids[0][scene], solids[1][scene], solids[2][scene], solids[3][scene]
        color, tile = solids[4][scene], solids[5][scene]
        image[:, :, 0], image[:, :, 1], image[:, :, 2] = sky[0], sky[1], sky[2]
        depth[:] = _MISSED
        local_axis(rotation[camera], 0, right)
        local_axis(rotation[camera], 1, up)
        local_axis(rotation[camera], 2, ahead)
        for solid in range(len(center)):
            if own[camera, 0] <= solid < own[camera, 1]:
                continue
            apart[:] = center[solid] - position[camera]
            size = _bounding_radius(half[solid], radius[solid])
            x, y, z = dot(apart, right), dot(apart, up), dot(apart, ahead)
            if size == 0 or z + size < near:
                continue
            # Computations below are in the solid's own frame.
            own_rotation, own_half, own_radius = turned[solid], half[solid], radius[solid]
            rotate_inverse(own_rotation, -apart[0], -apart[1], -apart[2], start)
            rotate_inverse(own_rotation, right[0], right[1], right[2], own_right)
            rotate_inverse(own_rotation, up[0], up[1], up[2], own_up)
            rotate_inverse(own_rotation, ahead[0], ahead[1], ahead[2], own_ahead)
            rotate_inverse(own_rotation, _LIGHT[0], _LIGHT[1], _LIGHT[2], own_light)
            if own_radius == 0:
                for corner in range(8):
                    for k in range(3):
                        local[k] = own_half[k] if corner >> k & 1 else -own_half[k]
                    corners[corner, 0] = x + dot(local, own_right)
                    corners[corner, 1] = y + dot(local, own_up)
                    corners[corner, 2] = z + dot(local, own_ahead)
                leftmost, rightmost, lowest, highest = _box_outline(corners, near)
            else:
                leftmost, rightmost, lowest, highest = _sphere_outline(x, y, z, size, near)
            left, end = _pixels(leftmost / scale, rightmost / scale, width)
            top, bottom = _pixels(-highest / scale, -lowest / scale, height)
            for i in range(top, bottom):
                for j in range(left, end):
                    across, upwards = (j + 0.5 - width / 2) * scale, (height / 2 - i - 0.5) * scale
                    for k in range(3):
                        local[k] = own_ahead[k] + across * own_right[k] + upwards * own_up[k]
                    distance = hit(start, local, own_half, own_radius, near)
                    if distance >= depth[i, j]:
                        continue
                    depth[i, j] = distance
                    brightness = 1.0
                    if tile[solid] > 0:
                        u = math.floor((start[0] + distance * local[0]) / tile[solid])
                        v = math.floor((start[2] + distance * local[2]) / tile[solid])
                        brightness = 1.0 if (u + v) % 2 == 0 else 0.94
                    _write_normal(start, local, own_half, own_radius, distance, normal)
                    brightness *= _AMBIENT + (1 - _AMBIENT) * max(dot(normal, own_light), 0.0) / _LIGHT[1]
                    for k in range(3):
                        image[i, j, k] = min(255.0, brightness * color[solid, k])
        if shadows:
            _shade(image, depth, scale, position[camera], right, up, ahead, center, turned, half, radius, tile)


@inner_kernel
def _box_outline(corners: Array, near: float) -> tuple[float, float, float, float]:
    """Return the least and greatest x / z and y / z of a box, as far as it is at least `near` ahead of the camera.

    Without such a part, the least values are greater than the greatest.

    :param corners: Corners in the frame of the camera in m, (8, 3). The indices of an edge's ends differ in one bit.
    :param near: Least visible distance in m.
    """
    leftmost, rightmost, lowest, highest = _MISSED, -_MISSED, _MISSED, -_MISSED
    for corner in range(8):
        x, y, z = corners[corner, 0], corners[corner, 1], corners[corner, 2]
        for k in range(3):
            other = corner ^ (1 << k)
            share = 0.0  # of the edge, from this corner to the first visible point
            if z < near:
                if corners[other, 2] <= near:
                    continue
                share = (near - z) / (corners[other, 2] - z)
            depth = z + share * (corners[other, 2] - z)
            across = (x + share * (corners[other, 0] - x)) / depth
            upwards = (y + share * (corners[other, 1] - y)) / depth
            leftmost, rightmost = min(leftmost, across), max(rightmost, across)
            lowest, highest = min(lowest, upwards), max(highest, upwards)
    return leftmost, rightmost, lowest, highest


@inner_kernel
def _sphere_outline(x: float, y: float, z: float, size: float, near: float) -> tuple[float, float, float, float]:
    """Return the same of a sphere around (x, y, z), slightly too wide; without limits where it touches the camera."""
    if z <= size + near:
        return -_MISSED, _MISSED, -_MISSED, _MISSED
    reach = size / (z - size)
    horizontal, vertical = reach * (1 + abs(x) / z), reach * (1 + abs(y) / z)
    return x / z - horizontal, x / z + horizontal, y / z - vertical, y / z + vertical


@inner_kernel
def _pixels(low: float, high: float, count: int) -> tuple[int, int]:
    """Return the first of `count` pixels in an interval, and the one after the last; half a pixel more on both sides.

    :param low: Start of the interval in pixels from the middle of the image.
    :param high: End of the interval.
    """
    first, last = low + count / 2 - 1, high + count / 2 + 1
    return int(min(max(first, 0.0), count)), int(min(max(last, 0.0), count))


@kernel
def _shade(
    image: Array,
    depth: Array,
    scale: float,
    position: Array,
    right: Array,
    up: Array,
    ahead: Array,
    center: Array,
    turned: Array,
    half: Array,
    radius: Array,
    tile: Array,
) -> None:
    """Darken the tiled ground where a solid is between it and the light."""
    height, width = depth.shape
    point, start, local, apart = np.empty((4, 3))
    ground = -_MISSED
    for solid in range(len(center)):
        if tile[solid] > 0:
            ground = center[solid, 1] + half[solid, 1]
    for i in range(height):
        for j in range(width):
            if depth[i, j] >= _MISSED:
                continue
            across, upwards = (j + 0.5 - width / 2) * scale, (height / 2 - i - 0.5) * scale
            for k in range(3):
                point[k] = position[k] + depth[i, j] * (ahead[k] + across * right[k] + upwards * up[k])
            if abs(point[1] - ground) > 1e-3:
                continue
            for solid in range(len(center)):
                if tile[solid] > 0:
                    continue
                size = _bounding_radius(half[solid], radius[solid])
                for k in range(3):
                    apart[k] = point[k] - center[solid, k]
                along = dot(apart, _LIGHT)
                if dot(apart, apart) - along * along > size * size:
                    continue
                rotate_inverse(turned[solid], apart[0], apart[1], apart[2], start)
                rotate_inverse(turned[solid], _LIGHT[0], _LIGHT[1], _LIGHT[2], local)
                if hit(start, local, half[solid], radius[solid], 0.0) < _MISSED:
                    for k in range(3):
                        image[i, j, k] = int(_SHADOW * image[i, j, k])
                    break


@inner_kernel
def _bounding_radius(half: Array, radius: float) -> float:
    """Return the radius of the sphere around a rounded box."""
    return math.sqrt(dot(half, half)) + radius


@inner_kernel
def hit(start: Array, ray: Array, half: Array, radius: float, near: float) -> float:
    """Return the multiple of `ray` from `start` to the surface of a rounded box, in its own frame; 1e30 for a miss."""
    if radius == 0:
        return _hit_box(start, ray, half, near)
    longest = 0
    for i in range(1, 3):
        if half[i] > half[longest]:
            longest = i
    length = half[longest]
    if length > 0:
        u, v = (longest + 1) % 3, (longest + 2) % 3
        a = ray[u] * ray[u] + ray[v] * ray[v]
        b = start[u] * ray[u] + start[v] * ray[v]
        root = b * b - a * (start[u] * start[u] + start[v] * start[v] - radius * radius)
        if root <= 0:
            return _MISSED  # the ray misses the infinite cylinder
        if a > 1e-12:
            share: float = (-b - math.sqrt(root)) / a
            if share > near and abs(start[longest] + share * ray[longest]) <= length:
                return share
    nearest: float = _MISSED
    a, b, c = dot(ray, ray), dot(start, ray), dot(start, start) - radius * radius
    for sign in (-1.0, 1.0):  # the round ends; twice the same for a sphere
        offset = sign * length
        end_b = b - offset * ray[longest]
        root = end_b * end_b - a * (c - 2 * offset * start[longest] + offset * offset)
        if root > 0:
            share = (-end_b - math.sqrt(root)) / a
            if near < share < nearest:
                nearest = share
    return nearest


@inner_kernel
def _hit_box(start: Array, ray: Array, half: Array, near: float) -> float:
    enter, leave = near, _MISSED
    for step in range(3):
        i = (step + 1) % 3  # height first: half of all rays miss the ground there
        if abs(ray[i]) < 1e-12:
            if abs(start[i]) > half[i]:
                return _MISSED
            continue
        inverse = 1 / ray[i]
        middle, reach = -start[i] * inverse, abs(half[i] * inverse)
        enter, leave = max(enter, middle - reach), min(leave, middle + reach)
        if enter > leave:
            return _MISSED
    return enter if enter > near else _MISSED  # a camera inside does not see the faces from behind


@inner_kernel
def _write_normal(start: Array, ray: Array, half: Array, radius: float, share: float, normal: Array) -> None:
    """Write the outward normal (3) where a ray hits a rounded box."""
    face, highest = 0, -_MISSED
    for i in range(3):
        place = start[i] + share * ray[i]
        if radius > 0:
            normal[i] = (place - min(max(place, -half[i]), half[i])) / radius
        else:
            normal[i] = 0.0
            if abs(place) - half[i] > highest:
                face, highest = i, abs(place) - half[i]
    if radius == 0:
        normal[face] = 1.0 if start[face] + share * ray[face] > 0 else -1.0
