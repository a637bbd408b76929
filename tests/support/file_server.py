"""An HTTP server of files with ranges, which can break off in the middle, as networks do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """`files` maps paths to content. A response ends after the first of `breaks` bytes, while there are any."""

    def __init__(self, *, ranges: bool = True) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.headers: dict[str, str] = {}  # of every answer
        self.own_headers: dict[str, dict[str, str]] = {}  # of the answers for a path
        self.breaks: list[int] = []
        self.refusals: list[int] = []  # statuses of the next answers
        self.moved: dict[str, str] = {}  # paths to the locations of their files
        self.tokens: list[tuple[str, str]] = []  # path and Authorization, also of what is only looked at
        self.asked: list[tuple[str, str]] = []  # path and Range
        self.ranges = ranges
        self.url = ""

    @contextmanager
    def running(self) -> Iterator["FileServer"]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.respond(self)

            def do_HEAD(self) -> None:
                outer.respond(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def respond(self, request: BaseHTTPRequestHandler, *, body: bool = True) -> None:
        path = request.path.partition("?")[0]
        self.tokens.append((path, request.headers.get("Authorization", "")))
        if path in self.moved:
            headers = {"Location": self.moved[path], "Content-Length": "0"} | self.own_headers.get(path, {})
            request.send_response(302)
            for name, value in headers.items():
                request.send_header(name, value)
            request.end_headers()
        elif body and self.refusals:
            request.send_error(self.refusals.pop(0))
        else:
            self.answer(request, body=body)

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool = True) -> None:
        path, wanted = request.path.partition("?")[0], request.headers.get("Range", "")
        content = self.files.get(path)
        if body:
            self.asked.append((path, wanted))
        headers = self.headers | self.own_headers.get(path, {})
        if request.headers.get("If-Range", headers.get("ETag")) != headers.get("ETag"):
            wanted = ""
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted and self.ranges else 0
        size = len(content or b"")
        status = 404 if content is None else 416 if start and start >= size else 206 if start else 200
        request.send_response(status)
        rest = content[start:] if content is not None and status != 416 else b""
        if status == 206:
            request.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        if status == 416:
            request.send_header("Content-Range", f"bytes */{size}")
        request.send_header("Content-Length", str(len(rest)))
        request.send_header("Content-Type", self.types.get(path, "application/octet-stream"))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            if self.breaks and len(rest) > self.breaks[0]:
                rest = rest[: self.breaks.pop(0)]
                request.close_connection = True
            request.wfile.write(rest)
