"""Files of older ML-Agents: renamed and removed keys, flat sections of behaviors, and old curricula and samplers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sb3_ext.settings.behaviors import (
    BehaviorSettings,
    Hyperparameters,
    Memory,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from sb3_ext.settings.document import Document, KeyPath, SettingsError, Tree, block_of, did_you_mean
from sb3_ext.settings.run import RunSettings
from sb3_ext.settings.validation_errors import unknown_key


def upgrade(document: Document, tree: Tree) -> Tree:
    """Translate settings of older versions of ML-Agents, with warnings.

    :return: The settings in the current format. Mistakes are reported to the document.
    :raises SettingsError: If the file has a curriculum or samplers alone, with the text to write instead.
    """
    _reject_parameter_file(document, tree)
    behaviors = block_of(tree, "behaviors")
    if _is_flat(tree):
        document.warn((), "has the oldest format, with flat sections; it is translated")
        tree = _from_flat(document, tree, ())
    elif _are_flat(behaviors):
        document.warn(("behaviors",), "has flat sections, an old format; they are translated")
        del tree["behaviors"]
        tree |= _from_flat(document, behaviors, ("behaviors",))
    behaviors = block_of(tree, "behaviors")
    blocks: list[tuple[KeyPath, object]] = [(("behaviors", name), block) for name, block in behaviors.items()]
    for where, block in [(("default_settings",), tree.get("default_settings")), *blocks]:
        if isinstance(block, dict):
            _upgrade_behavior(document, where, block)
    checkpoints = block_of(tree, "checkpoint_settings")
    for key, remedy in _OLD_CHECKPOINT_KEYS.items():
        if checkpoints.pop(key, None):
            document.warn(("checkpoint_settings", key), f"is an old key that is not used{remedy}")
    given = checkpoints.pop("load_model", None)
    if given and "resume" in checkpoints:
        document.warn(("checkpoint_settings", "load_model"), "is an old key that is not used in addition to resume")
    elif given:
        document.warn(("checkpoint_settings", "load_model"), "is an old key; resume is set instead")
        document.moved(("checkpoint_settings", "resume"), ("checkpoint_settings", "load_model"))
        checkpoints["resume"] = given
    _upgrade_parameters(document, tree)
    parameters = block_of(tree, "environment_parameters")
    for name in parameters:
        path: KeyPath = ("environment_parameters", name)
        lessons = block_of(parameters, name).get("curriculum")
        if isinstance(lessons, list):
            _upgrade_lessons(document, (*path, "curriculum"), lessons)
            # A single lesson never ends: ML-Agents writes samplers in this form.
            if len(lessons) == 1 and isinstance(lessons[0], dict) and lessons[0].keys() == {"name", "value"}:
                parameters[name] = lessons[0]["value"]
                document.moved(path, (*path, "curriculum", 0, "value"))
    return tree


_OLD_CHECKPOINT_KEYS = {
    "train_model": "",
    "lesson": ": a run that is resumed continues with its lessons",
    "save_freq": ". Give checkpoint_interval under the behaviors instead",
    "keep_checkpoints": ". Give keep_checkpoints under the behaviors instead",
}


def _upgrade_lessons(document: Document, path: KeyPath, lessons: list[Any]) -> None:
    for index, lesson in enumerate(lessons):
        if isinstance(lesson, dict) and len(lesson) == 1:
            ((title, content),) = lesson.items()
            if isinstance(content, dict) and "value" in content:
                document.warn((*path, index, title), "is an old way to name a lesson; name is set instead")
                document.moved((*path, index), (*path, index, title))
                lessons[index] = {"name": title, **content}
    if lessons and isinstance(lessons[-1], dict) and lessons[-1].pop("completion_criteria", None) is not None:
        document.warn((*path, len(lessons) - 1, "completion_criteria"), "is not used: no lesson follows the last one")


_SAMPLER_TYPES = ("sampler-type", "sampler_type")
_INTERVALS = ("resampling-interval", "resampling_interval")
_CURRICULUM_KEYS = ("measure", "thresholds", "min_lesson_length", "signal_smoothing", "parameters")


def _is_curriculum(block: object) -> bool:
    """Return whether a block has the format of ML-Agents 0.18 and older."""
    return isinstance(block, dict) and block.keys() >= {"thresholds", "parameters"}


def _reject_parameter_file(document: Document, tree: Tree) -> None:
    """Raise for a file of a curriculum or of samplers alone, which ML-Agents up to 0.16 read.

    :raises SettingsError: If it is such a file, with the text to write instead.
    """
    path: KeyPath = ()
    if tree.keys() & RunSettings.model_fields.keys():
        return
    if _is_curriculum(tree):  # of one behavior, named like the file
        kind, old = "curriculum", {"curriculum": {Path(document.name).stem: tree}}
    elif tree and all(_is_curriculum(block) for block in tree.values()):
        kind, old = "curriculum", {"curriculum": tree}
    elif any(_SAMPLER_TYPES[0] in block_of(tree, name) for name in tree):
        kind, old = "sampler", {"parameter_randomization": dict(tree)}
        old["parameter_randomization"].pop("episode-length", None)
    else:
        return
    new = Document(document.name)
    for name in old:
        document.moved((name,), path)
    _upgrade_parameters(new, old, warn=False)
    new.raise_mistakes()
    text = yaml.safe_dump(old, sort_keys=False, allow_unicode=True)
    raise SettingsError(
        f"{document.name}: this is a {kind} file of ML-Agents 0.16 or older, without behaviors. Write these lines into "
        f"the configuration file of the behaviors, which replaces --{kind}:\n{text.rstrip()}"
    )


def _upgrade_parameters(document: Document, tree: Tree, warn: bool = True) -> None:
    """Translate `curriculum` and `parameter_randomization` into `environment_parameters`, as Unity's converter does."""
    found: Tree = {}
    samplers, curricula = block_of(tree, "parameter_randomization"), block_of(tree, "curriculum")
    for name, sampler in samplers.items():
        path: KeyPath = ("parameter_randomization", name)
        if name in _INTERVALS:
            if warn:
                document.warn(path, "is not used: samplers draw at each reset of the scene")
        elif not isinstance(sampler, dict):
            document.report(path, f"is {sampler!r:.80}: give sampler-type and its parameters")
        else:
            found[name] = _sampler_of(sampler)
            document.moved(("environment_parameters", name, "sampler_parameters"), path)
            document.moved(("environment_parameters", name), path)
    for name, block in curricula.items():
        for parameter, lessons in _lessons_of(document, name, block).items():
            if parameter in found:
                document.warn(("curriculum", name, "parameters", parameter), "is not used: it has a sampler, too")
            else:
                found[parameter] = {"curriculum": lessons}
    for key in ("parameter_randomization", "curriculum"):
        given = tree.get(key)
        if given is not None and not isinstance(given, dict):
            document.report((key,), f"is {given!r:.80}: give a block of keys, or delete it")
        elif given and warn:
            document.warn((key,), "is an old key; environment_parameters is set instead")
        tree.pop(key, None)
    if found and isinstance(tree.setdefault("environment_parameters", {}) or {}, dict):
        tree["environment_parameters"] = found | (tree["environment_parameters"] or {})


