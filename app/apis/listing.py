"""Signatures in less room: of many optional arguments and fields, those that a task seems to need. Pure."""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from app.apis.catalog import App, Operation
from app.apis.query_words import read_query
from app.apis.signature import argument, result_fields, signature, signature_line
from app.apis.type_form import type_form
from app.apis.words import is_beginning, singular, split_words

LEFT_OUT = "..."
_SHORTEST = 320  # characters to which a line may be cut, so that there are more of them
_FEWEST = 12  # lines of a page, where they can have _LEAST
_LEAST = 80  # characters
_SUMMARY = 120
_CONSIDERED = 300  # arguments or fields of one operation
_REQUIRED: WeakKeyDictionary[App, frozenset[str]] = WeakKeyDictionary()  # names, kept as long as the app is


class SignatureWords:
    """What the arguments and fields of an app are chosen by: the words of a task, and what operations require.

    One serves all pages of a look-up: it remembers the ranks of names, and nothing of it outlives the look-up but
    what depends on the app alone.
    """

    def __init__(self, app: App, instruction: str) -> None:
        self._terms = read_query(instruction).terms
        self._required = _required_by(app)
        self._ranks: dict[str, tuple[int, bool, int]] = {}

    def rank(self, name: str) -> tuple[int, bool, int]:
        """The first are the most likely to be needed: named in the task, required somewhere, of few words."""
        if name not in self._ranks:
            words = [singular(word) for word in split_words(name)]
            named = sum(any(word == term or is_beginning(word, term) for term in self._terms) for word in words)
            self._ranks[name] = -named, name not in self._required, len(words)
        return self._ranks[name]


class SignaturePage(NamedTuple):
    lines: list[str]
    is_cut: bool  # whether there is more to some of them


def page_of_signatures(
    app: App, operations: Iterable[Operation], words: SignatureWords, chars: int
) -> SignaturePage:
    """A line for each of the first operations: as many as fit if long lines are cut, but twelve even in little
    room, and these as long as fits.
    """
    lines: list[str] = []
    left, shown = chars, list[Operation]()
    fewest = max(1, min(_FEWEST, chars // _LEAST))
    for operation in operations:
        line = signature(operation, typed=app.typed, rank=words.rank)
        left -= min(len(line), _SHORTEST) + 1
        if left < 0 and len(lines) >= fewest:
            break
        lines.append(line)
        shown.append(operation)
    limit = max(_LEAST, _fair_limit([len(line) for line in lines], chars - len(lines)))
    if all(len(line) <= limit for line in lines):
        return SignaturePage(lines, is_cut=False)
    short = [
        line if len(line) <= limit else short_signature(operation, limit, words, typed=app.typed)
        for line, operation in zip(lines, shown, strict=True)
    ]
    return SignaturePage(short, is_cut=True)


def short_signature(operation: Operation, limit: int, words: SignatureWords, *, typed: bool = False) -> str:
    """At most `limit` characters, `create_tag(title, color=None, ...) -> id, title, ...: Create a tag`.

    All required arguments are shown, unless they are too many.
    """
    required = [argument(each, typed=typed) for each in operation.parameters if each.required]
    optional = {each.name: argument(each, typed=typed) for each in operation.parameters if not each.required}
    start, fields = (type_form(operation.returns, words.rank), []) if typed else result_fields(operation.returns)
    line = _line(operation, [*required, *([LEFT_OUT] if optional else [])], start, [LEFT_OUT] if fields else [])
    left = limit - len(line)
    of_fields = sum(len(each) + 2 for each in fields)
    shown = _chosen(optional, words, left - min(of_fields, left // 2))
    left -= sum(len(optional[name]) + 2 for name in shown)
    kept = _chosen({name: name for name in fields}, words, left)
    arguments = [*required, *_marked([optional[each] for each in optional if each in shown], optional)]
    line = _line(operation, arguments, start, _marked([each for each in fields if each in kept], fields))
    return _cut(line, limit)


def _required_by(app: App) -> frozenset[str]:
    if app not in _REQUIRED:
        every = (each for operation in app.operations.values() for each in operation.parameters)
        _REQUIRED[app] = frozenset(each.name for each in every if each.required)
    return _REQUIRED[app]


def _line(operation: Operation, arguments: Sequence[str], start: str, fields: Sequence[str]) -> str:
    call = f"{operation.name}({', '.join(arguments)})"
    return signature_line(call, f"{start}{', '.join(fields)}", _cut(operation.summary, _SUMMARY))


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - len(LEFT_OUT)]}{LEFT_OUT}"


def _chosen(texts: dict[str, str], words: SignatureWords, left: int) -> set[str]:
    """The names of those that fit, the most likely first."""
    chosen = set[str]()
    for name in sorted(islice(texts, _CONSIDERED), key=words.rank):
        if len(texts[name]) + 2 <= left:
            left -= len(texts[name]) + 2
            chosen.add(name)
    return chosen


def _marked(shown: list[str], every: Collection[str]) -> list[str]:
    return shown if len(shown) == len(every) else [*shown, LEFT_OUT]


def _fair_limit(lengths: list[int], chars: int) -> int:
    """How long lines may be, so that all take `chars`.

    >>> _fair_limit([10, 80, 90], 100), _fair_limit([10, 20], 100)
    (45, 100)
    """
    left = chars
    for rank, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - rank)
        if length > share:
            return share
        left -= length
    return chars
