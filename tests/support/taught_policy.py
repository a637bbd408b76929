"""A scripted policy whose tasks show what pages have to show: skills, calls, mistakes, failures and waiting."""

import asyncio
import re

from app.engine.tokenizer import ChatTokenizer
from tests.support.ledger_policies import DONE, writing
from tests.support.scripted_engine import Answer, ScriptedEngine, block

COUNT = """
entries = []
page = 0
while rows := apis.ledger.list_entries(page=page):
    entries += rows
    page += 1
print(f"{len(entries)} entries, the last one says {entries[-1]['text']!r}")"""
MISTAKE = "rows = apis.ledger.list_entries(page=0)\nprint(rows[0]['balance'])"
RECOVERY = "print(sum(row['amount'] for row in rows))"
SECTION = """
def write_section_{0}(text: str) -> int:
    return apis.ledger.add_entry(text="s{0}: " + text)["id"]
print(write_section_{0}("tea"))"""
ANSWER = "apis.supervisor.complete_task(answer=str(len(rows)))"


class TaughtPolicy(ScriptedEngine):
    """A task that is to be done slowly ends its first turn once `gate` is set."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        super().__init__(tokenizer, script=_answer)
        self.gate = asyncio.Event()

    async def _next(self, prompt: str) -> Answer:
        if "slowly" in prompt and "So be it" in prompt:
            await self.gate.wait()
        return await super()._next(prompt)


def _answer(prompt: str, turn: int) -> Answer:
    if "count the entries" in prompt:
        return block((COUNT, DONE)[min(turn, 1)])
    if "sum the amounts" in prompt:
        return block((MISTAKE, RECOVERY, ANSWER)[min(turn, 2)])
    if found := re.search(r"into section (\d+) of the ledger", prompt):
        return block(DONE) if turn else block(_section(prompt, found[1]))
    return writing(prompt, turn)


def _section(prompt: str, number: str) -> str:
    """The skill of a section of the ledger, or its use if it is offered."""
    known = f"write_section_{number}(" in prompt
    return f'print(write_section_{number}("tea"))' if known else SECTION.format(number)