def _sampler_of(old: Tree) -> Tree:
    parameters = {key: value for key, value in old.items() if key not in (*_SAMPLER_TYPES, "sampler_parameters")}
    kind = next((old[key] for key in _SAMPLER_TYPES if key in old), None)
    return {
        "sampler_type": "multirangeuniform" if kind == "multirange_uniform" else kind,
        "sampler_parameters": block_of(old, "sampler_parameters") | parameters,
    }


def _lessons_of(document: Document, behavior: str, block: object) -> dict[str, list[Tree]]:
    """Return the lessons of each parameter that an old curriculum of a behavior sets."""
    path: KeyPath = ("curriculum", behavior)
    if not isinstance(block, dict) or not _is_curriculum(block):
        document.report(path, f"is {block!r:.80}: give measure, thresholds and parameters")
        return {}
    for key in block.keys() - set(_CURRICULUM_KEYS):
        document.report((*path, key), unknown_key(key, block[key], list(_CURRICULUM_KEYS)))
    thresholds, parameters = block["thresholds"], block["parameters"]
    if not isinstance(thresholds, list):
        document.report((*path, "thresholds"), f"is {thresholds!r:.80}: give a list: [first, second]")
        return {}
    if not isinstance(parameters, dict):
        document.report((*path, "parameters"), f"is {parameters!r:.80}: give a block, with a key for each name")
        return {}
    lessons: dict[str, list[Tree]] = {}
    for name, values in parameters.items():
        where: KeyPath = (*path, "parameters", name)
        if not isinstance(values, list) or len(values) != len(thresholds) + 1:
            reason = f"give a list of {len(thresholds) + 1} values, one more than thresholds"
            document.report(where, f"is {values!r:.80}: {reason}")
            continue
        lessons[name] = [{"name": f"Lesson{number}", "value": value} for number, value in enumerate(values)]
        new: KeyPath = ("environment_parameters", name, "curriculum")
        document.moved(new, where)
        for number, threshold in enumerate(thresholds):
            lessons[name][number]["completion_criteria"] = {
                "behavior": behavior,
                "measure": block.get("measure"),
                "threshold": threshold,
                "min_lesson_length": block.get("min_lesson_length", 1),
                "signal_smoothing": block.get("signal_smoothing", False),
            }
            criteria: KeyPath = (*new, number, "completion_criteria")
            document.moved(criteria, path)
            document.moved((*criteria, "threshold"), (*path, "thresholds", number))
            document.moved((*new, number, "value"), (*where, number))
    return lessons


