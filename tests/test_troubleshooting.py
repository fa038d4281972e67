"""The messages on the page about troubleshooting are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def texts(node: ast.AST) -> str:
    """Return a string expression with "\\0" for each value that is inserted."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(texts(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return texts(node.left) + texts(node.right)
    return "\0"


def strings() -> Iterator[str]:
    for package in ("unity_gym", "sb3_ext"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.JoinedStr, ast.BinOp, ast.Constant)):
                    yield texts(node)


def test_every_documented_message_occurs_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) >= 30
    found = "\n".join({text for text in strings() if len(text) > 10})
    for message in messages:
        # "..." stands for any value; a word of the page may be one that the code inserts
        parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
        assert re.search(r"[^\n]*".join(parts), found.replace("\0\n", "\0")), message
