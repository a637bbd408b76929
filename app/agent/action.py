"""Reads the policy's answer: the code to run, the words, and the thoughts, of which nothing is run. Pure."""

import ast
import re
from typing import NamedTuple

from app.base.untrusted import parse
from app.engine.tokenizer import CLOSED_THOUGHT, OPEN_THOUGHT

_BLOCK = r"```(?P<language>[^\n`]*)\n(?P<code>.*?)(?P<fence>^[ \t]*```|\Z)"
_THOUGHT = rf"^[ \t]*(?:(?P<closed>{CLOSED_THOUGHT})|(?P<open>{OPEN_THOUGHT}))"
_PART = re.compile(f"{_BLOCK}|{_THOUGHT}", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "py", "python"}
_COMPLETION = "apis.supervisor.complete_task"


class _Code(NamedTuple):
    start: int  # where the words before it end
    text: str


def extract_code(text: str) -> str | None:
    """The first fenced block that is Python or has no language. None without such a block, or if it is blank.
    Without a Python block, an answer that is only the call which completes the task is the code.

    A truncated generation may lack the closing fence: its block ends with the text. A closing fence starts a line,
    so three backticks inside a line of code do not end the block. What is fenced in a thought was only considered;
    a thought starts a line too, outside of blocks.

    >>> extract_code("Let me look.\\n```python\\nprint(1)\\n```")
    'print(1)\\n'
    >>> extract_code("<think>\\n```python\\nprint(1)\\n```\\nBetter not.</think>\\nI am done.")
    >>> extract_code("apis.supervisor.complete_task(answer=3)")
    'apis.supervisor.complete_task(answer=3)'
    """
    found = _code(text)
    return found.text if found else None


def is_closed(text: str) -> bool:
    """Whether the code is whole: nothing that follows is run.

    >>> is_closed("Look:\\n```\\nprint(1)\\n```\\n"), is_closed("Look:\\n```\\nprint(1)")
    (True, False)
    """
    block = _python_block(text)
    return block is not None and block["fence"] != ""


def through_code(text: str) -> str:
    """The text up to the end of its code: what a model goes on with was not asked for.

    >>> through_code("Look:\\n```\\nprint(1)\\n```\\nUser: Output:\\n1")
    'Look:\\n```\\nprint(1)\\n```'
    """
    block = _python_block(text)
    return text if block is None else text[: block.end()]


def words_before_code(text: str) -> str:
    """What is said before the code, thoughts included; everything where there is none.

    >>> words_before_code("Let me look.\\n```python\\nprint(1)\\n```")
    'Let me look.\\n'
    """
    found = _code(text)
    return text[: found.start] if found else text


def without_thoughts(text: str) -> str:
    """
    >>> without_thoughts("<think>\\nHm.\\n</think>\\n\\nGood morning!")
    'Good morning!'
    """
    return _PART.sub(lambda part: "" if _is_thought(part) else part.group(), text).strip()


def ends_in_thought(text: str) -> bool:
    """Whether the model had not finished thinking, and had written no code before.

    >>> ends_in_thought("<think>\\nI could"), ends_in_thought("<think>\\nHm.\\n</think>\\nI")
    (True, False)
    """
    return _code(text) is None and any(part["open"] is not None for part in _PART.finditer(text))


def _code(text: str) -> _Code | None:
    block = _python_block(text)
    if block is not None:
        return _Code(block.start(), block["code"]) if block["code"].strip() else None
    said = _PART.sub(lambda part: " " * len(part.group()) if _is_thought(part) else part.group(), text)
    code = said.strip()
    return _Code(len(said) - len(said.lstrip()), code) if _completes(code) else None


def _completes(code: str) -> bool:
    """Whether it is the call that completes the task, and nothing else."""
    tree = parse(code) if _COMPLETION in code else None
    match tree and tree.body:
        case [ast.Expr(ast.Call(called))]:
            return ast.unparse(called) == _COMPLETION
    return False


def _python_block(text: str) -> re.Match[str] | None:
    blocks = (part for part in _PART.finditer(text) if not _is_thought(part))
    return next((block for block in blocks if block["language"].strip().lower() in _PYTHON), None)


def _is_thought(part: re.Match[str]) -> bool:
    return part["code"] is None
