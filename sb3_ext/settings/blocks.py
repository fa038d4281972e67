"""Blocks of keys, and the types of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from typing_extensions import Self


def rejection(reason: str, at: tuple[str | int, ...] = (), value: object = None) -> PydanticCustomError:
    """Return an error that contains the remedy.

    :param at: Key path below the validated block; `value` is the value there.
    """
    return PydanticCustomError("settings", "settings", {"reason": reason, "at": at, "value": value})


def finite_number(value: object) -> float:
    """Return a finite number, also from a string such as "1.0e7", which YAML 1.1 does not read as a number."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            pass
        else:
            if math.isfinite(number):
                return number
    raise rejection("give a finite number")


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = finite_number(value)
    if number.is_integer():
        return int(number)
    raise rejection("give a whole number")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise rejection("give true or false, without quotes")


def _text(value: object) -> str:
    """Return a string, also from a whole number or a date, for names such as `run_id: 5` and `run_id: 2020-01-01`."""
    if (isinstance(value, int) and not isinstance(value, bool)) or type(value) is date:
        return str(value)  # but not 1.10, which would become 1.1, or a time of day
    if isinstance(value, str) and value:
        return value
    raise rejection("give a text, and put it in quotes where YAML takes it for something else")


def _argument(value: object) -> str:
    """Return a command-line argument as ML-Agents does: 1.5 becomes "1.5", and true becomes "True"."""
    return str(value) if isinstance(value, (bool, int, float, date)) else _text(value)


def nothing_is_empty(value: object) -> object:
    """Return an empty block instead of nothing."""
    return {} if value is None else value


Number = Annotated[float, BeforeValidator(finite_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
Argument = Annotated[str, BeforeValidator(_argument)]
PathText = Annotated[Text, AfterValidator(os.path.expanduser)]
"""Path of a file or folder, also with `~` for the home folder."""

Positive = Annotated[Number, Gt(0)]
NotNegative = Annotated[Number, Ge(0)]
Fraction = Annotated[Number, Ge(0), Le(1)]
Count = Annotated[Whole, Ge(1)]
CountOrZero = Annotated[Whole, Ge(0)]
CountOrMinusOne = Annotated[Whole, Ge(-1)]

Schedule = Literal["linear", "constant"]

OWN = "own"
"""Annotation of keys that ML-Agents does not have."""


def _raised_again(details: ErrorDetails) -> InitErrorDetails:
    error = PydanticCustomError(details["type"], details["msg"], details.get("ctx"))  # type: ignore[arg-type,unused-ignore]
    return InitErrorDetails(type=error, loc=details["loc"], input=details["input"])


class Block(BaseModel):
    """Block of keys. An empty one (`network_settings:` with nothing below) consists of defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _reject_unknown_keys(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys together with mistakes in known ones; pydantic alone would stop at the first kind."""
        data = cls._block_of(data)
        if isinstance(data, cls):
            return validate(data)
        allowed = [*cls.model_fields, *cls._further_keys()]
        if not isinstance(data, Mapping):
            raise rejection(f"give a block of keys (known here: {', '.join(allowed)})")
        unknown = [str(key) for key in data if key not in allowed]
        if not unknown:
            return validate(data)
        error = PydanticCustomError("unknown", "unknown", {"keys": unknown, "known": allowed})
        mistakes = [InitErrorDetails(type=error, input=data)]
        try:
            validate({key: value for key, value in data.items() if key in allowed})
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


# pydantic's error locations contain the tag; with this character, which YAML forbids, it cannot be taken for a key.
TAG = "\0"
