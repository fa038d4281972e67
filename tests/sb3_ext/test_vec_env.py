"""`UnityVecEnv` and plain SB3 algorithms on it."""

import copy
import io
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

import unity_gym
from sb3_ext import BC, POCA, OnnxPolicy, UnityVecEnv, algorithm
from sb3_ext import PPO as UnityPPO  # noqa: N811
from sb3_ext import SAC as UnitySAC  # noqa: N811
from sb3_ext.networks.entities import EntityAttention
from stand_ins import all_sensors_player, changing_agents_player, scripted_player, stress_player
from stand_ins.changing_agents_player import COMES, ENDS
from unity_gym.demonstrations import record
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import ObservationSpec

GRAVITY_OFF = {"environment_parameters": {"gravity": 0.0}}


def test_3dball_has_its_twelve_agents() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    assert env.num_envs == 12
    observations = env.reset()
    assert observations.shape == (12, 8)
    assert observations.dtype == np.float32
    assert len(np.unique(observations[:, 0])) == 12
    env.close()


def test_rows_of_several_players_are_concatenated_and_have_different_seeds() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", n_instances=2, seed=0)
    observations = env.reset()
    assert observations.shape == (24, 8)
    assert not np.array_equal(observations[:12], observations[12:])
    env.step(np.zeros((24, 2), np.float32))
    env.close()


def test_a_failed_episode_is_not_truncated_and_keeps_its_last_observation() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    env.reset()
    returns = np.zeros(12)
    ends = 0
    for _ in range(60):
        observations, rewards, dones, infos = env.step(np.ones((12, 2), np.float32))
        returns += rewards
        for row in np.flatnonzero(dones):
            final = infos[row]["terminal_observation"]
            assert not infos[row]["TimeLimit.truncated"]
            assert final[3] < -2 or abs(final[2]) > 3 or abs(final[4]) > 3
            assert observations[row][3] > 2.5  # the next episode
            assert rewards[row] == -1
            assert infos[row]["episode"]["r"] == pytest.approx(returns[row], abs=1e-5)
            returns[row] = 0
            ends += 1
        assert all("terminal_observation" not in infos[row] for row in np.flatnonzero(~dones))
    assert ends >= 12
    env.close()


def test_the_step_limit_truncates_the_episode() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0, **GRAVITY_OFF)
    env.reset()
    for step in range(1000):
        _, _, dones, infos = env.step(np.zeros((12, 2), np.float32))
        assert dones.all() == (step == 999)
    assert all(info["TimeLimit.truncated"] for info in infos)
    assert all(info["episode"]["l"] == 1000 for info in infos)
    assert [info["episode"]["r"] for info in infos] == pytest.approx([100.0] * 12, abs=1e-3)
    np.testing.assert_allclose(np.stack([info["terminal_observation"] for info in infos])[:, 3], 4.0, atol=0.05)
    env.close()


def test_a_seed_determines_the_whole_course() -> None:
    def transcript(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        env.seed(seed)
        rows = [env.reset()]
        for _ in range(200):
            observations, rewards, dones, _ = env.step(rng.uniform(-1, 1, (12, 2)).astype(np.float32))
            rows.append(np.column_stack([observations, rewards, dones]))
        return rows

    env = UnityVecEnv("Unity-3DBall-v0", seed=5)
    first, again, other = transcript(11), transcript(11), transcript(12)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    env.close()


def test_returned_arrays_are_the_callers_own() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    first = env.reset()
    kept = first.copy()
    env.step(np.ones((12, 2), np.float32))
    np.testing.assert_array_equal(first, kept)
    env.close()


@pytest.mark.parametrize(
    ("algorithm", "policy", "env_id", "settings"),
    [
        (PPO, "MlpPolicy", "Unity-3DBall-v0", {"n_steps": 32, "batch_size": 96}),
        (SAC, "MlpPolicy", "Unity-3DBall-v0", {"learning_starts": 100, "train_freq": 8, "buffer_size": 2000}),
        (RecurrentPPO, "MlpLstmPolicy", "Unity-3DBall-v0", {"n_steps": 32, "batch_size": 96}),
        (MaskablePPO, "MlpPolicy", "Unity-Basic-v0", {"n_steps": 64, "batch_size": 32}),
    ],
)
def test_plain_algorithms_run_unmodified(algorithm: type, policy: str, env_id: str, settings: dict) -> None:
    env = UnityVecEnv(env_id, seed=0)
    model = algorithm(policy, env, seed=0, **settings)
    model.learn(400)
    assert model.num_timesteps >= 400
    assert len(model.ep_info_buffer) > 0
    env.close()


def test_sb3s_wrappers_work() -> None:
    env = VecNormalize(VecMonitor(UnityVecEnv("Unity-3DBall-v0", seed=0)))
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=96)
    model.learn(400)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=12, warn=False)
    assert np.isfinite(mean)
    env.close()


