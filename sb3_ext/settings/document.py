"""Text of settings: the location of each key path in it, and messages about them."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable
from typing import Any, TypeAlias

import yaml

from unity_gym.errors import UnityGymError

KeyPath: TypeAlias = tuple["str | int", ...]
_TAG_ERRORS = (AttributeError, LookupError, TypeError)  # of PyYAML for values that do not fit their tag
_MOST_CHARACTERS = 200_000  # per text; PyYAML reads about 100,000 per second
_MOST_VALUES = 20_000  # per text, with aliases resolved; nine levels of nine aliases would be 400 million
Tree: TypeAlias = dict[str, Any]


class SettingsError(UnityGymError, ValueError):
    """Error in settings. Each line of the message contains file, line, key path, value and remedy."""


class _Loader(yaml.SafeLoader):
    """YAML loader that reads keys as strings, as they are written: a behavior may be called `on` or `007`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


class Document:
    """Text of settings, which finds the line of a key path, whatever was translated before, and collects mistakes.

    :param name: Name of the file in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: yaml.Node | None = None
        self._origins: dict[KeyPath, KeyPath] = {}
        self._typed: set[KeyPath] = set()
        self._mistakes: dict[str, int] = {}  # message: line, 0 where it has none

    def read(self, text: str) -> Tree:
        """Return the tree of a YAML text and store the position of each key.

        :raises SettingsError: If the text is no YAML, empty, too long, or no block of keys.
        """
        if len(text) > _MOST_CHARACTERS:
            raise SettingsError(
                f"{self.name}: it has {len(text)} characters, at most {_MOST_CHARACTERS} are read. Name a settings file"
            )
        try:
            loader = _Loader(text)
            self.root = loader.get_single_node()
            if self.root is None:
                raise SettingsError(f"{self.name}: it is empty. Write at least behaviors: or default_settings:")
            if isinstance(self.root, yaml.MappingNode):
                self.root.value = [(key, _without_python_object(value)) for key, value in self.root.value]
            self._reject_duplicates(self.root, (), set())
            if _count_values(self.root, {}) > _MOST_VALUES:
                raise SettingsError(
                    f"{self.name}: with its aliases written out, it has more than {_MOST_VALUES} values. "
                    "Delete aliases of aliases"
                )
            tree = unshared(loader.construct_document(self.root))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise SettingsError(f"{self.name}{line}: this is no YAML: {error.problem}. Correct the text") from error
        except SettingsError:
            raise
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError, *_TAG_ERRORS) as error:
            reason = "it refers to itself or is nested too deep" if isinstance(error, RecursionError) else error
            raise SettingsError(f"{self.name}: this is no YAML: {reason}. Correct the text") from error
        if not isinstance(tree, dict):
            raise SettingsError(f"{self.name}: {tree!r:.60} is no block of keys. Write at least behaviors: …")
        return tree

    def _reject_duplicates(self, node: yaml.Node, path: KeyPath, seen: set[int]) -> None:
        """Reject the same key twice in a block; YAML forbids this, but PyYAML would take the last."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    block = dotted(path) or "the file"
                    raise SettingsError(f"{self.name}, line {line}: {block} has a key that is no text. Write a text")
                if key.value in lines and key.tag != "tag:yaml.org,2002:merge":
                    here = dotted((*path, key.value))
                    first = lines[key.value]
                    text = f"{self.name}, line {line}: {here} is given twice, first in line {first}. Delete one"
                    self._mistakes[text] = line
                lines[key.value] = line
                self._reject_duplicates(value, (*path, key.value), seen)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._reject_duplicates(value, (*path, index), seen)

    def moved(self, path: KeyPath, origin: KeyPath) -> None:
        """Record that the value at `path` is at `origin` in the text."""
        self._origins[path] = origin

    def typed(self, path: KeyPath) -> None:
        """Record that the value at `path` was given on the command line."""
        self._typed.add(path)

    def origin(self, path: KeyPath) -> KeyPath:
        """Return the key path in the text of the value at `path`."""
        for cut in range(len(path), 0, -1):
            if path[:cut] in self._origins:
                return (*self._origins[path[:cut]], *path[cut:])
        return path

    def message(self, path: KeyPath, complaint: str) -> str:
        """Return file, line, key path and the complaint."""
        return self._located(path, complaint)[1]

    def _located(self, path: KeyPath, complaint: str) -> tuple[int, str]:
        if path in self._typed:
            return 0, f"command line: {dotted(path)} {complaint}"
        path = self.origin(path)
        line = self._line(path)
        return line or 0, f"{self.name}{f', line {line}' if line else ''}: {dotted(path) or 'the file'} {complaint}"

    def warn(self, path: KeyPath, complaint: str) -> None:
        """Warn about the value at `path`, which is used nevertheless or ignored."""
        warnings.warn(self.message(path, complaint), UserWarning, stacklevel=2)

    def report(self, path: KeyPath, complaint: str) -> None:
        """Record a mistake, for `raise_mistakes`; the same one only once."""
        line, text = self._located(path, complaint)
        self._mistakes.setdefault(text, line)

    def raise_mistakes(self) -> None:
        """Raise all recorded mistakes, ordered by line.

        :raises SettingsError: If there are any.
        """
        if self._mistakes:
            raise SettingsError("\n".join(sorted(self._mistakes, key=self._mistakes.__getitem__))) from None

    def _line(self, path: KeyPath) -> int | None:
        """Return the line of the key, or of the innermost block around it that the text contains."""
        node, line = self.root, None
        for part in path:
            found: yaml.Node | None = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == part:
                        found, line = value, key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = node.value[part]
                line = found.start_mark.line + 1
            if found is None:
                break
            node = found
        return line


