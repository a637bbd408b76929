"""Scripted policies that write into the ledger: some at once, some when they are let, some never."""

import asyncio

from app.engine.tokenizer import ChatTokenizer
from tests.support.ledger_project import until
from tests.support.scripted_engine import Answer, ScriptedEngine, block

SKILL = """
def write_entry(text: str) -> int:
    return apis.ledger.add_entry(text=text)["id"]
print(write_entry("{word}"))"""
DONE = "apis.supervisor.complete_task()"


def writing(prompt: str, turn: int) -> Answer:
    """Writes a skill, or uses the offered one."""
    if turn > 0:
        return block(DONE)
    word = word_of(prompt)
    return block(f"print(write_entry('{word}'))" if "skills:" in prompt else SKILL.format(word=word))


def word_of(prompt: str) -> str:
    """The word that the task is to write."""
    return prompt.partition("write ")[2].split()[0]


class Stuck(ScriptedEngine):
    """Never answers, and counts the pending requests."""

    pending = 0

    async def _next(self, prompt: str) -> Answer:
        self.pending += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.pending -= 1
        return prompt


class Gated(ScriptedEngine):
    """Answers a task once its word is in `open`; `waiting` are the words of those that ask."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        super().__init__(tokenizer, script=writing)
        self.open, self.waiting = set[str](), set[str]()

    async def _next(self, prompt: str) -> Answer:
        word = word_of(prompt)
        self.waiting.add(word)
        await until(lambda: word in self.open)
        self.waiting.discard(word)
        return await super()._next(prompt)
