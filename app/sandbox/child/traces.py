"""Formats exceptions for the agent: its own frames, none of ours, and hints on the line of their exception."""

import linecache
import os
import traceback

from app.sandbox.hints import HINT, NOTE

STUB_LINE = 1_000_000  # of the functions that stand for skills, beyond every line of source

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_ROOT = os.path.dirname(os.path.dirname(_OURS.rstrip(os.sep))) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_MAX_CHARS = 20_000


def remember(label: str, source: str) -> None:
    """Make the lines of source without a file available to tracebacks and `inspect`."""
    linecache.cache[label] = (len(source), None, [line + "\n" for line in source.splitlines()], label)


def shown_file(name: str) -> str | None:
    """The name of a code file as the agent sees it; None if the file is ours."""
    return None if name.startswith(_OURS) else name.removeprefix(_STDLIB)


def without_places(text: str) -> str:
    """Output in which the directories of this host's files are left out.

    >>> without_places(f"<module 'os' from '{os.__file__}'>")
    "<module 'os' from 'os.py'>"
    """
    return text.replace(_STDLIB, "").replace(_ROOT, "")


def describe(error: BaseException) -> str:
    """The traceback as Python prints it. Propagates what the exception's own code raises."""
    outer = traceback.TracebackException.from_exception(error)
    waiting: list[traceback.TracebackException | None] = [outer]
    while waiting:
        trace = waiting.pop()
        if trace is not None:
            _clean(trace)
            waiting += [trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())]
    text = "".join(outer.format()).rstrip("\n").replace(f"\n{NOTE}", HINT)
    if len(text) > _MAX_CHARS:
        text = f"{text[: _MAX_CHARS // 4]}\n  ...\n{text[-_MAX_CHARS * 3 // 4 :]}"
    return text.encode(errors="backslashreplace").decode()


def _clean(trace: traceback.TracebackException) -> None:
    if trace.stack is None:
        return
    kept = [frame for frame in trace.stack if _is_shown(frame)]
    for frame in kept:
        frame.filename = shown_file(frame.filename) or frame.filename
    trace.stack[:] = kept
    if not kept:
        trace.stack = None  # type: ignore[assignment]  # a SyntaxError of the code itself has no frames, nor a header


def _is_shown(frame: traceback.FrameSummary) -> bool:
    return shown_file(frame.filename) is not None and frame.lineno != STUB_LINE
