"""Words that code, docs and messages avoid, each with the term that they use instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("unity_gym", "sb3_ext", "docs", "notebooks", "configs", "examples", "scripts")
SUFFIXES = (".py", ".md", ".ipynb", ".yaml", ".sh")

BANNED = {
    r"afresh|anew": "from scratch, again",
    r"agent-steps?": "timesteps",
    r"begins?|began|begun|beginnings?": "start",
    r"beside": "in addition to, next to",
    r"but for|in place of": "except for, instead of",
    r"farewell": "quit message",
    r"likeliest": "most likely",
    r"mend(s|ed|ing)?": "correct",
    r"nobody|somebody": "no player, no agent, an agent",
    r"pictures?": "image, frame",
    r"recordings|(a|an|each|loaded|no|such|the) recording": "demonstration",
    r"refus(e|es|ed|ing|al)": "raise, reject",
    r"\w*(normali|optimi|maximi|minimi|initiali|seriali|organi|recogni)s(e[drs]?|ing|ation|ations|ers)": "-ize",
    r"behaviour\w*|cent(re|res|red)|colour\w*|(kilo|centi|milli)?metres?|grey|neighbour\w*": "American spelling",
}


def lines() -> Iterator[tuple[Path, int, str]]:
    """Yield path, number and text of each line."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    for path in [ROOT / "README.md", *files]:
        if "__pycache__" not in path.parts and ".ipynb_checkpoints" not in path.parts:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) < 2000:  # stored images of notebooks
                    yield path.relative_to(ROOT), number, line


@pytest.mark.parametrize(("word", "instead"), BANNED.items(), ids=list(BANNED.values()))
def test_a_banned_word_does_not_occur(word: str, instead: str) -> None:
    pattern = re.compile(rf"\b({word})\b", re.IGNORECASE)
    found = [f"{path}:{number}: {line.strip()[:100]}" for path, number, line in lines() if pattern.search(line)]
    assert not found, f"write {instead}:\n" + "\n".join(found)


def test_the_check_finds_a_word_in_any_case() -> None:
    patterns = [re.compile(rf"\b({word})\b", re.IGNORECASE) for word in BANNED]
    for line in ("Refused: no action", "the Behaviour's name", "an optimiser", "30,000 agent-steps"):
        assert any(pattern.search(line) for pattern in patterns), line
