"""Endpoints that answer only in a stream: the parts are put together, and count as the whole answer would."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.base.errors import EngineError, EngineRefusalError
from app.base.untrusted import JsonError
from app.engine.hosted.client import Abilities, Thoughts, whole_answer
from app.engine.hosted.probe import probe
from app.engine.protocol import ChatAnswer, Tokens
from tests.engine.test_hosted_client import COUNTED, answer, opened
from tests.support.every_row import every_row
from tests.support.odd_endpoint import OddEndpoint, Reply, refused, said

REFUSALS = (
    refused("This model only support stream mode, please enable the stream parameter to access the model."),
    refused("parameter.enable_thinking must be set to false for non-streaming calls"),
    refused("Stream must be set to true"),
    Reply({"detail": [{"loc": ["body", "stream"], "msg": "Input should be True"}]}, 422),
)
_TOKENS = Tokens(prompt=7, generated=5)


def event(*choices: Mapping[str, Any], **more: Any) -> str:
    written = json.dumps({"object": "chat.completion.chunk", "choices": choices, **more}, ensure_ascii=False)
    return f"data: {written}\n\n"


def part(finish: str | None = None, **delta: Any) -> str:
    return event({"index": 0, "delta": delta, "finish_reason": finish})


END = part("stop") + event(usage=COUNTED) + "data: [DONE]\n\n"


class Streaming(OddEndpoint):
    """Answers with `stream`, to requests that ask for one; to others with `refusal`."""

    def __init__(self, stream: str, refusal: Reply = REFUSALS[0]) -> None:
        super().__init__(self.say)
        self.stream, self.refusal = stream, refusal

    def say(self, sent: Mapping[str, Any]) -> Reply:
        streamed = Reply(self.stream, headers={"Content-Type": "text/event-stream"})
        return streamed if sent.get("stream") else self.refusal


async def test_a_stream_is_asked_for_where_an_endpoint_refuses_anything_else_and_from_then_on() -> None:
    with every_row() as row:
        for refusal in REFUSALS:
            with row(str(refusal.body)):
                endpoint = Streaming(part(content="Hel") + part(content="lo.") + END, refusal)
                async with opened(endpoint) as model:
                    found = [await answer(model), await answer(model)]
                    assert found == [ChatAnswer(text="Hello.", tokens=_TOKENS)] * 2
                    assert model.abilities == Abilities(streams=True)
                assert [each.get("stream") for each in endpoint.requests] == [None, True, True]
                assert endpoint.requests[-1]["stream_options"] == {"include_usage": True}


async def test_parts_are_put_together_wherever_they_stand() -> None:
    think: Thoughts = "reasoning_content"
    rows: list[tuple[str, str, Thoughts]] = [
        ("a thought", part(reasoning_content="Hm") + part(reasoning_content="."), think),
        ("of routers", part(reasoning="Hm.", reasoning_details=[{"x": 1}]), "reasoning"),
        ("in parts", part(content=[{"type": "thinking", "thinking": "Hm."}]), "parts"),
        ("between tags", part(content="<think>Hm.") + part(content="</think>"), "tags"),
        ("nothing before", part(role="assistant", content=None), "none"),
        ("comments", ": wait\n\n: wait\n\n", "none"),
        ("names", "event: message\nid: 7\nretry: 10\n", "none"),
        ("other choices", event({"index": 1, "delta": {"content": "No."}}), "none"),
        ("no choices", event(prompt_filter_results=[]) + 'data: {"choices": null}\n\n', "none"),
        ("no delta", event({"index": 0, "delta": None}), "none"),
    ]
    with every_row() as row:
        for name, before, thoughts in rows:
            for ends in ("\n", "\r\n", "\r"):
                with row(name, ends):
                    body = before + part(content="Hel\u2028") + part(content="lo.") + END
                    async with opened(Streaming(body.replace("\n", ends))) as model:
                        found = await answer(model)
                        assert model.abilities == Abilities(streams=True, thoughts=thoughts)
                    inside = "<think>Hm.</think>" if thoughts == "tags" else ""
                    beside = "" if thoughts in ("tags", "none") else "Hm."
                    assert found == ChatAnswer(text=f"{inside}Hel\u2028lo.", thought=beside, tokens=_TOKENS)


async def test_a_stream_ends_as_an_answer_does() -> None:
    hello = part(content="Hello.")
    done = "data: [DONE]\n\n"
    tool = part("tool_calls", tool_calls=[{"index": 0, "function": {"name": "look_up"}}])
    failed = event(error={"message": "the model crashed", "code": 503})
    rows: list[tuple[str, str, str, bool]] = [
        ("no end", hello, r"ended its answer early \(finish_reason: none\)", False),
        ("no end but done", hello + done, r"ended its answer early", False),
        ("within a part", hello + 'data: {"choices": [{"delta": {"content": "Hel', r"broke its answer off", False),
        ("an error", hello + failed, r"unable to answer \(503: the model crashed\)", False),
        ("called one", f'{hello}event: error\ndata: {{"message": "it crashed"}}\n\n', r"500: it crashed", False),
        ("a filter", hello + part("content_filter"), r"withheld its answer", True),
        ("a tool", tool + done, r"called a tool instead", True),
        ("a refused key", event(error={"message": "no", "code": "invalid_api_key"}), r"refuses the key", True),
        ("no completion", 'data: {"object": "list"}\n\n', r"does not answer like a chat endpoint", True),
    ]
    with every_row() as row:
        for name, stream, message, final in rows:
            with row(name):
                async with opened(Streaming(stream)) as model:
                    with pytest.raises(EngineError, match=message) as failure:
                        await answer(model)
                    assert isinstance(failure.value, EngineRefusalError) == final
    async with opened(Streaming(hello + part("length"))) as model:
        assert (await answer(model)).finish == "length"


async def test_tokens_are_estimated_where_a_stream_does_not_count_them() -> None:
    def strict(sent: Mapping[str, Any]) -> Reply:
        if not sent.get("stream"):
            return REFUSALS[2]
        if "stream_options" in sent:
            return refused("Unrecognized request argument supplied: stream_options")
        return Reply(part(content="Hello.") + part("stop"))

    endpoint = OddEndpoint(strict)
    async with opened(endpoint) as model:
        assert (await answer(model)).tokens == Tokens(prompt=3, generated=2, estimated=True)
        assert model.abilities == Abilities(streams=True, stream_usage=False, usage=False)
        await answer(model)
    assert len(endpoint.requests) == 4


async def test_an_answer_is_read_as_it_came_whatever_was_asked_for() -> None:
    async with opened(OddEndpoint(lambda _: Reply(part(content="Hello.") + END))) as model:
        assert ((await answer(model)).text, model.abilities.streams) == ("Hello.", False)
    async with opened(OddEndpoint(lambda _: said("Hello.")), abilities=Abilities(streams=True)) as model:
        assert (await answer(model)).text == "Hello."


async def test_an_endpoint_that_refuses_streams_as_well_says_why() -> None:
    def never(sent: Mapping[str, Any]) -> Reply:
        return refused("streaming is off for this key" if sent.get("stream") else "non-streaming calls are off")

    endpoint = OddEndpoint(never)
    async with opened(endpoint) as model:
        with pytest.raises(EngineRefusalError, match="streaming is off for this key"):
            await answer(model)
        assert model.abilities == Abilities()
    assert len(endpoint.requests) == 2


async def test_the_probe_finds_out_that_only_a_stream_works() -> None:
    async with opened(Streaming(part(content="1 2 3 4") + END)) as model:
        assert await probe(model) == Abilities(streams=True)


async def test_what_a_hostile_stream_costs_is_bounded() -> None:
    rows = {
        "deep": part(content="Hello.") + 'data: {"choices": ' + "[" * 100_000,
        "many": "data: 1\n\n" * 1_000_000,
        "empty": "data:\n" * 2_000_000,
    }
    with every_row() as row:
        for name, stream in rows.items():
            with row(name):
                async with opened(Streaming(stream)) as model:
                    with pytest.raises(EngineError, match="broke its answer off"):
                        await answer(model)
                with pytest.raises(JsonError):
                    whole_answer(stream.encode())
    long = whole_answer((part(content="a") * 100_000).encode())
    assert len(long["choices"][0]["message"]["content"]) == 100_000
