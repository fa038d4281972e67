"""Basic, move by move."""

from __future__ import annotations

import pytest

from stand_ins.raw_client import discrete

BASIC = "Basic?team=0"


def position(agent) -> int:
    (observation,) = agent.observations
    assert observation.shape == (20,)
    assert observation.sum() == 1
    return int(observation.argmax())


@pytest.mark.parametrize(
    ("action", "positions", "rewards"),
    [
        (2, [10, 11, 12, 13, 14, 15, 16, 17], [0, *[-0.01] * 6, 0.99]),
        (1, [10, 9, 8, 7], [0, -0.01, -0.01, 0.09]),
    ],
)
def test_walking_to_a_goal_gives_its_reward_and_terminates(
    launch, action: int, positions: list[int], rewards: list[float]
) -> None:
    client = launch("Basic")
    message = client.start()
    walk = []
    for _ in positions[1:]:
        (agent,) = message.agents[BASIC]
        assert (agent.id, agent.done) == (0, False)
        walk.append((position(agent), agent.reward))
        message = client.step(BASIC, discrete(action))
    last, first = message.agents[BASIC]
    walk.append((position(last), last.reward))
    assert [place for place, _ in walk] == positions
    assert [reward for _, reward in walk] == pytest.approx(rewards)
    assert (last.id, last.done, last.interrupted) == (0, True, False)
    assert (first.id, first.done, position(first), first.reward) == (1, False, 10, 0)


def test_staying_gives_the_step_penalty_and_does_not_terminate(launch) -> None:
    client = launch("Basic")
    client.start()
    (agent,) = client.step(BASIC, discrete(0)).agents[BASIC]
    assert (position(agent), agent.done) == (10, False)
    assert agent.reward == pytest.approx(-0.01)


def test_a_reset_of_the_client_leaves_the_agent_where_it_is(launch) -> None:
    client = launch("Basic")
    client.start()
    client.step(BASIC, discrete(2))
    (agent,) = client.reset().agents[BASIC]
    assert (agent.id, position(agent), agent.done) == (0, 11, False)
    assert agent.reward == pytest.approx(-0.01)  # penalty of the step that Unity still makes after the reset


def test_an_action_that_the_client_leaves_out_is_zero(launch) -> None:
    client = launch("Basic")
    client.start()
    (agent,) = client.step(BASIC, []).agents[BASIC]
    assert position(agent) == 10


def test_areas_are_independent(launch) -> None:
    client = launch("Basic", "--areas", "3")
    client.start()
    for _ in range(3):
        message = client.step(BASIC, discrete(1) + discrete(2) + discrete(0))
    assert [(agent.id, position(agent)) for agent in message.ended(BASIC)] == [(0, 7)]
    assert [(agent.id, position(agent)) for agent in message.deciding(BASIC)] == [(3, 10), (1, 13), (2, 10)]
