"""The previous action as an input of recurrent policies: acting, learning, export, imitation and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import weights, write
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ext import BC, POCA, PPO, SAC, OnnxPolicy, Teacher
from sb3_ext.agents import SpaceAdapter, VecEnvAgents
from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.learn import main
from stand_ins.toy_environments import HYBRID, make_toys
from unity_gym.demonstrations import DemonstrationWriter
from unity_gym.errors import UnityGymError
from unity_gym.specs import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)

NETWORK = {"hidden_units": 16, "num_layers": 1, "memory_size": 8, "sequence_length": 4, "use_previous_action": True}


class Repeat(gym.Env):
    """The mask allows one random first action, which no observation contains; the second action has to repeat it."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.first, self.is_first = int(self.np_random.integers(3)), True
        return np.zeros(1, np.float32), {}

    def action_masks(self) -> np.ndarray:
        return np.arange(3) == self.first if self.is_first else np.ones(3, bool)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_first:
            self.is_first = False
            return np.zeros(1, np.float32), 0.0, False, False, {}
        return np.zeros(1, np.float32), float(action == self.first), True, False, {}


ON_POLICY = {
    "learning_rate_schedule": "constant",
    "buffer_size": 512,
    "batch_size": 128,
    "rollout": "cut",
    "advantage_normalization": "buffer",
}
RECIPES: dict[str, tuple[type[UnityAlgorithm], str, int, dict[str, Any]]] = {
    "PPO": (PPO, "UnityPolicy", 4096, ON_POLICY),
    "POCA": (POCA, "UnityPOCAPolicy", 4096, ON_POLICY),
    "SAC": (SAC, "UnitySACPolicy", 2500, {"steps_per_update": 8, "tau": 0.02, "init_entcoef": 0.1, "batch_size": 128}),
}


def repeated(model: UnityAlgorithm, episodes: int = 60) -> float:
    """Return the fraction of episodes in which the second action repeats the first."""
    env = Repeat()
    env.reset(seed=1)
    total = 0.0
    for _ in range(episodes):
        observation, _ = env.reset()
        action, state = model.predict(observation, None, np.ones(1, bool), action_masks=env.action_masks())
        observation, *_ = env.step(action)
        action, _ = model.predict(observation, state, np.zeros(1, bool), True, action_masks=env.action_masks())
        total += env.step(action)[1]
    return total / episodes


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_policy_learns_to_repeat_its_last_action(recipe: str) -> None:
    algorithm, policy, steps, options = RECIPES[recipe]
    env = DummyVecEnv([Repeat] * 16)
    network = NETWORK | {"sequence_length": 2}
    model = algorithm(  # type: ignore[call-arg]
        policy, env, learning_rate=5e-3, policy_kwargs=network, seed=3, device="cpu", **options
    )
    model.learn(steps)
    assert repeated(model) > 0.9


@pytest.mark.parametrize("actions", [spaces.Box(-2, 6, (3,), np.float32), spaces.MultiDiscrete([3, 2]), HYBRID])
@pytest.mark.parametrize("kind", [PPO, POCA])
def test_probabilities_over_stored_sequences_equal_those_of_acting(kind: type[PPO], actions: spaces.Space) -> None:
    policy = "UnityPolicy" if kind is PPO else "UnityPOCAPolicy"
    model = kind(policy, make_toys(actions), buffer_size=64, batch_size=32, policy_kwargs=NETWORK, seed=0, device="cpu")
    found = []
    estimate = model._estimate

    def compared(rollout: Any) -> None:
        estimate(rollout)
        length = model.policy.settings.sequence_length
        for batch in rollout.shuffled(32, length, drop_last=False):
            valid = slice(None) if batch.valid is None else batch.valid
            found.append((model.policy.log_probs(batch) - batch.log_probs)[valid].abs().max().item())
        # The update computes the same recurrent state as acting while the weights are equal.
        before = rollout.memory.clone()
        model.policy.refresh_memory(rollout)
        first = rollout.sequences(length)[0][:, 0]
        found.append((rollout.memory - before)[first].abs().max().item())

    model._estimate = compared  # type: ignore[method-assign]
    model.learn(64)
    assert found
    assert max(found) < 1e-5
    assert model.policy.memory_size == (2 if kind is PPO else 1) * (8 + model.policy.body.action_size)


