"""Runs on the Hugging Face Hub, in the layout of `mlagents-push-to-hf` and `mlagents-load-from-hf`.

A repository is the folder of a run with two additional files: `config.json`, which is `configuration.yaml` as JSON, and
the model card `README.md`, with the library `ml-agents` and the same tags as in Unity's command. So Unity's command can
load what `push` uploads, and `pull` what Unity's command uploaded.
"""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from sb3_ext.console import print_line
from sb3_ext.files import write
from sb3_ext.inference import Evaluation, evaluate
from sb3_ext.runs import CONFIGURATION, read_status, resolved_configuration
from sb3_ext.sampler import plain_name
from sb3_ext.settings import RunSettings, load
from sb3_ext.settings.document import Document, block_of
from unity_gym.errors import UnityGymError

_CARD, _CONFIG, _CURVE, _VIDEO = "README.md", "config.json", "learning_curve.png", "replay.mp4"
_LEFT_OUT = (  # files of a run that are useless to others
    "*experience-*.npz",
    "*last_replay_buffer.npz",
    "*.partial",
    "run_logs/*.log",
    "run_logs/lock",
    "run_logs/sampler-*",
    "tracking.json",
    "wandb/*",
)
_KINDS = ("yaml", "yml", "json", "jsonl", "onnx", "zip", "pt", "csv", "png", "mp4", "md")


def push(
    run: str,
    repo_id: str,
    results_dir: str = "results",
    env: str | None = None,
    episodes: int = 10,
    private: bool = False,
    message: str = "Upload a run of ML-Agents",
) -> str:
    """Upload a run, also one of `mlagents-learn`, with a model card.

    The card contains the results of each behavior. They come from new episodes, which are recorded as a video if the
    package imageio-ffmpeg is installed; without new episodes, they come from the training.

    :param run: Name or folder of the run.
    :param repo_id: Repository, `USER/NAME`; it is created if it does not exist.
    :param results_dir: Folder for the folders of all runs.
    :param env: Player for the episodes; by default that of the run.
    :param episodes: Minimum number of episodes of each behavior; 0 for none.
    :param private: Create a private repository.
    :param message: Message of the commit.
    :return: Address of the commit.
    :raises UnityGymError: If the run does not exist or has no networks yet, or writing to the Hub fails.
    """
    hub = _client("push")
    folder = Path(results_dir, run) if Path(results_dir, run).is_dir() else Path(run)
    if not (folder / CONFIGURATION).is_file():
        raise UnityGymError(f"{Path(results_dir, run)} is no run (it has no {CONFIGURATION}): give a name or a folder")
    folder = folder.resolve()
    if not any(folder.rglob("*.onnx")):
        raise UnityGymError(f"{folder} has no networks to upload (.onnx): resume the run until its first checkpoint")
    settings = _settings(folder, env)
    names = list(settings.behaviors)
    if settings.default_settings is not None:
        names += sorted({path.stem for path in folder.glob("*.onnx")} - settings.behaviors.keys())
    trained = {name: _trained(folder, name) for name in names}
    api = hub.HfApi()
    with _asking(repo_id):  # before the episodes, which take minutes
        api.create_repo(repo_id, private=private, exist_ok=True)
    played = _played(settings, episodes, folder / _VIDEO) if episodes else {}
    have_played = {plain_name(team) for team in played}
    evaluations = {name: trained[name] for name in names if name not in have_played} | played
    write(folder / _CONFIG, json.dumps(_configuration(folder, settings), indent=2))
    write(folder / _CARD, _card(hub, folder, repo_id, names, settings, evaluations))
    with _asking(repo_id):
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=message,
            ignore_patterns=list(_LEFT_OUT),
            delete_patterns=[f"{escape(name)}/*" for name in names],  # checkpoints that the run no longer has
        )
    return str(commit)


def pull(repo_id: str, local_dir: str = "results", revision: str | None = None) -> Path:
    """Download a run that `push` or `mlagents-push-to-hf` uploaded.

    Only files of the kinds that a run contains are downloaded, and no programs. In `configuration.yaml`, the name and
    folder of the run become those of the download, without `resume`, `force`, `initialize_from` and `init_path`.

    :param repo_id: Repository, `USER/NAME`.
    :param local_dir: Parent of the new folder NAME.
    :param revision: Branch, tag or commit; by default the latest.
    :return: Folder of the run.
    :raises UnityGymError: If the folder exists, or reading from the Hub fails.
    """
    hub = _client("pull")
    folder = Path(local_dir, repo_id.rpartition("/")[2])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnityGymError(f"{folder} exists. Give another --local-dir, or delete it")
    patterns = [*(f"*.{kind}" for kind in _KINDS), "*events.out.tfevents*"]
    with _asking(repo_id):
        commit = hub.HfApi().repo_info(repo_id, revision=revision).sha
        partial = folder.with_name(f".{folder.name}.{commit}.partial")  # what an interrupted download has left is used
        hub.snapshot_download(repo_id, revision=commit, local_dir=partial, allow_patterns=patterns)
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # written by the client
    _adopt(partial / CONFIGURATION, folder)
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)
    if not (folder / CONFIGURATION).is_file():
        print_line(f"{repo_id} has no {CONFIGURATION}, so that no run can start from it; its ONNX files can be used")
    return folder


