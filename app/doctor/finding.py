"""What `sage doctor` found out about one part of a deployment."""

from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["ok", "warning", "fault"]


class Finding(msgspec.Struct, frozen=True):
    """A fault keeps tasks from being served; a warning does not. The text of both says what to mend."""

    verdict: Verdict
    part: str
    text: str


def line_of(finding: Finding) -> str:
    """
    >>> line_of(Finding("fault", "broker", "it is down: start it"))
    'fault    broker         it is down: start it'
    """
    return f"{finding.verdict:8} {finding.part:14} {finding.text}"


def summary(findings: Sequence[Finding]) -> str:
    """
    >>> summary([Finding("ok", "disk", ""), Finding("fault", "broker", "it is down: start it")])
    '1 fault, 0 warnings'
    """
    return f"{_count(findings, 'fault')}, {_count(findings, 'warning')}"


def _count(findings: Sequence[Finding], verdict: Verdict) -> str:
    number = sum(each.verdict == verdict for each in findings)
    return f"{number} {verdict}{'' if number == 1 else 's'}"
