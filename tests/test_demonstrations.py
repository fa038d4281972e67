"""Demonstrations: Unity's files, a round trip of ours, Unity's loader as the reference for both, and broken files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import vector as vector_wrappers
from hypothesis import given, settings
from hypothesis import strategies as st

import unity_gym  # noqa: F401  # registers the ids
from unity_gym.demonstrations import (
    Demonstration,
    DemonstrationWriter,
    RecordDemonstration,
    fit,
    load,
    record,
)
from unity_gym.envs.single_agent import UnitySingleAgentEnv
from unity_gym.errors import ActionError, DemonstrationError, InvalidValueError, NotReadyError
from unity_gym.specs import (
    ActionSpec,
    ActionTuple,
    Array,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)
from unity_gym.wire.encode import varint
from unity_gym.wire.messages import AgentInfoActionPair, BrainParameters, DemonstrationMeta, FlatRecord, Observation

UNITYS_FILES = Path(__file__).resolve().parents[1] / "../shared/unity/demonstrations"
needs_unitys_files = pytest.mark.skipif(
    not UNITYS_FILES.is_dir(), reason=f"Unity's demonstrations are not at {UNITYS_FILES}"
)
needs_peer = pytest.mark.skipif(
    "UNITY_GYM_PEER_PYTHON" not in os.environ, reason="UNITY_GYM_PEER_PYTHON names no Python that has mlagents"
)

# File, records, sensors, continuous actions, branches, sum of the records' rewards, records that are done.
REFERENCE = [
    ("Expert3DBall", 549, [(8,)], 2, (), 54.800, 0),
    ("ExpertPushBlock", 2558, [(105,), (105,)], 0, (7,), 472.443, 95),
    ("ExpertGridWorld", 53, [(3, 64, 84)], 0, (5,), 12.740, 13),
    ("ExpertPyramid", 1751, [(56,), (56,), (56,), (4,)], 0, (5,), 16.264, 9),
]


def sensor(*shape: int, name: str = "") -> ObservationSpec:
    """Return a sensor with the dimension properties that Unity gives to its rank."""
    plane = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
    properties = {
        1: (DimensionProperty.NONE,),
        2: (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
        3: (DimensionProperty.NONE, plane, plane),
    }[len(shape)]
    return ObservationSpec(shape, properties, ObservationType.DEFAULT, name or f"sensor{shape}")


HYBRID = ActionSpec(2, (3, 200, 2))
SPECS = {
    "vector, continuous": BehaviorSpec([sensor(4)], ActionSpec(2, ())),
    "stacked vectors, branches": BehaviorSpec([sensor(12, name="StackedX4"), sensor(3)], ActionSpec(0, (3, 2))),
    "entities, hybrid": BehaviorSpec([sensor(5, 4), sensor(2)], HYBRID),
    "goal": BehaviorSpec([sensor(2)._replace(observation_type=ObservationType.GOAL_SIGNAL)], ActionSpec(1, ())),
    **{f"{c} channels": BehaviorSpec([sensor(c, 6, 7), sensor(2)], HYBRID) for c in range(1, 7)},
    "no dimension properties": BehaviorSpec(
        [ObservationSpec((3, 6, 7), (DimensionProperty.UNSPECIFIED,) * 3, ObservationType.DEFAULT, "")], HYBRID
    ),
}


def records(
    spec: BehaviorSpec, visual_dtype: str = "uint8", lengths: tuple[int, ...] = (4, 1, 6)
) -> list[dict[str, Any]]:
    """Return arguments of `DemonstrationWriter.add` for episodes, alternately terminated and truncated."""
    rng = np.random.default_rng(len(spec.observation_specs))
    output = []
    for episode, length in enumerate(lengths):
        for step in range(length + 1):
            ended = step == length
            output.append(
                {
                    "observations": [
                        rng.integers(0, 256, shape.shape, dtype=np.uint8)
                        if shape.array_dtype(visual_dtype) == np.uint8
                        else rng.random(shape.shape, np.float32)
                        for shape in spec.observation_specs
                    ],
                    "action": None if ended else spec.action_spec.random_action(1, rng),
                    "reward": rng.normal(),
                    "group_reward": rng.normal(),
                    "terminated": ended and episode % 2 == 0,
                    "truncated": ended and episode % 2 == 1,
                    "action_mask": rng.random(sum(spec.action_spec.discrete_branches)) < 0.7 if step % 2 else None,
                }
            )
    return output


def write(path: Path, spec: BehaviorSpec, added: list[dict[str, Any]], visual_dtype: str = "uint8") -> Path:
    with DemonstrationWriter(path, "Behavior?team=0", spec, visual_dtype) as writer:
        for one in added:
            writer.add(**one)
    return path


def assert_holds(demonstration: Demonstration, added: list[dict[str, Any]]) -> None:
    """Check that the transitions are exactly those of the added records."""
    starts = [i for i, one in enumerate(added[:-1]) if one["action"] is not None]
    assert len(demonstration) == len(starts)
    for sensor_index, (column, following) in enumerate(
        zip(demonstration.observations, demonstration.next_observations, strict=True)
    ):
        np.testing.assert_array_equal(column, [added[i]["observations"][sensor_index] for i in starts])
        np.testing.assert_array_equal(following, [added[i + 1]["observations"][sensor_index] for i in starts])
    actions = [added[i]["action"] for i in starts]
    np.testing.assert_array_equal(demonstration.actions.continuous, [action.continuous[0] for action in actions])
    np.testing.assert_array_equal(demonstration.actions.discrete, [action.discrete[0] for action in actions])
    masks = [added[i]["action_mask"] for i in starts]
    width = sum(demonstration.spec.action_spec.discrete_branches)
    np.testing.assert_array_equal(
        demonstration.action_masks, [np.ones(width, bool) if mask is None else mask for mask in masks]
    )
    for name, key in (("rewards", "reward"), ("group_rewards", "group_reward")):
        expected = np.array([added[i + 1][key] for i in starts], np.float32)
        np.testing.assert_array_equal(getattr(demonstration, name), expected)
    np.testing.assert_array_equal(demonstration.terminated, [added[i + 1]["terminated"] for i in starts])
    np.testing.assert_array_equal(demonstration.truncated, [added[i + 1]["truncated"] for i in starts])


@needs_unitys_files
@pytest.mark.parametrize(("name", "n_records", "shapes", "continuous", "branches", "reward", "done"), REFERENCE)
def test_unitys_demonstrations_have_the_reference_values(
    name: str,
    n_records: int,
    shapes: list[tuple[int, ...]],
    continuous: int,
    branches: tuple[int, ...],
    reward: float,
    done: int,
) -> None:
    demonstration = load(UNITYS_FILES / f"{name}.demo")
    assert len(demonstration.record_done) == n_records == demonstration.headers[0].number_steps
    assert [sensor.shape for sensor in demonstration.spec.observation_specs] == shapes
    assert [column.shape for column in demonstration.observations] == [(len(demonstration), *shape) for shape in shapes]
    assert demonstration.spec.action_spec == ActionSpec(continuous, branches)
    assert demonstration.record_rewards.sum() == pytest.approx(reward, abs=5e-4)
    assert demonstration.record_done.sum() == done
    header = demonstration.headers[0]
    assert header.mean_reward * header.number_episodes == pytest.approx(reward, rel=1e-4)


@needs_unitys_files
@pytest.mark.parametrize("name", [row[0] for row in REFERENCE])
def test_no_transition_starts_in_a_record_that_is_done_and_shows_the_last_observation(name: str) -> None:
    demonstration = load(UNITYS_FILES / f"{name}.demo", done_record="last")
    done = demonstration.record_done
    assert not done[demonstration.rows].any()
    assert len(demonstration) == len(done) - done.sum() - 1
    assert (demonstration.terminated | demonstration.truncated).sum() == done.sum()
    assert (np.diff(demonstration.episodes, axis=1) > 0).all()
    for start, end in demonstration.episodes:
        assert demonstration.episode_starts[start]
        assert not demonstration.terminated[start : end - 1].any()
        for column, following in zip(demonstration.observations, demonstration.next_observations, strict=True):
            np.testing.assert_array_equal(column[start + 1 : end], following[start : end - 1])


@needs_unitys_files
@pytest.mark.parametrize("name", [row[0] for row in REFERENCE])
def test_episodes_of_an_old_package_start_in_the_records_that_are_done(name: str) -> None:
    """ExpertPushBlock is of a package that reset the agent before it wrote the record."""
    path = UNITYS_FILES / f"{name}.demo"
    demonstration, last = load(path), load(path, done_record="last")
    done = demonstration.record_done
    assert demonstration.record_done[demonstration.rows].any() == (name == "ExpertPushBlock")
    assert len(demonstration) == len(last) + (name == "ExpertPushBlock") * done[:-1].sum()
    if name == "ExpertPushBlock":
        np.testing.assert_array_equal(demonstration.rewards, demonstration.record_rewards[1:])  # none is lost
        np.testing.assert_array_equal(demonstration.episodes[1:, 0], np.flatnonzero(done))
        ends = demonstration.terminated | demonstration.truncated
        np.testing.assert_array_equal(demonstration.next_observations[0][ends], demonstration.observations[0][ends])


def _old_demonstration(path: Path, starts: Sequence[int], length: int) -> Path:
    """Return walks along a line as the first packages wrote them: the record that is done shows the next start."""
    spec = BehaviorSpec([ObservationSpec((20,), (), ObservationType.DEFAULT, "")], ActionSpec(0, (3,)))
    with DemonstrationWriter(path, "Line", spec) as writer:
        places = [place for start in starts for place in range(start, start + length)] + [starts[-1]]
        for number, place in enumerate(places):
            done = number > 0 and number % length == 0
            writer.add(
                [np.eye(20, dtype=np.float32)[place]],
                ActionTuple(discrete=np.full((1, 1), int(number > 0))),  # the action that led here
                reward=float(done),
                terminated=done,
            )
    path.write_bytes(_without_mark(path.read_bytes()))
    return path


@pytest.mark.parametrize("starts", [[5] * 6, [3, 7, 1, 9, 4]])
def test_a_record_that_is_done_may_show_the_next_episode(tmp_path: Path, starts: list[int]) -> None:
    length = 4
    path = _old_demonstration(tmp_path / "old.demo", starts, length)
    demonstration = load(path, done_record="auto" if len(set(starts)) == 1 else "first")
    np.testing.assert_array_equal(np.diff(demonstration.episodes, axis=1)[:, 0], [length] * len(starts))
    np.testing.assert_array_equal(demonstration.rewards, np.tile([0, 0, 0, 1], len(starts)))
    np.testing.assert_array_equal(demonstration.terminated, demonstration.rewards == 1)
    assert (demonstration.actions.discrete == 1).all()
    places = demonstration.observations[0].argmax(1).reshape(-1, length)
    np.testing.assert_array_equal(places, np.add.outer(starts, range(length)))
    last = demonstration.next_observations[0].argmax(1).reshape(-1, length)[:, -1]
    np.testing.assert_array_equal(last, places[:, -1])  # the real one is not in the file
    assert len(load(path, done_record="last")) < len(demonstration)


def _flat(path: Path, shows_shapes: bool) -> Path:
    """Rewrite a file of one camera and one vector as the recorders of 2018 and 2019 wrote it.

    :param shows_shapes: Whether the images have shapes, as in the last of those packages.
    """
    _, rest = _split(path.read_bytes(), 33)
    parameters = BrainParameters(brain_name="Behavior", vector_action_size_deprecated=[3, 2])
    if not shows_shapes:
        parameters.camera_resolutions.add(width=7, height=6)
    flat = path.read_bytes()[:33] + _delimited(parameters.SerializeToString())
    while rest:
        encoded, rest = _split(rest)
        pair = AgentInfoActionPair.FromString(encoded)
        image, vector = pair.agent_info.observations
        image = Observation(shape=[6, 7, 3], compressed_data=image.compressed_data)
        chosen = np.frombuffer(pair.action_info.discrete_actions or bytes(2), np.uint8)
        record = FlatRecord(
            stacked_vector_observation=vector.float_data.data,
            visual_observations=[image.compressed_data],
            stored_vector_actions=chosen.astype("<f4").tobytes(),
        )
        info = pair.agent_info
        info.ClearField("observations")
        info.observations.extend([image] if shows_shapes else [])
        flat += _delimited(record.SerializeToString() + info.SerializeToString())
    path.write_bytes(flat)
    return path


@pytest.mark.parametrize("shows_shapes", [False, True])
def test_records_of_2018_and_2019_are_read(tmp_path: Path, shows_shapes: bool) -> None:
    spec = BehaviorSpec([sensor(3, 6, 7), sensor(2)], ActionSpec(0, (3, 2)))
    path = write(tmp_path / "old.demo", spec, records(spec))
    expected = load(path, action_record="next")
    demonstration = load(_flat(path, shows_shapes))
    assert [seen.shape for seen in demonstration.spec.observation_specs] == [(3, 6, 7), (2,)]
    assert demonstration.spec.action_spec == spec.action_spec
    for name in ("rewards", "terminated", "truncated", "action_masks", "episodes"):
        np.testing.assert_array_equal(getattr(demonstration, name), getattr(expected, name))
    np.testing.assert_array_equal(demonstration.actions.discrete, expected.actions.discrete)
    for actual, array in zip(demonstration.record_observations, expected.record_observations, strict=True):
        np.testing.assert_array_equal(actual, array)


@needs_unitys_files
def test_images_are_bytes_or_floats_with_channels_first() -> None:
    path = UNITYS_FILES / "ExpertGridWorld.demo"
    (images,), (floats,) = load(path).observations, load(path, visual_dtype="float32").observations
    assert images.dtype == np.uint8
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats * 255, images, atol=1e-4)
    assert len(np.unique(images[0].reshape(3, -1), axis=1).T) < 200  # few colors: swapped axes would give many


@pytest.mark.parametrize("visual_dtype", ["uint8", "float32"])
@pytest.mark.parametrize("kind", SPECS)
def test_a_written_demonstration_is_read_back_unchanged(tmp_path: Path, kind: str, visual_dtype: str) -> None:
    spec = SPECS[kind]
    added = records(spec, visual_dtype)
    demonstration = load(write(tmp_path / "ours.demo", spec, added, visual_dtype), visual_dtype)
    assert demonstration.spec == spec
    assert demonstration.behavior_name == "Behavior?team=0"
    assert_holds(demonstration, added)
    assert demonstration.episodes.tolist() == [[0, 4], [4, 5], [5, 11]]
    header = demonstration.headers[0]
    assert header[1:4] == ("ours", len(added), 3)
    assert header.mean_reward == pytest.approx(sum(one["reward"] for one in added) / 3, rel=1e-5)


def test_a_demonstration_may_end_in_mid_episode(tmp_path: Path) -> None:
    spec = SPECS["vector, continuous"]
    added = records(spec, lengths=(2, 3))[:-1]
    demonstration = load(write(tmp_path / "ours.demo", spec, added))
    assert_holds(demonstration, added)
    assert demonstration.episodes.tolist() == [[0, 2], [2, 4]]
    assert demonstration.terminated.tolist() == [False, True, False, False]
    assert demonstration.headers[0].number_episodes == 2


def test_the_behavior_starts_at_byte_33(tmp_path: Path) -> None:
    data = write(tmp_path / "a name of more than sixteen letters.demo", *_vector_demonstration()).read_bytes()
    assert DemonstrationMeta.FromString(data[1 : 1 + data[0]]).demonstration_name == "a name of more t"
    assert BrainParameters.FromString(data[34 : 34 + data[33]]).brain_name == "Behavior?team=0"


def test_a_folder_is_one_demonstration_without_transitions_between_its_files(tmp_path: Path) -> None:
    spec = SPECS["3 channels"]
    added = records(spec, lengths=(2, 3))
    write(tmp_path / "b.demo", spec, added[3:])
    write(tmp_path / "a.demo", spec, added[:2])  # ends in mid-episode
    (tmp_path / "notes.txt").write_text("not a demonstration")
    demonstration = load(tmp_path)
    assert [header.path.name for header in demonstration.headers] == ["a.demo", "b.demo"]
    assert demonstration.episodes.tolist() == [[0, 1], [1, 4]]
    alone = [load(tmp_path / name) for name in ("a.demo", "b.demo")]
    for name in ("rewards", "group_rewards", "terminated", "truncated", "action_masks"):
        np.testing.assert_array_equal(
            getattr(demonstration, name), np.concatenate([getattr(part, name) for part in alone])
        )
    for index in range(2):
        for name in ("observations", "next_observations"):
            parts = [getattr(part, name)[index] for part in alone]
            np.testing.assert_array_equal(getattr(demonstration, name)[index], np.concatenate(parts))


def test_files_of_different_behaviors_are_compared_sensor_by_sensor(tmp_path: Path) -> None:
    for name in ("vector, continuous", "3 channels"):
        write(tmp_path / f"{name[0]}.demo", SPECS[name], records(SPECS[name]))
    with pytest.raises(DemonstrationError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert "sensor 0: (4,) 'sensor(4,)' against (3, 6, 7) 'sensor(3, 6, 7)': DIFFERENT" in message
    assert "sensor 1: none against (2,) 'sensor(2,)': DIFFERENT" in message
    assert "actions: (2, ()) against (2, (3, 200, 2)): DIFFERENT" in message


def test_a_demonstration_fits_its_behavior_and_no_other(tmp_path: Path) -> None:
    spec = SPECS["3 channels"]
    demonstration = load(write(tmp_path / "ours.demo", spec, records(spec)))
    goals = [
        spec.observation_specs[0],
        spec.observation_specs[1]._replace(observation_type=ObservationType.GOAL_SIGNAL),
    ]
    assert fit(demonstration, spec._replace(observation_specs=goals)).spec.observation_specs == goals
    channels_last = BehaviorSpec([sensor(6, 7, 3), sensor(2)], spec.action_spec)
    with pytest.raises(
        DemonstrationError, match=r"sensor 0: \(3, 6, 7\) .* against \(6, 7, 3\) .*: DIFFERENT\n.*equal"
    ):
        fit(demonstration, channels_last)
    with pytest.raises(DemonstrationError, match=r"actions: .*: DIFFERENT"):
        fit(demonstration, spec._replace(action_spec=ActionSpec(2, ())))


@pytest.mark.parametrize("recorded", [(45,), (27, 18)])
def test_concatenated_vectors_fit_where_that_is_unambiguous(tmp_path: Path, recorded: tuple[int, ...]) -> None:
    spec = BehaviorSpec([sensor(size) for size in recorded] + [sensor(3, 6, 7)], HYBRID)
    demonstration = load(write(tmp_path / "ours.demo", spec, records(spec)))
    wanted = (27, 18) if recorded == (45,) else (45,)
    behavior = BehaviorSpec([sensor(3, 6, 7)] + [sensor(size) for size in wanted], HYBRID)
    fitted = fit(demonstration, behavior)
    assert [column.shape[1:] for column in fitted.observations] == [(3, 6, 7), *((size,) for size in wanted)]
    for now, before in ((fitted.observations, demonstration.observations),):
        np.testing.assert_array_equal(np.concatenate(now[1:], 1), np.concatenate(before[:-1], 1))
        np.testing.assert_array_equal(now[0], before[-1])
    for other in ((20, 25, 1), (27, 17), (40, 5) if recorded == (27, 18) else (46,)):
        with pytest.raises(DemonstrationError, match="DIFFERENT"):
            fit(demonstration, BehaviorSpec([sensor(3, 6, 7)] + [sensor(size) for size in other], HYBRID))


@needs_unitys_files
def test_an_old_demonstration_fits_the_behavior_of_a_newer_package() -> None:
    demonstration = load(UNITYS_FILES / "ExpertGridWorld.demo")
    fit(demonstration, BehaviorSpec([sensor(3, 64, 84)], ActionSpec(0, (5,))))


def test_uncompressed_images_of_unitys_packages_are_channels_last(tmp_path: Path) -> None:
    """Unity's files declare C×H×W; without our marker, our file is read like them."""
    spec = BehaviorSpec([sensor(3, 6, 7)], ActionSpec(1, ()))
    added = records(spec, "float32")
    data = write(tmp_path / "ours.demo", spec, added, "float32").read_bytes()
    unitys = tmp_path / "unitys.demo"
    unitys.write_bytes(_without_mark(data))
    declared, memory = added[0]["observations"][0], load(unitys, "float32").observations[0][0]
    np.testing.assert_array_equal(memory.transpose(1, 2, 0).ravel(), declared.ravel())
    np.testing.assert_array_equal(load(unitys, "float32", uncompressed_layout="CHW").observations[0][0], declared)


