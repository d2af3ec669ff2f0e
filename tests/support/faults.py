"""The command line as processes under faults. They are forked by one that has imported it, so that one takes little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from support.processes import SCREEN

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGKILL]
_CHANGES = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir")
_SERVER = f"""
import errno, importlib, json, os, signal, sys, time

for name in ("generate", "sweep", "convert", "demo", "writing", "render"):
    importlib.import_module("fastcar_cli.cli." + name)
for name in ("pipeline.pipeline", "sweep.session", "convert.convert", "media", "demo.server"):
    importlib.import_module("fastcar_cli." + name)
import av, pyarrow.parquet
from fastcar_cli import __main__ as program

# Signals wait until the program can answer them: Python's own start is not what these tests are about.
signals = {sorted(map(int, SIGNALS))!r}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
# nohup and background jobs ignore some of them, and children inherit that.
for number in {{*signals}} - {{signal.SIGKILL}}:
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
open_streams = program.open_streams


def begin():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    open_streams()


program.open_streams = begin
for line in sys.stdin:
    order = json.loads(line)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        break
    print(child, flush=True)
    if order["number"] and order["after"] is not None:
        # What is not waited for yet has its number still, even where it has ended.
        time.sleep(order["after"])
        os.kill(child, order["number"])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)

os.chdir(order["folder"])
os.environ["TMPDIR"] = order["log"] + ".tmp"
os.mkdir(order["log"] + ".tmp")
output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0), os.dup2(output, 1), os.dup2(output, 2)
sys.argv = ["fastcar", *order["arguments"]]
seen = 0


def event(name, arguments):
    global seen
    if name not in {_CHANGES!r} or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    path = os.path.abspath(os.fsdecode(arguments[0]))
    if not path.startswith(order["folder"]) or name == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    seen += 1
    if seen == order["event"] and order["number"]:
        os.kill(os.getpid(), order["number"])
    if order["full"] and seen >= order["event"] and name in ("open", "os.mkdir"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


if order["event"]:
    sys.addaudithook(event)
if order["most"] is not None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (order["most"], resource.RLIM_INFINITY))
if order["fsync"]:

    def fsync(descriptor):
        raise OSError(getattr(errno, order["fsync"]), os.strerror(getattr(errno, order["fsync"])))

    os.fsync = fsync
program.run()
"""


@dataclass(frozen=True)
class Fault:
    """What befalls a process: a signal, so many seconds `after` its start or at the change number `event` of its files;
    a disk that is full from that change on, or takes files of `most` bytes; an error of fsync.
    """

    number: int = 0
    after: float | None = None
    event: int = 0
    full: bool = False
    most: int | None = None
    fsync: str = ""

    @property
    def killed(self) -> bool:
        return self.number == signal.SIGKILL

    @property
    def disk(self) -> bool:
        return self.full or self.most is not None or self.fsync in ("ENOSPC", "EIO")


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    temporary: tuple[str, ...]
    """What is left in the folder of temporary files."""


class Processes:
    """Runs commands one after another."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._count = logs, 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **SCREEN, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def start(self, folder: Path, *arguments: object, fault: Fault = Fault()) -> Path:
        """Start a command in a folder; where its output goes."""
        self._count += 1
        log = self._logs / f"{self._count}.log"
        order = {"folder": str(folder), "log": str(log), "arguments": [str(a) for a in arguments], **asdict(fault)}
        assert self._server.stdin is not None
        print(json.dumps(order), file=self._server.stdin, flush=True)
        self._line()
        return log

    def end(self, log: Path) -> Ended:
        """Wait for the command that was started last."""
        status, temporary = int(self._line()), Path(f"{log}.tmp")
        left = (path.name for path in temporary.iterdir()) if temporary.is_dir() else ()
        return Ended(status, log.read_text(errors="replace") if log.exists() else "", tuple(left))

    def run(self, folder: Path, *arguments: object, fault: Fault = Fault()) -> Ended:
        return self.end(self.start(folder, *arguments, fault=fault))

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()

    def close(self) -> None:
        self._server.communicate()


@contextmanager
def processes() -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as logs:
        server = Processes(Path(logs))
        try:
            yield server
        finally:
            server.close()
