"""Which calls wait for a person: the project's rules, and the document's `x-risk`."""

from typing import Any

import msgspec
import pytest

from app.apis.approvals.gate import ApprovalGate, ApprovalWantedError
from app.apis.documents.protocols import parse_document
from app.base.errors import HostError
from app.projects.settings import ApprovalRules
from tests.support.every_row import every_row
from tests.support.ledger import Ledger

PAYMENTS = ApprovalRules(
    default="never",
    operations={"payments.*": "write", "payments.show_*": "always", "payments.show_total": "never"},
)


RULES: list[tuple[ApprovalRules, str, bool, Any, bool]] = [
    (ApprovalRules(), "mail.send", False, None, False),
    (ApprovalRules(), "mail.send", False, "high", True),
    (ApprovalRules(), "mail.list", True, "critical", True),
    (ApprovalRules(), "mail.list", True, "medium", False),
    (ApprovalRules(), "mail.send", False, "medium", True),
    (ApprovalRules(), "mail.send", False, "low", False),
    (ApprovalRules(default="never"), "mail.send", False, "high", False),
    (ApprovalRules(default="always"), "mail.list", True, "none", True),
    (ApprovalRules(default="write"), "mail.list", True, None, False),
    (ApprovalRules(default="write"), "mail.send", False, "low", True),
    (ApprovalRules(default="first"), "mail.send", False, "low", False),
    (ApprovalRules(default="first"), "mail.send", False, "high", True),
    (ApprovalRules(default="first"), "mail.send", False, "medium", True),
    (PAYMENTS, "payments.pay", False, None, True),
    (PAYMENTS, "payments.list", True, None, False),
    (PAYMENTS, "payments.show_all", True, None, True),
    (PAYMENTS, "payments.show_total", True, None, False),
    (PAYMENTS, "my_payments.pay", False, None, False),
    (ApprovalRules(operations={"*.a?": "never", "*.?a": "always"}), "x.aa", True, None, True),
]


def test_the_closest_pattern_counts_and_then_the_default() -> None:
    with every_row() as row:
        for rules, api, safe, risk, wanted in RULES:
            with row(rules, api, safe, risk, wanted):
                assert rules.wants(api, safe=safe, risk=risk) is wanted


@pytest.mark.parametrize("pattern", ["mail", "*", "mail.send mail", "a.b.c", "[a].b"])
def test_a_pattern_that_can_match_no_operation_is_refused(pattern: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"operations": {pattern: "always"}}, ApprovalRules)


def test_a_document_marks_operations_by_their_risk() -> None:
    document = Ledger().document("http://ledger.test")
    document["paths"]["/entries"]["post"]["x-risk"] = "high"
    operations = parse_document("ledger", document).operations
    assert {name: each.risk for name, each in operations.items()} == {"add_entry": "high", "list_entries": None}


@pytest.mark.parametrize("risk", ["High", "hihg", True, ["high"]])
def test_an_operation_with_a_misspelled_risk_cannot_be_called(risk: object) -> None:
    document = Ledger().document("http://ledger.test")
    document["paths"]["/entries"]["post"]["x-risk"] = risk
    app = parse_document("ledger", document)
    assert list(app.operations) == ["list_entries"]
    assert "`x-risk` is one of none, low, medium, high, critical" in app.left_out[0].reason


async def test_arguments_are_checked_before_anybody_is_asked() -> None:
    ledger = Ledger()
    async with ledger.client() as client:
        gateway = ledger.gateway(client, approvals=ApprovalGate(ApprovalRules(default="write")), max_calls=1)
        with pytest.raises(HostError, match="amount"):
            await gateway("ledger.add_entry", [], {"text": "one", "amount": "many"})
        await gateway("ledger.list_entries", [], {})
        with pytest.raises(HostError, match="used up"):
            await gateway("ledger.add_entry", [], {"text": "one"})


async def test_secret_arguments_are_not_shown_but_tell_calls_apart() -> None:
    ledger = Ledger()
    gate = ApprovalGate(ApprovalRules(default="always"))
    digests = []
    async with ledger.client() as client:
        for text in ("one", "two"):
            gateway = ledger.gateway(client, approvals=gate)
            with pytest.raises(ApprovalWantedError) as wanted:
                await gateway("ledger.add_entry", [], {"text": text})
            assert wanted.value.request.arguments == {"text": text}
            digests.append(wanted.value.request.digest)
    assert len(set(digests)) == 2
    assert ledger.entries == []


async def test_where_only_reading_is_allowed_nobody_is_asked() -> None:
    ledger = Ledger()
    async with ledger.client() as client:
        gate = ApprovalGate(ApprovalRules(operations={"ledger.list_entries": "always"}))
        gateway = ledger.gateway(client, approvals=gate, read_only=True)
        for api in ("ledger.list_entries", "ledger.add_entry"):
            with pytest.raises(HostError) as refused:
                await gateway(api, [], {"text": "one"} if api.endswith("add_entry") else {})
            assert refused.value.kind == "PermissionError"
    assert (gateway.would_write, ledger.reads, ledger.entries) == ("ledger.list_entries", 0, [])
