"""The process that reads API documents, each in a fork of its own, within limits of time and memory.

`python -m app.apis.documents.read_process CPU_SECONDS MEMORY_BYTES` forks for each byte on its input. The fork
takes a request and the texts of documents, and writes a result and the document as JSON, with a lower priority
than those who serve. If a fork fails, so does this process: the output may be half an answer. What a document's
references to other documents point to becomes part of it.
"""

import gc
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import urldefrag, urljoin, urlsplit

import msgspec

from app.apis.calls.arguments import bind_parameters, check_bindings
from app.apis.catalog import MisspelledRisk
from app.apis.documents.protocols import parse_document, protocols, read_document
from app.apis.documents.references import to_json_text
from app.apis.double.coverage import PracticeFinding, PracticeQuestion, practice_finding
from app.apis.naming import readable_names
from app.apis.presentation import AS_WRITTEN, AppView, Presentation, keep_names, present
from app.apis.servers import same_origin
from app.apis.trial_questions import CallPlan, SampleCall, sample_call
from app.base.errors import ApiDocumentError, InvalidError
from app.base.processes import lower_limit, lower_priority
from app.base.values import Json

_PART = "x-documents"  # of a bundled document: the other documents, by number
_REFERENCE_CHARS = 2_000

LENGTH_BYTES = 4
NEXT = b"\n"
_NICENESS = 10  # the API, and those who carry out tasks, go first
_MESSAGE_BYTES = 8 << 20  # which the API decodes and caches; 20,000 operations of 400 characters


def wanted(document: Json, source: str | None, known: Mapping[str, Json]) -> list[str]:
    """The URLs of the documents that it, or one of the known ones, refers to, at the origin of `source`.

    Without those that are known, sorted.
    """
    if source is None:
        return []
    found = {url for base, each in [(source, document), *known.items()] for url in _targets(each, base)}
    return sorted(url for url in found - known.keys() if url != source and same_origin(url, source))


def bundled(document: dict[str, Json], source: str | None, others: Mapping[str, Json]) -> dict[str, Json]:
    """The document with those it refers to in it. References to any others stay as they are."""
    if source is None or not others:
        return document
    places = {source: ""} | {url: f"/{_PART}/{number}" for number, url in enumerate(others)}

    def rewriter(base: str) -> Callable[[str], str]:
        def rewrite(reference: str) -> str:
            url, fragment = _target(reference, base)
            return f"#{places[url]}{fragment}" if url in places else reference

        return rewrite

    parts = {str(number): _rewritten(each, rewriter(url)) for number, (url, each) in enumerate(others.items())}
    whole: dict[str, Json] = _rewritten(document, rewriter(source))
    return {**whole, _PART: parts}


def _targets(node: Json, base: str) -> Iterator[str]:
    for reference in _references(node):
        if not reference.startswith("#") and len(reference) <= _REFERENCE_CHARS:
            url, _ = _target(reference, base)
            if url:
                yield url


def _target(reference: str, base: str) -> tuple[str, str]:
    """URL and fragment; "" for what is no URL."""
    try:
        url, fragment = urldefrag(urljoin(base, reference))
        urlsplit(url)
    except ValueError:
        return "", ""
    return url, fragment


def _references(node: Json) -> Iterator[str]:
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                yield each["$ref"]
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)


def _rewritten(node: Json, rewrite: Callable[[str], str]) -> Json:
    if isinstance(node, list):
        return [_rewritten(each, rewrite) for each in node]
    if isinstance(node, dict):
        return {
            name: rewrite(each) if name == "$ref" and isinstance(each, str) else _rewritten(each, rewrite)
            for name, each in node.items()
        }
    return node


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`source` and `server` are those of `parse_document`."""

    name: str
    source: str | None = None
    server: str | None = None
    presentation: Presentation = AS_WRITTEN
    names: dict[str, str] | None = None  # of an earlier version, to be kept: by key or by place
    bind: dict[str, Json] = {}
    check: bool = False  # whether the document has what `bind` names
    store: bool = False  # whether the document is returned, to be stored
    call: CallPlan | None = None  # to be prepared
    practice: PracticeQuestion | None = None  # to be answered
    others: list[str] = []  # URLs of documents that it refers to; their texts follow its own, "" for none


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The app, or the reason why there is none."""

    app: AppView | None = None
    call: SampleCall | None = None
    practice: PracticeFinding | None = None
    wanted: list[str] = []  # URLs of more documents that it refers to
    refusal: str | None = None
    document_refused: bool = True  # or else the bindings
    defect: str | None = None  # of this program, for the log


