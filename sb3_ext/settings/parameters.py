"""Environment parameters: numbers, samplers and curricula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from sb3_ext.settings.blocks import (
    TAG,
    Block,
    CountOrMinusOne,
    CountOrZero,
    Flag,
    NotNegative,
    Number,
    Text,
    finite_number,
    rejection,
)


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
            raise rejection(f"give at least min_value, {info.data['min_value']}")
        return max_value


class GaussianParameters(SamplerParameters):
    """Mean and standard deviation of a normal sampler."""

    mean: Number = 1.0
    """Mean."""
    st_dev: NotNegative = 1.0
    """Standard deviation."""


class MultiRangeParameters(SamplerParameters):
    """Intervals of a sampler that first samples one of them."""

    intervals: Annotated[list[list[Number]], MinLen(1)] = Field(default=[[0.0, 1.0]])
    """Intervals `[low, high]`; the probability of each is proportional to its length."""

    @field_validator("intervals")
    @classmethod
    def _pairs_in_order(cls, intervals: list[list[float]]) -> list[list[float]]:
        for pair in intervals:
            if len(pair) != 2 or pair[0] > pair[1]:
                raise rejection(f"give every interval as [low, high] with low <= high; {pair} is none")
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
        finite_number(value)
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
            raise rejection("give a number from 0 to 1: progress is the share of max_steps that is done")
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
                raise rejection(
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
