"""The command `unity-learn`: train the behaviors of a Unity player as an ML-Agents YAML file describes it."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import torch

from sb3_ext.settings import load
from sb3_ext.training import train
from unity_gym.errors import UnityGymError

# Flag, key path in the settings, name of its value ("" where it has none) and what it does.
_FLAGS = (
    ("env", "env_settings.env_path", "PLAYER", "a build, Unity-<Scene>-v0, or Unity-v0 for the Editor, which is also "
     "waited for where neither this nor the file names a player"),
    ("run-id", "checkpoint_settings.run_id", "NAME", "the run's name and folder (ppo)"),
    ("resume", "checkpoint_settings.resume", "", "go on with the run of this name"),
    ("force", "checkpoint_settings.force", "", "delete the run of this name and begin anew"),
    ("initialize-from", "checkpoint_settings.initialize_from", "NAME", "begin with the networks of another run"),
    ("inference", "checkpoint_settings.inference", "", "with --resume: show what was learned, and learn nothing"),
    ("results-dir", "checkpoint_settings.results_dir", "FOLDER", "where the runs' folders are (results)"),
    ("deterministic", "behaviors.*.network_settings.deterministic", "", "always take the most likely action"),
    ("num-envs", "env_settings.num_envs", "N", "players at once (1)"),
    ("num-areas", "env_settings.num_areas", "N", "training areas a player"),
    ("seed", "env_settings.seed", "N", "of all random numbers; player i has N + i"),
    ("base-port", "env_settings.base_port", "PORT", "player i listens on PORT + i; by default on free ones"),
    ("timeout-wait", "env_settings.timeout_wait", "SECONDS", "to wait for any message of a player (60)"),
    ("max-lifetime-restarts", "env_settings.max_lifetime_restarts", "N", argparse.SUPPRESS),
    ("restarts-rate-limit-n", "env_settings.restarts_rate_limit_n", "N", argparse.SUPPRESS),
    ("restarts-rate-limit-period-s", "env_settings.restarts_rate_limit_period_s", "N", argparse.SUPPRESS),
    ("no-graphics", "engine_settings.no_graphics", "", "launch players without rendering"),
    ("no-graphics-monitor", "engine_settings.no_graphics_monitor", "", argparse.SUPPRESS),
    ("time-scale", "engine_settings.time_scale", "X", "simulated seconds per second (20)"),
    ("width", "engine_settings.width", "PIXELS", "of the players' windows (84)"),
    ("height", "engine_settings.height", "PIXELS", "of the players' windows (84)"),
    ("quality-level", "engine_settings.quality_level", "N", "of rendering (5)"),
    ("target-frame-rate", "engine_settings.target_frame_rate", "N", "frames a second (-1, as many as possible)"),
    ("capture-frame-rate", "engine_settings.capture_frame_rate", "N", "frames a simulated second (60)"),
    ("torch-device", "torch_settings.device", "DEVICE", "cpu, cuda, cuda:1 …; by default the GPU where there is one"),
    ("debug", "debug", "", argparse.SUPPRESS),
)  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "unity-learn",
        description="Train the behaviors of a Unity player. What is typed here goes before the file.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", default=None, help="the settings: a YAML file in ML-Agents' format")
    for flag, path, value, text in _FLAGS:
        if value:
            parser.add_argument(f"--{flag}", dest=path, metavar=value, help=text)
        else:
            parser.add_argument(f"--{flag}", dest=path, action="store_true", help=text)
    parser.add_argument(
        "--env-args",
        dest="env_settings.env_args",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="the rest of the line goes to the player",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    :return: its exit status: 0 at the end, 1 after an error, 130 after Ctrl-C
    """
    typed = vars(_parser().parse_args(arguments))
    config = typed.pop("config")
    # Small networks are fastest on few threads, and the players need processors too.
    torch.set_num_threads(max(1, min(torch.get_num_threads() // 2, 4)))
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            settings = load(config, flags=typed)
        for warning in told:
            print(f"unity-learn: {warning.message}", file=sys.stderr)
        return 0 if train(settings) else 130
    except UnityGymError as error:
        print(f"unity-learn: {error}", file=sys.stderr)
    except OSError as error:
        print(f"unity-learn: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:
        print("unity-learn: stopped, nothing was saved", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
