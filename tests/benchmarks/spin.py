"""How fast the parts of Crawler, Worm and Walker turn while their joints act at random.

python tests/benchmarks/spin.py

Unity limits a part to 50 rad/s, the embedded scenes do not. 20 bodies of each kind take random actions of 5 ticks
and are reset after every 100 of them. The shares count each part in each tick.
"""

from __future__ import annotations

import argparse

import numpy as np

from unity_gym.scenes import SCENES, scene_class
from unity_gym.scenes.articulated.physics import ArticulatedBodies
from unity_gym.scenes.articulated.scene import PERIOD, ArticulatedScene
from unity_gym.scenes.rotations import about_y
from unity_gym.specs import Array

BODIES, EPISODE = 20, 100
LIMIT = 50.0  # rad/s


def speeds(scene: type[ArticulatedScene], actions: int) -> Array:
    """Return the angular speeds of all parts during ``actions`` random actions in rad/s, (ticks, bodies, parts)."""
    skeleton, rows, rng = scene.skeleton, np.arange(BODIES), np.random.default_rng(0)
    bodies = ArticulatedBodies(skeleton, BODIES, PERIOD)
    low, high = np.radians([[hinge.low, hinge.high] for hinge in skeleton.hinges]).T
    found = []
    for action in range(actions):
        if action % EPISODE == 0:
            bodies.put(rows, np.array(scene.start), about_y(rng.uniform(0, 2 * np.pi, BODIES)))
        bodies.drive(rows, rng.uniform(low, high, (BODIES, len(low))), rng.random((BODIES, len(low))))
        for left in range(PERIOD, 0, -1):
            bodies.step(left)
            found.append(np.linalg.norm(bodies.angular_velocity, axis=-1))
    return np.array(found)


def main() -> None:
    """Print the greatest speed and the share above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=1000, help="random actions of each body (default: %(default)s)")
    options = parser.parse_args()
    for name in SCENES:
        scene = scene_class(name)
        if issubclass(scene, ArticulatedScene):
            found = speeds(scene, options.actions)
            print(f"{name}: at most {found.max():.1f} rad/s; {(found > LIMIT).mean():.1e} above {LIMIT:g} rad/s")


if __name__ == "__main__":
    main()