def _upgrade_behavior(document: Document, path: KeyPath, block: Tree) -> None:
    for key in ("framework", "output_path"):
        if key in block:
            document.warn((*path, key), f"is {block.pop(key)!r}, an old key that is not used")
    signals = block_of(block, "reward_signals")
    for name in signals:
        signals[name] = {} if signals[name] is None else signals[name]
        signal, here = block_of(signals, name), (*path, "reward_signals", name)
        if name in ("curiosity", "gail", "rnd") and "encoding_size" in signal:
            size = signal.pop("encoding_size")
            if "network_settings" in signal and size is not None:
                document.warn(
                    (*here, "encoding_size"), "is an old key that is not used in addition to network_settings"
                )
            elif size is not None:
                document.warn((*here, "encoding_size"), "is an old key; network_settings.hidden_units is set instead")
                signal["network_settings"] = {"hidden_units": size}
                document.moved((*here, "network_settings", "hidden_units"), (*here, "encoding_size"))
        if block_of(signal, "network_settings").pop("memory", None) is not None:
            document.warn((*here, "network_settings", "memory"), "is not used: reward signals have no memory")
    self_play, ratio = block_of(block, "self_play"), "play_against_latest_model_ratio"
    for old in ("play_against_current_self_ratio", "play_against_current_best_ratio"):
        if old in self_play:
            document.warn((*path, "self_play", old), f"is an old key; {ratio} is set instead")
            self_play.setdefault(ratio, self_play.pop(old))
            document.moved((*path, "self_play", ratio), (*path, "self_play", old))


