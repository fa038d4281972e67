"""Modules and names of Unity's Python packages, and the objects of this package that replace them."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from unity_gym.compat.environment import ScriptOptions, options

_EXCEPTIONS = "unity_gym.compat.exceptions"
_CHANNELS = "unity_gym.side_channels"
_WRAPPERS = "unity_gym.compat.gym_wrapper"
_PETTINGZOO = "unity_gym.compat.pettingzoo_wrappers"
_REGISTRY = "unity_gym.compat.registry"
_ENVIRONMENT = "unity_gym.compat.environment"
_ENGINE = "unity_gym.compat.engine_configuration"
_MANAGER = {"SideChannelManager": "unity_gym.compat.side_channel_manager"}
_TIMER = dict.fromkeys(("hierarchical_timer", "timed"), "unity_gym.compat.timers")

_SPECS = (
    "ActionSpec ActionTuple BehaviorSpec DecisionStep DimensionProperty ObservationSpec ObservationType TerminalStep "
    "TerminalSteps"
)
_BASE_ENV = dict.fromkeys(_SPECS.split(), "unity_gym.specs") | dict.fromkeys(
    ("AgentId", "BaseEnv", "BehaviorMapping", "BehaviorName", "DecisionSteps", "GroupId"), _ENVIRONMENT
)
_BASE_ENV["UnityActionException"] = _EXCEPTIONS
_RAISED = dict.fromkeys(
    (
        "UnityActionException",
        "UnityCommunicatorStoppedException",
        "UnityEnvironmentException",
        "UnityTimeOutException",
    ),
    _EXCEPTIONS,
)  # by an environment
_SIDE_CHANNEL = {"SideChannel": _CHANNELS, "IncomingMessage": _CHANNELS, "OutgoingMessage": _CHANNELS}
_STATS = dict.fromkeys(("EnvironmentStats", "StatsAggregationMethod", "StatsSideChannel"), _CHANNELS)

MODULES: dict[str, dict[str, str]] = {
    "mlagents_envs": {"__version__": _ENVIRONMENT},
    "mlagents_envs.base_env": _BASE_ENV,
    "mlagents_envs.environment": _BASE_ENV
    | _RAISED
    | _SIDE_CHANNEL
    | _MANAGER
    | _TIMER
    | {"UnityEnvironment": _ENVIRONMENT, "get_logger": _ENVIRONMENT},
    "mlagents_envs.exception": _RAISED
    | dict.fromkeys(
        (
            "UnityCommunicationException",
            "UnityException",
            "UnityObservationException",
            "UnityPolicyException",
            "UnitySideChannelException",
            "UnityWorkerInUseException",
        ),
        _EXCEPTIONS,
    ),
    "mlagents_envs.logging_util": {"get_logger": _ENVIRONMENT, "set_log_level": _ENVIRONMENT}
    | dict.fromkeys(("CRITICAL", "DEBUG", "ERROR", "FATAL", "INFO", "NOTSET", "WARNING"), "logging"),
    "mlagents_envs.registry": {"UnityEnvRegistry": _REGISTRY, "default_registry": _REGISTRY},
    "mlagents_envs.registry.base_registry_entry": {"BaseRegistryEntry": _REGISTRY},
    "mlagents_envs.registry.remote_registry_entry": {
        "BaseRegistryEntry": _REGISTRY,
        "RemoteRegistryEntry": _REGISTRY,
    },
    "mlagents_envs.registry.unity_env_registry": {
        "BaseRegistryEntry": _REGISTRY,
        "RemoteRegistryEntry": _REGISTRY,
        "UnityEnvRegistry": _REGISTRY,
        "default_registry": _REGISTRY,
    },
    "mlagents_envs.side_channel": _SIDE_CHANNEL,
    "mlagents_envs.side_channel.side_channel": _SIDE_CHANNEL,
    "mlagents_envs.side_channel.incoming_message": {"IncomingMessage": _CHANNELS},
    "mlagents_envs.side_channel.outgoing_message": {"OutgoingMessage": _CHANNELS},
    "mlagents_envs.side_channel.engine_configuration_channel": _SIDE_CHANNEL
    | {
        "EngineConfig": _ENGINE,
        "EngineConfigurationChannel": _ENGINE,
        "UnityCommunicationException": _EXCEPTIONS,
        "UnitySideChannelException": _EXCEPTIONS,
    },
    "mlagents_envs.side_channel.environment_parameters_channel": _SIDE_CHANNEL
    | {"EnvironmentParametersChannel": _CHANNELS, "UnityCommunicationException": _EXCEPTIONS},
    "mlagents_envs.side_channel.float_properties_channel": _SIDE_CHANNEL | {"FloatPropertiesChannel": _CHANNELS},
    "mlagents_envs.side_channel.raw_bytes_channel": _SIDE_CHANNEL | {"RawBytesChannel": _CHANNELS},
    "mlagents_envs.side_channel.side_channel_manager": _SIDE_CHANNEL | _MANAGER,
    "mlagents_envs.side_channel.stats_side_channel": _SIDE_CHANNEL | _STATS,
    "mlagents_envs.timers": _TIMER
    | dict.fromkeys(
        (
            *("GaugeNode", "TimerNode", "add_metadata", "get_timer_root", "get_timer_tree", "reset_timers"),
            "set_gauge",
        ),
        "unity_gym.compat.timers",
    ),
    "mlagents_envs.envs": {
        "PettingZooEnvFactory": _PETTINGZOO,
        "default_registry": _REGISTRY,
        "__getattr__": f"{_PETTINGZOO}:factory",
    },
    "mlagents_envs.envs.pettingzoo_env_factory": {"PettingZooEnvFactory": _PETTINGZOO},
    "mlagents_envs.envs.unity_aec_env": {"UnityAECEnv": _PETTINGZOO},
    "mlagents_envs.envs.unity_gym_env": _BASE_ENV
    | dict.fromkeys(("ActionFlattener", "UnityGymException", "UnityToGymWrapper"), _WRAPPERS),
    "mlagents_envs.envs.unity_parallel_env": {"UnityParallelEnv": _PETTINGZOO},
    "mlagents_envs.envs.unity_pettingzoo_base_env": {"UnityPettingzooBaseEnv": f"{_PETTINGZOO}:_MultiAgentWrapper"},
    "gym_unity": {"__version__": _ENVIRONMENT},
    "gym_unity.envs": {
        "ActionFlattener": _WRAPPERS,
        "UnityGymException": _WRAPPERS,
        "UnityToGymWrapper": f"{_WRAPPERS}:ChannelLastGymWrapper",
    },
}
"""Names per module of Unity's packages, each with this package's module (and, after a colon, another name there).

