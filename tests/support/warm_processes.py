"""Processes of ours are forked from a warm interpreter, which has imported torch and all our modules.

A new interpreter imports for two to five seconds of CPU, and that was most of a run of the tests. After
`install()`, `subprocess` (and so asyncio), and `multiprocessing`'s spawn, start what `_MODULES` names by a fork: a
process of its own with the arguments, environment, directory, files and parent that were asked for. A new
interpreter starts where a fork would differ: for other modules, for `-c`, another user, and other values of
variables that are read when a library is loaded.

How a fork becomes a child of who asked for it: its parent ends at once, so it goes to the nearest ancestor that
takes orphans (`PR_SET_CHILD_SUBREAPER`), which the asking process is until the fork has answered. Each fork has a
warm interpreter of its own for its children, forked before it began.
"""

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_MODULES = frozenset(
    {
        "app.cli",
        "app.model_server",
        "celery",
        "tests.support.chaos_engine",
        "tests.support.distributed_process",
        "tests.support.patient_runner",
        "tests.support.poisoned_runner",
        "tests.support.runner_process",
        "tests.support.team_learner",
        "tests.support.training_process",
        "tests.support.vault_caller",
        "trainer.worlds.reproduce.trial",
        "trainer.engines.engine_child",
        "trainer.learning.follow",
        "trainer.worker.run_process",
    }
)
_CHILDLESS = frozenset({"app.model_server", "trainer.engines.engine_child"})
_IMPORTED = (  # before the first fork
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "sentence_transformers",
    "app.processes.api",
    "app.model_server.serve",
    "app.processes.runner",
    "trainer.worlds.base_adapter.bootstrap",
    "trainer.worlds.reproduce.trial",
    "trainer.engines.engine_child",
    "trainer.worker.launcher",
    "trainer.learning.follow",
    "trainer.run",
    "trainer.worker.run_process",
    "celery.bin.worker",
    "mcp.server",
)
_AT_LOAD = ("LD_", "PYTHON", "HF_", "TRANSFORMERS_", "OMP_", "MKL_", "OPENBLAS_", "TORCH_", "MALLOC_", "NUMEXPR_")
_SPAWN = "from multiprocessing.spawn import spawn_main"  # begins the code of a process of `multiprocessing`
_WORKER = "import sys;exec(eval(sys.stdin.readline()))"  # the code of a worker of pytest-xdist
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)
_asking = threading.Lock()
_asked: tuple[int, socket.socket] | None = None  # the process that may ask, and its end of the channel

_environment: dict[str, str] = {}
_directory = ""
_exec: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_spawn = multiprocessing.util.spawnv_passfds


def install() -> None:
    """From now on, in this process; the warm interpreter starts with the first process that needs it."""
    global _environment, _directory  # of this process
    _environment, _directory = dict(os.environ), os.getcwd()
    subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = _start_spawned


