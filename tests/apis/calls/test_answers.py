"""Answers as code in the sandbox sees them: status, headers, bytes, events, pages, and calls that are repeated."""

import hashlib
from collections.abc import AsyncIterator

import pytest

from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import Catalog
from app.apis.credentials.credential import FixedCredentials, bearer
from app.apis.documents.protocols import parse_document
from app.base.errors import HostError
from app.base.values import Call, CallResponse
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Answer, Function, RefusalError, SessionLimits
from tests.support.processes import free_ports
from tests.support.secured_service import SecuredService
from tests.support.varied_service import PHOTO, VariedService

_PHOTO_HASH = hashlib.sha256(PHOTO).hexdigest()
_ALL = list(range(7))


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with VariedService().gateway() as opened:
        yield opened


async def printed(sandbox: ForkedSandbox, gateway: Gateway, code: str, **skills: str) -> str:
    """What the code prints."""
    prelude = [Function(name, source) for name, source in skills.items()]
    session = await sandbox.open(gateway.names(), gateway.answer_call, SessionLimits(), prelude=prelude)
    observation = await session.run(code)
    await session.close()
    assert observation.error is None, observation.error
    return observation.stdout


async def test_code_sees_the_status_and_the_headers_of_any_value(sandbox: ForkedSandbox, gateway: Gateway) -> None:
    code = (
        "plain = apis.varied.count()\nanswer = apis.varied.count.response()\n"
        "print(plain, type(plain).__name__, answer, answer.value, answer.status)\n"
        "print(answer.headers['x-total-count'], answer.headers.get('ETAG'), 'X-Total-Count' in answer.headers)\n"
        "print(sorted(answer.headers.keys() & {'set-cookie', 'x-auth-token', 'content-type'}))\n"
    )
    assert (await printed(sandbox, gateway, code)).splitlines() == [
        "3 int <Response 200> 3 200",
        """3 "v1" True""",
        "['content-type']",
    ]
    first, second = gateway.take_calls()
    assert first.response == second.response
    assert first.response is not None
    assert first.response.headers["x-total-count"] == "3"


async def test_bytes_go_both_ways_and_are_recorded_by_length_and_hash(
    sandbox: ForkedSandbox, gateway: Gateway
) -> None:
    code = (
        "photo = apis.varied.photo()\nprint(type(photo).__name__, len(photo), photo[:3])\n"
        "print(apis.varied.put_raw(photo))\nprint(apis.varied.put_raw('text')['type'])\n"
        "print(sorted(apis.varied.upload(title='t', file=('a.bin', photo), more=[photo, ('b.png', b'b')])))\n"
        "print(apis.varied.photo.response().value == photo)\n"
    )
    lines = (await printed(sandbox, gateway, code)).splitlines()
    assert lines[0] == r"bytes 1024 b'\x00\x01\x02'"
    assert lines[1] == str({"sha256": _PHOTO_HASH, "type": "application/octet-stream"})
    assert lines[2].startswith("application/octet-stream")
    short = hashlib.sha256(b"b").hexdigest()
    files = [["b.png", short], ["more", _PHOTO_HASH]]
    title, file = ["title", "t"], ["file", ["a.bin", _PHOTO_HASH]]
    assert lines[3] == str([file, *(["more", each] for each in files), title])
    assert lines[4] == "True"
    calls = gateway.take_calls()
    recorded = {"$bytes": 1024, "sha256": _PHOTO_HASH}
    assert calls[0].result == recorded
    assert calls[1].arguments == {"body": recorded}
    assert calls[3].arguments["file"] == ["a.bin", recorded]


async def test_bytes_are_refused_where_json_is_sent(sandbox: ForkedSandbox, gateway: Gateway) -> None:
    code = (
        "for call in (lambda: apis.varied.numbered(page=b'1'), lambda: apis.varied.upload(title=[{'a': b'1'}])):\n"
        "    try: call()\n    except TypeError as error: print(error)\n"
        "print(apis.varied.numbered.response(page=1).value)\n"
    )
    refusal = "bytes is not JSON: pass None, bool, int, float, str, list or dict"
    assert (await printed(sandbox, gateway, code)).splitlines() == [
        f"cannot pass the arguments of varied.numbered: {refusal}",
        f"cannot pass the arguments of varied.upload: {refusal}",
        "[0, 1, 2]",
    ]


