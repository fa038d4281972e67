"""Encoders, attention, goal conditioning, memory and normalization of `NetworkBody`."""

import numpy as np
import pytest
import torch

from sb3_ext.networks import NetworkBody, NetworkSettings, RunningNormalization
from sb3_ext.networks.conditioning import GoalConditionedLayer
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

NONE = DimensionProperty.NONE
GOAL = ObservationType.GOAL_SIGNAL


def sensor(*shape: int, kind: ObservationType = ObservationType.DEFAULT, variable: bool = False) -> ObservationSpec:
    first = DimensionProperty.VARIABLE_SIZE if variable else NONE
    return ObservationSpec(shape, (first, *[NONE] * (len(shape) - 1)), kind, "")


def body(*sensors: ObservationSpec, **settings: object) -> NetworkBody:
    torch.manual_seed(0)
    return NetworkBody(BehaviorSpec(list(sensors), ActionSpec(2, ())), NetworkSettings(**settings))  # type: ignore[arg-type]


def test_a_vector_body_consists_of_dense_layers_with_swish() -> None:
    net = body(sensor(3), sensor(2), hidden_units=16, num_layers=3)
    first, second = torch.randn(7, 3), torch.randn(7, 2)
    features, memory = net([first, second])
    x = torch.cat([first, second], 1)
    for layer in (0, 2, 4):
        x = x @ net.layers[layer].weight.T + net.layers[layer].bias
        x = x * torch.sigmoid(x)
    torch.testing.assert_close(features, x)
    assert memory is None
    assert net.features == 16


def test_body_weights_keep_the_variance_of_their_input() -> None:
    net = body(sensor(400), hidden_units=500, num_layers=1)
    assert net.layers[0].weight.std().item() == pytest.approx(1 / 20, rel=0.02)
    assert not net.layers[0].bias.any()


@pytest.mark.parametrize(
    ("kind", "side", "convolutions", "flat"),
    [
        ("fully_connected", 4, [], 3 * 16),
        ("match3", 9, [(35, 3, 3, 3), (144, 35, 3, 3)], 144 * 25),
        ("simple", 36, [(16, 3, 8, 8), (32, 16, 4, 4)], 32 * 9),
        ("nature_cnn", 36, [(32, 3, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)], 64),
        ("resnet", 15, [(16, 3, 3, 3), *[(16, 16, 3, 3)] * 4], 32),
    ],
)
def test_visual_encoders_have_unitys_layers(kind: str, side: int, convolutions: list, flat: int) -> None:
    net = body(sensor(3, side, side), vis_encode_type=kind, hidden_units=32)
    modules = list(net.encoders[0].modules())
    found = [tuple(module.weight.shape) for module in modules if isinstance(module, torch.nn.Conv2d)]
    assert found[: len(convolutions)] == convolutions
    dense = next(module for module in modules if isinstance(module, torch.nn.Linear))
    assert dense.weight.shape == (32, flat)
    assert dense.weight.std().item() == pytest.approx(1.41 / flat**0.5, rel=0.1)
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    features, _ = net([images])
    assert features.shape == (2, 32)
    torch.testing.assert_close(features, net([images.float() / 255])[0])


def test_images_too_small_for_their_encoder_raise_with_the_minimum() -> None:
    with pytest.raises(UnityGymError, match=r"16×16.*fully_connected.*match3"):
        body(sensor(3, 16, 16), vis_encode_type="simple")
    with pytest.raises(InvalidValueError, match="nature_cnn"):
        body(sensor(3, 84, 84), vis_encode_type="nature")


def test_a_goal_that_is_an_image_trains_its_encoder() -> None:
    net = body(sensor(1, 8, 8, kind=GOAL), sensor(4), vis_encode_type="match3", hidden_units=8).double()
    observations = [torch.rand(5, 1, 8, 8, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)]
    weight = net.encoders[0][0].weight

    def output(change: float) -> torch.Tensor:
        with torch.no_grad():
            weight[0, 0, 1, 1] += change
        return net(observations)[0].square().sum()

    output(0).backward()
    slope = (output(1e-5) - output(-2e-5)).item() / 2e-5
    assert weight.grad[0, 0, 1, 1].item() == pytest.approx(slope, rel=1e-4)


