"""Requests and responses on the wire: over a socket, and in process over ASGI."""

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from app.apis.calls.network import open_client
from app.apis.catalog import Catalog
from app.apis.credentials.credential import FixedCredentials, bearer
from app.apis.credentials.schemes import Authentication
from app.apis.documents.protocols import download
from app.base.errors import ApiDocumentError
from app.projects.webhooks import PostError, SignedPost, post
from tests.support.echo_service import Echo, EchoSetup, open_echo, raised


@pytest.fixture(params=["socket", "asgi"])
async def setup(request: pytest.FixtureRequest) -> AsyncIterator[EchoSetup]:
    async with open_echo(request.param) as opened:
        yield opened


async def test_arguments_are_sent_where_the_document_puts_them(setup: EchoSetup) -> None:
    seen = await setup.gateway()(
        "echo.show_all",
        [[1, 2]],
        {
            "part": "a/b ?",
            "tags": ["x", "y z"],
            "ids": ["1", "2"],
            "piped": ["p", "q"],
            "filter": {"from": "iris"},
            "sort": {"by": "size"},
            "flag": True,
            "access_token": "tok",
            "X_Ids": ["7", "8"],
            "session": "a;b",
        },
    )
    assert seen["path"] == "/1,2/a%2Fb%20%3F"
    assert seen["query"] == "tags=x&tags=y%20z&ids=1%2C2&piped=p%7Cq&filter%5Bfrom%5D=iris&by=size&flag=true"
    assert seen["headers"]["access_token"] == "tok"
    assert seen["headers"]["x-ids"] == "7,8"
    assert seen["headers"]["cookie"] == "session=a%3Bb"