def _start(  # noqa: PLR0913  as `Popen._execute_child`, which it replaces
    popen: Any,
    args: Any,
    executable: str | None,
    preexec_fn: Callable[[], object] | None,
    close_fds: bool,
    pass_fds: Sequence[int],
    cwd: Any,
    env: Any,
    *rest: Any,
) -> None:
    (_, _, shell, *pipes, _, gid, gids, uid, umask, start_new_session, process_group) = rest
    command = [] if isinstance(args, str) or shell else [os.fsdecode(each) for each in args]
    variables = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
    order = _order(command, variables) if close_fds and umask < 0 and not executable else None
    if order is None or not all(each is None for each in (gid, gids, uid)) or not _can_name(preexec_fn):
        return _exec(popen, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
    order |= {
        "cwd": os.fsdecode(cwd or os.getcwd()),
        "session": start_new_session,
        "group": process_group,
        "first": preexec_fn and [preexec_fn.__module__, preexec_fn.__name__],
    }
    p2cread, _, _, c2pwrite, _, errwrite = pipes
    own = [own if own >= 0 else standard for standard, own in enumerate((p2cread, c2pwrite, errwrite))]
    popen.pid = _ask(order, {0: own[0], 1: own[1], 2: own[2]} | {fd: fd for fd in pass_fds})
    popen._child_created = True
    popen._close_pipe_fds(*pipes)
    return None


def _start_spawned(path: Any, args: Any, passfds: Sequence[int]) -> int:
    """In place of `multiprocessing.util.spawnv_passfds`."""
    command = [os.fsdecode(each) for each in args]
    order = _order(command, dict(os.environ))
    if order is None:
        return _spawn(path, args, passfds)
    return _ask(order | {"cwd": os.getcwd()}, {fd: fd for fd in (0, 1, 2, *passfds)})


def _order(command: list[str], variables: dict[str, str]) -> dict[str, Any] | None:
    """None where a new interpreter must start."""
    if not command or command[0] != sys.executable or not sys.platform.startswith("linux"):
        return None
    at_load = {name for name in variables.keys() | _environment.keys() if name.startswith(_AT_LOAD)}
    if any(variables.get(name) != _environment.get(name) for name in at_load - {"PYTHONUNBUFFERED"}):
        return None
    if "-c" in command:
        at = command.index("-c") + 1
        if command[at].startswith(_SPAWN) or command[at] == _WORKER:
            argv = ["-c", *command[at + 1 :]]
            return {
                "command": command,
                "env": variables,
                "module": "",
                "code": command[at],
                "argv": argv,
                "warn": [],
            }
        return None
    options = command[2:] if command[1:2] == ["-P"] else command[1:]
    warn = options[1:2] if options[:1] == ["-W"] else []
    rest = options[2 * len(warn) :]
    if rest[:1] != ["-m"] or rest[1] not in _MODULES:
        return None
    return {"command": command, "env": variables, "module": rest[1], "argv": ["-m", *rest[2:]], "warn": warn}


def _can_name(function: Callable[[], object] | None) -> bool:
    return function is None or getattr(sys.modules[function.__module__], function.__name__, None) is function


def _ask(order: dict[str, Any], files: dict[int, int]) -> int:
    """The process id of the child of this process that carries out the order; its files by number."""
    global _asked  # of this process
    with _asking:
        if _asked is None or _asked[0] != os.getpid():
            _asked = os.getpid(), _start_interpreter()
            atexit.register(_asked[1].close)
        channel = _asked[1]
        answers, answering = os.pipe()
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            body = json.dumps(order | {"files": list(files)}).encode()
            rights = array.array("i", [*files.values(), answering])
            channel.sendmsg([len(body).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            channel.sendall(body)
            os.close(answering)
            answer = os.read(answers, 16)
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(answers)
    if not answer:
        raise OSError("the warm interpreter started no process")
    return int(answer)


def _start_interpreter() -> socket.socket:
    ours, theirs = socket.socketpair()
    padding = "x" * 4000  # room for the command of a fork
    code = f"from {__name__} import serve; serve({theirs.fileno()})"
    command = [sys.executable, "-c", code, padding]
    variables = _environment | {"OPENBLAS_NUM_THREADS": "1"}  # no thread may run when it forks
    interpreter = subprocess.Popen(command, env=variables, cwd=_directory, pass_fds=[theirs.fileno()])
    interpreter.returncode = 0  # it ends with this process, and nobody waits for it
    theirs.close()
    return ours


def _next_order(channel: socket.socket) -> dict[str, Any]:
    """Returns, with an order, in each fork; ends with the process that asks."""
    while True:
        head, rights, _, _ = socket.recv_fds(channel, 4, 64)
        if not head:
            os._exit(0)
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            body += channel.recv(1 << 20)
        if not _fork_for_the_grandparent():
            channel.close()
            order: dict[str, Any] = json.loads(body)
            ours, theirs = socket.socketpair()
            if order["module"] in _CHILDLESS or os.fork():
                theirs.close()
                return order | {"channel": _arrange(order["files"], rights, ours)}
            ours.close()  # this process forks the children of the one that returned
            channel = theirs
        for fd in rights:
            os.close(fd)


def _fork_for_the_grandparent() -> bool:
    """False in the new process, once it is a child of who asked."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return True
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.0002)
    return False


def _arrange(numbers: list[int], rights: list[int], channel: socket.socket) -> socket.socket:
    """Give the files their numbers, and answer. Returns the channel, whose number may have been one of theirs."""
    lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for fd in (channel.detach(), *rights)]
    answer = lifted[-1]
    for number, fd in zip(numbers, lifted[1:], strict=False):
        os.dup2(fd, number, inheritable=True)
    os.write(answer, str(os.getpid()).encode())
    for fd in {*rights, *lifted[1:]} - set(numbers):
        os.close(fd)
    return socket.socket(fileno=lifted[0])


def _become(order: dict[str, Any]) -> None:
    """What an interpreter that was started with this command has at its start."""
    global _asked  # of this process
    install()
    if order["module"] not in _CHILDLESS:
        _asked = os.getpid(), order["channel"]
    if order.get("session"):
        os.setsid()
    if (group := order.get("group")) is not None and group >= 0:
        os.setpgid(0, group)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    _set_command(order["command"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for mode, name, number in (("r", "stdin", 0), ("w", "stdout", 1), ("w", "stderr", 2)):
        buffered = name != "stderr" and "PYTHONUNBUFFERED" not in os.environ
        stream = open(  # noqa: SIM115  for as long as the process lives
            number, mode, closefd=False, errors="backslashreplace" if number == 2 else "strict"
        )
        if not buffered and mode == "w":
            stream.reconfigure(write_through=number == 1, line_buffering=True)  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = order["cwd"]
    sys.argv[:] = order["argv"]
    for action in order["warn"]:
        warnings.simplefilter(action)
    if order.get("first"):
        module, function = order["first"]
        getattr(importlib.import_module(module), function)()


def _set_command(command: list[str]) -> None:
    """In `/proc/PID/cmdline`, where the command of the warm interpreter left room."""
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(each) + b"\0" for each in command)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def serve(number: int) -> NoReturn:
    """What the warm interpreter does: fork for who asks on the socket of this number."""
    channel = socket.socket(fileno=number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.pop("OPENBLAS_NUM_THREADS")
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    code = _carry_out(_next_order(channel))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to free each module would copy all that is shared


def _carry_out(order: dict[str, Any]) -> int:
    """Returns the exit code."""
    try:
        _become(order)
        if "code" in order:
            exec(order["code"], {"__name__": "__main__"})
        else:
            runpy._run_module_as_main(order["module"])  # type: ignore[attr-defined]
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001  the interpreter's own last resort
        traceback.print_exc()
        return 1
    return 0
