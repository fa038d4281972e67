"""What samplers on a Ray cluster cost, and how they scale, in the nodes that one machine pretends to be.

    python tests/benchmarks/ray_scale.py overhead [--seconds 10] [--rounds 5]
    python tests/benchmarks/ray_scale.py scale [--samplers 1 2 4 8 16 32] [--ticks 5 20 50] [--seconds 10]
    python tests/benchmarks/ray_scale.py learn

`overhead` trains 3DBall with one sampler, in a process and in a Ray actor by turns, and compares timesteps per second.
`scale` trains on players that sleep `--ticks` milliseconds per step, as builds do whose physics runs on another
machine, one player with 12 agents per sampler, while updates run in a thread. It prints timesteps per second, also
as a share of what one sampler makes times their number, how much of a core the learner's process uses, and how busy
all cores are, and draws docs/images/ray_scale.png. A limit is reached where one of the latter is near 1.
`learn` trains on a cluster of two nodes: 3DBall with PPO until it reaches a mean return of 98 (on the way to 100),
and some updates of SoccerTwos with self-play and CooperativePushBlock with POCA.

The load of the machine before each measurement is printed, too: other programs change all figures but the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray
import torch
import yaml
from matplotlib.figure import Figure
from pool_speed import launcher

from sb3_ext.curriculum import EnvironmentParameterManager
from sb3_ext.launching import with_samplers, with_seed
from sb3_ext.runs import Run
from sb3_ext.settings import RunSettings, loads
from sb3_ext.training import Training, place_samplers

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "docs" / "images" / "ray_scale.png"
WORKLOAD = "12x8"
STORE = 200 * 2**20  # bytes of Ray's object store
SLEEPERS = """
default_settings:
  trainer_type: ppo
  threaded: true
  hyperparameters: {batch_size: 1024, buffer_size: 10240, num_epoch: 3}
  network_settings: {hidden_units: 128, num_layers: 2, normalize: true}
  time_horizon: 64
  max_steps: 1000000000
  summary_freq: 1000000000
  checkpoint_interval: 1000000000
