"""Trackers of experiments as statistics writers: Weights & Biases and MLflow, with their own clients.

Trackers are selected by `--track wandb` or `--track mlflow`, or by `stats_writers: [wandb]` in a configuration file.
They send the settings of a run with its first summary, the means of each summary, and the final ONNX files at the end.
`tracking.json` in the folder of the run contains the id of the tracked run, so that `--resume` continues the same one.

The clients are configured by their environment variables: `WANDB_MODE`, `WANDB_PROJECT`, `MLFLOW_TRACKING_URI`,
`MLFLOW_EXPERIMENT_NAME` and others.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from sb3_ext.files import write
from sb3_ext.runs import CONFIGURATION
from unity_gym.errors import UnityGymError

TRACKING = "tracking.json"
PROJECT = "unity-gym"
"""Name of the project or experiment, unless an environment variable of the client contains another."""


class _Tracker:
    """Statistics writer whose tracked run starts with the first summary, when the folder of the run exists.

    :param folder: Folder of the run.
    :raises UnityGymError: If the client is not installed.
    """

    name: str
    """Name of the writer, its client and its extra."""

    def __init__(self, folder: Path) -> None:
        try:
            self._client: Any = import_module(self.name)
        except ImportError as error:
            raise UnityGymError(
                f"--track {self.name} needs {self.name}: pip install 'unity-gym[{self.name}]'"
            ) from error
        self._folder, self._started = folder, False

    def write_stats(self, behavior: str, step: int, stats: Mapping[str, float]) -> None:
        """Send the means of a summary, as `<behavior>/<tag>`.

        :raises UnityGymError: If the client cannot send them.
        """
        with self._sending():
            if not self._started:
                settings = yaml.safe_load((self._folder / CONFIGURATION).read_text(encoding="utf-8"))
                identifiers = self._identifiers()
                identifiers[self.name] = self._start(identifiers.get(self.name), settings)
                write(self._folder / TRACKING, json.dumps(identifiers))
                self._started = True
            self._log(behavior, step, {f"{behavior}/{tag}": value for tag, value in stats.items()})

    def close(self) -> None:
        """Send the final ONNX files and end the tracked run.

        :raises UnityGymError: If the client cannot send them.
        """
        if self._started:
            self._started = False
            with self._sending():
                self._finish(sorted(self._folder.glob("*.onnx")))

    def _identifiers(self) -> dict[str, str]:
        path = self._folder / TRACKING
        identifiers: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return identifiers

    @contextmanager
    def _sending(self) -> Iterator[None]:
        try:
            yield
        except (UnityGymError, OSError):
            raise
        except Exception as error:  # each client has its own classes
            reason = " ".join(str(error).split())
            raise UnityGymError(
                f"{self.name} cannot be written to: {reason:.300}. Correct its variables or its connection, or leave "
                "--track out; --resume continues the run"
            ) from error

    def _start(self, identifier: str | None, settings: dict[str, Any]) -> str:
        """Start or continue a tracked run.

        :param identifier: Id of the tracked run to continue; None to start one.
        :return: Id of the tracked run.
        """
        raise NotImplementedError

    def _log(self, behavior: str, step: int, values: dict[str, float]) -> None:
        raise NotImplementedError

    def _finish(self, files: list[Path]) -> None:
        raise NotImplementedError


class WandbTracker(_Tracker):
    """Statistics writer for Weights & Biases."""

    name = "wandb"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._behaviors: set[str] = set()
        self._run: Any = None

    def _start(self, identifier: str | None, settings: dict[str, Any]) -> str:
        self._run = self._client.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._folder.name,
            id=identifier,
            resume="allow",
            config=settings,
            dir=self._folder,
            allow_val_change=True,
            settings=self._client.Settings(console="off", silent=True),
        )
        return str(self._run.id)

    def _log(self, behavior: str, step: int, values: dict[str, float]) -> None:
        # Each behavior has its own timesteps, and a resumed run repeats those after its checkpoint.
        if behavior not in self._behaviors:
            self._behaviors.add(behavior)
            self._run.define_metric(f"{behavior}/*", step_metric=f"{behavior}/timesteps")
        self._run.log({**values, f"{behavior}/timesteps": step})

    def _finish(self, files: list[Path]) -> None:
        if files:
            name = re.sub(r"[^\w.-]", "-", self._folder.name)
            artifact = self._client.Artifact(f"{name}-onnx", type="model")
            for file in files:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        self._run.finish()


class MLflowTracker(_Tracker):
    """Statistics writer for MLflow."""

    name = "mlflow"

    def _start(self, identifier: str | None, settings: dict[str, Any]) -> str:
        self._api = self._client.MlflowClient()
        if identifier is not None:
            self._run_id = identifier
            self._api.update_run(identifier, status="RUNNING")
            return identifier
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._api.get_experiment_by_name(name)
        number = self._api.create_experiment(name) if experiment is None else experiment.experiment_id
        self._run_id = str(self._api.create_run(number, run_name=self._folder.name).info.run_id)
        parameters = [self._client.entities.Param(_allowed(key), str(value)) for key, value in _flat("", settings)]
        for first in range(0, len(parameters), 100):  # maximum per request
            self._api.log_batch(self._run_id, params=parameters[first : first + 100])
        return self._run_id

    def _log(self, behavior: str, step: int, values: dict[str, float]) -> None:  # noqa: ARG002
        now = round(time.time() * 1000)
        metrics = [self._client.entities.Metric(_allowed(key), value, now, step) for key, value in values.items()]
        self._api.log_batch(self._run_id, metrics=metrics)

    def _finish(self, files: list[Path]) -> None:
        for file in files:
            self._api.log_artifact(self._run_id, str(file))
        self._api.set_terminated(self._run_id)


def _flat(path: str, tree: object) -> Iterator[tuple[str, object]]:
    """Yield the values of a tree by their key paths."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flat(f"{path}.{key}" if path else str(key), value)
    else:
        yield path, tree


def _allowed(name: str) -> str:
    """Return a name without the characters, and the empty and relative parts of a path, that MLflow rejects."""
    parts = re.sub(r"[^\w\-. /]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))