# Which record contains the action for an observation


def test_an_action_is_taken_from_the_record_where_the_program_that_wrote_the_file_put_it(tmp_path: Path) -> None:
    spec, added = _vector_demonstration()
    data = write(tmp_path / "ours.demo", spec, added).read_bytes()
    path = tmp_path / "changed.demo"
    written = [np.zeros(2) if one["action"] is None else one["action"].continuous[0] for one in added]
    starts = np.array([i for i, one in enumerate(added[:-1]) if one["action"] is not None])

    def read(content: bytes, **options: str) -> list[Array]:
        path.write_bytes(content)
        return list(load(path, **options).actions.continuous)

    np.testing.assert_array_equal(read(data), np.array(written, np.float32)[starts])
    np.testing.assert_array_equal(read(data, action_record="next"), np.array(written, np.float32)[starts + 1])
    recorded = _without_mark(data)  # as Unity's recorder writes: the action that led to the observation
    np.testing.assert_array_equal(read(recorded), np.array(written, np.float32)[starts + 1])
    np.testing.assert_array_equal(read(recorded, action_record="same"), np.array(written, np.float32)[starts])
    converted = _with_pair(recorded, len(added) - 1, _no_action)
    np.testing.assert_array_equal(read(converted), np.array(written, np.float32)[starts])


