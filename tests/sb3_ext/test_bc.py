"""BC from demonstrations and from a teacher, and its interface as an SB3 algorithm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from random_experience import SPEC as OTHER_SPEC
from random_experience import trajectories
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO as PlainPPO  # noqa: N811
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from sb3_ext import BC, PPO, OnnxPolicy, Teacher, UnityVecEnv
from sb3_ext.bc import _split
from sb3_ext.experience import Trajectories
from sb3_ext.expert import Expert
from stand_ins import changing_agents_player
from unity_gym.demonstrations import DemonstrationWriter
from unity_gym.errors import DemonstrationError, NotReadyError, UnityGymError
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.specs import ActionSpec, ActionTuple, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

UNITY = Path(__file__).resolve().parents[2] / "../shared/unity"
needs_unitys_files = pytest.mark.skipif(not UNITY.is_dir(), reason=f"Unity's files are not at {UNITY}")
SMALL = {"hidden_units": 16, "num_layers": 1}


def sensor(size: int, name: str = "") -> ObservationSpec:
    return ObservationSpec((size,), (DimensionProperty.NONE,), ObservationType.DEFAULT, name)


SPEC = BehaviorSpec([sensor(2, "cue"), sensor(2, "now")], ActionSpec(1, (3, 2)))


def record(path: Path, lengths: tuple[int, ...] = (9,) * 12, seed: int = 0) -> Path:
    """An expert that picks the index of the larger of two numbers, and the sign of a cue in the first observation."""
    rng = np.random.default_rng(seed)
    with DemonstrationWriter(path, "Toy", SPEC) as writer:
        for length in lengths:
            cue = rng.choice([-1, 1])
            for step in range(length + 1):
                now = rng.normal(size=2).astype(np.float32)
                action = ActionTuple(
                    np.tanh(now[:1])[np.newaxis] + rng.normal(0, 0.05, (1, 1)),
                    np.array([[2 * now.argmax(), int(cue > 0)]]),
                )
                seen = np.full(2, cue if step == 0 else 0, np.float32)
                ended = step == length
                writer.add([seen, now], None if ended else action, terminated=ended)
    return path


def test_nothing_is_logged_without_a_log_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = BC("UnityPolicy", None, demonstrations=record(tmp_path / "toy.demo"), policy_kwargs=SMALL, verbose=1)
    capsys.readouterr()
    model.learn(500, log_interval=None)
    assert model.num_timesteps >= 500
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("memory", [0, 8])
def test_a_policy_repeats_the_demonstration_and_recalls_a_cue_with_memory_only(tmp_path: Path, memory: int) -> None:
    path = record(tmp_path / "toy.demo", (9,) * 120)
    network = {**SMALL, "memory_size": memory, "sequence_length": 5}
    model = BC(
        "UnityPolicy",
        None,
        1e-2,
        40,
        demonstrations=path,
        validation_fraction=0.2,
        policy_kwargs=network,
        seed=0,
        device="cpu",
    )
    model.learn(120 * 9 * 30)
    scores = model.score(record(tmp_path / "other.demo", (9,) * 20, seed=1))
    assert scores.keys() == model.validation_scores.keys() == {"loss", "accuracy", "mean_absolute_error"}
    assert scores["mean_absolute_error"] < 0.1
    # Without memory the second branch is a guess except for the first of nine decisions.
    low, high = (0.93, 1.0) if memory else (0.7, 0.85)
    assert low <= scores["accuracy"] <= high


def test_the_weights_with_the_best_validation_score_are_kept(tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo")
    model = BC("UnityPolicy", None, 3e-2, demonstrations=path, patience=3, policy_kwargs=SMALL, seed=0, device="cpu")
    losses = []
    score = model._score

    def noting(*arguments: Any) -> dict[str, float]:
        scores = score(*arguments)
        losses.append(scores["loss"])
        return scores

    model._score = noting  # type: ignore[method-assign]
    model.learn()  # ends without a callback
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 3
    assert model.validation_scores["loss"] == losses[best]


def test_learning_that_makes_nothing_better_keeps_what_was_learned_before(tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo")
    model = BC("UnityPolicy", None, 1e-2, demonstrations=path, policy_kwargs=SMALL, seed=0, device="cpu").learn(3000)
    model.save(tmp_path / "model")
    before = model.validation_scores
    continued = BC.load(tmp_path / "model", demonstrations=path, device="cpu", learning_rate=10.0)
    continued.learn(3000, reset_num_timesteps=False)
    assert continued.validation_scores == before
    for name, weights in model.policy.state_dict().items():
        assert continued.policy.state_dict()[name].equal(weights), name


def test_validation_data_are_whole_episodes_or_else_the_last_parts(tmp_path: Path) -> None:
    expert = Expert(record(tmp_path / "many.demo", (3, 5) * 10), SPEC)
    shown, held = _split(expert, 2, 0.2)
    assert held is not None
    for sequences in (shown, held):
        assert sequences[0].shape == sequences[1].shape
    of_shown, of_held = (expert.trajectory[decisions[valid]].unique() for decisions, valid in (shown, held))
    assert len(of_held) == 4
    assert not set(of_shown.tolist()) & set(of_held.tolist())
    assert sum(int(valid.sum()) for _, valid in (shown, held)) == len(expert)

    expert = Expert(record(tmp_path / "few.demo", (20, 10)), SPEC)
    shown, held = _split(expert, 1, 0.2)
    assert held is not None
    assert held[0].flatten().tolist() == [16, 17, 18, 19, 28, 29]
    assert len(shown[0]) == 24
    assert _split(expert, 1, 0.0)[1] is None

    expert = Expert(record(tmp_path / "short.demo", (7,) * 5), SPEC)
    shown, held = _split(expert, 1, 0.1)
    assert held is not None
    assert held[0].flatten().tolist() == [6, 13, 20, 27, 34]


def test_standard_deviations_are_those_of_the_expert(tmp_path: Path) -> None:
    spec, rng = BehaviorSpec([sensor(1)], ActionSpec(2, ())), np.random.default_rng(0)
    with DemonstrationWriter(tmp_path / "noisy.demo", "Noisy", spec) as writer:
        for step in range(1001):
            action = ActionTuple(rng.normal((0.3, -0.2), (0.05, 0.2), (1, 2)))
            writer.add([np.ones(1, np.float32)], None if step == 1000 else action, terminated=step == 1000)
    for scaling in ("unity", "clip"):
        model = BC(
            "UnityPolicy",
            None,
            1e-2,
            demonstrations=tmp_path / "noisy.demo",
            action_scaling=scaling,
            policy_kwargs=SMALL,
            seed=0,
            device="cpu",
        )
        model.learn(20_000)
        drawn, _ = model.predict(np.ones((2000, 1), np.float32))
        np.testing.assert_allclose(drawn.mean(0), (0.3, -0.2), atol=0.05)
        np.testing.assert_allclose(drawn.std(0), (0.05, 0.2), rtol=0.25)  # from the 100 decisions of the validation set


def test_the_progress_bar_of_each_learning_shows_its_own_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = []

    class Bar:
        def __init__(self, total: int) -> None:
            self.total, self.n = total, 0
            bars.append(self)

        def update(self, decisions: int) -> None:
            self.n += decisions

        def refresh(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr("stable_baselines3.common.callbacks.tqdm", Bar)
    model = BC("UnityPolicy", None, demonstrations=record(tmp_path / "toy.demo"), policy_kwargs=SMALL, device="cpu")
    learned = []
    for _ in range(2):
        before = model.num_timesteps
        model.learn(200, reset_num_timesteps=False, progress_bar=True)
        learned.append(model.num_timesteps - before)
    assert [(bar.total, bar.n) for bar in bars] == [(200, decisions) for decisions in learned]


def test_bc_is_an_sb3_algorithm(tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo")
    model = BC("UnityPolicy", None, demonstrations=path, policy_kwargs={**SMALL, "normalize": True}, device="cpu")
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(500, callback=CheckpointCallback(2, str(tmp_path)), progress_bar=True)
    assert model.num_timesteps >= 500
    assert len(list(tmp_path.glob("rl_model_*_steps.zip"))) > 1
    head, *lines = (tmp_path / "progress.csv").read_text().splitlines()
    assert set(head.split(",")) >= {"train/imitation_loss", "validation/accuracy", "validation/mean_absolute_error"}
    assert lines
    before = model.num_timesteps
    model.learn(200, reset_num_timesteps=False)
    assert model.num_timesteps >= before + 200

    model.save(tmp_path / "model")
    path.rename(tmp_path / "moved.demo")
    loaded = BC.load(tmp_path / "model", device="cpu")
    seen = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    actual, expected = (each.predict(seen, deterministic=True)[0] for each in (model, loaded))
    for key in actual:
        np.testing.assert_array_equal(actual[key], expected[key])
    assert loaded.validation_scores == model.validation_scores
    with pytest.raises(DemonstrationError, match="no demonstration"):
        loaded.learn(100)

    model.export_onnx(tmp_path / "toy.onnx")
    unitys, _ = OnnxPolicy(tmp_path / "toy.onnx", spec=SPEC).predict(seen, deterministic=True)
    np.testing.assert_allclose(unitys["continuous"], actual["continuous"], atol=1e-5)
    np.testing.assert_array_equal(unitys["discrete"], actual["discrete"])


def test_a_callback_may_end_cloning(tmp_path: Path) -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 3

    model = BC("UnityPolicy", None, demonstrations=record(tmp_path / "toy.demo"), device="cpu")
    model.learn(10_000, callback=Stop())
    assert model._n_updates == 3


def test_ppo_continues_with_the_cloned_policy(tmp_path: Path) -> None:
    spec = BehaviorSpec([sensor(20)], ActionSpec(0, (3,)))
    with DemonstrationWriter(tmp_path / "basic.demo", "Basic", spec) as writer:
        for _ in range(5):
            for step in range(8):
                seen = np.eye(20, dtype=np.float32)[10 + step]
                writer.add([seen], None if step == 7 else ActionTuple(discrete=np.array([[2]])), terminated=step == 7)
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    cloned = BC("UnityPolicy", env, 1e-2, demonstrations=tmp_path / "basic.demo", seed=0, device="cpu").learn(2000)
    assert cloned.validation_scores["accuracy"] == 1
    assert evaluate_policy(cloned, env, 3, warn=False)[0] == pytest.approx(0.93)
    model = PPO("UnityPolicy", env, device="cpu")
    model.policy.load_state_dict(cloned.policy.state_dict())
    assert evaluate_policy(model, env, 3, warn=False)[0] == pytest.approx(0.93)
    env.close()


# A teacher


class Right:
    """Basic's optimal policy, which sometimes moves left; its recurrent state counts its decisions."""

    def __init__(self) -> None:
        self.memories: list[int] = []

    def predict(
        self, observation: np.ndarray, state: Any, episode_start: np.ndarray, deterministic: bool, action_masks: Any
    ) -> tuple[np.ndarray, tuple[np.ndarray]]:
        n = len(observation)
        assert action_masks.shape == (n, 3)
        memory = np.zeros((n, 1)) if state is None else state[0]
        memory = np.where(episode_start[:, np.newaxis], 0, memory) + 1
        if not deterministic:
            return np.where(memory[:, 0] % 3 == 0, 1, 2), (memory,)
        self.memories.append(int(memory[0, 0]))
        return np.full(n, 2), (memory,)


