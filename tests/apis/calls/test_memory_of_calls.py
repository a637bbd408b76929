"""What the gateway remembers of a task's calls is bounded, whatever the code passes, and however often."""

import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from app.apis.approvals.gate import shown_call
from app.apis.calls.gateway import Gateway
from app.apis.calls.skill_guard import (
    PARAMETER,
    AllowedOperation,
    GuardedSkill,
    Place,
    SkillGuard,
    SkillManifest,
    SmallValues,
)
from app.apis.catalog import Catalog, Operation
from app.apis.documents.protocols import parse_document
from app.base.errors import HostError
from app.base.secrets import SecretValues
from app.base.values import Json
from app.sandbox.protocol import EnteredSkill
from tests.support.document_parts import openapi

MEGABYTE = 1_000_000
KEPT = 12 * MEGABYTE  # of the 20 that are passed
PASSWORDS = {
    "/log_in": {
        "post": {
            "operationId": "log_in",
            "parameters": [{"name": "password", "in": "query", "schema": {"type": "string"}}],
        }
    }
}


@contextmanager
def little_kept(most: int = KEPT) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()


def large(number: int) -> str:
    return f"{number:07}" + "x " * (MEGABYTE // 2)


def a_gateway(client: httpx.AsyncClient) -> Gateway:
    return Gateway(Catalog({"mail": parse_document("mail", openapi(PASSWORDS))}), client, max_calls=0)


LookUp = Callable[[Gateway, int], Awaitable[Json]]
LOOK_UPS: dict[str, LookUp] = {
    "searches": lambda gateway, number: gateway("api_docs.search", [large(number)], {}),
    "pages": lambda gateway, number: gateway("api_docs.search", [large(number)], {"page": 2}),
    "apps": lambda gateway, number: gateway("api_docs.show_signatures", [large(number)], {}),
    "operations": lambda gateway, number: gateway("api_docs.show_api_doc", ["mail", large(number)], {}),
    "passwords of calls beyond the budget": lambda gateway, number: gateway("mail.log_in", [large(number)], {}),
}


@pytest.mark.parametrize("kind", LOOK_UPS)
async def test_calls_that_are_not_counted_fill_no_memory(kind: str) -> None:
    async with httpx.AsyncClient() as client:
        gateway = a_gateway(client)
        with little_kept():
            for number in range(20):
                try:
                    await LOOK_UPS[kind](gateway, number)
                except HostError as error:
                    error.__traceback__ = None


async def test_many_small_look_ups_fill_no_memory() -> None:
    """The latest are remembered; once there are that many, memory grows no more. Each has 240 bytes."""
    async with httpx.AsyncClient() as client:
        gateway = a_gateway(client)
        tracemalloc.start()
        try:
            for number in range(1_500):
                if number == 1_000:
                    before = tracemalloc.get_traced_memory()[0]
                await gateway("api_docs.search", [str(number)], {})
            assert tracemalloc.get_traced_memory()[0] - before < MEGABYTE // 20
        finally:
            tracemalloc.stop()


def test_secrets_beyond_what_is_kept_hide_every_text_and_a_person_is_told() -> None:
    values = SecretValues()
    values.note("mail.list", {}, {"token": "the-first-one"})
    with little_kept():
        for number in range(20):
            values.note("mail.log_in", {"password": large(number)})
        for number in range(50_000):
            values.note("mail.log_in", {"password": f"{number:08}"})
    assert values.mask("anything") == "***"
    remarks = shown_call({"text": "the-first-one", "body": "other"}, values).remarks
    assert remarks == [
        "text holds what was returned by mail.list as a secret",
        "more was called a secret than can be compared with these arguments",
    ]


def test_names_and_forms_of_what_a_skill_passes_are_not_kept() -> None:
    small = SmallValues()
    with little_kept():
        for number in range(20):
            small.read(PARAMETER, {large(number): number})
            small.bits_of_form(Place("mail.send", f"argument_{number}"), large(number))
    place = Place("mail.send", "argument_1")
    assert small.bits_of_form(place, large(1)) == 0
    assert small.bits_of_form(place, "T") == 1


def test_what_a_skill_was_given_is_not_kept_by_its_guard() -> None:
    operation = Operation(app="mail", name="send", method="GET", path="/", summary="")
    manifest = SkillManifest({"mail.send": AllowedOperation("GET", True, {"text": [PARAMETER]})})
    guard = SkillGuard({"send": GuardedSkill(manifest, ())})
    with little_kept():
        for number in range(20):
            given = EnteredSkill("send", {large(number): number, "password": large(number)})
            guard.check(given, operation, {"text": number})
        guard.check(EnteredSkill("send", {"text": 1}), operation, {"text": 1})
