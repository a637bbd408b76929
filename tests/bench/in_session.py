"""A sandbox that defines offered skills in the session itself, to compare with a process for each."""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.base.values import Use
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Function, Observation, Session, SessionLimits
from app.sandbox.session import DEFINED


class InSessionSandbox:
    """Implements `Sandbox`. The process that runs the code counts its own uses, of all functions alike."""

    def __init__(self, sandbox: ForkedSandbox) -> None:
        self._sandbox = sandbox

    async def open(self, *args: Any, prelude: Sequence[Function] = (), **options: Any) -> Session:
        session = await self._sandbox.open(*args, **options)
        for function in prelude:
            await session.run(function.source)
        return _Session(session, {function.name for function in prelude})

    async def load_error(self, function: Function, limits: SessionLimits) -> str | None:
        return await self._sandbox.load_error(function, limits)


class _Session:
    def __init__(self, session: Session, offered: set[str]) -> None:
        self._session = session
        self._offered = offered

    async def run(self, code: str) -> Observation:
        observation = await self._session.run(code)
        self._offered -= set(DEFINED.findall(code))
        uses = (
            Use(each.function, each.function in self._offered, each.calls, each.returned)
            for each in observation.uses
        )
        return msgspec.structs.replace(observation, uses=tuple(uses))

    async def close(self) -> None:
        await self._session.close()
