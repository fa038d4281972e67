"""What goes wrong is caught under Unity's names."""

import numpy as np
from mlagents_envs.base_env import ActionTuple
from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.exception import (
    UnityActionException,
    UnityEnvironmentException,
    UnityException,
    UnityTimeOutException,
    UnityWorkerInUseException,
)

first = UnityEnvironment("Basic", base_port=5123)
try:
    UnityEnvironment("Basic", base_port=5123)
    raise AssertionError("the port is taken")
except UnityWorkerInUseException:
    pass
try:
    first.get_steps("Basic?team=0")
    raise AssertionError("there is no behavior before the first reset")
except UnityActionException:
    pass
first.reset()
name = list(first.behavior_specs)[0]
try:
    first.set_actions(name, ActionTuple(discrete=np.zeros((3, 1), dtype=np.int32)))
    raise AssertionError("there is one agent")
except UnityActionException:
    pass
for call in (first.get_steps, lambda unknown: first.set_actions(unknown, ActionTuple())):
    try:
        call("Unknown?team=0")
        raise AssertionError("there is no such behavior")
    except UnityActionException:
        pass
try:
    first.set_action_for_agent(name, 99, ActionTuple(discrete=np.zeros((1, 1), dtype=np.int32)))
    raise AssertionError("there is no such agent")
except UnityException:
    raise
except IndexError:
    pass
first.close()
for error in (UnityTimeOutException, UnityEnvironmentException):
    assert issubclass(error, UnityException)
try:
    first.step()
    raise AssertionError("it is closed")
except UnityTimeOutException:
    raise
except UnityEnvironmentException:
    pass
print("done")
