"""Measure the speed of all parts, and write the page of the documentation with the tables.

python tests/benchmarks/speed.py                            # all parts, 25 minutes on two cores
python tests/benchmarks/speed.py --peer PEER                # compared with Unity's packages
python tests/benchmarks/speed.py --parts client scenes      # measure these again
python tests/benchmarks/speed.py --parts                    # measure nothing, write the page

Each part is the command of another benchmark. Its tables and the state of the machine are stored in `speed/`, so that a
part can be measured again on its own. `PEER` is an environment of Python 3.10 with Unity's packages `mlagents_envs` and
`mlagents` 1.1.0. Measure on a machine without other work: the page shows the load at the start of each part.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from results import REPOSITORY, commit

FIGURES = Path(__file__).with_name("speed")
PAGE = REPOSITORY / "docs" / "speed.md"
INTRODUCTION = """\
# Speed

<!-- written by tests/benchmarks/speed.py: change it there -->

The command `python tests/benchmarks/speed.py --peer PEER` repeats all measurements and writes this page. `PEER` is an
environment with Unity's own Python packages, see `tests/benchmarks/README.md`. The machines are shared: compare the
columns of one table, not the figures of two.
"""


@dataclass(frozen=True)
class Part:
    """Part of the page.

    :param title: Heading.
    :param text: Meaning of the figures.
    :param command: Script and arguments.
    :param peer: Arguments in addition if Unity's packages are given; `PEER` is their environment.
    :param needs_peer: Whether nothing can be measured without them.
    :param needs_gpu: Whether nothing can be measured without a GPU.
    """

    title: str
    text: str
    command: str
    peer: str = ""
    needs_peer: bool = False
    needs_gpu: bool = False


PARTS = {
    "training": Part(
        "Training",
        "Timesteps per second of `unity-learn` and of Unity's `mlagents-learn`, with equal settings and the same "
        "embedded player: median (and range) over whole buffers. *Synchronous* is the default; *worker* lets agents "
        "act in another process during an update (`threaded: true`, `--num-workers 1`).",
        "throughput.py --rounds 1 --seconds 15 --modes synchronous worker",
        "mlagents-learn --peer-learn PEER/bin/mlagents-learn",
    ),
    "goal": Part(
        "Training to a reward",
        "Timesteps and seconds until 3DBall has a mean reward of 98, from the start of the command.",
        "trainers.py --worker --scenes 3DBall --seeds 0 1 2",
        "--peer-learn PEER/bin/mlagents-learn",
        needs_peer=True,
    ),
    "client": Part(
        "Client",
        "Steps per second with a player that answers at once: of bare gRPC that reads nothing (*bare*), of "
        "`UnityEnvironment` (*ours*), of `mlagents_envs` (*peer*) and of `UnityVecEnv` (*vec_env*). A workload is the "
        "number of agents and the size of their observations.",
        "client_speed.py --rounds 8 --seconds 0.4",
        "--peer-python PEER/bin/python",
    ),
    "player": Part(
        "The player's end of the wire",
        "Exchanges per second of the same messages with the embedded player's end of the wire (*caller*) and with the "
        "client of grpcio. Both talk to our server, which reads nothing.",
        "player_speed.py --rounds 8 --seconds 0.4",
    ),
    "scenes": Part(
        "Embedded scenes",
        "Timesteps per second of processor time of the embedded player, without messages: one process, one thread, "
        "random actions.",
        "scenes.py --rounds 3 --seconds 2",
    ),
    "updates": Part(
        "Updates",
        "Milliseconds of processor time per minibatch, of the algorithm and of a bare torch loop over the same "
        "networks.",
        "update.py --rounds 8",
    ),
    "devices": Part(
        "Devices",
        "Milliseconds per minibatch of an update and per decision of all agents, on the processor with 1 to 8 threads "
        "and on a GPU. *Waits*: how often per minibatch the program waits for the GPU.",
        "devices.py --devices cpu:1 cpu:2 cpu:4 cpu:8 cuda --rounds 1",
        needs_gpu=True,
    ),
    "graphs": Part(
        "Updates on a GPU",
        "The same on a GPU alone, which repeats the updates of PPO, SAC and reward signals as CUDA graphs since commit "
        "bb08a7d. A table of all devices with an earlier commit has the times without them.",
        "devices.py --devices cuda --rounds 1",
        needs_gpu=True,
    ),
    "gpu": Part(
        "Training on a GPU",
        "Timesteps per second of `unity-learn` on the processor, with as many threads as it takes by itself, and on a "
        "GPU.",
        "throughput.py --devices cpu cuda --modes synchronous worker --rounds 1 --seconds 6 --rows "
        "poca/CooperativePushBlock ppo/GridWorld ppo/3DBall ppo/Pyramids",
        needs_gpu=True,
    ),
    "players": Part(
        "Several players",
        "Steps per second of players that take 5 ms per step, such as builds: all together (*step_once*), and each as "
        "soon as it has answered (*send/receive*).",
        "pool_speed.py --rounds 2 --seconds 2",
    ),
}


def measure(part: Part, peer: str) -> dict[str, Any]:
    """Run the command of a part, and return what it printed and the state of the machine."""
    shown = f"{part.command} {part.peer}" if peer and part.peer else part.command
    script, *arguments = shlex.split(shown)
    load = os.getloadavg()[0]
    command = [sys.executable, str(Path(__file__).with_name(script))]
    command += [argument.replace("PEER", str(Path(peer).absolute())) for argument in arguments]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {
        "command": f"python tests/benchmarks/{shown}",
        "lines": result.stdout.strip().splitlines(),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "processor": processor() + (f", {torch.cuda.get_device_name()}" if part.needs_gpu else ""),
        "load": round(load, 1),
    }


def processor() -> str:
    """Return the name of the processor, empty if it is not known."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def write_page() -> None:
    """Write the page from the stored figures."""
    lines = [INTRODUCTION.rstrip()]
    for name, part in PARTS.items():
        path = FIGURES / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        machine = f"{found['cores']} cores{' of ' * bool(found['processor'])}{found['processor']}"
        load = "" if found["load"] is None else f", load {found['load']} at the start"
        lines += [
            *("", f"## {part.title}", "", textwrap.fill(part.text, 118), "", "```", found["command"], "```", ""),
            f"{found['date']}, commit {found['commit']}, {machine}{load}:",
            *("", *found["lines"]),
        ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure the parts of the command line, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="", help="environment with Unity's packages; without it, ours alone")
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=list(PARTS), help="parts to measure (default: all)"
    )
    arguments = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    for name in arguments.parts:
        if PARTS[name].needs_peer and not arguments.peer:
            print(f"{name}: not measured without --peer", file=sys.stderr)
            continue
        if PARTS[name].needs_gpu and not torch.cuda.is_available():
            print(f"{name}: not measured without a GPU", file=sys.stderr)
            continue
        found = measure(PARTS[name], arguments.peer)
        (FIGURES / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print("\n".join(found["lines"]), flush=True)
        write_page()
    write_page()


if __name__ == "__main__":
    main()