@needs_unitys_files
def test_actions_of_unitys_3dball_tilt_the_platform_at_once() -> None:
    demonstration = load(UNITYS_FILES / "Expert3DBall.demo")
    turned = demonstration.next_observations[0][:, :2] - demonstration.observations[0][:, :2]
    for axis in range(2):  # about z, then x: five ticks of two degrees
        acted = np.clip(demonstration.actions.continuous[:, axis], -1, 1)
        assert np.corrcoef(acted, turned[:, axis])[0, 1] > 0.99


@needs_unitys_files
def test_actions_of_unitys_gridworld_move_the_agent_at_once() -> None:
    demonstration = load(UNITYS_FILES / "ExpertGridWorld.demo")
    up_down_left_right = np.array([[0, 0], [0, -1], [0, 1], [-1, 0], [1, 0]])
    places = []
    for column in (demonstration.observations[0], demonstration.next_observations[0]):
        blue = (column[:, 2] > 150) & (column[:, 0] < 130)
        places.append([np.argwhere(image).mean(0)[::-1] / 12.4 for image in blue])
    moved = np.rint(np.subtract(places[1], places[0]))
    as_acted = (moved == up_down_left_right[demonstration.actions.discrete[:, 0]]).all(1)
    # That package wrote "do nothing" at the end of an episode of one decision, of which there are two.
    assert (~as_acted).sum() == 2
    lengths = np.diff(demonstration.episodes, axis=1)[:, 0]
    assert (np.repeat(lengths, lengths)[~as_acted] == 1).all()


