"""A single-file PPO like CleanRL's: a loop over a vector environment with Gymnasium's wrappers."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import vector as wrappers
from torch import nn
from torch.distributions import Normal

import unity_gym  # noqa: F401  # registers the ids

pytestmark = pytest.mark.ecosystem
ENVS, STEPS = 4, 32


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_loop_learns_from_rollouts(mode: str) -> None:
    torch.manual_seed(0)
    envs = wrappers.RecordEpisodeStatistics(gym.make_vec("Unity-3DBall-v0", num_envs=ENVS, autoreset_mode=mode))
    actor, critic = (nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, size)) for size in (2, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    next_obs, done = torch.tensor(envs.reset(seed=1)[0]), np.zeros(ENVS)
    for _ in range(4):
        rows = []
        for _ in range(STEPS):
            distribution = Normal(actor(next_obs), 0.5)
            action = distribution.sample()
            logprob, value = distribution.log_prob(action).sum(1).detach(), critic(next_obs).flatten().detach()
            observations, reward, terminated, truncated, _ = envs.step(action.clamp(-1, 1).numpy())
            rows.append((next_obs, action, logprob, value, torch.tensor(reward).float(), torch.tensor(done).float()))
            next_obs, done = torch.tensor(observations), (terminated | truncated).astype(float)
        advantage, advantages, next_value = torch.zeros(ENVS), [], critic(next_obs).flatten().detach()
        next_done = torch.tensor(done).float()
        for _, _, _, value, reward, start in reversed(rows):
            delta = reward + 0.99 * next_value * (1 - next_done) - value
            advantage = delta + 0.99 * 0.95 * (1 - next_done) * advantage
            advantages.insert(0, advantage)
            next_value, next_done = value, start
        obs, actions, logprobs, values = (torch.cat(column) for column in list(zip(*rows, strict=True))[:4])
        gain, targets = torch.cat(advantages), torch.cat(advantages) + values
        ratio = (Normal(actor(obs), 0.5).log_prob(actions).sum(1) - logprobs).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = loss + 0.5 * (critic(obs).flatten() - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(loss)
    assert envs.return_queue
    envs.close()
