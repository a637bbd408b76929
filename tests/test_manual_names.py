"""What the pages name exists: settings, endpoints, commands and their options."""

import re
import shlex
from pathlib import Path

import click
import pytest

from app.cli import main
from app.manual.site.manual_pages import DIRECTORY
from app.run_settings import RunSettings
from app.setting_variables import variable_of
from app.settings import Settings
from tests.page_commands import blocks, commands
from tests.rest_reference import openapi_document

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", *sorted(DIRECTORY.glob("*.md"))]

_OTHERS = {"SAGE_URL", "SAGE_KEY", "SAGE_CHAOS_EVENTS", "SAGE_CHAOS_SEED"}  # of commands and tests

pytestmark = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))


def test_settings_exist(page: Path) -> None:
    known = {variable_of(name) for name in Settings.__struct_fields__} | _OTHERS
    assert set(re.findall(r"\bSAGE_[A-Z_]+\b", page.read_text())) <= known


def test_settings_of_runs_exist(page: Path) -> None:
    ours = "\n".join(line for line in page.read_text().splitlines() if "helm " not in line)
    assert set(re.findall(r"--set ([a-z_]+)=", ours)) <= set(RunSettings.__struct_fields__)


def test_endpoints_exist(page: Path) -> None:
    paths = openapi_document()["paths"]
    known = {(method.upper(), _shape(path)) for path, methods in paths.items() for method in methods}
    found = re.findall(r"\b(GET|POST|PUT|DELETE) (/v1/[^\s`?]*)", page.read_text())
    assert {(method, _shape(path)) for method, path in found} <= known


def test_commands_and_their_options_exist(page: Path) -> None:
    for words in map(shlex.split, _sage_commands(page.read_text())):
        context = click.Context(main)
        command = main.get_command(context, words[1])
        assert command is not None, words
        while isinstance(command, click.Group) and len(words) > 2 and command.get_command(context, words[2]):
            command, words = command.get_command(context, words[2]), words[1:]
        assert command is not None
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, words


def _shape(path: str) -> str:
    """
    >>> _shape("/v1/tasks/{task_id}/events"), _shape("/v1/tasks/{id}/events")
    ('/v1/tasks/{}/events', '/v1/tasks/{}/events')
    """
    return re.sub(r"\{\w+\}", "{}", path)


def _sage_commands(text: str) -> list[str]:
    typed = [line for block in blocks(text, "sh") for line in block.splitlines()]
    typed += [command.text for command in commands(text)] + re.findall(r"`(sage [a-z][^`]*)`", text)
    return [re.sub(r"\s#.*", "", each) for each in typed if each.startswith("sage ")]
