"""From the policy's text to the code it wants run. Pure."""

import re

_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "py", "python"}


def extract_code(text: str) -> str | None:
    """The first fenced block that is Python, or of no named language. None if there is none, or if it is blank.

    A generation that was cut off may lack the closing fence: its block ends with the text. A closing fence starts
    a line, so three backticks within a line of code do no harm.

    >>> code_of("Let me look.\\n```python\\nprint(1)\\n```")
    'print(1)\\n'
    """
    for block in _BLOCK.finditer(text):
        if block.group(1).strip().lower() in _PYTHON:
            code = block.group(2)
            return code if code.strip() else None
    return None
