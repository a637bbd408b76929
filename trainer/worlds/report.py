"""What a report of an experiment has beside its tables: the machine and the commits that its results come from,
and learning curves as SVG, a line per condition over the range of its seeds.
"""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from app.base.files import write_atomically

Curve = Sequence[tuple[int, float]]  # step, percent

UNKNOWN = "unknown"
_ROOT = Path(__file__).resolve().parents[2]
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 360, 48, 16, 168, 40
_COLOURS = ("#0b6e4f", "#c1121f", "#1d4e89", "#b8860b", "#6a4c93", "#444444")
_STYLE = "font-family='sans-serif' font-size='12' fill='#222222'"


def source_commit(root: Path = _ROOT) -> str:
    """The full hash, with "-dirty" for a tree that was changed; "unknown" for an installed package."""
    if not (root / ".git").exists():  # the repository around a virtual environment would be another one
        return UNKNOWN
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return UNKNOWN
    return f"{head}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else head


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = f"{len(names)} x {names[0]}" if names else platform.processor()
    return f"{processor}, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def record_commit(work: Path, commit: str) -> None:
    """Record that the experiment starts or resumes at this commit. Call it before it writes anything."""
    recorded = _recorded(work)
    if [commit] != recorded[-1:]:
        write_atomically("".join(f"{each}\n" for each in [*recorded, commit]).encode(), work / "commits.txt")


def provenance(work: Path, commit: str) -> str:
    """The provenance of results that are written at `commit`: that commit alone if nothing has changed.

    In a directory from before commits were recorded, the first one is unknown.
    """
    first, *others = _recorded(work) or [commit]
    parts = [first, *(f"resumed at {each}" for each in others)]
    if commit != [first, *others][-1]:
        parts.append(f"written at {commit}")
    return ", ".join(parts)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()


def _recorded(work: Path) -> list[str]:
    path = work / "commits.txt"
    if path.exists():
        return path.read_text().split()
    return [UNKNOWN] if (work / "demonstrations.npz").exists() else []


def draw_curves(curves: Mapping[str, Sequence[Curve]], *, ylabel: str, xlabel: str = "optimizer step") -> str:
    """An SVG document. Conditions keep their order; each needs a curve with at least one point."""
    last = max(step for runs in curves.values() for run in runs for step, _ in run)
    top = 10 * -(-max(value for runs in curves.values() for run in runs for _, value in run) // 10) or 10.0
    parts = [*_axes(last, top, xlabel, ylabel)]
    for index, (name, runs) in enumerate(curves.items()):
        parts += _line(runs, last, top, _COLOURS[index % len(_COLOURS)])
        parts.append(_legend(name, index))
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}'>\n"
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='white'/>\n{body}\n</svg>\n"
    )


def _x(step: float, last: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top


def _axes(last: int, top: float, xlabel: str, ylabel: str) -> list[str]:
    parts = []
    for value in range(0, int(top) + 1, 10 if top <= 60 else 20):
        y = _y(value, top)
        parts.append(f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#dddddd'/>")
        parts.append(f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end' {_STYLE}>{value}</text>")
    for step in range(0, last + 1, max(1, last // 4)):
        x = _x(step, last)
        parts.append(f"<text x='{x:.1f}' y='{_HEIGHT - _BOTTOM + 18}' text-anchor='middle' {_STYLE}>{step}</text>")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f"<text x='{middle:.1f}' y='{_HEIGHT - 6}' text-anchor='middle' {_STYLE}>{xlabel}</text>")
    parts.append(
        f"<text transform='translate(14 {_HEIGHT / 2:.0f}) rotate(-90)' text-anchor='middle' {_STYLE}>"
        f"{ylabel}</text>"
    )
    return parts


def _line(runs: Sequence[Curve], last: int, top: float, colour: str) -> list[str]:
    """The mean over seeds, on a band from the worst to the best seed."""
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for step, value in run:
            by_step.setdefault(step, []).append(value)
    steps = sorted(by_step)
    upper = [f"{_x(step, last):.1f},{_y(max(by_step[step]), top):.1f}" for step in steps]
    lower = [f"{_x(step, last):.1f},{_y(min(by_step[step]), top):.1f}" for step in reversed(steps)]
    mean = [f"{_x(step, last):.1f},{_y(fmean(by_step[step]), top):.1f}" for step in steps]
    return [
        f"<polygon points='{' '.join(upper + lower)}' fill='{colour}' opacity='0.12'/>",
        f"<polyline points='{' '.join(mean)}' fill='none' stroke='{colour}' stroke-width='2'/>",
    ]


def _legend(name: str, index: int) -> str:
    x, y = _WIDTH - _RIGHT + 12, _TOP + 14 + 20 * index
    colour = _COLOURS[index % len(_COLOURS)]
    return (
        f"<line x1='{x}' x2='{x + 18}' y1='{y - 4}' y2='{y - 4}' stroke='{colour}' stroke-width='2'/>"
        f"<text x='{x + 24}' y='{y}' {_STYLE}>{name}</text>"
    )
