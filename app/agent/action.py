"""Extracts the code to run from the policy's answer. Pure."""

import re

_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "py", "python"}


def extract_code(text: str) -> str | None:
    """The first fenced block that is Python or has no language. None without such a block, or if it is blank.

    A truncated generation may lack the closing fence: its block ends with the text. A closing fence starts a line,
    so three backticks inside a line of code do not end the block.

    >>> extract_code("Let me look.\\n```python\\nprint(1)\\n```")
    'print(1)\\n'
    """
    for block in _BLOCK.finditer(text):
        if block.group(1).strip().lower() in _PYTHON:
            code = block.group(2)
            return code if code.strip() else None
    return None