"""


class Speed(NamedTuple):
    """`timesteps` per second; `learner`: cores that the process of the learner uses; `cores`: share of all cores."""

    timesteps: float
    learner: float
    cores: float


class Measured(Training):
    """A training that stops after some seconds."""

    _until = 0.0  # time at which samplers stop, after the first update

    def _proceed(self) -> bool:
        (learner,) = self._learners.values()
        return super()._proceed() and (time.perf_counter() < self._until or not learner.model.version)

    def speed(self, seconds: float, warm_up: float = 2.0) -> Speed:
        """Train; only what comes after the warm-up and the first update counts."""
        (learner,) = self._learners.values()
        self._until = time.perf_counter() + warm_up
        while time.perf_counter() < self._until or not learner.model.version:
            self._step()
        process = psutil.Process()
        steps, used, start = learner.model.num_timesteps, sum(process.cpu_times()[:2]), time.perf_counter()
        psutil.cpu_percent()
        self._until = start + seconds
        while (spent := time.perf_counter() - start) < seconds:
            self._step()
        cores = psutil.cpu_percent() / 100
        learner.model.finish_update()
        return Speed(
            (learner.model.num_timesteps - steps) / spent, (sum(process.cpu_times()[:2]) - used) / spent, cores
        )


def measure(text: str, on_ray: bool, samplers: int, env_path: str, seconds: float) -> Speed:
    """The speed of a training with so many samplers of one player each."""
    tree: dict[str, Any] = yaml.safe_load(text)
    tree["env_settings"] = {"num_workers": samplers, "num_envs": samplers, "env_path": env_path, "seed": 1}
    if on_ray:
        tree["ray"] = {"num_cpus_per_sampler": 1}
    with tempfile.TemporaryDirectory() as folder:
        tree["checkpoint_settings"] = {"results_dir": folder, "run_id": "speed"}
        settings: RunSettings = with_samplers(with_seed(loads(yaml.safe_dump(tree))))
        run = Run(settings)
        curricula = EnvironmentParameterManager(settings, run)
        with place_samplers(settings, curricula, run) as placed:
            return Measured(settings, run, placed, curricula).speed(seconds)


def overhead(seconds: float, rounds: int) -> None:
    """Compare one sampler in a Ray actor with one in a process."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=STORE)
    tree = yaml.safe_load((ROOT / "configs" / "ppo" / "3DBall.yaml").read_text(encoding="utf-8"))
    text = yaml.safe_dump({"behaviors": tree["behaviors"]})
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for on_ray, found in speeds.items():
            load = os.getloadavg()[0]
            speed = measure(text, on_ray, 1, "Unity-3DBall-v0", seconds)
            found.append(speed.timesteps)
            print(
                f"{'ray' if on_ray else 'process':8} {speed.timesteps:7.0f} timesteps/s (load {load:.1f})", flush=True
            )
    ratios = [b / a for a, b in zip(speeds[False], speeds[True], strict=True)]
    print(f"ray / process: median {statistics.median(ratios):.2f} of {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def scale(samplers: Sequence[int], ticks: Sequence[float], seconds: float) -> None:
    """Measure players that sleep, print a table and draw it."""
    ray.init(num_cpus=max(samplers), include_dashboard=False, object_store_memory=STORE)
    speeds: dict[float, list[Speed]] = {}
    print("| sleep | samplers | timesteps/s | share of linear | learner's cores | all cores | load before |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for tick in ticks:
            player = launcher(Path(folder), WORKLOAD, tick / 1000)
            for number in samplers:
                load = os.getloadavg()[0]
                speed = measure(SLEEPERS, True, number, player, seconds)
                speeds.setdefault(tick, []).append(speed)
                linear = speed.timesteps / (speeds[tick][0].timesteps / samplers[0] * number)
                print(
                    f"| {tick:g} ms | {number} | {speed.timesteps:.0f} | {linear:.2f} | {speed.learner:.2f} "
                    f"| {speed.cores:.2f} | {load:.1f} |",
                    flush=True,
                )
                draw(samplers, speeds)  # also of what there is after an interruption
    print(f"drawn: {IMAGE.relative_to(ROOT)}")


def draw(samplers: Sequence[int], speeds: dict[float, list[Speed]]) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (tick, found) in enumerate(speeds.items()):
        color, n = f"C{number}", len(found)
        left.loglog(samplers[:n], [speed.timesteps for speed in found], marker="o", color=color, label=f"{tick:g} ms")
        linear = [found[0].timesteps * count / samplers[0] for count in samplers[:n]]
        left.loglog(samplers[:n], linear, linestyle=":", color=color)
        right.semilogx(samplers[:n], [s.learner for s in found], marker="o", color=color, label=f"learner, {tick:g} ms")
        right.semilogx(
            samplers[:n], [s.cores for s in found], linestyle="--", color=color, label=f"all cores, {tick:g} ms"
        )
    left.set(xlabel="samplers on Ray", ylabel="timesteps per second (dotted: linear)")
    right.set(xlabel="samplers on Ray", ylabel="cores of the learner's process; share of all cores")
    for axes in (left, right):
        axes.set_xticks(samplers, [str(number) for number in samplers])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=120)


class Learning(Training):
    """A training that ends when the returns of the newest episodes are high enough, or after some updates."""

    def learn(self, enough: float | None, updates: int) -> str:
        """Train.

        :param enough: Mean return of the episodes between two summaries; None for `updates`.
        """
        start = time.perf_counter()
        while any(learner.learns for learner in self._learners.values()):
            self._step()
            curves = [record.curve.summaries for record in self._records.values()]
            if enough is not None and any(curve and curve[-1].mean_reward >= enough for curve in curves):
                break
            if enough is None and all(learner.model.version >= updates for learner in self._learners.values()):
                break
        self._finish()
        parts = [
            f"{name}: {learner.model.num_timesteps} timesteps, {learner.model.version} updates"
            + (f", ELO {learner.self_play.elo:.1f}" if learner.self_play is not None else "")
            for name, learner in self._learners.items()
        ]
        return f"{'; '.join(parts)} in {time.perf_counter() - start:.0f} s"


def learn() -> None:
    """Train on a cluster of two nodes."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "node_name": "head"}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    for name in ("left", "right"):
        cluster.add_node(num_cpus=1, object_store_memory=STORE, node_name=name)
    ray.init(cluster.address)
    try:
        for algorithm, scene, enough, changes in (
            ("ppo", "3DBall", 98.0, {"summary_freq": 6000}),
            ("poca", "SoccerTwos", None, {"hyperparameters": {"buffer_size": 4096, "batch_size": 1024}}),
            ("poca", "CooperativePushBlock", None, {"hyperparameters": {"buffer_size": 4096, "batch_size": 1024}}),
        ):
            tree = yaml.safe_load((ROOT / "configs" / algorithm / f"{scene}.yaml").read_text(encoding="utf-8"))
            for behavior in tree["behaviors"].values():
                for key, value in changes.items():
                    behavior[key] = {**behavior[key], **value} if isinstance(value, dict) else value
                if "self_play" in behavior:
                    behavior["self_play"] |= {"save_steps": 2000, "team_change": 8000, "swap_steps": 1000}
                    behavior["summary_freq"] = 4000
            tree["env_settings"] = {"env_path": f"Unity-{scene}-v0", "seed": 1}
            tree["ray"] = {"samplers": 2}
            with tempfile.TemporaryDirectory() as folder:
                tree["checkpoint_settings"] = {"results_dir": folder, "run_id": scene}
                settings = with_samplers(with_seed(loads(yaml.safe_dump(tree))))
                run = Run(settings)
                curricula = EnvironmentParameterManager(settings, run)
                with place_samplers(settings, curricula, run) as placed:
                    print(Learning(settings, run, placed, curricula).learn(enough, updates=6), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call,unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "scale", "learn"))
    parser.add_argument("--samplers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--ticks", type=float, nargs="+", default=[5, 20, 50], help="milliseconds per step")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_worker_niceness", "0")  # as in a cluster that `unity-learn --ray` starts
    if arguments.what == "overhead":
        overhead(arguments.seconds, arguments.rounds)
    elif arguments.what == "scale":
        scale(arguments.samplers, arguments.ticks, arguments.seconds)
    else:
        learn()


if __name__ == "__main__":
    main()
