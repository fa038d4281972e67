"""The format: every block with its keys, their defaults and their valid values."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, cast

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from typing_extensions import Self

from sb3_ext.plugin_classes import base_trainer, load_signal, load_trainer
from sb3_ext.plugins import (
    ENCODERS,
    SIGNALS,
    WRITERS,
    Parameter,
    parameters,
    plugin_names,
    takes_any_keyword,
)
from sb3_ext.plugins import TRAINERS as TRAINER_PLUGINS
from sb3_ext.settings.document import SettingsError, Tree, did_you_mean, either

# ---------------------------------------------------------------------------------------------------------------------
# Values


def _refusal(
    reason: str, at: tuple[str | int, ...] = (), value: object = None, choices: Iterable[str] = ()
) -> PydanticCustomError:
    """Return an error that contains the remedy.

    :param at: Key path below the validated block; `value` is the value there.
    :param choices: Valid values; the message suggests the nearest.
    """
    context = {"reason": reason, "at": at, "value": value, "choices": tuple(choices)}
    return PydanticCustomError("settings", "settings", context)


def _number(value: object) -> float:
    """Return a finite number, also from a string such as "1.0e7", which YAML 1.1 does not read as a number."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            pass
        else:
            if math.isfinite(number):
                return number
    raise _refusal("give a finite number")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value)
    if number.is_integer():
        return int(number)
    raise _refusal("give a whole number")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _refusal("give true or false, without quotes")