def _adopt(configuration: Path, folder: Path) -> None:
    """Let the settings of a downloaded run name its new folder, instead of folders and runs of the uploader.

    Otherwise a training with them would write to the uploader's `results_dir`, `force` would delete runs, and
    `init_path` would replace the downloaded networks.
    """
    try:
        tree = Document(str(configuration)).read(configuration.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return
    tree["checkpoint_settings"] = {"run_id": folder.name, "results_dir": str(folder.parent)}
    behaviors = block_of(tree, "behaviors")
    for block in (block_of(tree, "default_settings"), *(block_of(behaviors, name) for name in behaviors)):
        block.pop("init_path", None)
    write(configuration, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def _client(command: str) -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise UnityGymError(f"unity-learn {command} needs huggingface_hub: pip install 'unity-gym[hub]'") from error


@contextmanager
def _asking(repo_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the client raises exceptions of several libraries
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnityGymError(
            f"{repo_id}: the Hugging Face Hub answers: {reason:.400}. Correct the name and the connection, and log in "
            "with: hf auth login"
        ) from error


def _settings(folder: Path, env: str | None) -> RunSettings:
    """Return the settings of a run, for acting with its policies in this process."""
    flags: dict[str, object] = {
        "checkpoint_settings.run_id": folder.name,
        "checkpoint_settings.results_dir": str(folder.parent),
        "checkpoint_settings.resume": True,
        "checkpoint_settings.inference": True,
        "env_settings.num_envs": 1,
        "env_settings.num_workers": 0,
    }
    if env is not None:
        flags["env_settings.env_path"] = env
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(folder / CONFIGURATION, flags)


def _played(settings: RunSettings, episodes: int, video: Path) -> dict[str, Evaluation]:
    """Run episodes and return their results, by behavior; none if no player can be launched."""
    if settings.env_settings.env_path is None:
        print_line("No episodes are played, as the run names no player: give --env for results and a video")
        return {}
    reason: UnityGymError | None = None
    for record in [str(video), None] if find_spec("imageio_ffmpeg") else [None]:
        try:
            return evaluate(settings, episodes, record)
        except UnityGymError as error:
            reason = reason or error
    print_line(f"No episodes are played: {reason}. Give --env, or --episodes 0")
    return {}


def _trained(folder: Path, behavior: str) -> Evaluation | None:
    """Return the latest results of the training; of `mlagents-learn`, only the mean is available."""
    try:
        with (folder / behavior / "rewards.csv").open(newline="") as file:
            last = [*csv.DictReader(file)][-1]
        return Evaluation(int(last["episodes"]), float(last["mean_reward"]), float(last["std_reward"]))
    except (FileNotFoundError, IndexError):
        pass
    final = read_status(folder).get(behavior, {}).get("final_checkpoint", {})
    return None if final.get("reward") is None else Evaluation(0, float(final["reward"]), float("nan"))


def _configuration(folder: Path, settings: RunSettings) -> dict[str, Any]:
    """Return the settings as they were written, or resolved if the file is not plain YAML."""
    try:
        tree: dict[str, Any] = yaml.safe_load((folder / CONFIGURATION).read_text(encoding="utf-8"))
    except yaml.YAMLError:
        tree = resolved_configuration(settings)
    return tree


def _card(
    hub: Any,
    folder: Path,
    repo_id: str,
    names: list[str],
    settings: RunSettings,
    evaluations: Mapping[str, Evaluation | None],
) -> str:
    """Return the model card, with its metadata."""
    available = {team: evaluation for team, evaluation in evaluations.items() if evaluation is not None}
    name = repo_id.rpartition("/")[2]
    data = hub.ModelCardData(
        library_name="ml-agents",
        tags=[
            *("ML-Agents", *names, "deep-reinforcement-learning", "reinforcement-learning"),
            *(f"ML-Agents-{behavior}" for behavior in names),
            "unity-gym",
        ],
        model_name=name,
        eval_results=[
            hub.EvalResult(
                task_type="reinforcement-learning",
                task_name="reinforcement-learning",
                dataset_type=plain_name(team),
                dataset_name=plain_name(team),
                metric_type="mean_reward",
                metric_name="mean_reward",
                metric_value=_result(evaluation),
            )
            for team, evaluation in available.items()
        ]
        or None,
    )
    trainers = ", ".join(f"**{settings.behavior(behavior).trainer_type}** playing **{behavior}**" for behavior in names)
    rows = "".join(f"| {team} | {_result(value)} | {value.episodes or ''} |\n" for team, value in available.items())
    curve = f"\n![Learning curve]({_CURVE})\n" if (folder / _CURVE).is_file() else ""
    video = f"\n[Video of an episode]({_VIDEO})\n" if (folder / _VIDEO).is_file() else ""
    versions = "".join(
        f"- {key.removesuffix('_version').replace('_', '-')} {value}\n"
        for key, value in read_status(folder).get("metadata", {}).items()
        if key.endswith("_version") and key != "stats_format_version"
    )
    networks = ", ".join(f"`{path.name}`" for path in sorted(folder.glob("*.onnx")))
    text = f"""
# {name}

A run of [Unity ML-Agents](https://github.com/Unity-Technologies/ml-agents): {trainers}.

## Results

| behavior | mean reward of an episode | episodes |
|---|---|---|
{rows}{curve}{video}
## Usage

Load {networks or "the ONNX file"} in Unity as the model of the agents, or download the run:

```
unity-learn pull {repo_id}
unity-learn results/{name}/{CONFIGURATION} --env PLAYER --run-id {name} --resume --inference
unity-learn CONFIG --initialize-from {name} --run-id NEW
```

`mlagents-load-from-hf --repo-id {repo_id}` downloads it, too.

## Configuration

```yaml
{(folder / CONFIGURATION).read_text(encoding="utf-8").strip()}
```

## Versions

{versions}"""
    return f"---\n{data.to_yaml()}\n---\n{text}"


def _result(evaluation: Evaluation) -> str:
    if not evaluation.episodes:
        return f"{evaluation.mean_reward:.3f}"
    return f"{evaluation.mean_reward:.3f} +/- {evaluation.std_reward:.3f}"
