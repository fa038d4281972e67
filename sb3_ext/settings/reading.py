"""Read settings from files, and write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from sb3_ext.settings.behaviors import AnyBehavior, BCSettings, BehaviorSettings, trainer_types
from sb3_ext.settings.blocks import OWN, Block
from sb3_ext.settings.document import Document, KeyPath, SettingsError, Tree, block_of, did_you_mean, either, unshared
from sb3_ext.settings.legacy import upgrade
from sb3_ext.settings.run import EnvSettings, RunSettings
from sb3_ext.settings.validation_errors import validated

_RUN, _BEHAVIOR = TypeAdapter[RunSettings](RunSettings), TypeAdapter[BehaviorSettings](AnyBehavior)
_EDITOR = (None, "Unity-v0", "unity_gym:Unity-v0")  # as `env_path`


def load(path: str | Path | None, flags: Mapping[str, object] | None = None) -> RunSettings:
    """Read a settings file.

    :param path: Path of the YAML file; None for no file, so that every behavior has the defaults of the format.
    :param flags: Options that are given on the command line, by key path ("env_settings.num_envs"); `*` is every
        behavior ("behaviors.*.network_settings.deterministic").
    :raises SettingsError: If there is no such file, or its content is invalid.
    """
    if path is None:
        return _resolve(Document("defaults"), {"default_settings": {}}, flags or {})
    return loads(text_of(Path(path)), str(path), flags)


def text_of(path: Path) -> str:
    """Return the text of a settings file.

    :raises SettingsError: If there is no such file, or it is not a text file.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        siblings = [file.name for file in sorted(path.parent.glob("*.y*ml"))] if path.parent.is_dir() else []
        near = did_you_mean(path.name, siblings) or (f"; there are {', '.join(siblings)}" if siblings else "")
        raise SettingsError(f"{path}: there is no such file. Give the path of a YAML file{near}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: this is no UTF-8 text ({error}). Save it as UTF-8") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}. Give the path of a readable file") from error


def loads(text: str, name: str = "settings", flags: Mapping[str, object] | None = None) -> RunSettings:
    """Read settings from YAML text; `name` is the file name in messages. The rest is as in `load`."""
    document = Document(name)
    return _resolve(document, document.read(text), flags or {})


def dump(settings: RunSettings) -> str:
    """Return the settings as YAML with every value, except for defaults of keys that ML-Agents does not have.

    `loads` of it equals `settings`, and ML-Agents can read it unless it contains such a key or trainer.
    """
    tree = _without_own(settings, settings.model_dump())
    if settings.default_settings is None:
        del tree["default_settings"]
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _without_own(value: object, tree: Any) -> Any:
    """Return the tree of settings, or of one of their values, without defaults of keys that ML-Agents does not have."""
    if isinstance(value, dict):
        return {key: _without_own(value[key], below) for key, below in tree.items()}
    if not isinstance(value, Block):
        return tree
    fields = type(value).model_fields
    own = {key for key in fields if OWN in fields[key].metadata and tree[key] == fields[key].default}
    return {key: _without_own(getattr(value, key), below) for key, below in tree.items() if key not in own}


def _resolve(document: Document, tree: Tree, flags: Mapping[str, object]) -> RunSettings:
    tree = upgrade(document, tree)
    _apply(document, tree, flags)
    _inherit(document, tree)
    settings = validated(_RUN, document, tree, ())
    _check_lessons(document, tree)
    document.raise_mistakes()
    assert settings is not None
    return _without_unused(document, settings, flags)


def _without_unused(document: Document, settings: RunSettings, flags: Mapping[str, object]) -> RunSettings:
    """Return the settings without values that ML-Agents writes into each file, but does not use.

    The Editor has a port of its own, and one area is the scene as it is. Values on the command line are used.
    """
    environment = settings.env_settings
    unused = {"base_port"} if environment.env_path in _EDITOR else set()
    if environment.num_areas == 1:
        unused.add("num_areas")
    unused = {key for key in unused & environment.model_fields_set if f"env_settings.{key}" not in flags}
    if "base_port" in unused and environment.base_port != EnvSettings().base_port:
        reason = "is not used: the Editor connects to 5004. Give --base-port if it was started with --mlagents-port"
        document.warn(("env_settings", "base_port"), reason)
    used = EnvSettings.model_validate(environment.model_dump(exclude_unset=True, exclude=unused))
    return settings.model_copy(update={"env_settings": used})


