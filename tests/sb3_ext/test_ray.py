"""Samplers on a Ray cluster, whose nodes are processes of this machine: equal weights, losses, builds, ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from small_runs import assert_equal, await_line, run, weights, write

import unity_gym
from sb3_ext import PPO, RayWorkers, UnityVecEnv, Workers
from sb3_ext.checkpoints import read_checkpoint
from sb3_ext.experience import Trajectories
from sb3_ext.groups import GroupTrajectories
from sb3_ext.launching import with_samplers
from sb3_ext.learn import main
from sb3_ext.learner import Learner
from sb3_ext.placement import RemoteSampler
from sb3_ext.served_sampler import SamplerArguments
from sb3_ext.settings import RaySettings, loads
from stand_ins.ports import free_port
from stand_ins.two_teams_player import launcher
from unity_gym.errors import UnityGymError

MARK = "UNITY_GYM_TEST"  # a variable that the players of these tests inherit
STORE = 80 * 2**20
SLOW_START = {"RAY_gcs_server_port_wait_time_s": "120"}  # Ray waits 30 s for its server, which a cold disk exceeds
pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def players(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()  # the watchdogs' have "-c"
            if "unity_gym.scenes" in command and "-c" not in command and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_no_player_remains(mark: str) -> None:
    deadline = time.monotonic() + 30
    while players(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not players(mark)


class Nodes:
    """Start a cluster: a head without capacity for samplers, a node for one and a node for two."""

    def __init__(self) -> None:
        cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")
        self.mark = os.environ[MARK] = uuid.uuid4().hex
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "node_name": "head"}
        os.environ.update(SLOW_START)
        start = partial(cluster_utils.Cluster, initialize_head=True, connect=False, head_node_args=head)
        try:
            self.cluster = start()
        except Exception as error:  # Ray has no class for it, and no setting for these 30 s of a node
            if "timed out during startup" not in str(error):
                raise
            self.cluster = start()  # with its files in memory
        self.left = self.cluster.add_node(num_cpus=1, object_store_memory=STORE, node_name="left")
        self.cluster.add_node(num_cpus=2, object_store_memory=STORE, node_name="right")
        self.address: str = self.cluster.address

    def remove_left(self) -> None:
        self.cluster.remove_node(self.left, allow_graceful=False)

    def add_left(self) -> None:
        self.left = self.cluster.add_node(num_cpus=1, object_store_memory=STORE, node_name="left")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()
    del os.environ[MARK]


def flags(folder: Path, address: str, samplers: int = 2) -> list[str]:
    shares = ["--num-envs", str(samplers), "--num-workers", str(samplers)]
    return ["--env", "Unity-3DBall-v0", "--seed", "3", "--results-dir", str(folder), *shares, "--ray", address]


def test_samplers_on_two_nodes_and_in_two_processes_give_equal_weights(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sb3_ext.ray_cluster import RayCluster

    file = write(tmp_path, "3DBall", max_steps=600)
    shared: list[Any] = []

    def share(self: RayCluster, weights: Any) -> Any:
        shared.append(weights)
        return original(self, weights)

    original = RayCluster.share
    monkeypatch.setattr(RayCluster, "share", share)
    given = flags(tmp_path, nodes.address)
    assert main([str(file), *given, "--run-id", "ray"]) == 0
    assert_no_player_remains(nodes.mark)
    assert len(shared) == 3  # once per version, for both samplers
    assert main([str(file), *given[:-2], "--run-id", "processes"]) == 0
    assert_equal(weights(tmp_path, "ray", "3DBall"), weights(tmp_path, "processes", "3DBall"))


def test_learn_in_a_script_on_two_nodes_and_in_two_processes_gives_equal_weights(nodes: Nodes) -> None:
    learned = []
    for workers in (RayWorkers(2, nodes.address), Workers(2)):
        with closing(UnityVecEnv("Unity-3DBall-v0", seed=3)) as env:
            options: dict[str, Any] = {"policy_kwargs": {"hidden_units": 16, "num_layers": 1}, "seed": 5}
            model = PPO("UnityPolicy", env, buffer_size=240, batch_size=60, device="cpu", **options)
            learned.append(model.learn(480, workers=workers))
    assert_no_player_remains(nodes.mark)
    assert learned[0]._n_updates == 6
    assert_equal(learned[0].policy.state_dict(), learned[1].policy.state_dict())


def test_snapshots_teams_and_ratings_of_self_play_are_exchanged_with_samplers_on_three_nodes(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sb3_ext.ray_cluster import ActorChannel

    rated: list[tuple[str, int | None]] = []  # the team that learned, and the step of the opponent
    teams: list[str] = []
    places: set[str] = set()
    rate, set_team = Learner.rate, RemoteSampler.set_team

    def note_rate(self: Learner, score: float, rivals: Sequence[tuple[Learner, int | None, int | None]]) -> None:
        rated.extend((teams[-1], step) for _, step, _ in rivals)
        rate(self, score, rivals)

    def note_team(self: RemoteSampler, team: str, *arguments: Any) -> None:
        teams.append(team)
        set_team(self, team, *arguments)
        assert isinstance(self._channel, ActorChannel)
        places.add(self._channel._node.split()[2])

    monkeypatch.setattr(Learner, "rate", note_rate)
    monkeypatch.setattr(RemoteSampler, "set_team", note_team)
    play = {"save_steps": 300, "team_change": 1800, "swap_steps": 50, "window": 12}
    changes = {"max_steps": 4000, "self_play": play | {"play_against_latest_model_ratio": 0.2}}
    sizes = {"buffer_size": 480, "batch_size": 240, "num_epoch": 1}
    file = write(tmp_path, "SoccerTwos", "poca", hyperparameters=sizes, **changes)
    # Matches of Duel last a few decisions; in SoccerTwos, random policies seldom score.
    file.write_text(file.read_text(encoding="utf-8").replace("SoccerTwos:", "Duelist:"), encoding="utf-8")
    given = [*flags(tmp_path, nodes.address, samplers=4), "--env", launcher(tmp_path)]
    third = nodes.cluster.add_node(num_cpus=1, object_store_memory=STORE, node_name="third")
    try:
        assert main([str(file), *given, "--run-id", "duel"]) == 0
    finally:
        nodes.cluster.remove_node(third)
    assert places == {"left", "right", "third"}
    assert list(dict.fromkeys(teams)) == ["Duelist?team=0", "Duelist?team=1"]
    assert len(teams) == 4 * 3  # four samplers, three turns
    assert {team for team, _ in rated} == {*teams}
    assert any(step for _, step in rated)  # a snapshot that was taken in this run played a match that counts
    (checkpoint,) = (tmp_path / "duel" / "Duelist").glob("*.zip")
    state = read_checkpoint(checkpoint).state["self_play"]
    assert state is not None
    assert state["elo"] != 1200
    assert len({elo for _, elo, _ in state["snapshots"]}) > 1
    assert all(step >= 300 for step, _, _ in state["snapshots"])


def test_samplers_act_during_updates_and_the_block_ray_gives_their_number(tmp_path: Path, nodes: Nodes) -> None:
    block = {"address": nodes.address, "samplers": 2, "players_per_sampler": 1, "num_cpus_per_sampler": 0.5}
    file = write(tmp_path, "3DBall", max_steps=600, threaded=True, top={"ray": block})
    given = ["--env", "Unity-3DBall-v0", "--results-dir", str(tmp_path)]
    assert main([str(file), *given, "--run-id", "threaded"]) == 0
    assert weights(tmp_path, "threaded", "3DBall")
    assert "samplers: 2" in (tmp_path / "threaded" / "configuration.yaml").read_text(encoding="utf-8")


def test_a_node_without_the_build_is_named(tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "3DBall")
    given = flags(tmp_path, nodes.address, samplers=1)
    assert main([str(file), *given, "--env", str(tmp_path / "Game"), "--run-id", "missing"]) == 1
    errors = capsys.readouterr().err
    assert "sampler 0 on node left" in errors or "sampler 0 on node right" in errors
    assert f"There is no player '{tmp_path / 'Game'}'" in errors
    assert "--ray-ship-build" in errors


def test_a_node_with_another_version_of_the_package_is_named(
    tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = unity_gym.__version__
    monkeypatch.setattr(unity_gym, "__version__", "9.9")  # of this process, and not of the nodes
    file = write(tmp_path, "3DBall")
    assert main([str(file), *flags(tmp_path, nodes.address, samplers=1), "--run-id", "versions"]) == 1
    assert re.search(
        rf"sampler 0 on node (left|right) .*: unity-gym is {version} on this node, and 9\.9 where the learner runs",
        capsys.readouterr().err,
    )
    assert_no_player_remains(nodes.mark)


class Unreadable:
    """An object whose pickle cannot be read, as that of a class which other nodes do not have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("unreadable",)


