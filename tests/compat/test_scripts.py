"""Scripts like those of public tutorials for Unity's Python packages run unchanged on embedded scenes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stand_ins import faulty_player, scripted_player
from stand_ins.scene_launcher import SUFFIX
from unity_gym.compat import environment as compat_environment
from unity_gym.compat import exceptions
from unity_gym.compat.engine_configuration import EngineConfigurationChannel
from unity_gym.compat.modules import MODULES, NOT_PROVIDED
from unity_gym.compat.pettingzoo_wrappers import UnityParallelEnv
from unity_gym.environment import UnityEnvironment
from unity_gym.errors import NotReadyError, UnityGymError
from unity_gym.side_channels import StatsSideChannel

SCRIPTS = Path(__file__).parent / "scripts"
SCENES = {
    "low_level_loop": "3DBall",
    "registry_gridworld": None,
    "q_learning": None,
    "custom_side_channel": "Basic",
    "engine_configuration": "3DBall",
    "gym_ppo": "Basic",
    "gym_dqn": "Sorter",
    "gym_ddpg": "3DBall",
    "gym_images": "GridWorld",
    "parallel_maddpg": "SoccerTwos",
    "aec_loop": None,
    "exceptions": "Basic",
    "timers": "Basic",
}


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unity_gym.compat", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)


def test_every_script_is_run() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == SCENES.keys()


@pytest.mark.parametrize("script", SCENES)
def test_a_script_for_unitys_packages_runs_unchanged(script: str) -> None:
    if "import torch" in (SCRIPTS / f"{script}.py").read_text():
        pytest.importorskip("torch")
    scene = SCENES[script]
    options = [] if scene is None else ["--scene", scene]
    if script.startswith("gym_"):
        options += ["--areas", "1"]
    result = run(*options, str(SCRIPTS / f"{script}.py"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "done"


def test_a_parallel_loop_continues_where_no_agent_takes_an_action(tmp_path: Path) -> None:
    """As Unity's: `step({})` waits for the next episode; only actions for no agent are an error."""
    env = UnityParallelEnv(UnityEnvironment(scripted_player.launcher(tmp_path, "pause"), no_graphics=True))
    env.reset()
    acted = []
    for _ in range(6):
        acted.append(len(env.agents))
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    assert sorted(set(acted)) == [0, 1]
    while env.agents:
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    with pytest.raises(NotReadyError):
        env.step({"Walker?agent_id=1": None})
    env.close()


def test_a_script_gets_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, mlagents_envs; print(mlagents_envs.__version__, sys.argv[1:])")
    assert run(str(script), "--scene", "x").stdout == "1.1.0 ['--scene', 'x']\n"


def test_a_package_has_its_modules_without_importing_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mlagents_envs; print(mlagents_envs.base_env.ActionTuple.__name__); mlagents_envs.unknown")
    result = run(str(script))
    assert result.stdout == "ActionTuple\n"
    assert "module 'mlagents_envs' has no attribute 'unknown'" in result.stderr


def test_every_module_has_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib, inspect, os\n"
        f"for name in {list(MODULES)}:\n"
        "    assert os.path.isfile(inspect.getfile(importlib.import_module(name)))\n"
        "print('done')\n"
    )
    result = run(str(script))
    assert result.stdout == "done\n", result.stderr


def test_a_closed_environment_returns_the_last_state() -> None:
    env = compat_environment.UnityEnvironment("embedded:Basic", seed=1)
    env.reset()
    ((name, spec),) = env.behavior_specs.items()
    env.step()
    decisions, terminals = env.get_steps(name)
    env.close()
    assert env.get_steps(name) == (decisions, terminals)
    env.set_actions(name, spec.action_spec.empty_action(len(decisions)))  # Unity's accepts actions, too
    with pytest.raises(exceptions.UnityActionException, match="is closed"):
        env.get_steps("Other")
    for call in (env.step, env.reset):
        with pytest.raises(exceptions.UnityEnvironmentException, match="is closed"):
            call()