# Unity's loader

READ_AS_UNITY_DOES = """
import sys
import numpy as np
from mlagents.trainers.buffer import BufferKey
from mlagents.trainers.demo_loader import demo_to_buffer, load_demonstration
from mlagents.trainers.trajectory import ObsUtil
for line in sys.stdin:
    path, output, transitions = line.rstrip().split("\\t")
    spec, pairs, total = load_demonstration(path)
    columns = {"total": total, "reward": [pair.agent_info.reward for pair in pairs],
               "done": [pair.agent_info.done for pair in pairs], "branches": spec.action_spec.discrete_branches}
    if transitions == "True":
        _, buffer = demo_to_buffer(path, 1)
        columns.update(rewards=buffer[BufferKey.ENVIRONMENT_REWARDS], ends=buffer[BufferKey.DONE])
        for name, key in (("continuous", BufferKey.CONTINUOUS_ACTION), ("discrete", BufferKey.DISCRETE_ACTION)):
            if key in buffer:
                columns[name] = buffer[key]
        for i in range(len(spec.observation_specs)):
            columns[f"obs_{i}"] = buffer[ObsUtil.get_name_at(i)]
    np.savez(output, **{name: np.array(column) for name, column in columns.items()})
    print("read", flush=True)
"""

Assertion = Callable[[Path, bool], None]


