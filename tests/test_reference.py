"""The reference in docs/ agrees with the code."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import unity_gym
from sb3_ext import UnityVecEnv
from stand_ins import changing_agents_player

ROOT = Path(__file__).resolve().parents[1]


def test_the_generated_pages_agree_with_the_code() -> None:
    for name, text in runpy.run_path(str(ROOT / "scripts" / "reference.py"))["pages"]().items():
        stored = (ROOT / "docs" / "reference" / name).read_text()
        assert stored == text, f"docs/reference/{name} differs from the code: run python scripts/reference.py"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} == listed


def documented() -> dict[str, set[str]]:
    """Return the keys of `info` by environment, from the table of the page."""
    text = (ROOT / "docs" / "reference" / "info.md").read_text()
    head, _, *rows = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in rows]
    return {name.strip(): {row[0].strip("`") for row in rows if row[i]} for i, name in enumerate(head) if i}


def keys(infos: Iterable[Mapping[str, Any]]) -> set[str]:
    return {key for info in infos for key in info if not key.startswith("_")}


def test_the_page_of_info_keys_lists_those_of_the_environments(tmp_path: Path) -> None:
    file_name = changing_agents_player.launcher(tmp_path)
    steps = range(12)  # an episode has 8

    with gym.make("Unity-Basic-v0") as env:
        single = [env.reset(seed=1)[1], env.step(0)[4]]
    options: dict[str, Any] = {"file_name": file_name, "behavior": "Striker", "wait_for": "any"}
    envs = gym.make_vec("Unity-v0", num_envs=4, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    vector = [envs.reset()[1], *(envs.step(np.zeros_like(envs.action_space.sample()))[4] for _ in steps)]
    envs.close()
    game = unity_gym.parallel_env("Unity-v0", **options)
    parallel = [*game.reset()[1].values()]
    for _ in range(3):
        agents = game.requesting_agents()
        parallel += game.step({agent: np.zeros_like(game.action_space(agent).sample()) for agent in agents})[4].values()
    game.close()
    vec_env = UnityVecEnv("Unity-v0", num_envs=4, **options)
    vec_env.reset()
    zeros = np.zeros_like([vec_env.action_space.sample() for _ in range(4)])
    stepped = [info for _ in steps for info in vec_env.step(zeros)[3]]
    vec_env.close()

    page = documented()
    for name, infos in (("Gymnasium", single), ("vector", vector), ("PettingZoo", parallel), ("VecEnv", stepped)):
        assert keys(infos) <= page[name], name
        # no scene here sends statistics, and the single agent has no group
        assert page[name] - keys(infos) <= ({"stats", "group_reward"} if name == "Gymnasium" else {"stats"}), name
