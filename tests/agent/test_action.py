"""Extraction of code from answers."""

import pytest

from app.agent.action import ends_in_thought, extract_code, words_before_code
from tests.support.every_row import every_row

BLOCKS: list[tuple[str, str | None]] = [
    ("I look.\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
    ("```py\nprint(1)\n```", "print(1)\n"),
    ("```\nprint(1)\n```", "print(1)\n"),
    ("```Python \nprint(1)\n```", "print(1)\n"),
    ("First: ```python\na = 1\n```\nthen\n```python\nb = 2\n```", "a = 1\n"),
    ("```python\nprint(1)\nprint(", "print(1)\nprint("),
    ("```python\nprint('```')\n```", "print('```')\n"),
    ("```json\n{}\n```\nand now\n```python\nprint(2)\n```", "print(2)\n"),
    ("```python\n    ```", None),
    ("```python\n", None),
    ("```json\n{}\n```", None),
    ("I am done. `print(1)`", None),
    ("", None),
    ("<think>\n```python\nprint(1)\n```\nNo.\n</think>\n\n```python\nprint(2)\n```", "print(2)\n"),
    ("<think>\n```python\nprint(1)\n```\nBut", None),
    ("<think>\nIt could be\n```python\nprint(1)\n</think>\nI am done.", None),
    ("Well.\n <think>```\n1\n```</think>```\n2\n```", "2\n"),
    ("[THINK]```\n1\n```[/THINK]```\n2\n```", "2\n"),
    ('```python\nx = """\n<think>\n"""\n```', 'x = """\n<think>\n"""\n'),
    ("```json\n<think>\n```\n```python\nprint(2)\n```", "print(2)\n"),
    ("I look for `<think>`.\n```\nprint(1)\n```", "print(1)\n"),
]


def test_the_first_python_block_is_the_code() -> None:
    with every_row() as row:
        for text, code in BLOCKS:
            with row(text, code):
                assert extract_code(text) == code


@pytest.mark.parametrize(
    "call",
    [
        "apis.supervisor.complete_task()",
        "apis.supervisor.complete_task(answer='a)\\nb')",
        "apis.supervisor.complete_task(\n    answer=[1,\n            2],\n)",
        "apis.supervisor.complete_task(answer=3);  # done",
    ],
)
def test_the_call_that_completes_the_task_needs_no_block(call: str) -> None:
    for text in (call, f"<think>Hm.</think>\n\n{call}\n", f"{call}\n<think>I called {call}.</think>\n"):
        assert extract_code(text) == call
        assert call not in words_before_code(text)
    for text in (f"I call {call}", f"{call}\nThat is all.", f"{call}\n{call}", f"({call}, 1)", f"`{call}`"):
        assert extract_code(text) is None
        assert words_before_code(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "apis.mail.delete_mail(id=3)",
        "apis.supervisor.complete_task",
        "apis.supervisor.complete_task(answer=3",
        "apis.supervisor.complete_task(answer=3) would be the call (if I were sure)",
        "apis.supervisor.complete_task(answer=3), apis.mail.delete_mail(id=3)",
        "my.apis.supervisor.complete_task(answer=3)",
        "<think>\napis.supervisor.complete_task(answer=3)\n</think>",
    ],
)
def test_no_other_answer_without_a_block_is_code(text: str) -> None:
    assert extract_code(text) is None


def test_a_thought_after_the_code_needs_no_end() -> None:
    assert ends_in_thought("<think>\nI could")
    for code in ("apis.supervisor.complete_task()", "```\nprint(1)\n```"):
        assert not ends_in_thought(f"{code}\n<think>\nI could")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I look.\n```python\nprint(1)\n```", "I look.\n"),
        ("<think>\nHm.\n</think>\napis.supervisor.complete_task(answer=3)", "<think>\nHm.\n</think>\n"),
        ("apis.supervisor.complete_task()\n", ""),
        ("I call apis.supervisor.complete_task()", "I call apis.supervisor.complete_task()"),
        ("```python\n    ```", "```python\n    ```"),
    ],
)
def test_words_are_what_comes_before_the_code_that_runs(text: str, words: str) -> None:
    assert words_before_code(text) == words
