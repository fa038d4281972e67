"""The command `unity-learn`: train the behaviors of a Unity player with an ML-Agents YAML file.

Functions import what needs torch, so that help, invalid settings and Ctrl-C do not wait for it.
"""

from __future__ import annotations

import argparse
import io
import re
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os.path import expanduser
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import unity_gym
from sb3_ext.child_processes import preload
from sb3_ext.console import OutputClosedError, lock_bars_in_threads, print_line, version_text
from sb3_ext.settings import RunSettings, load
from sb3_ext.settings.document import did_you_mean
from sb3_ext.settings.shipped import configuration_file, configuration_names, sweep_names
from unity_gym.errors import UnityGymError

# Option, key path in the settings, name of its value ("" for a switch, "[NAME]" if optional) and description.
_FLAGS = (
    ("env", "env_settings.env_path", "PLAYER", "build, Unity-<Scene>-v0, or Unity-v0 for the Editor, which is also "
     "waited for if neither this nor the file names a player"),
    ("run-id", "checkpoint_settings.run_id", "NAME", "name of the run and its folder (default: ppo)"),
    ("resume", "checkpoint_settings.resume", "", "continue the run of this name"),
    ("force", "checkpoint_settings.force", "", "delete the run of this name and start from scratch"),
    ("initialize-from", "checkpoint_settings.initialize_from", "NAME", "start with the networks of another run, "
     "also of mlagents-learn"),
    ("inference", "checkpoint_settings.inference", "", "act with the policies of --resume, --initialize-from or "
     "init_path, without learning"),
    ("results-dir", "checkpoint_settings.results_dir", "FOLDER", "folder of the runs' folders (default: results)"),
    ("deterministic", "behaviors.*.network_settings.deterministic", "", "always take the most likely action"),
    ("num-envs", "env_settings.num_envs", "N", "number of players (default: 1)"),
    ("num-workers", "env_settings.num_workers", "N", "processes that step the players, at most --num-envs; with 0, "
     "the process that learns does (default: 0)"),
    ("ray", "ray.address", "[ADDRESS]", "run them as actors of the Ray cluster at ADDRESS, by default the one of this "
     "machine, which is started if there is none"),
    ("ray-ship-build", "ray.ship_build", "", "with --ray: send the folder of --env to each node"),
    ("num-areas", "env_settings.num_areas", "N", "training areas per player"),
    ("seed", "env_settings.seed", "N", "seed of all random numbers; player i has N + i (default: random)"),
    ("base-port", "env_settings.base_port", "PORT", "player i listens on PORT + i (default: free ports)"),
    ("timeout-wait", "env_settings.timeout_wait", "SECONDS", "time to wait for a message of a player (default: 60)"),
    ("trust-peer", "env_settings.trust_peer", "", "accept any process that connects to a player's port, such as a "
     "player in a container"),
    ("max-lifetime-restarts", "env_settings.max_lifetime_restarts", "N", "times that a player that fails is launched "
     "again; -1 for any number (default: 10)"),
    ("restarts-rate-limit-n", "env_settings.restarts_rate_limit_n", "N", "of these times, those within the period "
     "(default: 1)"),
    ("restarts-rate-limit-period-s", "env_settings.restarts_rate_limit_period_s", "SECONDS", "length of the period "
     "(default: 60)"),
    ("no-graphics", "engine_settings.no_graphics", "", "launch players without rendering"),
    ("no-graphics-monitor", "engine_settings.no_graphics_monitor", "", "launch all players but the first "
     "without rendering"),
    ("display", "engine_settings.display", "xvfb", "let players with cameras draw on a virtual screen (the program "
     "Xvfb), for a machine without a screen"),
    ("time-scale", "engine_settings.time_scale", "X", "simulated seconds per second (default: 20)"),
    ("width", "engine_settings.width", "PIXELS", "width of the players' windows (default: 84)"),
    ("height", "engine_settings.height", "PIXELS", "height of the players' windows (default: 84)"),
    ("quality-level", "engine_settings.quality_level", "N", "quality of rendering (default: 5)"),
    ("target-frame-rate", "engine_settings.target_frame_rate", "N", "frames per second (default: -1, no limit)"),
    ("capture-frame-rate", "engine_settings.capture_frame_rate", "N", "frames per simulated second (default: 60)"),
    ("torch-device", "torch_settings.device", "DEVICE", "cpu, cuda, cuda:1 or mps; with cuda:0,cuda:1, a "
     "process for each shares the updates (default: cuda if available)"),
    ("debug", "debug", "", "print details, with time and place"),
)  # fmt: skip
_REMOVED = {
    "torch": "PyTorch is the only framework",
    "tensorflow": "PyTorch is the only framework",
    "train": "runs train unless --inference is given",
}  # options of former versions of mlagents-learn
_REPLACED = {
    "cpu": "--torch-device cpu",
    "curriculum": "environment_parameters in the configuration, which unity-learn FILE prints for a curriculum file",
    "keep-checkpoints": "keep_checkpoints in the configuration",
    "sampler": "environment_parameters in the configuration, which unity-learn FILE prints for a sampler file",
    "save-freq": "checkpoint_interval in the configuration",
    "slow": "--time-scale 1",
    "worker-id": "--base-port",
}  # options of former versions of mlagents-learn
_NO_MEASUREMENT = (
    *("run-id", "resume", "force", "initialize-from", "inference", "results-dir", "track"),
    *("num-envs", "num-workers", "ray", "ray-ship-build"),
)  # options without effect on what autotune measures, or that it varies itself
_INFERENCE = ("episodes", "json", "record")  # options without a setting, as Unity's trainer has no such keys


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _base_parser(
        "unity-learn",
        "Train the behaviors of a Unity player. Command-line options override the configuration file. Further "
        f"commands: {', '.join(_COMMANDS)}; see unity-learn COMMAND --help.",
    )
    parser.add_argument("config", nargs="?", default=None, help="YAML file in ML-Agents' format, or a name of --list")
    parser.add_argument("--list", action="store_true", help="print the names of the configurations in this package")
    version = f"unity-gym {unity_gym.__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version of this package")
    parser.add_argument("--load", dest="checkpoint_settings.resume", action="store_true", help=argparse.SUPPRESS)
    for removed, reason in _REMOVED.items():
        parser.add_argument(f"--{removed}", action="store_true", help=f"has no effect: {reason}")
    shown = parser.add_argument_group("with --inference")
    shown.add_argument(
        "--episodes",
        type=_count,
        metavar="N",
        help="end after N episodes of each behavior, the same number of each agent, with their mean reward",
    )
    shown.add_argument("--json", action="store_true", help="with --episodes: print the result as JSON")
    help_text = "record a video of the first player, such as run.mp4"
    shown.add_argument("--record", type=expanduser, metavar="FILE", help=help_text)
    _add_settings(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """Parser that names the option that an unknown one may stand for, and the words that it takes."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments:") and " -" not in message:
            words = [action.metavar or action.dest for action in self._actions if not action.option_strings]
            others = "" if self.prog.count(" ") else f". Its commands are {', '.join(_COMMANDS)}; it trains without one"
            message += f"; {self.prog} takes one {words[0]}{others}"
        if unknown := re.search(r"^unrecognized arguments:.*? --([\w-]+)", message):
            name = unknown[1]
            options = (option for option in self._option_string_actions if option.startswith("--"))
            message += f"; use {_REPLACED[name]}" if name in _REPLACED else did_you_mean(f"--{name}", options)
        super().error(message)


def _base_parser(program: str, description: str) -> _Parser:
    return _Parser(program, description=description, argument_default=argparse.SUPPRESS, allow_abbrev=False)


class _Rejection(argparse.Action):
    """Option of `unity-learn` that has no meaning for a subcommand."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]} has no effect in {parser.prog}: leave it out")