def test_a_node_that_cannot_read_the_arguments_of_a_sampler_raises(nodes: Nodes) -> None:
    from sb3_ext.ray_cluster import connect

    arguments = SamplerArguments(cast(Any, Unreadable()), 0, {})
    with connect(RaySettings(address=nodes.address), "embedded:3DBall") as place:
        sampler = RemoteSampler(place, arguments, 0, 1)
        deadline = time.monotonic() + 120
        with pytest.raises(UnityGymError, match=r"(?s)on node .*unreadable.* same unity-gym"):
            assert not sampler.wait(lambda: time.monotonic() < deadline)
        sampler.close()


def test_a_sampler_for_which_no_node_has_room_is_reported_although_all_nodes_together_have_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sb3_ext import ray_cluster

    monkeypatch.setattr(ray_cluster, "_PATIENCE", 1)
    lines: list[str] = []
    settings = RaySettings(address=nodes.address, num_cpus_per_sampler=3)
    with ray_cluster.connect(settings, "embedded:3DBall", lines.append) as place:
        sampler = RemoteSampler(place, SamplerArguments(nullcontext, 0, {}), 0, 1)
        deadline = time.monotonic() + 60
        assert not sampler.wait(lambda: not lines and time.monotonic() < deadline)
        sampler.close()
    (line,) = lines
    assert "Sampler 0 has not started within 1 s. It needs a node that has 3 CPUs and 0 GPUs free" in line
    assert re.search(r"all nodes together have \d of 3 CPUs, 0 of 0 GPUs", line)