@pytest.fixture(scope="module")
def assert_unity_reads_the_same(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assertion]:
    """Unity's arrays contain every record except the last; ours contain those that are not done."""
    output = tmp_path_factory.mktemp("unity") / "unity.npz"
    command = [os.environ["UNITY_GYM_PEER_PYTHON"], "-c", READ_AS_UNITY_DOES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as unitys_loader:
        assert unitys_loader.stdin is not None
        assert unitys_loader.stdout is not None
        requests, answers = unitys_loader.stdin, unitys_loader.stdout

        def assert_reads_the_same(path: Path, transitions: bool) -> None:
            print(path, output, transitions, sep="\t", file=requests, flush=True)
            assert answers.readline() == "read\n"
            _compare(np.load(output), load(path, visual_dtype="float32", action_record="same"), transitions)

        yield assert_reads_the_same
        requests.close()


def _compare(unity: Mapping[str, Array], ours: Demonstration, transitions: bool) -> None:
    assert unity["total"] == ours.headers[0].number_steps
    np.testing.assert_array_equal(unity["reward"].astype(np.float32), ours.record_rewards)
    np.testing.assert_array_equal(unity["done"], ours.record_done)
    assert tuple(unity["branches"]) == ours.spec.action_spec.discrete_branches
    if not transitions:
        return
    np.testing.assert_array_equal(unity["rewards"][ours.rows].astype(np.float32), ours.rewards)
    np.testing.assert_array_equal(unity["ends"][ours.rows], ours.terminated | ours.truncated)
    for name in ("continuous", "discrete"):
        if getattr(ours.actions, name).shape[1]:
            np.testing.assert_array_equal(unity[name][ours.rows], getattr(ours.actions, name))
    for index, (column, following) in enumerate(zip(ours.observations, ours.next_observations, strict=True)):
        expected = unity[f"obs_{index}"]
        np.testing.assert_array_equal(expected[ours.rows], column)
        # Files with the next episode's observation in the record of an end have no last observation.
        within, seen = ours.rows + 1 < len(expected), ours.next_rows == ours.rows + 1
        np.testing.assert_array_equal(expected[ours.rows[within & seen] + 1], following[within & seen])
        np.testing.assert_array_equal(column[~seen], following[~seen])
        assert (ours.terminated | ours.truncated)[~seen].all()


@needs_peer
@needs_unitys_files
@pytest.mark.parametrize("name", [row[0] for row in REFERENCE])
def test_unitys_loader_reads_unitys_files_as_we_do(assert_unity_reads_the_same: Assertion, name: str) -> None:
    # Its newest version cannot make transitions of images that are H×W×C.
    assert_unity_reads_the_same(UNITYS_FILES / f"{name}.demo", name != "ExpertGridWorld")


@needs_peer
@pytest.mark.parametrize("visual_dtype", ["uint8", "float32"])
@pytest.mark.parametrize("kind", SPECS)
def test_unitys_loader_reads_our_files(
    assert_unity_reads_the_same: Assertion, tmp_path: Path, kind: str, visual_dtype: str
) -> None:
    path = write(tmp_path / "ours.demo", SPECS[kind], records(SPECS[kind], visual_dtype), visual_dtype)
    assert_unity_reads_the_same(path, True)


# Recording of an environment


def count_up(observation: Array) -> int:
    """Basic's optimal policy: always right."""
    assert observation.shape == (20,)
    return 2


def test_a_policy_is_recorded_for_whole_episodes(tmp_path: Path) -> None:
    env = gym.make("Unity-Basic-v0")
    demonstration = record(env, count_up, tmp_path / "basic.demo", n_episodes=3)
    env.reset()  # still open
    spec = env.unwrapped.table.spec  # type: ignore[attr-defined]
    env.close()
    fit(demonstration, spec)
    assert demonstration.episodes.tolist() == [[0, 7], [7, 14], [14, 21]]
    assert demonstration.terminated.sum() == 3
    assert (demonstration.actions.discrete == 2).all()
    assert demonstration.observations[0].argmax(axis=1)[:7].tolist() == list(range(10, 17))
    assert demonstration.next_observations[0].argmax(axis=1)[:7].tolist() == list(range(11, 18))
    np.testing.assert_allclose(demonstration.rewards[:7], [-0.01] * 6 + [0.99], rtol=1e-5)
    assert demonstration.headers[0].mean_reward == pytest.approx(0.93)


class Recurrent:
    """A policy with the interface of SB3's recurrent and masked policies."""

    def predict(
        self, observation: Array, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[int, int]:
        assert deterministic
        assert episode_start.tolist() == [state is None]
        assert observation.shape == (20,)
        return 2, 0 if state is None else state + 1


def test_a_model_keeps_its_recurrent_state_within_an_episode(tmp_path: Path) -> None:
    env = gym.make("Unity-Basic-v0")
    demonstration = record(env, Recurrent(), tmp_path / "basic.demo", n_episodes=2)
    env.close()
    assert len(demonstration) == 14


def test_every_step_of_a_wrapped_environment_is_recorded(tmp_path: Path) -> None:
    env = RecordDemonstration(gym.make("Unity-3DBall-v0"), tmp_path / "ball.demo")
    observation, _ = env.reset(seed=3)
    env.action_space.seed(3)
    rows = []
    for step in range(60):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, reward, terminated, truncated, following))
        observation = following
        if terminated or truncated or step == 9:
            observation, _ = env.reset()
    env.close()
    observations, actions, rewards, terminated_, _, following_ = map(np.array, zip(*rows, strict=True))
    demonstration = load(tmp_path / "ball.demo")
    np.testing.assert_array_equal(demonstration.observations[0], observations)
    np.testing.assert_array_equal(demonstration.next_observations[0], following_)
    np.testing.assert_array_equal(demonstration.actions.continuous, actions)
    np.testing.assert_array_equal(demonstration.rewards, rewards.astype(np.float32))
    np.testing.assert_array_equal(demonstration.terminated, terminated_)
    assert terminated_.any()
    cut = np.isin(np.arange(60), [9, 59]) & ~terminated_
    np.testing.assert_array_equal(demonstration.truncated, cut)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_and_masks_of_a_wrapped_environment_are_recorded(dtype: str, tmp_path: Path) -> None:
    env = RecordDemonstration(gym.make("Unity-GridWorld-v0", visual_dtype=dtype), tmp_path / "grid.demo")
    env.reset(seed=0)
    table = cast(UnitySingleAgentEnv, env.unwrapped).table
    seen, masks = [], []
    for _ in range(5):
        seen.append([array[0].copy() for array in table.observations])
        masks.append(table.action_mask[0].copy())
        env.step(int(masks[-1].nonzero()[0][-1]))
    env.close()
    demonstration = load(tmp_path / "grid.demo", dtype)
    for actual, expected in zip(demonstration.observations, zip(*seen, strict=True), strict=True):
        assert actual.dtype == expected[0].dtype
        np.testing.assert_array_equal(actual, expected)
    assert not np.all(masks)
    np.testing.assert_array_equal(demonstration.action_masks, masks)


