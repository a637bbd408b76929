"""Serves a double on a socket, and has Schemathesis try every operation of its document."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.apis.double.service import Double, served_document
from app.base.values import Json
from tests.support.http_handlers import AnyMethodHandler, serving_handler

FORMS = (
    "not_a_server_error",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""What holds for any document: of many not even a 404 is named."""
EVERY = (*FORMS, "status_code_conformance", "unsupported_method", "missing_required_header", "ignored_auth")
"""What holds for a document that names its errors."""


@contextmanager
def serving(double: Double) -> Iterator[str]:
    """Its address, without the path of the document's server."""

    class Handler(AnyMethodHandler):
        def respond(self) -> None:
            path, _, query = self.path.partition("?")
            size = int(self.headers.get("content-length") or 0)
            answer = double.respond(self.command, path, query, dict(self.headers.items()), self.rfile.read(size))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    with serving_handler(Handler) as url:
        yield url


def violations(
    double: Double,
    directory: Path,
    checks: tuple[str, ...] = EVERY,
    *,
    phases: str = "coverage",
    examples: int = 10,
) -> str:
    """What Schemathesis found to be wrong; "" if nothing."""
    file = directory / "document.json"
    document: dict[str, Json] = served_document(double.model)
    file.write_text(
        json.dumps(
            {**document, "servers": [{"url": "/"}], "basePath": "/"}
            if "swagger" in document
            else {**document, "servers": [{"url": "/"}]}
        )
    )
    headers = [
        part
        for name, value in double.authentication().headers.items()
        for part in ("--header", f"{name}: {value}")
    ]
    with serving(double) as url:
        done = subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "schemathesis.cli",
                    "run",
                    str(file),
                    "--url",
                    url,
                    *headers,
                    "--no-color",
                ),
                *("--phases", phases, "--checks", ",".join(checks), "--continue-on-failure", "--warnings", "off"),
                *("--max-examples", str(examples), "--request-timeout", "30", "--seed", "1", "--workers", "1"),
                "--suppress-health-check=all",
            ],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    return "" if done.returncode == 0 else done.stdout + done.stderr
