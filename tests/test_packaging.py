"""The content of the wheel, and differences between operating systems."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

import unity_gym
from unity_gym.display import VirtualDisplay
from unity_gym.errors import PlayerError

ROOT = Path(__file__).resolve().parents[1]


def test_setup_cfg_lists_every_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found = {
        ".".join(file.relative_to(ROOT).parts[:-1])
        for package in ("unity_gym", "sb3_ext")
        for file in (ROOT / package).rglob("__init__.py")
    }
    assert set(setup["options"]["packages"].split()) == found | {"sb3_ext.configs"}


def test_the_changelog_starts_with_the_version_of_setup_cfg() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    headings = [line.split() for line in (ROOT / "docs" / "changelog.md").read_text().splitlines() if line[:3] == "## "]
    assert headings[0][1] == setup["metadata"]["version"]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_virtual_screen_is_rejected_where_players_do_not_draw_on_it(
    monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    with pytest.raises(PlayerError, match="is for Linux"):
        VirtualDisplay()


def test_configurations_are_found_by_name() -> None:
    pytest.importorskip("torch")
    from sb3_ext.settings.document import SettingsError
    from sb3_ext.settings.shipped import configuration_file, configuration_names

    assert "ppo/3DBall" in configuration_names()
    for name in configuration_names():
        assert configuration_file(name).is_file()
    with pytest.raises(SettingsError, match=r"ppo/3dball.*ppo/3DBall"):
        configuration_file("ppo/3dball")


def test_unity_learn_lists_the_configurations_and_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from sb3_ext.learn import main

    assert main(["--list"]) == 0
    assert "poca/SoccerTwos\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"unity-gym {unity_gym.__version__}\n"
    assert main(["ppo/Nothing"]) == 1
    assert "'ppo/Nothing'" in capsys.readouterr().err
