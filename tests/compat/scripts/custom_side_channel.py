"""The third notebook: a custom side channel in addition to those of the package."""

import uuid

from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.side_channel.float_properties_channel import FloatPropertiesChannel
from mlagents_envs.side_channel.raw_bytes_channel import RawBytesChannel
from mlagents_envs.side_channel.side_channel import IncomingMessage, OutgoingMessage, SideChannel
from mlagents_envs.side_channel.stats_side_channel import StatsAggregationMethod, StatsSideChannel


class StringLogChannel(SideChannel):
    def __init__(self) -> None:
        super().__init__(uuid.UUID("621f0a70-4f87-11ea-a6bf-784f4387d1f7"))

    def on_message_received(self, msg: IncomingMessage) -> None:
        print(msg.read_string(), msg.read_int32(default_value=1))  # builds of before omit the number

    def send_string(self, data: str) -> None:
        msg = OutgoingMessage()
        msg.write_string(data)
        super().queue_message_to_send(msg)


string_log, stats, floats = StringLogChannel(), StatsSideChannel(), FloatPropertiesChannel()
raw = RawBytesChannel(uuid.uuid4())
message = OutgoingMessage()
message.write_string("not from Unity")
string_log.on_message_received(IncomingMessage(bytes(message.buffer)))
env = UnityEnvironment(side_channels=[string_log, stats, floats, raw])
string_log.send_string("The environment was created")
floats.set_property("test", 0.5)
raw.send_raw_data(b"1234")
env.reset()
for behavior_name in env.behavior_specs:
    string_log.send_string(f"behavior {behavior_name}")
for _ in range(30):
    env.step()
assert floats.get_property("test") == 0.5 and raw.get_and_clear_received_messages() == []
assert all(
    isinstance(method, StatsAggregationMethod) for pairs in stats.get_and_reset_stats().values() for _, method in pairs
)
env.close()
print("done")
