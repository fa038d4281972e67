"""The loop of the Python API's documentation: random actions for all agents, episode by episode."""

import numpy as np
from mlagents_envs.base_env import ActionTuple, BaseEnv
from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.logging_util import DEBUG, get_logger, set_log_level
from mlagents_envs.side_channel.engine_configuration_channel import EngineConfigurationChannel

set_log_level(DEBUG)
get_logger(__name__).debug("low-level loop")
engine = EngineConfigurationChannel()
env = UnityEnvironment(file_name="builds/3DBall", seed=1, side_channels=[engine], worker_id=2, no_graphics=True)
assert isinstance(env, BaseEnv)
engine.set_configuration_parameters(time_scale=20.0)
env.step()  # the first step of a new environment resets it
behavior_name = list(env.behavior_specs)[0]
spec = env.behavior_specs[behavior_name]
assert spec.action_spec.is_continuous() and spec.action_spec.continuous_size == 2
assert str(spec.action_spec) == "Continuous: 2, Discrete: ()"
assert [len(sensor.shape) for sensor in spec.observation_specs] == [1]

returns = []
for _ in range(2):
    env.reset()
    decision_steps, terminal_steps = env.get_steps(behavior_name)
    tracked_agent, done, episode_rewards = -1, False, 0.0
    while not done:
        if tracked_agent == -1 and len(decision_steps) >= 1:
            tracked_agent = decision_steps.agent_id[0]
        action = spec.action_spec.random_action(len(decision_steps))
        env.set_actions(behavior_name, action)
        if tracked_agent in decision_steps:
            single = ActionTuple(continuous=np.ones((1, 2), dtype=np.float32))
            env.set_action_for_agent(behavior_name, tracked_agent, single)
        env.step()
        decision_steps, terminal_steps = env.get_steps(behavior_name)
        if tracked_agent in decision_steps and tracked_agent not in terminal_steps:
            episode_rewards += decision_steps[tracked_agent].reward
        if tracked_agent in terminal_steps:
            episode_rewards += terminal_steps[tracked_agent].reward
            done = True
    returns.append(episode_rewards)
env.close()
assert all(0 <= value < 100 for value in returns), returns
print("done")
