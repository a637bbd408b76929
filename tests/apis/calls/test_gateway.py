"""The gateway in front of a real HTTP service: what it sends, refuses and records."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.apis.credentials.credential import FixedCredentials, bearer
from tests.support.echo_service import EchoSetup, echo_app, open_echo, raised


@pytest.fixture(params=["socket", "asgi"])
async def setup(request: pytest.FixtureRequest) -> AsyncIterator[EchoSetup]:
    async with open_echo(request.param) as opened:
        yield opened


async def test_secrets_are_sent_and_never_returned(setup: EchoSetup) -> None:
    gateway = setup.gateway(credentials=FixedCredentials(bearer("tok-1234")))
    assert await gateway("echo.hidden", [], {}) == {"deep": [{"***": "sent ***", "bare": "***"}]}
    error = await raised(gateway, "echo.fail", 401)
    assert error.message == 'Response status code is 401: {"message":"no such mail","sent":"***"}'
    assert "tok-1234" not in repr(gateway.take_calls())


async def test_a_token_goes_to_the_server_of_the_api_alone_unless_an_origin_is_allowed() -> None:
    def moved(setup: EchoSetup, server: str, *origins: str) -> Gateway:
        app = setup.catalog.apps["echo"]
        hidden = msgspec.structs.replace(app.operations["hidden"], server=server)
        operations = {**app.operations, "hidden": hidden}
        app = msgspec.structs.replace(app, operations=operations, token_origins=origins)
        tokens = FixedCredentials(bearer("tok-1234"))
        return Gateway(Catalog({"echo": app}), setup.client, credentials=tokens)

    async with open_echo("socket") as setup:
        elsewhere = setup.server.replace("127.0.0.1", "localhost")
        sent = {"deep": [{"***": "sent ***", "bare": "***"}]}
        assert await moved(setup, setup.server)("echo.hidden", [], {}) == sent
        refused = await raised(moved(setup, elsewhere), "echo.hidden")
        assert refused.message == (
            f"echo.hidden is at another server, {elsewhere}, which may not get the token of this API: "
            "its owner can allow that with `token_origins`"
        )
        assert setup.service.hits == 1
        for trick in (f"{setup.server}@localhost:1", f"{setup.server}\\@localhost", "http://[broken"):
            assert (await raised(moved(setup, trick), "echo.hidden")).kind == "ApiError"
        assert setup.service.hits == 1
        assert await moved(setup, elsewhere, elsewhere)("echo.hidden", [], {}) == sent


async def test_an_error_is_scrubbed_before_it_is_cut(setup: EchoSetup) -> None:
    gateway = setup.gateway(credentials=FixedCredentials(bearer("x" * 700)))
    error = await raised(gateway, "echo.fail", 401)
    assert "xxxx" not in error.message


async def test_server_variables_come_from_the_task_then_from_the_document(setup: EchoSetup) -> None:
    catalog = Catalog({"echo": echo_app(f"{setup.server}/echo/{{world}}")})
    gateway = Gateway(catalog, setup.client, variables={"world": "w-1"})
    assert (await gateway("echo.send_text", ["x"], {}))["path"] == "/w-1/echo/notes"
    assert "'world'" in (await raised(Gateway(catalog, setup.client), "echo.hidden")).message
    evil = Gateway(catalog, setup.client, variables={"world": "../../admin"})
    assert "cannot be part of the address" in (await raised(evil, "echo.hidden")).message


async def test_where_only_reading_is_allowed_nothing_else_is_sent(setup: EchoSetup) -> None:
    read_only = setup.gateway(read_only=True)
    assert (await raised(read_only, "echo.hidden")).kind == "PermissionError"
    assert setup.service.hits == 0
    assert await read_only("echo.answer", ["text"], {}) == "plain words"


async def test_calls_beyond_the_budget_are_refused(setup: EchoSetup) -> None:
    gateway = setup.gateway(max_calls=2)
    for _ in range(2):
        await gateway("echo.hidden", [], {})
    assert not gateway.call_limit_hit
    assert (await raised(gateway, "echo.hidden")).kind == "CallLimit"
    assert gateway.call_limit_hit
    assert setup.service.hits == 2
    assert "echo" in str(await gateway("api_docs.show_app_descriptions", [], {}))


async def test_only_calls_that_were_sent_are_recorded(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    gateway.turn = 3
    await gateway("echo.add_item", ["mine"], {"size": 2})
    await raised(gateway, "echo.add_item")
    await raised(gateway, "echo.add_item", 1)
    await gateway("api_docs.search", ["item"], {})
    await raised(gateway, "echo.fail", 404)
    calls = gateway.take_calls()
    assert [(call.seq, call.turn, call.api) for call in calls] == [(0, 3, "echo.add_item"), (1, 3, "echo.fail")]
    assert calls[0].arguments == {"title": "mine", "size": 2}
    assert calls[0].result["method"] == "POST"
    assert calls[1].error is not None
    assert gateway.take_calls() == ()


async def test_the_look_ups_of_a_turn_share_what_it_is_shown(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    gateway.look_ups.chars = 500
    for turn in (0, 1):
        gateway.turn = turn
        shown = [str(await gateway("api_docs.show_signatures", ["echo"], {})) for _ in range(2)]
        assert 300 < len(shown[0]) <= 500
        assert len(shown[1]) <= 300
        assert "more: apis.api_docs.show_signatures('echo', page=2)]" in shown[1]


async def test_the_next_page_of_a_look_up_goes_on_where_the_first_ended(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    gateway.look_ups.chars = 500
    await gateway("api_docs.search", ["item"], {})  # leaves less room for the first page than for the others
    shown: list[str] = []
    for page in range(1, 12):
        lines = str(await gateway("api_docs.show_signatures", ["echo"], {"page": page})).splitlines()
        shown += [line.partition("(")[0] for line in lines if not line.startswith("[")]
        gateway.turn += 1
        if "more: " not in lines[-1]:
            break
    assert page > 1
    assert sorted(shown) == sorted(gateway.names()["echo"])


async def test_complete_task_ends_the_task_and_keeps_the_answer(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    assert not gateway.completed
    await gateway("supervisor.complete_task", [], {"answer": [1]})
    assert (gateway.completed, gateway.answer, gateway.status) == (True, [1], "success")
    assert (await raised(gateway, "supervisor.complete_task", status="done")).kind == "ValidationError"


async def test_unknown_names_suggest_the_nearest(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    assert "add_item" in (await raised(gateway, "echo.add_items")).message
    assert "did you mean echo?" in (await raised(gateway, "ecko.add_item")).message
    assert gateway.names()["supervisor"] == ["complete_task"]
    assert "search" in gateway.names()["api_docs"]
