"""Serves a handler on a socket of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class AnyMethodHandler(BaseHTTPRequestHandler):
    """Answers every method by `respond`, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self.respond
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_handler(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
