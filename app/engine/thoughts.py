"""The tags between which models think before they answer. Nothing in a thought is done. Pure."""

import re

_TAGS = {
    "<think>": "</think>",  # Qwen3, QwQ, DeepSeek-R1, SmolLM3, GLM and most others
    "[THINK]": "[/THINK]",  # Magistral
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",  # Kimi
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
}
_CLOSED = "|".join(f"{re.escape(begin)}.*?{re.escape(end)}" for begin, end in _TAGS.items())
_BEGIN = "|".join(map(re.escape, _TAGS))
_OPENED = re.compile(rf"({_BEGIN})\s*\Z")

CLOSED_THOUGHT = rf"(?:{_CLOSED})"
OPEN_THOUGHT = rf"(?:{_BEGIN}).*\Z"
"""Patterns, with `re.DOTALL`. What is no closed thought may be an open one, which has no end."""


def opened_thought(prompt: str) -> str:
    """The tag by which the template opens a thought in the prompt, for the model to go on with; "" if it does not.

    >>> opened_thought("<|im_start|>assistant\\n<think>\\n")
    '<think>\\n'
    """
    opened = _OPENED.search(prompt)
    return opened.group() if opened else ""


def end_of(opened: str) -> str:
    """The tag that ends what `opened_thought` found."""
    return _TAGS[opened.rstrip()]


def after_thought(prompt: str, answer: str) -> str:
    """An answer that the model itself did not write, for a prompt that may have opened a thought: it ends the
    thought, and does not open it again.

    >>> after_thought("assistant\\n<think>\\n", "I look.")
    '</think>\\n\\nI look.'
    >>> after_thought("assistant\\n<think>\\n", "<think>\\nHm.\\n</think>\\n\\nI look.")
    'Hm.\\n</think>\\n\\nI look.'
    """
    opened = opened_thought(prompt)
    if not opened:
        return answer
    if answer.lstrip().startswith(opened.rstrip()):
        return answer.lstrip().removeprefix(opened.rstrip()).lstrip("\n")
    return answer if end_of(opened) in answer else f"{end_of(opened)}\n\n{answer}"
