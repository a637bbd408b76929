"""What the pages name exists: settings, endpoints, commands and their options; so do commands that code names."""

import re
import shlex
from pathlib import Path

import click
import pytest

from app.base.run_settings import RunSettings
from app.base.settings import Settings, variable_of
from app.cli import main
from app.client.options import ListingGroup
from app.web.manual import DIRECTORY
from tests.support.every_row import every_row
from tests.support.page_commands import blocks, commands
from tests.support.reference_pages import openapi_document

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", *sorted(DIRECTORY.glob("*.md"))]

_OTHERS = {
    "SAGE_URL",
    "SAGE_KEY",
    "SAGE_CHAOS_EVENTS",
    "SAGE_CHAOS_KINDS",
    "SAGE_CHAOS_SEED",
}  # of commands and tests


def test_settings_exist() -> None:
    known = {variable_of(name) for name in Settings.__struct_fields__} | _OTHERS
    with every_row() as row:
        for page in PAGES:
            with row(page.name):
                assert set(re.findall(r"\bSAGE_[A-Z_]+\b", page.read_text())) <= known


def test_settings_of_runs_exist() -> None:
    with every_row() as row:
        for page in PAGES:
            with row(page.name):
                ours = "\n".join(line for line in page.read_text().splitlines() if "helm " not in line)
                assert set(re.findall(r"--set ([a-z_]+)=", ours)) <= set(RunSettings.__struct_fields__)


def test_endpoints_exist() -> None:
    paths = openapi_document()["paths"]
    known = {(method.upper(), _shape(path)) for path, methods in paths.items() for method in methods}
    with every_row() as row:
        for page in PAGES:
            with row(page.name):
                found = re.findall(r"\b(GET|POST|PUT|DELETE) (/v1/[^\s`?]*)", page.read_text())
                assert {(method, _shape(path)) for method, path in found} <= known


def test_commands_and_their_options_exist() -> None:
    with every_row() as row:
        for page in PAGES:
            for command in _sage_commands(page.read_text()):
                with row(page.name, command):
                    check_command(command)


@pytest.mark.parametrize("folder", ["app", "trainer"])
def test_commands_that_messages_and_docstrings_name_exist(folder: str) -> None:
    named = [each for path in (REPOSITORY / folder).rglob("*.py") for each in _in_code(path.read_text())]
    assert len(named) > 5
    for command in named:
        check_command(command)


def check_command(text: str) -> None:
    words = shlex.split(text)
    command: click.Command | None = main
    context = click.Context(main)
    while isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
        command, words = command.get_command(context, words[1]), words[1:]
        assert command is not None, text
    if isinstance(command, ListingGroup):
        command = command.get_command(context, "list")
    assert command is not None
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, text


def _shape(path: str) -> str:
    """
    >>> _shape("/v1/tasks/{task_id}/events"), _shape("/v1/tasks/{id}/events")
    ('/v1/tasks/{}/events', '/v1/tasks/{}/events')
    """
    return re.sub(r"\{\w+\}", "{}", path)


def _in_code(text: str) -> list[str]:
    """Those in backquotes.

    >>> _in_code('"set it: `sage models list`"; x = f"`sage up {name}`"')
    ['sage models list', 'sage up {name}']
    """
    return re.findall(r"`(sage [a-z][^`\n]*)`", text)


def _sage_commands(text: str) -> list[str]:
    typed = [line for block in blocks(text, "sh") for line in block.splitlines()]
    typed += [command.text for command in commands(text)] + re.findall(r"`(sage [a-z][^`]*)`", text)
    return [re.sub(r"\s#.*", "", each) for each in typed if each.startswith("sage ")]
