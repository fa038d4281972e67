"""Conversions: specifications to spaces, agent arrays to observations, Gymnasium actions to action arrays."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from unity_gym.errors import ActionError, InvalidValueError
from unity_gym.spaces import ObservationLayout, action_space, action_tuple, single_action_tuple
from unity_gym.specs import ActionSpec, Array, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

INFINITE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def behavior(*sensors: tuple[str, tuple[int, ...]]) -> BehaviorSpec:
    return BehaviorSpec(
        [
            ObservationSpec(shape, (DimensionProperty.NONE,) * len(shape), ObservationType.DEFAULT, name)
            for name, shape in sensors
        ],
        ActionSpec(1, ()),
    )


def arrays_of(spec: BehaviorSpec, n: int, visual_dtype: str = "uint8") -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 2, (n, *sensor.shape)).astype(sensor.array_dtype(visual_dtype))
        for sensor in spec.observation_specs
    ]


MIXED = behavior(("rays", (4,)), ("eye", (3, 8, 9)), ("speed", (2,)), ("friends", (5, 6)))


def test_one_sensor_is_a_plain_box() -> None:
    for observations in ("split", "sensors"):
        assert ObservationLayout(behavior(("vector", (3,))), observations).space == INFINITE
        assert ObservationLayout(behavior(("", (3,))), observations).space == INFINITE
        assert ObservationLayout(behavior(("eye", (3, 8, 9))), observations).space == gym.spaces.Box(
            0, 255, (3, 8, 9), np.uint8
        )


def test_split_concatenates_all_vectors_and_names_every_other_sensor() -> None:
    layout = ObservationLayout(MIXED, "split")
    assert layout.space == gym.spaces.Dict(
        {
            "vector": gym.spaces.Box(-np.inf, np.inf, (6,), np.float32),
            "eye": gym.spaces.Box(0, 255, (3, 8, 9), np.uint8),
            "friends": gym.spaces.Box(-np.inf, np.inf, (5, 6), np.float32),
        }
    )
    arrays = arrays_of(MIXED, 7)
    observations = layout.select(arrays)
    np.testing.assert_array_equal(observations["vector"], np.concatenate([arrays[0], arrays[2]], axis=1))
    np.testing.assert_array_equal(observations["eye"], arrays[1])
    np.testing.assert_array_equal(observations["friends"], arrays[3])


def test_vectors_alone_are_one_plain_box() -> None:
    spec = behavior(("a", (1,)), ("b", (2,)))
    layout = ObservationLayout(spec)
    assert layout.space == INFINITE
    arrays = arrays_of(spec, 5)
    observations = layout.select(arrays)
    np.testing.assert_array_equal(observations, np.concatenate(arrays, axis=1))
    for array, expected in zip(layout.sensor_arrays(observations), arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert isinstance(ObservationLayout(spec, "sensors").space, gym.spaces.Dict)


def test_sensors_gives_one_key_per_sensor() -> None:
    layout = ObservationLayout(MIXED, "sensors")
    assert isinstance(layout.space, gym.spaces.Dict)
    assert {key: box.shape for key, box in layout.space.items()} == {
        "rays": (4,),
        "eye": (3, 8, 9),
        "speed": (2,),
        "friends": (5, 6),
    }
    arrays = arrays_of(MIXED, 2)
    for key, array in zip(("rays", "eye", "speed", "friends"), arrays, strict=True):
        np.testing.assert_array_equal(layout.select(arrays)[key], array)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("", "b"), ["obs_0", "b"]),
        (("twin", "twin", "c"), ["obs_0", "obs_1", "c"]),
        (("vector", "b"), ["obs_0", "b"]),
        (("obs_1", ""), ["obs_0", "obs_1"]),
        (("obs_2", "", ""), ["obs_0", "obs_1", "obs_2"]),
    ],
)
def test_sensors_without_a_name_of_their_own_are_numbered(names: tuple[str, ...], keys: list[str]) -> None:
    spec = behavior(*((name, (size, 2)) for size, name in enumerate(names, 1)))
    for observations in ("split", "sensors"):
        layout = ObservationLayout(spec, observations)
        assert isinstance(layout.space, gym.spaces.Dict)
        assert {key: box.shape for key, box in layout.space.items()} == {
            key: (size, 2) for size, key in enumerate(keys, 1)
        }


def test_an_image_named_vector_is_separate_from_the_vectors() -> None:
    space = ObservationLayout(behavior(("vector", (3, 8, 9)), ("speed", (2,)))).space
    assert isinstance(space, gym.spaces.Dict)
    assert {key: box.shape for key, box in space.items()} == {"obs_0": (3, 8, 9), "vector": (2,)}


@pytest.mark.parametrize(
    ("visual_dtype", "box"),
    [("uint8", gym.spaces.Box(0, 255, (3, 4, 4), np.uint8)), ("float32", gym.spaces.Box(0, 1, (3, 4, 4), np.float32))],
)
def test_images_have_the_requested_dtype_and_range(visual_dtype: str, box: gym.spaces.Box) -> None:
    assert ObservationLayout(behavior(("eye", (3, 4, 4))), visual_dtype=visual_dtype).space == box


@pytest.mark.parametrize("observations", ["split", "sensors"])
@pytest.mark.parametrize(
    "spec",
    [MIXED, behavior(("eye", (3, 8, 9))), behavior(("a", (2,)), ("b", (1,))), behavior(("height", ()), ("a", (0,)))],
)
def test_every_selected_observation_lies_in_the_space(spec: BehaviorSpec, observations: str) -> None:
    layout = ObservationLayout(spec, observations)
    arrays = arrays_of(spec, 4)
    for row in range(4):
        assert layout.select(arrays, row) in layout.space
    batch = layout.select(arrays, np.array([3, 1]))
    one = layout.select(arrays, 3)
    for key in one if isinstance(one, dict) else [...]:
        np.testing.assert_array_equal(batch[key][0], one[key])


@pytest.mark.parametrize("observations", ["split", "sensors"])
@pytest.mark.parametrize("spec", [MIXED, behavior(("a", (2,)))])
def test_a_selection_does_not_change_with_the_agent_arrays(spec: BehaviorSpec, observations: str) -> None:
    layout = ObservationLayout(spec, observations)
    arrays = arrays_of(spec, 3)
    for rows in (slice(None), 1, np.array([0, 2])):
        selected = layout.select(arrays, rows)
        parts = list(selected.values()) if isinstance(selected, dict) else [selected]
        assert not any(np.shares_memory(part, array) for part in parts for array in arrays)


@pytest.mark.parametrize("observations", ["split", "sensors"])
@pytest.mark.parametrize("spec", [MIXED, behavior(("a", (2,))), behavior(("height", ()))])
def test_rows_of_a_selection_can_be_overwritten(spec: BehaviorSpec, observations: str) -> None:
    layout = ObservationLayout(spec, observations)
    old, new = arrays_of(spec, 4), [array + 1 for array in arrays_of(spec, 2)]
    selected = layout.select(old)
    layout.overwrite(selected, np.array([3, 0]), layout.select(new))
    for array, replacement in zip(old, new, strict=True):
        array[[3, 0]] = replacement
    expected = layout.select(old)
    for key in expected if isinstance(expected, dict) else [...]:
        np.testing.assert_array_equal(selected[key], expected[key])


def test_an_unknown_observation_mode_raises_and_lists_the_valid_ones() -> None:
    with pytest.raises(InvalidValueError, match="'split' or 'sensors', got 'stacked'"):
        ObservationLayout(MIXED, "stacked")


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (ActionSpec(2, ()), gym.spaces.Box(-1, 1, (2,), np.float32)),
        (ActionSpec(0, (5,)), gym.spaces.Discrete(5)),
        (ActionSpec(0, (3, 2)), gym.spaces.MultiDiscrete([3, 2])),
        (
            ActionSpec(2, (5,)),
            gym.spaces.Dict(continuous=gym.spaces.Box(-1, 1, (2,), np.float32), discrete=gym.spaces.Discrete(5)),
        ),
        (
            ActionSpec(1, (3, 2)),
            gym.spaces.Dict(
                continuous=gym.spaces.Box(-1, 1, (1,), np.float32), discrete=gym.spaces.MultiDiscrete([3, 2])
            ),
        ),
    ],
)
def test_actions_of_a_space_are_converted_to_arrays(spec: ActionSpec, space: gym.Space[Any]) -> None:
    assert action_space(spec) == space
    batch = gym.vector.utils.batch_space(space, 6)
    batch.seed(0)
    actions = batch.sample()
    converted = action_tuple(spec, actions, 6)
    spec.validate(converted, 6, "Ball")
    assert converted.continuous.dtype == np.float32
    assert converted.discrete.dtype == np.int32
    continuous, discrete = (
        (actions["continuous"], actions["discrete"]) if isinstance(actions, dict) else (actions, actions)
    )
    if spec.continuous_size:
        np.testing.assert_array_equal(converted.continuous, continuous)
    if spec.discrete_size:
        np.testing.assert_array_equal(converted.discrete, np.reshape(discrete, (6, -1)))


def test_a_behavior_without_actions_raises_with_a_remedy() -> None:
    with pytest.raises(ActionError, match=r"no actions.*give its agents an actuator"):
        action_space(ActionSpec(0, ()))


@pytest.mark.parametrize(
    ("spec", "actions", "message"),
    [
        (ActionSpec(2, ()), np.zeros((3, 1)), r"continuous actions of 4 agents .* \(4, 2\), got \(3, 1\)"),
        (ActionSpec(2, ()), np.zeros(4), r"\(4, 2\), got \(4,\)"),
        (ActionSpec(2, ()), [[0.0, 0.0]] * 3 + [[0.0]], r"\(4, 2\), got rows of different shapes"),
        (ActionSpec(0, (3,)), np.zeros((4, 2), int), r"discrete actions of 4 agents .* \(4, 1\), got \(4, 2\)"),
        (ActionSpec(0, (3,)), np.full(4, 0.5), "no branch with the index 0.5"),
        (ActionSpec(0, (3,)), np.array(["a"] * 4), "integer array.*<U1"),
        (ActionSpec(1, ()), np.array(["a"] * 4), "float array.*<U1"),
        (ActionSpec(1, (3,)), np.zeros((4, 2)), "a dict of 'continuous'.*got ndarray"),
        (ActionSpec(1, (3,)), {"continuous": np.zeros((4, 1))}, r"a dict of .* got dict \['continuous'\]"),
    ],
)
def test_actions_that_do_not_fit_raise_with_the_expected_space(spec: ActionSpec, actions: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        action_tuple(spec, actions, 4)


@pytest.mark.parametrize("action", [([0.0, 0.0], 1), {"continuous": [0.0, [0.0]], "discrete": 1}, [0.0, 0.0, 1]])
def test_one_agents_action_that_does_not_fit_raises_with_the_space(action: Any) -> None:
    with pytest.raises(ActionError, match=r"the action must fit Dict\('continuous': Box.*, 'discrete': Discrete"):
        single_action_tuple(ActionSpec(2, (2,)), action)
