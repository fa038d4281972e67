"""The configuration files that are part of this package, by name."""

from __future__ import annotations

from pathlib import Path

from sb3_ext.settings.document import SettingsError, did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]
_SWEEPS = "sweeps/"


def _folder() -> Path:
    """Return the folder `configs/`, of an installed wheel or next to the package in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def configuration_names() -> list[str]:
    """Return the names of all configurations, such as "ppo/3DBall"."""
    return [name for name in _names() if not name.startswith(_SWEEPS)]


def sweep_names() -> list[str]:
    """Return the names of all sweeps, such as "sweeps/Basic"."""
    return [name for name in _names() if name.startswith(_SWEEPS)]


def _names() -> list[str]:
    folder = _folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))


def configuration_file(name: str) -> Path:
    """Return the file of a configuration.

    :param name: One of `configuration_names()`, or the path of a YAML file.
    :return: The path of the named configuration; other paths are returned as they are.
    :raises SettingsError: If there is neither a file nor a configuration of this name.
    """
    return _file(name, configuration_names(), "config must be a YAML file or a name of unity-learn --list")


def sweep_file(name: str) -> Path:
    """Return the file of a sweep; see `configuration_file`."""
    return _file(name, sweep_names(), "the sweep must be a YAML file or a name of unity-learn sweep --list")


def _file(name: str, names: list[str], requirement: str) -> Path:
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    if name not in names:
        of_scene = [full for full in names if full.partition("/")[2].lower() == name.lower()]
        near = f"; did you mean {' or '.join(of_scene)}?" if of_scene else did_you_mean(name, names)
        raise SettingsError(f"{requirement}, got {name!r}{near}")
    return _folder() / f"{name}.yaml"
