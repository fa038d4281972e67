"""Format of sweep files; see `sb3_ext.sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from annotated_types import MinLen
from pydantic import Field, PlainValidator, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from sb3_ext.settings.blocks import Block, Count, CountOrZero, Flag, Number, Text, finite_number, rejection
from sb3_ext.settings.document import Document
from sb3_ext.settings.reading import text_of
from sb3_ext.settings.validation_errors import validated

if TYPE_CHECKING:
    from optuna import Trial

_KINDS = ("uniform", "log_uniform", "int_uniform", "int_log_uniform")

Value: TypeAlias = bool | int | float | str
"""Value of a setting."""


def _bounds(value: object) -> list[float]:
    if isinstance(value, list) and len(value) == 2:
        low, high = map(finite_number, value)
        if low < high:
            return [low, high]
    raise rejection("give [low, high] with low < high")


def _value(value: object) -> Value:
    """Return a number also from a string such as "1e-4", which YAML 1.1 does not read as a number."""
    if isinstance(value, str):
        try:
            return finite_number(value)
        except PydanticCustomError:
            return value
    if isinstance(value, (bool, int, float)):
        return value
    raise rejection("give a number, a text, true or false")


Bounds: TypeAlias = Annotated[list[float], PlainValidator(_bounds)]
Scalar: TypeAlias = Annotated[Value, PlainValidator(_value)]


class Distribution(Block):
    """Values of one setting: a range with both bounds included, or a list."""

    uniform: Bounds | None = None
    log_uniform: Bounds | None = None
    int_uniform: Bounds | None = None
    int_log_uniform: Bounds | None = None
    choice: Annotated[list[Scalar], MinLen(1)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Distribution:
        given = [name for name in (*_KINDS, "choice") if getattr(self, name) is not None]
        if len(given) != 1:
            raise rejection(f"give one of {', '.join(_KINDS)} and choice")
        if (kind := given[0]) != "choice":
            bounds = getattr(self, kind)
            if "int" in kind and not all(bound.is_integer() for bound in bounds):
                raise rejection("give whole numbers", at=(kind,), value=bounds)
            if "log" in kind and bounds[0] <= 0:
                raise rejection("give bounds above 0", at=(kind,), value=bounds)
        return self

    @property
    def _range(self) -> tuple[str, float, float]:
        kind = next(name for name in _KINDS if getattr(self, name) is not None)
        return kind, *getattr(self, kind)

    @property
    def largest(self) -> float:
        """Largest number that `suggest` may return."""
        values = self.choice if self.choice is not None else self._range[1:]
        return max(float(value) for value in values if not isinstance(value, str))

    @property
    def is_logarithmic(self) -> bool:
        """Whether the range is on a logarithmic scale."""
        return self.choice is None and "log" in self._range[0]

    def suggest(self, trial: Trial, name: str) -> Value:
        """Return the value for a trial."""
        if self.choice is not None:
            return cast(Value, trial.suggest_categorical(name, self.choice))
        kind, low, high = self._range
        if "int" in kind:
            return trial.suggest_int(name, int(low), int(high), log="log" in kind)
        return trial.suggest_float(name, low, high, log="log" in kind)

    def sample(self, generator: np.random.Generator) -> Value:
        """Return a random value."""
        if self.choice is not None:
            return self.choice[generator.integers(len(self.choice))]
        kind, low, high = self._range
        value = np.exp(generator.uniform(*np.log([low, high]))) if "log" in kind else generator.uniform(low, high)
        return round(value) if "int" in kind else float(value)

    def contains(self, value: object) -> bool:
        """Return whether a value is in the range or list."""
        if self.choice is not None:
            return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in self.choice)
        kind, low, high = self._range
        return isinstance(value, int if "int" in kind else (int, float)) and low <= value <= high


def _parameter(value: object) -> Distribution | Value:
    return Distribution.model_validate(value) if isinstance(value, Mapping) else _value(value)


class SweepSettings(Block):
    """Content of a sweep file."""

    config: Text
    parameters: Annotated[dict[str, Annotated[Any, PlainValidator(_parameter)]], MinLen(1)]
    trials: Count = 20
    seeds: Annotated[list[CountOrZero], MinLen(1)] = Field(default=[0])
    steps: Count | None = None
    metric: Text = "Environment/Cumulative Reward"
    behavior: Text | None = None
    objective: Literal["area", "last"] = "area"
    target: Number | None = None
    prune: Flag = True
    startup_trials: Count = 5
    warmup_steps: CountOrZero = 0

    @model_validator(mode="after")
    def _varies(self) -> SweepSettings:
        if not self.varied:
            raise rejection(
                "vary at least one, such as KEY: {uniform: [0, 1]}", at=("parameters",), value=dict(self.constants)
            )
        return self

    @property
    def varied(self) -> dict[str, Distribution]:
        """Settings that differ between trials, by key path."""
        return {path: given for path, given in self.parameters.items() if isinstance(given, Distribution)}

    @property
    def constants(self) -> dict[str, Value]:
        """Settings of all trials that the configuration does not contain, by key path."""
        return {path: given for path, given in self.parameters.items() if not isinstance(given, Distribution)}


_SWEEP = TypeAdapter[SweepSettings](SweepSettings)


def load_sweep(path: Path) -> SweepSettings:
    """Read a sweep file.

    :raises SettingsError: If there is no such file, or its content is invalid.
    """
    document = Document(str(path))
    settings = validated(_SWEEP, document, document.read(text_of(path)), ())
    document.raise_mistakes()
    assert settings is not None
    return settings