def test_a_student_learns_from_its_teacher_while_the_teacher_acts() -> None:
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    teacher = Right()
    model = BC(
        "UnityPolicy", env, 1e-2, teacher=teacher, teacher_steps_per_epoch=40, policy_kwargs=SMALL, seed=0, device="cpu"
    )
    model.set_logger(configure(None, []))
    model.learn(300)
    assert model.teacher is not None
    assert model.num_timesteps == 40 + 80 + 120 + 160  # after every 40 decisions, an epoch over all of them
    assert len(model.teacher) == model.teacher.number == 160
    assert model.validation_scores["accuracy"] == 1
    # Exploration makes episodes longer than the optimum, and each resets the recurrent state.
    assert max(teacher.memories) > 7
    assert teacher.memories.count(1) > 3
    env.close()
    env = UnityVecEnv("Unity-Basic-v0", seed=0)  # a reset would leave the agent where it is
    mean, _ = evaluate_policy(model, env, 3, warn=False)
    assert mean == pytest.approx(0.93)
    env.close()


@pytest.mark.parametrize(
    ("scene", "teacher_class", "network"),
    [
        ("Basic", PlainPPO, "MlpPolicy"),
        ("Basic", RecurrentPPO, "MlpLstmPolicy"),
        ("Basic", MaskablePPO, "MlpPolicy"),
        ("3DBall", RecurrentPPO, "MlpLstmPolicy"),
    ],
)
def test_models_of_stable_baselines3_teach(scene: str, teacher_class: Any, network: str) -> None:
    env = UnityVecEnv(f"Unity-{scene}-v0", seed=0)
    teacher = teacher_class(network, env, n_steps=8, batch_size=8, device="cpu")
    model = BC("UnityPolicy", env, teacher=teacher, teacher_steps_per_epoch=60, policy_kwargs=SMALL, device="cpu")
    model.learn(180)
    assert model.teacher is not None
    assert len(model.teacher) >= 120
    env.close()


