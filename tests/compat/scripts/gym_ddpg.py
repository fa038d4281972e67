"""DDPG's loop with a continuous action through the gym wrapper."""

import numpy as np
import torch
from gym_unity.envs import UnityToGymWrapper
from mlagents_envs.environment import UnityEnvironment

env = UnityToGymWrapper(UnityEnvironment("3DBall", base_port=5105))
assert env.reward_range == (-float("inf"), float("inf"))
actor = torch.nn.Sequential(torch.nn.Linear(env.observation_space.shape[0], env.action_space.shape[0]), torch.nn.Tanh())
critic = torch.nn.Linear(env.observation_space.shape[0] + env.action_space.shape[0], 1)
total = 0.0
for episode in range(2):
    state, done = env.reset(), False
    while not done:
        action = actor(torch.as_tensor(state)).detach().numpy() + 0.1 * np.random.randn(env.action_space.shape[0])
        action = np.clip(action, env.action_space.low, env.action_space.high)
        next_state, reward, done, info = env.step(action)
        total += reward
        value = critic(torch.cat([torch.as_tensor(state), torch.as_tensor(action, dtype=torch.float32)]))
        (-value).backward()
        state = next_state
    assert info["step"].interrupted[0] in (True, False)
env.close()
assert 0 < total < 200
print("done")
