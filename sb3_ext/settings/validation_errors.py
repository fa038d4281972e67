"""Messages for errors that pydantic finds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from sb3_ext.settings.behaviors import (
    BehaviorSettings,
    Memory,
    NetworkSettings,
    PPOHyperparameters,
    RewardSignal,
    RewardSignals,
    SACHyperparameters,
    SelfPlay,
    trainer_types,
)
from sb3_ext.settings.blocks import TAG, Block
from sb3_ext.settings.document import Document, KeyPath, did_you_mean, either
from sb3_ext.settings.parameters import SAMPLERS
from sb3_ext.settings.run import CheckpointSettings, EngineSettings, EnvSettings, RunSettings, TorchSettings

_Model = TypeVar("_Model")


def validated(model: TypeAdapter[_Model], document: Document, tree: object, path: KeyPath) -> _Model | None:
    """Return the settings in `tree`, which is at `path` in the document.

    :return: None after mistakes, which are reported.
    """
    try:
        return model.validate_python(tree)
    except ValidationError as error:
        for details in error.errors():
            for where, complaint in _mistakes(details, path):
                document.report(where, complaint)
    return None


# Blocks whose kind one of their keys selects: the key, the remedy, and the valid values of the key.
_KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "behavior": ("trainer_type", "the name of a trainer", ()),
    "sampler": ("sampler_type", "a number, or sampler_type and sampler_parameters", SAMPLERS),
    "parameter": ("sampler_type", "a number, sampler_type and sampler_parameters, or a curriculum", SAMPLERS),
}


def _mistakes(error: ErrorDetails, prefix: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key paths and messages of one error of pydantic."""
    path = prefix + tuple(part for part in error["loc"] if not str(part).startswith(TAG))
    context, value = error.get("ctx", {}), error["input"]
    match error["type"]:
        case "default_factory_not_called":  # the value it depends on is invalid, which is reported separately
            return
        case "unknown":
            for key in context["keys"]:
                yield (*path, key), unknown_key(key, value[key], context["known"])
            return
        case "missing":
            yield path, "is missing: give it a value, or delete its block"
            return
        case "settings":
            if context["at"]:
                path, value = (*path, *context["at"]), context["value"]
            remedy = context["reason"]
        case "behavior" | "sampler" | "parameter" as kind:
            key, reason, choices = _KINDS[kind]
            choices = choices or tuple(trainer_types())
            if isinstance(value, Mapping):
                path, value = (*path, key), value.get(key)
            remedy = f"give {reason}; known: {', '.join(choices)}{did_you_mean(value, choices)}"
        case "literal_error":
            allowed = re.findall(r"'([^']*)'", context["expected"])
            remedy = f"give {either(allowed)}{did_you_mean(value, allowed)}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            bounds = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
            ((bound, limit),) = context.items()
            remedy = f"give a number {bounds[bound]} {limit}"
        case "list_type":
            remedy = "give a list: [first, second]"
        case "dict_type":
            remedy = "give a block, with a key for each name"
        case "too_short":
            remedy = "give at least one entry"
        case _:
            remedy = error["msg"]
    if value is None:
        yield path, f"has no value: {remedy}"
    else:
        yield path, f"is {value!r:.80}: {remedy}"


# Keys of other formats, and what to write instead.
_ELSEWHERE = {
    "default": "write default_settings",
    "trainer": "write trainer_type",
    "use_recurrent": "write network_settings.memory with sequence_length and memory_size",
    "lambda": "write lambd",
    "output_path": "delete it, and set the folder of the results by checkpoint_settings.results_dir",
    "summary_path": "delete it, and set the folder of the results by checkpoint_settings.results_dir",
    "model_path": "delete it, and set the folder of the results by checkpoint_settings.results_dir",
}
_HOMES: dict[str, type[Block]] = {
    "hyperparameters": PPOHyperparameters,
    "hyperparameters of trainer_type sac": SACHyperparameters,
    "network_settings": NetworkSettings,
    "network_settings.memory": Memory,
    "reward_signals": RewardSignals,
    "reward_signals.extrinsic": RewardSignal,
    "a behavior": BehaviorSettings,
    "self_play": SelfPlay,
    "env_settings": EnvSettings,
    "engine_settings": EngineSettings,
    "checkpoint_settings": CheckpointSettings,
    "torch_settings": TorchSettings,
    "the top level": RunSettings,
}


def unknown_key(key: str, value: object, allowed: list[str]) -> str:
    """Return the message about an unknown key: a similar key, or the block that the key belongs to."""
    homes = [home for home, block in _HOMES.items() if key in block.model_fields]
    if "buffer_size" in allowed and homes[:1] == ["hyperparameters"]:  # those of another trainer
        homes = ["hyperparameters of trainer_type ppo"]
    hint = did_you_mean(key, allowed)
    if (
        "behaviors" in allowed
        and isinstance(value, Mapping)
        and not value.keys().isdisjoint(BehaviorSettings.model_fields)
    ):
        hint = "; write it under behaviors"
    elif key in _ELSEWHERE:
        hint = f"; {_ELSEWHERE[key]}"
    elif homes:
        hint = f"; it belongs under {homes[0]}"
    return f"is an unknown key with the value {value!r:.80}{hint or '; delete it'} (known here: {', '.join(allowed)})"
