"""The settings of a training run: ML-Agents' YAML format, with strict validation.

`load` reads a file, `loads` a string, and `dump` writes the resolved settings, from which equal settings are read.
Unknown keys and invalid values raise one `SettingsError`. It lists every mistake with file, line, key path, value and
remedy. Files of the oldest format (`default:` and one flat section per brain) are translated, and so are keys that
ML-Agents renamed; a warning reports the result.

Precedence of values, highest first: command-line option, the behavior's own block, `default_settings`, the format's
default. `default_settings` is completed with the format's defaults before the behaviors inherit from it, as in
ML-Agents: a behavior that lists only `curiosity` keeps the `extrinsic` of `default_settings`. A behavior with another
`trainer_type` than `default_settings` inherits none of its hyperparameters, since they belong to the algorithm.
"""

from sb3_ext.settings.behaviors import (
    GAIL,
    RND,
    BCHyperparameters,
    BCSettings,
    BehavioralCloning,
    BehaviorSettings,
    Curiosity,
    FixedSettings,
    Hyperparameters,
    Memory,
    NetworkSettings,
    POCAHyperparameters,
    POCASettings,
    PPOHyperparameters,
    PPOSettings,
    RewardSignal,
    RewardSignals,
    SACHyperparameters,
    SACSettings,
    SelfPlay,
    SignalSettings,
)
from sb3_ext.settings.document import SettingsError
from sb3_ext.settings.parameters import (
    CompletionCriteria,
    Constant,
    ConstantParameters,
    Curriculum,
    Gaussian,
    GaussianParameters,
    Lesson,
    MultiRange,
    MultiRangeParameters,
    ParameterSampler,
    SamplerParameters,
    Uniform,
    UniformParameters,
)
from sb3_ext.settings.reading import dump, load, loads
from sb3_ext.settings.run import (
    CheckpointSettings,
    EngineSettings,
    EnvSettings,
    RaySettings,
    RunSettings,
    TorchSettings,
)

__all__ = [
    "GAIL",
    "RND",
    "BCHyperparameters",
    "BCSettings",
    "BehaviorSettings",
    "BehavioralCloning",
    "CheckpointSettings",
    "CompletionCriteria",
    "Constant",
    "ConstantParameters",
    "Curiosity",
    "Curriculum",
    "EngineSettings",
    "EnvSettings",
    "FixedSettings",
    "Gaussian",
    "GaussianParameters",
    "Hyperparameters",
    "Lesson",
    "Memory",
    "MultiRange",
    "MultiRangeParameters",
    "NetworkSettings",
    "POCAHyperparameters",
    "POCASettings",
    "PPOHyperparameters",
    "PPOSettings",
    "ParameterSampler",
    "RaySettings",
    "RewardSignal",
    "RewardSignals",
    "RunSettings",
    "SACHyperparameters",
    "SACSettings",
    "SamplerParameters",
    "SelfPlay",
    "SettingsError",
    "SignalSettings",
    "TorchSettings",
    "Uniform",
    "UniformParameters",
    "dump",
    "load",
    "loads",
]
