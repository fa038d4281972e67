"""The window of `render_mode="human"`."""

from __future__ import annotations

import time

import numpy as np

from unity_gym.errors import UnityGymError
from unity_gym.specs import Array

_LEAST_WIDTH = 320  # pixels; smaller images, such as those of cameras, are enlarged by a whole number


class Window:
    """Window that shows images one after the other, no faster than in the scene. Closing it hides later ones.

    :param title: Title of the window.
    :param fps: Number of images per second.
    :raises UnityGymError: If this Python has no tkinter, or there is no display.
    """

    def __init__(self, title: str, fps: float) -> None:
        try:
            import tkinter  # optional in Linux distributions, and sometimes missing elsewhere
        except ImportError as error:
            raise UnityGymError(
                f"render_mode='human' opens a window with tkinter, which this Python lacks ({error}): install it "
                "(Debian, Ubuntu: python3-tk), or use render_mode='rgb_array'"
            ) from error
        try:
            self._root = tkinter.Tk()
        except tkinter.TclError as error:
            raise UnityGymError(
                f"render_mode='human' opens a window and there is no display ({error}): run with one (xvfb-run makes a "
                "virtual one), or use render_mode='rgb_array'"
            ) from error
        self._root.title(title)
        self._label = tkinter.Label(self._root)
        self._label.pack()
        self._image = tkinter.PhotoImage(master=self._root)
        self._root.protocol("WM_DELETE_WINDOW", self.close)
        self._open = True
        self._period = 1 / fps
        self._due = time.monotonic()

    def show(self, image: Array) -> None:
        """Show an image, uint8 (height, width, 3), after the previous one has been shown for its period."""
        if not self._open:
            return
        factor = -(-_LEAST_WIDTH // image.shape[1])
        if factor > 1:
            image = image.repeat(factor, axis=0).repeat(factor, axis=1)
        height, width, _ = image.shape
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due, time.monotonic() - self._period) + self._period
        # PPM, a format that Tk reads without further libraries
        self._image.configure(data=b"P6 %d %d 255\n" % (width, height) + np.ascontiguousarray(image).tobytes())
        self._label.configure(image=self._image)
        self._root.update()

    def close(self) -> None:
        """Close the window. Can be called any number of times."""
        if self._open:
            self._open = False
            self._root.destroy()
