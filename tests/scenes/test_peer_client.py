"""Unity's own Python client drives the embedded player.

Set UNITY_GYM_PEER_PYTHON to a Python that has `mlagents_envs`; without it these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PEER = os.environ.get("UNITY_GYM_PEER_PYTHON", "")

# The player is started by the script, because the client listens only inside its constructor.
SCRIPT = """
import subprocess, sys
import numpy as np
from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel

scene, port, python = sys.argv[1], int(sys.argv[2]), sys.argv[3]
player = subprocess.Popen([python, "-m", "unity_gym.scenes", scene, "--mlagents-port", str(port)])
parameters = EnvironmentParametersChannel()
parameters.set_uniform_sampler_parameters("scale", 0.5, 1.0, 3)
env = UnityEnvironment(file_name=None, base_port=port, seed=1, timeout_wait=60, side_channels=[parameters])
try:
    env.reset()
    (behavior,) = env.behavior_specs
    spec, ended = env.behavior_specs[behavior], 0
    for step in range(1000):
        decisions, terminals = env.get_steps(behavior)
        ended += len(terminals)
        assert all(np.isfinite(o).all() for o in decisions.obs)
        env.set_actions(behavior, spec.action_spec.random_action(len(decisions)))
        env.step()
    env.reset()
    assert len(env.get_steps(behavior)[0])
finally:
    env.close()
print(behavior, [o.shape for o in spec.observation_specs], ended, "ended, exit", player.wait(30))
"""


@pytest.mark.skipif(not PEER, reason="UNITY_GYM_PEER_PYTHON names no Python that has mlagents_envs")
@pytest.mark.parametrize(("scene", "port"), [("Basic", 5904), ("3DBall", 5905), ("3DBallHard", 5906)])
def test_unitys_client_steps_a_scene_a_thousand_times(scene: str, port: int) -> None:
    command = [PEER, "-c", SCRIPT, scene, str(port), sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert f"{scene}?team=0" in result.stdout
    assert result.stdout.rstrip().endswith("exit 0")
