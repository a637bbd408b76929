"""No call is sent twice: the call journal, and replayed code."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.apis.calls.recorded_calls import InDoubtError
from app.base.errors import HostError
from app.base.values import Call
from tests.support.echo_service import Echo, EchoSetup, open_echo, raised
from tests.support.ledger_project import until


@pytest.fixture(params=["socket", "asgi"])
async def setup(request: pytest.FixtureRequest) -> AsyncIterator[EchoSetup]:
    async with open_echo(request.param) as opened:
        yield opened


class Memory:
    """A journal in memory; a call that began and never ended is lost."""

    def __init__(self) -> None:
        self.begun: dict[int, Call] = {}
        self.ended: dict[int, Call] = {}

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        if call.seq in self.begun and call.seq not in self.ended and not repeatable:
            raise InDoubtError(call.api, call.arguments, "its runner died")
        self.begun[call.seq] = call
        return self.ended.get(call.seq)

    async def sending(self) -> None: ...

    async def end(self, call: Call) -> None:
        self.ended[call.seq] = call

    async def abort(self) -> None: ...


async def test_a_recorded_call_is_answered_without_being_sent(setup: EchoSetup) -> None:
    journal = Memory()
    first = setup.gateway(journal=journal)
    result = await first("echo.add_item", ["a"], {})
    error = await raised(first, "echo.fail", 409)
    hits, second = setup.service.hits, setup.gateway(journal=journal)
    assert await second("echo.add_item", ["a"], {}) == result
    again = await raised(second, "echo.fail", 409)
    assert (again.kind, again.message) == (error.kind, error.message)
    assert second.take_calls() == first.take_calls()
    assert setup.service.hits == hits


async def test_a_lost_call_is_in_doubt_unless_it_is_safe_to_repeat(setup: EchoSetup) -> None:
    journal = Memory()
    gateway = setup.gateway(journal=journal)
    for api, argument in (("echo.answer", "text"), ("echo.add_item", "a")):
        call = Call(seq=gateway.made, turn=0, api=api, arguments={})
        journal.begun[call.seq] = call
        if api == "echo.answer":
            assert await gateway(api, [argument], {}) == "plain words"
            assert gateway.in_doubt is None
        else:
            assert (await raised(gateway, api, argument)).kind == "InDoubt"
            assert api in str(gateway.in_doubt)
    assert setup.service.hits == 1


async def test_a_cancelled_call_is_recorded_as_begun_and_not_ended() -> None:
    service, journal = Echo(), Memory()
    async with service.listening() as server, httpx.AsyncClient(trust_env=False) as client:
        gateway = EchoSetup(service, server, client).gateway(journal=journal)
        calling = asyncio.create_task(gateway("echo.answer", ["slow"], {}))
        await until(lambda: bool(journal.begun))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert (list(journal.begun), list(journal.ended)) == ([0], [])


async def test_replayed_code_gets_the_recorded_results(setup: EchoSetup) -> None:
    first = setup.gateway()
    await first("echo.add_item", ["a"], {})
    calls, hits = first.take_calls(), setup.service.hits
    second = setup.gateway()
    second.replay(calls)
    assert (await second("echo.add_item", ["a"], {}))["method"] == "POST"
    assert (setup.service.hits, second.made) == (hits, 1)
    await second("echo.hidden", [], {})
    assert [call.seq for call in second.take_calls()] == [0, 1]
    third = setup.gateway()
    third.replay(calls)
    assert (await raised(third, "echo.add_item", "b")).kind == "InDoubt"
    assert "echo.add_item" in str(third.in_doubt)
    assert (await raised(third, "echo.hidden")).kind == "InDoubt"
    assert setup.service.hits == hits + 1


async def test_a_closed_replay_sends_no_further_call(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    gateway.replay([], closed=True)
    with pytest.raises(HostError, match="no API 'nothing'"):
        await gateway("echo.nothing", [], {})
    assert gateway.in_doubt is None
    assert (await raised(gateway, "echo.add_item", "a")).kind == "InDoubt"
    assert "echo.add_item after all its calls" in str(gateway.in_doubt)
    assert setup.service.hits == 0


async def test_a_call_that_was_not_allowed_is_refused_again_when_its_code_is_replayed(setup: EchoSetup) -> None:
    first = setup.gateway(read_only=True)
    await first("echo.answer", ["text"], {})
    again = setup.gateway(read_only=True)
    again.replay(first.take_calls(), closed=True)
    assert (await raised(again, "echo.hidden")).kind == "PermissionError"
    await again("echo.answer", ["text"], {})
    assert (await raised(again, "echo.hidden")).kind == "PermissionError"
    assert (again.in_doubt, setup.service.hits) == (None, 1)
