"""Self-play: opponents of the learning team, Elo ratings, and the state that a run stores."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
import yaml
from small_runs import players_of
from stable_baselines3 import PPO as PlainPPO  # noqa: N811
from stable_baselines3.common.vec_env import VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext import POCA, PPO, SAC, OnnxPolicy, SelfPlay, SelfPlayCallback, SelfPlayVecEnv, UnityVecEnv
from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.learn import main
from sb3_ext.run_checkpoints import Checkpoints
from sb3_ext.sampler import Sampler
from sb3_ext.self_play import Matchmaker, Opponent
from sb3_ext.settings import load, loads
from sb3_ext.training import Training, train
from stand_ins.two_teams_player import AREA, AREAS, CHOICES, MEMBER, TEAM, TIME, launcher
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import ActionTuple, Array

MEMBERS = 2
ROWS = AREAS * MEMBERS


class Constant:
    """A policy that always returns the same action."""

    memory_size = 0

    def __init__(self, action: int) -> None:
        self.action = action

    def select_actions(
        self, observations: Sequence[Array], masks: Array, memory: Array, deterministic: bool = False
    ) -> tuple[ActionTuple, Array]:
        assert not deterministic
        n = len(observations[0])
        assert len(masks) == n
        return ActionTuple(discrete=np.full((n, 1), self.action, np.int32)), memory


class Named(SelfPlay):
    """Snapshot n always returns action n mod 3; sampled opponents are recorded."""

    def setup(self, model: UnityAlgorithm) -> None:
        self.taken = 0
        self.drawn: list[Opponent] = []
        super().setup(model)

    def _take_snapshot(self, model: UnityAlgorithm) -> None:
        constant = Constant(self.taken % CHOICES)
        self.taken += 1
        self.snapshots.append(Opponent(lambda: constant, self.elo, model.num_timesteps))

    def sample_opponent(self) -> Opponent:
        self.drawn.append(super().sample_opponent())
        return self.drawn[-1]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made: list[UnityVecEnv] = []

    def build(*arguments: Any, scene: str = "Duel", kind: type[UnityVecEnv] = SelfPlayVecEnv, **options: Any) -> Any:
        made.append(kind("Unity-v0", *arguments, file_name=launcher(tmp_path, scene), seed=1, **options))
        return made[-1]

    yield build
    for env in made:
        env.close()


def small(env: UnityVecEnv, kind: type[UnityAlgorithm] = PPO, **options: Any) -> Any:
    """Return a model with updates every 60 decisions."""
    numbers: dict[str, Any] = {"batch_size": 16, "seed": 0, "policy_kwargs": {"hidden_units": 8, "num_layers": 1}}
    if kind is SAC:
        return SAC("UnitySACPolicy", env, buffer_size=4000, steps_per_update=10, **numbers | options)
    policy = options.pop("policy", "UnityPOCAPolicy" if kind is POCA else "UnityPolicy")
    return kind(policy, env, buffer_size=60, n_epochs=1, time_horizon=8, **numbers | options)  # type: ignore[call-arg]


# --- Opponents and ratings -------------------------------------------------------------------------------------------


class Referee(SelfPlayVecEnv):
    """A reference that keeps its own records, match by match and agent by agent, from the rules of the scene.

    Rows are sorted by area in this scene, and a match of an area starts for all its agents together.
    """

    self_play: Named

    def start(self, model: UnityAlgorithm) -> None:
        super().start(model)
        self.elo = {self.self_play.newest: 1000.0}
        self.meets: list[Opponent] = [self.self_play.drawn[-1]] * AREAS
        self.decisions = self.results = 0
        self.learned: list[int] = []  # decisions of each term of a team

    def rating(self, opponent: Opponent) -> float:
        return self.elo.setdefault(opponent, self.elo[self.self_play.newest])

    def _advance(self, advance: Any, actions: ActionTuple) -> Any:
        own, other = (f"Duelist?team={team}" for team in ((0, 1) if self.behavior.endswith("0") else (1, 0)))
        assert own == self.behavior
        for snapshot in self.self_play.snapshots:
            self.rating(snapshot)
        opponents, sent = self._pool.tables[other], {}
        deciding = opponents.requests_decision.copy()
        drawn = len(self.self_play.drawn)

        def noting(given: dict[str, ActionTuple]) -> None:
            sent.update(given)
            advance(given)

        result = super()._advance(noting, actions)
        for row in range(ROWS):
            if deciding[row] and isinstance(player := self.meets[row // MEMBERS].get_policy(), Constant):
                assert sent[other].discrete[row] == player.action
        # Results by Elo's formula, one per match that was not interrupted
        newest = self.self_play.newest
        for area in range(AREAS):
            row = area * MEMBERS
            assert len({bool(x) for x in (self.table.terminated | self.table.truncated)[row : row + MEMBERS]}) == 1
            rival = self.meets[area]
            if self.table.terminated[row] and rival is not newest:
                reward = float(self.table.reward[row] + self.table.group_reward[row])
                score = {1.0: 1.0, 0.0: 0.5, -1.0: 0.0}[reward]
                own_rating, rivals = self.elo[newest], self.rating(rival)
                gain = 2.0 * (score - 1 / (1 + 10 ** ((rivals - own_rating) / 400)))
                self.elo[newest], self.elo[rival] = own_rating + gain, rivals - gain
                self.results += 1
        # New opponents after every 40 decisions of the others; they act from each area's next match on.
        before = self.decisions // 40
        self.decisions += int(deciding.sum())
        assert len(self.self_play.drawn) - drawn == (self.decisions // 40 > before)
        for area in range(AREAS):
            if (self.table.terminated | self.table.truncated)[area * MEMBERS]:
                self.meets[area] = self.self_play.drawn[-1]
        assert self.matchmaker.players(other) == [self.meets[row // MEMBERS] for row in range(ROWS)]
        assert self.self_play.elo == pytest.approx(self.elo[newest], abs=1e-9)
        for snapshot in self.self_play.snapshots:
            assert snapshot.elo == pytest.approx(self.rating(snapshot), abs=1e-9)
        return result

    def change_team(self, model: UnityAlgorithm) -> None:
        self.learned.append(model.num_timesteps)
        before = self.behavior
        super().change_team(model)
        assert self.behavior != before
        self.meets = [self.self_play.drawn[-1]] * AREAS


def test_opponents_and_ratings_equal_those_of_a_reference_match_by_match(make: Any) -> None:
    play = Named(
        save_steps=50,
        team_change=240,
        swap_steps=40,
        window=3,
        play_against_latest_model_ratio=0.3,
        initial_elo=1000,
        k_factor=2,
        seed=5,
    )
    env = make(play, kind=Referee)
    model = small(env)
    model.learn(1000, callback=SelfPlayCallback())
    assert env.learned == [240, 480, 720, 960]  # all agents act at once: six per step
    assert [snapshot.step for snapshot in play.snapshots] == [900, 954, 1002]
    assert play.taken == 21
    kinds = {type(opponent.get_policy()).__name__ for opponent in play.drawn}
    assert kinds == {"Constant", "UnityPolicy"}
    assert len(set(play.drawn)) > 5
    assert env.results > 50
    assert play.elo != 1000


@pytest.mark.parametrize("kind", [PPO, POCA])
def test_all_decisions_of_the_learning_team_and_no_others_are_learned_from(make: Any, kind: type[PPO]) -> None:
    seen: list[Array] = []

    class Watched(kind):  # type: ignore[valid-type,misc]
        def _take_rollout(self) -> Any:
            rollout = super()._take_rollout()
            seen.append(rollout.observations[0].cpu().numpy())
            for trajectory in np.split(seen[-1], np.cumsum(rollout.lengths)[:-1]):
                assert_one_game(trajectory)
            return rollout

    env = make(SelfPlay(team_change=100, save_steps=50))
    model = small(env, Watched, policy="UnityPOCAPolicy" if kind is POCA else "UnityPolicy")
    model.learn(360, callback=SelfPlayCallback())
    assert model.num_timesteps == 360
    teams = np.concatenate(seen)[:, TEAM]
    # Six act at a time. The first team learns from 0 to 102 and from 204 to 300; no decision is lost at the changes.
    assert [np.count_nonzero(teams == team) for team in (0, 1)] == [102 + 96, 102 + 60]


def test_sac_stores_the_learning_team_only_and_no_sequence_spans_a_team_change(make: Any) -> None:
    env = make(SelfPlay(team_change=50, save_steps=50))
    memory = {"hidden_units": 8, "num_layers": 1, "memory_size": 8, "sequence_length": 4}
    model = small(env, SAC, policy_kwargs=memory)
    model.learn(300, callback=SelfPlayCallback())
    buffer = model.replay_buffer
    sequences = [
        states[: n + 1] for states, n in zip(buffer._arrays["observation_0"], buffer._length, strict=True) if n
    ]
    assert len(buffer) == 300
    assert {int(states[0, TEAM]) for states in sequences} == {0, 1}
    for states in sequences:
        assert_one_game(states)


def assert_one_game(views: Array) -> None:
    """Return whether these are one agent's observations, decision by decision."""
    assert (np.diff(views[:, TIME]) == 1).all()
    for column in (AREA, TEAM, MEMBER):
        assert len(set(views[:, column])) == 1