def test_a_limit_around_the_environment_truncates_the_demonstration(tmp_path: Path) -> None:
    env = RecordDemonstration(gym.make("Unity-Basic-v0", max_episode_steps=3), tmp_path / "basic.demo")
    for _ in range(2):
        env.reset()
        while not any(env.step(0)[2:4]):
            pass
    env.close()
    demonstration = load(tmp_path / "basic.demo")
    assert demonstration.truncated.tolist() == [False, False, True] * 2
    assert (demonstration.next_observations[0].argmax(axis=1) == 10).all()


def test_only_environments_that_can_be_recorded_are_wrapped(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match="CartPole"):
        RecordDemonstration(gym.make("CartPole-v1"), tmp_path / "pole.demo")
    env = gym.make("Unity-3DBall-v0")
    unused = RecordDemonstration(env, tmp_path / "ball.demo")
    unused.close()
    assert list(tmp_path.iterdir()) == []


def make_balls() -> Any:
    return gym.make_vec("Unity-3DBall-v0", num_envs=12, autoreset_mode="SameStep")


@pytest.mark.parametrize(
    ("make", "given", "received"),
    [
        (lambda: vector_wrappers.RescaleAction(make_balls(), np.float32(0), np.float32(1)), 0.25, -0.5),
        (lambda: vector_wrappers.TransformAction(make_balls(), np.negative), 0.25, -0.25),
        (
            lambda: gym.wrappers.TransformAction(env := gym.make("Unity-3DBall-v0"), np.negative, env.action_space),
            1,
            -1,
        ),
        (lambda: gym.wrappers.RescaleAction(gym.make("Unity-3DBall-v0"), np.float32(0), np.float32(1)), 0.25, -0.5),
    ],
)
def test_the_actions_that_unity_receives_are_recorded(
    tmp_path: Path, make: Callable[[], Any], given: float, received: float
) -> None:
    env = make()
    demonstration = record(
        env, lambda _: np.full(env.action_space.shape, given, np.float32), tmp_path / "balls.demo", 2
    )
    env.close()
    assert len(demonstration) > 5
    np.testing.assert_allclose(demonstration.actions.continuous, received)


