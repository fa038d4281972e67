"""The bytes of each side channel, and their frames."""

from __future__ import annotations

import re
import struct
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from unity_gym.errors import InvalidValueError, ProtocolError, UnityGymError
from unity_gym.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    FloatPropertiesChannel,
    IncomingMessage,
    OutgoingMessage,
    RawBytesChannel,
    ReseedingChannel,
    SideChannel,
    SideChannels,
    StatsAggregationMethod,
    StatsSideChannel,
    TrainingAnalyticsChannel,
)

ENGINE = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
PROPERTIES = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
STATS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
RAW = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def sent_by(channels: SideChannels) -> bytes:
    """Return the messages that are sent with a command."""
    sent = channels.collect()
    assert channels.collect() == sent, "it stays queued until the command is sent"
    channels.clear_collected()
    return sent


def frame(channel_id: uuid.UUID, payload: bytes) -> bytes:
    return channel_id.bytes_le + struct.pack("<i", len(payload)) + payload


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<i", len(encoded)) + encoded


def numbers(kinds: str, *values: float) -> bytes:
    return struct.pack("<" + kinds, *values)


class Chat(SideChannel):
    """A custom channel: every type of value in one message, and a greeting for a new player."""

    def __init__(self) -> None:
        super().__init__(RAW)
        self.heard: list[object] = []

    def send_word(self, word: str) -> None:
        message = OutgoingMessage()
        message.write_string(word)
        message.write_bool(True)
        message.write_int32(-7)
        message.write_float32(0.5)
        message.write_float32_list([1.5, -2.5])
        self.queue_message_to_send(message)

    def on_message_received(self, message: IncomingMessage) -> None:
        self.heard.append(
            (
                message.read_string(),
                message.read_bool(),
                message.read_int32(),
                message.read_float32(),
                message.read_float32_list(),
            )
        )

    def on_player_restarted(self) -> None:
        self.send_word("hello again")


@pytest.mark.parametrize(
    ("options", "payloads"),
    [
        ({"width": 80, "height": 60}, [numbers("iii", 0, 80, 60)]),
        ({"quality_level": 3}, [numbers("ii", 1, 3)]),
        ({"time_scale": 20.0}, [numbers("if", 2, 20)]),
        ({"target_frame_rate": -1}, [numbers("ii", 3, -1)]),
        ({"capture_frame_rate": 60}, [numbers("ii", 4, 60)]),
        ({"time_scale": 2.0, "quality_level": 0}, [numbers("ii", 1, 0), numbers("if", 2, 2)]),
        ({}, []),
    ],
)
def test_engine_configuration(options: dict[str, float], payloads: list[bytes]) -> None:
    channel = EngineConfigurationChannel()
    channel.set_configuration_parameters(**options)  # type: ignore[arg-type]
    assert sent_by(SideChannels([channel])) == b"".join(frame(ENGINE, payload) for payload in payloads)


@pytest.mark.parametrize("half", [{"width": 80}, {"height": 60}])
def test_a_resolution_of_one_number_raises(half: dict[str, int]) -> None:
    with pytest.raises(UnityGymError, match="width and height must be given together"):
        EngineConfigurationChannel().set_configuration_parameters(**half)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_scale": 1e300}, "time_scale must be a number of at most 3.4e38, got 1e+300"),
        ({"time_scale": "fast"}, "time_scale must be a number of at most 3.4e38, got 'fast'"),
        ({"width": 80, "height": 2**31}, "height must be a whole number of at most 2147483647, got 2147483648"),
        ({"quality_level": 0.5}, "quality_level must be a whole number of at most 2147483647, got 0.5"),
    ],
)
def test_a_configuration_that_no_message_can_hold_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        EngineConfigurationChannel().set_configuration_parameters(**options)


