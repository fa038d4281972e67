"""A scene whose state a test can inspect: it runs in a thread of the test's process and uses real messages.

Between steps the scene's thread waits, so that the test may read and change its state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stand_ins.ports import free_port, listens
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.communicator import Communicator, Quit
from unity_gym.scenes.scene import Scene
from unity_gym.side_channels import SideChannel


@contextmanager
def held_scene(
    scene_type: type[Scene], areas: int = 1, seed: int = 1, side_channels: tuple[SideChannel, ...] = ()
) -> Iterator[tuple[UnityEnvironment, Scene]]:
    """A client after its first reset, and its scene."""
    port = free_port()
    held: list[Scene] = []

    def play() -> None:
        while not listens(port):  # gRPC waits a second after an attempt that failed
            time.sleep(0.01)
        communicator = Communicator(port)
        try:
            communicator.connect()
            academy = Academy(communicator, seed)
            held.append(scene_type(academy, areas))
            while True:
                academy.tick(held[0])
        except Quit:
            communicator.close()

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    env = UnityEnvironment(None, base_port=port, timeout_wait=60, visual_dtype="uint8", side_channels=side_channels)
    try:
        env.reset()
        yield env, held[0]
    finally:
        env.close()
        thread.join(30)
