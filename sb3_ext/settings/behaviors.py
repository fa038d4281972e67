"""Settings of one behavior."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
)

from sb3_ext.plugins import ENCODERS, SIGNALS, Parameter, parameters, plugin_names, takes_any_keyword
from sb3_ext.plugins import TRAINERS as TRAINER_PLUGINS
from sb3_ext.settings.blocks import (
    OWN,
    TAG,
    Block,
    Count,
    CountOrZero,
    Flag,
    Fraction,
    NotNegative,
    Number,
    PathText,
    Positive,
    Schedule,
    Text,
    Whole,
    rejection,
)
from sb3_ext.settings.document import Tree, did_you_mean, either


class Memory(Block):
    """LSTM of `memory_size / 2` cells: the recurrent state is its hidden state, followed by its cell state."""

    sequence_length: Count = 64
    """Decisions per training sequence of the LSTM."""
    memory_size: Count = 128
    """Size of the recurrent state; even."""
    use_previous_action: Annotated[Flag, OWN] = False
    """Whether the previous action of the agent is an input of the LSTM, too."""

    @field_validator("memory_size")
    @classmethod
    def _even(cls, size: int) -> int:
        if size % 2:
            raise rejection("give an even number: half of it is hidden state, half cell state")
        return size


_VIS_ENCODE_TYPES = ("simple", "nature_cnn", "resnet", "match3", "fully_connected")


def _encoder(value: object) -> str:
    """Return the name of a visual encoder, also of one of a plugin."""
    allowed = [*_VIS_ENCODE_TYPES, *plugin_names(ENCODERS)]
    if isinstance(value, str) and value in allowed:
        return value
    raise rejection(f"give {either(allowed)}{did_you_mean(value, allowed)}")


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
    """PPO and POCA: timesteps per update, with memory a few more. SAC: transitions that the replay buffer holds."""
    learning_rate: Positive = 3e-4
    """Learning rate of Adam, at the start of its schedule."""
    learning_rate_schedule: Schedule = "linear"
    """`linear` decreases to 1e-10 at `max_steps`; `constant` stays."""

    @field_validator("buffer_size")
    @classmethod
    def _holds_a_batch(cls, buffer_size: int, info: ValidationInfo) -> int:
        batch_size = info.data.get("batch_size", 0)
        if buffer_size < batch_size:
            raise rejection(
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
    second_critic: Annotated[Literal["max", "min", "mean"] | None, OWN] = None
    """Train a second critic; the larger, smaller or mean estimate of both counts."""

    @field_validator("second_critic")
    @classmethod
    def _require_own_critic(cls, second_critic: str | None, info: ValidationInfo) -> str | None:
        if second_critic is not None and info.data.get("shared_critic"):
            raise rejection("leave it out, or give shared_critic: false: a shared critic has no second one")
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
    """Entropy coefficient at the start, also with `initialize_from` or `init_path`."""
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

    demo_path: PathText
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
    from sb3_ext.plugin_classes import load_signal  # imports torch, which only plugins need

    signal = load_signal(given.name)
    return _signal_settings(signal).model_validate({} if given.block is None else given.block)  # type: ignore[arg-type]


class RewardSignals(Block):
    """Rewards to maximize; an empty signal has its defaults. `extrinsic` is implied only if no signal is given.

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
            raise rejection("name at least one signal, or delete the block to learn from extrinsic reward alone")
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

    demo_path: PathText
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
    opponents: Annotated[list[PathText], OWN] = Field(default=[])
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
    init_path: PathText | None = None
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
            raise rejection(
                f"even_checkpoints divides max_steps, {max_steps}, by keep_checkpoints, {keep}: give keep_checkpoints "
                "from 1 to max_steps, or even_checkpoints: false"
            )
        return int(max_steps // keep)

    @field_validator("network_settings")
    @classmethod
    def _sequences_fit(cls, network: NetworkSettings, info: ValidationInfo) -> NetworkSettings:
        memory, hyperparameters = network.memory, info.data.get("hyperparameters")
        if memory is not None and hyperparameters is not None and memory.sequence_length > hyperparameters.batch_size:
            raise rejection(
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

    lacks: ClassVar[tuple[str, ...]] = ("self_play", "behavioral_cloning", "threaded")

    trainer_type: Literal["bc"] = "bc"
    hyperparameters: BCHyperparameters = BCHyperparameters()
    demo_path: PathText | None = None
    """A `.demo` file or a folder of such files."""
    teacher: Text | None = None
    """Behavior of the scene that is the teacher, instead of demonstrations."""


class FixedSettings(BehaviorSettings):
    """Settings of a behavior that acts without training. It inherits nothing from `default_settings`."""

    trainer_type: Literal["fixed"] = "fixed"
    hyperparameters: Hyperparameters = Hyperparameters()
    policy: PathText
    """An `.onnx` file, or `module:function`."""
    deterministic: Flag = False
    """Always take the most likely action."""

    @classmethod
    def _block_of(cls, data: Any) -> Any:
        further = [str(key) for key in data if key not in FIXED_KEYS] if isinstance(data, Mapping) else []
        if further:
            raise rejection(
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
    from sb3_ext.plugin_classes import base_trainer

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
    from sb3_ext.plugin_classes import load_trainer

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