def test_environment_parameters() -> None:
    channel = EnvironmentParametersChannel()
    channel.set_float_parameter("size", 1.5)
    channel.set_uniform_sampler_parameters("u", -1, 2, seed=7)
    channel.set_gaussian_sampler_parameters("g", 3, 0.5, seed=-8)
    channel.set_multirangeuniform_sampler_parameters("m", [(0, 1), (4, 5.5)], seed=9)
    assert sent_by(SideChannels([channel])) == b"".join(
        frame(PARAMETERS, payload)
        for payload in (
            text("size") + numbers("if", 0, 1.5),
            text("u") + numbers("iiiff", 1, 7, 0, -1, 2),
            text("g") + numbers("iiiff", 1, -8, 1, 3, 0.5),
            text("m") + numbers("iiiiffff", 1, 9, 2, 4, 0, 1, 4, 5.5),
        )
    )


def test_float_properties_go_both_ways() -> None:
    channel = FloatPropertiesChannel()
    channels = SideChannels([channel])
    channel.set_property("speed", 2.5)
    assert sent_by(channels) == frame(PROPERTIES, text("speed") + numbers("f", 2.5))
    channels.dispatch(
        frame(PROPERTIES, text("speed") + numbers("f", 3.5)) + frame(PROPERTIES, text("x") + numbers("f", 1))
    )
    assert channel.get_property("speed") == 3.5
    assert channel.get_property("unknown") is None
    assert channel.list_properties() == ["speed", "x"]
    copy = channel.get_property_dict_copy()
    copy.clear()
    assert channel.get_property_dict_copy() == {"speed": 3.5, "x": 1.0}
    assert sent_by(channels) == b"", "what the player set is not echoed"


def test_statistics_are_collected_until_they_are_read() -> None:
    channel = StatsSideChannel()
    channels = SideChannels([channel])
    for value, aggregation in enumerate(range(4)):
        channels.dispatch(frame(STATS, text("height") + numbers("fi", value, aggregation)))
    assert channel.get_and_reset_stats() == {
        "height": [
            (0.0, StatsAggregationMethod.AVERAGE),
            (1.0, StatsAggregationMethod.MOST_RECENT),
            (2.0, StatsAggregationMethod.SUM),
            (3.0, StatsAggregationMethod.HISTOGRAM),
        ]
    }
    assert channel.get_and_reset_stats() == {}


def test_an_unknown_aggregation_raises_with_the_statistic() -> None:
    with pytest.raises(ProtocolError, match=r"StatsSideChannel.*'height'.*aggregation 4"):
        SideChannels([StatsSideChannel()]).dispatch(frame(STATS, text("height") + numbers("fi", 1, 4)))


def test_raw_bytes_go_both_ways() -> None:
    channel = RawBytesChannel(RAW)
    channels = SideChannels([channel])
    channel.send_raw_data(b"\x00\xff")
    channel.send_raw_data(b"")
    assert sent_by(channels) == frame(RAW, b"\x00\xff") + frame(RAW, b"")
    channels.dispatch(frame(RAW, b"one") + frame(RAW, b"") + frame(RAW, b"three"))
    assert channel.get_and_clear_received_messages() == [b"one", b"", b"three"]
    assert channel.get_and_clear_received_messages() == []


def test_training_analytics_are_sent_as_they_were_encoded() -> None:
    channel = TrainingAnalyticsChannel()
    channel.send_message(b"\x0a\x01x")
    assert sent_by(SideChannels([channel])) == frame(ANALYTICS, b"\x0a\x01x")


def test_a_new_seed_is_acknowledged_with_the_same_seed() -> None:
    channel = ReseedingChannel()
    channels = SideChannels([channel])
    channel.send(5)
    sent = sent_by(channels)
    assert sent == frame(channel.channel_id, numbers("i", 5))
    assert channel.acknowledged is None
    channels.dispatch(sent)
    assert channel.acknowledged == 5
    channel.send(6)
    assert channel.acknowledged is None