def _add_settings(parser: argparse.ArgumentParser, rejected: Collection[str] = ()) -> None:
    """Add the options that correspond to settings.

    :param rejected: Options that have no effect in the command, which rejects them.
    """
    for flag in rejected:
        parser.add_argument(f"--{flag}", nargs="?", action=_Rejection, help=argparse.SUPPRESS)
    for flag, path, value, text in _FLAGS:
        if flag in rejected:
            continue
        if value.startswith("["):
            parser.add_argument(f"--{flag}", dest=path, metavar=value[1:-1], nargs="?", help=text)
        elif value:
            parser.add_argument(f"--{flag}", dest=path, metavar=value, help=text)
        else:
            parser.add_argument(f"--{flag}", dest=path, action="store_true", help=text)
    if "track" not in rejected:
        parser.add_argument(
            "--track",
            dest="stats_writers",
            action="append",
            choices=["mlflow", "wandb"],
            help="send settings, statistics and the final network to this tracker; several can be given",
        )
    parser.add_argument(
        "--env-args",
        dest="env_settings.env_args",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="pass the rest of the line to the player",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    :return: Exit status: 0 at the end, 1 after an error, 128 plus the number of a signal that ended it (130 after
        Ctrl-C, 143 after SIGTERM, 129 after the terminal was closed).
    """
    line = [*(sys.argv[1:] if arguments is None else arguments)]
    command = _COMMANDS.get(line[0]) if line else None
    received: int = signal.SIGINT

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal received
        received = number  # a wait for Ray replaces the exception by one without the number
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    if arguments is None:
        lock_bars_in_threads()
        if isinstance(sys.stdout, io.TextIOWrapper):  # names and paths of any language, also in an ASCII terminal
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _learn(line, owns_process=arguments is None) if command is None else command(line[1:])
    except (UnityGymError, OutputClosedError) as error:
        print(f"unity-learn: error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"unity-learn: error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt as stop:
        return 128 + int(stop.args[0] if stop.args else received)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1


def _learn(line: list[str], owns_process: bool) -> int:
    """Train, or run inference.

    :param owns_process: Whether this process runs nothing else.
    """
    given = vars(make_parser().parse_args(line))
    config = given.pop("config")
    if given.pop("list", False):
        print_line("\n".join(configuration_names()))
        return 0
    for removed, reason in _REMOVED.items():
        if given.pop(removed, False):
            print(f"unity-learn: warning: --{removed} has no effect: {reason}", file=sys.stderr)
    options = {name: given.pop(name) for name in _INFERENCE if name in given}
    try:
        settings = _settings(config, given)
        is_result_alone = settings.checkpoint_settings.inference and "episodes" in options
        print_line(version_text(), sys.stderr if is_result_alone else None)
        if not settings.checkpoint_settings.inference:
            _require_no_options(options)
            if owns_process and settings.env_settings.num_workers and settings.ray is None:
                preload("sb3_ext.training")
            from sb3_ext.training import train

            ended_by = train(settings)
            return 128 + ended_by if ended_by else 0
        if "json" in options and "episodes" not in options:
            raise UnityGymError("--json prints the result of --episodes: give both")
        if given.get("env_settings.num_workers"):
            raise UnityGymError("--inference acts in this process only: leave --num-workers out")
        from sb3_ext.inference import run_inference

        run_inference(settings, options.get("episodes"), options.get("record"), "json" in options)
    except KeyboardInterrupt:
        if not given.get("checkpoint_settings.inference"):
            print("unity-learn: stopped, nothing was saved", file=sys.stderr)
        raise
    return 0


def _settings(config: str | None, flags: Mapping[str, object]) -> RunSettings:
    """Read the settings, and print warnings about them."""
    with _printed_warnings():
        settings = load(None if config is None else configuration_file(config), flags=flags)
    if settings.torch_settings.device is not None:
        from sb3_ext.hardware import require_device

        require_device(settings.torch_settings.device)
    return settings


def make_sweep_parser() -> argparse.ArgumentParser:
    """Return the parser of `unity-learn sweep`."""
    parser = _base_parser(
        "unity-learn sweep",
        "Search the settings that learn best. --run-id, --results-dir, --resume, --force and --seed are those of the "
        "sweep; other options apply to all of its runs.",
    )
    parser.add_argument("sweep", nargs="?", help="YAML file of the sweep, or a name of --list")
    parser.add_argument("--list", action="store_true", help="print the names of the sweeps in this package")
    _add_settings(parser, rejected=("inference",))
    return parser


def _sweep(line: list[str]) -> int:
    """Run a sweep."""
    parser = make_sweep_parser()
    given = vars(parser.parse_args(line))
    if given.pop("list", False):
        print_line("\n".join(sweep_names()))
        return 0
    if "sweep" not in given:
        parser.error("give the YAML file of the sweep")
    from sb3_ext.sweep import Sweep

    ended_by = Sweep(given.pop("sweep"), given).run()
    return 128 + ended_by if ended_by else 0


def make_autotune_parser() -> argparse.ArgumentParser:
    """Return the parser of `unity-learn autotune`."""
    parser = _base_parser(
        "unity-learn autotune",
        "Measure how many players, areas and workers train fastest on this machine, and print the options for them.",
    )
    parser.add_argument("config", help="YAML file in ML-Agents' format, or a name of --list")
    parser.add_argument("--seconds", type=_count, default=5, metavar="N", help="time for each measurement (default: 5)")
    _add_settings(parser, rejected=_NO_MEASUREMENT)
    return parser


def _autotune(line: list[str]) -> int:
    """Propose the fastest arrangement for training."""
    given = vars(make_autotune_parser().parse_args(line))
    from sb3_ext.autotune import autotune

    settings = _settings(given.pop("config"), {name: given[name] for name in given if name != "seconds"})
    autotune(settings, given["seconds"])
    return 0


def make_push_parser() -> argparse.ArgumentParser:
    """Return the parser of `unity-learn push`."""
    parser = _base_parser(
        "unity-learn push",
        "Upload a run to the Hugging Face Hub, with a model card. Runs of mlagents-learn can be uploaded, too.",
    )
    parser.add_argument("run", type=expanduser, help="name or folder of the run")
    parser.add_argument("--repo-id", required=True, metavar="USER/NAME", help="repository, created if there is none")
    parser.add_argument(
        "--results-dir", type=expanduser, metavar="FOLDER", help="folder of the runs' folders (default: results)"
    )
    parser.add_argument("--env", metavar="PLAYER", help="player to measure and record episodes in (default: the run's)")
    parser.add_argument(
        "--episodes",
        type=lambda text: 0 if text == "0" else _count(text),
        metavar="N",
        help="number of these episodes; 0 for none (default: 10)",
    )
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument("--commit-message", dest="message", metavar="TEXT", help="message of the commit")
    return parser


def _push(line: list[str]) -> int:
    """Upload a run."""
    given = vars(make_push_parser().parse_args(line))
    from sb3_ext.sharing import push

    print_line(f"Uploaded: {push(**given)}")
    return 0


def make_pull_parser() -> argparse.ArgumentParser:
    """Return the parser of `unity-learn pull`."""
    parser = _base_parser("unity-learn pull", "Download a run from the Hugging Face Hub, also one of mlagents-learn.")
    parser.add_argument("repo_id", metavar="USER/NAME", help="repository")
    parser.add_argument(
        "--local-dir", type=expanduser, metavar="FOLDER", help="folder that the folder NAME is in (default: results)"
    )
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit (default: the newest)")
    return parser


def _pull(line: list[str]) -> int:
    """Download a run."""
    given = vars(make_pull_parser().parse_args(line))
    from sb3_ext.sharing import pull

    folder = pull(**given)
    flags = f"--initialize-from {folder.name}"
    if folder.parent != Path("results"):
        flags += f" --results-dir {folder.parent}"
    print_line(f"Downloaded: {folder}. Train with its networks: unity-learn CONFIG {flags}")
    return 0


_COMMANDS = {"autotune": _autotune, "pull": _pull, "push": _push, "sweep": _sweep}
"""Subcommands. A configuration file with such a name is given with its folder, as ./sweep."""


@contextmanager
def _printed_warnings() -> Iterator[None]:
    """Print the warnings of the context, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                print(f"unity-learn: warning: {text}", file=sys.stderr)


def _require_no_options(options: dict[str, object]) -> None:
    if options:
        raise UnityGymError(f"--{next(iter(options))} needs --inference: give it, too")


if __name__ == "__main__":
    sys.exit(main())