@pytest.mark.parametrize("joining", [0, 2])
def test_agents_that_join_a_running_match_meet_its_opponents(joining: int) -> None:
    """Also in the row of an agent that is no more, before those of the others in the match."""

    class Table(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.requests_decision)

    empty = Table(requests_decision=np.zeros(0, bool), terminated=np.zeros(0, bool), truncated=np.zeros(0, bool))
    for name in ("alive", "group", "group_id", "group_ended", "reward", "group_reward"):
        setattr(empty, name, np.zeros(0, np.int64))
    empty.alive = np.zeros(0, bool)
    table = Table(
        requests_decision=np.arange(4) != joining,
        alive=np.arange(4) != joining,
        terminated=np.zeros(4, bool),
        truncated=np.zeros(4, bool),
        group=np.array([7, 7, 7, 9]),
        group_id=np.array([7, 7, 7, 9]),
    )
    draws = iter(Opponent(lambda: Constant(0), 0.0, step) for step in range(9))
    play = SimpleNamespace(sample_opponent=lambda: next(draws))
    matchmaker = Matchmaker()
    matchmaker.enter("A?team=1", table, play)  # type: ignore[arg-type]
    matchmaker.enter("B?team=0", empty, play)  # type: ignore[arg-type]
    matchmaker.store_outcomes()
    matchmaker.learn("B?team=0")  # samples again for the next matches
    table.requests_decision[joining] = table.alive[joining] = table.terminated[3] = True
    matchmaker.store_outcomes()
    assert [None if opponent is None else opponent.step for opponent in matchmaker.players("A?team=1")] == [0, 0, 0, 2]


