"""Launching, monitoring and ending player processes; each test checks that no process remains."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stand_ins.faulty_player import launcher
from unity_gym.connection import PlayerConnection
from unity_gym.errors import PlayerError, PlayerTimeoutError
from unity_gym.options import PlayerOptions
from unity_gym.player import Player
from unity_gym.pool import PlayerPool

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the players of these tests are shell scripts")


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert [process.cmdline() for process in left] == []


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes a player as a shell script."""

    def write(text: str) -> str:
        path = tmp_path / "player.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def has_ended(pid: int) -> bool:
    """Return whether a process ends within 10 s. An orphan may stay a zombie if no process reaps it."""
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


# Executable files


def test_a_player_gets_its_arguments(script: Callable[[str], str], tmp_path: Path) -> None:
    player = Player(
        script('echo "$@"'), 5007, no_graphics=True, arguments=["--level", "two words"], log_folder=tmp_path
    )
    player.close()
    expected = f"-nographics -batchmode -logFile {tmp_path}/Player-0.log --mlagents-port 5007 --level two words"
    assert player.log_tail() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_player_does_not_inherit_that_this_process_ignores_signals(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in stops]
    try:
        player = Player(script("grep SigIgn /proc/self/status"), 5007, no_graphics=True, log_folder=tmp_path)
        player.close()
    finally:
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)
    ignored = int(player.log_tail().split()[1], 16)
    assert not any(ignored >> (number - 1) & 1 for number in stops)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always imports from the current folder")
