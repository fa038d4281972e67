"""EvoTorch, which evolves policies: each agent of a vector environment acts with one of the population."""

from typing import Any

import gymnasium as gym
import pytest
import torch

import unity_gym  # noqa: F401  # registers the ids

pytestmark = pytest.mark.ecosystem
neuroevolution = pytest.importorskip(
    "evotorch.neuroevolution", reason="evotorch is not installed: run scripts/ecosystem.sh evotorch"
)
NETWORK = "Linear(obs_length, act_length)"
RETURNS = [0.07, 0.93]  # of three steps left to the small goal of Basic, and of seven steps right to the large one


def solutions(problem: Any) -> Any:
    """Return two solutions that differ in the biases of the three actions: always left, and always right."""
    batch = problem.generate_batch(2)
    values = torch.zeros(2, problem.solution_length)
    values[0, -2] = values[1, -1] = 1
    batch.set_values(values)
    problem.evaluate(batch)
    return batch


@pytest.mark.parametrize("processes", [0, 2])
def test_a_population_acts_one_after_the_other_or_in_processes(processes: int) -> None:
    problem = neuroevolution.GymNE("unity_gym:Unity-Basic-v0", NETWORK, num_actors=processes)
    assert solutions(problem).evals.flatten().tolist() == pytest.approx(RETURNS)
    if processes:
        problem.kill_actors()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_population_acts_in_one_player(mode: str) -> None:
    def make(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        return gym.make_vec("Unity-Basic-v0", num_envs=num_envs, autoreset_mode=mode)

    problem = neuroevolution.VecGymNE(make, NETWORK)
    assert solutions(problem).evals.flatten().tolist() == pytest.approx(RETURNS)
