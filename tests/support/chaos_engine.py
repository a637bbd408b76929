"""A model server process for tests to kill: `python -m tests.support.chaos_engine PORT MODEL_DIRECTORY`.

It knows nothing but the prompt, so that another process can go on where one was killed.
"""

import asyncio
import sys
from pathlib import Path

import uvicorn

from app.engine.tokenizer import ChatTokenizer
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from tests.support.scripted_server import create_server

WRITES = 5
_TURNS = (
    "mine, unknown = [], []\n"
    "def write_entry(text: str) -> int | None:\n"
    "    try:\n"
    "        apis.ledger.list_entries(page=0)\n"
    "        return apis.ledger.add_entry(text=text)['id']\n"
    "    except Exception:\n"
    "        return None\n"
    "def write(number: int) -> None:\n"
    "    made = write_entry('{word} %d' % number)\n"
    "    (unknown if made is None else mine).append(number if made is None else made)\n"
    "write(1)\nwrite(2)",
    "write(3)\nwrite(4)",
    "write(5)",
    "try:\n    answer = {{'mine': mine, 'unknown': unknown}}\nexcept NameError:\n"
    "    answer = {{'mine': [], 'unknown': [1, 2, 3, 4, 5]}}\n"
    "apis.supervisor.complete_task(answer=answer)",
)
_SECONDS = 0.2  # of a turn


def script(prompt: str, turn: int) -> Answer:
    """Five writes in three turns. The answer has the ledger's number of each, and which may have failed: all
    if the session was killed.
    """
    return block(_TURNS[min(turn, len(_TURNS) - 1)].format(word=prompt.partition("write ")[2].split()[0]))


class SlowEngine(ScriptedEngine):
    """Answers more slowly than a write takes, so that events meet tasks at both. Keeps no record."""

    async def _next(self, prompt: str) -> Answer:
        self.prompts.clear()
        self.samplings.clear()
        self.models.clear()
        await asyncio.sleep(_SECONDS)
        return await super()._next(prompt)


if __name__ == "__main__":
    tokenizer = ChatTokenizer.load(Path(sys.argv[2]))
    app = create_server(SlowEngine(tokenizer, script=script))
    port = int(sys.argv[1])
    uvicorn.run(app, port=port, lifespan="off", ws="none", log_level="warning", timeout_keep_alive=900)