def test_each_agent_keeps_its_state_of_a_recurrent_teacher_of_sb3_contrib() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    network = {"n_lstm_layers": 2, "lstm_hidden_size": 4}
    policy = RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=8, policy_kwargs=network, device="cpu", seed=0)
    table, rng = env.table, np.random.default_rng(0)
    teacher = Teacher(policy, table.spec, env.layout, sample_actions=False)
    states: list[Any] = [None] * env.num_envs
    for _ in range(6):
        table.requests_decision[:] = rng.random(env.num_envs) < 0.5
        table.observations[0][:] = rng.normal(size=table.observations[0].shape)
        actions = teacher.select_actions(table)
        for row in np.flatnonzero(table.requests_decision):
            seen, starts = table.observations[0][[row]], np.array([states[row] is None])
            expected, states[row] = policy.predict(seen, states[row], starts, deterministic=True)
            np.testing.assert_allclose(actions.continuous[[row]], expected, atol=1e-6)
    env.close()


def test_clearing_a_reset_and_unrecorded_decisions_end_trajectories_of_a_teacher() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    table, agents = env.table, env.num_envs
    teacher = Teacher(lambda seen: np.zeros((len(seen), 2), np.float32), table.spec, env.layout)
    table.requests_decision[:] = True

    def act(times: int) -> None:
        for _ in range(times):
            teacher.select_actions(table)

    act(1)
    teacher.clear()
    act(3)
    teacher.start_episodes()
    act(2)
    teacher.stop()
    act(1)
    teacher.start()
    act(4)
    rollout, numbers = teacher.recorded()
    assert rollout.lengths.tolist() == [3] * agents + [2] * agents + [4] * agents
    assert sorted(numbers.tolist()) == list(range(agents, 10 * agents))
    env.close()


