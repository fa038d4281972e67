"""Lessons and samplers: completion of lessons, messages to players, and the state that a run stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext.curriculum import EnvironmentParameterManager, LessonProgress, ParameterCurriculum
from sb3_ext.launching import player_options
from sb3_ext.learn import main
from sb3_ext.placement import LocalSampler
from sb3_ext.run_checkpoints import Checkpoints
from sb3_ext.runs import Run
from sb3_ext.sampler import Request, Sampler
from sb3_ext.settings import Lesson, RunSettings, load, loads
from sb3_ext.training import Training
from stand_ins import classroom_player
from unity_gym.errors import UnityGymError
from unity_gym.pool import PlayerPool
from unity_gym.scenes.parameters import EnvironmentParameters
from unity_gym.side_channels import EnvironmentParametersChannel, IncomingMessage
from unity_gym.specs import Array

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "ppo"


def course(*criteria: dict[str, Any] | None, status: dict[str, Any] | None = None) -> ParameterCurriculum:
    """Lessons of the behavior B with these criteria, and one more after them."""
    lessons = [
        Lesson.model_validate(
            {
                "name": f"L{index}",
                "value": index,
                "completion_criteria": given if given is None else {"behavior": "B"} | given,
            }
        )
        for index, given in enumerate((*criteria, None))
    ]
    return ParameterCurriculum("height", lessons, status)


def after(returns: list[float], progress: float = 0.0) -> dict[str, LessonProgress]:
    return {"B": LessonProgress(returns, progress)}


# --- Completion of lessons -------------------------------------------------------------------------------------------


def test_a_reward_lesson_ends_when_the_mean_of_its_last_episodes_is_above_the_threshold() -> None:
    height = course({"threshold": 2, "min_lesson_length": 3, "signal_smoothing": False})
    assert not height.is_complete(after([9, 9]))  # two of three episodes
    assert not height.is_complete({})
    assert height.is_complete(after([-11.9]))
    height.reset()
    assert not height.is_complete(after([0, 0, 0, 1, 2, 3]))  # a mean of 2 is not above 2
    assert height.is_complete(after([2]))


def test_a_reward_lesson_averages_as_many_episodes_as_the_longest_lesson_of_its_behavior(tmp_path: Path) -> None:
    status: dict[str, Any] = {}
    first, second = ({"threshold": 2, "min_lesson_length": length, "signal_smoothing": False} for length in (2, 5))
    height = course(first, second, status=status)
    assert not height.is_complete(after([0, 0, 0, 3, 3]))  # the last two have a mean of 3, all five of 1.2
    height.report()
    resumed = course(first, second, status=json.loads(json.dumps(status)))
    assert not resumed.is_complete(after([3]))  # 0, 0, 3, 3, 3
    assert resumed.is_complete(after([3]))

    def lessons(behavior: str, length: int) -> dict[str, Any]:
        criteria = {"behavior": behavior, "threshold": 2, "min_lesson_length": length, "signal_smoothing": False}
        return {"curriculum": [{"name": "a", "value": 0, "completion_criteria": criteria}, {"name": "b", "value": 1}]}

    parameters = {"long": lessons("B", 3), "other": lessons("C", 9), "short": lessons("B", 1)}
    settings = settings_of(tmp_path, parameters)
    curricula = EnvironmentParameterManager(settings, Run(settings))
    assert curricula.advance(after([0])) == ([], False)
    assert curricula.advance(after([3])) == ([], False)
    assert curricula.advance(after([3])) == ([], False)  # a mean of 2 is not above 2
    assert curricula.advance(after([3])) == (["long", "short"], False)


def test_without_a_length_a_lesson_ends_with_one_good_episode() -> None:
    height = course({"threshold": 2, "signal_smoothing": False})
    assert not height.is_complete(after([]))
    assert not height.is_complete(after([1, 2]))
    assert height.is_complete(after([1, 3, 1]))


def test_smoothing_weighs_the_previous_means_once_per_episode() -> None:
    height = course({"threshold": 3.9, "min_lesson_length": 1})
    assert not height.is_complete(after([0]))
    measured = 0.0
    for _ in range(2):
        assert not height.is_complete(after([4]))
        for _ in range(9):  # steps in which no episode ends
            assert not height.is_complete(after([]))
        measured = measured / 4 + 3
    assert measured == 3.75
    assert height.is_complete(after([4]))  # 3.9375

    at_once = course({"threshold": 3.9, "min_lesson_length": 1})
    assert at_once.is_complete(after([0, 4, 4, 4]))  # however many episodes end together


@pytest.mark.parametrize(("threshold", "max_steps"), [(0.57, 5000), (0.56, 5000), (0.29, 100), (0.57, 20_000_000)])
def test_a_progress_lesson_ends_with_the_first_timestep_above_its_threshold(threshold: float, max_steps: int) -> None:
    lesson = course({"measure": "progress", "threshold": threshold})
    step = lesson.steps_of_progress("B", max_steps)
    assert step is not None
    assert not lesson.is_complete(after([], (step - 1) / max_steps))
    assert lesson.is_complete(after([], step / max_steps))


def test_smoothing_is_reset_in_each_lesson() -> None:
    height = course({"threshold": 3}, {"threshold": -2})
    assert height.is_complete(after([100]))
    height.advance()
    assert not height.is_complete(after([-3]))  # neither the 100 nor a 0 is in the mean


def test_a_progress_lesson_ends_above_its_share_of_the_run_and_after_its_episodes() -> None:
    height = course({"measure": "progress", "threshold": 0.5, "min_lesson_length": 2})
    assert not height.is_complete(after([0], 0.9))
    assert height.is_complete(after([0], 0.9))
    height.reset()
    assert not height.is_complete(after([0, 0], 0.5))
    assert height.is_complete(after([], 0.51))


def test_only_lessons_that_an_episode_may_complete_wait_for_episodes() -> None:
    height = course({"measure": "progress", "threshold": 0.5, "min_lesson_length": 2}, {"threshold": 1})
    assert height.may_end_with_episode
    height.is_complete(after([0, 0], 0.1))
    assert not height.may_end_with_episode  # progress is left
    height.advance()
    assert height.may_end_with_episode
    height.advance()
    assert not height.may_end_with_episode  # the last lesson


def test_a_lesson_of_elo_ends_above_a_rating_and_after_its_episodes(tmp_path: Path) -> None:
    height = course({"measure": "Elo", "threshold": 1210, "min_lesson_length": 2})
    assert not height.is_complete({"B": LessonProgress([9, 9], 0.5, 1210.0)})
    assert height.is_complete({"B": LessonProgress([], 0.5, 1210.5)})
    height.reset()
    assert not height.is_complete({"B": LessonProgress([9], 0.5, 1300.0)})
    lessons = {"name": "only", "value": 1, "completion_criteria": {"behavior": "B", "measure": "Elo"}}
    parameters = {"height": {"curriculum": [lessons, {"name": "last", "value": 2}]}}
    with pytest.raises(UnityGymError, match=r"completion_criteria\.measure.*give B a block self_play"):
        settings_of(tmp_path, parameters)
    playing = {"trainer_type": "ppo", "self_play": {}}
    assert settings_of(tmp_path, parameters, default_settings=playing).behavior("B").self_play is not None


def test_lessons_come_one_after_another_and_the_last_never_ends() -> None:
    status: dict[str, Any] = {}
    height = course(*({"measure": "progress", "threshold": share} for share in (0.1, 0.2, 0.3)), status=status)
    passed = []
    while height.is_complete(after([], 0.9)):
        height.advance()
        passed.append((height.number, height.lesson.name))
    assert passed == [(1, "L1"), (2, "L2"), (3, "L3")]
    assert status == {"lesson_num": 3}
    ends = [Lesson.model_validate({"name": "only", "value": 1, "completion_criteria": {"behavior": "B"}})]
    assert not ParameterCurriculum("height", ends).is_complete(after([9]))


@pytest.mark.parametrize(
    ("criteria", "before", "completes"),
    [
        ({"threshold": 2, "min_lesson_length": 3}, [9.0, 9.0], True),  # the third episode
        ({"threshold": 4, "min_lesson_length": 3}, [0.0, 0.0], False),  # a mean of 3
        ({"threshold": 7, "min_lesson_length": 1}, [0.0], False),  # smoothed, 0.75 times 9
        ({"threshold": 0.5, "min_lesson_length": 3, "measure": "progress"}, [0.0, 0.0], True),
    ],
)
def test_a_resumed_lesson_continues_with_its_episodes(
    criteria: dict[str, Any], before: list[float], completes: bool
) -> None:
    status: dict[str, Any] = {}
    height = course(criteria, status=status)
    assert not height.is_complete(after(before, 0.6))
    height.report()
    assert course(criteria, status=json.loads(json.dumps(status))).is_complete(after([9], 0.6)) is completes


@pytest.mark.parametrize("number", [2, -1, "first", None])
def test_a_missing_lesson_raises(number: Any) -> None:
    with pytest.raises(UnityGymError, match=r"in lesson .* of environment_parameters\.height, which has 2 in the set"):
        course({}, status={"lesson_num": number})


# --- Messages to players ---------------------------------------------------------------------------------------------


def settings_of(folder: Path, parameters: dict[str, Any], **blocks: Any) -> RunSettings:
    tree = {
        "default_settings": {"trainer_type": "ppo"},
        "env_settings": {"seed": 4},
        "checkpoint_settings": {"results_dir": str(folder), "run_id": "run"},
        "environment_parameters": parameters,
    }
    return loads(yaml.safe_dump(tree | blocks))


class Scene:
    """Return the environment parameters that the scenes of `n` players read."""

    def __init__(self, n: int = 1) -> None:
        self.channels = [EnvironmentParametersChannel() for _ in range(n)]
        self.players = [EnvironmentParameters() for _ in range(n)]
        self.pool = cast(PlayerPool, SimpleNamespace(environment_parameters=self.channels))

    def draw(self, name: str, count: int) -> list[Array]:
        """Return the current samples of each player."""
        for channel, player in zip(self.channels, self.players, strict=True):
            for message in channel.message_queue:
                player.on_message_received(IncomingMessage(message))
            channel.message_queue.clear()
        return [player.values(name, -99, count) for player in self.players]


def kolmogorov_smirnov(drawn: Array, distribution: Callable[[Array], Array]) -> float:
    """Return the Kolmogorov-Smirnov statistic times √n, which exceeds 1.63 in 1 % of all samples."""
    drawn = np.sort(drawn)
    n = len(drawn)
    cumulative = distribution(drawn)
    distance = np.maximum(np.arange(1, n + 1) / n - cumulative, cumulative - np.arange(n) / n).max()
    return float(distance * np.sqrt(n))


def uniform(low: float, high: float) -> Callable[[Array], Array]:
    return lambda values: np.clip((values - low) / (high - low), 0, 1)


def test_players_sample_the_given_distributions_with_different_seeds(tmp_path: Path) -> None:
    parameters = {
        "gravity": 9.5,
        "mass": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.5, "max_value": 10}},
        "wind": {"sampler_type": "gaussian", "sampler_parameters": {"mean": 3, "st_dev": 2}},
        "gap": {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[0, 1], [4, 5]]}},
        "twin": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0, "max_value": 1, "seed": 7}},
        "other": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0, "max_value": 1, "seed": 7}},
        "next": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0, "max_value": 1, "seed": 8}},
    }
    settings = settings_of(tmp_path, parameters)
    curricula, scene = EnvironmentParameterManager(settings, Run(settings)), Scene(2)
    assert curricula.constants == {"gravity": 9.5}
    assert curricula.stats == {}
    curricula.send(scene.pool)
    assert [column.tolist() for column in scene.draw("gravity", 2)] == [[9.5, 9.5]] * 2
    mass, wind, gap, twin, other, following = (scene.draw(name, 4000) for name in list(parameters)[1:])
    for player in range(2):
        assert kolmogorov_smirnov(mass[player], uniform(0.5, 10)) < 1.63
        assert abs(wind[player].mean() - 3) < 0.1
        assert abs(wind[player].std() - 2) < 0.1
        below = gap[player] < 2
        assert kolmogorov_smirnov(np.where(below, gap[player], gap[player] - 3), uniform(0, 2)) < 1.63
    assert not np.array_equal(mass[0], mass[1])
    assert np.array_equal(twin[0], other[0])
    assert not np.array_equal(twin[0], twin[1])
    assert np.array_equal(twin[1], following[0]), "player i samples with seed + i"


LESSONS = {
    "height": {
        "curriculum": [
            {
                "name": "low",
                "value": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0, "max_value": 1}},
                "completion_criteria": {"behavior": "B", "threshold": 1, "require_reset": True},
            },
            {"name": "high", "value": 8},
        ]
    },
    "width": {
        "curriculum": [
            {
                "name": "narrow",
                "value": 1,
                "completion_criteria": {"behavior": "B", "threshold": 5, "min_lesson_length": 2},
            },
            {
                "name": "wide",
                "value": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 2, "max_value": 3}},
            },
        ]
    },
}


def test_a_new_lesson_is_sent_to_players_and_restarts_the_episode_counts_of_all_lessons(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, LESSONS)
    curricula, scene = EnvironmentParameterManager(settings, Run(settings)), Scene()
    curricula.send(scene.pool)
    assert curricula.constants == {"width": 1}
    assert [value.seed for value in curricula.values()] == [4, 6], "each lesson has a seed of its own"
    low = scene.draw("height", 100)[0]
    assert 0 <= low.min() < low.max() <= 1
    assert curricula.advance(after([0])) == ([], False)
    changed, reset = curricula.advance(after([6]))
    assert (changed, reset) == (["height"], True)
    assert curricula.stats == {"Environment/Lesson Number/height": 1, "Environment/Lesson Number/width": 0}
    curricula.send(scene.pool, changed)
    assert len(scene.channels[0].message_queue) == 1
    assert scene.draw("height", 1)[0] == 8
    assert curricula.advance(after([6])) == ([], False)  # the first episode since the lesson started
    assert curricula.advance(after([6])) == (["width"], False)
    curricula.send(scene.pool, ["width"])
    wide = scene.draw("width", 100)[0]
    assert 2 <= wide.min() < wide.max() <= 3
    assert [value.seed for value in curricula.values()] == [5, 7]


def test_the_randomized_3dball_has_balls_of_the_given_sizes(tmp_path: Path) -> None:
    flags = {"env_settings.num_areas": 400, "env_settings.seed": 2, "checkpoint_settings.results_dir": str(tmp_path)}
    settings = load(CONFIGS / "3DBall_randomize.yaml", flags=flags)
    run = Run(settings)
    curricula = EnvironmentParameterManager(settings, run)
    pool = PlayerPool(player_options(settings, curricula, run.logs))
    try:
        curricula.send(pool)
        pool.reset()
        (table,) = pool.tables.values()
        lowest = np.full(400, np.inf)
        for _ in range(14):  # the balls fall, and rest on the platform, which is 5 m thick
            pool.step_once({})
            z, x, *offset = table.observations[0][:, :5].T
            w = np.sqrt(1 - x**2 - z**2)
            up = np.array([-2 * w * z, 1 - 2 * x**2 - 2 * z**2, 2 * w * x])
            lowest = np.minimum(lowest, (up * np.array(offset)).sum(0))
    finally:
        pool.close()
    assert kolmogorov_smirnov((lowest - 2.5) / 0.5, uniform(0.75, 3)) < 1.63


# --- Runs ------------------------------------------------------------------------------------------------------------


def test_a_required_reset_restarts_all_episodes_and_trajectories(tmp_path: Path) -> None:
    parameters = {
        "gravity": {
            "curriculum": [
                {
                    "name": "falls",
                    "value": 9.81,
                    "completion_criteria": {
                        "behavior": "3DBall",
                        "measure": "progress",
                        "threshold": 0.1,
                        "require_reset": True,
                    },
                },
                {"name": "floats", "value": 0},
            ]
        }
    }
    settings = settings_of(tmp_path, parameters, env_settings={"env_path": "embedded:3DBall", "seed": 1})
    settings = settings.model_copy(
        update={"behaviors": {"3DBall": settings.behavior("").model_copy(update={"max_steps": 1200})}}
    )
    run = Run(settings)
    curricula = EnvironmentParameterManager(settings, run)
    pool = PlayerPool(player_options(settings, curricula, run.logs))
    try:
        curricula.send(pool)
        pool.reset()
        sampler = Sampler(pool)
        training = Training(settings, run, [LocalSampler(sampler)], curricula)
        (learner,) = training._learners.values()
        request = training._request()
        assert request.limits == {"3DBall": 121}  # where the progress is above 0.1
        training._request = lambda: Request(request.collect, {"3DBall": 1})  # type: ignore[method-assign]
        (table,) = pool.tables.values()
        episodes = sampler._behaviors["3DBall"].episodes
        for steps in range(12, 121, 12):
            training._step()
            assert learner.model.num_timesteps == steps
        assert episodes._lengths.tolist() == [10] * 12
        assert learner.model.collector.collected == 120
        training._step()
        assert curricula.lessons["gravity"].number == 1
        assert table.requests_decision.all()
        assert (table.observations[0][:, 3] == 4).all()
        assert learner.model.collector.collected == 0
        for steps in range(1, 4):
            training._step()
            assert episodes._lengths.tolist() == [steps] * 12
            assert episodes._rewards == pytest.approx(np.full(12, 0.1 * steps))
        assert (table.observations[0][:, 3] == 4).all()  # the balls float
        assert learner.model.num_timesteps == 132 + 36
    finally:
        pool.close()


def lessons_of_basic(folder: Path, max_steps: int) -> str:
    """Write a configuration with three lessons for Basic."""
    tree = yaml.safe_load((CONFIGS / "Basic.yaml").read_text(encoding="utf-8"))
    tree["behaviors"]["Basic"] |= {"max_steps": max_steps, "summary_freq": 100, "checkpoint_interval": 100}
    lessons: list[dict[str, Any]] = [
        {
            "name": name,
            "value": 1,
            "completion_criteria": {
                "behavior": "Basic",
                "measure": "progress",
                "threshold": threshold,
                "min_lesson_length": 1,
            },
        }
        for name, threshold in (("first", 0.02), ("second", 0.9))
    ]
    tree["environment_parameters"] = {"width": {"curriculum": [*lessons, {"name": "third", "value": 3}]}}
    path = folder / f"{max_steps}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def lesson_number(run: Path) -> int:
    status = json.loads((run / "run_logs" / "training_status.json").read_text(encoding="utf-8"))
    return int(status["width"]["lesson_num"])


def test_a_run_passes_its_lessons_in_order_and_keeps_the_lesson_when_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--results-dir", str(tmp_path), "--seed", "1", "--run-id"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", lessons_of_basic(tmp_path, 10_000), *arguments, "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if "Step: " in line or "Lesson " in line:
            lines.append(line.removeprefix("[INFO] ").partition(". Time")[0].strip())
        if lines[-1:] == ["Basic. Step: 500"]:
            os.kill(process.pid, signal.SIGKILL)
            break
    _, errors = process.communicate()
    assert lines == [
        *("Basic. Step: 100", "Basic. Step: 200", "Lesson 1 of width: second"),
        *("Basic. Step: 300", "Basic. Step: 400", "Basic. Step: 500"),
    ], errors
    assert lesson_number(tmp_path / "run") == 1

    assert main([lessons_of_basic(tmp_path, 700), *arguments, "run", "--resume"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "Lesson" in line) == "[INFO] Lesson 1 of width: second"
    # before the lines of step 700 and of saving
    assert lines.index("[INFO] Lesson 2 of width: third") == len(lines) - 3
    assert lesson_number(tmp_path / "run") == 2
    events = EventAccumulator(str(tmp_path / "run" / "Basic"))
    events.Reload()
    lesson_numbers = {event.step: event.value for event in events.Scalars("Environment/Lesson Number/width")}
    assert lesson_numbers == {100: 0, 200: 0, 300: 1, 400: 1, 500: 1, 600: 1, 700: 2}

    assert main([lessons_of_basic(tmp_path, 8), *arguments, "next", "--initialize-from", "run"]) == 0
    assert lesson_number(tmp_path / "next") == 0


def test_a_checkpoint_contains_every_behavior_that_lessons_measure(tmp_path: Path) -> None:
    behavior = {
        "trainer_type": "ppo",
        "max_steps": 300,
        "network_settings": {"hidden_units": 8},
        "checkpoint_interval": 100,
    }
    criteria = {"behavior": "Student", "measure": "progress", "threshold": 0.5}
    lessons = [{"name": "first", "value": 0, "completion_criteria": criteria}, {"name": "second", "value": 1}]
    tree = {
        "behaviors": {"Teacher": behavior, "Student": behavior | {"checkpoint_interval": 1000}},
        "environment_parameters": {"hardness": {"curriculum": lessons}},
    }
    file = tmp_path / "classroom.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    arguments = ["--env", classroom_player.launcher(tmp_path), "--results-dir", str(tmp_path), "--run-id", "run"]
    assert main([str(file), *arguments]) == 0
    steps = {name: [*Checkpoints(tmp_path / "run" / name).by_step()] for name in ("Teacher", "Student")}
    assert steps["Teacher"] == [100, 200, 300]
    assert [step for step in steps["Student"] if step < 151] == [100]  # the lesson ends at 151
    assert steps["Student"][-1] == 300


def lines_until(process: subprocess.Popen[str], is_enough: Callable[[list[str]], bool]) -> list[str]:
    """Return the printed lines, each up to its first comma, until `enough` returns True."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.partition(",")[0].strip())
        if is_enough(lines):
            return lines
    raise AssertionError(f"{lines}\n{process.communicate()[1]}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_walljumps_curriculum_passes_its_lessons_in_order_and_resumes_in_the_lesson_of_a_killed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = yaml.safe_load((CONFIGS / "WallJump_curriculum.yaml").read_text(encoding="utf-8"))
    for behavior in tree["behaviors"].values():
        behavior |= {"max_steps": 3000, "summary_freq": 300, "checkpoint_interval": 300}
        behavior["network_settings"]["hidden_units"] = 32
    walls = {"big_wall_height": "BigWallJump", "small_wall_height": "SmallWallJump"}
    for wall in walls:
        for lesson in tree["environment_parameters"][wall]["curriculum"][:-1]:
            lesson["completion_criteria"]["min_lesson_length"] = 3
    file = tmp_path / "WallJump.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    arguments = [str(file), "--results-dir", str(tmp_path), "--run-id", "run", "--seed", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def has_saved_second_lessons(lines: list[str]) -> bool:
        started = [lines.index(line) for wall in walls if (line := f"[INFO] Lesson 1 of {wall}: Lesson1") in lines]
        return len(started) == 2 and all(
            sum(line.startswith(f"[INFO] {behavior}. Step: ") for line in lines[max(started) :]) >= 2
            for behavior in walls.values()
        )

    before = lines_until(process, has_saved_second_lessons)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    status = json.loads((tmp_path / "run" / "run_logs" / "training_status.json").read_text(encoding="utf-8"))
    lessons = {wall: int(status[wall]["lesson_num"]) for wall in walls}
    assert min(lessons.values()) >= 1

    assert main([*arguments, "--resume"]) == 0
    after = capsys.readouterr().out.splitlines()
    before = [line.removeprefix("[INFO] ") for line in before]
    after = [line.removeprefix("[INFO] ") for line in after]
    resumed = [line for line in after if line.startswith("Lesson ")]
    for place, (wall, number) in enumerate(lessons.items()):
        assert resumed[place] == f"Lesson {number} of {wall}: Lesson{number}"
        passed = [line for line in before if f" of {wall}:" in line]
        assert passed == [f"Lesson {i} of {wall}: Lesson{i}" for i in range(1, len(passed) + 1)]
        rest = [line for line in after if f" of {wall}:" in line]
        assert rest == [f"Lesson {i} of {wall}: Lesson{i}" for i in range(number, 4)]
        events = EventAccumulator(str(tmp_path / "run" / walls[wall]))
        events.Reload()
        numbers = [event.value for event in events.Scalars(f"Environment/Lesson Number/{wall}")]
        assert numbers == sorted(numbers)
        assert numbers[0] == 0
        assert numbers[-1] == 3
