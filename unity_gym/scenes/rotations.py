"""Compiled arithmetic of vectors (3) and quaternions (x, y, z, w).

Products are computed by components, so that the formulas hold in Unity's left-handed axes and in right-handed ones.
The sign of a quaternion is not normalized, because observations contain it.
"""

from __future__ import annotations

import math

import numpy as np

from unity_gym.scenes.kernels import inner_kernel
from unity_gym.specs import Array


@inner_kernel
def dot(a: Array, b: Array) -> float:
    """Return the scalar product of two vectors (3)."""
    product: float = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


@inner_kernel
def multiply(a: Array, b: Array, out: Array) -> None:
    """Write the quaternion product a · b (first b, then a) into `out`, which may be neither of them."""
    out[0] = a[3] * b[0] + a[0] * b[3] + a[1] * b[2] - a[2] * b[1]
    out[1] = a[3] * b[1] + a[1] * b[3] + a[2] * b[0] - a[0] * b[2]
    out[2] = a[3] * b[2] + a[2] * b[3] + a[0] * b[1] - a[1] * b[0]
    out[3] = a[3] * b[3] - a[0] * b[0] - a[1] * b[1] - a[2] * b[2]


@inner_kernel
def multiply_inverse(a: Array, b: Array, out: Array) -> None:
    """Write a⁻¹ · b, the rotation b relative to a, into `out`, which may be neither of them."""
    out[0] = a[3] * b[0] - a[0] * b[3] - a[1] * b[2] + a[2] * b[1]
    out[1] = a[3] * b[1] - a[1] * b[3] - a[2] * b[0] + a[0] * b[2]
    out[2] = a[3] * b[2] - a[2] * b[3] - a[0] * b[1] + a[1] * b[0]
    out[3] = a[3] * b[3] + a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@inner_kernel
def rotate(q: Array, x: float, y: float, z: float, out: Array) -> None:
    """Write the vector (x, y, z), rotated by q, into `out`."""
    tx = 2 * (q[1] * z - q[2] * y)
    ty = 2 * (q[2] * x - q[0] * z)
    tz = 2 * (q[0] * y - q[1] * x)
    out[0] = x + q[3] * tx + q[1] * tz - q[2] * ty
    out[1] = y + q[3] * ty + q[2] * tx - q[0] * tz
    out[2] = z + q[3] * tz + q[0] * ty - q[1] * tx


@inner_kernel
def rotate_inverse(q: Array, x: float, y: float, z: float, out: Array) -> None:
    """Write the vector (x, y, z), rotated by q⁻¹, into `out`."""
    tx = 2 * (q[2] * y - q[1] * z)
    ty = 2 * (q[0] * z - q[2] * x)
    tz = 2 * (q[1] * x - q[0] * y)
    out[0] = x + q[3] * tx - q[1] * tz + q[2] * ty
    out[1] = y + q[3] * ty - q[2] * tx + q[0] * tz
    out[2] = z + q[3] * tz - q[0] * ty + q[1] * tx


@inner_kernel
def local_axis(q: Array, index: int, out: Array) -> None:
    """Write the axis x (0), y (1) or z (2) of a frame that is rotated by q into `out`."""
    out[:] = 0.0
    out[index] = 1.0
    rotate(q, out[0], out[1], out[2], out)


@inner_kernel
def from_to(a: Array, b: Array, out: Array) -> None:
    """Write the shortest rotation from the unit vector a to the unit vector b into `out`."""
    cosine = dot(a, b)
    if cosine < -1 + 1e-9:  # half a turn, about an axis perpendicular to a
        length = math.hypot(a[1], a[2])
        if length > 1e-6:
            out[0], out[1], out[2], out[3] = 0.0, -a[2] / length, a[1] / length, 0.0
        else:
            out[0], out[1], out[2], out[3] = 0.0, 1.0, 0.0, 0.0
        return
    out[0] = a[1] * b[2] - a[2] * b[1]
    out[1] = a[2] * b[0] - a[0] * b[2]
    out[2] = a[0] * b[1] - a[1] * b[0]
    out[3] = 1 + cosine
    out /= math.sqrt(out[0] ** 2 + out[1] ** 2 + out[2] ** 2 + out[3] ** 2)


def about_y(yaw: Array) -> Array:
    """Return the rotations (…, 4) by the angles `yaw` (…) in radians about y; w is negative between 180° and 360°."""
    rotation = np.zeros((*np.shape(yaw), 4))
    rotation[..., 1], rotation[..., 3] = np.sin(np.asarray(yaw) / 2), np.cos(np.asarray(yaw) / 2)
    return rotation


def euler(x: float, y: float) -> Array:
    """Return the rotation (4) by angles in degrees about x, then y, like Unity's `Quaternion.Euler`."""
    rotation = np.array([0.0, 0.0, 0.0, 1.0])
    for axis, angle in ((1, y), (0, x)):
        turn = np.array([0.0, 0.0, 0.0, np.cos(np.radians(angle) / 2)])
        turn[axis] = np.sin(np.radians(angle) / 2)
        product = np.empty(4)
        multiply(rotation, turn, product)
        rotation = product
    return rotation