def test_sac_has_the_same_inputs_in_its_sequences_as_when_acting() -> None:
    model = SAC(
        "UnitySACPolicy", make_toys(HYBRID), buffer_size=256, batch_size=64, policy_kwargs=NETWORK, seed=0, device="cpu"
    )
    states = []
    act = model.policy.act

    def noted(observations: Any, masks: Any, memory: torch.Tensor, *more: Any) -> Any:
        states.append((observations[0].clone(), memory.clone()))
        return act(observations, masks, memory, *more)

    model.policy.act = noted  # type: ignore[method-assign]
    model.buffer_init_steps = 10_000  # no update: the weights are unchanged
    model.learn(120)
    del model.policy.act
    seen, memories = (torch.cat(parts) for parts in zip(*states, strict=True))
    batch = model.replay_buffer.sample(64)
    batch.prepare(model.policy.body)
    actor, _ = model.policy.split(batch.memory)
    previous = model.policy.previous_actions(batch.actions)
    features = model.policy.body(batch.inputs, actor, batch.length, actions=previous)[0]
    checked = 0
    for row in range(len(batch)):
        if batch.valid is None or batch.valid[row]:
            places = (seen == batch.observations[0][row]).all(1)  # the toys draw the same observations
            acted = model.policy.body([seen[places]], model.policy.split(memories[places])[0])[0]
            assert (acted - features[row]).abs().amax(1).min() < 1e-5
            checked += row % batch.length > 0
    assert checked > 10


def test_an_episode_starts_without_a_previous_action_and_the_state_has_the_last_one() -> None:
    model = PPO("UnityPolicy", make_toys(HYBRID), buffer_size=64, batch_size=32, policy_kwargs=NETWORK, device="cpu")
    policy = model.policy
    observation = np.zeros((2, 4), np.float32)
    actions, state = model.predict(observation, None, np.ones(2, bool))
    assert state is not None
    parts = state[0].reshape(2, 2, -1)  # the actor's and the critic's
    continuous = np.concatenate([actions["continuous"], np.eye(3)[actions["discrete"][:, 0]]], 1)
    expected = np.concatenate([continuous, np.eye(2)[actions["discrete"][:, 1]]], 1)
    for part in range(2):
        np.testing.assert_allclose(parts[:, part, : policy.body.action_size], expected, rtol=1e-5)
    torch.manual_seed(0)
    after, _ = model.predict(observation, state, np.ones(2, bool), deterministic=True)
    fresh, _ = model.predict(observation, None, np.ones(2, bool), deterministic=True)
    np.testing.assert_array_equal(after["continuous"], fresh["continuous"])


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_exported_file_acts_by_its_own_previous_actions(tmp_path: Path, deterministic: bool) -> None:
    model = PPO("UnityPolicy", make_toys(HYBRID), buffer_size=64, batch_size=32, policy_kwargs=NETWORK, device="cpu")
    with torch.no_grad():
        model.policy.body.memory.lstm.weight_ih_l0 *= 5  # type: ignore[union-attr]  # so that actions differ visibly
    model.export_onnx(tmp_path / "model.onnx", deterministic=deterministic)
    file = OnnxPolicy(tmp_path / "model.onnx")
    assert file.memory_size == 8 + model.policy.body.action_size
    masks = np.ones((2, 5), bool)
    memory = np.zeros((2, file.memory_size), np.float32)
    actor = model.policy.actor()
    for step in range(4):
        observation = [np.full((2, 4), step / 4, np.float32)]
        chosen, after = file.select_actions(observation, masks, memory, deterministic=bool(step % 2))
        expected, own = actor.select_actions(observation, masks, memory, deterministic=True)
        size = model.policy.body.action_size
        np.testing.assert_allclose(after[:, size:], own[:, size:], atol=1e-5)  # the LSTM's
        np.testing.assert_allclose(after[:, :2], chosen.continuous, atol=1e-6)
        np.testing.assert_array_equal(after[:, 2:5].argmax(1), chosen.discrete[:, 0])
        np.testing.assert_array_equal(after[:, 5:7].argmax(1), chosen.discrete[:, 1])
        if deterministic:
            np.testing.assert_allclose(chosen.continuous, expected.continuous, atol=1e-5)
            np.testing.assert_array_equal(chosen.discrete, expected.discrete)
        memory = after


