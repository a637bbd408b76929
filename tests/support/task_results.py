"""Task results made by hand."""

from collections.abc import Iterable

import msgspec

from trainer.evaluation.metrics import TaskResult

PLAIN = TaskResult(
    scenario="a", template="t", success=False, turns=4, tokens=100, stop="completed", offered=0, used=0, wrote=0
)


def result(scenario: str, **fields: object) -> TaskResult:
    return msgspec.structs.replace(PLAIN, scenario=scenario, **fields)


def chains(solved: Iterable[bool], **fields: object) -> list[TaskResult]:
    """One scenario of three tasks per entry; the last task failed where the entry is False."""
    return [
        result(f"s{number}", success=whole or place < 2, **fields)
        for number, whole in enumerate(solved)
        for place in range(3)
    ]
