"""Child processes that never outlive this one, however it ends.

Each is started by a separate process, the watchdog. The watchdog ends the child and removes its temporary log when this
process closes the child or ends, also after a SIGKILL. The kernel's own mechanism, PR_SET_PDEATHSIG, depends on the
thread that launched a child, and would kill the child at the end of that thread. The watchdog, whose main thread lives
as long as it does, uses it on Linux for the case that it is killed together with this process, as Ray does. On Windows
the child, with all that it starts, is in a job object of the watchdog, whose end ends them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

_SECONDS_TO_START = 60.0  # for the watchdog, a small process of Python
_SECONDS_TO_END = 10.0  # for the watchdog, which gives its child one second between SIGTERM and SIGKILL

# Processes are in a session of their own (on Windows: a process group), so that Ctrl-C in the terminal reaches only
# Python, which then ends the child in order. Windows ignores `start_new_session`.
_NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)

# Arguments: our process id, "x" for a log to create and to remove at the end or "a" for one that stays, the log, the
# command. It writes a line with the child's process id or "error <errno>", then a line with its exit code. It reads
# a pipe that we hold open until the child shall end. A child that we forked holds the pipe open, too, so the watchdog
# also looks whether we are still its parent.
_WATCHDOG = """
import os, select, signal, subprocess, sys, threading, time
owner, mode, log, *command = sys.argv[1:]
posix = os.name == "posix"
for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if posix else [])):
    signal.signal(number, signal.SIG_DFL)  # for the child; our owner may ignore them
kernel = None
flags = 0
if sys.platform == "linux":
    import ctypes
    kernel = ctypes.CDLL(None)
elif not posix:
    import ctypes
    job_api, native_api = ctypes.WinDLL("kernel32"), ctypes.WinDLL("ntdll")
    job_api.CreateJobObjectW.restype = ctypes.c_void_p
    job = ctypes.c_void_p(job_api.CreateJobObjectW(None, None))
    limits = (ctypes.c_uint64 * 18)()  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64 bits
    limits[2] = 0x2000  # LimitFlags: JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    job_api.SetInformationJobObject(job, 9, limits, ctypes.sizeof(limits))
    flags = subprocess.CREATE_NEW_PROCESS_GROUP | 4  # CREATE_SUSPENDED, so that it starts nothing outside the job

def is_orphan():
    return posix and os.getppid() != int(owner)

def end_with_watchdog():
    kernel.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

def report(line):
    try:
        os.write(1, (line + "\\n").encode())
    except OSError:
        pass

def send(number):
    try:
        if posix:
            os.killpg(child.pid, number)
        else:
            job_api.TerminateJobObject(job, 1)
            child.terminate()  # if it could not be added to the job
    except OSError:
        pass

def end_with_owner():
    while not is_orphan() and posix and not select.select([0], [], [], 1)[0]:
        pass
    if not posix:
        os.read(0, 1)
    if child.poll() is None:
        send(signal.SIGTERM)
        try:
            child.wait(1)
        except subprocess.TimeoutExpired:
            pass
    send(signal.SIGKILL if posix else None)

if not is_orphan():
    try:
        with open(log, mode + "b") as output:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                     start_new_session=True, creationflags=flags,
                                     preexec_fn=end_with_watchdog if kernel else None)
        if not posix:
            process = ctypes.c_void_p(int(child._handle))
            job_api.AssignProcessToJobObject(job, process)
            native_api.NtResumeProcess(process)
    except OSError as error:
        report(f"error {error.errno}")
    else:
        report(str(child.pid))
        watch = threading.Thread(target=end_with_owner)
        watch.start()
        report(str(child.wait()))
        watch.join()
    for attempt in range(20 if mode == "x" else 0):
        try:
            os.unlink(log)
        except FileNotFoundError:
            break
        except OSError:  # Windows removes no file that an ending process has open
            time.sleep(0.1)