@pytest.mark.parametrize(("n_episodes", "lengths"), [(3, [4, 4, 4]), (20, [4] * 12)])
def test_an_interrupted_recording_keeps_the_running_episodes(
    tmp_path: Path, n_episodes: int, lengths: list[int]
) -> None:
    env, seen = make_balls(), []

    def choose(observations: Array) -> Array:
        seen.append(observations)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return np.full((12, 2), 0.1 * len(seen), np.float32)

    with pytest.raises(KeyboardInterrupt):
        record(env, choose, tmp_path / "balls.demo", n_episodes, seed=0)
    env.close()
    demonstration = load(tmp_path / "balls.demo")
    assert [end - start for start, end in demonstration.episodes.tolist()] == lengths
    assert demonstration.truncated.tolist() == [False, False, False, True] * len(lengths)
    assert not demonstration.terminated.any()
    for row, (start, end) in enumerate(demonstration.episodes.tolist()):
        expected = np.stack([observations[row] for observations in seen])
        np.testing.assert_array_equal(demonstration.observations[0][start:end], expected[:-1])
        np.testing.assert_array_equal(demonstration.next_observations[0][start:end], expected[1:])
        np.testing.assert_allclose(demonstration.actions.continuous[start:end, 0], [0.1, 0.2, 0.3, 0.4])
        np.testing.assert_allclose(demonstration.rewards[start:end], 0.1)


# Errors of the writer


def test_a_path_that_would_be_lost_or_overwritten_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "ours.demo", *_vector_demonstration())
    before = path.read_bytes()
    with pytest.raises(DemonstrationError, match="there already"):
        DemonstrationWriter(path, "Behavior", SPECS["goal"])
    assert path.read_bytes() == before
    with pytest.raises(DemonstrationError, match="suffix"):
        DemonstrationWriter(tmp_path / "ours.txt", "Behavior", SPECS["goal"])
    with pytest.raises(DemonstrationError, match=r"no folder .*nowhere"):
        DemonstrationWriter(tmp_path / "nowhere" / "ours.demo", "Behavior", SPECS["goal"])
    with pytest.raises(InvalidValueError, match="uint16"):
        DemonstrationWriter(tmp_path / "new.demo", "Behavior", SPECS["goal"], "uint16")