@pytest.mark.parametrize("kind", [PPO, POCA, SAC])
@pytest.mark.parametrize("memory", [0, 8])
def test_a_snapshot_acts_as_the_policy_did(make: Any, kind: type[UnityAlgorithm], memory: int) -> None:
    options = {"memory_size": memory, "sequence_length": 4, "use_previous_action": True} if memory else {}
    env = make(SelfPlay(save_steps=60, swap_steps=30))
    model = small(env, kind, policy_kwargs={"hidden_units": 8, "num_layers": 1, "normalize": True, **options})
    then: dict[int, Array] = {}
    observations = [np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * 3]
    masks = np.ones((50, CHOICES), bool)
    logits = {}

    class Noting(SelfPlayCallback):
        def _on_step(self) -> bool:
            known = len(self._env.self_play.snapshots)
            super()._on_step()
            if len(self._env.self_play.snapshots) > known:
                policy = self.model.acting_policy  # type: ignore[attr-defined]
                states = np.zeros((50, policy.memory_size), np.float32)
                then[self.model.num_timesteps] = policy.select_actions(observations, masks, states, deterministic=True)[
                    0
                ].discrete
                logits[self.model.num_timesteps] = _logits(policy, observations)
            return True

    model.learn(200, callback=Noting())
    snapshots = env.self_play.snapshots
    assert [snapshot.step for snapshot in snapshots] == [0, *then]
    assert len(then) >= 3
    for snapshot in list(snapshots)[1:]:
        player = snapshot.get_policy()
        assert player.memory_size == (memory + CHOICES if memory else 0)  # with the previous action
        states = np.zeros((50, player.memory_size), np.float32)
        assert (
            player.select_actions(observations, masks, states, deterministic=True)[0].discrete == then[snapshot.step]
        ).all()
        assert torch.equal(_logits(player, observations), logits[snapshot.step])
        assert not hasattr(player, "optimizer") or player.optimizer is None
        assert sum(p.numel() for p in player.parameters()) < sum(p.numel() for p in model.policy.parameters())
    assert not torch.equal(*(_logits(snapshots[i].get_policy(), observations) for i in (0, -1)))