def _text(value: object) -> str:
    """Return a string, also from a whole number, for names such as `run_id: 5`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    raise _refusal("give a text, and put it in quotes where YAML takes it for something else")


def _nothing_is_empty(value: object) -> object:
    return {} if value is None else value


Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]

Positive = Annotated[Number, Gt(0)]
NotNegative = Annotated[Number, Ge(0)]
Fraction = Annotated[Number, Ge(0), Le(1)]
Count = Annotated[Whole, Ge(1)]
CountOrZero = Annotated[Whole, Ge(0)]
CountOrMinusOne = Annotated[Whole, Ge(-1)]

Schedule = Literal["linear", "constant"]


def _raised_again(details: ErrorDetails) -> InitErrorDetails:
    error = PydanticCustomError(details["type"], details["msg"], details.get("ctx"))  # type: ignore[arg-type,unused-ignore]
    return InitErrorDetails(type=error, loc=details["loc"], input=details["input"])


class Block(BaseModel):
    """Block of keys. An empty one (`network_settings:` with nothing below) consists of defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys together with mistakes in known ones; pydantic alone would stop at the first kind."""
        data = cls._block_of(data)
        if isinstance(data, cls):
            return validate(data)
        known = [*cls.model_fields, *cls._further_keys()]
        if not isinstance(data, Mapping):
            raise _refusal(f"give a block of keys (known here: {', '.join(known)})")
        unknown = [str(key) for key in data if key not in known]
        if not unknown:
            return validate(data)
        error = PydanticCustomError("unknown", "unknown", {"keys": unknown, "known": known})
        mistakes = [InitErrorDetails(type=error, input=data)]
        try:
            validate({key: value for key, value in data.items() if key in known})
        except ValidationError as others:
            mistakes += [_raised_again(details) for details in others.errors()]
        raise ValidationError.from_exception_data(cls.__name__, mistakes)

    @classmethod
    def _block_of(cls, data: Any) -> Any:
        """Return the block that a value represents."""
        return {} if data is None else data

    @classmethod
    def _further_keys(cls) -> list[str]:
        """Return the keys that plugins add."""
        return []


# ---------------------------------------------------------------------------------------------------------------------
# One behavior


class Memory(Block):
    """LSTM of `memory_size / 2` cells: the recurrent state is its hidden state, followed by its cell state."""

    sequence_length: Count = 64
    """Decisions per training sequence of the LSTM."""
    memory_size: Count = 128
    """Size of the recurrent state; even."""
    use_previous_action: Flag = False
    """Whether the previous action of the agent is an input of the LSTM, too."""

    @field_validator("memory_size")
    @classmethod
    def _even(cls, size: int) -> int:
        if size % 2:
            raise _refusal("give an even number: half of it is hidden state, half cell state")
        return size


_VIS_ENCODE_TYPES = ("simple", "nature_cnn", "resnet", "match3", "fully_connected")


def _encoder(value: object) -> str:
    """Return the name of a visual encoder, also of one of a plugin."""
    known = [*_VIS_ENCODE_TYPES, *plugin_names(ENCODERS)]
    if isinstance(value, str) and value in known:
        return value
    raise _refusal(f"give {either(known)}{did_you_mean(value, known)}")


class NetworkSettings(Block):
    """Networks of a behavior, or of a reward signal."""

    normalize: Flag = False
    """Normalize vector observations by their running mean and variance."""
    hidden_units: Count = 128
    """Units of each hidden layer."""
    num_layers: Count = 2
    """Number of hidden layers."""
    vis_encode_type: Annotated[str, BeforeValidator(_encoder)] = "simple"
    """Encoder of images: `simple`, `nature_cnn`, `resnet`, `match3`, `fully_connected`, or one of a plugin."""
    goal_conditioning_type: Literal["hyper", "none"] = "hyper"
    """How goal observations are used: `hyper` generates weights from them, `none` concatenates them."""
    deterministic: Flag = False
    """Always take the most likely action."""
    memory: Memory | None = None
    """Makes the policy recurrent (LSTM); without the block it is not."""


class Hyperparameters(Block):
    """Hyperparameters of every algorithm."""

    model_config = ConfigDict(validate_default=True)

    batch_size: Count = 1024
    """Timesteps per gradient step."""
    buffer_size: Count = 10240
    """PPO and POCA: timesteps per update. SAC: transitions that the replay buffer holds."""
    learning_rate: Positive = 3e-4
    """Learning rate of Adam, at the start of its schedule."""
    learning_rate_schedule: Schedule = "linear"
    """`linear` decreases to 1e-10 at `max_steps`; `constant` stays."""

    @field_validator("buffer_size")
    @classmethod
    def _holds_a_batch(cls, buffer_size: int, info: ValidationInfo) -> int:
        batch_size = info.data.get("batch_size", 0)
        if buffer_size < batch_size:
            raise _refusal(
                f"give at least batch_size, {batch_size}, or lower batch_size: no batch can be drawn from less"
            )
        return buffer_size


def _learning_rate_schedule(given: dict[str, Any]) -> Schedule:
    # For invalid values, some versions of pydantic call this without it.
    return cast(Schedule, given.get("learning_rate_schedule", "linear"))


class POCAHyperparameters(Hyperparameters):
    """`beta_schedule` and `epsilon_schedule` follow `learning_rate_schedule` unless they are given."""

    beta: NotNegative = 5e-3
    """Coefficient of the entropy bonus."""
    epsilon: Positive = 0.2
    """Clip range of the probability ratio."""
    lambd: Fraction = 0.95
    """λ of generalized advantage estimation."""
    num_epoch: Count = 3
    """Epochs per update."""
    beta_schedule: Schedule = Field(default_factory=_learning_rate_schedule)
    """Schedule of `beta`; default: that of `learning_rate_schedule`."""
    epsilon_schedule: Schedule = Field(default_factory=_learning_rate_schedule)
    """Schedule of `epsilon`; default: that of `learning_rate_schedule`."""


class PPOHyperparameters(POCAHyperparameters):
    """Hyperparameters of PPO."""

    shared_critic: Flag = False
    """Policy and critic share their network body."""
    second_critic: Literal["max", "min", "mean"] | None = None
    """Train a second critic; the larger, smaller or mean estimate of both counts."""

    @field_validator("second_critic")
    @classmethod
    def _beside_a_critic_of_its_own(cls, second_critic: str | None, info: ValidationInfo) -> str | None:
        if second_critic is not None and info.data.get("shared_critic"):
            raise _refusal("leave it out, or give shared_critic: false: a shared critic has no second one")
        return second_critic


class SACHyperparameters(Hyperparameters):
    """Hyperparameters of SAC. `steps_per_update` counts timesteps of all agents per gradient step."""

    batch_size: Count = 128
    buffer_size: Count = 50000
    learning_rate_schedule: Schedule = "constant"
    buffer_init_steps: CountOrZero = 0
    """Timesteps before the first update; also after `--resume`, unless `save_replay_buffer` is set."""
    tau: Annotated[Number, Gt(0), Le(1)] = 0.005
    """Fraction by which the target network moves to the critic per gradient step."""
    steps_per_update: Positive = 1.0
    """Timesteps per gradient step."""
    save_replay_buffer: Flag = False
    """Store the replay buffer with each checkpoint, for `--resume`."""
    init_entcoef: Positive = 1.0
    """Entropy coefficient at the start."""
    reward_signal_steps_per_update: Positive = Field(
        default_factory=lambda given: cast(float, given.get("steps_per_update", 1.0))
    )
    """Timesteps per gradient step of reward signals; default: `steps_per_update`."""


class BCHyperparameters(Hyperparameters):
    """Hyperparameters of behavioral cloning: `num_epoch` epochs after each `buffer_size` timesteps."""

    batch_size: Count = 64
    buffer_size: Count = 1000
    """Timesteps of the agents per update; with `teacher`, those of the teacher."""
    learning_rate: Positive = 1e-3
    learning_rate_schedule: Schedule = "constant"
    num_epoch: Count = 1
    """Epochs per update."""
    validation_fraction: Annotated[Number, Ge(0), Lt(1)] = 0.1
    """Fraction of the demonstrations for validation instead of training."""
    window: Count = 20
    """With `teacher`, number of the latest updates whose decisions are used for training."""


class SignalSettings(Block):
    """Settings of every reward signal."""

    gamma: Fraction = 0.99
    """Discount factor of this signal's returns."""
    strength: NotNegative = 1.0
    """Factor of this signal's rewards."""