def frame(part: bytes) -> bytes:
    return len(part).to_bytes(LENGTH_BYTES, "big") + part


def main() -> None:
    lower_priority(_NICENESS)
    cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    with suppress(InvalidError):  # to be raised again for each document
        protocols()
    gc.disable()  # a fork ends before garbage matters, and collections take two thirds of the time of large YAML
    while os.read(0, 1):
        child = os.fork()
        if not child:
            _serve(cpu_seconds, memory_bytes)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            sys.exit(abs(status))


def _serve(cpu_seconds: int, memory_bytes: int) -> None:
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
    lower_limit(resource.RLIMIT_AS, memory_bytes)
    request = msgspec.json.decode(_receive(), type=ReadRequest)
    document = b""
    try:
        result, document = _read(request, _receive(), [_receive() for _ in request.others])
    except InvalidError as error:
        result = ReadResult(refusal=str(error), document_refused=isinstance(error, ApiDocumentError))
    except MemoryError:
        result = ReadResult(refusal=f"this document takes more than {memory_bytes >> 20:,} MB to read")
    except Exception:  # noqa: BLE001 - the parent reports it
        result = ReadResult(defect=traceback.format_exc()[-2000:])
    message = msgspec.json.encode(result)
    if len(message) > _MESSAGE_BYTES:  # operations may share their long parts
        reason = (
            f"the document is too large: its signatures and summaries take more than {_MESSAGE_BYTES >> 20} MB"
        )
        message, document = msgspec.json.encode(ReadResult(refusal=reason)), b""
    sys.stdout.buffer.write(frame(message) + frame(document))
    sys.stdout.buffer.flush()


def _receive() -> bytes:
    stream = sys.stdin.buffer
    return stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "big"))


def _read(request: ReadRequest, content: bytes, contents: list[bytes]) -> tuple[ReadResult, bytes]:
    document = read_document(content)
    if request.store:
        others = {url: _readable(each) for url, each in zip(request.others, contents, strict=True)}
        if more := wanted(document, request.source, others):
            return ReadResult(wanted=more), b""
        document = bundled(document, request.source, {url: each for url, each in others.items() if each})
    app = parse_document(request.name, document, source=request.source, server=request.server)
    named = {}
    if request.store:
        for each in app.left_out:
            if isinstance(each, MisspelledRisk):  # whoever wrote it should know that it is not understood
                raise ApiDocumentError(each.reason)
        named = readable_names(app) if request.presentation.naming == "operation_id" else {}
    presentation = request.presentation
    if request.names is not None:
        presentation = keep_names(app, presentation, request.names)
    app = present(app, presentation)
    if request.check:
        check_bindings(app, request.bind)
    app = bind_parameters(app, request.bind)
    if request.call is not None:
        return ReadResult(call=sample_call(app, request.call)), b""
    if request.practice is not None:
        return ReadResult(practice=practice_finding(document, app, request.practice, request.server)), b""
    view = msgspec.structs.replace(AppView.of(app, presentation), readable_names=named)
    return ReadResult(app=view), _storable(document) if request.store else b""


def _readable(content: bytes) -> dict[str, Json]:
    """Empty for what is no document."""
    try:
        return read_document(content) if content else {}
    except ApiDocumentError:
        return {}


def _storable(document: dict[str, Json]) -> bytes:
    """As JSON without NUL, which PostgreSQL's text lacks."""
    encoded = to_json_text(document)
    return to_json_text(_without_nul(document)) if rb"\u0000" in encoded else encoded


def _without_nul(value: Json) -> Json:
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, list):
        return list(map(_without_nul, value))
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(each) for name, each in value.items()}
    return value


if __name__ == "__main__":
    main()
