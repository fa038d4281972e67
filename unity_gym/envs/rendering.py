"""The images that environments return from `render()` or show in a window."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from unity_gym.envs.window import Window
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.pool import PlayerPool
from unity_gym.slots import AgentTable
from unity_gym.specs import Array

_MODES = ("rgb_array", "human")
RENDER_FPS = 10  # most of Unity's scenes request a decision every 0.1 s


def rendering_metadata() -> dict[str, Any]:
    """Return the entries of an environment's `metadata` about rendering; each call makes a new dict."""
    return {"render_modes": list(_MODES), "render_fps": RENDER_FPS}


def open_window(render_mode: str | None, title: str) -> Window | None:
    """Return the window that `render_mode` needs.

    :raises InvalidValueError: If the mode is not None, "rgb_array" or "human".
    :raises UnityGymError: If a window is needed and there is no display.
    """
    if render_mode not in (None, *_MODES):
        raise InvalidValueError(f"render_mode must be one of {list(_MODES)} or None, got {render_mode!r}")
    return Window(title, RENDER_FPS) if render_mode == "human" else None


def returns_image(render_mode: str | None) -> bool:
    """Return whether `render()` returns an image; warn, as Gymnasium's environments do, if there is no mode."""
    if render_mode is None:
        gym.logger.warn(
            "render() returns None because the environment has no render_mode: pass render_mode='rgb_array' or 'human' "
            "when creating it"
        )
    return render_mode == "rgb_array"


def render_frames(pool: PlayerPool, table: AgentTable, ended: bool = False) -> tuple[Array, ...]:
    """Return one image of the present state per row of the table, uint8 (height, width, 3).

    The embedded player draws its areas, and agents of one area share the image. Of a build, it is the image of the
    first camera among the agent's sensors. The image of a row that has had no agent is black.

    :param pool: Players that were launched with a number of areas to draw.
    :param ended: Whether to return the last state of the ended episode instead, for the first row.
    :raises UnityGymError: If the player draws nothing and the agents have no camera.
    :raises PlayerError: If a player fails.
    :raises NotReadyError: If the environment is closed, or a step was interrupted.
    """
    if not ended:
        pool.draw()
    frames: list[Array | None] = [None] * len(table)
    for worker, channel in pool.rendering.items():
        rows = np.flatnonzero(table.player == worker)
        images = channel.frames | ({0: channel.last_end} if ended and channel.last_end is not None else {})
        if images:
            for agent, row in enumerate(rows):
                frames[row] = images[agent * len(images) // len(rows)]
            for row in np.flatnonzero(table.player < 0):
                frames[row] = np.zeros_like(images[0])
    return tuple(frame if frame is not None else _camera_image(table, row, ended) for row, frame in enumerate(frames))


def _camera_image(table: AgentTable, row: int, ended: bool) -> Array:
    arrays = table.final_observations if ended else table.observations
    for sensor, array in zip(table.spec.observation_specs, arrays, strict=True):
        if sensor.is_visual and sensor.shape[0] in (1, 3):
            image = array[row]
            if image.dtype != np.uint8:
                image = np.rint(255 * image).astype(np.uint8)
            colored = np.broadcast_to(image, (3, *image.shape[1:]))
            return np.ascontiguousarray(colored.transpose(1, 2, 0))
    names = [sensor.name for sensor in table.spec.observation_specs]
    raise UnityGymError(
        f"there is nothing to render: the player draws no images, as only the embedded one does, and none of the "
        f"sensors {names} is a camera. Give the agent a camera sensor, or leave render_mode at None"
    )


def tiled(frames: tuple[Array, ...]) -> Array:
    """Return images of one size side by side, uint8, in about as many rows as columns; gaps are black."""
    height, width, _ = frames[0].shape
    columns = int(np.ceil(np.sqrt(len(frames))))
    rows = -(-len(frames) // columns)
    tiled = np.zeros((rows, height, columns, width, 3), np.uint8)
    for index, frame in enumerate(frames):
        tiled[index // columns, :, index % columns] = frame
    return tiled.reshape(rows * height, columns * width, 3)