def test_resources_that_ray_cannot_reserve_raise(nodes: Nodes) -> None:
    from sb3_ext.ray_cluster import connect

    settings = RaySettings(address=nodes.address, num_gpus_per_sampler=1.5)
    with connect(settings, "embedded:3DBall") as place, pytest.raises(UnityGymError, match=r"1 CPU and 1\.5 GPUs"):
        RemoteSampler(place, SamplerArguments(nullcontext, 0, {}), 0, 1)


def test_a_build_is_sent_to_the_nodes(tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    build = tmp_path / "build" / "Game.x86_64"
    build.parent.mkdir()
    (build.parent / "scene.txt").write_text("3DBall")
    script = f'#!/bin/sh\ncd "$(dirname "$0")" && pwd > {tmp_path}/ran-in\nexec "{sys.executable}" -m unity_gym.scenes'
    build.write_text(f'{script} "$(cat scene.txt)" "$@"\n')
    build.chmod(0o755)
    file = write(tmp_path, "3DBall", max_steps=240)
    given = [*flags(tmp_path, nodes.address, samplers=1), "--ray-ship-build", "--env", str(build)]
    assert main([str(file), *given, "--run-id", "sent"]) == 0
    assert "working_dir_files" in (tmp_path / "ran-in").read_text()
    mistyped = [*given[:-1], str(build.with_name("Gane.x86_64")), "--run-id", "mistyped"]
    assert main([str(file), *mistyped]) == 1
    assert "ray.ship_build sends the folder of a build, got the player" in capsys.readouterr().err


def test_a_run_continues_without_a_node_and_after_a_kill_on_another_cluster(tmp_path: Path, nodes: Nodes) -> None:
    file = write(tmp_path, "3DBall", max_steps=10**7, summary_freq=240, checkpoint_interval=240)
    given = [*flags(tmp_path, nodes.address), "--run-id", "lost"]
    process = run(tmp_path, file, *given)
    try:
        await_line(process, "Step: 480.")
        assert len(players(nodes.mark)) == 2
        nodes.remove_left()
        await_line(process, "on node left")
        await_line(process, "Step: ")
        await_line(process, "Step: ")
        assert len(players(nodes.mark)) == 2
    finally:
        process.kill()
        process.communicate()
        nodes.add_left()
    assert_no_player_remains(nodes.mark)
    reached = newest(tmp_path / "lost")
    process = run(tmp_path, file, *given[:-4], "--run-id", "lost", "--ray", "local", "--resume")
    await_line(process, "Step: ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert newest(tmp_path / "lost") > reached
    assert_no_player_remains(nodes.mark)


def test_a_run_whose_head_node_ends_is_saved(
    tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself ends the process without a checkpoint some time after the head node."""
    import sb3_ext.ray_cluster

    monkeypatch.setenv(MARK, nodes.mark)  # which the second cluster replaces
    others = Nodes()
    share, shared = sb3_ext.ray_cluster.RayCluster.share, 0

    def share_and_end_the_head(self: sb3_ext.ray_cluster.RayCluster, weights: Any) -> Any:
        nonlocal shared
        shared += 1
        if shared == 3:
            others.cluster.head_node.kill_gcs_server()
        return share(self, weights)

    monkeypatch.setattr(sb3_ext.ray_cluster.RayCluster, "share", share_and_end_the_head)
    monkeypatch.setattr(sb3_ext.ray_cluster, "_HEAD_PATIENCE", 3)
    file = write(tmp_path, "3DBall", max_steps=10**7)
    try:
        assert main([str(file), *flags(tmp_path, others.address), "--run-id", "headless"]) == 1
        assert_no_player_remains(others.mark)
    finally:
        others.cluster.shutdown()
    assert f"head node of the Ray cluster, {others.address}, has not answered for 3 s" in capsys.readouterr().err
    assert newest(tmp_path / "headless") > 240


def test_a_head_node_may_be_away_for_a_while_and_out_of_reach_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from sb3_ext import ray_cluster

    monkeypatch.setattr(ray_cluster, "_HEAD_INTERVAL", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        head = ray_cluster.HeadNode(address)
        head.require()
    out_of_reach = ray_cluster.HeadNode(address)
    time.sleep(0.02)
    head.require()
    monkeypatch.setattr(ray_cluster, "_HEAD_PATIENCE", 0)
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        time.sleep(0.02)
        head.require()  # the time away ends
    for _ in range(2):
        time.sleep(0.02)
        out_of_reach.require()
    head.require()
    time.sleep(0.02)
    with pytest.raises(UnityGymError, match=address):
        head.require()


def newest(folder: Path) -> int:
    return max(int(path.stem.rpartition("-")[2]) for path in folder.glob("*/*.zip"))


def test_no_player_remains_after_ctrl_c_to_all_processes_of_a_terminal(tmp_path: Path, nodes: Nodes) -> None:
    file = write(tmp_path, "3DBall", max_steps=10**7, summary_freq=240)
    command = [sys.executable, "-m", "sb3_ext.learn", str(file), *flags(tmp_path, nodes.address), "--run-id", "stopped"]
    process = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, start_new_session=True)
    await_line(process, "Step: ")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "saved" in output
    assert_no_player_remains(nodes.mark)


@pytest.mark.parametrize("starting", ["Ray", "players"])
def test_sigterm_during_a_start_ends_the_run_as_without_ray(tmp_path: Path, starting: str) -> None:
    file, build, started = write(tmp_path, "3DBall"), tmp_path / "silent.x86_64", tmp_path / "started"
    build.write_text(f"#!/bin/sh\ntouch '{started}'\nexec sleep 300\n")
    build.chmod(0o755)
    command = [sys.executable, "-m", "sb3_ext.learn", str(file), "--env", str(build), "--ray"]
    command += ["--results-dir", str(tmp_path)]
    process = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    children: list[psutil.Process] = []
    while process.poll() is None and not (children and (starting == "Ray" or started.exists())):
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors.endswith("unity-learn: stopped, nothing was saved\n")
    assert children
    assert not psutil.wait_procs(children, timeout=30)[1]


def test_an_unreachable_cluster_is_reported(
    tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "3DBall")
    assert main([str(file), *flags(tmp_path, "no-address")]) == 1
    assert "cannot connect to the Ray cluster at 'no-address'" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "no-address")
    assert main([str(file), *flags(tmp_path, "no-address")[:-1]]) == 1
    assert "cannot connect to the Ray cluster at 'no-address'" in capsys.readouterr().err
    assert nodes.mark


def test_an_address_at_which_nothing_answers_is_reported_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from sb3_ext import ray_cluster

    monkeypatch.setattr(ray_cluster, "_HEAD_PATIENCE", 1)
    address = f"127.0.0.1:{free_port()}"
    file = write(tmp_path, "3DBall")
    started = time.monotonic()
    assert main([str(file), *flags(tmp_path, address)]) == 1
    assert time.monotonic() - started < 30
    assert f"at '{address}', which has not answered for 1 s" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert main([str(file), *flags(tmp_path, address)[:-1]]) == 1
    assert f"at '{address}', which has not answered for 1 s" in capsys.readouterr().err


def test_a_cluster_that_asks_for_its_token_is_reported_with_the_remedy(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    port = free_port()
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket is limited to 107 characters
        options = ["--num-cpus=0", f"--object-store-memory={STORE}", "--include-dashboard=false"]
        options += [f"--port={port}", f"--temp-dir={folder}"]
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options],
            env=os.environ | secret | SLOW_START | {"PYTHONUNBUFFERED": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            await_line(head, "Ray runtime started")
            command = [sys.executable, "-m", "sb3_ext.learn", str(write(tmp_path, "3DBall"))]
            without = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
            process = subprocess.run(
                [*command, *flags(tmp_path, f"127.0.0.1:{port}")],
                env=without | {"RAY_NUM_REDIS_GET_RETRIES": "1"},
                text=True,
                stderr=subprocess.PIPE,
                timeout=120,
                check=False,
            )
        finally:
            for part in [*psutil.Process(head.pid).children(recursive=True), head]:
                part.kill()
            head.communicate()
    assert process.returncode == 1
    assert f"the Ray cluster at '127.0.0.1:{port}' asks for its token" in process.stderr
    assert "RAY_AUTH_MODE=token" in process.stderr


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "sb3_ext.ray_cluster", raising=False)
    assert main([str(write(tmp_path, "3DBall")), *flags(tmp_path, "auto")]) == 1
    assert "pip install 'unity-gym[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "ray", "expected"),
    [
        ("{}", "{}", (1, 1)),
        ("{num_workers: 2, num_envs: 5}", "{}", (2, 5)),
        ("{}", "{samplers: 3}", (3, 3)),
        ("{num_envs: 6}", "{samplers: 3}", (3, 6)),
        ("{num_envs: 6, num_workers: 3}", "{samplers: 3, players_per_sampler: 2}", (3, 6)),
        ("{}", "{samplers: 3, players_per_sampler: 2}", (3, 6)),
        ("{num_envs: 2, num_workers: 2}", "{samplers: 3}", "num_workers is 2, but ray.samplers is 3"),
        ("{num_envs: 4}", "{samplers: 3, players_per_sampler: 2}", "num_envs is 4, but there are 3 samplers"),
        ("{num_envs: 2}", "{samplers: 3}", "3 samplers cannot share num_envs=2"),
    ],
)
def test_ray_settings_determine_workers_and_players(environment: str, ray: str, expected: Sequence[int] | str) -> None:
    settings = loads(f"default_settings: {{}}\nenv_settings: {environment}\nray: {ray}")
    if isinstance(expected, str):
        with pytest.raises(UnityGymError, match=expected):
            with_samplers(settings)
        return
    resolved = with_samplers(settings).env_settings
    assert (resolved.num_workers, resolved.num_envs) == tuple(expected)


@pytest.mark.filterwarnings("error:.*not writable")
@pytest.mark.parametrize(
    ("scene", "algorithm"), [("Hallway", "ppo"), ("3DBall", "sac"), ("CooperativePushBlock", "poca")]
)
def test_learners_read_arrays_of_shared_memory_and_do_not_write_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str, algorithm: str
) -> None:
    """Arrays of the object store are read-only, but torch writes to their memory where it is not copied."""
    received: list[tuple[Any, Any]] = []

    def receive(self: Trajectories, offset: int) -> None:
        shift_rows(self, offset)
        for array in self.arrays().values():
            array.flags.writeable = False
            received.append((array, array.copy()))
        assert isinstance(self, GroupTrajectories) == (algorithm == "poca")

    shift_rows = Trajectories.shift_rows
    monkeypatch.setattr(Trajectories, "shift_rows", receive)
    options = {"ppo": {"batch_size": 128}, "sac": {"buffer_size": 900}, "poca": {}}[algorithm]
    file = write(tmp_path, scene, algorithm, max_steps=500, hyperparameters=options)
    assert main([str(file), "--env", f"Unity-{scene}-v0", "--results-dir", str(tmp_path)]) == 0
    assert len(received) > 10
    for array, before in received:
        assert array.tobytes() == before.tobytes()