def test_a_custom_channel_sends_and_receives_all_types_of_values() -> None:
    channel = Chat()
    channels = SideChannels([channel])
    channel.send_word("hello")
    sent = sent_by(channels)
    assert sent == frame(RAW, text("hello") + b"\x01" + numbers("ififf", -7, 0.5, 2, 1.5, -2.5))
    channels.dispatch(sent)
    assert channel.heard == [("hello", True, -7, 0.5, [1.5, -2.5])]


def test_omitted_values_at_the_end_of_a_message_are_the_default_values_if_given() -> None:
    message = IncomingMessage(numbers("ii", 5, 1))
    assert message.read_int32(default_value=9) == 5
    assert IncomingMessage(b"").read_bool(default_value=True) is True
    assert IncomingMessage(b"").read_int32(default_value=0) == 0
    assert IncomingMessage(b"").read_float32(default_value=2.5) == 2.5
    assert IncomingMessage(b"").read_float32_list(default_value=[1.0]) == [1.0]
    assert IncomingMessage(b"").read_string(default_value="none") == "none"
    with pytest.raises(ProtocolError, match="ends too early"):
        message.read_string(default_value="none")  # it has a length of 1 and no character


def test_the_uuid_is_sent_with_little_endian_fields() -> None:
    channel = RawBytesChannel(RAW)
    channel.send_raw_data(b"!")
    assert sent_by(SideChannels([channel])).hex() == "33221100554477668899aabbccddeeff" + "01000000" + "21"


def test_messages_are_sent_once_and_by_channel() -> None:
    properties, raw = FloatPropertiesChannel(), RawBytesChannel(RAW)
    channels = SideChannels([properties, raw])
    raw.send_raw_data(b"a")
    properties.set_property("x", 1)
    raw.send_raw_data(b"b")
    assert sent_by(channels) == (frame(PROPERTIES, text("x") + numbers("f", 1)) + frame(RAW, b"a") + frame(RAW, b"b"))
    assert sent_by(channels) == b""


def test_an_unknown_channel_is_skipped_with_one_warning() -> None:
    raw = RawBytesChannel(RAW)
    channels = SideChannels([raw])
    data = frame(STATS, b"whatever") + frame(RAW, b"known")
    with pytest.warns(UserWarning, match=f"{STATS}.*not registered.*side_channels"):
        channels.dispatch(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        channels.dispatch(data)
    with pytest.warns(UserWarning, match=str(PROPERTIES)):
        channels.dispatch(frame(PROPERTIES, b""))
    assert raw.get_and_clear_received_messages() == [b"known", b"known"]


@pytest.mark.parametrize("missing", range(1, 6))
def test_a_frame_that_is_too_short_raises_with_the_channel(missing: int) -> None:
    whole = frame(RAW, b"hello")
    with pytest.raises(ProtocolError, match=rf"{RAW} \(RawBytesChannel\) announces 5 bytes; {5 - missing} are there"):
        SideChannels([RawBytesChannel(RAW)]).dispatch(whole[:-missing])
    with pytest.raises(ProtocolError, match=rf"{RAW} \(unknown\)"):
        SideChannels().dispatch(whole[:-missing])


def test_a_header_that_is_too_short_raises() -> None:
    raw = RawBytesChannel(RAW)
    with pytest.raises(ProtocolError, match="end in 19 bytes"):
        SideChannels([raw]).dispatch(frame(RAW, b"first") + bytes(19))
    assert raw.get_and_clear_received_messages() == [b"first"]


def test_a_negative_length_raises_with_the_channel() -> None:
    with pytest.raises(ProtocolError, match=r"RawBytesChannel.*announces -1 bytes"):
        SideChannels([RawBytesChannel(RAW)]).dispatch(RAW.bytes_le + numbers("i", -1))


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (FloatPropertiesChannel, b""),
        (FloatPropertiesChannel, numbers("i", 4) + b"abc"),
        (FloatPropertiesChannel, numbers("i", -1)),
        (FloatPropertiesChannel, text("key") + b"\x00" * 3),
        (StatsSideChannel, text("key") + numbers("f", 1)),
        (Chat, text("word") + b"\x01" + numbers("if", 1, 1) + numbers("if", 2, 1)),
        (Chat, text("word") + b"\x01" + numbers("if", 1, 1) + numbers("i", -1)),
        (ReseedingChannel, b"\x01"),
    ],
)
def test_a_message_that_ends_too_early_raises_with_the_channel(
    channel: Callable[[], SideChannel], payload: bytes
) -> None:
    registered = channel()
    with pytest.raises(
        ProtocolError, match=rf"{registered.channel_id} \({type(registered).__name__}\): .*ends too early"
    ):
        SideChannels([registered]).dispatch(frame(registered.channel_id, payload))


