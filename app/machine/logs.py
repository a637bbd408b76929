"""The log files of this machine's processes."""

from pathlib import Path

_FULL = 10 << 20  # bytes


def make_room(path: Path, full: int = _FULL) -> None:
    """Puts a full log aside, over the one put aside before: two files per process, however often it starts."""
    if path.exists() and path.stat().st_size > full:
        path.replace(path.with_name(f"{path.name}.1"))


def reason(path: Path, start: int) -> str:
    """What a process that died had to say, in one line: the last error after byte `start`, or its last words."""
    with path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("Error: ")
