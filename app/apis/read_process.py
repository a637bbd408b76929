"""The process that reads one API document: decodes, parses and describes it, within limits of time and memory.

`python -m app.apis.read_process` takes a frame and the text of a document on its input, and writes a frame and the
document as JSON. A document that takes too long or too much memory ends this process alone.
"""

import json
import resource
import sys
import traceback

import msgspec

from app.apis.api_documents import parse_document, read_document
from app.apis.app_view import AppView
from app.apis.bound_parameters import bind_parameters, check_bindings
from app.errors import ApiDocumentError, InvalidError
from app.records import Json

LENGTH_BYTES = 4


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`source` and `server` are those of `parse_document`; `bind` are bindings, to be checked if `check`."""

    name: str
    source: str | None
    server: str | None
    bind: dict[str, Json]
    check: bool
    cpu_seconds: int
    memory_bytes: int


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The app, or the reason why there is none."""

    app: AppView | None = None
    refusal: str | None = None
    document_refused: bool = True  # or else the bindings
    defect: str | None = None  # of this program, for the log


def frame(message: msgspec.Struct) -> bytes:
    encoded = msgspec.json.encode(message)
    return len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded


def split(data: bytes) -> tuple[bytes, bytes]:
    """A frame's message, and what follows it."""
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
    return data[LENGTH_BYTES:end], data[end:]


def main() -> None:
    message, content = split(sys.stdin.buffer.read())
    request = msgspec.json.decode(message, type=ReadRequest)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (request.cpu_seconds, request.cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (request.memory_bytes, request.memory_bytes))
    document = b""
    try:
        result, document = _read(request, content)
    except InvalidError as error:
        result = ReadResult(refusal=str(error), document_refused=isinstance(error, ApiDocumentError))
    except MemoryError:
        result = ReadResult(refusal=f"this document takes more than {request.memory_bytes >> 20:,} MB to read")
    except Exception:  # noqa: BLE001 - the parent reports it
        result = ReadResult(defect=traceback.format_exc()[-2000:])
    sys.stdout.buffer.write(frame(result) + document)


def _read(request: ReadRequest, content: bytes) -> tuple[ReadResult, bytes]:
    try:
        document = read_document(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ApiDocumentError("the document is not UTF-8 text") from error
    app = parse_document(request.name, document, source=request.source, server=request.server)
    if request.check:
        check_bindings(app, request.bind)
    view = AppView.of(bind_parameters(app, request.bind))
    return ReadResult(app=view), _storable(document)


def _storable(document: dict[str, Json]) -> bytes:
    """As JSON without NUL, which PostgreSQL's text lacks."""
    try:
        encoded = msgspec.json.encode(document)
    except OverflowError:  # an integer of more than 64 bits
        encoded = json.dumps(document).encode()
    return json.dumps(_without_nul(document)).encode() if rb"\u0000" in encoded else encoded


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