def test_a_missing_script_is_named() -> None:
    result = run("nothing.py")
    assert result.returncode == 2
    assert "nothing.py" in result.stderr


def test_images_of_low_level_steps_are_channel_last_where_asked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mlagents_envs.registry import default_registry\n"
        "env = default_registry['GridWorld'].make()\n"
        "env.reset()\n"
        "(name, spec), = env.behavior_specs.items()\n"
        "print(spec.observation_specs[0].shape, env.get_steps(name)[0].obs[0].shape[1:])\n"
        "env.close()\n"
    )
    assert run(str(script)).stdout == "(3, 64, 84) (3, 64, 84)\n"
    assert run("--image-layout", "HWC", str(script)).stdout == "(64, 84, 3) (64, 84, 3)\n"


def test_steps_of_no_agent_have_no_action_mask(tmp_path: Path) -> None:
    """In WallJump, an agent changes between two behaviors, so that one of them has no agent."""
    script = tmp_path / "script.py"
    script.write_text(
        "from mlagents_envs.base_env import DecisionSteps\n"
        "from mlagents_envs.environment import UnityEnvironment\n"
        "env = UnityEnvironment('a build')\n"
        "env.reset()\n"
        "sizes = set()\n"
        "while len(env.behavior_specs) < 2 or len(sizes) < 2:\n"
        "    for name, spec in env.behavior_specs.items():\n"
        "        steps, _ = env.get_steps(name)\n"
        "        assert isinstance(steps, DecisionSteps) and steps is env.get_steps(name)[0]\n"
        "        if len(steps):\n"
        "            assert [len(mask[0]) for mask in steps.action_mask] == [3, 3, 3, 2]\n"
        "        else:\n"
        "            assert steps.action_mask is None\n"
        "        assert DecisionSteps.empty(spec).action_mask is None\n"
        "        sizes.add(len(steps))\n"
        "        env.set_actions(name, spec.action_spec.random_action(len(steps)))\n"
        "    env.step()\n"
        "env.close()\n"
        "print('done')\n"
    )
    result = run("--scene", "WallJump", "--areas", "1", str(script))
    assert result.stdout == "done\n", result.stderr


def test_the_gym_wrapper_names_the_behaviors_between_which_an_agent_changes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from gym_unity.envs import UnityToGymWrapper\n"
        "from mlagents_envs.environment import UnityEnvironment\n"
        "env = UnityToGymWrapper(UnityEnvironment('WallJump'))\n"
        "for _ in range(50):\n"
        "    env.reset()\n"
    )
    result = run("--scene", "WallJump", "--areas", "1", str(script))
    assert "got ['BigWallJump?team=0', 'SmallWallJump?team=0']: use gymnasium.make" in result.stderr


def test_a_registry_of_builds_launches_embedded_scenes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mlagents_envs.registry import UnityEnvRegistry\n"
        "from mlagents_envs.registry.remote_registry_entry import RemoteRegistryEntry\n"
        "registry = UnityEnvRegistry()\n"
        "for name in ('Basic', 'Mine'):\n"
        "    urls = [f'https://example.com/{system}/{name}.zip' for system in ('linux', 'darwin', 'win')]\n"
        "    registry.register(RemoteRegistryEntry(name, 0.9, 'A scene', *urls, ['-scene', name], tmp_dir='builds'))\n"
        "env = registry['Basic'].make()\n"
        "env.reset()\n"
        "print(list(env.behavior_specs), registry['Basic'].expected_reward, registry['Basic'].description)\n"
        "env.close()\n"
        "registry['Mine'].make()\n"
    )
    result = run(str(script))
    assert result.stdout == "['Basic?team=0'] 0.9 A scene\n", result.stderr
    assert "'Mine' is none of the embedded scenes" in result.stderr
    assert "download the build" in result.stderr


