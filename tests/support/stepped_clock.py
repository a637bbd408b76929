"""Wall clocks that step, for processes started with LD_PRELOAD. Needs a C compiler."""

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("stepped_clock.c")
_SIZE = 8  # bytes of the file that processes map


class SteppedClock:
    """One clock: processes with `environment` follow it."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(bytes(_SIZE))
        file.chmod(0o644)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(file)}

    def set_wrong_by(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), seconds.to_bytes(_SIZE, "little", signed=True), 0)


def stepped_clocks(directory: Path, *names: str) -> dict[str, SteppedClock]:
    """None where there is no compiler."""
    compiler, library = shutil.which("cc"), directory / "stepped_clock.so"
    if compiler is None:
        return {}
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)], check=True)
    return {name: SteppedClock(library, directory / name) for name in names}