@pytest.mark.parametrize(
    "channel", [EngineConfigurationChannel, EnvironmentParametersChannel, TrainingAnalyticsChannel]
)
def test_channels_that_only_send_reject_messages_of_the_player(channel: Callable[[], SideChannel]) -> None:
    registered = channel()
    with pytest.raises(
        ProtocolError, match=rf"{registered.channel_id} \({type(registered).__name__}\): .*to the player only"
    ):
        SideChannels([registered]).dispatch(frame(registered.channel_id, b""))


def test_two_channels_with_one_uuid_raise() -> None:
    with pytest.raises(UnityGymError, match=f"{RAW}: Chat and RawBytesChannel"):
        SideChannels([Chat(), RawBytesChannel(RAW)])
    channels = SideChannels([FloatPropertiesChannel()])
    with pytest.raises(UnityGymError, match=r"FloatPropertiesChannel and FloatPropertiesChannel; .*it has options"):
        channels.add(FloatPropertiesChannel())


def test_a_new_player_receives_the_latest_values_that_the_previous_one_received() -> None:
    engine, parameters, properties = (
        EngineConfigurationChannel(),
        EnvironmentParametersChannel(),
        FloatPropertiesChannel(),
    )
    chat = Chat()
    channels = SideChannels([engine, parameters, properties, chat])
    engine.set_configuration_parameters(time_scale=1.0, quality_level=2)
    engine.set_configuration_parameters(time_scale=20.0)
    parameters.set_float_parameter("a", 1)
    parameters.set_uniform_sampler_parameters("b", 0, 1, seed=3)
    parameters.set_float_parameter("a", 2)
    properties.set_property("x", 4)
    sent_by(channels)
    channels.dispatch(frame(PROPERTIES, text("x") + numbers("f", 5)))
    channels.player_restarted()
    expected = [
        frame(ENGINE, numbers("ii", 1, 2)),
        frame(ENGINE, numbers("if", 2, 20)),
        frame(PARAMETERS, text("a") + numbers("if", 0, 2)),
        frame(PARAMETERS, text("b") + numbers("iiiff", 1, 3, 0, 0, 1)),
        frame(PROPERTIES, text("x") + numbers("f", 5)),
    ]
    sent = sent_by(channels)
    assert sent.startswith(b"".join(expected))
    assert sent.endswith(frame(RAW, text("hello again") + b"\x01" + numbers("ififf", -7, 0.5, 2, 1.5, -2.5)))
    assert sent_by(channels) == b""


def test_unsent_messages_reach_a_new_player_first() -> None:
    raw, parameters = RawBytesChannel(RAW), EnvironmentParametersChannel()
    channels = SideChannels([raw, parameters])
    raw.send_raw_data(b"unsent")
    parameters.set_float_parameter("a", 1)
    parameters.set_float_parameter("a", 2)
    channels.player_restarted()
    sent = sent_by(channels)
    assert sent.startswith(frame(RAW, b"unsent"))
    assert sent.endswith(frame(PARAMETERS, text("a") + numbers("if", 0, 2)))
