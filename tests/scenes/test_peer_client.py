"""Unity's own Python client drives the embedded player, and receives the same data as ours.

Set UNITY_GYM_PEER_PYTHON to a Python that has `mlagents_envs`; without it these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unity_gym.scenes import SCENES

PEER = os.environ.get("UNITY_GYM_PEER_PYTHON", "")

# Runs with either client. The player is started by the script, because the client listens only inside its constructor.
SCRIPT = """
import hashlib, subprocess, sys
from importlib import import_module
import numpy as np

package, channel_module, scene, port, python = sys.argv[1:]
UnityEnvironment = import_module(package + ".environment").UnityEnvironment
channel = import_module(channel_module).EnvironmentParametersChannel()
player = subprocess.Popen([python, "-m", "unity_gym.scenes", scene, "--mlagents-port", port])
channel.set_uniform_sampler_parameters("scale", 0.5, 1.0, 3)
env = UnityEnvironment(file_name=None, base_port=int(port), seed=1, timeout_wait=60, side_channels=[channel])
rng, seen = np.random.default_rng(0), hashlib.sha256()

def see(*columns):
    for column in columns:
        seen.update(np.asarray(column, np.float32).tobytes())

def choose(forbidden):
    return (rng.random(forbidden.shape) * ~forbidden.astype(bool)).argmax(axis=1).astype(np.int32)

try:
    env.reset()
    steps = 0
    while steps < 520:
        for behavior, spec in env.behavior_specs.items():
            seen.update(behavior.encode() + repr([(o.name, o.shape) for o in spec.observation_specs]).encode())
            decisions, terminals = env.get_steps(behavior)
            for part in (decisions, terminals):
                see(*part.obs, part.reward, part.group_reward, part.agent_id, part.group_id)
            see(terminals.interrupted)
            actions = spec.action_spec.empty_action(len(decisions))
            if spec.action_spec.continuous_size:
                actions.add_continuous(rng.uniform(-1, 1, actions.continuous.shape).astype(np.float32))
            if spec.action_spec.discrete_size and len(decisions):
                see(*decisions.action_mask)
                chosen = [choose(branch) for branch in decisions.action_mask]
                actions.add_discrete(np.stack(chosen, axis=1))
            env.set_actions(behavior, actions)
        steps += 1
        env.step() if steps != 510 else env.reset()
finally:
    env.close()
print(seen.hexdigest(), "exit", player.wait(30))
"""


def transcript(python: str, package: str, channel_module: str, scene: str, port: int) -> str:
    """Return what the client of a package received in a scene: a hash of all data, and the player's exit."""
    command = [python, "-c", SCRIPT, package, channel_module, scene, str(port), sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


@pytest.mark.skipif(not PEER, reason="UNITY_GYM_PEER_PYTHON names no Python that has mlagents_envs")
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_unitys_client_receives_the_same_data(scene: str) -> None:
    port = 5910 + 2 * sorted(SCENES).index(scene)
    module = "mlagents_envs.side_channel.environment_parameters_channel"
    expected = transcript(PEER, "mlagents_envs", module, scene, port)
    assert expected.endswith("exit 0")
    assert transcript(sys.executable, "unity_gym", "unity_gym.side_channels", scene, port + 1) == expected
