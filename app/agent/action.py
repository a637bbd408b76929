"""Extracts the code to run from the policy's answer. Pure."""

import re

_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "py", "python"}


def extract_code(text: str) -> str | None:
    """The first fenced block that is Python or has no language. None without such a block, or if it is blank.

    A truncated generation may lack the closing fence: its block ends with the text. A closing fence starts a line,
    so three backticks inside a line of code do not end the block.

    >>> extract_code("Let me look.\\n```python\\nprint(1)\\n```")
    'print(1)\\n'
    """
    block = _python_block(text)
    return block.group(2) if block and block.group(2).strip() else None


def is_closed(text: str) -> bool:
    """Whether the code is whole: nothing that follows is run.

    >>> is_closed("Look:\\n```\\nprint(1)\\n```\\n"), is_closed("Look:\\n```\\nprint(1)")
    (True, False)
    """
    block = _python_block(text)
    return block is not None and block.group(3) != ""


def _python_block(text: str) -> re.Match[str] | None:
    return next((block for block in _BLOCK.finditer(text) if block.group(1).strip().lower() in _PYTHON), None)