"""


class WatchedProcess:
    """A running child process. It ends with :meth:`end`, with the last reference to this object or with this process.

    :param command: Program and its arguments.
    :param log_file: File to which its standard output and error are appended.
    :param is_temporary: Whether the log is created here and removed when the process is ended.
    :param environment_variables: Environment variables in addition to those of this process.
    :raises OSError: If the program cannot be executed.
    :raises TimeoutError: If the watchdog does not report within 60 s.
    """

    pid: int

    def __init__(
        self,
        command: Sequence[str],
        log_file: Path,
        *,
        is_temporary: bool,
        environment_variables: Mapping[str, str] | None = None,
    ) -> None:
        mode = "x" if is_temporary else "a"
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(os.getpid()), mode, str(log_file), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment_variables or {})},
            start_new_session=True,
            creationflags=_NEW_GROUP,
        )
        self._report = _Report(watchdog)
        # Also runs at the exit of the interpreter, however the user's script ended.
        self._finalizer = weakref.finalize(self, _end, watchdog, self._report, os.getpid())
        try:
            self.pid = self._report.process()
        except BaseException:
            self.end()
            raise

    @property
    def is_open(self) -> bool:
        """Whether `end` has not been called."""
        return self._finalizer.alive

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._report.code

    def wait(self, timeout: float) -> int | None:
        """Wait for the process to end by itself; return its exit code, None if it still runs."""
        self._report.has_ended.wait(timeout)
        return self._report.code

    def end(self) -> None:
        """End the process and all that it started. Further calls do nothing."""
        self._finalizer()


class _Report:
    """A watchdog's report on its child, read in a thread because Windows cannot read from a pipe without waiting."""

    def __init__(self, watchdog: subprocess.Popen[bytes]) -> None:
        assert watchdog.stdout is not None
        self.code: int | None = None
        self.has_ended = threading.Event()
        self._has_started = threading.Event()
        self._lines: list[str] = []
        # The target has no reference to this object's owner, and reads from the descriptor itself: a buffered reader
        # holds a lock that Python waits for at its exit.
        self.thread = threading.Thread(target=self._read, args=(watchdog.stdout.fileno(),), daemon=True)
        self.thread.start()

    def process(self) -> int:
        """Wait for the child's process id.

        :raises OSError: If it could not be started.
        :raises TimeoutError: If the watchdog does not report in time.
        """
        if not self._has_started.wait(_SECONDS_TO_START):
            raise TimeoutError(f"its watchdog process did not report within {_SECONDS_TO_START:g} s")
        first = self._lines[0] if self._lines else "error 0"
        if first.startswith("error"):
            number = int(first.split()[1])
            raise OSError(number, os.strerror(number) if number else "its watchdog process has ended")
        return int(first)

    @property
    def child(self) -> int | None:
        """The process id of a child that has started and whose end was not reported."""
        return int(self._lines[0]) if len(self._lines) == 1 and self._lines[0].isdecimal() else None

    def _read(self, descriptor: int) -> None:
        text = b""
        while data := os.read(descriptor, 100):
            text += data
            self._lines = text.decode().splitlines() if text.endswith(b"\n") else self._lines
            if self._lines:
                self._has_started.set()
            if len(self._lines) == 2:
                self.code = int(self._lines[1])
                self.has_ended.set()
        if (child := self.child) is not None:  # the watchdog was killed; nothing else ends the child when we die
            self.code = -9  # SIGKILL, which Windows does not have
            if sys.platform != "win32":
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGKILL)
        self.has_ended.set()
        self._has_started.set()


def _end(watchdog: subprocess.Popen[bytes], report: _Report, owner: int) -> None:
    """End the child and its watchdog."""
    if os.getpid() != owner:  # a forked child must not end the player of its parent
        return
    assert watchdog.stdin is not None
    assert watchdog.stdout is not None
    watchdog.stdin.close()
    try:
        watchdog.wait(timeout=_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        watchdog.kill()
        watchdog.wait()
    report.thread.join(timeout=1.0)
    watchdog.stdout.close()
