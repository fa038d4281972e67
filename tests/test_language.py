"""Words that code, tests, docs and messages avoid, each with the term that they use instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("unity_gym", "sb3_ext", "docs", "notebooks", "configs", "examples", "scripts", "tests")
SUFFIXES = (".py", ".md", ".ipynb", ".yaml", ".sh")

BANNED = {
    r"afresh|anew": "from scratch, again",
    r"agent-steps?": "timesteps",
    r"begins?|began|begun|beginnings?": "start",
    r"beside": "in addition to, next to",
    r"but for|in place of": "except for, instead of",
    r"farewell": "quit message",
    r"goes on|go on|going on|went on": "continue, resume",
    r"hangs? up|never_dials?|dial(s|ed|ing)|dial_again": "connect, disconnect",
    r"is_an_error|are_an_error": "raises, raise",
    r"is_told|are_told|told": "is reported, received",
    r"likeliest": "most likely",
    r"mend(s|ed|ing)?": "correct",
    r"nobody|somebody": "no player, no agent, an agent",
    r"pictures?": "image, frame",
    r"recordings|(a|an|each|loaded|no|such|the) recording": "demonstration",
    r"refus(e|es|ed|ing|als?)": "raise, reject",
    r"remembers?|remembered": "store, recall",
    r"rogues?": "faulty player",
    r"\w*(normali|optimi|maximi|minimi|initiali|seriali|organi|recogni)s(e[drs]?|ing|ation|ations|ers)": "-ize",
    r"behaviour\w*|cent(re|res|red)|colour\w*|(kilo|centi|milli)?metres?|grey|neighbour\w*": "American spelling",
}

# Lines that need a banned word: tests of misspelled input, and a message of the operating system.
ALLOWED_LINES = (
    '("behaviour: {Ball: {}}", 1,',
    '"normalise: true"',
    'pytest.raises(OSError, match="refused")',
)
HERE = Path(__file__)  # contains the words themselves


def pattern_of(words: str) -> re.Pattern[str]:
    """Return the pattern of some words, which also finds them in names with underscores."""
    return re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])", re.IGNORECASE)


# Words that are no part of the names of functions, classes, arguments, attributes and variables in the packages.
BANNED_NAMES = {
    "afresh anew begin begins begun": "start, restart",
    "beside": "next_to",
    "column columns": "array, tensor, dimension, position; of the environment's spaces: adapter",
    "dead dying gone": "inactive, removed, has_ended",
    "decided goes told tell tells say says know knows known": "requests_decision, continues, results, status, allowed",
    "deviation deviations likeliest": "std, mode",
    "everybody everyone nobody somebody who whom whose which": "all_agents, indices, or the noun",
    "forget forgets forgot remember remembers": "reset, clear, store, update_memory",
    "game games guest guests lineup": "match, context, matchup",
    "mine ours theirs wanted": "expected, actual, or the noun",
    "picture pictures recording": "frame, image, demonstration",
    "passes": "epochs",
    "refuse refused refusal": "reject, rejection",
    "slot slots": "row",
}
ALLOWED_NAMES = {
    # columns of matrices, grids, boards, images and tables
    "sb3_ext/mlagents_checkpoint.py": {"columns", "goal_columns"},
    "sb3_ext/sweep.py": {"_COLUMNS", "column"},
    "unity_gym/envs/rendering.py": {"columns"},
    "unity_gym/scenes": {"column", "columns", "_columns", "COLUMNS", "_TILE_COLUMNS"},
    # the name in gym_unity
    "unity_gym/compat/gym_wrapper.py": {"game_over"},
    # whether a teacher records
    "sb3_ext/teacher.py": {"is_recording"},
}

BANNED_MESSAGES = {
    r"; got\b": ", got",
    r"\b(is|are) at least\b.*\bgot\b": "must be at least",
    r"\bis (one of|None,|'\w+'(,| or)).*, not \{": "must be ..., got ...",
    r"\b(knows?|remembers?|forgets?|says?|speaks?|tells?|told|wants?)\b": "a verb of what happens",
    r"\b(who|whom|nobody|somebody)\b": "the agent, no player",
    r"\b(hung up|hangs? up|goes? on|going on)\b": "disconnect, continue",
}


@cache
def lines() -> list[tuple[Path, int, str]]:
    """Return path, number and text of each line."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [
        (path.relative_to(ROOT), number, line)
        for path in [ROOT / "README.md", *files]
        if path != HERE and "__pycache__" not in path.parts and ".ipynb_checkpoints" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) < 2000 and not any(part in line for part in ALLOWED_LINES)  # longer: stored images of notebooks
    ]


@pytest.mark.parametrize(("word", "instead"), BANNED.items(), ids=list(BANNED.values()))
def test_a_banned_word_does_not_occur(word: str, instead: str) -> None:
    pattern = pattern_of(word)
    found = [f"{path}:{number}: {line.strip()[:100]}" for path, number, line in lines() if pattern.search(line)]
    assert not found, f"write {instead}:\n" + "\n".join(found)


def test_the_check_finds_a_word_in_any_case_and_in_names() -> None:
    patterns = [pattern_of(word) for word in BANNED]
    for line in ("Refused: no action", "the Behaviour's name", "an optimiser", "def test_a_port_is_refused(", "`told`"):
        assert any(pattern.search(line) for pattern in patterns), line


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Return path and syntax tree of each module of the packages."""
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for folder in ("unity_gym", "sb3_ext")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a module defines or assigns; names of other libraries are only read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words_of(name: str) -> set[str]:
    """Return the words of a name such as `snake_case`, `CamelCase` or `CAPITALS`."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the strings in `raise` statements and in calls that warn or log."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if isinstance(node, ast.Raise) or name in ("warn", "warning", "info", "error", "report", "rejection", "_error"):
            for part in ast.walk(node):
                if isinstance(part, ast.JoinedStr):
                    yield part.lineno, "".join(x.value if isinstance(x, ast.Constant) else "{}" for x in part.values)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_no_name_contains_a_banned_word() -> None:
    banned = {word: instead for words, instead in BANNED_NAMES.items() for word in words.split()}
    found = []
    for path, tree in modules():
        allowed = set().union(*(names for prefix, names in ALLOWED_NAMES.items() if path.startswith(prefix)))
        for line, name in defined_names(tree):
            if name not in allowed:
                found += [f"{path}:{line}: {name}: write {banned[word]}" for word in words_of(name) & banned.keys()]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("pattern", "instead"), BANNED_MESSAGES.items(), ids=list(BANNED_MESSAGES.values()))
def test_no_message_contains_a_banned_phrase(pattern: str, instead: str) -> None:
    found = [
        f"{path}:{line}: {text[:100]!r}"
        for path, tree in modules()
        for line, text in messages(tree)
        if re.search(pattern, text)
    ]
    assert not found, f"write {instead}:\n" + "\n".join(found)


def test_the_checks_find_names_and_messages() -> None:
    tree = ast.parse(
        "class C:\n    def say(self, mine):\n        self._told = 1\n        raise E(f'{x} says; got {y}')\n"
    )
    assert [name for _, name in defined_names(tree)] == ["C", "say", "self", "mine", "_told"]
    assert words_of("_AgentSlots") == {"agent", "slots"}
    assert "{} says; got {}" in [text for _, text in messages(tree)]