def _without_python_object(node: yaml.Node) -> yaml.Node:
    """Return the behaviors' block, which ML-Agents 0.19 to 0.26 wrote into configuration.yaml as a Python object."""
    if not re.fullmatch(r"tag:yaml\.org,2002:python/object/apply:mlagents\..*DefaultTrainerDict", node.tag):
        return node
    given = node.value if isinstance(node, yaml.MappingNode) else []
    blocks = [value for key, value in given if key.value == "dictitems"]
    return blocks[0] if blocks else yaml.MappingNode("tag:yaml.org,2002:map", [], node.start_mark, node.end_mark)


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of nodes below one; those of an alias count each time that it is used."""
    if id(node) not in counts:
        counts[id(node)] = 0  # for a node that contains itself, which is reported when it is constructed
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        counts[id(node)] = 1 + sum(_count_values(child, counts) for child in children)
    return counts[id(node)]


def dotted(path: KeyPath) -> str:
    """Return the path as a string, such as `a.b[0].c`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def either(choices: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def did_you_mean(given: object, choices: Iterable[str]) -> str:
    """Return `; did you mean …?` with the nearest of the choices; an empty string if none is near."""
    squashed = {re.sub(r"[-_\s]", "", choice).lower(): choice for choice in choices}
    near = difflib.get_close_matches(re.sub(r"[-_\s]", "", str(given)).lower(), squashed, n=1, cutoff=0.6)
    return f"; did you mean {squashed[near[0]]}?" if near else ""


def block_of(tree: object, key: str) -> Tree:
    """Return the block under `key`.

    The block is empty if there is none, or if validation will reject the value.
    """
    block = tree.get(key) if isinstance(tree, dict) else None
    return block if isinstance(block, dict) else {}


def unshared(tree: Any) -> Any:
    """Return a copy without shared objects, which aliases of YAML create."""
    if isinstance(tree, dict):
        return {key: unshared(value) for key, value in tree.items()}
    return [unshared(value) for value in tree] if isinstance(tree, list) else tree