def _apply(document: Document, tree: Tree, flags: Mapping[str, object]) -> None:
    """Apply the command-line options, which override the file.

    Of `resume` and `initialize_from`, the one on the command line takes precedence, else `resume`; `initialize_from`
    stays for behaviors without a checkpoint. Of `resume` and `force`, the one on the command line takes precedence; if
    both are given in the same place, both stay.
    """
    for dotted, value in flags.items():
        head, *rest = dotted.split(".")
        paths: list[list[str]] = [[head, *rest]]
        if rest[:1] == ["*"]:
            blocks = block_of(tree, head)
            paths = [[head, name, *(rest[-1:] if _is_fixed(blocks[name]) else rest[1:])] for name in blocks]
            paths += [["default_settings", *rest[1:]]] if "default_settings" in tree else []
        for path in paths:
            block = tree
            for key in path[:-1]:
                if block.get(key) is None:
                    block[key] = {}
                block = block[key]
                if not isinstance(block, dict):
                    break
            else:
                block[path[-1]] = value
                document.typed(tuple(path))
    checkpoints = block_of(tree, "checkpoint_settings")
    typed = [key for key in ("resume", "force") if f"checkpoint_settings.{key}" in flags]
    if len(typed) == 1:
        checkpoints.pop("force" if typed == ["resume"] else "resume", None)
    if checkpoints.get("resume") is True and checkpoints.get("initialize_from"):
        typed = [key for key in ("resume", "initialize_from") if f"checkpoint_settings.{key}" in flags]
        if typed == ["initialize_from"]:
            checkpoints.pop("resume")
        elif len(typed) != 1:
            reason = "is used for behaviors without a checkpoint only, since resume is true"
            document.warn(("checkpoint_settings", "initialize_from"), reason)


def _inherit(document: Document, tree: Tree) -> None:
    """Merge `default_settings` into every behavior."""
    behaviors = block_of(tree, "behaviors")
    default: Tree | None = None
    has_mistakes = False
    if tree.get("default_settings", ...) is None:
        del tree["default_settings"]
    if "default_settings" in tree:
        _require_trainer_type(document, ("default_settings",), tree["default_settings"])
        settings = validated(_BEHAVIOR, document, tree["default_settings"], ("default_settings",))
        has_mistakes = settings is None
        default = block_of(tree, "default_settings") if settings is None else settings.model_dump()
    for name, own in behaviors.items():
        path: KeyPath = ("behaviors", name)
        if default is None:
            _require_trainer_type(document, path, own)
        elif (isinstance(own, dict) or own is None) and not _is_fixed(own):
            base, own = unshared(default), own or {}
            if own.get("trainer_type", base.get("trainer_type")) != base.get("trainer_type"):
                base = {key: base[key] for key in base if key in BehaviorSettings.model_fields}
                base.pop("hyperparameters", None)
            if own.get("trainer_type") == "bc":
                for key in BCSettings.lacks:
                    base.pop(key, None)
            if has_mistakes:
                _note_inherited(document, path, own, base, ("default_settings",))
            behaviors[name] = _merge(base, own)


def _is_fixed(behavior: object) -> bool:
    """Return whether a behavior only acts, and so inherits nothing."""
    return isinstance(behavior, dict) and behavior.get("trainer_type") == "fixed"


def _note_inherited(document: Document, path: KeyPath, own: Tree, base: Tree, origin: KeyPath) -> None:
    """Record the origin of inherited values, so that a mistake there is reported once."""
    for key, value in base.items():
        if key not in own:
            document.moved((*path, key), document.origin((*origin, key)))
        elif isinstance(value, dict) and isinstance(own[key], dict):
            _note_inherited(document, (*path, key), own[key], value, (*origin, key))


def _require_trainer_type(document: Document, path: KeyPath, block: object) -> None:
    if isinstance(block, dict) and "hyperparameters" in block and "trainer_type" not in block:
        reason = f"is missing: the hyperparameters need it. Give {either(trainer_types())}"
        document.report((*path, "trainer_type"), reason)
        del block["hyperparameters"]  # whose validity depends on the trainer


def _check_lessons(document: Document, tree: Tree) -> None:
    """Check that lessons refer to behaviors of the settings."""
    behaviors, default = block_of(tree, "behaviors"), block_of(tree, "default_settings")
    parameters = block_of(tree, "environment_parameters")
    for name in parameters:
        lessons = block_of(parameters, name).get("curriculum")
        for index, lesson in enumerate(lessons if isinstance(lessons, list) else []):
            criteria = block_of(lesson, "completion_criteria")
            path: KeyPath = ("environment_parameters", name, "curriculum", index, "completion_criteria")
            followed = criteria.get("behavior")
            if not isinstance(followed, str):
                continue
            if followed not in behaviors and "default_settings" not in tree:
                near = f"; known: {', '.join(behaviors)}{did_you_mean(followed, behaviors)}"
                reason = "give a behavior under behaviors, or the lesson never ends"
                document.report((*path, "behavior"), f"is {followed!r:.80}: {reason}{near}")
                continue
            block = block_of(behaviors, followed) if followed in behaviors else default
            if criteria.get("measure") == "Elo" and block.get("self_play") is None:
                reason = (
                    f"give {followed} a block self_play, or measure reward: only behaviors with self_play have a rating"
                )
                document.report((*path, "measure"), f"is 'Elo': {reason}")


_OPTIONAL_BLOCKS = ("memory", "self_play", "behavioral_cloning")


def _merge(base: Tree, own: Tree) -> Tree:
    for key, value in own.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        elif value is not None or not isinstance(below, dict) or key in _OPTIONAL_BLOCKS:
            base[key] = value
    return base