async def test_objects_that_look_like_encoded_bytes_stay_objects(sandbox: ForkedSandbox) -> None:
    seen = []

    async def call(api: str, args: list[object], kwargs: dict[str, object], **_: object) -> object:
        assert api == "t.call"
        seen.append((args, kwargs))
        return Answer(args[0] if isinstance(args[0], bytes) else None, 201, {"link": "x"}, None)

    session = await sandbox.open({"t": ["call"]}, call, SessionLimits())
    values = "{'$': 'bytes', 'v': 'AAAA'}, [{'$': {'$': 'object', 'v': b'1'}}], **{'$': b'2', 'v': {}}"
    observation = await session.run(f"print(apis.t.call({values}), apis.t.call.response(b'3').value)")
    await session.close()
    assert observation.stdout == "None b'3'\n"
    assert seen == [
        ([{"$": "bytes", "v": "AAAA"}, [{"$": {"$": "object", "v": b"1"}}]], {"$": b"2", "v": {}}),
        ([b"3"], {}),
    ]


async def test_events_and_xml_are_values(sandbox: ForkedSandbox, gateway: Gateway) -> None:
    code = (
        "import xml.etree.ElementTree as tree\nprint(apis.varied.events())\n"
        "print(tree.fromstring(apis.varied.feed()).text)\n"
    )
    events = [{"event": "message", "data": {"n": 1}}, {"event": "end", "data": "so\nlong", "id": "7"}]
    assert await printed(sandbox, gateway, code) == f"{events}\né\n"


@pytest.mark.parametrize(
    ("pages", "requests"),
    [
        ("[row for page in apis.varied.linked.pages() for row in page]", 3),
        ("[row for page in apis.varied.linked.pages(from_row=0) for row in page]", 3),
        ("[row for page in apis.varied.cursors.pages() for row in page['items']]", 3),
        ("[row for page in apis.varied.offsets.pages(limit=3) for row in page['rows']]", 3),
        ("[row for page in apis.varied.numbered.pages(per_page=3) for row in page]", 3),
        ("[row for page in apis.varied.numbered.pages() for row in page]", 4),
    ],
)
async def test_pages_are_iterated(sandbox: ForkedSandbox, pages: str, requests: int) -> None:
    service = VariedService()
    async with service.gateway() as gateway:
        assert await printed(sandbox, gateway, f"print({pages})") == f"{_ALL}\n"
        assert len(gateway.take_calls()) == service.hits.total() == requests


async def test_pages_end_with_the_limit_of_calls_or_where_the_code_stops(sandbox: ForkedSandbox) -> None:
    async with VariedService().gateway(max_calls=3) as gateway:
        code = (
            "print(next(apis.varied.linked.pages()))\n"
            "try: print([len(page) for page in apis.varied.numbered.pages()])\n"
            "except Exception as error: print(error)\n"
        )
        lines = (await printed(sandbox, gateway, code)).splitlines()
    assert lines == ["[0, 1, 2]", "all 3 API calls of this task are used up"]


async def test_a_next_page_at_another_server_is_not_followed(sandbox: ForkedSandbox, gateway: Gateway) -> None:
    code = (
        "try:\n    for page in apis.varied.elsewhere.pages(): print(page)\n"
        "except ValueError as error: print(error)\n"
    )
    assert (await printed(sandbox, gateway, code)).splitlines() == [
        "[1]",
        "the next page is at another server, evil.test, which is not followed",
    ]


async def test_an_api_error_carries_its_response_also_out_of_a_skill(
    sandbox: ForkedSandbox, gateway: Gateway
) -> None:
    code = (
        "for call in (apis.varied.refused, ask):\n    try: call(404)\n    except ApiError as error:\n"
        "        print(error, error.status, error.body['code'], error.headers['x-request-id'], error.operation)\n"
    )
    skill = "def ask(status):\n    try: return apis.varied.refused(status)\n    except ApiError: raise\n"
    line = 'Response status code is 404: {"code":"E7","message":"no"} 404 E7 r-1 varied.refused'
    assert (await printed(sandbox, gateway, code, ask=skill)).splitlines() == [line, line]


@pytest.mark.parametrize(
    ("kind", "seconds", "reason"),
    [
        ("silent", 4, "it did not end within 4 seconds"),
        ("full", 60, "it is larger than 3 MB"),
        ("broken", 60, "the connection broke: "),
    ],
)
async def test_an_event_stream_without_an_end_is_the_events_so_far(kind: str, seconds: float, reason: str) -> None:
    async with VariedService().gateway(timeout=seconds) as gateway:
        *events, last = await gateway("varied.endless", [kind], {})
    assert events == [
        {"event": "message", "data": {"n": 1}},
        {"event": "end", "data": "so\nlong", "id": "7"},
    ]
    assert (last["event"], last["data"], last["reason"].startswith(reason)) == ("incomplete", None, True), last


