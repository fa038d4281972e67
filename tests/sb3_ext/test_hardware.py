"""The number of torch threads follows from a table unless the user has set it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from gymnasium import spaces

from sb3_ext import PPO, Curiosity, Extrinsic, hardware
from sb3_ext.reward_signals import RewardSignal
from stand_ins.toy_environments import make_toys

_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # variables of the environment that say how threads wait


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two cores, and no number of threads set by the user."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    monkeypatch.setattr(hardware, "_current", before)
    monkeypatch.setattr(hardware, "_PHYSICAL_CORES", 2)
    yield
    torch.set_num_threads(before)


def learn(hidden_units: int, batch_size: int, reward_signals: list[RewardSignal] | None = None) -> int:
    """Return the number of threads after a script's model has started to learn."""
    env = make_toys(spaces.Discrete(2))
    network = {"hidden_units": hidden_units}
    model = PPO(
        "UnityPolicy",
        env,
        3e-4,
        buffer_size=2 * batch_size,
        batch_size=batch_size,
        reward_signals=reward_signals,
        policy_kwargs=network,
        device="cpu",
    )
    model._setup_learn(10)
    return torch.get_num_threads()


def test_many_cores_are_shared_by_large_updates_up_to_the_physical_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: 16)
    monkeypatch.setattr(hardware, "_PHYSICAL_CORES", 8)
    sizes = (0, 24_999_999, 25_000_000, 74_999_999, 75_000_000, 119_999_999, 120_000_000, 10**12)
    assert [hardware.threads_for(size) for size in sizes] == [1, 1, 2, 2, 4, 4, 8, 8]
    assert [hardware.threads_for(10**12, reserved) for reserved in (1, 10, 15, 30)] == [8, 6, 1, 1]
    assert threaded_model(256, 1024).reserved_cores == 8  # players and samplers have processes of their own
    assert torch.get_num_threads() == 8
    monkeypatch.setattr(hardware, "_PHYSICAL_CORES", 4)
    assert hardware.threads_for(10**12) == 4


def test_large_updates_use_two_threads_and_small_ones_one() -> None:
    assert learn(256, 1024) == 2  # 2 · (256² + …) weights · 1024 rows are 140 million
    assert learn(16, 64) == 1
    assert [hardware.threads_for(size) for size in (0, 24_999_999, 25_000_000, 10**12)] == [1, 1, 2, 2]
    hardware.use_threads([10, 10**9])
    assert torch.get_num_threads() == 2
    hardware.use_threads([10**9], reserved=1)
    assert torch.get_num_threads() == 1


def test_reward_signals_that_learn_take_a_core_of_their_own() -> None:
    assert learn(256, 1024, [Extrinsic()]) == 2
    assert learn(256, 1024, [Extrinsic(), Curiosity()]) == 1


def test_on_one_core_one_thread_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: 1)
    assert hardware.threads_for(10**12) == 1
    assert not hardware.has_spare_core()


@pytest.mark.parametrize("by", ["environment", "call"])
def test_a_number_of_threads_set_by_the_user_is_kept(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
    else:
        torch.set_num_threads(3)
    before = torch.get_num_threads()
    assert learn(256, 1024) == before


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "5000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_threads_wait_shortly_for_each_other_unless_the_user_has_chosen(
    given: dict[str, str], expected: str | None
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _WAITING} | given
    code = "import os, sb3_ext; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    assert printed.strip() == str(expected)


def threaded_model(hidden_units: int, batch_size: int, reward_signals: list[RewardSignal] | None = None) -> PPO:
    """Return a model that updates in a thread, after the start of its learning."""
    model = PPO(
        "UnityPolicy",
        make_toys(spaces.Discrete(2)),
        batch_size=batch_size,
        buffer_size=2 * batch_size,
        reward_signals=reward_signals,
        threaded=True,
        policy_kwargs={"hidden_units": hidden_units},
        device="cpu",
    )
    model._setup_learn(10)
    return model


@pytest.mark.parametrize(
    ("hidden_units", "signals", "agents_wait_too", "threads"),
    [
        (256, [Extrinsic()], True, 2),
        (256, [Extrinsic()], False, 1),  # other agents still act
        (256, [Extrinsic(), Curiosity()], True, 1),  # the reward signal learns on the other core
        (8, [Extrinsic()], True, 1),
    ],
)
def test_updates_in_a_thread_use_the_cores_of_waiting_agents(
    hidden_units: int, signals: list[RewardSignal], agents_wait_too: bool, threads: int
) -> None:
    model = threaded_model(hidden_units, 1024, signals)
    model.agents_wait_too = agents_wait_too
    used = []
    waits = threading.Event()

    def update() -> None:
        model._use_idle_cores()
        used.append(torch.get_num_threads())
        waits.wait(60)
        while not model._is_awaited and agents_wait_too:
            time.sleep(0.001)
        model._use_idle_cores()
        used.append(torch.get_num_threads())

    for _ in range(2):
        model._start_update(update)
        waits.set()
        model.finish_update()
    assert used == [1, threads] * 2
    assert torch.get_num_threads() == 1, "of this thread"


def test_a_thread_may_have_the_threads_that_another_one_had() -> None:
    """Threads of OpenMP that wait for a first thread's further work end."""
    torch.set_num_threads(2)
    matrix = torch.randn(512, 512)
    matrix @ matrix
    before = psutil.Process().num_threads()
    with hardware.one_thread() as executor:
        assert psutil.Process().num_threads() == before - 1
        assert executor.submit(torch.get_num_threads).result() == 2


def test_updates_in_a_thread_start_no_further_threads() -> None:
    model = threaded_model(8, 64)
    started = []

    def update() -> None:
        before = psutil.Process().num_threads()
        matrix = torch.randn(64, 64)
        (matrix @ matrix).tanh()
        started.append(psutil.Process().num_threads() - before)

    model._start_update(update)
    model.finish_update()
    assert torch.get_num_threads() == 1
    assert started == [0]