def test_unitys_own_packages_stay_in_use_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "mlagents_envs").mkdir()
    (tmp_path / "mlagents_envs" / "__init__.py").write_text("__version__ = 'theirs'")
    script = (
        "import sys, warnings; sys.path.insert(0, sys.argv[1])\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import unity_gym.compat\n"
        "import mlagents_envs, gym_unity.envs\n"
        "print(mlagents_envs.__version__, 'mlagents_envs is installed' in str(caught[0].message))\n"
        "del sys.modules['mlagents_envs']\n"
        "unity_gym.compat.install(replace=True)\n"
        "import mlagents_envs.environment\n"
        "print(mlagents_envs.__version__, mlagents_envs.environment.UnityEnvironment.__module__)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.splitlines() == ["theirs True", "1.1.0 unity_gym.compat.environment"], result.stderr


def test_the_gym_wrapper_resets_a_new_environment_as_often_as_unitys(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mlagents_envs.environment import UnityEnvironment\n"
        "from mlagents_envs.envs.unity_gym_env import UnityToGymWrapper\n"
        "class Counted(UnityEnvironment):\n"
        "    resets = 0\n"
        "    def reset(self):\n"
        "        self.resets += 1\n"
        "        super().reset()\n"
        "for is_new in (True, False):\n"
        "    env = Counted('Basic')\n"
        "    is_new or env.reset()\n"
        "    UnityToGymWrapper(env)\n"
        "    print(env.resets)\n"
        "    env.close()\n"
    )
    assert run("--scene", "Basic", "--areas", "1", str(script)).stdout == "2\n2\n"


def test_an_aec_agent_has_a_turn_at_the_end_of_its_episode_and_one_at_the_start_of_the_next(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mlagents_envs.environment import UnityEnvironment\n"
        "from mlagents_envs.envs.unity_aec_env import UnityAECEnv\n"
        "from mlagents_envs.envs.unity_parallel_env import UnityParallelEnv\n"
        "low = UnityEnvironment('GridWorld', seed=1)\n"
        "env = UnityAECEnv(low)\n"
        "env.reset()\n"
        "ends = 0\n"
        "while ends < 3:\n"
        "    agent = env.agent_selection\n"
        "    observation, reward, done, info = env.last()\n"
        "    if done:\n"
        "        ends += 1\n"
        "        decisions, terminals = low.get_steps('GridWorld?team=0')\n"
        "        key = int(agent.rpartition('=')[2])\n"
        "        assert (observation[0] == terminals[key].obs[0]).all() and reward == terminals[key].reward != 0\n"
        "        assert info['interrupted'] is False and env.agents.count(agent) == 1\n"
        "        env.step(None)\n"
        "        assert env.agent_selection == agent and 'interrupted' in info\n"
        "        observation, reward, done, info = env.last()\n"
        "        assert (observation['observation'][0] == decisions[key].obs[0]).all() and reward == 0 and not done\n"
        "        assert 'interrupted' not in info\n"
        "    env.step(env.action_space(agent).sample())\n"
        "game = UnityParallelEnv(low)\n"
        "game.reset()\n"
        "dones = dict.fromkeys(game.agents, False)\n"
        "while not any(dones.values()):\n"
        "    _, _, dones, _ = game.step({agent: game.action_space(agent).sample() for agent in game.agents})\n"
        "game.step({agent: None if dones[agent] else game.action_space(agent).sample() for agent in game.agents})\n"
        "env.close()\n"
        "print('done')\n"
    )
    result = run("--scene", "GridWorld", str(script))
    assert result.stdout == "done\n", result.stderr


def test_a_library_that_needs_gymnasiums_interface_gets_an_error_with_a_remedy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium as gym\n"
        "from mlagents_envs.environment import UnityEnvironment\n"
        "from mlagents_envs.envs.unity_gym_env import UnityToGymWrapper\n"
        "env = UnityToGymWrapper(UnityEnvironment('Basic'))\n"
        "vector_env = gym.vector.SyncVectorEnv([lambda: env])\n"
        "try:\n"
        "    vector_env.reset(seed=1)\n"
        "finally:\n"
        "    env.close()\n"
    )
    result = run("--scene", "Basic", "--areas", "1", str(script))
    assert "UnityGymException: reset() must be called without arguments, got seed" in result.stderr
    assert "gymnasium.make('Unity-v0', file_name=...)" in result.stderr


