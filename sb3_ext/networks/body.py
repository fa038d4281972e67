"""`NetworkBody`: what the sensors of a behavior send → features. The trunk of actors, critics and reward signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sb3_ext.networks.actions import action_features_size
from sb3_ext.networks.conditioning import GoalConditionedLayer
from sb3_ext.networks.encoders import visual_encoder
from sb3_ext.networks.entities import WIDTH, EntityAttention
from sb3_ext.networks.extractor import SensorExtractor
from sb3_ext.networks.layers import dense_layers
from sb3_ext.networks.memory import Memory
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import BehaviorSpec, DimensionProperty, ObservationType


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The size and kind of a network, under Unity's names.

    :param hidden_units: width of the layers and of every visual encoding
    :param num_layers: dense layers after the encodings
    :param normalize: normalize vector observations by their running statistics
    :param vis_encode_type: see `visual_encoder`
    :param goal_conditioning_type: "hyper" lets goal observations write the last layer's weights, "none" treats them as
        any other
    :param memory_size: numbers of LSTM memory, even; 0 for none
    :param sequence_length: decisions through which the memory is trained
    :param use_previous_action: The LSTM also reads the agent's previous action, which is zeros at the start of an
        episode.
    :param net_arch: Widths of the dense layers, instead of `num_layers` of `hidden_units`; the width of encodings
        stays `hidden_units`.
    :param activation_fn: Activation behind each dense layer.
    :param normalize_images: Read images in `[0, 1]`; False reads them in `[0, 255]`.
    :param features_extractor: Builds what reads the sensors, instead of the encoders, the attention over entities and
        the goal conditioning.
    :raises UnityGymError: a size that is no size
    :raises InvalidValueError: another kind of goal conditioning
    """

    hidden_units: int = 128
    num_layers: int = 2
    normalize: bool = False
    vis_encode_type: str = "simple"
    goal_conditioning_type: str = "hyper"
    memory_size: int = 0
    sequence_length: int = 64
    use_previous_action: bool = False
    net_arch: tuple[int, ...] | None = None
    activation_fn: type[nn.Module] = nn.SiLU
    normalize_images: bool = True
    features_extractor: Callable[[], SensorExtractor] | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the dense layers."""
        return (self.hidden_units,) * self.num_layers if self.net_arch is None else self.net_arch

    def __post_init__(self) -> None:
        for name in ("hidden_units", "num_layers", "sequence_length"):
            if getattr(self, name) < 1:
                raise UnityGymError(f"{name} is at least 1; got {getattr(self, name)}")
        if any(width < 1 for width in self.widths):
            raise UnityGymError(f"the widths of net_arch must be at least 1, got {list(self.widths)}")
        if self.memory_size < 0 or self.memory_size % 2:
            raise UnityGymError(f"memory_size is even, or 0 for no memory; got {self.memory_size}")
        if self.use_previous_action and not self.memory_size:
            raise UnityGymError(
                "use_previous_action must come with memory_size, got memory_size=0: the LSTM reads the previous action"
            )
        if self.goal_conditioning_type not in ("hyper", "none"):
            raise InvalidValueError(f"goal_conditioning_type is 'hyper' or 'none', not {self.goal_conditioning_type!r}")


class Inputs(list[torch.Tensor]):
    """Observations as `Encoding.encode` reads them, one (n, …) each: vectors as one, then images, then entities."""


def as_floats(observations: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the observations with images as uint8 in `[0, 255]` scaled to `[0, 1]`."""
    return [column / 255 if column.dtype == torch.uint8 else column for column in observations]


