"""Images of every memory layout, compared with expected images."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from stand_ins.reply_messages import EQUIVARIANT, NONE, Agent, Sensor, messages
from unity_gym.errors import ProtocolError
from unity_gym.specs import ActionSpec, Array, DimensionProperty
from unity_gym.wire.decode import BehaviorDecoder
from unity_gym.wire.images import sends_channels_last

CHANNELS_FIRST, CHANNELS_LAST = (NONE, EQUIVARIANT, EQUIVARIANT), (EQUIVARIANT, EQUIVARIANT, NONE)
HEIGHT, WIDTH = 5, 7


def random_image(channels: int, seed: int = 0) -> Array:
    """Random bytes, uint8 (channels, height, width)."""
    return np.random.default_rng(seed).integers(0, 256, (channels, HEIGHT, WIDTH), dtype=np.uint8)


def png(planes: Array, mode: str = "RGB") -> bytes:
    """One PNG of three planes."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0))).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def pngs(image: Array) -> bytes:
    """Return one PNG per three channels, the last one padded with zeros."""
    padded = np.concatenate([image, np.zeros((-len(image) % 3, *image.shape[1:]), np.uint8)])
    return b"".join(png(padded[start : start + 3]) for start in range(0, len(padded), 3))


def camera(
    channels: int, layout: str, *, data: Array | bytes, mapping: tuple[int, ...] = (), announced: bool = True
) -> Sensor:
    """Return a camera that declares its shape in `layout`; uncompressed `data` are sent in their memory layout."""
    first = layout == "CHW"
    shape = (channels, HEIGHT, WIDTH) if first else (HEIGHT, WIDTH, channels)
    properties = (CHANNELS_FIRST if first else CHANNELS_LAST) if announced else ()
    if isinstance(data, bytes):
        return Sensor(np.zeros(shape), "eye", properties, png=data, mapping=mapping)
    return Sensor(np.ascontiguousarray(data).reshape(shape), "eye", properties)


def decoded(sensors: list[Sensor], version: str = "4.0.0", dtype: str = "uint8", layout: str = "auto") -> Array:
    """Return the array of agents with one of these sensors each."""
    infos = messages(Agent(number, [sensor]) for number, sensor in enumerate(sensors))
    decoder = BehaviorDecoder("Ball", ActionSpec(1, ()), infos[0], version, dtype, layout)
    (column,) = decoder.decode(infos)[0].obs
    (spec,) = decoder.spec.observation_specs
    assert column.shape == (len(sensors), *spec.shape)
    assert column.dtype == spec.array_dtype(dtype)
    assert column.flags.c_contiguous
    assert all(empty.dtype == dtype for steps in decoder.decode([]) for empty in steps.obs)
    if sensors[0].properties:
        unequivariant, height, width = spec.dimension_property
        assert unequivariant == DimensionProperty.NONE
        assert height == width == DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
    return column


