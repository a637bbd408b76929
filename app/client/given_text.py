"""Text that a command is given in a file, or on standard input."""

import sys
from pathlib import Path

import click


def text_of_file(path: str | Path, about: str) -> str:
    """Raises BadParameter, which names what it is `about`."""
    try:
        return _decoded(Path(path).read_bytes(), repr(str(path)), about)
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise click.BadParameter(f"{about}: {str(path)!r} cannot be read: {error}") from error


def text_of_stdin(about: str) -> str:
    """Raises BadParameter, which names what it is `about`."""
    return _decoded(sys.stdin.buffer.read(), "standard input", about)


def _decoded(content: bytes, name: str, about: str) -> str:
    """In any locale, and without the byte order mark that some editors put first."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"{about}: {name} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