def test_previous_actions_without_memory_raise() -> None:
    network = {"use_previous_action": True}
    with pytest.raises(UnityGymError, match="use_previous_action must come with memory_size"):
        PPO("UnityPolicy", make_toys(HYBRID), policy_kwargs=network, device="cpu")


def test_a_saved_model_continues(tmp_path: Path) -> None:
    env = make_toys(HYBRID)
    model = PPO("UnityPolicy", env, buffer_size=64, batch_size=32, policy_kwargs=NETWORK, device="cpu", seed=0)
    model.learn(64)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env, device="cpu")
    observation, starts = np.ones((3, 4), np.float32), np.ones(3, bool)
    state = other_state = None
    for _ in range(2):
        own, state = model.predict(observation, state, starts, deterministic=True)
        other, other_state = loaded.predict(observation, other_state, starts, deterministic=True)
        np.testing.assert_array_equal(own["continuous"], other["continuous"])
        np.testing.assert_array_equal(state[0], other_state[0])  # type: ignore[index]
        starts = np.zeros(3, bool)
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps >= 128


@pytest.mark.parametrize("is_read", [True, False])
def test_a_cloned_policy_continues_from_its_previous_action(tmp_path: Path, is_read: bool) -> None:
    """The expert counts from a random start on, and no observation contains its count."""
    path, rng = tmp_path / "count.demo", np.random.default_rng(0)
    sensor = ObservationSpec((1,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "nothing")
    with DemonstrationWriter(path, "Count", BehaviorSpec([sensor], ActionSpec(1, (3,)))) as writer:
        for _ in range(60):
            first = int(rng.integers(3))
            for step in range(10):
                count = (first + step) % 3
                action = None if step == 9 else ActionTuple(np.array([[count - 1.0]]), np.array([[count]]))
                writer.add([np.zeros(1, np.float32)], action, terminated=step == 9)
    network = NETWORK | {"use_previous_action": is_read}
    model = BC("UnityPolicy", None, 1e-2, 36, demonstrations=path, policy_kwargs=network, seed=0, device="cpu")
    model.learn(9 * 60 * 15)
    scores = model.score(path)
    if is_read:  # all but the first of nine
        assert 0.9 < scores["accuracy"] < 0.97
        assert scores["mean_absolute_error"] < 0.15
    else:
        assert scores["accuracy"] < 0.6


def test_the_state_of_a_teacher_contains_the_action_that_was_executed() -> None:
    sensor = ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    spec = BehaviorSpec([sensor], ActionSpec(0, (4,)))
    model = PPO.from_spec("UnityPolicy", spec, policy_kwargs=NETWORK, device="cpu", seed=0)
    env = make_toys(spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32), n=64)
    agents = VecEnvAgents(env, SpaceAdapter(env.observation_space, env.action_space), env.reset())
    teacher = Teacher(model.policy, spec)
    done = teacher.select_actions(agents)
    assert teacher._state is not None
    np.testing.assert_array_equal(teacher._state[0][:, :4].argmax(1), done.discrete[:, 0])
    recorded, _ = teacher.recorded()
    assert (recorded.actions[:, 0].numpy() != done.discrete[:, 0]).any()
    env.close()


def test_a_run_with_previous_actions_resumes_and_acts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = {"memory": {"memory_size": 8, "sequence_length": 4, "use_previous_action": True}}
    small = {"hidden_units": 16, "num_layers": 1} | network
    file = str(write(tmp_path, "Basic", max_steps=120, network_settings=small))
    arguments = ["--results-dir", str(tmp_path), "--run-id", "run", "--seed", "1", "--env", "Unity-Basic-v0"]
    assert main([file, *arguments]) == 0
    (behavior,) = [path.name for path in (tmp_path / "run").iterdir() if path.is_dir() and path.name != "run_logs"]
    before = weights(tmp_path, "run", behavior)
    assert before["body.memory.lstm.weight_ih_l0"].shape[1] == 3 + 16  # three branch indices, and the features
    longer = str(write(tmp_path, "Basic", max_steps=240, network_settings=small))
    assert main([longer, *arguments, "--resume"]) == 0
    assert main([longer, *arguments, "--resume", "--inference", "--episodes", "2"]) == 0
    assert "over 2 episodes" in capsys.readouterr().out
    assert OnnxPolicy(tmp_path / "run" / f"{behavior}.onnx").memory_size == 8 + 3