def test_attention_starts_with_small_weights() -> None:
    net = body(sensor(60), sensor(6, 60, variable=True))
    layers = [module for module in net.attention.modules() if isinstance(module, torch.nn.Linear)]
    assert len(layers) == 6
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx((0.125 / 128) ** 0.5, rel=0.03)


def test_absent_entities_and_the_order_of_entities_have_no_effect() -> None:
    net = body(sensor(4), sensor(6, 3, variable=True), sensor(2, 5, variable=True))
    own, more = torch.randn(3, 4), torch.randn(3, 2, 5)
    entities = torch.randn(3, 6, 3)
    entities[:, 4:] = 0
    expected = net([own, entities, more])[0]
    torch.testing.assert_close(net([own, entities[:, [3, 5, 1, 0, 4, 2]], more])[0], expected)
    shorter = body(sensor(4), sensor(4, 3, variable=True), sensor(2, 5, variable=True))
    shorter.load_state_dict(net.state_dict())
    torch.testing.assert_close(shorter([own, entities[:, :4], more])[0], expected)


def test_an_entity_of_small_values_counts_and_no_entity_at_all_does_not_raise() -> None:
    net = body(sensor(4), sensor(3, 2, variable=True))
    own = torch.randn(1, 4)
    without_entities = net([own, torch.zeros(1, 3, 2)])[0]
    faint = torch.zeros(1, 3, 2)
    faint[0, 0, 0] = 0.01
    assert torch.isfinite(without_entities).all()
    assert not torch.allclose(net([own, faint])[0], without_entities)


def test_entities_without_another_observation_are_supported() -> None:
    features, _ = body(sensor(3, 2, variable=True), hidden_units=8)([torch.randn(5, 3, 2)])
    assert features.shape == (5, 8)


@pytest.mark.parametrize(
    "unsupported",
    [sensor(2, 2, 2, 2), sensor(5, 2), sensor(), sensor(0, 4, variable=True)],
    ids=["4 dimensions", "no entities", "no dimension", "room for no entity"],
)
def test_a_sensor_that_no_encoder_supports_raises(unsupported: ObservationSpec) -> None:
    with pytest.raises(UnityGymError, match="in a form that no network takes"):
        body(sensor(3), unsupported)


def test_the_goal_signal_generates_the_last_layer() -> None:
    net = body(sensor(3), sensor(2, kind=GOAL), hidden_units=8, num_layers=2)
    assert len(net.layers) == 2  # one dense layer and its swish are left
    vector, goal = torch.randn(6, 3), torch.randn(6, 2)
    x = net.layers(torch.cat([vector, goal], 1))
    weights = net.goal_layer.weights(goal).reshape(6, 8, 8)
    expected = torch.nn.functional.silu(torch.einsum("ni,nio->no", x, weights))
    torch.testing.assert_close(net([vector, goal])[0], expected)
    plain = body(sensor(3), sensor(2, kind=GOAL), hidden_units=8, goal_conditioning_type="none")
    assert plain.goal_layer is None
    with pytest.raises(UnityGymError, match="variable length"):
        body(sensor(3, 2, kind=GOAL, variable=True))


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_the_number_of_different_goals_changes_neither_outputs_nor_gradients(count: int) -> None:
    layer = GoalConditionedLayer(7, 6, count).double()
    x, goal = torch.randn(12, 7, dtype=torch.float64), torch.eye(count, dtype=torch.float64)[torch.arange(12) % count]
    outputs = layer(x, goal)
    expected = torch.nn.functional.silu(torch.einsum("ni,nio->no", x, layer.weights(goal).reshape(12, 7, 6)))
    torch.testing.assert_close(outputs, expected)
    direction = torch.randn_like(outputs)
    parameters = list(layer.weights.parameters())
    gradients = [torch.autograd.grad(each, parameters, direction) for each in (outputs, expected)]
    torch.testing.assert_close(*gradients)


