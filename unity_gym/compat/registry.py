"""`default_registry`, whose entries launch embedded scenes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unity_gym.compat.environment import UnityEnvironment, options
from unity_gym.errors import InvalidValueError
from unity_gym.player import EMBEDDED
from unity_gym.registration import SCENES


class BaseRegistryEntry:
    """Environment that can be launched by its identifier.

    :param identifier: Key in the registry.
    :param expected_reward: Mean return of a trained agent; None if it is unknown.
    :param description: Description for the user.
    """

    def __init__(self, identifier: str, expected_reward: float | None = None, description: str | None = None) -> None:
        self.identifier, self.expected_reward, self.description = identifier, expected_reward, description

    def make(self, **kwargs: Any) -> UnityEnvironment:
        """Launch the embedded scene; the keyword arguments are those of `UnityEnvironment` except `file_name`.

        :raises InvalidValueError: If a `file_name` is passed.
        """
        if "file_name" in kwargs:
            raise InvalidValueError(
                f"file_name must not be passed to a registry entry, got {kwargs['file_name']!r}: use "
                "UnityEnvironment(file_name=...) for a build"
            )
        return UnityEnvironment(file_name=EMBEDDED + self.identifier, **kwargs)


class RemoteRegistryEntry(BaseRegistryEntry):
    """Entry with the URLs of a build. Builds are not downloaded: the embedded scene of the same name is launched.

    :param identifier: Key in the registry.
    :param build: URLs and further arguments of Unity's `RemoteRegistryEntry`, which describe the build and are ignored.
    """

    def __init__(
        self,
        identifier: str,
        expected_reward: float | None,
        description: str | None,
        *build: Any,  # noqa: ARG002
        **named_build: Any,  # noqa: ARG002
    ) -> None:
        super().__init__(identifier, expected_reward, description)

    def make(self, **kwargs: Any) -> UnityEnvironment:
        """Launch the embedded scene; see `BaseRegistryEntry.make`.

        :raises InvalidValueError: If there is no embedded scene of this name.
        """
        if self.identifier not in SCENES and options.scene is None:
            raise InvalidValueError(
                f"{self.identifier!r} is none of the embedded scenes {sorted(SCENES)}, and builds are not downloaded: "
                "download the build and pass its path to UnityEnvironment(file_name=...)"
            )
        return super().make(**kwargs)


class UnityEnvRegistry(Mapping[str, BaseRegistryEntry]):
    """Mapping from identifiers to entries."""

    def __init__(self) -> None:
        self._entries: dict[str, BaseRegistryEntry] = {}

    def register(self, new_entry: BaseRegistryEntry) -> None:
        """Add an entry; one with the same identifier is replaced."""
        self._entries[new_entry.identifier] = new_entry

    def register_from_yaml(self, path_to_yaml: str) -> None:
        """Reject a manifest: it requires the download of builds, which is not supported.

        :raises InvalidValueError: Always.
        """
        raise InvalidValueError(
            f"register_from_yaml({path_to_yaml!r}) is not supported, as builds are not downloaded: download the build "
            "and pass its path to UnityEnvironment(file_name=...)"
        )

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def __getitem__(self, identifier: str) -> BaseRegistryEntry:
        if identifier not in self._entries:
            raise KeyError(f"{identifier} is not in the registry; its entries are {sorted(self._entries)}")
        return self._entries[identifier]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


EXPECTED_REWARDS = {
    "3DBall": 100.0,
    "3DBallHard": 100.0,
    "Basic": 0.93,
    "CooperativePushBlock": 11.0,
    "DungeonEscape": 1.0,
    "FoodCollector": 10.0,
    "GridWorld": 0.8,
    "Hallway": 0.7,
    "Match3": 38.5,
    "PushBlock": 4.5,
    "Pyramids": 1.75,
    "WallJump": 0.8,
}
"""Mean returns of trained agents as Unity documents them."""

default_registry = UnityEnvRegistry()
for _scene in SCENES:
    default_registry.register(
        BaseRegistryEntry(_scene, EXPECTED_REWARDS.get(_scene), f"The embedded scene {_scene} of unity_gym")
    )
