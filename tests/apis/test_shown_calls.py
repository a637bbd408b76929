"""What a person who decides about a call is shown: neither an API's answer nor the agent can hide any of it."""

from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from sqlalchemy import select

from app.apis.approvals.gate import ApprovalGate, ApprovalWantedError, shown_call
from app.base.errors import HostError
from app.base.secrets import SecretValues
from app.base.text import visible
from app.db import tables
from app.projects import webhooks
from app.projects.settings import ApprovalRules
from app.skills.checks import name_objection
from tests.support.approving import WRITES, ApprovingProject
from tests.support.console_pages import read_page
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.webhook_receiver import SECRET as WEBHOOK_SECRET

IBAN = "DE89-EVIL"
TOKEN = "tok-1234567890"


class Leak(msgspec.Struct, frozen=True):
    """An entry that calls something a secret."""

    password: str
    text: str = ""
    amount: int = 1


async def test_an_answer_that_calls_it_a_secret_hides_nothing_from_the_approver(demo: ApprovingProject) -> None:
    entries: list[Any] = demo.project.ledger.entries
    entries.append(Leak(IBAN))
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = f"apis.ledger.list_entries()\napis.ledger.add_entry(text='pay {IBAN}')"
    async with demo.project.runner(demo.engine(code)):
        approval = await demo.waiting(task_id)
        shown = (await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()
        assert shown["arguments"] == {"text": f"pay {IBAN}"}
        assert shown["remarks"] == ["text holds what was returned by ledger.list_entries as a secret"]
        wanted = [data for kind, data in await demo.project.events(task_id) if kind == "approval"]
        assert [each["arguments"] for each in wanted] == [{"text": "pay ***"}]
        decided = await demo.decide(approval, "approve")
        assert (decided["arguments"], decided["remarks"]) == ({"text": "pay ***"}, [])
        await demo.project.ended(task_id)
    assert demo.written()[1:] == [f"pay {IBAN}"]


def known() -> SecretValues:
    secrets = SecretValues()
    secrets.note("", {"api_key": "variable-secret"})
    secrets.add(TOKEN)
    secrets.note("crm.log_in", {"password": "typed-by-the-agent"}, {"deep": [{"token": IBAN}]})
    secrets.note("crm.show_passwords", {}, {"bank": "whole-answer"})
    return secrets


def test_secrets_of_the_project_are_shown_by_length_and_origin_and_all_others_as_they_are() -> None:
    def text(written: str) -> tuple[Any, list[str]]:
        found = shown_call({"text": written}, known())
        return found.arguments["text"], found.remarks

    assert text(f"use {TOKEN}!") == ("use [14 characters of a stored secret]!", [])
    assert text(TOKEN[::-1]) == ("[14 characters of a stored secret]", [])
    assert text("variable-secret") == ("[15 characters of a variable of the task]", [])
    assert text(f"to {IBAN}") == (f"to {IBAN}", ["text holds what was returned by crm.log_in as a secret"])
    assert text("typed-by-the-agent") == (
        "typed-by-the-agent",
        ["text holds what was given to crm.log_in as a secret"],
    )
    assert text("whole-answer")[1] == ["text holds what was returned by crm.show_passwords as a secret"]
    assert text("nothing") == ("nothing", [])


def test_an_argument_that_its_api_calls_a_secret_is_shown_by_length_and_origin() -> None:
    given = {"password": IBAN, "new_password": "of-the-code", "note": {"password": "shown"}, "pin": None}
    assert shown_call(given, known()).arguments == {
        "password": "[9 characters returned by crm.log_in]",
        "new_password": "[11 characters of the agent's code]",
        "note": {"password": "shown"},
        "pin": None,
    }


def test_answers_with_many_secrets_hide_nothing_either() -> None:
    secrets = known()
    for number in range(2_000):
        secrets.note("crm.list", {}, {"password": f"invented-secret-{number}"})
    assert secrets.mask("pay iris") == "***"
    assert shown_call({"text": "pay iris"}, secrets).arguments == {"text": "pay iris"}
    assert shown_call({"text": TOKEN}, secrets).arguments == {"text": "[14 characters of a stored secret]"}


async def test_a_call_that_is_too_large_to_be_shown_is_refused() -> None:
    ledger = Ledger()
    async with ledger.client() as client:
        gateway = ledger.gateway(client, approvals=ApprovalGate(ApprovalRules(default="always")))
        with pytest.raises(HostError, match="which cannot be shown to the person who approves"):
            await gateway("ledger.add_entry", [], {"text": "x" * 100_001})
        with pytest.raises(ApprovalWantedError):
            await gateway("ledger.add_entry", [], {"text": "x" * 99_000})
    assert ledger.entries == []


UNSEEN = {
    "right to left": "\u202e",
    "isolate": "\u2067",
    "mark": "\u200f",
    "zero width": "\u200b",
    "joiner": "\u200d",
    "soft hyphen": "\u00ad",
    "byte order mark": "\ufeff",
    "filler": "\u3164",
    "tag": "\U000e0041",
}


async def test_characters_that_cannot_be_seen_are_visible_in_the_console_and_in_webhooks(
    demo: ApprovingProject,
) -> None:
    """What is sent back by a form stays as it is."""
    await demo.rules(WRITES)
    webhook = {"url": "http://hook.test", "secret": WEBHOOK_SECRET}
    hook = await demo.api.client.patch("/v1/projects/demo", json={"settings": {"webhook": webhook}})
    assert hook.status_code == 200, hook.text
    hidden = "".join(UNSEEN.values())
    task_id = await demo.project.submit(instruction=f"do {hidden} it")
    async with demo.project.runner(demo.engine(f"apis.ledger.add_entry(text={f'pay {hidden}'!a})")):
        approval = await demo.waiting(task_id)
        addresses = f"/console/approvals/{approval['id']}", f"/console/tasks/{task_id}", "/console/audit"
        pages = [await read_page(demo.api, each, "admin") for each in addresses]
        await demo.decide(approval, "refuse")
        await demo.project.ended(task_id)
    async with demo.api.sessions.begin() as session:
        await webhooks.enqueue(session, demo.api.demo.id, task_id, "task.failed", {"failure": hidden})
        bodies = list(await session.scalars(select(tables.WebhookDelivery.body)))
    texts = [*pages, *bodies]
    sent_back = await read_page(demo.api, f"/console/skills?q={quote(hidden)}", "admin")
    with every_row() as row:
        for name, character in UNSEEN.items():
            with row(name):
                assert not [text for text in texts if character in text]
                assert character in sent_back
                assert character.encode("unicode_escape").decode() in pages[0]
                assert visible(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"
    assert visible("a\r\nb\tc é 日本 ❤️") == "a\r\nb\tc é 日本 ❤️"


async def test_what_a_form_of_tasks_offers_or_sends_back_stays_as_it_is(demo: ApprovingProject) -> None:
    scenario = "pay\u200cments \U0001f468\u200d\U0001f469"  # as some languages and emojis are written
    task_id = await demo.project.submit(instruction="pay", scenario=scenario)
    async with demo.project.runner(demo.engine("print(1)")):
        await demo.project.ended(task_id)
    searched = f"/console/tasks?{urlencode(dict.fromkeys(('q', 'scenario'), scenario))}"
    with every_row() as row:
        for name, address, times in (("searched", searched, 3), ("suggested", "/console/tasks/new", 1)):
            with row(name):
                assert (await read_page(demo.api, address, "admin")).count(f'value="{scenario}"') == times


def test_the_name_of_a_skill_looks_like_no_other() -> None:
    with every_row() as row:
        for name in ("send_mail", "send2", "отправить", "送信_メール", "größe", "_private"):
            with row(name):
                assert name_objection(name) is None
        for name in ("s\u0435nd_mail", "send_\u043cail", "\u03b1dd", "\uff53end", "\ufb01nd", "pay\u0440al"):
            with row(name):
                assert name_objection(name) is not None
