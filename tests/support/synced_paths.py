"""Which files and directories a test has the system write to the disk."""

import os

import pytest


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths at which they were synced from now on, in order. They are synced all the same."""
    paths: list[str] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return paths