def _logits(policy: Any, observations: list[Array]) -> torch.Tensor:
    with torch.no_grad():
        size = policy.body.state_size
        features, _ = policy.body(policy.tensors(observations), policy._start_memory(50)[:, :size] if size else None)
        return policy.head(features)[2].cpu()


def test_a_loaded_model_continues_with_its_opponents_and_rating(make: Any, tmp_path: Path) -> None:
    env = make(SelfPlay(save_steps=60, swap_steps=30, window=2, initial_elo=900))
    model = small(env)
    model.learn(200, callback=SelfPlayCallback())
    model.save(tmp_path / "model.zip")
    before = env.self_play
    again = make(SelfPlay(save_steps=60, swap_steps=30, window=2))
    loaded = PPO.load(tmp_path / "model.zip", env=again)
    assert loaded.self_play is not None
    assert loaded.self_play.elo == before.elo
    again.start(loaded)
    after = again.self_play
    assert loaded.self_play is after
    assert [(old.step, old.elo) for old in before.snapshots] == [(new.step, new.elo) for new in after.snapshots]
    assert after.elo == before.elo
    observations = [np.zeros((50, 4), np.float32)]
    for old, new in zip(before.snapshots, after.snapshots, strict=True):
        assert torch.equal(_logits(old.get_policy(), observations), _logits(new.get_policy(), observations))


# --- Model files -----------------------------------------------------------------------------------------------------


def test_a_model_file_acts_as_opponent_and_is_rated(make: Any, tmp_path: Path) -> None:
    env = make(SelfPlay())
    small(env).export_onnx(tmp_path / "old.onnx")
    again = make(
        SelfPlay(window=0, play_against_latest_model_ratio=0, swap_steps=30, opponents=[tmp_path / "old.onnx"])
    )
    model = small(again)
    model.learn(200, callback=SelfPlayCallback())
    (file,) = again.self_play.files
    assert isinstance(file.get_policy(), OnnxPolicy)
    assert set(again.matchmaker.players("Duelist?team=1")) == {file}
    assert again.self_play.elo + file.elo == pytest.approx(2400)
    assert file.elo != 1200
    assert not again.self_play.snapshots


def test_model_files_act_for_a_behavior_that_does_not_learn(make: Any, tmp_path: Path) -> None:
    whole = make(scene="Hunt", kind=UnityVecEnv, behavior="Prey")
    small(whole).export_onnx(tmp_path / "Prey.onnx")
    hunt = {"scene": "Hunt", "behavior": "Hunter", "opponents": {"Prey": [tmp_path / "Prey.onnx"]}}
    env, again = make(SelfPlay(seed=1), **hunt), make(SelfPlay(seed=1), **hunt)
    draws = [
        [opponents._rng.integers(1000) for opponents in each._plays.values() for _ in range(3)] for each in (env, again)
    ]
    assert draws[0] == draws[1]
    assert env.num_envs == ROWS
    model = small(env, POCA)
    model.learn(200, callback=SelfPlayCallback())
    assert env.behavior == "Hunter?team=0"
    assert env.self_play.elo != 1200
    assert model.num_timesteps >= 200