class RewardSignal(SignalSettings):
    """Settings of a reward signal with networks of its own."""

    network_settings: NetworkSettings = NetworkSettings()
    """Network of the signal's own model."""


class Curiosity(RewardSignal):
    """Intrinsic reward for outcomes that a model of the environment does not predict well."""

    learning_rate: Positive = 3e-4
    """Learning rate of the forward and inverse models."""


class GAIL(RewardSignal):
    """Reward for acting as in demonstrations."""

    demo_path: Text
    """A `.demo` file or a folder of such files."""
    learning_rate: Positive = 3e-4
    """Learning rate of the discriminator."""
    use_actions: Flag = False
    """Discriminate observations with actions instead of observations alone."""
    use_vail: Flag = False
    """Limit the discriminator's information by a variational bottleneck."""


class RND(RewardSignal):
    """Intrinsic reward for observations that differ from those seen before."""

    learning_rate: Positive = 1e-4
    """Learning rate of the predictor."""


_VALUES: dict[object, object] = {float: Number, int: Whole, bool: Flag, str: Text}


def _fields(found: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the fields of a block whose keys are the keyword arguments of a plugin."""
    return {
        name: (_VALUES.get(parameter.annotation, parameter.annotation), parameter.default)
        for name, parameter in found.items()
    }


@functools.lru_cache
def _signal_settings(signal: type) -> type[SignalSettings]:
    base: Any = RewardSignal if takes_any_keyword(signal) else SignalSettings
    found = parameters(signal)
    created: Any = create_model(signal.__name__, __base__=base, **_fields(found))
    return created  # type: ignore[no-any-return]


class _Named(NamedTuple):
    """Block of a reward signal of a plugin, with the signal's name."""

    name: str
    block: object


def _plugged_signal(given: object) -> object:
    if not isinstance(given, _Named):
        return given
    signal = load_signal(given.name)
    return _signal_settings(signal).model_validate({} if given.block is None else given.block)  # type: ignore[arg-type]


class RewardSignals(Block):
    """Rewards to maximize; None disables a signal. `extrinsic` is implied only if no signal is given.

    Signals of plugins are further keys; see `sb3_ext.plugins`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[SerializeAsAny[SignalSettings], BeforeValidator(_plugged_signal)]] = Field(
        init=False
    )

    extrinsic: RewardSignal | None = None
    """Reward of the scene."""
    curiosity: Curiosity | None = None
    """Intrinsic curiosity (ICM)."""
    gail: GAIL | None = None
    """Generative adversarial imitation learning."""
    rnd: RND | None = None
    """Random network distillation."""

    @classmethod
    def _further_keys(cls) -> list[str]:
        return plugin_names(SIGNALS)

    @classmethod
    def _block_of(cls, data: Any) -> Any:
        if data is None:
            return {"extrinsic": {}}
        if not isinstance(data, Mapping):
            return data
        if all(signal is None for signal in data.values()):
            raise _refusal("name at least one signal, or delete the block to learn from extrinsic reward alone")
        further = set(cls._further_keys()) - cls.model_fields.keys()
        return {name: _Named(name, block) if name in further else block for name, block in data.items()}

    @model_serializer(mode="wrap")
    def _used_only(self, write: SerializerFunctionWrapHandler) -> Tree:
        return {name: signal for name, signal in write(self).items() if signal is not None}

    def items(self) -> Iterator[tuple[str, SignalSettings]]:
        """Yield the signals in use, by name."""
        for name in type(self).model_fields:
            if (signal := getattr(self, name)) is not None:
                yield name, signal
        yield from (self.__pydantic_extra__ or {}).items()


class BehavioralCloning(Block):
    """Behavioral cloning in addition to the reward; with `steps` 0 during the whole run."""

    demo_path: Text
    """A `.demo` file or a folder of such files."""
    steps: CountOrZero = 0
    """Timesteps over which the strength decreases to 0; 0: constant strength."""
    strength: NotNegative = 1.0
    """Factor of the learning rate."""
    samples_per_update: CountOrZero = 0
    """Maximum number of decisions per epoch, sampled at random; 0: all."""
    num_epoch: Count | None = None
    """Epochs per update; default: that of the trainer, 3."""
    batch_size: Count | None = None
    """Decisions per gradient step; default: that of the trainer."""


class SelfPlay(Block):
    """Self-play. `opponents` are `.onnx` files of the behavior, which play in addition to its snapshots."""

    save_steps: Count = 20000
    """Timesteps between snapshots of the learning team."""
    team_change: Count = Field(default_factory=lambda given: 5 * cast(int, given.get("save_steps", 1)))
    """Timesteps until another team learns; default: 5 times `save_steps`."""
    swap_steps: Count = 2000
    """Timesteps of the opponents until another opponent is sampled."""
    window: Count = 10
    """Number of latest snapshots from which opponents are sampled."""
    play_against_latest_model_ratio: Fraction = 0.5
    """Probability that the opponent is the current policy."""
    initial_elo: Number = 1200.0
    """Rating at the start."""
    opponents: list[Text] = []
    """ONNX files of the behavior that play in addition to the snapshots."""


class BehaviorSettings(Block):
    """Settings of one behavior. `keep_checkpoints` of 0 or less keeps all of them."""

    trainer_type: str
    """`ppo`, `poca`, `sac`, `bc`, `fixed`, or a trainer of a plugin."""
    hyperparameters: Hyperparameters
    """Hyperparameters of the trainer."""
    network_settings: NetworkSettings = NetworkSettings()
    """Networks of policy and critic."""
    reward_signals: RewardSignals = RewardSignals(extrinsic=RewardSignal())
    """Rewards to maximize."""
    init_path: Text | None = None
    """Checkpoint with the initial weights of the networks."""
    keep_checkpoints: Whole = 5
    """Number of checkpoints to keep; 0 or less: all."""
    even_checkpoints: Flag = False
    """Spread `keep_checkpoints` checkpoints evenly over the run."""
    max_steps: Count = 500000
    """Timesteps of the run."""
    checkpoint_interval: Count = Field(default=500000, validate_default=True)
    """Timesteps between checkpoints."""
    time_horizon: Count = 64
    """Decisions after which a trajectory is cut and bootstrapped."""
    summary_freq: Count = 50000
    """Timesteps between summaries."""
    threaded: Flag = False
    """Update in a background thread while agents act."""
    self_play: SelfPlay | None = None
    """Train against snapshots of the policy."""
    behavioral_cloning: BehavioralCloning | None = None
    """Clone demonstrations in addition to the reward."""

    @property
    def is_deterministic(self) -> bool:
        """Whether agents always take the most likely action."""
        return self.network_settings.deterministic

    @field_validator("checkpoint_interval")
    @classmethod
    def _even_interval(cls, interval: int, info: ValidationInfo) -> int:
        """Divide the run evenly with `even_checkpoints`, whatever the given interval is."""
        if not info.data.get("even_checkpoints") or not {"keep_checkpoints", "max_steps"} <= info.data.keys():
            return interval
        keep, max_steps = info.data["keep_checkpoints"], info.data["max_steps"]
        if not 0 < keep <= max_steps:
            raise _refusal(
                f"even_checkpoints divides max_steps, {max_steps}, by keep_checkpoints, {keep}: give keep_checkpoints "
                "from 1 to max_steps, or even_checkpoints: false"
            )
        return int(max_steps // keep)

    @field_validator("network_settings")
    @classmethod
    def _sequences_fit(cls, network: NetworkSettings, info: ValidationInfo) -> NetworkSettings:
        memory, hyperparameters = network.memory, info.data.get("hyperparameters")
        if memory is not None and hyperparameters is not None and memory.sequence_length > hyperparameters.batch_size:
            raise _refusal(
                f"give at most hyperparameters.batch_size, {hyperparameters.batch_size}: a batch is made of whole "
                "sequences",
                at=("memory", "sequence_length"),
                value=memory.sequence_length,
            )
        return network


class PPOSettings(BehaviorSettings):
    """Settings of a behavior, with the defaults of PPO."""

    trainer_type: Literal["ppo"] = "ppo"
    hyperparameters: PPOHyperparameters = PPOHyperparameters()


class POCASettings(BehaviorSettings):
    """Settings of a behavior, with the defaults of MA-POCA."""

    trainer_type: Literal["poca"] = "poca"
    hyperparameters: POCAHyperparameters = POCAHyperparameters()


class SACSettings(BehaviorSettings):
    """Settings of a behavior, with the defaults of SAC."""

    trainer_type: Literal["sac"] = "sac"
    hyperparameters: SACHyperparameters = SACHyperparameters()


class BCSettings(BehaviorSettings):
    """Settings of behavioral cloning, from `demo_path` or `teacher`.

    The reward is only reported; `time_horizon` is not used.
    """

    trainer_type: Literal["bc"] = "bc"
    hyperparameters: BCHyperparameters = BCHyperparameters()
    demo_path: Text | None = None
    """A `.demo` file or a folder of such files."""
    teacher: Text | None = None
    """Behavior of the scene that is the teacher, instead of demonstrations."""


class FixedSettings(BehaviorSettings):
    """Settings of a behavior that acts without training. It inherits nothing from `default_settings`."""

    trainer_type: Literal["fixed"] = "fixed"
    hyperparameters: Hyperparameters = Hyperparameters()
    policy: Text
    """An `.onnx` file, or `module:function`."""
    deterministic: Flag = False
    """Always take the most likely action."""

    @classmethod
    def _block_of(cls, data: Any) -> Any:
        further = [str(key) for key in data if key not in FIXED_KEYS] if isinstance(data, Mapping) else []
        if further:
            raise _refusal(
                f"delete {', '.join(further)}: a behavior with trainer_type fixed has {', '.join(FIXED_KEYS)} alone"
            )
        return super()._block_of(data)

    @model_serializer(mode="wrap")
    def _own_keys(self, write: SerializerFunctionWrapHandler) -> Tree:
        return {name: value for name, value in write(self).items() if name in FIXED_KEYS}

    @property
    def is_deterministic(self) -> bool:
        """Whether agents always take the most likely action."""
        return self.deterministic


FIXED_KEYS = ("trainer_type", "policy", "deterministic")

# pydantic's error locations contain the tag; with this character, which YAML forbids, it cannot be taken for a key.
TAG = "\0"
TRAINERS: dict[str, type[BehaviorSettings]] = {
    "ppo": PPOSettings,
    "poca": POCASettings,
    "sac": SACSettings,
    "bc": BCSettings,
    "fixed": FixedSettings,
}


def trainer_types() -> list[str]:
    """Return the names of all trainers, also of those of plugins."""
    return [*TRAINERS, *(name for name in plugin_names(TRAINER_PLUGINS) if name not in TRAINERS)]


@functools.lru_cache
def _trainer_settings(trainer_type: str, trainer: type) -> type[BehaviorSettings]:
    """Return the settings of a trainer of a plugin: those of its base class, and its own keyword arguments."""
    name, base = base_trainer(trainer)
    kind: Any = TRAINERS[name].model_fields["hyperparameters"].annotation
    hyperparameters: Any = create_model(trainer.__name__, __base__=kind, **_fields(parameters(trainer, base)))
    literal: Any = Literal[trainer_type]
    return create_model(
        trainer.__name__,
        __base__=BehaviorSettings,
        trainer_type=(literal, trainer_type),
        hyperparameters=(hyperparameters, Field(default={}, validate_default=True)),
    )


def _plugged_trainer(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = value["trainer_type"]
    trainer = load_trainer(name)
    return _trainer_settings(name, trainer).model_validate(value)  # type: ignore[arg-type]  # classes are hashable


def _trainer_tag(value: Any) -> str | None:
    given = value.get("trainer_type", "ppo") if isinstance(value, Mapping) else getattr(value, "trainer_type", "ppo")
    if given in list(TRAINERS):
        return TAG + given
    return TAG + "plugin" if given in trainer_types() else None


AnyBehavior = Annotated[
    Annotated[PPOSettings, Tag(TAG + "ppo")]
    | Annotated[POCASettings, Tag(TAG + "poca")]
    | Annotated[SACSettings, Tag(TAG + "sac")]
    | Annotated[BCSettings, Tag(TAG + "bc")]
    | Annotated[FixedSettings, Tag(TAG + "fixed")]
    | Annotated[SerializeAsAny[BehaviorSettings], BeforeValidator(_plugged_trainer), Tag(TAG + "plugin")],
    Discriminator(
        _trainer_tag,
        custom_error_type="behavior",
        custom_error_message="behavior",
    ),
]


# ---------------------------------------------------------------------------------------------------------------------
# Environment parameters


class SamplerParameters(Block):
    """Parameters of every sampler; `seed` -1 is derived from the run's."""

    seed: CountOrMinusOne = -1
    """Seed of the sampler; -1: derived from the seed of the run."""


class ConstantParameters(SamplerParameters):
    """Parameter of a sampler that always returns one value."""

    value: Number = 0.0
    """Value."""


class UniformParameters(SamplerParameters):
    """Interval of a uniform sampler."""

    min_value: Number = 0.0
    """Lower bound."""
    max_value: Number = Field(default=1.0, validate_default=True)
    """Upper bound."""

    @field_validator("max_value")
    @classmethod
    def _in_order(cls, max_value: float, info: ValidationInfo) -> float:
        if max_value < info.data.get("min_value", -math.inf):
            raise _refusal(f"give at least min_value, {info.data['min_value']}")
        return max_value


class GaussianParameters(SamplerParameters):
    """Mean and standard deviation of a normal sampler."""

    mean: Number = 1.0
    """Mean."""
    st_dev: NotNegative = 1.0
    """Standard deviation."""


class MultiRangeParameters(SamplerParameters):
    """Intervals of a sampler that first samples one of them."""

    intervals: Annotated[list[list[Number]], MinLen(1)] = [[0.0, 1.0]]
    """Intervals `[low, high]`; the probability of each is proportional to its length."""

    @field_validator("intervals")
    @classmethod
    def _pairs_in_order(cls, intervals: list[list[float]]) -> list[list[float]]:
        for pair in intervals:
            if len(pair) != 2 or pair[0] > pair[1]:
                raise _refusal(f"give every interval as [low, high] with low <= high; {pair} is none")
        return intervals


class Constant(Block):
    """Sampler that always returns one value."""

    sampler_type: Literal["constant"] = "constant"
    """Kind of the sampler."""
    sampler_parameters: ConstantParameters
    """Parameters of the sampler."""

    @classmethod
    def _block_of(cls, data: Any) -> Any:
        """Convert a bare number to a constant."""
        return {"sampler_parameters": {"value": data}} if isinstance(data, (int, float, str)) else data


class Uniform(Block):
    """Sampler of a uniform distribution."""

    sampler_type: Literal["uniform"] = "uniform"
    """Kind of the sampler."""
    sampler_parameters: UniformParameters
    """Parameters of the sampler."""


class Gaussian(Block):
    """Sampler of a normal distribution."""

    sampler_type: Literal["gaussian"] = "gaussian"
    """Kind of the sampler."""
    sampler_parameters: GaussianParameters
    """Parameters of the sampler."""


class MultiRange(Block):
    """Sampler of uniform distributions over several intervals."""

    sampler_type: Literal["multirangeuniform"] = "multirangeuniform"
    """Kind of the sampler."""
    sampler_parameters: MultiRangeParameters
    """Parameters of the sampler."""


SAMPLERS = ("constant", "uniform", "gaussian", "multirangeuniform")


def _parameter_tag(value: Any) -> str | None:
    """Return the kind of an environment parameter: a number, a sampler or a curriculum."""
    if isinstance(value, Mapping):
        given = "curriculum" if "curriculum" in value else value.get("sampler_type")
        return TAG + given if given in ("curriculum", *SAMPLERS) else None
    if isinstance(value, Block):
        return TAG + getattr(value, "sampler_type", "curriculum")
    try:
        _number(value)
    except PydanticCustomError:
        return None
    return TAG + "constant"


_ConstantTagged = Annotated[Constant, Tag(TAG + "constant")]
_UniformTagged = Annotated[Uniform, Tag(TAG + "uniform")]
_GaussianTagged = Annotated[Gaussian, Tag(TAG + "gaussian")]
_MultiRangeTagged = Annotated[MultiRange, Tag(TAG + "multirangeuniform")]

ParameterSampler = Constant | Uniform | Gaussian | MultiRange

Sampler = Annotated[
    _ConstantTagged | _UniformTagged | _GaussianTagged | _MultiRangeTagged,
    Discriminator(
        _parameter_tag,
        custom_error_type="sampler",
        custom_error_message="sampler",
    ),
]


class CompletionCriteria(Block):
    """Criteria for the end of a lesson.

    It ends when `measure` of `behavior` is above `threshold`, after at least `min_lesson_length` episodes. `Elo` is the
    rating of a behavior with `self_play`.
    """

    behavior: Text
    """Name of the measured behavior."""
    measure: Literal["reward", "progress", "Elo"] = "reward"
    """`reward`: mean return; `progress`: fraction of `max_steps`; `Elo`: rating in self-play."""
    threshold: Number = Field(default=0.0, validate_default=True)
    """Value that `measure` must exceed."""
    min_lesson_length: CountOrZero = 0
    """Minimum number of episodes of the lesson."""
    signal_smoothing: Flag = True
    """Smooth the mean return: 0.75 of the latest plus 0.25 of the previous one."""
    require_reset: Flag = False
    """Reset the environment when the next lesson starts."""

    @field_validator("threshold")
    @classmethod
    def _share_of_the_run(cls, threshold: float, info: ValidationInfo) -> float:
        if info.data.get("measure") == "progress" and not 0 <= threshold <= 1:
            raise _refusal("give a number from 0 to 1: progress is the share of max_steps that is done")
        return threshold


class Lesson(Block):
    """Lesson of a curriculum."""

    name: Text
    """Name of the lesson."""
    value: Sampler
    """Number or sampler."""
    completion_criteria: CompletionCriteria | None = None
    """Criteria for the end of the lesson; the last one needs none."""


class Curriculum(Block):
    """Lessons in order."""

    curriculum: Annotated[list[Lesson], MinLen(1)]
    """Lessons in order."""

    @field_validator("curriculum")
    @classmethod
    def _every_lesson_but_the_last_ends(cls, lessons: list[Lesson]) -> list[Lesson]:
        for index, lesson in enumerate(lessons[:-1]):
            if lesson.completion_criteria is None:
                raise _refusal(
                    "give completion_criteria: without them the next lesson never starts",
                    at=(index, "completion_criteria"),
                )
        return lessons


EnvironmentParameter = Annotated[
    _ConstantTagged
    | _UniformTagged
    | _GaussianTagged
    | _MultiRangeTagged
    | Annotated[Curriculum, Tag(TAG + "curriculum")],
    Discriminator(
        _parameter_tag,
        custom_error_type="parameter",
        custom_error_message="parameter",
    ),
]


# ---------------------------------------------------------------------------------------------------------------------
# The run


class EnvSettings(Block):
    """Settings of the players. Player i has the seed `seed + i` and the port `base_port + i`.

    `num_workers` processes share the players; with 0, the training process steps them.
    """

    env_path: Text | None = None
    """Build, `Unity-<Scene>-v0`, or `Unity-v0` for the Editor."""
    env_args: list[Text] | None = None
    """Command-line arguments for the player."""
    base_port: Annotated[Whole, Ge(1), Le(65535)] = 5005
    """Player i listens on `base_port + i`. Free ports are picked unless the key is given."""
    num_envs: Count = 1
    """Number of players."""
    num_workers: CountOrZero = 0
    """Processes that share the players; 0: the training process steps them."""
    num_areas: Count = 1
    """Training areas per player."""
    timeout_wait: Count = 60
    """Seconds to wait for a message of a player."""
    seed: CountOrMinusOne = -1
    """Player i has the seed `seed + i`; -1: drawn at random."""
    max_lifetime_restarts: CountOrMinusOne = 10
    """Maximum number of restarts of failed players; -1: no limit."""
    restarts_rate_limit_n: CountOrMinusOne = 1
    """Maximum number of restarts within `restarts_rate_limit_period_s`; -1: no limit."""
    restarts_rate_limit_period_s: Count = 60
    """Length of that period in seconds."""

    @field_validator("num_workers")
    @classmethod
    def _players_for_each(cls, num_workers: int, info: ValidationInfo) -> int:
        num_envs = info.data.get("num_envs", 1)
        if num_workers > num_envs:
            raise _refusal(f"give at most num_envs, which is {num_envs}: each worker needs a player")
        return num_workers

    @field_validator("num_envs")
    @classmethod
    def _ports_exist(cls, num_envs: int, info: ValidationInfo) -> int:
        base_port = info.data.get("base_port", 1)
        if base_port + num_envs - 1 > 65535:
            raise _refusal(f"give fewer, or a lower base_port: the ports from {base_port} on end at 65535")
        return num_envs


class RaySettings(Block):
    """Settings of a Ray cluster, which runs the samplers of `num_workers`.

    `samplers` and `players_per_sampler` are another way to give `num_workers` and `num_envs`. Without an `address`, the
    cluster of this machine is used, and started if there is none.
    """

    address: Text | None = None
    """Address of the cluster; default: that of this machine. `local` always starts one."""
    samplers: Count | None = None
    """Number of samplers; default: `num_workers`, at least 1."""
    players_per_sampler: Count | None = None
    """Players per sampler; default: `num_envs` divided among the samplers."""
    num_cpus_per_sampler: NotNegative = 1.0
    """CPUs that each sampler reserves on its node for itself and its players."""
    num_gpus_per_sampler: NotNegative = 0.0
    """GPUs that each sampler reserves on its node, for players that render."""
    ship_build: Flag = False
    """Copy the folder of the build to each node."""


class EngineSettings(Block):
    """Settings of the player's engine."""

    width: Count = 84
    """Width of the window in pixels."""
    height: Count = 84
    """Height of the window in pixels."""
    quality_level: CountOrZero = 5
    """Index of the project's quality level."""
    time_scale: Positive = 20.0
    """Simulated seconds per second."""
    target_frame_rate: CountOrMinusOne = -1
    """Frames per second; -1: unlimited."""
    capture_frame_rate: CountOrZero = 60
    """Frames per simulated second; 0: variable."""
    no_graphics: Flag = False
    """Launch players without rendering."""
    no_graphics_monitor: Flag = False
    """Launch all players but the first without rendering."""


class CheckpointSettings(Block):
    """Settings of the name, folder and checkpoints of the run."""

    run_id: Text = "ppo"
    """Name of the run and of its folder."""
    initialize_from: Text | None = None
    """Run with the initial weights of the networks."""
    resume: Flag = False
    """Continue the run of this name."""
    force: Flag = False
    """Delete the run of this name and start from scratch."""
    inference: Flag = False
    """Act without training."""
    results_dir: Text = "results"
    """Folder for the folders of all runs."""


_DEVICE = r"(cpu|cuda|mps|xpu)(:\d+)?"


class TorchSettings(Block):
    """Settings of PyTorch."""

    device: Text | None = None
    """`cpu`, `cuda`, `cuda:1`, `mps` or `xpu`, several with commas; default: the GPU where there is one."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str | None) -> str | None:
        if device is not None and not all(re.fullmatch(_DEVICE, name) for name in device.split(",")):
            raise _refusal(
                "give cpu, cuda, mps or xpu; one of several has a number: cuda:0; updates are shared by cuda:0,cuda:1"
            )
        return device


def _stats_writer(value: object) -> str:
    known = plugin_names(WRITERS)
    if isinstance(value, str) and value in known:
        return value
    names = f"known are {either(known)}{did_you_mean(value, known)}" if known else "none is installed"
    raise _refusal(f"give the name of a statistics writer of an installed package; {names}")


class RunSettings(Block):
    """All settings of a run.

    `stats_writers` are those of plugins, in addition to TensorBoard; see `sb3_ext.plugins`.
    """

    default_settings: AnyBehavior | None = None
    """Settings of behaviors that `behaviors` does not contain, and defaults for those it does."""
    behaviors: Annotated[dict[str, AnyBehavior], BeforeValidator(_nothing_is_empty)] = {}
    """Settings by behavior name."""
    env_settings: EnvSettings = EnvSettings()
    """Settings of the players."""
    ray: Annotated[RaySettings | None, BeforeValidator(_nothing_is_empty)] = None
    """Settings of the Ray cluster that runs the samplers of `num_workers`."""
    engine_settings: EngineSettings = EngineSettings()
    """Settings of the player's engine."""
    environment_parameters: Annotated[dict[str, EnvironmentParameter], BeforeValidator(_nothing_is_empty)] = {}
    """Number, sampler or curriculum of each environment parameter, by name."""
    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    """Settings of the run's name, folder and checkpoints."""
    torch_settings: TorchSettings = TorchSettings()
    """Settings of PyTorch."""
    debug: Flag = False
    """Print details, with time and source location."""
    stats_writers: list[Annotated[str, BeforeValidator(_stats_writer)]] = []
    """Statistics writers of plugins, in addition to TensorBoard."""

    def behavior(self, name: str) -> BehaviorSettings:
        """Return the settings of a behavior of the environment; a team (`Name?team=0`) has those of its name.

        :raises SettingsError: If `behaviors` does not contain it and there is no `default_settings`.
        """
        plain = name.split("?", 1)[0]
        found = self.behaviors.get(plain, self.default_settings)
        if found is None:
            raise SettingsError(
                f"behaviors.{plain} is missing: the environment has a behavior {plain!r}, the settings have "
                f"{', '.join(self.behaviors) or 'none'}{did_you_mean(plain, self.behaviors)}. Rename one, or add "
                "default_settings for all that are not named"
            )
        return found
