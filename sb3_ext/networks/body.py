"""`NetworkBody`: features of a behavior's observations, for actors, critics and reward signals."""

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
from unity_gym.specs import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Size and kind of a network, with Unity's names.

    :param hidden_units: Width of the layers and of each visual encoding.
    :param num_layers: Number of dense layers after the encodings.
    :param normalize: Whether to normalize vector observations by their running statistics.
    :param vis_encode_type: Kind of the visual encoder; see `visual_encoder`.
    :param goal_conditioning_type: "hyper" if goal observations generate the last layer's weights, "none" to treat them
        as any other.
    :param memory_size: Size of the LSTM's state, even; 0 for no LSTM.
    :param sequence_length: Decisions per sequence through which the LSTM is trained.
    :param use_previous_action: Whether the LSTM also reads the agent's previous action, which is zeros at the start of
        an episode.
    :param net_arch: Widths of the dense layers, instead of `num_layers` of `hidden_units`; the width of encodings
        stays `hidden_units`.
    :param activation_fn: Activation after each dense layer: a class, or a function without parameters that returns one
        (such as `functools.partial(nn.LeakyReLU, 0.2)`).
    :param normalize_images: Whether images are in `[0, 1]`; False for `[0, 255]`.
    :param features_extractor: Factory of the extractor that replaces the encoders, the attention over entities and the
        goal conditioning.
    :raises UnityGymError: If a size is out of range, or `use_previous_action` is set without `memory_size`.
    :raises InvalidValueError: If `goal_conditioning_type` has another value.
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
    activation_fn: Callable[[], nn.Module] = nn.SiLU
    normalize_images: bool = True
    features_extractor: Callable[[], SensorExtractor] | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the dense layers."""
        return (self.hidden_units,) * self.num_layers if self.net_arch is None else self.net_arch

    def __post_init__(self) -> None:
        for name in ("hidden_units", "num_layers", "sequence_length"):
            if getattr(self, name) < 1:
                raise UnityGymError(f"{name} must be at least 1, got {getattr(self, name)}")
        if any(width < 1 for width in self.widths):
            raise UnityGymError(f"the widths of net_arch must be at least 1, got {list(self.widths)}")
        if isinstance(self.activation_fn, nn.Module) or not callable(self.activation_fn):
            raise UnityGymError(f"activation_fn must be a class such as torch.nn.ReLU, got {self.activation_fn!r}")
        if self.memory_size < 0 or self.memory_size % 2:
            raise UnityGymError(f"memory_size must be even, or 0 for no LSTM, got {self.memory_size}")
        if self.use_previous_action and not self.memory_size:
            raise UnityGymError(
                "use_previous_action must come with memory_size, got memory_size=0: the LSTM reads the previous action"
            )
        if self.goal_conditioning_type not in ("hyper", "none"):
            raise InvalidValueError(
                f"goal_conditioning_type must be 'hyper' or 'none', got {self.goal_conditioning_type!r}"
            )


class Inputs(list[torch.Tensor]):
    """Inputs of `Encoding.encode`, one tensor (n, …) each: all vectors joined, then images, then entities."""


def as_floats(observations: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the observations with images as uint8 in `[0, 255]` scaled to `[0, 1]`."""
    return [tensor / 255 if tensor.dtype == torch.uint8 else tensor for tensor in observations]


def _is_entity_list(sensor: ObservationSpec) -> bool:
    """Return whether a sensor sends a varying number of entities, at least one of which can be present."""
    shape, properties = sensor.shape, sensor.dimension_property
    return len(shape) == 2 and min(shape) > 0 and bool(properties[0] & DimensionProperty.VARIABLE_SIZE)


