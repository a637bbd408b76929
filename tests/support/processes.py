"""Processes and ports of this machine, seen from outside."""

import asyncio
import os
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to connections, so that none takes one before it is listened on."""
    with ExitStack() as stack:
        ports = list[int]()
        while len(ports) < count:
            port = random.randrange(15_000, 32_000)
            with suppress(OSError):  # it is in use
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def is_open(port: int) -> bool:
    """Whether a server of this machine listens there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    """False for zombies, which may not be reaped here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Children, grandchildren and so on."""
    children: dict[int, set[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        children.setdefault(parent, set()).add(int(stat.parent.name))
    found, generation = set[int](), {pid}
    while generation:
        generation = {child for each in generation for child in children.get(each, ())}
        found |= generation
    return found


def cpu_seconds_of(pid: int) -> float:
    """User and system time, with that of children that it has waited for. 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def command_of(pid: int) -> str:
    """Empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def gone(pids: Iterable[int]) -> None:
    """Wait until none of them is alive."""
    while any(map(alive, pids)):  # noqa: ASYNC110  there is no event to wait for
        await asyncio.sleep(0.02)
