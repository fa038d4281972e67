"""The settings of a training run: ML-Agents' YAML format, read strictly.

`load` reads a file, `loads` a text, `dump` writes the resolved settings back, and reading those gives equal settings.
An unknown key or a value that makes no sense is one `SettingsError` that names file, line, key path, value and remedy;
it lists everything that is wrong at once. Files of the oldest format (`default:` and one flat section a brain) are
translated, and so are keys that ML-Agents renamed; a warning says what became of them.

How a value comes about, the strongest first: a flag that was typed, the behavior's own block, `default_settings`, the
format's default. `default_settings` is completed with the format's defaults before the behaviors inherit from it, as
ML-Agents does: a behavior that lists only `curiosity` keeps the `extrinsic` of `default_settings`. A behavior with
another `trainer_type` than `default_settings` inherits none of its hyperparameters, since they belong to the algorithm.
"""

from sb3_ext.settings.document import SettingsError
from sb3_ext.settings.reading import dump, load, loads
from sb3_ext.settings.schema import (
    GAIL,
    RND,
    BCHyperparameters,
    BCSettings,
    BehavioralCloning,
    BehaviorSettings,
    CheckpointSettings,
    CompletionCriteria,
    Constant,
    ConstantParameters,
    Curiosity,
    Curriculum,
    EngineSettings,
    EnvSettings,
    FixedSettings,
    Gaussian,
    GaussianParameters,
    Hyperparameters,
    Lesson,
    Memory,
    MultiRange,
    MultiRangeParameters,
    NetworkSettings,
    ParameterSampler,
    POCAHyperparameters,
    POCASettings,
    PPOHyperparameters,
    PPOSettings,
    RaySettings,
    RewardSignal,
    RewardSignals,
    RunSettings,
    SACHyperparameters,
    SACSettings,
    SamplerParameters,
    SelfPlay,
    SignalSettings,
    TorchSettings,
    Uniform,
    UniformParameters,
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
