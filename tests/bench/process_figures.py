"""What processes take of this machine, from /proc."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray


class Usage(msgspec.Struct, frozen=True):
    """Of one process. `pss_mb` counts a page that it shares with others in part; `own_mb` are those of no file."""

    pss_mb: float
    own_mb: float
    descriptors: int


def usage_of(pid: int) -> Usage:
    """Zeros if it has ended."""
    with suppress(OSError):
        rollup = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        kilobytes = {words[0]: int(words[1]) for words in rollup}
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return Usage(kilobytes["Pss:"] / 1024, kilobytes["Pss_Anon:"] / 1024, descriptors)
    return Usage(0.0, 0.0, 0)


def disk_mb(directory: Path) -> float:
    """What its files take."""
    return sum(_blocks(path) for path in directory.rglob("*")) / 2048


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks
    except OSError:
        return 0


class Slope(msgspec.Struct, frozen=True):
    """Growth per hour, and half of its 95 % interval."""

    per_hour: float
    interval: float


def slope(minutes: Iterable[float], values: Iterable[float], blocks: int = 6) -> Slope:
    """Of a line through the values. The interval is of a line through the means of consecutive blocks, because
    neighbouring minutes are not independent.
    """
    x, y = np.array(list(minutes)) / 60, np.array(list(values))
    line = _fit(x, y)
    parts = np.array_split(np.arange(len(x)), blocks)
    means_x, means_y = (np.array([each[part].mean() for part in parts]) for each in (x, y))
    rest = means_y - np.polyval(np.polyfit(means_x, means_y, 1), means_x)
    deviation = np.sqrt((rest**2).sum() / (blocks - 2) / ((means_x - means_x.mean()) ** 2).sum())
    return Slope(line, float(2.776 * deviation))  # Student's t for 6 - 2 degrees of freedom


def _fit(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    return float(np.polyfit(x, y, 1)[0])