async def test_bodies_are_encoded_by_their_content_type(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    json_body = await gateway("echo.add_item", [], {"title": "é", "size": 3})
    assert (json_body["body"], json_body["headers"]["content-type"]) == (
        '{"title":"é","size":3}',
        "application/json",
    )
    form = await gateway("echo.send_form", [], {"title": "a b&c", "tags": ["x", "y"]})
    assert form["body"] == "title=a+b%26c&tags=x&tags=y"
    parts = await gateway("echo.send_parts", [], {"title": "a"})
    boundary = parts["headers"]["content-type"].removeprefix("multipart/form-data; boundary=")
    assert parts["body"] == (
        f'--{boundary}\r\nContent-Disposition: form-data; name="title"\r\n\r\na\r\n--{boundary}--\r\n'
    )
    assert (await gateway("echo.send_list", [["x"]], {}))["body"] == '["x"]'
    assert (await gateway("echo.send_text", ["hello"], {}))["body"] == "hello"


async def test_responses_become_plain_values(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    assert await gateway("echo.answer", ["text"], {}) == "plain words"
    assert await gateway("echo.answer", ["nothing"], {}) is None
    assert await gateway("echo.answer", ["problem"], {}) == {"title": "odd"}
    assert await gateway("echo.answer", ["image"], {}) == b"\x89PNG\xff\x00"
    assert "not the JSON it claims" in (await raised(gateway, "echo.answer", "broken")).message
    assert "larger than 3 MB" in (await raised(gateway, "echo.answer", "large")).message
    long = await raised(gateway, "echo.answer", "long")
    assert long.message == f"Response status code is 500: {'x' * 500}..."


async def test_a_refusal_is_an_api_error_with_status_and_body(setup: EchoSetup) -> None:
    error = await raised(setup.gateway(), "echo.fail", 409)
    assert (error.kind, error.message) == (
        "ApiError",
        'Response status code is 409: {"message":"no such mail","sent":""}',
    )


async def test_a_silent_server_is_an_api_error_after_the_timeout() -> None:
    service = Echo()
    async with service.listening() as server, httpx.AsyncClient(trust_env=False) as client:
        gateway = EchoSetup(service, server, client).gateway(timeout=0.1)
        error = await raised(gateway, "echo.answer", "slow")
    assert (error.kind, error.message) == ("ApiError", "no answer within 0.1 seconds")


async def test_an_unreachable_server_is_an_api_error() -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        gateway = EchoSetup(Echo(), "http://127.0.0.1:9", client).gateway()
        error = await raised(gateway, "echo.hidden")
    assert error.kind == "ApiError"
    assert "cannot be reached" in error.message
    assert gateway.take_calls()[0].error == f"ApiError: {error.message}"


@pytest.mark.parametrize("token", ["tok…", "tok ", "to\x01k"])
async def test_credentials_that_no_header_can_carry_are_told(setup: EchoSetup, token: str) -> None:
    gateway = setup.gateway(credentials=FixedCredentials(bearer(token)))
    error = await raised(gateway, "echo.answer", "text")
    assert error.kind == "ApiError"
    assert error.message.startswith("the credentials of echo have a blank at an end, or a character")
    assert setup.service.hits == 0


async def test_an_address_that_is_too_long_with_its_key_is_an_api_error(setup: EchoSetup) -> None:
    gateway = setup.gateway(credentials=FixedCredentials(Authentication(query={"key": "k"})))
    error = await raised(gateway, "echo.show_all", [1], part="a", tags=["x" * 70_000])
    assert (error.kind, error.message) == ("ApiError", "the call cannot be sent: URL too long")


@pytest.mark.parametrize("server", ["http://127.0.0.1:99999", "http://xn--"])
async def test_an_address_that_is_none_is_an_api_error(server: str) -> None:
    """A variable of the server's address, for one, may make it so."""
    async with open_client(allow_private_hosts=True) as client:
        setup = EchoSetup(Echo(), "http://echo.test", client)
        app = msgspec.structs.replace(setup.catalog.apps["echo"], server=server)
        setup.catalog = Catalog({"echo": app})
        error = await raised(setup.gateway(), "echo.answer", "text")
        assert (error.kind, error.message.startswith("the server cannot be reached: ")) == ("ApiError", True)


async def test_a_host_that_no_name_can_be_is_told_wherever_it_is_asked() -> None:
    async with open_client(allow_private_hosts=True) as client:
        with pytest.raises(ApiDocumentError, match="cannot be reached: Malformed A-label"):
            await download(client, "http://xn--/openapi.json")
        with pytest.raises(PostError, match="it cannot be reached: Malformed A-label"):
            await post(client, SignedPost("http://xn--/hook", b"key", "msg_1", b"{}"), seconds=30)


async def test_a_path_argument_cannot_lead_to_another_path(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    for part in ("..", ".", "", "../x", "x/..", "x\\..\\y", "%2e%2e", "%252E.", "a%2f..%2fb"):
        assert (await raised(gateway, "echo.show_all", 1, part)).kind == "ValidationError"
    assert setup.service.hits == 0
    assert (await gateway("echo.show_all", [1, "a/x..y"], {}))["path"] == "/1/a%2Fx..y"


async def test_a_header_argument_cannot_add_a_header(setup: EchoSetup) -> None:
    error = await raised(setup.gateway(), "echo.show_all", 1, "a", access_token="x\r\nEvil: 1")
    assert error.kind == "ValidationError"
    assert setup.service.hits == 0


async def test_redirects_stay_on_the_server(setup: EchoSetup) -> None:
    gateway = setup.gateway(credentials=FixedCredentials(bearer("tok-1234")))
    assert (await gateway("echo.goto", ["/echo/there/now"], {}))["rest"] == "/there/now"
    for target in ("http://other.test/x", "//other.test/x", "http://169.254.169.254/latest"):
        assert "another server" in (await raised(gateway, "echo.goto", target)).message
    assert "more than 5 times" in (await raised(gateway, "echo.goto", "/loop")).message


async def test_a_cookie_of_one_response_is_never_sent_with_another_call(setup: EchoSetup) -> None:
    gateway = setup.gateway()
    await gateway("echo.goto", ["/echo/there/now"], {})
    assert "cookie" not in (await gateway("echo.show_all", [1, "a"], {}))["headers"]


async def test_private_hosts_are_refused_if_the_setting_forbids_them() -> None:
    service = Echo()
    async with service.listening() as server, open_client(allow_private_hosts=False) as client:
        for host in ("127.0.0.1", "localhost"):
            setup = EchoSetup(service, server.replace("127.0.0.1", host), client)
            error = await raised(setup.gateway(), "echo.hidden")
            assert "private address" in error.message
    assert service.hits == 0
