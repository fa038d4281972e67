"""The embedded player, with the number of requested decisions in a file.

python tests/benchmarks/counting_player.py FOLDER SCENE [arguments of the player]

The file, one for each process in the folder, is one int64 in the byte order of the machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from unity_gym.scenes.__main__ import main
from unity_gym.scenes.agents import Agents


class CountedRequests:
    """Replace `Agents.send_requests`, and count its requests."""

    def __init__(self, folder: str) -> None:
        self._count = np.memmap(Path(folder, f"{os.getpid()}.decisions"), np.int64, "w+", shape=(1,))
        self._send = Agents.send_requests

    def __call__(self, agents: Agents) -> None:
        """Count and send."""
        self._count += np.count_nonzero(agents._decision_requested)
        self._send(agents)


if __name__ == "__main__":
    counted = CountedRequests(sys.argv[1])
    Agents.send_requests = lambda self: counted(self)  # type: ignore[method-assign]
    sys.exit(main(sys.argv[2:]))