def test_masks_are_true_where_allowed() -> None:
    env = UnityVecEnv("Unity-Basic-v0")
    assert env.has_attr("action_masks")
    np.testing.assert_array_equal(np.stack(env.env_method("action_masks")), [[True, True, True]])
    env.close()
    continuous = UnityVecEnv("Unity-3DBall-v0")
    assert not continuous.has_attr("action_masks")
    continuous.close()


def test_rows_that_wait_do_not_act_behind_a_wrapper(tmp_path: Path) -> None:
    class Counted(UnityVecEnv):
        asked, rows = 0, 0

        def step_async(self, actions: np.ndarray) -> None:
            self.asked += int(self.table.requests_decision.sum())
            self.rows += self.num_envs
            super().step_async(actions)

    env = Counted(
        file_name=stress_player.launcher(tmp_path),
        behavior="Runner",
        num_envs=12,
        wait_for="any",
        no_graphics=False,
        log_folder=tmp_path,
        seed=1,
    )
    model = UnityPPO("UnityPolicy", VecMonitor(env), buffer_size=200, batch_size=50, policy_kwargs={"hidden_units": 8})
    with pytest.warns(UserWarning, match="have not requested a decision") as caught:
        model.learn(400)
    (rows,) = re.findall(r"the rows \[(.*?)\]", " ".join(str(warning.message) for warning in caught))
    assert 0 < len(rows.split(", ")) < 10, "those that wait, of 12"
    assert model.num_timesteps == env.asked < env.rows / 2
    env.close()


def test_predict_takes_the_masks_of_the_present_state_of_the_models_own_environment() -> None:
    env, other = UnityVecEnv("Unity-Match3Vector-v0", seed=0), UnityVecEnv("Unity-Match3Vector-v0", seed=1)
    memory = {"hidden_units": 8, "memory_size": 16, "sequence_length": 8}
    model = UnityPPO("UnityPolicy", env, buffer_size=48, batch_size=24, policy_kwargs=memory)
    observations, state = env.reset(), None
    for _ in range(20):
        actions, state = model.predict(observations, state)
        assert env.action_masks()[np.arange(env.num_envs), actions].all()
        observations, *_ = env.step(actions)
    with pytest.warns(UserWarning, match=r"predict\(\) got no action_masks"):
        model.predict(other.reset())
    env.close()
    other.close()


def test_environments_of_other_kinds_raise_with_a_remedy() -> None:
    with pytest.raises(InvalidValueError, match="env_id must be a registered id"):
        UnityVecEnv(gym.make("Unity-Basic-v0"))  # type: ignore[arg-type]
    for env in (gym.make_vec("Unity-Basic-v0", num_envs=8), unity_gym.parallel_env("Unity-Basic-v0")):
        with pytest.raises(UnityGymError, match=r"an algorithm needs a VecEnv, such as UnityVecEnv"):
            UnityPPO("UnityPolicy", env)  # type: ignore[arg-type]
        env.close()


