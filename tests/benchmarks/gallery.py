"""Draw one image of every embedded scene, or of some, and tile them.

    python tests/benchmarks/gallery.py [SCENE ...] [--policies FOLDER]

Each image is the first training area after some decisions, those of a scene with a policy from the middle of an
episode. `FOLDER` is searched, with its subfolders, for the exported policies of the behaviors (`Worm.onnx`), as
`unity-learn` leaves them in its results folder. Without one, a behavior acts at random, and the title says so.

The images are kept in `docs/images/scenes`, so that scenes whose policies are trained at different times can be drawn
at different times; `docs/images/scenes.png` has all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image

from sb3_ext import OnnxPolicy
from unity_gym.environment import UnityEnvironment
from unity_gym.registration import SCENES
from unity_gym.side_channels import RenderingChannel
from unity_gym.specs import ActionTuple, Array, BehaviorSpec, DecisionSteps

mpl.use("Agg")
import matplotlib.pyplot as plt

_IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images" / "scenes"
_STEPS_AT_RANDOM = 25
_STEPS_OF_A_POLICY = 60
_COLUMNS = 6
_TWINS = {"Match3Vector", "Match3Visual", "PushBlockWithInput", "3DBallHard"}  # they look like another scene


class _Actor:
    """A behavior's policy, with the recurrent state of each agent, or random actions."""

    def __init__(self, spec: BehaviorSpec, file: Path | None) -> None:
        self._spec = spec
        self._policy = OnnxPolicy(file, spec=spec, seed=1) if file else None
        self._memories: dict[int, Array] = {}
        self._rng = np.random.default_rng(1)

    def act(self, decisions: DecisionSteps, ended: Array) -> ActionTuple:
        """Return the actions of the agents that request a decision; the recurrent state of `ended` agents is reset."""
        if self._policy is None:
            return self._spec.action_spec.random_action(len(decisions), self._rng)
        masks = np.ones((len(decisions), sum(self._spec.action_spec.discrete_branches)), bool)
        if decisions.action_mask:
            masks = ~np.concatenate(decisions.action_mask, axis=1)
        for agent in ended.tolist():
            self._memories.pop(agent, None)
        start = np.zeros(self._policy.memory_size, np.float32)
        memory = np.array([self._memories.get(agent, start) for agent in decisions.agent_id.tolist()])
        actions, memory = self._policy.select_actions(decisions.obs, masks, memory, deterministic=False)
        self._memories.update(zip(decisions.agent_id.tolist(), memory, strict=True))
        return actions


def image(scene: str, policies: Path | None) -> tuple[Array, bool]:
    """Return the first area of a scene, uint8 (height, width, 3), and whether policies acted in it."""
    channel = RenderingChannel()
    with UnityEnvironment(
        f"embedded:{scene}",
        seed=1,
        side_channels=[channel],
        additional_args=["--areas", "1"],
        visual_dtype="uint8",
    ) as env:
        env.reset()
        files = {name: _policy_file(policies, name.split("?")[0]) for name in env.behavior_specs}
        actors = {name: _Actor(spec, files[name]) for name, spec in env.behavior_specs.items()}
        is_trained = all(files.values())
        for _ in range(_STEPS_OF_A_POLICY if is_trained else _STEPS_AT_RANDOM):
            for name, actor in actors.items():
                decisions, terminals = env.get_steps(name)
                if len(decisions):
                    env.set_actions(name, actor.act(decisions, terminals.agent_id))
            env.step()
        channel.draw(1)
        env.step()
    return channel.frames[0], is_trained


def _policy_file(folder: Path | None, behavior: str) -> Path | None:
    """Return the newest exported policy of a behavior, None without one."""
    files = folder.rglob(f"{behavior}.onnx") if folder else ()
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def tile(folder: Path, output: Path) -> None:
    """Draw all images of a folder, with their titles, in one."""
    files = sorted(folder.glob("*.png"))
    rows = -(-len(files) // _COLUMNS)
    figure, places = plt.subplots(rows, _COLUMNS, figsize=(2 * _COLUMNS, 2.2 * rows), layout="constrained")
    for axes in places.flat:
        axes.axis("off")
    for file, axes in zip(files, places.flat, strict=False):
        with Image.open(file) as drawn:
            axes.imshow(np.asarray(drawn.convert("RGB")))
            axes.set_title(drawn.info["Title"], fontsize=8)
    figure.savefig(output, dpi=80)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", default=[scene for scene in SCENES if scene not in _TWINS])
    parser.add_argument("--policies", type=Path, help="folder that contains exported policies (default: none)")
    arguments = parser.parse_args()
    _IMAGES.mkdir(exist_ok=True)
    for scene in arguments.scenes:
        frame, is_trained = image(scene, arguments.policies)
        title = scene if is_trained else f"{scene} (random)"
        plt.imsave(_IMAGES / f"{scene}.png", frame, metadata={"Title": title})
    tile(_IMAGES, _IMAGES.with_suffix(".png"))


if __name__ == "__main__":
    main()
