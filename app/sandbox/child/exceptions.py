"""Exceptions for the agent: its own frames, none of ours, and hints on their line; carried from a skill's process
to its caller as class, arguments, causes and the skill's frames.
"""

import ast
import builtins
import itertools
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any

from app.sandbox.wire import HINT, NOTE, Encoder, decode

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


_MAX_CHAIN = 10
_MAX_FRAMES = 1_200
_MAX_BYTES = 1 << 20

FindClass = Callable[[str, type[BaseException]], type[BaseException]]
"""Makes a class that only the skill's process has, of a name and a base."""


def encode_chain(error: BaseException) -> list[Any]:
    """The exception and those it came from, linked by their positions. May run code of the exceptions."""
    chain = [error]
    for link in chain:
        for each in (link.__cause__, link.__context__):
            if each is not None and _index(chain, each) is None and len(chain) < _MAX_CHAIN:
                chain.append(each)
    return [_encode(link, chain) for link in chain]


def decode_chain(chain: list[Any], find_class: FindClass) -> BaseException:
    """The exception, as if its code had run here."""
    links = [_decode(fields, find_class) for fields in chain]
    for link, fields in zip(links, chain, strict=True):
        cause, context, suppressed = fields["links"]
        link.__cause__ = None if cause is None else links[cause]
        link.__context__ = None if context is None else links[context]
        link.__suppress_context__ = bool(suppressed)
    return links[0]


def last_line(error: BaseException) -> str:
    """ "KeyError: 'x'", as the last line of a traceback."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _encode(error: BaseException, chain: list[BaseException]) -> dict[str, Any]:
    kind = type(error)
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    return {
        "class": [kind.__module__, kind.__qualname__, base.__name__],
        "args": _plain(list(error.args)),
        "fields": _plain(dict(vars(error))),
        "text": str(error)[:_MAX_CHARS].encode(errors="backslashreplace").decode(),
        "links": [_index(chain, error.__cause__), _index(chain, error.__context__), error.__suppress_context__],
        "frames": list(_frames(error.__traceback__)),
    }


def _frames(tb: TracebackType | None) -> Iterator[list[Any]]:
    """[file, function, first line, last line, first column, last column] of each frame that is not ours."""
    for _ in range(_MAX_FRAMES):
        if tb is None:
            return
        code = tb.tb_frame.f_code
        shown = shown_file(code.co_filename)
        if shown is not None:
            positions = next(itertools.islice(code.co_positions(), tb.tb_lasti // 2, None), (None,) * 4)
            first, last, start, end = positions
            yield [shown, code.co_name, tb.tb_lineno, last if first == tb.tb_lineno else None, start, end]
        tb = tb.tb_next


def _decode(fields: dict[str, Any], find_class: FindClass) -> BaseException:
    error = _instance(fields, find_class)
    with_fields = decode(fields["fields"])
    if isinstance(with_fields, dict):
        vars(error).update(with_fields)
    return error.with_traceback(_traceback(fields["frames"]))


def _instance(fields: dict[str, Any], find_class: FindClass) -> BaseException:
    """An exception of the same class and text, as nearly as this process can make it."""
    module, name, base_name = fields["class"]
    base = getattr(builtins, base_name)
    if issubclass(base, BaseExceptionGroup):  # its members stay behind
        module, base = "", Exception
    kind = _known(module, name) or find_class(name, base)
    text: str = fields["text"]
    given = decode(fields["args"])
    for arguments in ([] if given is None else [tuple(given)]) + [(text,)]:
        for make in (kind, partial(kind.__new__, kind)):
            with suppress(TypeError):
                error: BaseException = make(*arguments)
                if str(error) == text:
                    return error
    literal: type[BaseException] = type(
        name, (kind,), {"__str__": lambda _self: text, "__module__": kind.__module__}
    )
    return literal.__new__(literal, text)


def _known(module: str, name: str) -> type[BaseException] | None:
    """A class of the standard library."""
    found = None if module in ("", "__main__") else getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _traceback(frames: list[list[Any]]) -> TracebackType | None:
    """Frames that no longer exist, as a traceback of this process."""
    tb: TracebackType | None = None
    for file, function, first, last, start, end in reversed(frames):
        frame, instruction = _frame(file, function, first, last, start, end)
        tb = TracebackType(tb, frame, instruction, first)
    return tb


def _frame(
    file: str, function: str, first: int, last: int | None, start: int | None, end: int | None
) -> tuple[FrameType, int]:
    """A frame that raised at this position, and the instruction it raised at."""
    known = last is not None and start is not None and end is not None
    place = {"lineno": first, "end_lineno": last, "col_offset": start, "end_col_offset": end} if known else {}
    raising = ast.Raise(ast.Name("error", ast.Load()), None)
    for node in (raising, raising.exc):
        for name, value in (place or {"lineno": first, "col_offset": 0}).items():
            setattr(node, name, value)
    code: CodeType = compile(ast.Module([raising], []), file, "exec", dont_inherit=True)
    try:
        exec(code.replace(co_name=function), {"error": Exception()})
    except Exception as raised:  # noqa: BLE001 - the one that this code raises
        tb = raised.__traceback__
        assert tb is not None
        assert tb.tb_next is not None
        return tb.tb_next.tb_frame, tb.tb_next.tb_lasti
    raise AssertionError("a raise statement raises")


def _plain(value: Any) -> Any:
    """The encoded value, or None if it is not plain."""
    try:
        return Encoder(_MAX_BYTES).encode(value)
    except (TypeError, ValueError):
        return None


def _index(chain: list[BaseException], error: BaseException | None) -> int | None:
    return next((number for number, link in enumerate(chain) if link is error), None)