_FLAT_SIGNALS: dict[str, tuple[str, ...]] = {
    "gamma": ("reward_signals", "extrinsic", "gamma"),
    "curiosity_strength": ("reward_signals", "curiosity", "strength"),
    "curiosity_enc_size": ("reward_signals", "curiosity", "encoding_size"),
}
_FLAT_HYPERPARAMETERS: dict[str, type[Hyperparameters]] = {
    "ppo": PPOHyperparameters,
    "poca": POCAHyperparameters,
    "sac": SACHyperparameters,
}
_NESTED = ("trainer_type", "hyperparameters", "network_settings")
# Key path of each key of a section in the current format.
_FLAT_PATHS: dict[str, tuple[str, ...]] = {
    **{key: ("hyperparameters", key) for block in _FLAT_HYPERPARAMETERS.values() for key in block.model_fields},
    **{key: ("network_settings", key) for key in ("normalize", "hidden_units", "num_layers", "vis_encode_type")},
    **{key: ("network_settings", "memory", key) for key in Memory.model_fields},
    **{key: (key,) for key in BehaviorSettings.model_fields if key not in _NESTED},
    **_FLAT_SIGNALS,
    "trainer": ("trainer_type",),
    "pretraining": ("behavioral_cloning",),
}
_FLAT_SWITCHES = ("use_recurrent", "use_curiosity")
_FLAT_UNUSED = (
    *("summary_path", "model_path", "output_path", "graph_scope"),
    *("brain_to_imitate", "batches_per_epoch", "demo_path"),  # of the removed trainers
)
_FLAT_RATES = ("train_interval", "num_update", "reward_signal_num_update")
_INHERITED = ("network_settings", "reward_signals", "self_play", "behavioral_cloning")
_REMOVED_TRAINERS = ("imitation", "online_bc", "offline_bc")


def _is_flat(tree: Tree) -> bool:
    """Return whether a file has the oldest format, in which `default` contains the defaults of every section."""
    keys = {key for name in tree for key in block_of(tree, name)}
    if tree.keys() & RunSettings.model_fields.keys() or not keys.isdisjoint(_NESTED):
        return False
    return "default" in tree or not keys.isdisjoint(_FLAT_PATHS)


def _are_flat(behaviors: Tree) -> bool:
    """Return whether behaviors have the format of ML-Agents 0.17: sections of the oldest format under `behaviors`."""
    keys = {key for name in behaviors for key in block_of(behaviors, name)}
    moved = {key for key, path in _FLAT_PATHS.items() if path != (key,)} - {"trainer"}
    return "trainer" in keys and keys.isdisjoint(_NESTED) and not keys.isdisjoint(moved)


def _from_flat(document: Document, sections: Tree, place: KeyPath) -> Tree:
    """Return flat sections in the current format: a section replaces keys of `default`, blocks as a whole.

    :param place: Key path of the sections.
    """
    found = _section_of(document, sections, "default", place) if "default" in sections else None
    default = sections[found] or {} if found is not None else {}
    behaviors: Tree = {}
    for name in sections:
        section = _section_of(document, sections, name, place)
        if section is None:
            continue
        own = sections[section] or {}
        flat = {**default, **own}
        if (trainer := flat.get("trainer")) in _REMOVED_TRAINERS:
            _warn_of_removed_trainer(document, (*place, name), trainer, is_default=name == "default")
            continue
        origins: dict[str, KeyPath] = {
            **{key: (*place, "default", key) for key in default},
            **{key: (*place, section, key) for key in own},
        }
        path: KeyPath = ("default_settings",) if name == "default" else ("behaviors", name)
        behaviors[name] = _behavior_of(document, path, flat, origins, set(default) - set(own))
    if sections and not behaviors:
        reason = "has no section that can be trained: give trainer: ppo, or trainer: sac, and settings for it"
        document.report(place, reason)
    default_settings = behaviors.pop("default", None)
    if default_settings is None:
        return {"behaviors": behaviors}
    # Behaviors inherit the blocks of default_settings key by key; sections did not.
    for block in behaviors.values():
        if "memory" in block_of(default_settings, "network_settings"):
            block.setdefault("network_settings", {}).setdefault("memory", None)
    if all(
        _signals(default_settings) <= _signals(block)
        and _covers(block, {key: default_settings[key] for key in _INHERITED if key in default_settings})
        for block in behaviors.values()
    ):
        return {"default_settings": default_settings, "behaviors": behaviors}
    return {"behaviors": behaviors}


def _warn_of_removed_trainer(document: Document, path: KeyPath, trainer: str, is_default: bool) -> None:
    what = "behaviors without a section have no settings" if is_default else "the behavior is left out"
    document.warn(
        path,
        f"has the trainer {trainer!r}, which ML-Agents has removed: {what}. To clone demonstrations, give "
        "trainer_type: bc with demo_path: FILE in the current format; to clone a behavior of the scene "
        "(brain_to_imitate), teacher: NAME instead. "
        "trainer: ppo with behavioral_cloning: {demo_path: FILE} also learns from the reward",
    )


