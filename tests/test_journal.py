"""No call goes out twice: the journal, and code that is run again."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.gateway.call_journal import InDoubtError
from app.records import Call
from tests.echo import Door, Echo, open_door, raised


@pytest.fixture(params=["socket", "asgi"])
async def door(request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    async with open_door(request.param) as opened:
        yield opened


class Memory:
    """A journal in memory; a call that began and never ended is lost."""

    def __init__(self) -> None:
        self.begun: dict[int, Call] = {}
        self.ended: dict[int, Call] = {}

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        if call.seq in self.begun and call.seq not in self.ended and not repeatable:
            raise InDoubtError(call.api)
        self.begun[call.seq] = call
        return self.ended.get(call.seq)

    async def end(self, call: Call) -> None:
        self.ended[call.seq] = call


async def test_a_journalled_call_is_answered_without_going_out(door: Door) -> None:
    journal = Memory()
    first = door.gateway(journal=journal)
    result = await first("echo.add_item", ["a"], {})
    error = await raised(first, "echo.fail", 409)
    hits, second = door.service.hits, door.gateway(journal=journal)
    assert await second("echo.add_item", ["a"], {}) == result
    again = await raised(second, "echo.fail", 409)
    assert (again.kind, again.message) == (error.kind, error.message)
    assert second.take_calls() == first.take_calls()
    assert door.service.hits == hits


async def test_a_lost_call_is_in_doubt_unless_it_is_safe_to_repeat(door: Door) -> None:
    journal = Memory()
    gateway = door.gateway(journal=journal)
    for api, argument in (("echo.answer", "text"), ("echo.add_item", "a")):
        call = Call(seq=gateway.made, turn=0, api=api, arguments={})
        journal.begun[call.seq] = call
        if api == "echo.answer":
            assert await gateway(api, [argument], {}) == "plain words"
            assert gateway.in_doubt is None
        else:
            assert (await raised(gateway, api, argument)).kind == "InDoubt"
            assert api in str(gateway.in_doubt)
    assert door.service.hits == 1


async def test_a_cancelled_call_has_begun_and_not_ended() -> None:
    service, journal = Echo(), Memory()
    async with service.listening() as server, httpx.AsyncClient(trust_env=False) as client:
        gateway = Door(service, server, client).gateway(journal=journal)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await gateway("echo.answer", ["slow"], {})
    assert (list(journal.begun), list(journal.ended)) == ([0], [])


async def test_code_that_is_run_again_gets_the_recalled_results(door: Door) -> None:
    first = door.gateway()
    await first("echo.add_item", ["a"], {})
    calls, hits = first.take_calls(), door.service.hits
    second = door.gateway()
    second.recall(calls)
    assert (await second("echo.add_item", ["a"], {}))["method"] == "POST"
    assert (door.service.hits, second.made) == (hits, 1)
    await second("echo.hidden", [], {})
    assert [call.seq for call in second.take_calls()] == [0, 1]
    third = door.gateway()
    third.recall(calls)
    assert (await raised(third, "echo.add_item", "b")).kind == "InDoubt"
    assert "echo.add_item" in str(third.in_doubt)
    assert (await raised(third, "echo.hidden")).kind == "InDoubt"
    assert door.service.hits == hits + 1
