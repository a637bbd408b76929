"""Response times of the API while a large document is registered, beside those without.

    python -m tests.bench.bench_register [--seconds 20] [--megabytes 10]

The API, a runner and an embedded PostgreSQL as in production. The response time is that of `GET /v1/tasks`, from a
process of its own: idle, and while a YAML document is fetched from another server, read and stored again and
again, under a new name each time.
"""

import asyncio
import time
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
from litestar import Litestar, get

from app.base.values import Json
from tests.bench.bench_isolation import Phase, Stage, listening, open_stage
from tests.bench.results_file import write_results

_FIELDS = 40  # of what each operation answers
_OPERATION = """\
  /things_{0}:
    get:
      operationId: list_things_{0}
      summary: List things {0}
      responses:
        '200':
          description: these
          content:
            application/json:
              schema:
                type: object
                properties:
"""
_FIELD = """\
                  field_{0}:
                    type: string
                    description: what it says, {0}
"""


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="of each phase, at least")
@click.option("--megabytes", default=10.0, show_default=True, help="of the document")
def main(seconds: float, megabytes: float) -> None:
    """Measure whether registering moves the response times of others."""
    text = document_text(megabytes)
    with TemporaryDirectory(prefix="sage-register-") as directory:
        phases, took = asyncio.run(_measure(Path(directory), seconds, text))
    for each in phases:
        print(f"{each.name:12} p50 {each.p50:7.1f}  p99 {each.p99:7.1f}  worst {each.worst:7.1f} ms")
    print(f"{len(took)} registrations of {len(text) / 1e6:.1f} MB, of {min(took):.1f} to {max(took):.1f} s")
    figures = {"seconds": seconds, "bytes": len(text), "phases": msgspec.to_builtins(phases), "took": took}
    write_results("register", figures)


def document_text(megabytes: float) -> str:
    """YAML in the block style, as most documents are."""
    parts = ["openapi: 3.1.0\ninfo: {title: large}\npaths:\n"]
    size = 0
    for number in count():
        parts.append(_path(number))
        size += len(parts[-1])
        if size > 1e6 * megabytes:
            return "".join(parts)
    raise AssertionError("it grows until it is large enough")


def _path(number: int) -> str:
    fields = "".join(_FIELD.format(each) for each in range(_FIELDS))
    return _OPERATION.format(number) + fields


async def _measure(directory: Path, seconds: float, text: str) -> tuple[list[Phase], list[float]]:
    @get("/openapi.yaml", media_type="application/yaml", sync_to_thread=False)
    def openapi() -> str:
        return text

    took: list[float] = []

    async def keep_registering(stage: Stage, url: str) -> None:
        for number in count():
            body: dict[str, Json] = {"project": "demo", "name": f"large_{number}", "url": f"{url}/openapi.yaml"}
            began = time.monotonic()
            answer = await stage.client.post("/v1/apis", json={**body, "server": url})
            assert answer.is_success, answer.text[:1_000]
            took.append(round(time.monotonic() - began, 2))

    async with open_stage(directory, {"honest": ""}, 1) as stage, listening(Litestar([openapi])) as url:
        phases = [await stage.phase("idle", seconds)]
        load = asyncio.create_task(keep_registering(stage, url))
        await asyncio.sleep(1)
        phases.append(await stage.phase("registering", seconds))
        while not took:
            await asyncio.sleep(0.1)
            if load.done():
                load.result()
        load.cancel()
        phases.append(await stage.phase("idle again", seconds))
    return phases, took


if __name__ == "__main__":
    main()
