"""Features of agents in messages: masks, images, stacks, groups, several behaviors, new ids."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stand_ins.raw_client import EmbeddedClient, Message, mixed
from unity_gym.wire.messages import STEP

YARD = (str(Path(__file__).parents[1] / "stand_ins" / "agent_features_player.py"),)
WALKER, DAY, NIGHT = "Walker?team=0", "Day?team=1", "Night?team=1"


@pytest.fixture
def yard(launch) -> EmbeddedClient:
    return launch("Yard", player=YARD)


def walk(client: EmbeddedClient, message: Message, first: int, second: int, push: float = 0.0) -> Message:
    """Step with action `first` in the first branch, and for the first walker `second` in the other."""
    n = len(message.deciding(WALKER))
    actions = [[first, second if i == 0 else 0] for i in range(n)]
    return client.exchange(STEP, {WALKER: mixed(np.full((n, 1), push), actions)}, b"")


def test_sensors_are_sorted_by_name_and_have_specifications(yard) -> None:
    for agent in yard.start().agents[WALKER]:
        assert agent.sensors == ["camera", "goal", "StackingSensor_size3_steps"]
        assert agent.kinds == [0, 1, 0]
        goal, steps = agent.observations
        assert goal.tolist() == [[0, 1], [2, 3]]
        assert steps.tolist() == [0, 0, 1]


def test_images_are_pngs_of_three_channels_each(yard) -> None:
    for agent in yard.start().agents[WALKER]:
        data = agent.images["camera"]
        second = data.index(b"\x89PNG", 1)
        parts = [np.asarray(Image.open(io.BytesIO(part))) for part in (data[:second], data[second:])]
        assert [part.shape for part in parts] == [(5, 6, 3)] * 2
        channels = np.concatenate(parts, axis=2).transpose(2, 0, 1)
        assert (channels[:4] == np.arange(4 * 5 * 6).reshape(4, 5, 6) + agent.id).all()
        assert not channels[4:].any()


def test_masks_and_hybrid_actions_are_exchanged(yard) -> None:
    message = yard.start()
    masks = [agent.mask.tolist() for agent in message.agents[WALKER]]
    assert masks == [[False] * 5, [False] * 4 + [True]] * 2
    message = walk(yard, message, 1, 0, push=0.25)
    for agent in message.deciding(WALKER):
        assert agent.reward == 1
        assert agent.observations[0].tolist() == [[0.25, 1.25], [2.25, 3.25]]


def test_a_group_end_rewards_each_member_and_shows_the_state_before_the_next_episode(yard) -> None:
    message = walk(yard, yard.start(), 1, 1, push=0.5)
    ended, started = message.ended(WALKER), message.deciding(WALKER)
    assert [agent.id for agent in ended] == [agent.id for agent in started] == [0, 1, 2, 3]
    assert [agent.group_id for agent in ended] == [1, 1, 2, 2]
    assert [agent.group_reward for agent in ended] == [1, 1, 2, 2]
    for old, new in zip(ended, started, strict=True):
        assert (old.reward, old.interrupted) == (1, False)
        assert old.observations[0][0, 0] == 0.5
        assert old.observations[1].tolist() == [0, 1, 1]
        assert (new.reward, new.group_reward) == (0, 0)
        assert new.observations[0][0, 0] == 0
        assert new.observations[1].tolist() == [0, 0, 1]


def test_a_disabled_agent_terminates_and_returns_under_a_new_id(yard) -> None:
    message = walk(yard, yard.start(), 1, 2)
    assert [(agent.id, agent.group_id, agent.reward) for agent in message.ended(WALKER)] == [(1, 1, 1), (3, 2, 1)]
    assert [agent.id for agent in message.deciding(WALKER)] == [0, 2]
    message = walk(yard, message, 0, 0)
    assert not message.ended(WALKER)
    assert [(agent.id, agent.group_id) for agent in message.deciding(WALKER)] == [(0, 1), (5, 1), (2, 2), (6, 2)]
    assert [agent.observations[1].tolist() for agent in message.deciding(WALKER)][1] == [0, 0, 1]


def test_an_agent_ends_in_its_old_behavior_and_continues_in_another_that_is_announced_then(yard) -> None:
    message = yard.start()
    seen = []
    for _ in range(6):
        agents = [(name, agent.id, agent.done) for name in (DAY, NIGHT) for agent in message.agents[name]]
        seen.append((agents, message.announced))
        message = walk(yard, message, 0, 0)
    assert seen == [
        ([(DAY, 4, False)], [WALKER, DAY]),
        ([], []),
        ([(DAY, 4, False)], []),
        ([(DAY, 4, True)], []),
        ([(NIGHT, 4, False)], [NIGHT]),
        ([], []),
    ]


def test_a_reset_keeps_stacks_and_ids(yard) -> None:
    yard.start()
    for agent in yard.reset().agents[WALKER]:
        assert not agent.done
        assert agent.observations[1].tolist() == [0, 1, 1]
