"""The second notebook: Q-learning in GridWorld with experience per agent id."""

import random
from typing import Dict, List, NamedTuple

import numpy as np
import torch
from mlagents_envs.environment import ActionTuple, BaseEnv
from mlagents_envs.registry import default_registry


class Experience(NamedTuple):
    obs: np.ndarray
    action: np.ndarray
    reward: float
    done: bool
    next_obs: np.ndarray


network = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(64 * 84 * 3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)
)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)


def generate_trajectories(env: BaseEnv, buffer_size: int, epsilon: float) -> List[Experience]:
    buffer: List[Experience] = []
    last_obs: Dict[int, np.ndarray] = {}
    last_action: Dict[int, np.ndarray] = {}
    env.reset()
    behavior_name = list(env.behavior_specs)[0]
    index = [len(s.shape) == 3 for s in env.behavior_specs[behavior_name].observation_specs].index(True)
    while len(buffer) < buffer_size:
        decision_steps, terminal_steps = env.get_steps(behavior_name)
        for agent_id in terminal_steps:
            if agent_id in last_obs:
                step = terminal_steps[agent_id]
                done = not step.interrupted
                buffer.append(
                    Experience(last_obs.pop(agent_id), last_action.pop(agent_id), step.reward, done, step.obs[index])
                )
        for agent_id in decision_steps:
            step = decision_steps[agent_id]
            if agent_id in last_obs:
                buffer.append(
                    Experience(last_obs[agent_id], last_action[agent_id], step.reward, False, step.obs[index])
                )
            last_obs[agent_id] = step.obs[index].copy()
        if len(decision_steps):
            values = network(torch.from_numpy(decision_steps.obs[index])).detach().numpy()
            values += epsilon * np.random.randn(*values.shape).astype(np.float32)
            actions = np.argmax(values, axis=1).reshape(-1, 1)
            for row, agent_id in enumerate(decision_steps.agent_id):
                last_action[agent_id] = actions[row]
            action_tuple = ActionTuple()
            action_tuple.add_discrete(actions)
            env.set_actions(behavior_name, action_tuple)
        env.step()
    return buffer


env = default_registry["GridWorld"].make(no_graphics=False)
losses = []
for _ in range(2):
    buffer = generate_trajectories(env, 60, 0.5)
    random.shuffle(buffer)
    obs = torch.from_numpy(np.stack([e.obs for e in buffer]))
    next_obs = torch.from_numpy(np.stack([e.next_obs for e in buffer]))
    reward = torch.tensor([e.reward for e in buffer])
    done = torch.tensor([e.done for e in buffer], dtype=torch.float32)
    action = torch.from_numpy(np.stack([e.action for e in buffer])).long()
    target = reward + (1 - done) * 0.9 * network(next_obs).max(dim=1).values.detach()
    loss = torch.nn.functional.mse_loss(network(obs).gather(1, action)[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
env.close()
assert np.isfinite(losses).all()
print("done")