def test_a_convolution_over_the_whole_image_is_a_convolution() -> None:
    encoder = body(sensor(6, 20, 20), hidden_units=8).encoders[0].double()
    images = torch.rand(5, 6, 20, 20, dtype=torch.float64)
    first, second, dense = encoder[0], encoder[2], encoder[5]
    x = torch.nn.functional.leaky_relu(torch.nn.functional.conv2d(images, first.weight, first.bias, 4))
    assert x.shape[2:] == second.weight.shape[2:]
    x = torch.nn.functional.leaky_relu(torch.nn.functional.conv2d(x, second.weight, second.bias, 2))
    expected = torch.nn.functional.leaky_relu(dense(x.flatten(1)))
    torch.testing.assert_close(encoder(images), expected)
    gradients = [torch.autograd.grad(each.sum(), list(encoder.parameters())) for each in (encoder(images), expected)]
    torch.testing.assert_close(*gradients)


def test_an_lstm_over_a_sequence_equals_single_steps() -> None:
    net = body(sensor(3), hidden_units=8, memory_size=12, sequence_length=5)
    rows, start = torch.randn(4, 5, 3), torch.randn(4, 12)
    features, end = net([rows.reshape(20, 3)], start, 5)
    assert net.features == features.shape[1] == 6
    memory = start
    for step in range(5):
        now, memory = net([rows[:, step]], memory)
        torch.testing.assert_close(features.reshape(4, 5, 6)[:, step], now)
    torch.testing.assert_close(end, memory)
    torch.testing.assert_close(features.reshape(4, 5, 6)[:, -1], end[:, :6])


def test_the_forget_gate_starts_at_one() -> None:
    lstm = body(sensor(3), memory_size=12).memory.lstm
    bias = lstm.bias_ih_l0 + lstm.bias_hh_l0
    np.testing.assert_array_equal(bias.detach().numpy(), np.repeat([0, 1, 0, 0], 6))


def test_each_gate_of_the_memory_starts_with_xavier_weights() -> None:
    """Glorot and Bengio 2010: uniform up to √(6 / (inputs + outputs))."""
    lstm = body(sensor(3), memory_size=60, hidden_units=90).memory.lstm
    for weight in (lstm.weight_ih_l0, lstm.weight_hh_l0):
        for gate in weight.chunk(4):
            assert gate.shape == (30, weight.shape[1])
            assert gate.abs().max().item() == pytest.approx((6 / sum(gate.shape)) ** 0.5, rel=0.02)


def test_running_statistics_are_those_of_all_rows_at_once() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(1e4, 0.01, (30_000, 2)).astype(np.float32)
    running = RunningNormalization(2)
    for part in np.array_split(rows, 97):
        running.update(torch.from_numpy(part))
    # as if one row of zeros with a sum of squares of one had come first
    everything = rows.astype(np.float64)
    count = len(rows) + 1
    mean = everything.sum(0) / count
    squares = ((everything - everything.mean(0)) ** 2).sum(0) + 1 + everything.mean(0) ** 2 * len(rows) / count
    np.testing.assert_allclose(running.mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(running.squares.numpy(), squares, rtol=1e-9)
    x = torch.from_numpy(rng.normal(1e4, 100, (50, 2)))
    expected = np.clip((x.numpy() - mean) / np.sqrt(squares / count), -5, 5)
    np.testing.assert_allclose(running(x).numpy(), expected, rtol=1e-9)


def test_statistics_are_saved_with_the_network_and_shared_with_a_second_body() -> None:
    net = body(sensor(3), sensor(3, 20, 20), normalize=True)
    spec = BehaviorSpec([sensor(3), sensor(3, 20, 20)], ActionSpec(2, ()))
    twin = NetworkBody(spec, net.settings, net.normalization)
    net.update_normalization([torch.randn(100, 3) * 5 + 2, torch.zeros(100, 3, 20, 20)])
    assert twin.normalization is net.normalization
    other = body(sensor(3), sensor(3, 20, 20), normalize=True)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.normalization.mean, net.normalization.mean)
    assert not other.normalization.fresh


@pytest.mark.parametrize("wrong", [{"hidden_units": 0}, {"memory_size": 7}, {"memory_size": -2}, {"num_layers": 0}])
def test_invalid_sizes_raise(wrong: dict) -> None:
    with pytest.raises(UnityGymError, match=next(iter(wrong))):
        NetworkSettings(**wrong)
