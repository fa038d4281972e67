"""Samplers give the same results in the learner's process and in their own processes."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import queue
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
from random_experience import SPEC, model_of
from small_runs import assert_equal, await_line, interrupted, learner_of, players_of, run, weights, workers_of, write
from stable_baselines3.common.utils import set_random_seed

from sb3_ext import PPO, UnityVecEnv, Workers, joint, processes
from sb3_ext.checkpoints import read_checkpoint
from sb3_ext.curriculum import EnvironmentParameterManager, ParameterValue
from sb3_ext.from_settings import build_model
from sb3_ext.joint import JointTraining
from sb3_ext.learn import main
from sb3_ext.learner import Learner
from sb3_ext.placement import LocalSampler, Place, RemoteSampler, SamplerLostError
from sb3_ext.player_copies import PlayerCopies
from sb3_ext.plugins import StatsWriter
from sb3_ext.processes import mailbox_of
from sb3_ext.records import BehaviorRecord
from sb3_ext.restarts import RestartPolicy
from sb3_ext.runs import Run
from sb3_ext.sampler import Request, Sampler, Samples
from sb3_ext.served_sampler import Mailbox, SamplerArguments, serve
from sb3_ext.settings import Constant, ConstantParameters, load, loads
from sb3_ext.training import place_samplers, train
from stand_ins import faulty_player
from unity_gym.errors import PlayerError, PlayerTimeoutError, UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.specs import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def test_weights_and_samples_that_a_pipe_cannot_hold_do_not_wait_for_each_other() -> None:
    ours, theirs = Pipe()
    mailbox = mailbox_of(theirs)
    large = np.zeros(10_000_000, np.uint8)
    senders = [Thread(target=send, args=(large,), daemon=True) for send in (mailbox.send, ours.send)]
    for sender in senders:
        sender.start()
    senders[1].join(30)
    assert not senders[1].is_alive()
    assert len(ours.recv()) == len(mailbox.recv()) == len(large)
    ours.close()
    with pytest.raises(EOFError):
        mailbox.recv()


def test_an_error_of_a_player_is_the_last_response_of_a_sampler_although_it_is_an_os_error() -> None:
    class Hanging:
        @property
        def tables(self) -> dict[str, Any]:
            raise PlayerTimeoutError("The player sent nothing for 4 s.")

    answers: list[Any] = []
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    calls.put(("appeared", ()))
    serve(Mailbox(calls, answers.append), SamplerArguments(lambda: nullcontext(cast(Any, Hanging())), 0, {}))
    assert answers[0] is None
    assert isinstance(answers[1], PlayerTimeoutError)


def test_a_process_that_a_signal_finds_during_its_start_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "starting_without_signals", interrupted)
    with pytest.raises(KeyboardInterrupt):
        processes.ProcessChannel(0, SamplerArguments(nullcontext, 0, {}))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_learn_a_run_and_a_worker_give_equal_weights(tmp_path: Path, algorithm: str) -> None:
    options = {"buffer_size": 240, "batch_size": 60} if algorithm == "ppo" else {"buffer_size": 900, "batch_size": 32}
    file = write(tmp_path, "3DBall", algorithm, max_steps=600, hyperparameters=options)
    flags = [str(file), "--env", "Unity-3DBall-v0", "--seed", "3", "--results-dir", str(tmp_path)]
    assert main([*flags, "--run-id", "run"]) == 0
    assert main([*flags, "--run-id", "worker", "--num-workers", "1"]) == 0
    env = UnityVecEnv("Unity-3DBall-v0", seed=3)
    set_random_seed(3)
    model = build_model(env.table.spec, load(str(file)).behavior("3DBall"), "cpu")
    model.set_env(env)
    model.learn(600)
    env.close()
    assert model._n_updates >= 9
    for run_id in ("run", "worker"):
        assert_equal(model.policy.state_dict(), weights(tmp_path, run_id, "3DBall"))


@pytest.mark.parametrize("threaded", [False, True])
def test_players_are_distributed_over_workers(tmp_path: Path, threaded: bool) -> None:
    file = write(tmp_path, "WallJump", max_steps=500, threaded=threaded, time_horizon=16)
    flags = ["--env", "Unity-WallJump-v0", "--num-envs", "3", "--num-workers", "2", "--results-dir", str(tmp_path)]
    assert main([str(file), *flags, "--seed", "1", "--run-id", "shared"]) == 0
    for name in ("SmallWallJump", "BigWallJump"):
        (checkpoint,) = (tmp_path / "shared" / name).glob("*.zip")
        assert int(checkpoint.stem.rpartition("-")[2]) >= 500
        # Two full buffers, and where shares of the workers left one, a smaller last one.
        assert read_checkpoint(checkpoint).state["counters"]["_n_updates"] in (6, 9)
    logs = tmp_path / "shared" / "run_logs"
    assert len(list(logs.rglob("Player-*.log"))) == 3


def test_more_workers_than_players_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(tmp_path, "Basic")), "--num-workers", "2", "--results-dir", str(tmp_path)]) == 1
    assert "num_workers" in capsys.readouterr().err
    assert not (tmp_path / "ppo").exists()


@posix
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_player_that_dies_is_launched_again_and_the_run_ends_as_planned(tmp_path: Path, workers: str) -> None:
    file = write(tmp_path, "Basic", max_steps=2500, summary_freq=100)
    flags = ["--env", "Unity-Basic-v0", "--num-envs", "2", "--num-workers", workers, "--run-id", "again"]
    process = run(tmp_path, file, *flags)
    await_line(process, "Step: 100.")
    players_of(psutil.Process(process.pid))[0].kill()
    await_line(process, "is launched again: ")
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "Basic. Step: 2500. " in output


def test_a_behavior_that_cannot_be_saved_does_not_prevent_that_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finish = BehaviorRecord.finish

    def fail_once(self: BehaviorRecord, *arguments: Any) -> str:
        if not failed:
            failed.append(self.name)
            raise UnityGymError("the file cannot be written")
        return finish(self, *arguments)

    failed: list[str] = []
    monkeypatch.setattr(BehaviorRecord, "finish", fail_once)
    file = write(tmp_path, "WallJump", max_steps=300)
    assert main([str(file), "--env", "Unity-WallJump-v0", "--results-dir", str(tmp_path), "--run-id", "part"]) == 1
    assert "the file cannot be written" in capsys.readouterr().err
    (other,) = {"SmallWallJump", "BigWallJump"} - {*failed}
    assert (tmp_path / "part" / f"{other}.onnx").exists()


def test_an_error_of_a_writer_at_the_end_does_not_prevent_that_the_others_are_closed(tmp_path: Path) -> None:
    closed: list[StatsWriter] = []

    class Offline(StatsWriter):
        def write_stats(self, category: str, step: int, values: dict[str, float]) -> None:
            pass

        def close(self) -> None:
            closed.append(self)
            raise ValueError("the service is offline")

    place = {"env_settings.env_path": "Unity-Basic-v0", "checkpoint_settings.results_dir": str(tmp_path)}
    writers = [Offline(), Offline()]
    with pytest.raises(ValueError, match="offline"):
        train(load(write(tmp_path, "Basic", max_steps=100), flags=place), writers)
    assert sorted(map(id, closed)) == sorted(map(id, writers))


@posix
def test_when_a_player_fails_for_good_the_experience_of_the_other_worker_is_saved(tmp_path: Path) -> None:
    sizes = {"buffer_size": 100_000, "batch_size": 100}
    file = write(tmp_path, "Basic", max_steps=100_000, summary_freq=100, hyperparameters=sizes)
    flags = ["--env", "Unity-Basic-v0", "--num-envs", "2", "--num-workers", "2", "--max-lifetime-restarts", "0"]
    process = run(tmp_path, file, *flags, "--run-id", "kept")
    await_line(process, "Step: 500.")
    players_of(psutil.Process(process.pid))[0].kill()
    process.communicate(timeout=100)
    assert process.returncode == 1
    (saved,) = (tmp_path / "kept" / "Basic").glob("experience-*.npz")
    with np.load(saved) as experience:
        decisions = experience["0.lengths"].sum()
    timesteps = int(saved.stem.split("-")[1])
    assert timesteps >= 500
    assert decisions == pytest.approx(timesteps / 2, rel=0.3)


@contextmanager
def hanging(player: psutil.Process) -> Iterator[None]:
    player.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            player.resume()


@posix
@pytest.mark.parametrize("players", [1, 2])
@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_stop_ends_the_wait_for_a_player_that_hangs(players: int, is_asynchronous: bool) -> None:
    lines: list[str] = []
    stops_at = math.inf
    with closing(PlayerPool(PlayerOptions(file_name="embedded:Basic", num_areas=1), players)) as pool:
        pool.reset()
        sampler = LocalSampler(Sampler(pool, RestartPolicy(), 0, is_asynchronous, lines.append))
        name = learner_of(sampler).name

        def collect() -> Samples:
            sampler.start(Request({name: 20}, {}))
            return sampler.result(lambda: time.monotonic() < stops_at)

        assert len(collect().trajectories[name]) >= 20
        with ExitStack() as stack:
            for player in players_of(psutil.Process()):
                stack.enter_context(hanging(player))
            started = time.monotonic()
            stops_at = started + 0.3
            assert not collect().trajectories
            assert time.monotonic() - started < 5
            assert pool.under_way == [*range(players)]
        assert not lines
        stops_at = math.inf
        assert len(collect().trajectories[name]) >= 20


@posix
@pytest.mark.parametrize("block", ["behaviors: {Faulty: {threaded: true}}", "default_settings: {threaded: true}"])
def test_with_threaded_no_player_waits_for_a_slower_one(block: str, tmp_path: Path) -> None:
    build = faulty_player.launcher(tmp_path, "slow-steps", once=True)
    folder = f"checkpoint_settings: {{results_dir: {tmp_path}}}"
    settings = loads(f"{block}\nenv_settings: {{env_path: {build}, num_envs: 2, seed: 1}}\n{folder}")
    folders = Run(settings)
    with place_samplers(settings, EnvironmentParameterManager(settings, folders), folders) as (sampler,):
        name = learner_of(sampler).name
        sampler.start(Request({name: 20}, {}))
        trajectories = sampler.result(lambda: True).trajectories[name]
        assert max(trajectories.lengths) > 12  # of two players


@posix
def test_a_stop_ends_the_launch_of_a_player_that_hung() -> None:
    lines: list[str] = []
    with closing(PlayerPool(PlayerOptions(file_name="embedded:Basic", num_areas=1, timeout_wait=2))) as pool:
        pool.reset()
        sampler = LocalSampler(Sampler(pool, RestartPolicy(), on_restart=lines.append))
        name = learner_of(sampler).name
        (player,) = players_of(psutil.Process())
        with hanging(player):
            sampler.start(Request({name: 20}, {}))
            assert not sampler.result(lambda: not lines).trajectories
        assert len(lines) == 1
        assert not players_of(psutil.Process())


@posix
def test_episodes_that_a_player_left_when_it_died_are_not_counted() -> None:
    lines: list[str] = []
    with closing(PlayerPool(PlayerOptions(file_name="embedded:Basic", num_areas=1), 2)) as pool:
        pool.reset()
        sampler = LocalSampler(Sampler(pool, RestartPolicy(), on_restart=lines.append))
        name = learner_of(sampler).name
        counted = []
        for number in range(2):
            sampler.start(Request({name: 300}, {}))
            counted.append(sampler.result(lambda: True).episodes[name])
            if not number:
                players_of(psutil.Process())[0].kill()
        assert len(lines) == 1
        for episodes in counted:  # a decision costs 0.01, and both ends of the corridor end the episode
            ends = episodes["reward"] + 0.01 * episodes["length"]
            assert np.abs(ends[:, None] - [0.1, 1.0]).min(1).max() < 0.001, ends


@posix
def test_an_error_of_the_training_during_the_wait_for_a_player_is_not_attributed_to_the_player() -> None:
    with closing(PlayerPool(PlayerOptions(file_name="embedded:Basic", num_areas=1))) as pool:
        pool.reset()
        sampler = LocalSampler(Sampler(pool))
        name = learner_of(sampler).name
        for error in (UnityGymError("the update failed"), TypeError("the update failed")):
            calls = iter([True, True])

            def proceed(error: Exception = error, calls: Iterator[bool] = calls) -> bool:
                if next(calls, False):
                    return True
                raise error

            (player,) = players_of(psutil.Process())
            sampler.start(Request({name: 20}, {}))
            with hanging(player), pytest.raises(type(error), match=r"^the update failed$"):
                sampler.result(proceed)


@posix
def test_a_stop_ends_the_wait_of_a_worker_for_a_player_that_hangs() -> None:
    copies = PlayerCopies(PlayerOptions(file_name="embedded:Basic", num_areas=1))
    with Workers(1).samplers(copies, is_asynchronous=False) as (sampler,):
        name = learner_of(sampler).name
        (player,) = players_of(psutil.Process())
        with hanging(player):
            started = time.monotonic()
            sampler.start(Request({name: 20}, {}))
            assert not sampler.result(lambda: time.monotonic() < started + 0.3).trajectories
            assert time.monotonic() - started < 5
            assert sampler.peek(name) is None


@posix
@pytest.mark.parametrize("place", [None, Workers(1)], ids=["here", "worker"])
@pytest.mark.parametrize("reset", ["set_team", "set_parameters"])
def test_a_stop_ends_the_reset_of_a_player_that_hangs(place: Workers | None, reset: str) -> None:
    options = PlayerOptions(file_name="embedded:Basic", num_areas=1)
    with ExitStack() as stack:
        if place is None:
            pool = stack.enter_context(closing(PlayerPool(options)))
            pool.reset()
            sampler: Any = LocalSampler(Sampler(pool))
        else:
            (sampler,) = stack.enter_context(place.samplers(PlayerCopies(options), is_asynchronous=False))
        name = learner_of(sampler).name
        sampler.start(Request({}, {name: 20}))
        sampler.result(lambda: True)
        (player,) = players_of(psutil.Process())
        with hanging(player):
            started = time.monotonic()
            getattr(sampler, reset)("", True, lambda: time.monotonic() < started + 0.3)
            assert time.monotonic() - started < 5
            assert sampler.peek(name) is None


def test_a_sampler_without_agents_of_the_behavior_that_learns_returns() -> None:
    with closing(PlayerPool(PlayerOptions(file_name="embedded:Basic", num_areas=1))) as pool:
        pool.reset()
        sampler = LocalSampler(Sampler(pool))
        name = learner_of(sampler).name
        sampler.start(Request({"Other": 20}, {"Other": 20}))
        samples = sampler.result(lambda: True)
        assert samples.decisions[name] == 100
        assert not samples.trajectories


@posix
def test_a_stop_ends_the_restart_of_a_worker_that_dies() -> None:
    copies = PlayerCopies(PlayerOptions(file_name="embedded:Basic", num_areas=1))
    with Workers(1).samplers(copies, is_asynchronous=False) as (sampler,):
        name = learner_of(sampler).name
        (worker,) = workers_of(psutil.Process())
        worker.kill()
        sampler.start(Request({name: 20}, {}))
        assert not sampler.result(lambda: False).trajectories
        assert sampler.peek(name) is None


@posix
def test_a_worker_that_dies_counts_as_the_death_of_its_players(tmp_path: Path) -> None:
    file = write(tmp_path, "Basic", max_steps=3000, summary_freq=100)
    flags = ["--env", "Unity-Basic-v0", "--num-workers", "1", "--restarts-rate-limit-period-s", "1"]
    process = run(tmp_path, file, *flags, "--max-lifetime-restarts", "1", "--run-id", "worker")
    await_line(process, "Step: 100.")

    def kill_worker() -> None:
        (worker,) = workers_of(psutil.Process(process.pid))
        worker.kill()

    kill_worker()
    await_line(process, "launched again")
    await_line(process, "Step: ")
    time.sleep(1)
    kill_worker()
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "the process of sampler 0 ended with exit code -9" in errors
    assert output.splitlines()[-1].startswith("[INFO] Basic: saved ")


def test_restarts_per_player_are_limited_in_total_and_within_a_period() -> None:
    now = [0.0]
    policy = RestartPolicy(3, 1, 60, lambda: now[0])
    assert policy.allows(0)
    assert policy.allows(1)
    assert not policy.allows(0)
    now[0] = 60
    assert policy.allows(0)
    now[0] = 1000
    assert policy.allows(0)
    now[0] = 2000
    assert not policy.allows(0)
    unlimited = RestartPolicy(-1, -1, 60, lambda: now[0])
    assert all(unlimited.allows(0) for _ in range(100))


def test_experience_not_yet_learned_from_is_used_after_resume(tmp_path: Path) -> None:
    file = write(tmp_path, "3DBall", max_steps=300)
    flags = ["--env", "Unity-3DBall-v0", "--seed", "3", "--results-dir", str(tmp_path), "--run-id", "stopped"]
    process = run(tmp_path, write(tmp_path, "3DBall", max_steps=100_000, summary_freq=12), *flags)
    await_line(process, "Step: 300.")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    (checkpoint,) = (tmp_path / "stopped" / "3DBall").glob("*.zip")
    step = int(checkpoint.stem.rpartition("-")[2])
    counters = read_checkpoint(checkpoint).state["counters"]
    learned = counters["_n_updates"] // 3 * 240
    (experience,) = (tmp_path / "stopped" / "3DBall").glob("experience-*.npz")
    with np.load(experience) as arrays:
        kept = sum(int(arrays[name].sum()) for name in arrays.files if name.endswith(".lengths"))
        assert max(arrays[name].max() for name in arrays.files if name.endswith("decisions.version")) <= 0
    assert step - 12 <= learned + kept <= step  # the decisions of the last step have no outcome
    assert kept > 0
    write(tmp_path, "3DBall", max_steps=step)  # nothing is left to be made, but to be learned
    assert main([str(file), *flags, "--resume"]) == 0
    (checkpoint,) = (tmp_path / "stopped" / "3DBall").glob(f"3DBall-{step}.zip")
    assert read_checkpoint(checkpoint).state["counters"]["_n_updates"] == counters["_n_updates"] + 3


def test_any_error_saves_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise ValueError("the histogram is empty")

    monkeypatch.setattr(BehaviorRecord, "summarize", fail)
    file = write(tmp_path, "3DBall", max_steps=1000, summary_freq=500)
    with pytest.raises(ValueError, match="histogram"):
        main([str(file), "--env", "Unity-3DBall-v0", "--results-dir", str(tmp_path), "--run-id", "failed"])
    status = json.loads((tmp_path / "failed" / "run_logs" / "training_status.json").read_text(encoding="utf-8"))
    assert status["3DBall"]["final_checkpoint"]["steps"] >= 500


_HUGE = r"behavior 'Faulty\?team=0', agent 1: the reward is 1e\+25; rewards must be finite and at most 1e\+18"


def test_an_extreme_reward_ends_a_run_with_one_error_and_saves_the_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", faulty_player.launcher(tmp_path, "huge-reward"), "--results-dir", str(tmp_path)]
    assert main([*flags, "--run-id", "huge"]) == 1
    assert re.search(_HUGE, capsys.readouterr().err)
    assert list((tmp_path / "huge").glob("*.onnx"))


def test_learn_raises_for_an_extreme_reward(tmp_path: Path) -> None:
    env = UnityVecEnv(file_name=faulty_player.launcher(tmp_path, "huge-reward"))
    with closing(env), pytest.raises(UnityGymError, match=_HUGE):
        PPO("UnityPolicy", env, buffer_size=64, batch_size=32).learn(64)


def test_on_step_is_called_once_per_num_envs_decisions_and_infos_of_the_steps_between_accumulate() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=3)
    calls: list[int] = []
    episodes = 0

    def note(variables: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal episodes
        model = variables["self"]
        calls.append(model.num_timesteps)
        episodes += sum("episode" in info for info in variables["infos"])
        assert len(variables["infos"]) == len(variables["dones"]) == len(variables["rewards"])
        return True

    model = PPO("UnityPolicy", env, buffer_size=600, batch_size=200, device="cpu", seed=3)
    model.learn(1200, callback=note)
    env.close()
    assert 0 <= model.num_timesteps - 12 * len(calls) < 12
    assert model._episode_num - 12 <= episodes <= model._episode_num
    assert episodes > 10


class StagedChannel:
    """A channel whose sampler answers each call until it is lost, or never if it does not start."""

    def __init__(self, answers: int, starts: bool = True) -> None:
        self.answers, self.starts = answers, starts
        self.calls: list[tuple[Any, ...]] = []
        self.behaviors: dict[str, BehaviorSpec] = {}
        self.is_closed = False

    def call(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, *arguments))

    notify = call

    def poll(self, seconds: float) -> bool:  # noqa: ARG002
        return self.starts or self.is_closed

    def receive(self) -> Any:
        self.answers -= 1
        if self.answers < 0 or self.is_closed:
            raise SamplerLostError("sampler 0 was lost")
        return Samples() if self.calls and self.calls[-1][0] == "collect" else self.behaviors

    def end(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class StagedPlace(Place):
    """A placement that opens the given channels one after another."""

    repeats_launches = True

    def __init__(self, *channels: StagedChannel) -> None:
        super().__init__()
        self._channels = list(channels)

    def open(self, number: int, arguments: SamplerArguments) -> StagedChannel:  # noqa: ARG002
        return self._channels.pop(0)


def remote_sampler(*channels: StagedChannel) -> RemoteSampler:
    arguments = SamplerArguments(nullcontext, 0, {"number": -1})
    return RemoteSampler(StagedPlace(*channels), arguments, 0, 1, on_restart=[].append)


def test_a_sampler_lost_between_collections_restarts_with_all_values_set_since() -> None:
    lost, again = StagedChannel(1), StagedChannel(100)
    sampler = remote_sampler(lost, again)
    assert sampler.wait()
    value = ParameterValue("mass", Constant(sampler_parameters=ConstantParameters(value=2.0)), 0)
    sampler.set_parameters([value])
    sampler.set_team("Ball?team=1")
    again.behaviors = {"Prey": BehaviorSpec([], ActionSpec(1, ()))}
    sampler.start(Request({}, {}))
    assert sampler.result(lambda: True).appeared == again.behaviors
    assert lost.is_closed
    assert [call[0] for call in again.calls] == ["appeared", "set_parameters", "set_team", "start_matches"]
    assert again.calls[1] == ("set_parameters", [value], True)
    sampler.start(Request({}, {}))
    sampler.result(lambda: True)
    assert again.calls[-1][0] == "collect"


class TrainingOfEqualStates(JointTraining):
    """Behaviors whose models are built with equal random states, as checkpoints restore them."""

    def _build_learner(self, name: str, spec: BehaviorSpec) -> Learner:
        torch.manual_seed(0)
        return Learner(name, spec, model_of(PPO), 100)


def test_each_behavior_samples_actions_independently_in_each_sampler() -> None:
    places = [StagedPlace(StagedChannel(100)) for _ in range(2)]
    samplers = [
        RemoteSampler(place, SamplerArguments(nullcontext, 0, {}), number, 1) for number, place in enumerate(places)
    ]
    training = TrainingOfEqualStates(samplers)
    for name in ("Hunter", "Prey"):
        training._add_learner(name, SPEC)
    learners = training._learners.values()
    states = [pickle.loads(sampler._assignment(learner)[1])[2] for sampler in samplers for learner in learners]
    assert len({bytes(state.numpy()) for state in states}) == 4


def test_a_sampler_whose_player_fails_to_launch_once_is_launched_again() -> None:
    failing, again = StagedChannel(100), StagedChannel(100)
    failing.receive = lambda: PlayerError("player 0 ended with exit code 3")  # type: ignore[method-assign]
    sampler = remote_sampler(StagedChannel(1), failing, again)
    assert sampler.wait()
    sampler.start(Request({}, {}))
    assert not sampler.result(lambda: True).decisions
    assert failing.is_closed
    assert [call[0] for call in again.calls] == ["appeared", "set_parameters", "start_matches"]


def test_a_sampler_that_is_lost_before_its_first_collection_is_started_again() -> None:
    channels = [StagedChannel(answers) for answers in (0, 0, 4, 100)]
    sampler = remote_sampler(*channels)
    sampler.launch()
    channels[3].behaviors = {"Prey": BehaviorSpec([], ActionSpec(1, ()))}
    assert sampler.appeared() == channels[3].behaviors
    assert [channel.is_closed for channel in channels] == [True, True, True, False]


def test_weights_that_are_published_while_a_sampler_restarts_arrive_with_its_policies() -> None:
    lost, again = StagedChannel(3), StagedChannel(100, starts=False)
    sampler = remote_sampler(lost, again)
    assert sampler.wait()
    sensor = ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    lost.behaviors = {"Ball?team=0": BehaviorSpec([sensor], ActionSpec(1, ()))}
    learner = learner_of(sampler)

    def finish_update() -> bool:
        learner.model.version += 1
        sampler.publish(learner)
        again.starts = learner.model.version == 3
        return True

    sampler.start(Request({"Ball": 5}, {}))
    sampler.result(finish_update)
    assert [call[0] for call in again.calls] == ["appeared", "assign", "set_parameters", "start_matches"]
    *_, version, _ = pickle.loads(again.calls[1][2])
    assert version == 3
    finish_update()
    assert again.calls[-1][0] == "load"
    assert again.calls[-1][3] == 4


def test_a_signal_ends_the_wait_for_a_sampler_that_cannot_restart() -> None:
    silent = StagedChannel(0, starts=False)
    sampler = remote_sampler(StagedChannel(1), silent)
    assert sampler.wait()
    sampler.start(Request({}, {}))
    looks = iter([True, True, False])
    assert not sampler.result(lambda: next(looks)).decisions
    assert silent.is_closed
    assert sampler.peek("Ball") is None


class StagedSampler:
    """A sampler that returns 10 decisions on each request, or raises an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[Request] = []
        self.error, self.is_collecting = error, False

    def start(self, request: Request) -> None:
        self.requests.append(request)
        self.is_collecting = True

    def stop(self) -> None:
        assert self.is_collecting

    def result(self, proceed: Any) -> Samples:  # noqa: ARG002
        self.is_collecting = False
        if self.error is not None:
            raise self.error
        return Samples(stored={"Ball": 10})