class Encoding(nn.Module):
    """Sensor columns → the numbers that dense layers read: encoders, normalization, attention over entities.

    Vector sensors are concatenated (and normalized), each image has an encoder of its own, sensors with a varying
    number of entities are attended to. `size` is the width of the result, and `goals` says which of its numbers tell
    the goal, where that writes weights.

    :param spec: what the agents observe
    :param settings: size and kind
    :param normalization: statistics to share with another network of the same behavior
    :raises UnityGymError: a sensor that no encoder takes
    """

    def __init__(
        self, spec: BehaviorSpec, settings: NetworkSettings, normalization: RunningNormalization | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        sensors = spec.observation_specs
        self._vectors = [index for index, sensor in enumerate(sensors) if len(sensor.shape) == 1]
        self._images = [index for index, sensor in enumerate(sensors) if sensor.is_visual]
        self._entities = [index for index, sensor in enumerate(sensors) if len(sensor.shape) == 2]
        width = settings.hidden_units
        self._vector_sizes = [sensors[index].shape[0] for index in self._vectors]
        vector_size = sum(self._vector_sizes)
        self.normalization = None
        if settings.normalize and vector_size:
            self.normalization = normalization or RunningNormalization(vector_size)
        self.extractor = None
        if settings.features_extractor is not None:
            self.extractor = settings.features_extractor()
            self.encoders, self.attention = nn.ModuleList(), None
            self.size, self.goals = self.extractor.size, []
            return
        self.encoders = nn.ModuleList(
            visual_encoder(settings.vis_encode_type, sensors[index].shape, width)  # type: ignore[arg-type]
            for index in self._images
        )
        self.size = vector_size + width * len(self._images)
        for index in self._entities:
            if not sensors[index].dimension_property[0] & DimensionProperty.VARIABLE_SIZE:
                raise UnityGymError(
                    f"sensor {sensors[index].name!r} sends {sensors[index].shape} numbers in a form that no network "
                    "takes: a sensor is a vector, an image C×H×W, or a list of entities of variable length"
                )
        goals = [
            index for index, sensor in enumerate(sensors) if sensor.observation_type is ObservationType.GOAL_SIGNAL
        ]
        if set(goals) & set(self._entities):
            raise UnityGymError("a goal cannot be a list of entities of variable length: use a vector or an image")
        self._goals_are_images = not set(goals).isdisjoint(self._images)
        self.attention = None
        if self._entities:
            self.attention = EntityAttention(self.size, [sensors[index].shape[1] for index in self._entities])
            self.size += WIDTH
        conditions = settings.goal_conditioning_type == "hyper" and bool(settings.widths)
        self.goals = self._find_goals(spec, goals) if conditions else []

    def _find_goals(self, spec: BehaviorSpec, goals: Sequence[int]) -> list[int]:
        """Which of the encoded numbers tell the goal."""
        columns: list[int] = []
        start = 0
        for index in self._vectors + self._images:
            sensor = spec.observation_specs[index]
            size = self.settings.hidden_units if sensor.is_visual else sensor.shape[0]
            if index in goals:
                columns += range(start, start + size)
            start += size
        return columns

    def prepare(self, observations: Sequence[torch.Tensor]) -> Inputs:
        """Join and normalize vector observations, once for all networks and minibatches, as no weights are involved.

        :param observations: One (n, *shape) per sensor; or `Inputs`, which are returned as they are.
        """
        if isinstance(observations, Inputs):
            return observations
        inputs = Inputs()
        if self._vectors:
            vector = self._vector(observations)
            inputs.append(vector if self.normalization is None else self.normalization(vector))
        inputs += [observations[index] for index in (*self._images, *self._entities)]
        return inputs

    def encode(self, observations: Sequence[torch.Tensor]) -> torch.Tensor:
        """One (n, *shape) a sensor, images as uint8 0…255 or float 0…1, or what `prepare` returns → (n, size)."""
        inputs = as_floats(self.prepare(observations))
        vectors, images = bool(self._vectors), len(self._images)
        if not self.settings.normalize_images:
            inputs[vectors : vectors + images] = [image * 255 for image in inputs[vectors : vectors + images]]
        if self.extractor is not None:
            return self.extractor(self._by_sensor(inputs))  # type: ignore[no-any-return]
        parts, entities = inputs[: vectors + images], inputs[vectors + images :]
        for place, encoder in enumerate(self.encoders, vectors):
            parts[place] = encoder(parts[place])
        if not parts:
            parts.append(entities[0].new_zeros((len(entities[0]), 0)))
        fixed = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        if self.attention is None:
            return fixed
        return torch.cat([fixed, self.attention(fixed, entities)], 1)

    def _by_sensor(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return one tensor per sensor, in their order, from what `prepare` returns."""
        sensors: list[torch.Tensor] = []
        if self._vectors:
            sensors += torch.split(inputs[0], self._vector_sizes, 1)
        sensors += inputs[bool(self._vectors) :]
        places = [*self._vectors, *self._images, *self._entities]
        return [sensors[places.index(index)] for index in range(len(places))]

    def _vector(self, observations: Sequence[torch.Tensor]) -> torch.Tensor:
        columns = [observations[index] for index in self._vectors]
        return columns[0] if len(columns) == 1 else torch.cat(columns, 1)

    def update_normalization(self, observations: Sequence[torch.Tensor]) -> None:
        """Add (n, *shape) a sensor to the running statistics, where there are any."""
        if self.normalization is not None:
            self.normalization.update(self._vector(observations))


class NetworkBody(Encoding):
    """Sensor columns → features: the encoding, then dense layers, goal conditioning and memory.

    `features` is the width of the result.

    :param spec: what the agents observe and do
    :param settings: size and kind
    :param normalization: statistics to share with another body of the same behavior
    :param extra_size: numbers in addition to the sensors, such as an action, that are joined to the encodings
    :raises UnityGymError: a sensor that no encoder takes
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        normalization: RunningNormalization | None = None,
        extra_size: int = 0,
    ) -> None:
        super().__init__(spec, settings, normalization)
        size, widths = self.size + extra_size, settings.widths
        width = (size, *widths)[-1]
        self.layers = dense_layers(size, widths[:-1] if self.goals else widths, settings.activation_fn)
        self.goal_layer = None
        if self.goals:
            self.goal_layer = GoalConditionedLayer((size, *widths)[-2], width, len(self.goals))
        self.memory = None
        if settings.memory_size:
            action_size = action_features_size(spec.action_spec) if settings.use_previous_action else 0
            self.memory = Memory(width, settings.memory_size, action_size)
        self.features = settings.memory_size // 2 or width

    def forward(
        self,
        observations: Sequence[torch.Tensor],
        memory: torch.Tensor | None = None,
        length: int = 1,
        extra: torch.Tensor | None = None,
        actions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Features of n rows, which are sequences of `length` rows where there is memory.

        :param observations: one (n, *shape) a sensor; images as uint8 0…255 or float 0…1; or what `prepare` returns
        :param memory: (n / length, state_size), before the first row of each sequence; None without memory
        :param extra: (n, extra size); None without
        :param actions: (n, action size), features of the actions of the rows; see `Memory.forward`
        :return: (n, features), and the memory after the last row of each sequence
        """
        x = self.encode(observations)
        if extra is not None:
            x = torch.cat([x, extra], 1)
        goal = x[:, self.goals] if self.goal_layer is not None else None
        if goal is not None and not self._goals_are_images and not any(column.requires_grad for column in observations):
            goal = goal.detach()  # only what it was joined to depends on weights
        x = self.layers(x)
        if self.goal_layer is not None:
            x = self.goal_layer(x, goal)
        if self.memory is None or memory is None:
            return x, None
        x, memory = self.memory(x, memory.to(x.dtype), length, actions=actions)
        return x, memory

    @property
    def state_size(self) -> int:
        """Size of the recurrent state, with the previous action if it is read; 0 without memory."""
        return 0 if self.memory is None else self.memory.state_size

    @property
    def action_size(self) -> int:
        """Numbers of the previous action in the recurrent state; 0 if it is not read."""
        return 0 if self.memory is None else self.memory.action_size
