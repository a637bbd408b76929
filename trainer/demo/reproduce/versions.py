"""Which commits an experiment was made with: a line for each in its directory, from the first to the last."""

from pathlib import Path

from trainer.atomic_write import write_atomically

UNKNOWN = "unknown"


def note(work: Path, commit: str) -> None:
    """It is begun, or goes on, at this commit. Call it before anything is made."""
    noted = _noted(work)
    if [commit] != noted[-1:]:
        write_atomically("".join(f"{each}\n" for each in [*noted, commit]).encode(), work / "commits.txt")


def made_at(work: Path, commit: str) -> str:
    """What to say of the results, written down at `commit`.

    One commit says all where nothing has changed. In a directory from before commits were noted the first one is
    not known.
    """
    first, *others = _noted(work) or [commit]
    said = [first, *(f"resumed at {each}" for each in others)]
    if commit != [first, *others][-1]:
        said.append(f"written down at {commit}")
    return ", ".join(said)


def _noted(work: Path) -> list[str]:
    path = work / "commits.txt"
    if path.exists():
        return path.read_text().split()
    return [UNKNOWN] if (work / "demonstrations.npz").exists() else []