def test_unitys_exceptions_are_siblings() -> None:
    """A clause for one of them lets the others pass to the next clauses, as with Unity's."""
    base = exceptions.UnityException
    assert base is UnityGymError
    classes = [getattr(exceptions, name) for name in MODULES["mlagents_envs.exception"] if name != "UnityException"]
    for one in classes:
        assert issubclass(one, base)
        assert [other for other in classes if issubclass(one, other)] == [one]


@pytest.mark.parametrize(
    ("fault", "exception"),
    [
        ("die-in-step", exceptions.UnityEnvironmentException),
        ("hang-in-step", exceptions.UnityTimeOutException),
        ("quit-in-step", exceptions.UnityCommunicatorStoppedException),
        ("short-observation", exceptions.UnityObservationException),
        ("broken-side-channel", exceptions.UnityEnvironmentException),
    ],
)
def test_faults_of_a_player_have_unitys_exceptions(tmp_path: Path, fault: str, exception: type[UnityGymError]) -> None:
    env = compat_environment.UnityEnvironment(
        faulty_player.launcher(tmp_path, fault), side_channels=[StatsSideChannel()]
    )
    env.reset()
    env._timeout = 1  # only now: the launch may take longer
    with pytest.raises(exception, match=fault + SUFFIX) as raised:
        env.step()
    assert type(raised.value) is exception
    assert raised.value.worker == 0
    with pytest.raises(exceptions.UnityEnvironmentException, match="is closed") as closed:
        env.step()
    assert isinstance(closed.value.__cause__, NotReadyError)


def test_failed_launches_have_unitys_exceptions(tmp_path: Path) -> None:
    channels = [StatsSideChannel(), StatsSideChannel()]
    for message, arguments in {
        "There is no player": {"file_name": str(tmp_path / "absent")},
        "communication version 2": {"file_name": faulty_player.launcher(tmp_path, "version-2")},
        "two side channels": {"file_name": "embedded:Basic", "side_channels": channels},
        "worker_id must be 0": {"worker_id": 1},
    }.items():
        with pytest.raises(exceptions.UnityEnvironmentException, match=message) as raised:
            compat_environment.UnityEnvironment(**arguments)
        assert type(raised.value) is exceptions.UnityEnvironmentException


def test_half_a_resolution_has_unitys_exception() -> None:
    channel = EngineConfigurationChannel()
    with pytest.raises(exceptions.UnitySideChannelException, match="width=100, height=None"):
        channel.set_configuration_parameters(time_scale=5.0, width=100)
    assert channel.message_queue == []


def test_modules_without_a_replacement_are_named_with_a_remedy(tmp_path: Path) -> None:
    names = [name.rpartition(".")[::2] for name in NOT_PROVIDED]
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib\n"
        f"for package, name in {names}:\n"
        "    for statement in (f'import {package}.{name}', f'from {package} import {name}'):\n"
        "        try:\n"
        "            exec(statement)\n"
        "        except ModuleNotFoundError as error:\n"
        "            print(error)\n"
    )
    result = run(str(script))
    expected = [f"unity_gym.compat has no {name}; {remedy}" for name, remedy in NOT_PROVIDED.items() for _ in range(2)]
    assert result.stdout.splitlines() == expected, result.stderr


