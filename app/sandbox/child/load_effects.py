"""Compares a process before and after it loaded a skill."""

import builtins
import os
import random
import sys
import warnings
from typing import Any


class LoadEffects:
    """The state of the process at the time it is made."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = self._state()

    def found(self, allowed: set[str]) -> list[str]:
        """What changed since then, other than new modules, and names in `allowed` that the namespace got."""
        after = self._state()
        changed = {what for what, held in self._before.items() if not _kept(held, after[what])}
        changed |= {what for what in ("builtins", "environment") if len(after[what]) != len(self._before[what])}
        added = after["names"].keys() - self._before["names"].keys() - allowed
        return sorted(changed | {f"name {name}" for name in added})

    def _state(self) -> dict[str, dict[Any, Any]]:
        return {
            "names": dict(self._namespace),
            "builtins": dict(vars(builtins)),
            "modules": dict(sys.modules),
            "environment": {name: hash(value) for name, value in os.environ.items()},
            "random": {"state": hash(random.getstate())},
            "hooks": {
                "settings": hash((tuple(sys.path), sys.getrecursionlimit(), len(warnings.filters))),
                "excepthook": sys.excepthook,
                "displayhook": sys.displayhook,
                "trace": sys.gettrace(),
                "profile": sys.getprofile(),
            },
        }


def _kept(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    missing = object()
    return all(
        after.get(key, missing) is value or (type(value) is int and after.get(key) == value)
        for key, value in before.items()
    )