A module also has what Unity's imports into it: scripts take `ActionTuple` from `mlagents_envs.environment`.
"""

_PROTOCOL = "unity_gym speaks the protocol itself: use UnityEnvironment, or unity_gym.demonstrations for .demo files"
_NO_ANALYTICS = "no data about training are sent: leave the channel out"
NOT_PROVIDED = {
    "mlagents_envs.communicator": _PROTOCOL,
    "mlagents_envs.communicator_objects": _PROTOCOL,
    "mlagents_envs.env_utils": "UnityEnvironment(file_name=...) finds and launches a build",
    "mlagents_envs.envs.env_helpers": "use UnityParallelEnv or UnityAECEnv",
    "mlagents_envs.mock_communicator": "an embedded scene tests without a build: UnityEnvironment('embedded:Basic')",
    "mlagents_envs.registry.binary_utils": "builds are not downloaded: pass the path of one to UnityEnvironment",
    "mlagents_envs.rpc_communicator": _PROTOCOL,
    "mlagents_envs.rpc_utils": _PROTOCOL,
    "mlagents_envs.side_channel.DefaultTrainingAnalyticsSideChannel": _NO_ANALYTICS,
    "mlagents_envs.side_channel.default_training_analytics_side_channel": _NO_ANALYTICS,
}
"""Modules and classes of Unity's packages that are not provided, each with what to use instead."""


def install(
    *, replace: bool = False, scene: str | None = None, areas: int | None = None, image_layout: str = "CHW"
) -> None:
    """Make `mlagents_envs` and `gym_unity` importable.

    :param replace: Whether to use this package's modules even if Unity's packages are installed.
    :param scene: Embedded scene that replaces every build and Editor that a script requests; None replaces nothing.
    :param areas: Number of training areas of embedded scenes; by default the scene's own number. Scripts that use the
        gym wrapper need 1.
    :param image_layout: Layout of images in low-level steps and specs, "CHW" as in `mlagents_envs` 1.x, or "HWC" as in
        versions below 0.29. The wrapper of `gym_unity` always returns "HWC".
    :raises InvalidValueError: If the scene or the image layout is unknown, or areas is below 1.
    """
    options.update(ScriptOptions(scene, areas, image_layout))
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _UnityNames)]
    packages = {name for name in MODULES if "." not in name}
    if not replace:
        installed = {name for name in packages if PathFinder.find_spec(name) is not None}
        if installed:
            warnings.warn(
                f"Unity's own {' and '.join(sorted(installed))} is installed and stays in use. To use unity_gym's "
                "modules instead, call unity_gym.compat.install(replace=True)",
                stacklevel=2,
            )
        packages -= installed
    sys.meta_path.insert(0, _UnityNames(packages))


class _UnityNames(MetaPathFinder, Loader):
    """Finder and loader of the modules in `MODULES`.

    :param packages: Top-level packages to provide.
    """

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module that this finder provides, None for any other.

        :raises ModuleNotFoundError: If it is in `NOT_PROVIDED`.
        """
        if fullname.partition(".")[0] not in self._packages:
            return None
        if fullname in NOT_PROVIDED:
            # without `name`, with which `from package import module` would replace the message
            raise ModuleNotFoundError(f"unity_gym.compat has no {fullname}; {NOT_PROVIDED[fullname]}")
        if fullname not in MODULES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        spec = ModuleSpec(fullname, self, origin=__file__, is_package=is_package)
        spec.has_location = True  # a `__file__`, which `inspect.getfile` requires
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with its names; those of a package include its modules, which some scripts never import."""
        for name, source in MODULES[module.__name__].items():
            source_module, _, source_name = source.partition(":")
            setattr(module, name, getattr(importlib.import_module(source_module), source_name or name))
        if hasattr(module, "__path__") and not hasattr(module, "__getattr__"):
            module.__getattr__ = partial(_submodule, module.__name__)  # type: ignore[method-assign]


def _submodule(package: str, name: str) -> ModuleType:
    """Import a module of a package.

    :raises AttributeError: If the package has no such module.
    """
    if f"{package}.{name}" not in MODULES:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")
