"""A stand-in for vLLM's sleep routes (vllm/entrypoints/serve/dev), on a real socket."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class SleepyServer(ThreadingHTTPServer):
    """Tests set and read its attributes."""

    daemon_threads = True

    def __init__(self, *, dev_mode: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dev_mode = dev_mode  # without it the routes do not exist
        self.sleep_mode = True  # --enable-sleep-mode; without it sleeping frees nothing
        self.sleeping = False
        self.asked: list[str] = []
        self.deaf = 0  # calls of /wake_up that fail with 500
        self.broken = False  # sleeping fails halfway: the scheduler is paused, and the reply is 500

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def sleepy_server(*, dev_mode: bool = True) -> Iterator[SleepyServer]:
    with SleepyServer(dev_mode=dev_mode) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SleepyServer

    def do_GET(self) -> None:
        model = {"model_config": {"enable_sleep_mode": self.server.sleep_mode}}
        answers: dict[str, dict[str, object]] = {
            "/is_sleeping": {"is_sleeping": self.server.sleeping},
            "/server_info?config_format=json": {"vllm_config": model},
        }
        if self.server.dev_mode and self.path in answers:
            self._answer(200, answers[self.path])
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        self.server.asked.append(self.path)
        route, status = urlsplit(self.path).path, 200
        if route not in ("/sleep", "/wake_up") or not self.server.dev_mode:
            self._answer(404, {"detail": "Not Found"})
            return
        if route == "/wake_up" and self.server.deaf:
            self.server.deaf -= 1
            status = 500
        else:
            self.server.sleeping = route == "/sleep"
        if route == "/sleep" and self.server.broken:
            status = 500
        level = parse_qs(urlsplit(self.path).query).get("level", ["1"])[0]
        self._answer(status, {"status": route[1:], "level": level})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """No request log."""