def assert_images_are(column: Array, expected: list[Array]) -> None:
    """Compare with uint8 images, for any dtype of the array."""
    if column.dtype == np.uint8:
        np.testing.assert_array_equal(column, expected)
    else:
        np.testing.assert_allclose(column, np.stack(expected) / 255, atol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("channels", [2, 3, 4, 5, 6])
def test_compressed_images_are_decoded_channels_first(channels: int, layout: str, dtype: str) -> None:
    images = [random_image(channels, seed) for seed in range(3)]
    sent = [camera(channels, layout, data=pngs(image)) for image in images]
    assert_images_are(decoded(sent, dtype=dtype), images)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", range(1, 7))
@pytest.mark.parametrize(
    ("version", "declared", "memory"),
    [
        ("4.0.0", "CHW", "HWC"),
        ("3.0.0", "CHW", "HWC"),
        ("3.0.0-exp.1", "CHW", "HWC"),
        ("4.0.1", "CHW", "CHW"),
        ("3.1.0", "CHW", "CHW"),
        ("2.3.0-exp.3", "HWC", "HWC"),
        ("2.0.1", "HWC", "HWC"),
    ],
)
def test_uncompressed_images_are_read_in_their_memory_layout(
    version: str, declared: str, memory: str, channels: int, dtype: str
) -> None:
    images = [random_image(channels, seed) for seed in range(2)]
    laid_out = [image if memory == "CHW" else image.transpose(1, 2, 0) for image in images]
    sent = [camera(channels, declared, data=image / np.float32(255)) for image in laid_out]
    assert_images_are(decoded(sent, version, dtype), images)


@pytest.mark.parametrize("declared", ["CHW", "HWC"])
@pytest.mark.parametrize("memory", ["CHW", "HWC"])
@pytest.mark.parametrize("version", ["2.0.1", "4.0.0", "4.0.1"])
def test_the_memory_layout_can_be_given(version: str, memory: str, declared: str) -> None:
    image = random_image(3)
    laid_out = image if memory == "CHW" else image.transpose(1, 2, 0)
    sent = [camera(3, declared, data=laid_out / np.float32(255))]
    assert_images_are(decoded(sent, version, layout=memory), [image])


def test_a_given_memory_layout_does_not_affect_compressed_images() -> None:
    image = random_image(3)
    for layout in ("CHW", "HWC"):
        assert_images_are(decoded([camera(3, "CHW", data=pngs(image))], layout=layout), [image])


@pytest.mark.parametrize("version", ["1.0.0", "1.6.0-preview"])
def test_packages_that_announce_no_dimension_properties_send_channels_last(version: str) -> None:
    image = random_image(3)
    sent = [camera(3, "HWC", data=image.transpose(1, 2, 0) / np.float32(255), announced=False)]
    assert_images_are(decoded(sent, version), [image])
    assert_images_are(decoded([camera(3, "HWC", data=pngs(image), announced=False)], version), [image])


@pytest.mark.parametrize(
    ("properties", "version", "last"),
    [
        (CHANNELS_LAST, "4.0.0", True),
        (CHANNELS_FIRST, "2.0.0", False),
        ((), "2.3.0-exp.3", True),
        ((), "3.0.0-exp.1", False),
        ((), "", False),
        ((0, 0, 0), "1.8.0", True),
    ],
)
def test_the_layout_follows_from_dimension_properties_and_otherwise_from_the_version(
    properties: tuple[int, ...], version: str, last: bool
) -> None:
    assert sends_channels_last(properties, version) is last


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("mapping", [(), (0, 0, 0)])
def test_one_channel_is_the_mean_of_red_green_and_blue(mapping: tuple[int, ...], dtype: str) -> None:
    image = random_image(3)
    mean = image.astype(np.float64).mean(axis=0, keepdims=True)
    column = decoded([camera(1, "CHW", data=png(image), mapping=mapping)], dtype=dtype)
    if dtype == "uint8":
        np.testing.assert_array_equal(column[0], np.rint(mean))
    else:
        np.testing.assert_allclose(column[0], mean / 255, atol=1e-6)


def test_a_gray_png_has_three_equal_channels() -> None:
    gray = random_image(1)
    data = png(np.repeat(gray, 3, axis=0), "L")
    assert_images_are(decoded([camera(1, "CHW", data=data, mapping=(0, 0, 0))]), [gray])


def test_channels_are_placed_by_the_mapping() -> None:
    image = random_image(6)
    sent = [camera(4, "CHW", data=pngs(image), mapping=(3, -1, 0, 2, -1, 1))]
    assert_images_are(decoded(sent), [image[[2, 5, 3, 0]]])


def test_decoded_channels_with_one_output_are_averaged_and_others_kept() -> None:
    image = random_image(6)
    column = decoded([camera(2, "CHW", data=pngs(image), mapping=(1, 0, 1, 0, 1, -1))], dtype="float32")
    numbers = image.astype(np.float64) / 255
    expected = [numbers[[1, 3]].mean(axis=0), numbers[[0, 2, 4]].mean(axis=0)]
    np.testing.assert_allclose(column[0], expected, atol=1e-6)


def test_floats_outside_the_unit_interval_are_kept_as_float32_and_clipped_as_uint8() -> None:
    numbers = np.array([-1, 0, 0.5, 1, 300], np.float32)
    image = np.resize(numbers, (1, HEIGHT, WIDTH))
    sent = [camera(1, "CHW", data=image)]
    np.testing.assert_array_equal(decoded(sent, dtype="float32")[0], image)
    with pytest.warns(UserWarning, match=r"sensor 0 \('eye'\): values from -1 to 300 are clipped.*float32"):
        clipped = decoded(sent, dtype="uint8")
    np.testing.assert_array_equal(clipped[0].ravel()[:5], [0, 0, 128, 255, 255])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_nan_in_an_image_raises_for_every_dtype(dtype: str) -> None:
    image = np.zeros((3, HEIGHT, WIDTH), np.float32)
    image[1, 2, 3] = np.nan
    with pytest.raises(ProtocolError, match=r"'Ball', agent 1: sensor 0 \('eye'\)"):
        decoded([camera(3, "CHW", data=np.zeros_like(image)), camera(3, "CHW", data=image)], dtype=dtype)


def without_end(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_a_wrong_checksum(data: bytes) -> bytes:
    start = data.index(b"IDAT") + 8
    return data[:start] + bytes([data[start] ^ 0xFF]) + data[start + 1 :]


def with_pixels_that_do_not_inflate(data: bytes) -> bytes:
    start, end = data.index(b"IDAT") - 4, data.index(b"IEND") - 4
    chunk = b"IDAT" + b"no zlib stream at all"
    return data[:start] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[end:]


def with_a_word_in_front(data: bytes) -> bytes:
    return b"oops" + data


def that_is_a_jpeg(_: bytes) -> bytes:
    return b"\xff\xd8\xff\xe0" + bytes(60)


@pytest.mark.parametrize(
    "damage",
    [
        without_end,
        with_a_wrong_checksum,
        with_pixels_that_do_not_inflate,
        with_a_word_in_front,
        that_is_a_jpeg,
    ],
)
def test_a_broken_png_raises_with_behavior_and_sensor(damage: object) -> None:
    assert callable(damage)
    good = pngs(random_image(3))
    sent = [camera(3, "CHW", data=good), camera(3, "CHW", data=damage(good))]
    with pytest.raises(ProtocolError, match=r"'Ball', sensor 0 \('eye'\): .*PNG"):
        decoded(sent)


def test_a_damaged_png_gives_an_image_or_a_protocol_error() -> None:
    good = pngs(random_image(3))
    for position in range(len(good)):
        for data in (good[:position], good[:position] + bytes([good[position] ^ 0xA5]) + good[position + 1 :]):
            if data:
                try:
                    decoded([camera(3, "CHW", data=data)])
                except ProtocolError as error:
                    assert "'Ball', sensor 0 ('eye')" in str(error)  # noqa: PT017


def test_an_image_of_another_size_raises() -> None:
    small = np.zeros((3, HEIGHT - 1, WIDTH), np.uint8)
    with pytest.raises(ProtocolError, match=r"\(4, 7\) pixels where the sensor has \(5, 7\)"):
        decoded([camera(3, "CHW", data=pngs(small))])


def test_too_few_channels_raise() -> None:
    with pytest.raises(ProtocolError, match="3 channels together where the sensor has 4"):
        decoded([camera(4, "CHW", data=pngs(random_image(3)))])


@pytest.mark.parametrize("mapping", [(0, 1, 2, 3), (0, 0, 1), (0, 1, 3), (0, 1, -2)])
def test_a_mapping_that_does_not_fit_raises(mapping: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="channel mapping"):
        decoded([camera(3, "CHW", data=pngs(random_image(3)), mapping=mapping)])


def test_uncompressed_data_of_another_length_raise() -> None:
    short = camera(3, "CHW", data=np.zeros((3, HEIGHT, WIDTH)))
    short.values = short.values[:2]
    with pytest.raises(ProtocolError, match=r"'Ball', sensor 0 \('eye'\).*420 bytes, got \[280, 420\]"):
        decoded([camera(3, "CHW", data=np.zeros((3, HEIGHT, WIDTH))), short])


def test_an_agent_that_sends_floats_among_agents_that_send_pngs_raises() -> None:
    image = random_image(3)
    with pytest.raises(ProtocolError, match="do not start as a PNG"):
        decoded([camera(3, "CHW", data=pngs(image)), camera(3, "CHW", data=image / 255)])
