"""The embedded player: Unity's example scenes, rebuilt in NumPy and numba, in a process with Unity's wire protocol.

    python -m unity_gym.scenes 3DBall --mlagents-port 5005 [--areas N] [-logFile FILE] [-nographics] [-batchmode]

Any ML-Agents client that listens on the port can control it. The modules:

- `__main__.py` reads the command line and runs scenes until the client ends the connection.
- `communicator.py` connects to the client and handles the side channels and the environment parameters.
- `academy.py` defines the order of one tick (0.02 s of the scene), `agents.py` the arrays of all agents of one kind.
- `sensors/` computes observations from the state of a scene; `messages.py` encodes and decodes the arrays.
- `kernels.py` compiles the loops over areas and agents and caches their machine code.
- `shapes.py` holds the solid things that rays hit, `bodies.py` moves them, and `drawing.py` makes images.
- `heap.py` moves heaps of light boxes, `pitch.py` players and a ball, `movement.py` agents that are cubes.
- `articulated/` moves bodies with limbs by MuJoCo; `rotations.py` holds the arithmetic of quaternions.
- `perspective.py` renders camera images in perspective.
- `scene.py` is the interface of a scene; one file per scene implements it for all areas at once.

To add a scene, write the class in a file of its own and add it to `SCENES`. `basic.py` is the smallest example,
`three_d_ball.py` one with physics, and `push_block.py` one with rays and bodies. `agents.py` lists the operations on
agents. No code outside this folder imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from unity_gym.errors import InvalidValueError, PlayerError

if TYPE_CHECKING:
    from unity_gym.scenes.scene import Scene

SCENES = {
    "3DBall": "three_d_ball:ThreeDBall",
    "3DBallHard": "three_d_ball:ThreeDBallHard",
    "Basic": "basic:Basic",
    "CooperativePushBlock": "cooperative_push_block:CooperativePushBlock",
    "Crawler": "crawler:Crawler",
    "DungeonEscape": "dungeon_escape:DungeonEscape",
    "FoodCollector": "food_collector:FoodCollector",
    "GridWorld": "grid_world:GridWorld",
    "Hallway": "hallway:Hallway",
    "Match3": "match3:Match3",
    "Match3Vector": "match3:Match3Vector",
    "Match3Visual": "match3:Match3Visual",
    "PushBlock": "push_block:PushBlock",
    "PushBlockWithInput": "push_block:PushBlockWithInput",
    "Pyramids": "pyramids:Pyramids",
    "SoccerTwos": "soccer:SoccerTwos",
    "Sorter": "sorter:Sorter",
    "StrikersVsGoalie": "soccer:StrikersVsGoalie",
    "VisualFoodCollector": "visual_food_collector:VisualFoodCollector",
    "Walker": "walker:Walker",
    "WallJump": "wall_jump:WallJump",
    "Worm": "worm:Worm",
}
"""Module and class by scene name; the module of a scene is imported only when the scene is loaded."""


def scene_class(name: str) -> type[Scene]:
    """Return the class of a scene.

    :param name: Name in `SCENES`, or "module:class" for a scene that is defined elsewhere.
    :return: Subclass of `Scene`.
    :raises InvalidValueError: If there is no such scene.
    :raises PlayerError: If a package that the scene needs is not installed.
    """
    if name in SCENES:
        module, _, attribute = f"{__name__}.{SCENES[name]}".partition(":")
    else:
        module, _, attribute = name.partition(":")
        if not attribute:
            raise InvalidValueError(
                f"There is no embedded scene {name!r}: name one of {', '.join(sorted(SCENES))}, or MODULE:CLASS for a "
                "scene of your own."
            )
    try:
        found: type[Scene] = getattr(import_module(module), attribute)
    except AttributeError as error:
        raise InvalidValueError(f"The module {module} has no class {attribute}; it was named by {name!r}.") from error
    except ModuleNotFoundError as error:
        if error.name == module:
            raise InvalidValueError(
                f"There is no module {module}, which {name!r} names: start Python in its folder, or add the folder to "
                "PYTHONPATH."
            ) from error
        raise PlayerError(
            f"The scene {name} needs the package {error.name}, which is not installed: "
            "install it. What Unity's scenes need comes with pip install 'unity-gym[scenes]'."
        ) from error
    return found
