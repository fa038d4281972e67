"""Agents in turn, from the factory of a scene."""

from mlagents_envs.envs import ThreeDBall

env = ThreeDBall.env(seed=1)
assert "EngineConfigurationChannel" in env.side_channel
env.reset()
total, ends = 0.0, 0
for agent in env.agent_iter(600):
    observation, reward, done, info = env.last()
    total += reward
    ends += done
    env.step(None if done else env.action_space(agent).sample())
assert total > 0 and ends > 0
env.close()
print("done")