PROCESSES = """
import multiprocessing, sys
from pathlib import Path
from mlagents_envs.environment import UnityEnvironment
from neighbor import LABEL

class Result:
    def __init__(self, *values):
        self.values = values

def work(worker_id):
    assert sys.argv[1:] == ["an argument"] and Path(__file__).name == "script.py"
    env = UnityEnvironment("a build", worker_id=worker_id)
    env.reset()
    (name, spec), = env.behavior_specs.items()
    agents = len(env.get_steps(name)[0])
    env.close()
    return Result(LABEL, name, agents, spec.observation_specs[0].shape)

def send(connection):
    connection.send(work(0))

if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    with context.Pool(2) as pool:
        for result in pool.map(work, [0, 1]):
            print(*result.values)
    receiver, sender = context.Pipe()
    process = context.Process(target=send, args=(sender,))
    process.start()
    sender.close()
    print(*receiver.recv().values)
    process.join()
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_that_a_script_starts_have_its_modules_and_options(tmp_path: Path, method: str) -> None:
    (tmp_path / "neighbor.py").write_text("LABEL = 'neighbor'")
    script = tmp_path / "script.py"
    script.write_text(PROCESSES.replace("METHOD", repr(method)))
    options = ["--scene", "GridWorld", "--areas", "2", "--image-layout", "HWC"]
    result = run(*options, str(script), "an argument")
    assert result.stdout == "neighbor GridWorld?team=0 2 (64, 84, 3)\n" * 3, result.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_uses_the_vectorized_environments_of_stable_baselines3(tmp_path: Path, method: str) -> None:
    pytest.importorskip("stable_baselines3")
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium, numpy as np\n"
        "from mlagents_envs.environment import ActionTuple, UnityEnvironment\n"
        "from stable_baselines3.common.vec_env import SubprocVecEnv\n"
        "class Basic(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (20,))\n"
        "    action_space = gymnasium.spaces.Discrete(3)\n"
        "    def __init__(self):\n"
        "        self.env = UnityEnvironment('a build')\n"
        "    def reset(self, seed=None, options=None):\n"
        "        self.env.reset()\n"
        "        self.name, = self.env.behavior_specs\n"
        "        return self.env.get_steps(self.name)[0].obs[0][0], {}\n"
        "    def step(self, action):\n"
        "        self.env.set_actions(self.name, ActionTuple(discrete=np.full((1, 1), action)))\n"
        "        self.env.step()\n"
        "        decisions, terminals = self.env.get_steps(self.name)\n"
        "        steps = terminals or decisions\n"
        "        return steps.obs[0][0], steps.reward[0], bool(terminals), False, {}\n"
        "    def close(self):\n"
        "        self.env.close()\n"
        "if __name__ == '__main__':\n"
        f"    env = SubprocVecEnv([Basic, Basic], start_method={method!r})\n"
        "    env.reset()\n"
        "    for _ in range(20):\n"
        "        observations, *_ = env.step([2, 2])\n"
        "    env.close()\n"
        "    print(observations.shape)\n"
    )
    result = run("--scene", "Basic", "--areas", "1", str(script))
    assert result.stdout == "(2, 20)\n", result.stderr


def test_an_error_of_a_started_process_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os\n"
        "def fail():\n"
        "    raise ValueError('an error of the script')\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=fail)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    print(process.exitcode)\n"
        "    fail()\n"
    )
    result = run(str(script))
    assert result.returncode == 1
    assert result.stdout == "1\n"
    line = f"File \"{script}\", line 3, in fail\n    raise ValueError('an error of the script')\n"
    assert result.stderr.count(line) == 2
    assert result.stderr.count("\nValueError: an error of the script\n") == 2


def test_processes_use_the_packages_that_the_script_uses(tmp_path: Path) -> None:
    """Also where Unity's packages are installed."""
    (tmp_path / "mlagents_envs").mkdir()
    (tmp_path / "mlagents_envs" / "__init__.py").write_text("__version__ = 'theirs'")
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, mlagents_envs\n"
        "def show():\n"
        "    print(mlagents_envs.__version__, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    show()\n"
        "    process = multiprocessing.get_context('spawn').Process(target=show)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    for options, version in (([], "theirs"), (["--replace"], "1.1.0")):
        assert run(*options, str(script), env=environment).stdout == f"{version}\n" * 2


def test_the_module_of_a_script_needs_one() -> None:
    command = [sys.executable, "-m", "unity_gym.compat.script"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "must be started by `python -m unity_gym.compat SCRIPT`" in result.stderr