# --- unity-learn ----------------------------------------------------------------------------------------------------


def config(folder: Path, scene: str, **keys: Any) -> str:
    """Write settings of both behaviors of a scene."""
    names = ["Duelist"] if scene == "Duel" else ["Hunter", "Prey"]
    play = {"save_steps": 120, "team_change": 240, "swap_steps": 60, "window": 3, **keys.pop("self_play", {})}
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 16, "buffer_size": 60},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 600,
        "summary_freq": 100,
        "time_horizon": 8,
        "self_play": play,
        **keys,
    }
    tree = {"behaviors": dict.fromkeys(names, behavior), "env_settings": {"env_path": launcher(folder, scene)}}
    path = folder / f"{scene}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run the command in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> None:
        assert main([*arguments, "--run-id", "r"]) == 0

    return call


def status(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "run_logs" / "training_status.json").read_text(encoding="utf-8"))
    return content


def kept(run: Path, behavior: str) -> SelfPlay:
    """Return the self-play state of the newest checkpoint."""
    newest = Checkpoints(run / behavior).newest()
    assert newest is not None
    play = PPO.load(newest).self_play
    assert isinstance(play, SelfPlay)
    return play


def test_a_killed_run_resumes_with_its_snapshots_rating_and_team(tmp_path: Path) -> None:
    keys = {"max_steps": 5000, "checkpoint_interval": 420, "self_play": {"team_change": 400}}
    process = start(tmp_path, config(tmp_path, "Duel", **keys), "--run-id", "r", "--seed", "1")
    run = tmp_path / "results" / "r"
    while not (run / "run_logs" / "training_status.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before, step = kept(run, "Duelist")._keep(), max(Checkpoints(run / "Duelist").by_step())
    stored = status(run)["Duelist"]
    assert stored["learning_team"] == f"Duelist?team={step // 400 % 2}"
    assert len(before.snapshots) == 3

    keys["max_steps"] = step + 90
    process = start(tmp_path, config(tmp_path, "Duel", **keys), "--run-id", "r", "--resume")
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert f"ELO: {before.elo:.3f}"[:7] in output
    after = kept(run, "Duelist")._keep()
    steps = [old for old, _, _ in before.snapshots] + [
        new for new in range(0, step + 200, 120) if step < new <= step + 90
    ]
    assert [new for new, _, _ in after.snapshots] == steps[-3:]
    old = {number: weights for number, _, weights in before.snapshots}
    for number, _, weights in after.snapshots:
        for name, part in old.get(number, {}).items():
            assert np.array_equal(part, weights[name])
    assert abs(after.elo - before.elo) < 90 / 3  # by matches of two agents and three decisions, of at most 1 each
    assert status(run)["Duelist"]["elo"] == after.elo


class Killed(BaseException):
    """End of the process, after which nothing is saved."""


def test_a_run_that_is_killed_at_a_checkpoint_continues_with_the_team_that_was_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: list[tuple[int, str]] = []
    plain_change, plain_write = Training._change_team, Training._write_status

    def change(self: Training) -> None:
        before = self._learning_team
        plain_change(self)
        if self._learning_team != before:
            terms.append((self._learners["Duelist"].model.num_timesteps // 240, self._learning_team))

    def write_and_die(self: Training) -> None:
        plain_write(self)
        if self._learners["Duelist"].model.num_timesteps >= 720:
            raise Killed

    file = config(tmp_path, "Duel", checkpoint_interval=240, max_steps=1400)
    options: dict[str, Any] = {"env_settings.seed": 1, "checkpoint_settings.results_dir": str(tmp_path)}
    monkeypatch.setattr(Training, "_change_team", change)
    monkeypatch.setattr(Training, "_write_status", write_and_die)
    with pytest.raises(Killed):
        train(load(file, options))
    monkeypatch.setattr(Training, "_write_status", plain_write)
    train(load(file, {**options, "checkpoint_settings.resume": True}))
    assert terms == [(number, f"Duelist?team={number % 2}") for number in range(1, 6)]


def ratings_of(training: Training) -> dict[str, list[float]]:
    plays = {name: learner.self_play for name, learner in training._learners.items()}
    return {name: play.ratings for name, play in plays.items() if play is not None}


def test_an_interrupted_run_saves_the_ratings_of_the_behavior_that_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, last = Training._step, dict[str, list[float]]()

    def step_and_interrupt(self: Training) -> None:
        step(self)
        if self._learners["Prey"].model.num_timesteps >= 100:
            self._interrupt(signal.SIGINT, None)
            last.update(ratings_of(self))

    monkeypatch.setattr(Training, "_step", step_and_interrupt)
    file = config(tmp_path, "Hunt", checkpoint_interval=240)  # as long as a turn
    options = {"env_settings.seed": 1, "checkpoint_settings.results_dir": str(tmp_path)}
    assert train(load(file, {**options, "checkpoint_settings.run_id": "r"})) == signal.SIGINT
    assert max(Checkpoints(tmp_path / "r" / "Hunter").by_step()) == 240
    assert {name: kept(tmp_path / "r", name).ratings for name in ("Hunter", "Prey")} == last


def test_a_killed_run_keeps_the_ratings_of_resting_behaviors_until_the_last_checkpoint(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, last = Training._write_status, dict[str, list[float]]()

    def write_and_die(self: Training) -> None:
        plain(self)
        if self._learners["Prey"].model.num_timesteps >= 120:
            last.update(ratings_of(self))
            raise Killed

    monkeypatch.setattr(Training, "_write_status", write_and_die)
    with pytest.raises(Killed):
        run(config(tmp_path, "Hunt", checkpoint_interval=120), "--seed", "1")
    folder = tmp_path / "results" / "r"
    assert [max(Checkpoints(folder / name).by_step()) for name in ("Hunter", "Prey")] == [240, 120]
    assert {name: kept(folder, name).ratings for name in ("Hunter", "Prey")} == last


def test_a_behavior_that_appears_late_plays_matches(tmp_path: Path, run: Any) -> None:
    run(config(tmp_path, "LateHunt"), "--seed", "1")
    for name in ("Hunter", "Prey"):
        (final,) = (tmp_path / "results" / "r" / name).glob(f"{name}-6*.zip")
        assert PPO.load(final).num_timesteps >= 600


def test_a_resumed_behavior_that_appears_late_continues_its_turn(
    tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(config(tmp_path, "LateHunt"), "--seed", "1")
    assert status(tmp_path / "results" / "r")["Prey"]["learning_team"] == "Prey?team=1"
    capsys.readouterr()
    run(config(tmp_path, "LateHunt", max_steps=800), "--seed", "1", "--resume")
    # Prey reach 720, the next multiple of team_change, before the hunters that wait for them at 654 reach 700.
    lines = re.findall(r"\[INFO\] (\w+)\. Step: (\d+)\. ", capsys.readouterr().out)
    assert lines == [("Prey", "700"), ("Hunter", "700"), ("Prey", "800"), ("Hunter", "800")]


def test_a_run_can_be_resumed_without_self_play(tmp_path: Path, run: Any) -> None:
    file = Path(config(tmp_path, "Duel"))
    run(str(file), "--seed", "1")
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    for steps in (700, 800):
        tree["behaviors"]["Duelist"] |= {"self_play": None, "max_steps": steps}
        file.write_text(yaml.safe_dump(tree), encoding="utf-8")
        run(str(file), "--resume")
    saved = status(tmp_path / "results" / "r")["Duelist"]
    assert saved["final_checkpoint"]["steps"] >= 800
    assert saved.keys().isdisjoint({"elo", "learning_team"})


def test_a_player_that_ends_in_the_reset_of_a_team_change_is_launched_again(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, killed = Sampler.set_team, list[int]()

    def set_team(self: Sampler, team: str, reset: bool = False, *arguments: Any) -> None:
        if reset and not killed:
            players = players_of(psutil.Process())
            (player,) = (player for player in players if "Player-1.log" in " ".join(player.cmdline()))
            player.kill()
            killed.append(player.pid)
        plain(self, team, reset, *arguments)

    monkeypatch.setattr(Sampler, "set_team", set_team)
    run(config(tmp_path, "Duel"), "--seed", "1", "--num-envs", "2")
    assert len(killed) == 1
    assert capsys.readouterr().out.count("Player 1 is launched again: ") == 1
    assert max(Checkpoints(tmp_path / "results" / "r" / "Duelist").by_step()) >= 600


def test_each_sampler_draws_opponents_of_its_own_and_the_same_ones_in_each_run() -> None:
    def drawn(number: int) -> list[int]:
        given = pickle.loads(pickle.dumps(SelfPlay(seed=3)))
        policy = cast(Any, SimpleNamespace(adapter=SimpleNamespace(spec=None)))
        numbers: list[int] = given.replica(policy, number)._rng.integers(1000, size=20).tolist()
        return numbers

    assert drawn(0) == np.random.default_rng(3).integers(1000, size=20).tolist()
    assert drawn(0) != drawn(1) != drawn(2)
    assert (drawn(1), drawn(2)) == (drawn(1), drawn(2))


def test_snapshots_of_a_second_learning_have_steps_of_their_own(make: Any) -> None:
    play = SelfPlay(save_steps=60)
    model = small(make(play))
    for _ in range(2):
        model.learn(200, callback=SelfPlayCallback())
    steps = [snapshot.step for snapshot in play.snapshots]
    assert steps == sorted(set(steps))
    assert [play.opponent(snapshot.step, None) for snapshot in play.snapshots] == list(play.snapshots)


def test_without_a_window_no_snapshot_is_new(make: Any) -> None:
    play = SelfPlay(save_steps=60, window=0, play_against_latest_model_ratio=1)
    model = small(make(play))
    model.learn(200, callback=SelfPlayCallback())
    model.num_timesteps += 60
    assert not play.save_if_due()
    assert not play.snapshots


def summaries_of(process: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
    """Return behavior and step of each summary that a run prints."""
    for line in process.stdout or ():
        if match := re.match(r"\[INFO\] (.+)\. Step: (\d+)\. ", line):
            yield match[1], match[2]


def test_two_behaviors_learn_in_turn_and_ratings_are_shown(
    tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(config(tmp_path, "Hunt"), "--seed", "1")
    lines = [line for line in capsys.readouterr().out.splitlines() if "Step: " in line]
    assert all(re.fullmatch(r"\d+\.\d{3}\.", line.rpartition(". Training. ELO: ")[2]) for line in lines)
    summaries = [line.removeprefix("[INFO] ").split(". Time")[0] for line in lines]
    # Hunters act six at a time and prey three; each learns for 240 steps, and the last one until it is done.
    hunters, prey = (
        [f"Hunter. Step: {step}" for step in range(100, 700, 100)],
        [f"Prey. Step: {s}" for s in range(100, 700, 100)],
    )
    assert summaries == [*hunters[:2], *prey[:2], *hunters[2:4], *prey[2:4], *hunters[4:], *prey[4:]]
    folder = tmp_path / "results" / "r"
    assert PPO.load(folder / "Hunter" / "Hunter-600.zip").num_timesteps == 600
    elo = {}
    for name in ("Hunter", "Prey"):
        events = EventAccumulator(str(folder / name))
        events.Reload()
        shown = events.Scalars("Self-play/ELO")
        assert [event.step for event in shown] == list(range(100, 700, 100))
        elo[name] = status(folder)[name]["elo"]
        assert kept(folder, name)._keep().elo == elo[name]
    assert elo["Hunter"] != 1200
    assert status(folder)["Hunter"]["learning_team"] is None
    assert status(folder)["Prey"]["learning_team"] == "Prey?team=1"

    process = start(tmp_path, config(tmp_path, "Hunt"), "--run-id", "r", "--resume", "--inference")
    assert process.stdout is not None
    lines = [name for name, _ in itertools.islice(summaries_of(process), 4)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert set(lines) == {"Hunter", "Prey"}


def test_in_inference_the_newest_model_plays_against_itself(tmp_path: Path, run: Any) -> None:
    file = config(tmp_path, "Duel", max_steps=100)
    run(file)
    before = status(tmp_path / "results" / "r")
    process = start(tmp_path, file, "--run-id", "r", "--resume", "--inference")
    assert process.stdout is not None
    lines = [name for name, _ in itertools.islice(summaries_of(process), 4)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert set(lines) == {"Duelist?team=0", "Duelist?team=1"}
    assert status(tmp_path / "results" / "r") == before


def test_a_model_file_of_the_settings_acts_as_opponent(tmp_path: Path, make: Any, run: Any) -> None:
    small(make(SelfPlay())).export_onnx(tmp_path / "old.onnx")
    play = {"opponents": ["old.onnx"], "play_against_latest_model_ratio": 0}
    run(config(tmp_path, "Duel", self_play=play))
    (path,) = kept(tmp_path / "results" / "r", "Duelist")._keep().files
    assert path == "old.onnx"


# --- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_teams_of_one_behavior_without_self_play_learn_together(
    tmp_path: Path, trainer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = yaml.safe_load(Path(config(tmp_path, "Duel", trainer_type=trainer, max_steps=240)).read_text("utf-8"))
    del tree["behaviors"]["Duelist"]["self_play"]
    settings = loads(yaml.safe_dump(tree | {"checkpoint_settings": {"results_dir": str(tmp_path)}}))
    assert train(settings) == 0
    output = capsys.readouterr().out
    assert output.count("[WARNING] Duelist?team=0 and Duelist?team=1 are teams of one behavior without self_play") == 1
    # 12 agents of both teams act in a step, with one policy, whose rollouts are full after 5 steps.
    (last,) = (tmp_path / "ppo" / "Duelist").glob("*.zip")
    model = {"ppo": PPO, "poca": POCA}[trainer].load(last)
    assert model.num_timesteps == 240
    assert model._n_updates == 4 * model.n_epochs
    # A match gives 1 to one team and -1 to the other, or 0 to both, so that the mean over both is 0.
    for mean in re.findall(r"Mean Group Reward: (-?[\d.]+)\. ", output):
        assert abs(float(mean)) < 0.5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"window": -1}, "window of SelfPlay must be at least 0, got -1"),
        ({"save_steps": 0}, "save_steps of SelfPlay must be at least 1, got 0"),
        ({"play_against_latest_model_ratio": 1.5}, "must be a share from 0 to 1, got 1.5"),
        ({"window": 0}, "window=0 keeps no snapshots: give the model files"),
    ],
)
def test_invalid_numbers_raise(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnityGymError, match=expected):
        SelfPlay(**options)


def test_an_environment_without_opponents_raises(make: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"behavior must be one of \['Hunter', 'Prey'\].*got None"):
        make(scene="Hunt")
    with pytest.raises(UnityGymError, match=r"opponents has files for \[\], and the other behaviors .*\['Prey'\]"):
        make(scene="Hunt", behavior="Hunter")
    with pytest.raises(UnityGymError, match=r"none\.onnx cannot be read"):
        make(scene="Hunt", behavior="Hunter", opponents={"Prey": [tmp_path / "none.onnx"]})
    with pytest.raises(UnityGymError, match=r"Basic has no opponents: Basic.team=0 is the only team"):
        SelfPlayVecEnv("Unity-Basic-v0")
    env = make()
    env.reset()
    with pytest.raises(UnityGymError, match="no policy acts for the other teams yet"):
        env.step(np.zeros(ROWS, np.int64))
    with pytest.raises(UnityGymError, match=r"SelfPlayCallback needs PPO, POCA or SAC .* got PPO on VecNormalize"):
        PlainPPO("MlpPolicy", VecNormalize(env)).learn(10, callback=SelfPlayCallback())
