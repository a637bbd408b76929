"""The client of hosted models, in front of endpoints that differ from OpenAI's in all the usual ways."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.base.errors import EngineError, EngineRefusalError
from app.engine.hosted.client import Abilities, OpenAiChatModel, WithheldError
from app.engine.protocol import ChatAnswer, Tokens
from app.engine.tokenizer import Message
from tests.support.every_row import every_row
from tests.support.listening_app import listening_app
from tests.support.odd_endpoint import OddEndpoint, Reply, refused, said
from tests.support.raw_server import gzipped, http_answer, raw_server

KEY = "sk-0123456789-secret"
HELLO = [Message("system", "Be kind."), Message("user", "Hi!")]  # 11 characters: three tokens
COUNTED = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


@asynccontextmanager
async def opened(endpoint: OddEndpoint, **options: Any) -> AsyncIterator[OpenAiChatModel]:
    async with (
        endpoint.listening() as url,
        OpenAiChatModel(url, "wise-1", **{"key": KEY, "patience": 0, **options}) as model,
    ):
        yield model


async def answer(model: OpenAiChatModel, *stops: str, temperature: float = 0.5) -> ChatAnswer:
    return await model.answer(HELLO, max_tokens=50, temperature=temperature, stop_strings=stops)


async def test_a_request_has_what_openai_documents_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of the environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Token: of the environment")
    endpoint = OddEndpoint(lambda _: said("Hello.", usage=COUNTED))
    async with opened(endpoint) as model:
        found = await answer(model, "\n```\n")
    assert found == ChatAnswer(text="Hello.", tokens=Tokens(prompt=7, generated=5))
    [sent] = endpoint.requests
    assert sent == {
        "model": "wise-1",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi!"}],
        "max_tokens": 50,
        "temperature": 0.5,
        "stop": ["\n```\n"],
    }
    [headers] = endpoint.headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "of the environment" not in str(headers)
    async with opened(endpoint, key="") as model:
        await answer(model)
    assert "authorization" not in endpoint.headers[-1]


async def test_what_an_odd_endpoint_leaves_out_or_puts_elsewhere_is_found() -> None:
    estimated = Tokens(prompt=3, generated=2, estimated=True)
    thinking = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Hel"},
        {"type": "text", "text": "lo."},
    ]
    rows: list[tuple[str, Reply, ChatAnswer]] = [
        ("no usage", said("Hello."), ChatAnswer(text="Hello.", tokens=estimated)),
        (
            "usage of nulls",
            said("Hello.", usage={"prompt_tokens": None}),
            ChatAnswer(text="Hello.", tokens=estimated),
        ),
        (
            "usage of zeros",
            said("Hello.", usage={"prompt_tokens": 0, "completion_tokens": 0}),
            ChatAnswer(text="Hello.", tokens=estimated),
        ),
        ("usage as text", said("Hello.", usage="some"), ChatAnswer(text="Hello.", tokens=estimated)),
        (
            "thoughts beside it",
            said("Hello.", reasoning_content="Hm.", usage=COUNTED),
            ChatAnswer(text="Hello.", thought="Hm.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "thoughts of routers",
            said("Hello.", reasoning="Hm.", reasoning_details=[{"type": "x"}], usage=COUNTED),
            ChatAnswer(text="Hello.", thought="Hm.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "thoughts in parts",
            said(thinking, usage=COUNTED),
            ChatAnswer(text="Hello.", thought="Hm.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "thoughts between tags",
            said("<think>Hm.</think>Hello.", usage=COUNTED),
            ChatAnswer(text="<think>Hm.</think>Hello.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "parts of text",
            said([{"type": "text", "text": "Hel"}, "lo."], usage=COUNTED),
            ChatAnswer(text="Hello.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "no stop strings",
            said("Hello.\n```\nMore.", finish="length", usage=COUNTED),
            ChatAnswer(text="Hello.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "cut off",
            said("Hel", finish="length", usage=COUNTED),
            ChatAnswer(text="Hel", finish="length", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "another word for it",
            said("Hel", finish="MAX_TOKENS", usage=COUNTED),
            ChatAnswer(text="Hel", finish="length", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "another word for the end",
            said("Hello.", finish="eos", usage=COUNTED),
            ChatAnswer(text="Hello.", tokens=Tokens(prompt=7, generated=5)),
        ),
        ("nothing", said(None, usage=COUNTED), ChatAnswer(text="", tokens=Tokens(prompt=7, generated=5))),
        (
            "a refusal",
            said(None, refusal="I will not.", usage=COUNTED),
            ChatAnswer(text="I will not.", tokens=Tokens(prompt=7, generated=5)),
        ),
        (
            "a tool besides",
            said("Hello.", finish="tool_calls", tool_calls=[{"id": "1"}], usage=COUNTED),
            ChatAnswer(text="Hello.", tokens=Tokens(prompt=7, generated=5)),
        ),
    ]
    endpoint = OddEndpoint()
    async with endpoint.listening() as url:
        with every_row() as row:
            for name, reply, expected in rows:
                endpoint.replies = [reply]
                async with OpenAiChatModel(url, "wise-1", patience=0) as model:
                    with row(name):
                        assert await answer(model, "\n```\n") == expected


async def test_what_is_no_answer_is_an_error_that_says_why() -> None:
    tool = said(None, finish="tool_calls", tool_calls=[{"function": {"name": "look_up", "arguments": "{}"}}])
    rows: list[tuple[Reply, str, bool]] = [
        (
            refused("Incorrect API key", 401),
            r"refuses the key \(401: Incorrect API key\): give the model a good one",
            True,
        ),
        (refused("Forbidden", 403), r"refuses the key \(403", True),
        (refused("The model `wise-1` does not exist", 404), r"has no model 'wise-1' \(404: The model", True),
        (
            refused("File Not Found", 404),
            r"there are no chat completions at this URL \(404: File",
            True,
        ),
        (refused("wise-1: Not Found", 404), r"has no model 'wise-1' \(404: wise-1", True),
        (refused("no such role"), r"refuses to answer \(400: no such role\)", True),
        (Reply("plain text", 400), r"refuses to answer \(400: plain text\)", True),
        (Reply({"detail": "Not good"}, 422), r"refuses to answer \(422: Not good\)", True),
        (Reply({"error": "odd"}, 500), r"is unable to answer \(500: odd\)", False),
        (
            Reply("<html>\n<h1>Bad Gateway</h1>", 502),
            r"is unable to answer \(502: <html> <h1>Bad Gateway</h1>\)",
            False,
        ),
        (refused("slow down", 429), r"is unable to answer \(429: slow down\)", False),
        (refused("You exceeded your quota", 429, "insufficient_quota"), r"refuses to answer \(429: You", True),
        (Reply({"error": {"message": "busy", "code": 503}}), r"is unable to answer \(503: busy\)", False),
        (
            Reply({"error": {"message": "no key", "code": "invalid_api_key"}}),
            r"refuses the key \(401: no key\)",
            True,
        ),
        (Reply({"error": "loading"}), r"is unable to answer \(500: loading\)", False),
        (Reply("<html>"), "does not answer like a chat endpoint", True),
        (Reply({"choices": []}), "does not answer like a chat endpoint", True),
        (Reply({"choices": [{}]}), "does not answer like a chat endpoint", True),
        (Reply({"object": "list", "data": []}), "does not answer like a chat endpoint", True),
        (Reply('data: {"choices": []}\n\n'), "does not answer like a chat endpoint", True),
        (Reply("[" * 5000), "does not answer like a chat endpoint", True),
        (Reply('{"choices": [{"message": {"content": "Hel'), r"broke its answer off", False),
        (said("Hel", finish=None), r"ended its answer early \(finish_reason: none\)", False),
        (said("Hel", finish="error"), r"ended its answer early \(finish_reason: error\)", False),
        (said(None, finish="content_filter"), r"withheld its answer \(content_filter\)", True),
        (tool, "called a tool instead of writing text", True),
        (
            Reply("", 307, {"location": "https://elsewhere.test/v1"}),
            "redirects to https://elsewhere.test/v1, and the",
            True,
        ),
    ]
    endpoint = OddEndpoint()
    async with endpoint.listening() as url:
        with every_row() as row:
            for reply, message, final in rows:
                endpoint.replies = [reply]
                async with OpenAiChatModel(url, "wise-1", key=KEY, patience=0) as model:
                    with row(str(reply.body)[:60], reply.status):
                        with pytest.raises(EngineError, match=message) as failure:
                            await answer(model)
                        assert isinstance(failure.value, EngineRefusalError) == final
                        assert str(failure.value).startswith(url)


async def test_what_a_filter_withholds_has_a_name() -> None:
    async with opened(OddEndpoint(lambda _: said("", finish="content_filter"))) as model:
        with pytest.raises(WithheldError):
            await answer(model)


async def test_a_connection_that_ends_within_the_answer_is_an_early_end() -> None:
    body = b'{"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}'
    short = http_answer(body).replace(body, body[:30])
    async with raw_server(short) as url, OpenAiChatModel(url, "wise-1", patience=0) as model:
        with pytest.raises(EngineError, match="broke its answer off") as failure:
            await answer(model)
        assert not isinstance(failure.value, EngineRefusalError)
        assert model.lost == Tokens(prompt=3, generated=8, estimated=True)  # of 30 characters
    whole = http_answer(gzipped(body, 1), "Content-Encoding: gzip")
    async with raw_server(whole) as url, OpenAiChatModel(url, "wise-1", patience=0) as model:
        assert (await answer(model)).text == "Hello."


BILLED = Tokens(prompt=7, generated=5)


async def test_what_a_request_without_an_answer_may_have_cost_is_counted_or_estimated() -> None:
    tool = said(None, finish="tool_calls", tool_calls=[{"id": "1"}], usage=COUNTED)
    rows: list[tuple[Reply, Tokens]] = [
        (said("Hel", finish="error", usage=COUNTED), BILLED),
        (said("Hello, ", finish=None), Tokens(prompt=3, generated=2, estimated=True)),
        (said(None, finish="error", reasoning="So: it"), Tokens(prompt=3, generated=2, estimated=True)),
        (said(None, finish="content_filter", usage=COUNTED), BILLED),
        (tool, BILLED),
        (Reply({"choices": [], "usage": COUNTED}), BILLED),
        (Reply({"choices": []}), Tokens(prompt=3, estimated=True)),
        (Reply('{"choices": ['), Tokens(prompt=3, generated=4, estimated=True)),
        (Reply('data: {"choices": []}\n\ndata: {"choices": [\n\n'), Tokens(prompt=3, generated=2, estimated=True)),
        (Reply("<html>"), Tokens(prompt=3, estimated=True)),
        (Reply({"error": {"message": "upstream broke", "code": 502}}), Tokens(prompt=3, estimated=True)),
        (Reply({"error": "odd", "usage": COUNTED}), BILLED),
        (Reply({"error": {"message": "slow down", "code": 429}}), Tokens()),
        (Reply({"error": {"message": "no key", "code": "invalid_api_key"}}), Tokens()),
        (refused("no such role"), Tokens()),
        (refused("busy", 503), Tokens()),
        (Reply("<html>Gateway Timeout</html>", 504), Tokens(prompt=3, estimated=True)),
        (Reply("", 307, {"location": "https://elsewhere.test/v1"}), Tokens()),
        (said("Hello.", usage=COUNTED), Tokens()),
    ]
    endpoint = OddEndpoint()
    async with endpoint.listening() as url:
        with every_row() as row:
            for reply, lost in rows:
                endpoint.replies = [reply]
                async with OpenAiChatModel(url, "wise-1", patience=0) as model:
                    with row(str(reply.body)[:60]):
                        with suppress(EngineError):
                            await answer(model)
                        assert model.lost == lost
    async with OpenAiChatModel(url, "wise-1", patience=0, has_answered=True) as away:
        with pytest.raises(EngineError, match="cannot be reached"):
            await answer(away)
        assert away.lost == Tokens(), "nothing was sent"


async def test_a_request_that_nobody_waits_for_any_more_may_have_cost_its_prompt() -> None:
    asked = asyncio.Event()

    async def silent(_: Any, __: Any, ___: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with (
        listening_app(silent, lifespan="off") as url,
        OpenAiChatModel(url, "wise-1", timeout=60, patience=0) as model,
    ):
        asking = asyncio.create_task(answer(model))
        await asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert model.lost == Tokens(prompt=3, estimated=True)


async def test_an_endpoint_whose_answers_break_off_is_asked_three_times_whatever_the_patience() -> None:
    endpoint = OddEndpoint(lambda _: said("Hello, ", finish="error"))
    endpoint.replies = [refused("slow down", 429), said("Hello, ", finish="error", usage=COUNTED)]
    async with opened(endpoint, patience=3600) as model:
        with pytest.raises(EngineError, match="ended its answer early") as failure:
            await answer(model)
        assert model.lost == Tokens(prompt=7 + 3 + 3, generated=5 + 2 + 2, estimated=True)
    assert len(endpoint.requests) == 4
    assert failure.value.broken_answers == 3
    said_of_it = "; 3 answers broke off, for 13 tokens of prompts and 9 generated, as estimated"
    assert str(failure.value).endswith(said_of_it)


async def test_an_answer_larger_than_any_sound_one_is_refused_before_it_is_read() -> None:
    bomb = http_answer(gzipped(b" " * (64 << 20), 1), "Content-Encoding: gzip")
    async with raw_server(bomb) as url, OpenAiChatModel(url, "wise-1", patience=0) as model:
        with pytest.raises(EngineError, match="is larger than 16 MB"):
            await answer(model)


def _picky(sent: Mapping[str, Any]) -> Reply:
    """As OpenAI's models that reason."""
    if "max_tokens" in sent:
        return refused(
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
    if "temperature" in sent:
        return refused("Unsupported value: 'temperature' does not support 0.5 with this model.")
    if "stop" in sent:
        return refused("Unsupported parameter: 'stop' is not supported with this model.")
    return said("Hello.\n```\nMore.", usage=COUNTED)


async def test_an_error_is_read_whatever_it_holds_and_says_of_its_charset() -> None:
    hostile = {
        "punycode": b"a" * (2 << 20) + b"-" + b"b9" * (2 << 20),  # quadratic: decoding all of it takes ten minutes
        "zlib": b"no",
        "utf-8": b"[[1]]," * (2 << 20),
    }
    with every_row() as row:
        for charset, body in hostile.items():
            with row(charset):
                endpoint = OddEndpoint()
                endpoint.replies.append(Reply(body, 500, {"Content-Type": f"text/plain; charset={charset}"}))
                async with opened(endpoint) as model:
                    with pytest.raises(EngineError, match="is unable to answer"):
                        await answer(model)


async def test_counts_that_no_request_can_have_are_estimated_instead() -> None:
    with every_row() as row:
        for count in (2**63, 10**9, -1, True, 7.0, "7"):
            with row(count):
                usage = {"prompt_tokens": 7, "completion_tokens": count}
                endpoint = OddEndpoint()
                endpoint.replies.append(said("Hello.", usage=usage))
                async with opened(endpoint) as model:
                    assert (await answer(model)).tokens == Tokens(prompt=3, generated=2, estimated=True)


async def test_a_parameter_that_an_endpoint_refuses_is_left_out_from_then_on() -> None:
    endpoint = OddEndpoint(_picky)
    async with opened(endpoint) as model:
        first, second = await answer(model, "\n```\n"), await answer(model, "\n```\n")
    assert (first.text, second) == ("Hello.", first)
    assert len(endpoint.requests) == 5
    assert endpoint.requests[-1].keys() == {"model", "messages", "max_completion_tokens"}
    assert model.abilities == Abilities(limit="max_completion_tokens", temperature=False, stops=False)
    endpoint.requests.clear()
    async with opened(endpoint, abilities=model.abilities) as known:
        assert await answer(known, "\n```\n") == first
    assert len(endpoint.requests) == 1, "what is known of an endpoint is not found out again"


async def test_a_model_whose_template_knows_no_system_reads_its_words_in_the_users_first_message() -> None:
    refusals = (
        "System role not supported",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "Conversation roles must alternate: got the role system",
    )
    for reason in refusals:

        def strict(sent: Mapping[str, Any], reason: str = reason) -> Reply:
            roles = [each["role"] for each in sent["messages"]]
            return refused(reason) if "system" in roles else said("Hello.")

        endpoint = OddEndpoint(strict)
        async with opened(endpoint) as model:
            assert [(await answer(model)).text, (await answer(model)).text] == ["Hello.", "Hello."]
        assert len(endpoint.requests) == 3
        assert endpoint.requests[-1]["messages"] == [{"role": "user", "content": "Be kind.\n\nHi!"}]


async def test_an_older_endpoint_gets_the_older_name_of_the_limit() -> None:
    def older(sent: Mapping[str, Any]) -> Reply:
        if "max_completion_tokens" in sent:
            return refused("max_completion_tokens: Extra inputs are not permitted", 422)
        return said("Hello.")

    async with opened(OddEndpoint(older), abilities=Abilities(limit="max_completion_tokens")) as model:
        assert (await answer(model)).text == "Hello."
        assert model.abilities.limit == "max_tokens"


async def test_a_refusal_that_no_parameter_explains_changes_nothing() -> None:
    reason = "max_tokens is too large: 50. temperature and stop are not supported with max_tokens"
    endpoint = OddEndpoint(lambda _: refused(reason))
    async with opened(endpoint) as model:
        with pytest.raises(EngineRefusalError, match="max_tokens is too large"):
            await answer(model, ".")
        assert model.abilities == Abilities()
    assert len(endpoint.requests) == 4


async def test_a_model_that_thinks_gets_no_stop_strings_which_would_end_its_thoughts() -> None:
    replies = [said("<think>a.</think>b.c"), said("<think>a.</think>b.c"), said("b", reasoning_content="a.")]
    for reply in replies:
        endpoint = OddEndpoint(lambda _, reply=reply: reply)  # type: ignore[misc]
        async with opened(endpoint) as model:
            found = [await answer(model, "."), await answer(model, ".")]
        assert [each.text.removeprefix("<think>a.</think>") for each in found] == ["b", "b"]
        assert ["stop" in each for each in endpoint.requests] == [True, False]


async def test_a_busy_endpoint_is_asked_again_as_late_as_it_says() -> None:
    """In seconds, or as a date."""
    for named in (lambda: "1", lambda: formatdate(time.time() + 3, usegmt=True)):
        endpoint = OddEndpoint()
        endpoint.replies = [refused("slow down", 429, retry_after=named()), Reply("", 503)]
        started = time.monotonic()
        with capture_logs() as logs:
            async with opened(endpoint, patience=30) as model:
                assert (await answer(model)).text == "Hello."
        assert time.monotonic() - started >= 1
        assert len(endpoint.requests) == 3
        assert [each["log_level"] for each in logs] == ["warning", "warning"]
        assert KEY not in str(logs)


async def test_patience_has_an_end_and_a_longer_wait_than_it_is_not_begun() -> None:
    endpoint = OddEndpoint(lambda _: refused("too many", 503))
    async with opened(endpoint, patience=1.5) as model:
        with pytest.raises(EngineError, match=r"is unable to answer \(503: too many\)"):
            await answer(model)
    assert 2 <= len(endpoint.requests) <= 4
    endpoint = OddEndpoint(lambda _: refused("tomorrow", 429, retry_after="86400"))
    async with opened(endpoint, patience=3600) as model:
        with pytest.raises(EngineError, match="tomorrow"):
            await answer(model)


async def test_an_endpoint_that_never_answered_is_reported_and_not_retried() -> None:
    with every_row() as row:
        for url in ("http://127.0.0.1:9", "nonsense", "http://[::", "http://no-such-host.invalid", "ftp://x"):
            async with OpenAiChatModel(url, "wise-1", patience=3600) as model:
                with row(url), pytest.raises(EngineRefusalError, match="cannot be reached"):
                    await answer(model)


async def test_an_endpoint_that_went_away_may_come_back() -> None:
    endpoint = OddEndpoint()
    async with endpoint.listening() as url:
        model = OpenAiChatModel(url, "wise-1", patience=0)
        await answer(model)
    async with model:
        with pytest.raises(EngineError, match="cannot be reached") as failure:
            await answer(model)
    assert not isinstance(failure.value, EngineRefusalError)


async def test_a_slow_endpoint_is_given_up_even_while_bytes_arrive() -> None:
    async def drip(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.05)

    async with (
        listening_app(drip, lifespan="off") as url,
        OpenAiChatModel(url, "wise-1", timeout=0.5, patience=0) as model,
    ):
        with pytest.raises(EngineError, match=r"did not answer within 0\.5 s"):
            await answer(model)


async def test_the_key_is_in_no_error_and_goes_nowhere_else() -> None:
    elsewhere = OddEndpoint()
    async with elsewhere.listening() as other:
        rows = [
            refused(f"Incorrect API key provided: {KEY}", 401),
            Reply(f"Bearer {KEY} is unknown", 500),
            Reply({"error": {"message": {"key": KEY}}}, 400),
            *[
                Reply("", status, {"location": f"{other}/v1/chat/completions?{KEY}"})
                for status in (301, 302, 307, 308)
            ],
        ]
        endpoint = OddEndpoint()
        endpoint.replies = list(rows)
        async with opened(endpoint) as model:
            for _ in rows:
                with pytest.raises(EngineError) as failure:
                    await answer(model)
                assert KEY not in repr(failure.value)
                assert "***" in str(failure.value)
    assert elsewhere.requests == elsewhere.headers == []
    async with OpenAiChatModel("http://127.0.0.1:9", "wise-1", key=f"{KEY}\n{KEY}") as model:
        with pytest.raises(EngineRefusalError, match="has a character that no key has") as failed:
            await answer(model)
        assert KEY not in str(failed.value)


async def test_an_answer_that_nobody_could_go_on_with_is_refused_once() -> None:
    with every_row() as row:
        for name, reply in {
            "text": said("a" * 2_000_001),
            "thoughts": said("a", reasoning="b" * 2_000_000),
            "parts": said([{"type": "text", "text": "a" * 1_000_001}] * 2),
        }.items():
            endpoint = OddEndpoint(partial(_always, reply))
            async with opened(endpoint) as model:
                with row(name):
                    with pytest.raises(EngineRefusalError, match="characters, of which at most 2,000,000 are"):
                        await answer(model)
                    assert len(endpoint.requests) == 1


def _always(reply: Reply, _: object) -> Reply:
    return reply