async def test_an_api_error_without_a_response_has_none(sandbox: ForkedSandbox) -> None:
    (port,) = free_ports(1)
    async with open_client(allow_private_hosts=True) as client:
        gateway = VariedService().to(f"http://127.0.0.1:{port}", client)
        code = (
            "try: apis.varied.count()\n"
            "except Exception as error: print(error.operation, error.status, error.body, error.headers)\n"
        )
        assert await printed(sandbox, gateway, code) == "varied.count None None {}\n"


async def test_a_safe_call_is_repeated_after_the_time_the_server_asks_for() -> None:
    service = VariedService(busy=2, wait="0")
    async with service.gateway(patience=60) as gateway:
        assert await gateway("varied.read_busy", [], {}) == {"ok": True}
        (call,) = gateway.take_calls()
    assert service.hits["/busy"] == 3
    assert isinstance(call.response, CallResponse)
    assert (call.response.status, call.response.attempts) == (200, 3)


async def test_code_waits_for_a_busy_server_longer_than_its_own_time(sandbox: ForkedSandbox) -> None:
    service = VariedService(busy=2, wait="3")
    async with service.gateway(patience=30) as gateway:
        prelude = [Function("ask", "def ask():\n    return apis.varied.read_busy()")]
        limits = SessionLimits(wall_seconds=5)
        session = await sandbox.open(gateway.names(), gateway.answer_call, limits, prelude=prelude)
        for code in ("print(ask(), apis.varied.read_busy())", "import time\ntime.sleep(30)"):
            observation = await session.run(code)
        await session.close()
        waited, at_once = gateway.take_calls()
    assert [each.response and each.response.attempts for each in (waited, at_once)] == [3, 1]
    assert observation.stop == "wall", "its own time still ends"


async def test_the_waits_of_all_calls_share_one_time() -> None:
    service = VariedService(busy=1, wait="1")
    async with service.gateway(patience=30.5) as gateway:
        assert await gateway("varied.read_busy", [], {}) == {"ok": True}
        service.busy = gateway.turn = 1
        service.wait = "30"  # a call with a time of its own would wait so long
        with pytest.raises(HostError, match="Retry-After: 30"):
            await gateway("varied.read_busy", [], {})


@pytest.mark.parametrize(
    ("operation", "wait", "patience", "told"),
    [
        ("write_busy", "0", 5, " (Retry-After: 0)"),
        ("read_busy", "60", 5, " (Retry-After: 60)"),
        ("read_busy", "date", 5, " (Retry-After: "),
        ("read_busy", "0", 0, ""),
    ],
)
async def test_a_call_is_not_repeated_if_it_changes_things_or_the_wait_is_too_long(
    operation: str, wait: str, patience: float, told: str
) -> None:
    service = VariedService(busy=9, wait=wait)
    async with service.gateway(patience=patience) as gateway:
        with pytest.raises(HostError) as caught:
            await gateway(f"varied.{operation}", [], {})
    assert caught.value.message.startswith(f'Response status code is 429: {{"detail":"slow down"}}{told}')
    assert service.hits["/busy"] == 1


async def test_run_again_code_gets_bytes_from_memory_or_from_the_api_if_they_are_the_same() -> None:
    service = VariedService()
    async with service.gateway() as gateway:
        assert await gateway("varied.photo", [], {}) == PHOTO
        calls = gateway.take_calls()
        gateway.replay(calls)
        assert await gateway("varied.photo", [], {}) == PHOTO
        assert service.hits["/photo"] == 1
    async with service.gateway() as gateway:
        gateway.replay(calls)
        assert await gateway("varied.photo", [], {}) == PHOTO
        assert service.hits["/photo"] == 2
        other = {"$bytes": 1, "sha256": hashlib.sha256(b"1").hexdigest()}
        gateway.replay([type(calls[0])(seq=1, turn=0, api="varied.photo", arguments={}, result=other)])
        with pytest.raises(HostError, match="were not kept"):
            await gateway("varied.photo", [], {})
        assert gateway.in_doubt == "the bytes that varied.photo returned were not kept"


async def test_run_again_code_that_is_refused_the_bytes_sees_no_credential() -> None:
    service, token = SecuredService(), "t0ken-of-the-owner"
    recorded = {"$bytes": len(PHOTO), "sha256": _PHOTO_HASH}
    async with service.listening(), open_client(allow_private_hosts=True) as client:
        catalog = Catalog({"vault": parse_document("vault", service.document())})
        gateway = Gateway(catalog, client, credentials=FixedCredentials(bearer(token)))
        gateway.replay([Call(seq=0, turn=0, api="vault.who_bearer", arguments={}, result=recorded)])
        with pytest.raises(RefusalError) as caught:
            await gateway("vault.who_bearer", [], {})
    assert caught.value.response.body["sent"]["authorization"] == "***"
    assert token not in caught.value.message
