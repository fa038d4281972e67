"""What the package and the command import, and when."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import sb3_ext


def test_the_command_reads_settings_before_torch_is_imported() -> None:
    script = """
import sys
from sb3_ext.learn import main
assert main(["--list"]) == 0
from sb3_ext.settings import load
from sb3_ext.settings.shipped import configuration_file, configuration_names
for name in configuration_names():
    load(configuration_file(name))
assert not {"torch", "stable_baselines3"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, stdout=subprocess.DEVNULL)


def test_the_classes_of_the_package_are_imported_on_first_use() -> None:
    assert sorted(sb3_ext._MODULES) == sorted(sb3_ext.__all__) == dir(sb3_ext)
    for name in sb3_ext.__all__:
        module = import_module(f"sb3_ext.{sb3_ext._MODULES[name]}")
        assert getattr(sb3_ext, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="module 'sb3_ext' has no attribute 'Poca'"):
        _ = sb3_ext.Poca  # type: ignore[attr-defined]


def test_packages_of_the_extra_that_are_missing_are_named() -> None:
    script = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("yaml", "tqdm") else find_spec(name)
import sb3_ext
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.stderr.endswith("sb3_ext needs yaml, tqdm: install the extra, pip install 'unity-gym[sb3]'\n")
