"""Formats a run of code for the policy: cut at a line, errors complete or nearly so. Pure."""

from app.sandbox.protocol import Observation, RunStop

_STOPPED = {
    RunStop.CPU: "TimeoutError: the code computed for too long",
    RunStop.WALL: "TimeoutError: the code took too long",
    RunStop.MEMORY: "MemoryError: the code needed too much memory",
    RunStop.CALLS: "CallLimit: no API calls are left",
    RunStop.CRASH: "RuntimeError: the Python session crashed",
}
RESTARTED = "Python was restarted: what earlier turns defined is still there, what this one defined is lost."


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters, in whole lines where possible, and the number of characters cut.

    >>> cut("one\\ntwo\\nthree", 8)
    'one\\ntwo\\n[5 characters cut]'
    """
    if len(text) <= limit:
        return text
    head = text[:limit]
    line_end = head.rfind("\n")
    kept = head[:line_end] if line_end > 0 else head
    gone = len(text) - len(kept) - (text[len(kept)] == "\n")
    return f"{kept}\n[{gone} characters cut]"


def error_of(observation: Observation) -> str | None:
    """The traceback, or a sentence if the run was stopped from outside. None if the code ran to its end."""
    if not observation.alive:
        return f"{_STOPPED.get(observation.stop, _STOPPED[RunStop.CRASH])}\n{RESTARTED}"
    return observation.error or _STOPPED.get(observation.stop)


def last_line(traceback: str) -> str:
    """The exception of a traceback, without its frames.

    >>> last_line('Traceback (most recent call last):\\n  File "<turn 1>", line 1\\n    f()\\nKeyError: 3')
    'KeyError: 3'
    """
    lines = traceback.rstrip().split("\n")
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    raised = frames[-1] + 1 if frames else 0
    while raised < len(lines) - 1 and lines[raised].startswith("    "):  # source and carets
        raised += 1
    return lines[raised]
