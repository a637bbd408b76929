"""Processes of our own modules, and limits of what a process may use."""

import resource
import sys


def python_module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module in a new interpreter. No file of the working directory, which anybody may
    have written, stands in for a module (`-P`).
    """
    return (sys.executable, "-P", "-m", name, *arguments)


def lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Limit this process, and those that it will start; a lower limit stays. Without `hard`, both are `soft`."""
    wanted = soft, soft if hard is None else hard
    limits = zip(wanted, resource.getrlimit(kind), strict=True)
    soft, hard = (new if old == resource.RLIM_INFINITY else min(new, old) for new, old in limits)
    resource.setrlimit(kind, (soft, hard))
