"""The log files of the child processes."""

from pathlib import Path

_MAX_BYTES = 10 << 20


def rotate(path: Path, max_bytes: int = _MAX_BYTES) -> None:
    """Move a log beyond `max_bytes` to `<name>.1`, replacing the previous one: at most two files per process."""
    if path.exists() and path.stat().st_size > max_bytes:
        path.replace(path.with_name(f"{path.name}.1"))


def last_error(path: Path, start: int) -> str:
    """One line about why a process died: its watchdog, the last error after byte `start`, or the last line."""
    with path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    if any(line.startswith("Timeout (") for line in lines):
        return "it did not respond, and its watchdog ended it; the log shows where"
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["it logged nothing"])[-1].removeprefix("Error: ")