def test_a_file_in_the_current_folder_with_the_name_of_a_module_does_not_break_a_player(tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("raise ImportError", encoding="utf-8")
    (tmp_path / "scripts").mkdir()
    path = tmp_path / "scripts" / "play.py"
    path.write_text(
        "import gymnasium, unity_gym\nenv = gymnasium.make('Unity-Basic-v0')\nenv.reset()\nenv.close()\n",
        encoding="utf-8",
    )
    subprocess.run([sys.executable, str(path)], cwd=tmp_path, check=True, timeout=100)


@pytest.mark.parametrize("suffix", ["", ".x86_64", ".x86"])
@pytest.mark.skipif(sys.platform != "linux", reason="the suffixes of Linux builds")
def test_a_linux_build_is_found_with_and_without_its_suffix(tmp_path: Path, suffix: str) -> None:
    build = tmp_path / f"Game{suffix}"
    build.write_text("#!/bin/sh\necho $0\n")
    build.chmod(0o755)
    (tmp_path / "Game_Data").mkdir()
    for name in {"Game", build.name}:
        player = Player(str(tmp_path / name), 5005)
        player.close()
        assert player.log_tail() == str(build)


def test_the_executable_of_a_macos_bundle_is_found(tmp_path: Path) -> None:
    executable = tmp_path / "Game.app/Contents/MacOS/Name of the product"
    executable.parent.mkdir(parents=True)
    executable.write_text("#!/bin/sh\necho $0\n")
    executable.chmod(0o755)
    player = Player(str(tmp_path / "Game.app"), 5005)
    player.close()
    assert player.log_tail() == str(executable)


def test_an_unknown_path_raises_and_lists_the_paths_that_were_tried(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match=r"no player .*/Game' \(tried: .*/Game.*Give the path of a Unity build"):
        Player(str(tmp_path / "Game"), 5005)


def test_a_folder_in_place_of_a_build_raises(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match=r"is a folder.*Give the path of the executable"):
        Player(str(tmp_path), 5005)


def test_a_file_without_execute_permission_raises_with_the_remedy(tmp_path: Path) -> None:
    build = tmp_path / "Game.x86_64"
    build.write_text("")
    with pytest.raises(PlayerError, match=rf"not executable.*chmod \+x {build}"):
        Player(str(build), 5005)


@pytest.mark.skipif(sys.platform == "win32", reason="it is a build for this machine")
def test_a_build_for_windows_raises_with_the_remedy(tmp_path: Path) -> None:
    build = tmp_path / "Game.exe"
    build.write_bytes(b"MZ")
    with pytest.raises(PlayerError, match=rf"build for Windows.*this machine has {platform.system()}: build the scene"):
        Player(str(build), 5005)


def test_a_file_that_is_no_program_raises(tmp_path: Path) -> None:
    build = tmp_path / "Game"
    build.write_bytes(b"\x7fELF but not really")
    build.chmod(0o755)
    with pytest.raises(PlayerError, match=r"could not be started.*/Game: Exec format error.*has to be built for"):
        Player(str(build), 5005)


def test_an_unwritable_log_folder_raises(script: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlayerError, match=r"log.*/file.*Choose another log_folder"):
        Player(script("sleep 60"), 5005, log_folder=tmp_path / "file")


# Log files


def test_the_log_contains_the_output_of_the_player_from_all_streams(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    player = Player(
        script('echo to output; echo to error >&2; echo to log >> "$2"'), 5005, log_folder=tmp_path / "new", worker_id=3
    )
    player.close()
    assert player.log_file == tmp_path / "new" / "Player-3.log"
    assert player.log_file.read_text() == "to output\nto error\nto log\n"
    assert player.log_tail(lines=1) == "to log"


def test_a_log_without_a_folder_is_removed_on_close(script: Callable[[str], str]) -> None:
    player = Player(script("echo hello; sleep 60"), 5005)
    assert player.log_file.exists()
    while not player.log_tail():
        time.sleep(0.01)
    player.close(grace=0)
    assert not player.log_file.exists()
    assert player.log_tail() == "hello"


# Failing players


def test_a_player_that_exits_at_startup_is_reported_with_exit_code_and_log(
    connection: PlayerConnection, tmp_path: Path
) -> None:
    player = Player(launcher(tmp_path, "exit-at-start"), connection.port)
    for _ in range(2):
        with pytest.raises(PlayerError) as report:
            connection.receive(30, player.check)
        for part in (player.name, "exit code 3", "something is wrong with my start", "start it by hand"):
            assert part in str(report.value)
    assert not player.log_file.exists()


def test_a_player_that_never_connects_causes_a_timeout(connection: PlayerConnection, tmp_path: Path) -> None:
    player = Player(launcher(tmp_path, "never-connect"), connection.port)
    with pytest.raises(PlayerTimeoutError):
        connection.receive(0.3, player.check)
    player.close(grace=0)


def test_a_player_that_is_killed_during_a_wait_is_noticed(connection: PlayerConnection, tmp_path: Path) -> None:
    player = Player(launcher(tmp_path, "never-connect"), connection.port)
    threading.Timer(0.3, os.kill, (player.pid, signal.SIGKILL)).start()
    with pytest.raises(PlayerError, match="was killed by SIGKILL"):
        connection.receive(30, player.check)


def test_a_player_that_disconnects_and_dies_is_reported_with_its_signal(
    connection: PlayerConnection, tmp_path: Path
) -> None:
    player = Player(launcher(tmp_path, "die-in-handshake"), connection.port)
    connection.receive(30, player.check)
    connection.send(b"")
    connection.receive(30, player.check)
    assert has_ended(player.pid)
    connection.send(b"")
    with pytest.raises(PlayerError, match="was killed by SIGKILL"):
        connection.receive(30, player.check)


def test_a_player_that_receives_the_quit_message_exits_by_itself(connection: PlayerConnection, tmp_path: Path) -> None:
    player = Player(launcher(tmp_path), connection.port)
    connection.receive(30, player.check)
    player.check()
    connection.close()
    player.close(grace=10)
    with pytest.raises(PlayerError, match="ended with exit code 1"):
        player.check()


def test_a_web_proxy_is_not_used(connection: PlayerConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    player = Player(launcher(tmp_path), connection.port)
    connection.receive(30, player.check)
    player.close(grace=0)


# Ending players


def test_close_kills_a_player_that_ignores_signals_and_its_child_processes(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    player = Player(script(f"trap '' TERM\nsleep 60 &\necho $! > {tmp_path}/child\nwhile true; do sleep 1; done"), 5005)
    child = tmp_path / "child"
    while not (child.exists() and child.read_text().strip()):
        time.sleep(0.01)
    player.close(grace=0)
    player.close()
    assert has_ended(player.pid)
    assert has_ended(int(child.read_text()))


def test_an_unreferenced_player_is_ended(script: Callable[[str], str]) -> None:
    player = Player(script("exec sleep 60"), 5005)
    pid = player.pid
    del player
    assert has_ended(pid)


def test_a_player_survives_the_thread_that_launched_it(script: Callable[[str], str]) -> None:
    players = []
    path = script("exec sleep 60")
    thread = threading.Thread(target=lambda: players.append(Player(path, 5005)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    players[0].check()
    players[0].close(grace=0)


USER_SCRIPT = """
import os, signal, sys, time
from unity_gym.connection import PlayerConnection
from unity_gym.player import Player
from unity_gym.peer import Peer
connection = PlayerConnection()
connection.listen(Peer.is_same_user)
player = Player(sys.argv[1], connection.port)
connection.receive(30, player.check)
print(player.pid, flush=True)
"""


@pytest.fixture
def user_script(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], int]]]:
    """Return a function that starts a script with a player as a terminal would: its process and the player's id."""
    processes = []

    def start(text: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", USER_SCRIPT + textwrap.dedent(text), launcher(tmp_path)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise RuntimeError('in the loop of the user')", 1),
        ("sys.exit(7)", 7),
        ("pass", 0),
        ("player.close(0); connection.close()", 0),
    ],
)
def test_the_end_of_a_script_ends_its_player_during_an_open_call(
    user_script: Callable[[str], tuple[subprocess.Popen[str], int]], ending: str, code: int
) -> None:
    process, player = user_script(ending)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == code, errors
    assert ("RuntimeError" in errors) == (code == 1)
    assert has_ended(player)


@pytest.mark.parametrize("forked", ["", "if os.fork() == 0: time.sleep(60)"], ids=["alone", "with a forked child"])
def test_the_player_of_a_killed_script_ends(
    user_script: Callable[[str], tuple[subprocess.Popen[str], int]], forked: str
) -> None:
    process, player = user_script(f"{forked}\nprint('ready', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert has_ended(player)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.3])
def test_a_script_that_is_killed_during_a_launch_leaves_neither_player_nor_log(
    script: Callable[[str], str], tmp_path: Path, delay: float
) -> None:
    marker = str(uuid.uuid4().int % 10**8 + 10**6)  # seconds of sleep, which identify the player's process
    build = script(f"exec sleep {marker}")
    text = f"from unity_gym.player import Player; print(flush=True); player = Player({build!r}, 5005); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    process.kill()
    process.communicate()

    def left() -> list[Any]:
        commands = [" ".join(found.info["cmdline"] or ()) for found in psutil.process_iter(["cmdline"])]
        return [command for command in commands if marker in command] + list(tmp_path.glob("*.log"))

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left() == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_script_that_is_ended_by_a_signal_leaves_no_log(
    user_script: Callable[[str], tuple[subprocess.Popen[str], int]], name: str
) -> None:
    process, player = user_script("print(player.log_file, flush=True); time.sleep(60)")
    assert process.stdout is not None
    log = Path(process.stdout.readline().strip())
    assert log.exists()
    process.send_signal(getattr(signal, name))
    process.wait()
    assert has_ended(player)
    deadline = time.monotonic() + 10
    while log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not log.exists()


def test_a_player_ends_when_its_watchdog_is_killed(script: Callable[[str], str]) -> None:
    before = set(psutil.Process().children())
    player = Player(script("exec sleep 60"), 5005)
    (watchdog,) = set(psutil.Process().children()) - before
    watchdog.kill()
    watchdog.wait()
    assert has_ended(player.pid)
    player._process.wait(10)
    with pytest.raises(PlayerError, match="was killed"):
        player.check()


def test_a_watchdog_that_does_not_report_ends_the_launch(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unity_gym.watchdog._WATCHDOG", "import time; time.sleep(60)")
    monkeypatch.setattr("unity_gym.watchdog._SECONDS_TO_START", 0.2)
    monkeypatch.setattr("unity_gym.watchdog._SECONDS_TO_END", 0.2)
    with pytest.raises(PlayerError, match=r"watchdog process did not report within 0\.2 s\. Start fewer players"):
        Player(script("exec sleep 60"), 5005)


@pytest.mark.parametrize("room", range(0, 24, 2))
def test_a_launch_with_too_many_open_files_names_the_limit(room: int) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(room):
            os.close(taken.pop())
        with pytest.raises(PlayerError, match=r"as many open files as it may\. Raise the limit"):
            PlayerPool(PlayerOptions(file_name="embedded:Basic"), 4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's PR_SET_PDEATHSIG")
def test_a_player_ends_when_its_watchdog_is_killed_together_with_the_script(
    user_script: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, player = user_script("time.sleep(60)")
    (watchdog,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGSTOP)  # it cannot end the player
    watchdog.kill()
    assert has_ended(player)
    process.kill()


def test_ctrl_c_in_the_terminal_interrupts_a_wait_but_not_the_player(
    user_script: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, player = user_script(
        """
        try:
            print('ready', flush=True)
            PlayerConnection().receive(60)
        except KeyboardInterrupt:
            time.sleep(0.2)
            player.check()
            sys.exit(5)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 5, errors
    assert has_ended(player)


def test_forked_children_neither_crash_nor_end_the_player_of_their_parent(
    user_script: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, player = user_script(
        """
        for _ in range(20):
            child = os.fork()
            if child == 0:
                player.close(grace=0)
                del player
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        player.check()
        player.close(grace=0)
        connection.close()
        """
    )
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert has_ended(player)