def _covers(own: Tree, inherited: Tree) -> bool:
    """Return whether a block has all keys of another one, so that it inherits none of them; None replaces a block."""
    return all(
        key in own and (own[key] is None or not isinstance(value, dict) or _covers(own[key], value))
        for key, value in inherited.items()
    )


def _signals(behavior: Tree) -> set[str]:
    return set(block_of(behavior, "reward_signals")) or {"extrinsic"}


def _section_of(document: Document, sections: Tree, name: str, place: KeyPath) -> str | None:
    """Return the section with the settings of `name`; a section may refer to another one, repeatedly.

    :return: None after a mistake, which is reported.
    """
    followed = [name]
    while isinstance(target := sections[followed[-1]], str):
        if target not in sections:
            hint = f"known: {', '.join(sections)}{did_you_mean(target, sections)}"
            document.report((*place, followed[-1]), f"is {target!r}: there is no such section; {hint}")
            return None
        if target in followed:
            if followed[0] == target:  # report the circle once
                chain = " -> ".join([*followed, target])
                first = min(followed, key=list(sections).index)
                if name == first:
                    reason = f"is {sections[name]!r}: {chain} never ends. Write one section out"
                    document.report((*place, name), reason)
            return None
        followed.append(target)
    if target is not None and not isinstance(target, dict):
        reason = f"is {target!r:.80}: give a section of keys, or the name of a section"
        document.report((*place, followed[-1]), reason)
        return None
    return followed[-1]


def _behavior_of(
    document: Document, path: KeyPath, flat: Tree, origins: Mapping[str, KeyPath], inherited: set[str]
) -> Tree:
    """Return a flat section as a behavior's block.

    :param origins: Key path of each key in the file.
    :param inherited: Keys that come from `default`.
    """
    trainer = flat.get("trainer", "ppo")
    hyperparameters = _FLAT_HYPERPARAMETERS.get(str(trainer), Hyperparameters).model_fields
    recurrent, curious = (flat.get(switch) is True for switch in _FLAT_SWITCHES)
    behavior: Tree = {"trainer_type": trainer, "hyperparameters": {}}
    for key, value in flat.items():
        origin, place = origins[key], _FLAT_PATHS.get(key, ())
        if key in _FLAT_RATES:
            if trainer == "sac":
                what = "reward_signal_steps_per_update" if "reward" in key else "steps_per_update"
                remedy = f"give {what} = agents * train_interval / {key if 'num' in key else 'num_update'}"
                document.warn(origin, f"is {value!r:.80}: not used, since it counted differently; {remedy}")
            continue
        if key in _FLAT_SWITCHES:
            if not isinstance(value, bool):
                document.report(origin, f"is {value!r:.80}: give true or false, without quotes")
            continue
        if not place and key not in _FLAT_UNUSED:
            document.report(origin, unknown_key(key, value, [*_FLAT_PATHS, *_FLAT_SWITCHES]))
            continue
        if place[:2] == ("network_settings", "memory"):
            used = recurrent
        elif key in _FLAT_SIGNALS:
            used = "reward_signals" not in flat and (curious or key == "gamma")
        else:
            used = bool(place) and (place[0] != "hyperparameters" or key in hyperparameters)
        if used:
            _put(behavior, place, value)
            document.moved((*path, *place), origin)
        elif key not in inherited and place[:2] != ("network_settings", "memory"):
            document.warn(origin, f"is {value!r:.80}: not used by trainer {trainer} with these settings")
    if recurrent:
        _put(behavior, ("network_settings", "memory"), block_of(block_of(behavior, "network_settings"), "memory"))
    if curious and "reward_signals" not in flat:
        _put(behavior, ("reward_signals", "extrinsic"), block_of(block_of(behavior, "reward_signals"), "extrinsic"))
        _put(behavior, ("reward_signals", "curiosity"), block_of(block_of(behavior, "reward_signals"), "curiosity"))
    return behavior


def _put(tree: Tree, path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