class StagedTraining(JointTraining):
    """One behavior whose updates run in a thread, without a last timestep."""

    def __init__(self, samplers: list[Any]) -> None:
        super().__init__(samplers)
        self.order: list[int] = []
        model = SimpleNamespace(threaded=True, num_timesteps=0, decisions_at_once=20, version=0)
        model.finish_update = lambda **_: None
        model.count = lambda decisions: setattr(model, "num_timesteps", model.num_timesteps + decisions)
        learner = SimpleNamespace(name="Ball", model=model, learns=True, self_play=None, is_update_due=False)
        learner.steps_to_event = 10**9
        self._learners["Ball"] = cast(Any, learner)
        self._published["Ball"] = 0

    def _take(self, number: int, samples: Samples) -> None:
        self.order.append(number)
        super()._take(number, samples)


def test_after_an_error_of_a_sampler_the_samples_of_the_others_are_processed() -> None:
    failing, further = (StagedSampler(PlayerError(f"player {number} ended")) for number in (0, 1))
    samplers = [StagedSampler(), failing, further, StagedSampler()]
    training = StagedTraining(samplers)
    with pytest.raises(PlayerError, match="player 0 ended"):
        training._collect(Request({"Ball": 10}, {}))
    assert training.order == [0]
    training._stop_samplers()
    assert training.order == [0, 3]
    assert training._learners["Ball"].model.num_timesteps == 20
    assert not any(sampler.is_collecting for sampler in samplers)


def test_the_last_timesteps_are_learned_from_although_a_sampler_was_lost() -> None:
    training = StagedTraining([StagedSampler(), StagedSampler()])  # neither reports the end of a behavior
    learner: Any = training._learners["Ball"]
    learner.learns, learner.teacher, learner.model.has_experience = False, None, True
    learner.update = lambda: setattr(learner.model, "has_experience", False)
    training._learn_the_last()
    assert not learner.model.has_experience


def test_a_sampler_that_finishes_first_continues_at_once_and_a_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_second(samplers: list[Any], seconds: float = 0) -> list[int]:  # noqa: ARG001
        return [len(samplers) - 1]  # the first one finishes last

    monkeypatch.setattr(joint, "wait_for_any", only_the_second)
    samplers = [StagedSampler(), StagedSampler()]
    training = StagedTraining(samplers)
    training._step()
    assert training.order[:5] == [1] * 5
    assert training.order[-1] == 0
    assert training.order.count(0) == 1
    assert samplers[1].requests[0].collect == {"Ball": 10}
