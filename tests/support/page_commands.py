"""The commands of a Markdown page, and a shell that runs them as a reader would.

A `console` block holds commands after `$ `, each followed by its output, where `…` stands for anything. In a
command `…` stands for what the reader fills in. All other blocks are read, not run.
"""

import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

ANYTHING = "…"
_FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


class Command(msgspec.Struct, frozen=True):
    text: str
    output: str  # as the page shows it; "" where it shows none


def blocks(page: str, language: str) -> list[str]:
    """
    >>> blocks("a\\n```sh\\nls\\n```\\n```console\\n$ ls\\n```\\n", "sh")
    ['ls\\n']
    """
    return [body for _, each, body in _FENCE.findall(page) if each == language]


def commands(page: str) -> list[Command]:
    """
    >>> commands("```console\\n$ a '1\\n    2'\\nx\\n\\ny\\n$ b\\n```\\n")
    [Command(text="a '1\\n    2'", output='x\\n\\ny'), Command(text='b', output='')]
    """
    return [command for block in blocks(page, "console") for command in _split(block)]


def matches(output: str, shown: str) -> bool:
    """
    >>> matches("id: 1\\nb: 2\\n", "id: 1\\n…"), matches("id: 1\\n", "id: 2"), matches("a  b\\n", "a b")
    (True, False, True)
    """
    pattern = ".*".join(re.escape(each) for each in _plain(shown).split(ANYTHING))
    return re.fullmatch(pattern, _plain(output), re.DOTALL) is not None


def _split(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(place for place in range(1, len(lines) + 1) if _whole("\n".join(lines[:place])))
        yield Command("\n".join(lines[:end]), "\n".join(lines[end:]).strip())


def _whole(text: str) -> bool:
    """Whether bash would not wait for another line."""
    quotes = re.sub(r"\\.", "", text)
    return quotes.count("'") % 2 == 0 and not text.endswith("\\")


def _plain(text: str) -> str:
    """Without indentation and the padding of columns."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


class Shell:
    """A bash that keeps its variables from command to command. Standard error is left out of the output."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"], cwd=directory, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def run(self, command: str) -> tuple[str, int]:
        """Output and exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = uuid.uuid4().hex
        self._process.stdin.write(f"{command}\nprintf '\\n{mark} %d\\n' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        while not (line := self._process.stdout.readline()).startswith(mark):
            assert line, f"the shell ended at: {command}"
            lines.append(line)
        return "".join(lines), int(line.split()[1])
