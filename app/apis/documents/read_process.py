"""The process that reads API documents, each in a fork of its own, within limits of time and memory.

`python -m app.apis.read_process CPU_SECONDS MEMORY_BYTES` forks for each byte on its input. The fork takes a
request and the texts of documents, and writes a result and the document as JSON, with a lower priority than
those who serve. If a fork fails, so does this process: the output may be half an answer.
"""

import gc
import os
import resource
import sys
import traceback
from contextlib import suppress

import msgspec

from app.apis import bundle
from app.apis.api_documents import parse_document, protocols, read_document
from app.apis.app_view import AppView
from app.apis.bound_parameters import bind_parameters, check_bindings
from app.apis.catalog import App, MisspelledRisk
from app.apis.double.coverage import PracticeFinding, PracticeQuestion, practice_finding
from app.apis.naming import readable_names
from app.apis.presentation import AS_WRITTEN, Presentation, keep_names, present
from app.apis.sample_call import CallPlan, SampleCall, sample_call
from app.apis.yaml_json import to_json_text
from app.base.errors import ApiDocumentError, InvalidError
from app.base.processes import lower_limit, lower_priority
from app.base.values import Json

LENGTH_BYTES = 4
NEXT = b"\n"
_NICENESS = 10  # the API, and those who carry out tasks, go first
_MESSAGE_BYTES = 8 << 20  # which the API decodes and caches; 20,000 operations of 400 characters


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
        if more := bundle.wanted(document, request.source, others):
            return ReadResult(wanted=more), b""
        document = bundle.bundled(document, request.source, {url: each for url, each in others.items() if each})
    app = parse_document(request.name, document, source=request.source, server=request.server)
    named = {}
    if request.store:
        _refuse_misspelled(app)
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


def _refuse_misspelled(app: App) -> None:
    """Whoever wrote the risk wants calls to be supervised, and should know that it is not understood."""
    for each in app.left_out:
        if isinstance(each, MisspelledRisk):
            raise ApiDocumentError(each.reason)


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