class Encoding(nn.Module):
    """Encoding of observations for dense layers: encoders, normalization, attention over entities.

    Vector sensors are concatenated (and normalized), each image has its own encoder, and sensors with a varying number
    of entities share an attention. `size` is the width of the result. `goals` are the indices of its features that
    encode the goal, if goals generate weights.

    :param spec: Specification of the behavior.
    :param settings: Size and kind of the network.
    :param normalization: Statistics to share with another network of the same behavior.
    :raises UnityGymError: If no encoder supports a sensor.
    """

    _goal_index: torch.Tensor

    def __init__(
        self, spec: BehaviorSpec, settings: NetworkSettings, normalization: RunningNormalization | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        sensors = spec.observation_specs
        self._vectors = [index for index, sensor in enumerate(sensors) if len(sensor.shape) == 1]
        self._images = [index for index, sensor in enumerate(sensors) if sensor.is_visual]
        # any other sensor, too: only an extractor of the user's own takes one
        self._entities = [index for index, sensor in enumerate(sensors) if len(sensor.shape) not in (1, 3)]
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
            if not _is_entity_list(sensors[index]):
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
        self.register_buffer("_goal_index", torch.tensor(self.goals, dtype=torch.int64), persistent=False)

    def _find_goals(self, spec: BehaviorSpec, goals: Sequence[int]) -> list[int]:
        """Return the indices of the encoded features that belong to the goal."""
        positions: list[int] = []
        start = 0
        for index in self._vectors + self._images:
            sensor = spec.observation_specs[index]
            size = self.settings.hidden_units if sensor.is_visual else sensor.shape[0]
            if index in goals:
                positions += range(start, start + size)
            start += size
        return positions

    def goal_of(self, encoded: torch.Tensor) -> torch.Tensor:
        """Return the features of `goals` (n, goal size) from an encoding (n, size)."""
        return encoded.index_select(1, self._goal_index)

    def prepare(self, observations: Sequence[torch.Tensor]) -> Inputs:
        """Join and normalize vector observations, once for all networks and minibatches, as no weights are involved.

        :param observations: One tensor (n, *shape) per sensor; or `Inputs`, which are returned unchanged.
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
        """Return the encoding (n, size).

        :param observations: One tensor (n, *shape) per sensor, images as uint8 in `[0, 255]` or float in `[0, 1]`; or
            the return value of `prepare`.
        """
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
        """Return one tensor per sensor, in their order, from the return value of `prepare`."""
        sensors: list[torch.Tensor] = []
        if self._vectors:
            sensors += torch.split(inputs[0], self._vector_sizes, 1)
        sensors += inputs[bool(self._vectors) :]
        places = [*self._vectors, *self._images, *self._entities]
        return [sensors[places.index(index)] for index in range(len(places))]

    def _vector(self, observations: Sequence[torch.Tensor]) -> torch.Tensor:
        tensors = [observations[index] for index in self._vectors]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)

    def update_normalization(self, observations: Sequence[torch.Tensor]) -> None:
        """Add observations, (n, *shape) per sensor, to the running statistics, if any."""
        if self.normalization is not None:
            self.normalization.update(self._vector(observations))


class NetworkBody(Encoding):
    """Features of observations: the encoding, then dense layers, goal conditioning and LSTM.

    `features` is the width of the result.

    :param spec: Specification of the behavior.
    :param settings: Size and kind of the network.
    :param normalization: Statistics to share with another body of the same behavior.
    :param extra_size: Number of features in addition to the sensors, such as an action, joined to the encodings.
    :raises UnityGymError: If no encoder supports a sensor.
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
        """Return the features of n rows, with an LSTM of sequences of `length` rows.

        :param observations: One tensor (n, *shape) per sensor, images as uint8 in `[0, 255]` or float in `[0, 1]`; or
            the return value of `prepare`.
        :param memory: Recurrent states (n / length, state_size) before the first row of each sequence; None without
            LSTM.
        :param length: Rows per sequence.
        :param extra: Extra features (n, extra size); None without.
        :param actions: Features of the actions of the rows (n, action size); see `Memory.forward`.
        :return: Features (n, features), and the recurrent states after the last row of each sequence.
        """
        x = self.encode(observations)
        if extra is not None:
            x = torch.cat([x, extra], 1)
        goal = self.goal_of(x) if self.goal_layer is not None else None
        if goal is not None and not self._goals_are_images and not any(tensor.requires_grad for tensor in observations):
            goal = goal.detach()  # goal vectors depend on no weights
        x = self.layers(x)
        if self.goal_layer is not None:
            x = self.goal_layer(x, goal)
        if self.memory is None or memory is None:
            return x, None
        x, memory = self.memory(x, memory.to(x.dtype), length, actions=actions)
        return x, memory

    @property
    def state_size(self) -> int:
        """Size of the recurrent state, with the previous action if it is read; 0 without LSTM."""
        return 0 if self.memory is None else self.memory.state_size

    @property
    def action_size(self) -> int:
        """Size of the previous action's features in the recurrent state; 0 if it is not read."""
        return 0 if self.memory is None else self.memory.action_size
