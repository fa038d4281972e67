"""Compare how `unity-learn` and Unity's trainer (mlagents 1.1.0) read the same configuration files.

    python tests/benchmarks/settings_peer.py --peer PYTHON FILES...

PYTHON is an interpreter of an environment in which `mlagents` is installed. Files of older formats go through Unity's
own upgrade script first, in the peer only. A row per file reports whether each side loads it, and the differences.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from sb3_ext.settings import SettingsError, load

_PEER = r"""
import json, sys, warnings
warnings.simplefilter("ignore")
import cattr, yaml
from mlagents.plugins.trainer_type import register_trainer_plugins
register_trainer_plugins()
from mlagents.trainers import settings, upgrade_config

class Loader(yaml.SafeLoader):
    pass

def plain(loader, suffix, node):
    return loader.construct_mapping(node, deep=True)["dictitems"] if "dictitems" in str(node) else None

Loader.add_multi_constructor("tag:yaml.org,2002:python/", plain)
results = {}
for name in json.loads(sys.stdin.read()):
    settings.TrainerSettings.default_override = None
    text = open(name, encoding="utf-8-sig").read()
    how = "as it is"
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        how, tree = "without Python tags", yaml.load(text, Loader)
    try:
        if "behaviors" not in tree and "default_settings" not in tree:
            default = tree.pop("default", None)
            tree = upgrade_config.convert({"default": default or {}, **tree}, None, None)
            tree = cattr.unstructure(tree)
            how = "after upgrade_config"
        elif "curriculum" in tree or "parameter_randomization" in tree:
            if any("trainer" in block for block in tree["behaviors"].values()):
                tree["behaviors"] = cattr.unstructure(upgrade_config.convert_behaviors(tree["behaviors"]))
            for block in tree["behaviors"].values():
                block.pop("output_path", None)
            samplers = upgrade_config.convert_samplers(tree.pop("parameter_randomization", {}))
            curriculum = tree.pop("curriculum", {})
            tree["environment_parameters"] = upgrade_config.convert_samplers_and_curriculum(samplers, curriculum)
            for parameter in tree["environment_parameters"].values():  # "Lesson0: {...}" is no lesson in 1.1.0
                for index, lesson in enumerate(parameter.get("curriculum", [])):
                    ((title, content),) = lesson.items()
                    parameter["curriculum"][index] = {"name": title, **content}
            how = "after upgrade_config"
        options = settings.RunOptions.from_dict(tree)
        results[name] = {"how": how, "settings": options.as_dict()}
    except Exception as error:
        results[name] = {"how": how, "error": f"{type(error).__name__}: {error}"[:300]}
json.dump(results, sys.stdout, default=str)
"""
_OURS = ("opponents", "num_workers", "stats_writers", "use_previous_action")  # keys that only `unity-learn` has
_UNITYS = ("load_model", "train_model", "encoding_size")  # encoding_size: read as network_settings.hidden_units


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict) and tree.keys() == {"curriculum"} and len(tree["curriculum"]) == 1:
        tree = tree["curriculum"][0]["value"]  # Unity's trainer stores a sampler as one lesson
    if isinstance(tree, (dict, list)) and tree:
        found: dict[str, Any] = {}
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            found |= _leaves(value, f"{path}.{key}".lstrip("."))
        return found
    return {path: None if tree in ({}, []) else tree}


def _ours(path: str) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            settings = load(path)
        except SettingsError as error:
            return {"error": str(error)}
    return {"settings": settings.model_dump(mode="json"), "warnings": [str(warning.message) for warning in caught]}


def _difference(ours: dict[str, Any], peer: dict[str, Any]) -> list[str]:
    if peer["default_settings"] is None:  # Unity's upgrade script drops the section `default`
        ours = ours | {"default_settings": None}
    own, other = _leaves(ours), _leaves(peer)
    lines = []
    for key in sorted(own.keys() | other.keys()):
        one, two = own.get(key), other.get(key)
        if key.split(".")[-1] in (*_OURS, *_UNITYS) or one == two or str(one) == str(two):
            continue
        lines.append(f"{key}: {one} here, {two} there")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="interpreter with mlagents installed")
    parser.add_argument("files", nargs="+", metavar="FILE")
    given = parser.parse_args()
    run = subprocess.run(
        [given.peer, "-c", _PEER], input=json.dumps(given.files), capture_output=True, text=True, check=False
    )
    if run.returncode:
        sys.exit(run.stderr)
    peer = json.loads(run.stdout[run.stdout.index("{") :])
    both = equal = here = there = 0
    for name in given.files:
        our, their = _ours(name), peer[name]
        here, there = here + ("settings" in our), there + ("settings" in their)
        title = f"{Path(name).name} ({their['how']})"
        if "settings" in our and "settings" in their:
            both += 1
            lines = _difference(our["settings"], their["settings"])
            equal += not lines
            print(f"{title}: {'equal' if not lines else 'different'}")
            print("".join(f"    {line}\n" for line in lines), end="")
        else:
            for side, result in (("here", our), ("there", their)):
                state = "loads" if "settings" in result else result["error"].replace("\n", "\n        ")
                print(f"{title}: {side}: {state}")
    print(f"{len(given.files)} files: {here} load here, {there} there, {both} in both, {equal} with equal values")


if __name__ == "__main__":
    main()
