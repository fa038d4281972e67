"""Timers, the capabilities of the player, and a side channel that is tested without an environment."""

import threading
import time
import uuid

from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.exception import UnityEnvironmentException
from mlagents_envs.side_channel.raw_bytes_channel import RawBytesChannel
from mlagents_envs.side_channel.side_channel_manager import SideChannelManager
from mlagents_envs.timers import (
    add_metadata,
    get_timer_root,
    get_timer_tree,
    hierarchical_timer,
    reset_timers,
    set_gauge,
    timed,
)


@timed
def policy() -> str:
    """Documented."""
    time.sleep(0.01)
    return "action"


env = UnityEnvironment("Basic")
capabilities = env.academy_capabilities
assert capabilities.baseRLCapabilities and capabilities.hybridActions and capabilities.multiAgentGroups
env.reset()
reset_timers()
with hierarchical_timer("episode"):
    for _ in range(3):
        assert policy() == "action"
        env.step()
    try:
        with hierarchical_timer("failure"):
            raise KeyError
    except KeyError:
        pass
thread = threading.Thread(target=policy)
thread.start()
thread.join()
for value in (2.0, 5.0, float("nan"), 3.0):
    set_gauge("reward", value)
add_metadata("run", "first")
env.close()

tree = get_timer_tree()
assert tree["name"] == "root" and tree["count"] == 1 and tree["metadata"]["run"] == "first"
assert tree["gauges"] == {"reward": {"value": 3.0, "min": 2.0, "max": 5.0, "count": 3}}
assert list(tree["children"]) == ["episode"]
episode = tree["children"]["episode"]
assert list(episode["children"]) == ["policy", "UnityEnvironment.step", "failure"]
assert episode["children"]["policy"]["count"] == 3 and 0.03 <= episode["children"]["policy"]["total"] < 3
assert episode["children"]["failure"]["count"] == 1
parts = sum(child["total"] for child in episode["children"].values())
assert abs(episode["total"] - episode["self"] - parts) < 1e-9 and tree["total"] >= episode["total"]
with hierarchical_timer("interrupted"):
    reset_timers()
assert get_timer_root().children == {} and "gauges" not in get_timer_tree()

channel = RawBytesChannel(uuid.uuid4())
manager = SideChannelManager([channel])
channel.send_raw_data(b"hello")
frames = manager.generate_side_channel_messages()
assert manager.generate_side_channel_messages() == b""
manager.process_side_channel_message(bytes(frames))
assert channel.get_and_clear_received_messages() == [b"hello"]
for mistake in (
    lambda: manager.process_side_channel_message(bytes(frames[:-1])),
    lambda: SideChannelManager([channel, RawBytesChannel(channel.channel_id)]),
):
    try:
        mistake()
        raise AssertionError("it is wrong")
    except UnityEnvironmentException:
        pass
print("done")