def test_a_saved_model_continues_with_the_teacher_that_load_gets(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    model = BC("UnityPolicy", env, teacher=Right(), teacher_steps_per_epoch=40, policy_kwargs=SMALL, device="cpu")
    model.learn(100)
    model.save(tmp_path / "model")
    with pytest.raises(NotReadyError, match=r"does not contain its teacher: pass it to BC.load\(path, env, teacher="):
        BC.load(tmp_path / "model", env).learn(100)
    loaded = BC.load(tmp_path / "model", env, teacher=Right())
    loaded.learn(40)
    assert loaded.validation_scores["accuracy"] > 0  # its first decisions are new ones
    assert loaded.validation_scores != model.validation_scores
    assert loaded.teacher is not None
    assert len(loaded.teacher) == 40
    with pytest.raises(UnityGymError, match="as env, or a Teacher"):
        BC.load(tmp_path / "model", teacher=Right())
    BC("UnityPolicy", None, demonstrations=record(tmp_path / "toy.demo"), device="cpu").save(tmp_path / "offline")
    with pytest.raises(UnityGymError, match="give one of them"):
        BC.load(tmp_path / "offline", teacher=Right())
    env.close()


def test_each_reset_starts_the_episodes_of_the_teacher_again() -> None:
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    policy = Right()
    model = BC("UnityPolicy", env, teacher=policy, teacher_steps_per_epoch=3, policy_kwargs=SMALL, device="cpu")
    model.learn(3)
    assert policy.memories == [1, 2, 3]
    model.learn(6)  # the decisions of both trainings
    assert policy.memories == [1, 2, 3, 1, 2, 3]
    assert model.teacher is not None
    assert model.teacher.recorded()[0].lengths.tolist() == [3, 3]
    env.close()


def test_record_off_adds_nothing_and_clear_empties() -> None:
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    model = BC("UnityPolicy", env, teacher=lambda seen: np.full(len(seen), 2), teacher_steps_per_epoch=10, device="cpu")
    teacher = model.teacher
    assert teacher is not None
    table = env.table

    def act(decisions: int) -> None:
        for _ in range(decisions):
            env.step_once(teacher.select_actions(table))
            teacher.store_outcomes(table)

    env.reset()
    act(5)
    teacher.stop()
    act(4)  # the first episode ends after 7
    assert len(teacher) == 5
    model.learn(5)  # has no teacher
    assert len(teacher) == 5
    teacher.start()
    act(3)
    rollout, number = teacher.recorded()
    assert len(rollout) == len(teacher) == 8
    assert rollout.lengths.tolist() == [5, 3]  # what was not recorded lies between them
    assert number.tolist() == list(range(8))
    assert (rollout.actions == 2).all()
    assert rollout.observations[0].argmax(1).tolist()[:5] == [10, 11, 12, 13, 14]
    teacher.clear()
    assert len(teacher) == 0
    with pytest.raises(NotReadyError, match="record is empty"):
        model.train()
    teacher.stop()
    with pytest.raises(NotReadyError, match="record is empty"):
        model.learn(10)
    teacher.start()
    model.learn(10)
    assert len(teacher) == 10
    env.close()


def test_a_recurrent_student_follows_the_episodes_of_a_teacher_whose_trajectories_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = {**SMALL, "memory_size": 8, "sequence_length": 4}
    student = BC.from_spec("UnityPolicy", OTHER_SPEC, policy_kwargs=network, teacher_steps_per_epoch=10, device="cpu")
    student.set_logger(configure(None, []))
    student.start(OTHER_SPEC)
    pieces = trajectories(np.random.default_rng(0), [4, 3])
    pieces.ends |= {"row": np.zeros(2, np.int64), "is_episode_end": np.array([False, True])}
    lengths = []
    monkeypatch.setattr(student, "_train_epoch", lambda rollout, *_: lengths.append(rollout.lengths.tolist()))
    student.watch(pieces, student.policy)
    student.train()
    assert lengths[0] == [7]


@pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
@pytest.mark.parametrize("memory", [0, 8])
def test_a_student_learns_from_another_behavior_of_its_scene(tmp_path: Path, memory: int) -> None:
    """Both teams act at once; agents of the teacher's team spawn and leave, and have masks."""
    pool = PlayerPool(PlayerOptions(file_name=changing_agents_player.launcher(tmp_path), seed=0))
    try:
        pool.reset()
        teacher_table, student_table = (pool.tables[f"Striker?team={team}"] for team in (0, 1))

        def expert(seen: np.ndarray) -> np.ndarray:
            return np.stack([seen[:, 0] == 0, seen[:, 1] < 4], 1).astype(np.int64)  # by row, and by tick

        teacher = Teacher(expert, teacher_table.spec)
        network = {**SMALL, "memory_size": memory, "sequence_length": 4}
        student = BC("UnityPolicy", None, 1e-2, 16, teacher=teacher, policy_kwargs=network, seed=0, device="cpu")
        student.set_logger(configure(None, []))
        student.start(student_table.spec)
        for step in range(240):
            pool.step_once(
                {
                    "Striker?team=0": teacher.select_actions(teacher_table),
                    "Striker?team=1": student.select_actions(student_table, deterministic=True),
                }
            )
            teacher.store_outcomes(teacher_table)
            student.store_outcomes(student_table)
            if step % 8 == 7:
                student.train()
    finally:
        pool.close()
    rollout, _ = teacher.recorded()
    # An episode has 8 decisions, the first striker leaves after 3.
    assert rollout.lengths.tolist() == [3, 8] * 30
    assert student.validation_scores["accuracy"] > 0.95
    assert len(rollout) == len(teacher) == teacher.number


def test_bc_raises_for_environments_and_demonstrations_it_cannot_learn_from(tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo")
    with pytest.raises(UnityGymError, match="one of them"):
        BC("UnityPolicy", None)
    with pytest.raises(UnityGymError, match="one of them"):
        BC("UnityPolicy", None, demonstrations=path, teacher=Right())
    with pytest.raises(UnityGymError, match=r"UnityVecEnv.*DummyVecEnv"):
        BC("UnityPolicy", gym.make("CartPole-v1"), teacher=Right())
    with pytest.raises(DemonstrationError, match=r"sensor 1: .*DIFFERENT"):
        BC("UnityPolicy", gym.make("CartPole-v1"), demonstrations=path)
    with pytest.raises(DemonstrationError, match="no demonstration"):
        BC("UnityPolicy", None, demonstrations=tmp_path / "nothing.demo")
    wrong = {"validation_fraction": 1, "patience": 0, "batch_size": 0, "teacher_steps_per_epoch": 0}
    for name, number in wrong.items():
        with pytest.raises(UnityGymError, match=name):
            BC("UnityPolicy", None, demonstrations=path, **{name: number})  # type: ignore[arg-type]
    with pytest.raises(UnityGymError, match="by learn"):
        BC("UnityPolicy", None, demonstrations=path, device="cpu").train()


@pytest.mark.slow
@needs_unitys_files
@pytest.mark.parametrize("online", [False, True])
def test_bc_learns_3dball_from_unitys_demonstration_and_from_unitys_policy(online: bool) -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    expert: dict[str, Any] = (
        {"teacher": OnnxPolicy(UNITY / "models/3DBall.onnx", env, seed=0)}
        if online
        else {"demonstrations": UNITY / "demonstrations/Expert3DBall.demo"}
    )
    model = BC("UnityPolicy", env, policy_kwargs={"normalize": True}, seed=0, device="cpu", **expert)
    model.learn(60_000)
    mean, _ = evaluate_policy(model, env, 12, warn=False)
    env.close()
    assert mean > (90 if online else 80)


def test_an_episode_of_the_teacher_that_a_reset_has_ended_is_not_continued() -> None:
    student = BC.from_spec("UnityPolicy", OTHER_SPEC, teacher_steps_per_epoch=5, device="cpu")
    teacher = PPO.from_spec("UnityPolicy", OTHER_SPEC, device="cpu").policy
    rng = np.random.default_rng(0)
    for _ in range(2):
        part = trajectories(rng, [5])
        part.ends["is_episode_end"][:] = False  # cut at an update
        student.watch(part, teacher)
    student.discard_experience()
    student.watch(trajectories(rng, [5]), teacher)
    assert Trajectories.join(student._watched).merged().lengths.tolist() == [10, 5]