def test_a_model_of_another_class_raises_with_the_remedy(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-Basic-v0")
    PPO("MlpPolicy", env, n_steps=8, batch_size=8).save(tmp_path / "plain.zip")
    env.close()
    with pytest.raises(
        UnityGymError, match=r"plain\.zip is no model of sb3_ext\.PPO: .*Load it with the class that saved"
    ):
        UnityPPO.load(tmp_path / "plain.zip")


def test_a_model_of_another_algorithm_raises_with_its_name(tmp_path: Path) -> None:
    class OwnPPO(UnityPPO):
        """A user's class."""

    OwnPPO("UnityPolicy", "CartPole-v1", buffer_size=64, batch_size=32, device="cpu").save(tmp_path / "model.zip")
    for kind in (UnitySAC, POCA, BC):
        with pytest.raises(UnityGymError, match=rf"PPO has saved this model, not {kind.__name__}: load it with PPO"):
            kind.load(tmp_path / "model.zip")
    UnityPPO.load(tmp_path / "model.zip")


def test_observations_of_any_numeric_type_are_taken() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", num_envs=1)
    model = UnityPPO("UnityPolicy", env, buffer_size=64, batch_size=32, device="cpu")
    expected, _ = model.predict(np.zeros(8, np.float32), deterministic=True)
    for zeros in (np.zeros(8), np.zeros(8, int), [0.0] * 8):
        np.testing.assert_array_equal(model.predict(zeros, deterministic=True)[0], expected)
    env.close()


@pytest.mark.parametrize("subprocesses", [False, True])
def test_a_single_agent_with_hybrid_actions_learns_and_is_evaluated(subprocesses: bool) -> None:
    kind = SubprocVecEnv if subprocesses else DummyVecEnv
    env = kind([lambda: gym.make("unity_gym:Unity-PushBlockWithInput-v0", max_episode_steps=20)] * 2)
    model = UnityPPO("UnityPolicy", env, buffer_size=64, batch_size=32, device="cpu")
    model.learn(64)
    if not subprocesses:
        assert len(evaluate_policy(model, env, 2, return_episode_rewards=True, warn=False)[0]) == 2
    env.close()


def test_wrong_options_raise_where_they_are_given() -> None:
    env = UnityVecEnv("Unity-Basic-v0")
    with pytest.raises(InvalidValueError, match="'mass': 'x'"):
        env.set_options({"mass": "x"})
    env.reset()
    env.close()


def test_wrong_calls_raise() -> None:
    with pytest.raises(InvalidValueError, match="Unity-3DBall-v0"):
        UnityVecEnv("Unity-Elsewhere-v0")
    with pytest.raises(UnityGymError, match="file_name"):
        UnityVecEnv("Unity-v0", n_instances=2)
    env = UnityVecEnv("Unity-3DBall-v0")
    with pytest.raises(UnityGymError, match="action_masks"):
        env.env_method("fly")
    for different in ([{"gravity": 1.0}] + [{"gravity": 2.0}] * 11, [{"gravity": 1.0}], []):
        with pytest.raises(UnityGymError, match="options must be one dict, or 12 equal ones"):
            env.set_options(different)
    for copied in (copy.deepcopy, pickle.dumps, lambda env: PPO("MlpPolicy", env).save(io.BytesIO(), include=["env"])):
        with pytest.raises(UnityGymError, match="neither copied nor pickled: pass a function that makes one"):
            copied(env)
    env.set_options([{"gravity": 1.0}] * 12)
    env.reset()
    assert env.copies().options.environment_parameters["gravity"] == 1
    env.close()
    env.close()


def test_without_render_mode_there_are_no_images() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", num_areas=4)
    assert env.get_images() == [None] * 4
    env.close()


def test_camera_images_are_tiled() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", num_areas=4, render_mode="rgb_array")
    env.reset()
    images = env.get_images()
    assert len(images) == 4
    height, width, _ = images[0].shape
    tiles = env.render()
    assert tiles is not None
    assert tiles.shape == (2 * height, 2 * width, 3)
    env.close()


@pytest.mark.slow
def test_maskable_ppo_learns_from_camera_goal_and_mask() -> None:
    """On a grid of 2 × 2 cells in half a minute; walking to either object at random has return 0."""
    env = UnityVecEnv("Unity-GridWorld-v0", num_areas=32, seed=0, environment_parameters={"gridSize": 2})
    network = {"net_arch": [128, 128], "activation_fn": torch.nn.ReLU}
    settings = {"n_steps": 32, "batch_size": 64, "n_epochs": 3, "learning_rate": 5e-4, "gamma": 0.9}
    model = MaskablePPO("MultiInputPolicy", env, ent_coef=0.005, policy_kwargs=network, seed=0, **settings)
    model.learn(10_240)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 0.6
    env.close()


def test_reserved_rows_wait_for_agents_that_spawn_late(tmp_path: Path) -> None:
    env = UnityVecEnv(file_name=changing_agents_player.launcher(tmp_path), behavior="Keeper", num_envs=3)
    observations = env.reset()
    assert observations["vector"].shape == (3, 2)
    assert not observations["vector"][1:].any()
    assert [info["alive"] for info in env.reset_infos] == [True, False, False]
    actions = {"continuous": np.full((3, 2), 0.5, np.float32), "discrete": np.zeros(3, int)}
    lengths = {}
    for step in range(1, ENDS + 1):
        _, rewards, dones, infos = env.step(actions)
        came = step >= COMES
        assert [info["alive"] for info in infos] == [True, came and step < ENDS, False]
        assert rewards.tolist() == [0.5, 0.5 if step > COMES else 0, 0]
        assert dones.tolist() == [step == ENDS, step == ENDS, False]
        lengths |= {row: info["episode"]["l"] for row, info in enumerate(infos) if "episode" in info}
    assert lengths == {0: ENDS, 1: ENDS - COMES}
    env.close()


def test_more_agents_than_rows_raise_with_the_number(tmp_path: Path) -> None:
    file_name = changing_agents_player.launcher(tmp_path)
    with pytest.raises(UnityGymError, match=r"show 2 agents of 'Striker.team=0': pass num_envs=2"):
        UnityVecEnv(file_name=file_name, behavior="Striker?team=0", num_envs=1)
    env = UnityVecEnv(file_name=file_name, behavior="Keeper")
    env.reset()
    actions = {"continuous": np.zeros((1, 2), np.float32), "discrete": np.zeros(1, int)}
    for _ in range(COMES - 1):
        env.step(actions)
    with pytest.raises(UnityGymError, match="pass num_envs=2"):
        env.step(actions)
    env.close()


def sensors_of(model: UnityPPO) -> list[ObservationSpec]:
    return list(model.policy.adapter.spec.observation_specs)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_wrappers_that_keep_the_space_keep_unitys_sensors(dtype: str, tmp_path: Path) -> None:
    build = all_sensors_player.launcher(tmp_path)
    env = UnityVecEnv("Unity-v0", file_name=build, num_envs=4, no_graphics=False, visual_dtype=dtype)
    expected = list(env.table.spec.observation_specs)
    assert [sensor.shape for sensor in expected] == [(3, 20, 20), (4, 2), (2,), (3,)]
    model = UnityPPO("UnityPolicy", VecMonitor(env), buffer_size=40, batch_size=20, device="cpu")
    assert sensors_of(model) == expected
    assert any(isinstance(part, EntityAttention) for part in model.policy.body.modules())
    model.learn(60)
    model.export_onnx(tmp_path / "model.onnx")
    for form in (env, VecMonitor(env), VecMonitor(VecMonitor(env))):
        assert list(OnnxPolicy(tmp_path / "model.onnx", form).spec.observation_specs) == expected
    model.set_env(env)  # whose agents act one by one
    model.learn(60)
    normalized = UnityPPO("UnityPolicy", VecNormalize(env, norm_obs_keys=["vector"]), device="cpu")
    assert sensors_of(normalized) != expected  # the empty rows of entities would not be recognized
    stacked = UnityPPO("UnityPolicy", VecFrameStack(env, 2), device="cpu")  # one array per key of another space
    assert {sensor.shape for sensor in sensors_of(stacked)} >= {(16,), (10,)}
    env.close()


@pytest.mark.parametrize("door", ["make", "dummy", "subprocess", "rescaled"])
def test_a_single_agent_is_seen_with_unitys_sensors(door: str, tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.make("Unity-v0", file_name=scripted_player.launcher(tmp_path, "entities"), no_graphics=False)

    unity_env = UnityVecEnv(file_name=scripted_player.launcher(tmp_path, "entities"), no_graphics=False)
    expected = unity_env.table.spec
    unity_env.close()
    assert (4, 5) in [sensor.shape for sensor in expected.observation_specs]
    env: Any = {
        "make": make,
        "dummy": lambda: VecMonitor(DummyVecEnv([make])),
        "subprocess": lambda: VecMonitor(SubprocVecEnv([make])),
        "rescaled": lambda: gym.wrappers.RescaleAction(make(), np.float32(0), np.float32(4)),
    }[door]()
    model = UnityPPO("UnityPolicy", env, n_steps=8, batch_size=8, device="cpu")
    assert model.policy.adapter.spec == expected
    model.learn(8)
    model.export_onnx(tmp_path / "model.onnx")
    policy = OnnxPolicy(tmp_path / "model.onnx", env)
    assert policy.spec == expected
    assert policy.action_space == env.action_space
    env.close()


def test_a_model_that_was_saved_with_flat_sensors_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"file_name": all_sensors_player.launcher(tmp_path), "num_envs": 4, "no_graphics": False}
    env = VecMonitor(UnityVecEnv("Unity-v0", visual_dtype="float32", **options))
    with monkeypatch.context() as earlier:
        earlier.setattr(algorithm, "unity_behavior", lambda _: None)
        model = UnityPPO("UnityPolicy", env, buffer_size=40, batch_size=20, device="cpu")
        model.save(tmp_path / "model.zip")
    assert {sensor.shape for sensor in sensors_of(model)} == {(1200,), (8,), (5,)}
    observations = env.reset()
    expected, _ = model.predict(observations, deterministic=True)
    loaded, other = UnityPPO.load(tmp_path / "model.zip", env), UnityPPO.load(tmp_path / "model.zip")
    other.set_env(env)
    for each in (loaded, other):
        actions, _ = each.predict(observations, deterministic=True)
        np.testing.assert_array_equal(actions["continuous"], expected["continuous"])
        each.learn(60)
        assert each.num_timesteps >= 60
    other.set_env(env.unwrapped)
    with pytest.raises(UnityGymError, match="incompatible with the behavior spec"):  # its agents have other arrays
        other.learn(60)
    env.close()


class HalvedActions(VecEnvWrapper):
    """Wrapper of twice the range of actions."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv, action_space=gym.spaces.Box(-2, 2, venv.action_space.shape, np.float32))

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(actions / 2)

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def test_the_actions_that_unity_receives_behind_a_wrapper_are_recorded(tmp_path: Path) -> None:
    env = HalvedActions(UnityVecEnv("Unity-3DBall-v0"))
    demonstration = record(env, lambda _: np.full((12, 2), 0.5, np.float32), tmp_path / "balls.demo", 2)
    env.close()
    assert len(demonstration) > 5
    np.testing.assert_allclose(demonstration.actions.continuous, 0.25)


def test_agents_that_decide_in_turn_are_reported(tmp_path: Path) -> None:
    env = UnityVecEnv(file_name=scripted_player.launcher(tmp_path, "turns"), num_envs=2)
    env.reset()
    with pytest.warns(UserWarning, match=r"requested decisions at different times.*pass wait_for=\"any\""):
        env.step(np.zeros((2, 1), np.float32))
    env.close()


@pytest.mark.parametrize(("script", "options"), [("turns", {"wait_for": "any"}), ("periods", {"n_instances": 2})])
def test_agents_are_not_reported_if_each_acts_when_it_decides(tmp_path: Path, script: str, options: Any) -> None:
    """Also if two players decide at different times: each is stepped until its own agents decide."""
    env = UnityVecEnv(file_name=scripted_player.launcher(tmp_path, script), num_envs=2, **options)
    env.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*different times")
        for _ in range(3):
            env.step(np.zeros((2, 1), np.float32))
    env.close()


def test_the_memory_of_an_agent_advances_with_its_own_decisions(tmp_path: Path) -> None:
    env = UnityVecEnv(file_name=scripted_player.launcher(tmp_path, "turns"), num_envs=2, wait_for="any")
    model = UnityPPO("UnityPolicy", env, device="cpu", policy_kwargs={"memory_size": 8, "hidden_units": 8})
    observations, state = env.reset(), None
    for step in range(6):
        before = state
        actions, state = model.predict(observations, state)
        assert state is not None
        if before is not None:
            assert (state[0] != before[0]).any(1).tolist() == [step % 2 == 0, step % 2 == 1]
        observations = env.step(actions)[0]
    env.close()


def test_workers_that_do_not_run_the_script_import_the_package_by_the_prefix_of_the_id() -> None:
    """As in a notebook, whose cells the processes of SB3's `SubprocVecEnv` do not run."""
    code = (
        "from stable_baselines3.common.env_util import make_vec_env\n"
        "from stable_baselines3.common.vec_env import SubprocVecEnv\n"
        "env = make_vec_env('unity_gym:Unity-Basic-v0', 2, vec_env_cls=SubprocVecEnv)\n"
        "print(env.reset().shape)\n"
        "env.close()\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert finished.stdout == "(2, 20)\n", finished.stderr