def test_the_records_of_a_killed_process_are_not_overwritten(tmp_path: Path) -> None:
    spec, added = _vector_demonstration()
    with DemonstrationWriter(tmp_path / "ours.demo", "Behavior", spec) as writer:
        for one in added:
            writer.add(**one)
        with pytest.raises(DemonstrationError, match=r"ours\.demo\.part is there already.*renaming it"):
            DemonstrationWriter(writer.path, "Behavior", spec)
    assert_holds(load(tmp_path / "ours.demo"), added)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"observations": [np.zeros(5, np.float32)]}, DemonstrationError, r"float32 \(4,\), got float32 \(5,\)"),
        ({"observations": [np.zeros(4)]}, DemonstrationError, r"got float64 \(4,\)"),
        ({"observations": []}, DemonstrationError, "observes"),
        ({"observations": [np.full(4, np.nan, np.float32)]}, DemonstrationError, "NaN"),
        ({"reward": np.inf}, DemonstrationError, "finite"),
        ({"action": None}, DemonstrationError, "has an action"),
        ({"action": ActionTuple(np.zeros((1, 3)))}, ActionError, r"\(1, 3\)"),
        ({"action_mask": np.ones(3, bool)}, DemonstrationError, r"\(0,\).*\(3,\)"),
    ],
)
def test_a_record_that_does_not_fit_raises_and_the_others_are_kept(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    spec, added = _vector_demonstration()
    path = tmp_path / "ours.demo"
    with DemonstrationWriter(path, "Behavior", spec) as writer:
        for one in added:
            writer.add(**one)
        with pytest.raises(error, match=match):
            writer.add(**(added[0] | change))
    assert_holds(load(path), added)
    with pytest.raises(NotReadyError, match="closed"):
        writer.add(**added[0])


def test_a_demonstration_without_records_leaves_no_file(tmp_path: Path) -> None:
    with DemonstrationWriter(tmp_path / "ours.demo", "Behavior", SPECS["goal"]):
        pass
    assert list(tmp_path.iterdir()) == []


# Broken files


def _vector_demonstration() -> tuple[BehaviorSpec, list[dict[str, Any]]]:
    return SPECS["vector, continuous"], records(SPECS["vector, continuous"])


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A demonstration with an image, masks and hybrid actions."""
    spec = SPECS["4 channels"]
    return write(tmp_path_factory.mktemp("intact") / "ours.demo", spec, records(spec, lengths=(2, 2))).read_bytes()


def load_bytes(data: bytes) -> Demonstration:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.demo"
        path.write_bytes(data)
        return load(path)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_truncated_demonstration_raises_with_the_file_name(intact: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(intact) - 1))
    with pytest.raises(DemonstrationError, match=r"broken\.demo"):
        load_bytes(intact[:length])


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_damaged_demonstration_is_read_or_raises_a_unity_gym_error(intact: bytes, data: st.DataObject) -> None:
    damaged = bytearray(intact)
    for position in data.draw(st.lists(st.integers(0, len(intact) - 1), min_size=1, max_size=3)):
        damaged[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DemonstrationError):
        demonstration = load_bytes(bytes(damaged))
        assert all(np.isfinite(column).all() for column in demonstration.observations)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "no demonstration.* 0 bytes"),
        (b"# A file of text, which is no demonstration at all.\n" * 9, "no demonstration"),
        (bytes(400), "header counts 0 records"),
        (b"\x02\x08\x07" + bytes(400), "version 7.*0 and 1"),
    ],
)
def test_a_file_that_is_no_demonstration_is_reported(data: bytes, match: str) -> None:
    with pytest.raises(DemonstrationError, match=match):
        load_bytes(data)


def _with_header(data: bytes, **fields: Any) -> bytes:
    meta = DemonstrationMeta.FromString(data[1 : 1 + data[0]])
    for name, value in fields.items():
        setattr(meta, name, value)
    encoded = meta.SerializeToString()
    return (varint(len(encoded)) + encoded).ljust(33, b"\0") + data[33:]


def _split(data: bytes, at: int = 0) -> tuple[bytes, bytes]:
    """Return the length-delimited message at a byte, and the bytes after it."""
    length, shift = 0, 0
    while True:
        byte, at = data[at], at + 1
        length, shift = length | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return data[at : at + length], data[at + length :]


def _delimited(encoded: bytes) -> bytes:
    return varint(len(encoded)) + encoded


def _without_mark(data: bytes) -> bytes:
    """Rewrite the file as if another program had written it."""
    encoded, records = _split(data, 33)
    parameters = BrainParameters.FromString(encoded)
    parameters.ClearField("recorder")
    return data[:33] + _delimited(parameters.SerializeToString()) + records


def _with_pair(data: bytes, number: int, change: Callable[[Any], None]) -> bytes:
    """Change one record."""
    encoded, rest = _split(data, 33)
    for _ in range(number + 1):
        encoded, rest = _split(rest)
    pair = AgentInfoActionPair.FromString(encoded)
    change(pair)
    return data[: -len(_delimited(encoded) + rest)] + _delimited(pair.SerializeToString()) + rest


def test_a_header_that_counts_more_records_than_there_are_raises(intact: bytes) -> None:
    with pytest.raises(DemonstrationError, match="header counts 7 records, the file ends after 6"):
        load_bytes(_with_header(intact, number_steps=7))


def test_bytes_after_the_counted_records_are_not_read(intact: bytes) -> None:
    meta = intact[1 : 1 + intact[0]]
    assert len(load_bytes(intact + meta)) == len(load_bytes(intact)) == 4
    assert len(load_bytes(_with_header(intact, number_steps=2))) == 1


def test_a_demonstration_without_a_transition_raises(intact: bytes) -> None:
    with pytest.raises(DemonstrationError, match="no transition"):
        load_bytes(_with_header(intact, number_steps=1))


def test_a_sensor_with_too_few_dimension_properties_raises(intact: bytes) -> None:
    def drop(pair: Any) -> None:
        del pair.agent_info.observations[0].dimension_properties[2]

    with pytest.raises(DemonstrationError, match=r"sensor 0 .*2 dimension properties for the shape \(4, 6, 7\)"):
        load_bytes(_with_pair(intact, 0, drop))


def _nan(pair: Any) -> None:
    pair.agent_info.observations[1].float_data.data = np.array([np.nan, 0], "<f4").tobytes()


def _no_action(pair: Any) -> None:
    pair.ClearField("action_info")


def _no_sensor(pair: Any) -> None:
    del pair.agent_info.observations[1]


def _no_png(pair: Any) -> None:
    pair.agent_info.observations[0].compressed_data = b"GIF89a"


def _wrong_choice(pair: Any) -> None:
    pair.action_info.discrete_actions = bytes([3, 0, 0])


def _wide_mask(pair: Any) -> None:
    pair.agent_info.action_mask = bytes(4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_nan, "NaN"),
        (_no_action, r"8 bytes, got \[0\]"),
        (_no_sensor, "sensors"),
        (_no_png, "PNG"),
        (_wrong_choice, "outside its branches"),
        (_wide_mask, "masks"),
    ],
)
def test_the_broken_record_is_named(intact: bytes, change: Callable[[Any], None], match: str) -> None:
    with pytest.raises(DemonstrationError, match=rf"byte \d+: record 4: .*{match}"):
        load_bytes(_with_pair(intact, 4, change))


def test_the_whole_records_of_a_demonstration_that_was_never_closed_are_read(tmp_path: Path) -> None:
    spec = SPECS["3 channels"]
    writer = DemonstrationWriter(tmp_path / "ours.demo", "Behavior", spec)
    part = tmp_path / "ours.demo.part"
    every = records(spec, lengths=(30, 20))
    for one in every:
        writer.add(**one)
    writer._file.flush()
    with pytest.warns(UserWarning, match="killed before it closed the file: its 52 whole records are read, 0 bytes"):
        unclosed = load(part)
    writer.close()
    closed = load(tmp_path)
    assert len(unclosed) == len(closed) == 50
    for mine, whole in zip(unclosed.observations, closed.observations, strict=True):
        np.testing.assert_array_equal(mine, whole)
    np.testing.assert_array_equal(unclosed.actions.discrete, closed.actions.discrete)
    np.testing.assert_array_equal(unclosed.episodes, closed.episodes)
    data = _with_header((tmp_path / "ours.demo").read_bytes(), number_steps=0)
    with pytest.warns(UserWarning, match=r"its 51 whole records are read, \d\d+ bytes after them are not"):
        assert len(load_bytes(data[:-3])) == 49
    with pytest.warns(UserWarning, match="its 52 whole records are read, 4096 bytes"):
        assert len(load_bytes(data + bytes(4096))) == 50
    start = len(data) - len(_split(data, 33)[1])
    with pytest.raises(DemonstrationError, match="9 bytes without a whole record"):
        load_bytes(data[: start + 9])


def test_wrong_arguments_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match=r"cannot read the demonstration .*nothing\.demo"):
        load(tmp_path / "nothing.demo")
    with pytest.raises(DemonstrationError, match=r"holds no \.demo file"):
        load(tmp_path)
    with pytest.raises(InvalidValueError, match="float16"):
        load(tmp_path, visual_dtype="float16")
    with pytest.raises(InvalidValueError, match="WHC"):
        load(tmp_path, uncompressed_layout="WHC")
    with pytest.raises(InvalidValueError, match="previous"):
        load(tmp_path, action_record="previous")
    with pytest.raises(DemonstrationError, match="n_episodes"):
        record(gym.make("CartPole-v1"), count_up, tmp_path / "x.demo", n_episodes=0)
