"""Which packages may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


def imported(path: Path) -> Iterator[str]:
    """Return the full names of all modules and members that a file imports."""
    parents = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (package, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def offenders(package: str, *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in imported(path)
        if any(name == module or name.startswith(module + ".") for module in forbidden)
    ]


def test_unity_gym_does_not_import_learning_libraries() -> None:
    assert not offenders("unity_gym", "torch", "stable_baselines3", "sb3_contrib", "sb3_ext", "onnx", "onnxruntime")


def test_sb3_ext_does_not_import_wire_libraries() -> None:
    assert not offenders("sb3_ext", "grpc", "google", "google.protobuf", "unity_gym.wire", "unity_gym.connection")


def test_only_the_embedded_player_imports_grpc() -> None:
    """The client serves the player without it, see `unity_gym.wire.http2`."""
    allowed = (str(Path("unity_gym", "scenes")), str(Path("unity_gym", "wire", "generate.py")))
    assert not [
        offender for offender in offenders("unity_gym", "grpc", "grpc_tools") if not offender.startswith(allowed)
    ]


def test_no_other_package_imports_the_embedded_player() -> None:
    outside = [
        offender
        for package in ("unity_gym", "sb3_ext")
        for offender in offenders(package, "unity_gym.scenes")
        if not offender.startswith(str(Path("unity_gym", "scenes")))
    ]
    assert not outside


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("unity_gym", ("torch", "stable_baselines3", "sb3_contrib", "sb3_ext")),
        ("unity_gym.envs", ("torch", "stable_baselines3", "unity_gym.scenes")),
    ],
)
def test_importing_every_module_imports_no_forbidden_library(package: str, forbidden: tuple[str, ...]) -> None:
    script = f"""
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert package in loaded
    assert not loaded & set(forbidden)


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("unity_gym", "sb3_ext")
        for path in sources(package)
    }
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        modules = {part for full in imported(path) for part in (full, full.rpartition(".")[0])}
        graph[name] = (modules & files.keys()) - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_no_package_has_a_generic_name() -> None:
    names = {"utils", "helpers", "common", "misc", "manager"}
    assert not [path for package in ("unity_gym", "sb3_ext") for path in sources(package) if path.stem in names]
