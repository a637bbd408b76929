"""A server of other people as a process of its own, and what it needs to start."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

_STARTS_WITHIN = 600.0  # seconds, on a busy machine
_STOPS_WITHIN = 20.0
_INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR")


@contextmanager
def server_process(
    command: Sequence[str | Path], place: Path, answers: str, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Runs it in the directory `place`, from when the URL `answers` does, whatever the status, to its end.

    It sees nothing of this process's environment but its PATH and language; HOME is `place`.
    """
    place.mkdir(parents=True, exist_ok=True)
    with (place / "server.log").open("ab") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=place,
            env=clean_environment(place, environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _answering(process, answers, place / "server.log")
        yield
    finally:
        _stop(process)


def clean_environment(place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """This process's PATH and language, HOME, and what is given."""
    known = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**known, "HOME": str(place), **environment}


def _answering(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + _STARTS_WITHIN
    while process.poll() is None and time.monotonic() < until:
        with suppress(httpx.HTTPError):
            httpx.get(url, timeout=10, trust_env=False)
            return
        time.sleep(0.2)
    raise AssertionError(f"{process.args!r} does not answer at {url}:\n{log.read_text(errors='replace')[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its children are gone, too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOPS_WITHIN)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOPS_WITHIN)
