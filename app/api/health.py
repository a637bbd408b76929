"""Is the process up, can it work, and how is it doing: for load balancers and monitoring, without a key."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from app.errors import AppError

Probe = Callable[[], Awaitable[object]]
"""Returns if the part can work, with a remark where some of it cannot; raises AppError with the reason if not."""

_PATIENCE = 5.0  # seconds a part may take to answer


class Health(msgspec.Struct, frozen=True):
    status: str


class Readiness(msgspec.Struct, frozen=True):
    """Each part is `ready`, or says why not. A remark says what a part that is ready goes without."""

    ready: bool
    parts: dict[str, str]
    remarks: dict[str, str] = {}


@get("/healthz", tags=["Health"], summary="Is the process up?")
async def healthz() -> Health:
    return Health("up")


@get(
    "/readyz",
    tags=["Health"],
    summary="Can it carry out tasks?",
    responses={503: ResponseSpec(Readiness, description="A part is not ready", generate_examples=False)},
)
async def readyz(probes: NamedDependency[Mapping[str, Probe]]) -> Response[Readiness]:
    """Asks the database, the engine and the sandbox, and says which of them is not ready and why."""
    answers = await asyncio.gather(*(_ask(probe) for probe in probes.values()))
    parts = {name: part for name, (part, _) in zip(probes, answers, strict=True)}
    remarks = {name: remark for name, (_, remark) in zip(probes, answers, strict=True) if remark}
    ready = all(part == "ready" for part in parts.values())
    return Response(Readiness(ready, parts, remarks), status_code=200 if ready else 503)


async def _ask(probe: Probe) -> tuple[str, str]:
    """How the part is, and the remark."""
    try:
        async with asyncio.timeout(_PATIENCE):
            told = await probe()
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s", ""
    except AppError as error:
        return str(error), ""
    return "ready", told if isinstance(told, str) else ""
