"""`Adam` makes the updates of torch's, and training does not import torch's compiler."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sb3_ext.optimizer import Adam

SCRIPT = """
import sys
from sb3_ext import PPO, SAC, UnityVecEnv
from sb3_ext.reward_signals import Curiosity, Extrinsic

if __name__ == "__main__":
    algorithm, options = {
        "PPO": (PPO, {"n_steps": 40, "batch_size": 20, "reward_signals": [Extrinsic(), Curiosity()]}),
        "SAC": (SAC, {"batch_size": 20}),
    }[sys.argv[1]]
    env = UnityVecEnv("Unity-Basic-v0")
    model = algorithm("MlpPolicy", env, **options)
    model.learn(80)
    model.save(sys.argv[2])
    algorithm.load(sys.argv[2], env=env).learn(80, reset_num_timesteps=False)
    env.close()
    print(type(model.policy.optimizer).__module__, "torch._dynamo" in sys.modules)
"""


def trained(optimizer_class: type[torch.optim.Adam], state: dict[str, object] | None = None) -> torch.optim.Adam:
    """Return an optimizer after three updates of two groups of weights."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)]
    optimizer = optimizer_class(layers[0].parameters(), lr=0.01, fused=True)
    optimizer.add_param_group({"params": list(layers[1].parameters()), "lr": 0.02})
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    for _ in range(3):
        optimizer.zero_grad()
        layers[1](layers[0](torch.randn(5, 4))).square().mean().backward()
        optimizer.step()
    return optimizer


def weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@pytest.mark.parametrize("continued", [False, True])
def test_updates_and_state_are_those_of_torch(continued: bool) -> None:
    state = trained(torch.optim.Adam).state_dict() if continued else None
    ours, torchs = trained(Adam, state), trained(torch.optim.Adam, state)
    torch.testing.assert_close(weights(ours), weights(torchs), rtol=0, atol=0)
    torch.testing.assert_close(ours.state_dict(), torchs.state_dict(), rtol=0, atol=0)
    assert all(weight.requires_grad for weight in weights(ours))


@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
def test_training_saving_and_loading_do_not_import_torchs_compiler(algorithm: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, algorithm, str(tmp_path / "model.zip")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert ended.stdout.split()[-2:] == ["sb3_ext.optimizer", "False"]
