"""Text that commands read from files and from standard input."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.base.errors import ModelError
from app.cli import main
from app.client.options import text_of_file
from app.engine.tokenizer import ChatTokenizer, read_card
from tests.support.scripted_engine import byte_tokenizer

LATIN_1 = "score = 1  # geprüft".encode("latin-1")
NOWHERE = {"SAGE_KEY": "x", "SAGE_URL": "http://127.0.0.1:9"}


def sage(*arguments: str, standard_input: bytes = b"") -> Result:
    return CliRunner().invoke(main, arguments, input=standard_input, env=NOWHERE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "do it", "--check", "FILE"),
        ("run", "-"),
        ("apis", "add", "vault", "FILE"),
        ("apis", "add", "vault", "-"),
        ("apis", "connect", "vault", "key", "value=file:FILE"),
        ("apis", "connect", "vault", "key", "value=-"),
    ],
    ids=" ".join,
)
def test_text_that_is_not_utf_8_is_refused_with_its_place(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(LATIN_1)
    done = sage(*(each.replace("FILE", str(file)) for each in arguments), standard_input=LATIN_1)
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (2, True), done.exception
    name = repr(str(file)) if "FILE" in arguments[-1] else "standard input"
    assert f"{name} is not UTF-8 at byte 17: save it as UTF-8" in done.output


@pytest.mark.parametrize("path", ["none", ".", "\0"])
def test_a_file_that_cannot_be_read_is_refused_with_its_name(path: str, tmp_path: Path) -> None:
    done = sage("apis", "add", "vault", str(tmp_path / path))
    assert (done.exit_code, "cannot be read" in done.output) == (2, True)


def test_text_is_read_without_the_byte_order_mark_of_an_editor(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_bytes(b"\xef\xbb\xbfscore = 1")
    assert text_of_file(tmp_path / "check.py", "--check") == "score = 1"


def test_the_texts_of_a_model_directory_may_be_damaged(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    (tmp_path / "README.md").write_bytes(b"---\nlicense: mit\n---\n" + LATIN_1)
    assert read_card(tmp_path) == {"license": "mit"}
    (tmp_path / "chat_template.jinja").write_bytes(LATIN_1)
    with pytest.raises(ModelError, match=r"chat_template\.jinja is not UTF-8 at byte 17"):
        ChatTokenizer.load(tmp_path)
