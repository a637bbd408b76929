"""The embedded engine in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def engine_process(model_dir: Path, *options: str) -> Iterator[str]:
    """Yields its base URL, on a free port."""
    with subprocess.Popen(
        engine_command("--model", str(model_dir), "--port", "0", *options), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving"), line
        try:
            yield line.split(" on ")[1].split()[0]
        finally:
            process.terminate()
            process.wait()


def engine_command(*options: str) -> Sequence[str]:
    return [sys.executable, "-W", "error", "-m", "app.model_server", *options]
