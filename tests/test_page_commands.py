"""README and tutorial do what they say: every command of theirs is run against a real `sage up`."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from app.base.model_catalog import DEFAULT_MODEL, SEED
from tests.machine.test_up import Up, client_of, running
from tests.support.page_commands import ANYTHING, Shell, blocks, commands, matches
from tests.support.processes import free_ports

REPOSITORY = Path(__file__).parents[1]
README, TUTORIAL = REPOSITORY / "README.md", REPOSITORY / "app/manual/tutorial.md"
COMMAND_LINE = REPOSITORY / "app/manual/interfaces.md"
SERVE = ("make serve", f"SAGE_MODEL={SEED} make serve")
NOT_RUN = """\
pip install "tiled[server]" && tiled serve demo --port 9100    # it prints an API key
export TILED_KEY="Apikey ..."
sage projects create lab
sage apis add tiled http://localhost:9100/openapi.json --project lab --credential Apikey.value=env:TILED_KEY
sage run "How many entries does the root node have?" --project lab
sage score ID solved    # the id that `sage run` printed
sage models add wise --endpoint https://api.example.com/v1 --model wise-1 --key-env WISE_KEY --project lab
sage releases --hosted wise --activate --project lab
SAGE_MODEL_URL=http://localhost:11434 SAGE_MODEL=qwen3:8b make serve
export SAGE_DATA_DIR=qwen3-data SAGE_MODEL=/models/Qwen3-8B
make serve
ENGINE_URLS=http://gpu1:8000,http://gpu2:8000 make serve
"""  # they need a network, other servers, a model of 16 GB, and GPUs
SECOND = "please archive the mails from omar"

pytestmark = pytest.mark.slow


async def test_readme_does_and_shows_what_happens(tmp_path: Path) -> None:
    text, env = README.read_text(), settings(tmp_path, DEFAULT_MODEL)
    async with running(env, tmp_path) as up:
        follow(text, Reader(up, env, tmp_path))
        async with client_of(env, up.key()) as client:
            (first,) = (await client.get("/v1/tasks?project=demo")).json()["tasks"]
            await check_shown(text, "first", f"/v1/tasks/{first['id']}", client)
            assert SECOND in text
            body = {"project": "demo", "scenario": first["scenario"], "instruction": SECOND}
            second = (await client.post("/v1/tasks", json=body)).json()
            await check_shown(text, "second", f"/v1/tasks/{second['id']}", client)


async def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    text, env = TUTORIAL.read_text(), settings(tmp_path, SEED)
    async with running(env, tmp_path) as up:
        follow(text, Reader(up, env, tmp_path))


async def test_the_page_of_the_command_line_does_what_it_shows(tmp_path: Path) -> None:
    text, env = COMMAND_LINE.read_text(), settings(tmp_path, SEED)
    async with running(env, tmp_path) as up:
        follow(text, Reader(up, env, tmp_path))


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda path: path.name)
def test_only_what_needs_other_machines_is_not_run(page: Path) -> None:
    text = page.read_text()
    assert "".join(blocks(text, "sh")) == (NOT_RUN if page == README else "")
    assert not blocks(text, "bash") + blocks(text, "shell") + blocks(text, "")


def follow(page: str, reader: "Reader") -> None:
    with Shell(reader.directory, reader.env) as shell:
        for command in commands(page):
            output = reader.follow(command.text, shell)
            assert matches(output, command.output or ANYTHING), f"{command.text}\n{output}"


async def check_shown(page: str, name: str, path: str, client: httpx.AsyncClient) -> None:
    """The page has the code that the task ran, and its figures."""
    await client.get(f"{path}/events")  # ends with the task
    task = (await client.get(path)).json()
    turns = (await client.get(f"{path}/trajectory")).json()["turns"]
    code = [turn["text"].split("```python\n")[1].split("```")[0] for turn in turns]
    assert any(f"```python\n{each}```" in page for each in code if "print(result)" in each)
    skills = " / ".join(str(len(task["skills"][each])) for each in ("offered", "used", "written"))
    assert f"| {name} task | {task['turns']} | {task['generated_tokens']} | {skills} |" in page


def settings(directory: Path, model: str) -> dict[str, str]:
    port, engine, demo = free_ports(3)
    return {
        **os.environ,
        "DATABASE_URL": "",
        "SAGE_MODEL": model,
        "SAGE_DATA_DIR": str(directory / "data"),
        "SAGE_PORT": str(port),
        "SAGE_ENGINE_PORT": str(engine),
        "SAGE_ENGINE_DEVICE": "cpu",
        "SAGE_DEMO_PORT": str(demo),
    }


class Reader:
    """Someone who follows a page, with the ports of this server instead of the usual ones."""

    def __init__(self, up: Up, env: Mapping[str, str], directory: Path) -> None:
        self._up = up
        self._ports = {"8000": env["SAGE_PORT"], "8100": env["SAGE_DEMO_PORT"]}
        self._filled: dict[str, str] = {}
        commands_of_venv = Path(sys.executable).parent
        self.env = {**env, "PATH": f"{commands_of_venv}:{env['PATH']}", "no_proxy": "*", "COLUMNS": "200"}
        self.directory = directory

    def follow(self, command: str, shell: Shell) -> str:
        """The command's output, with the usual ports. Fails where the shell does."""
        if command in SERVE:
            return self._as_on_page(self._served())
        for port, here in self._ports.items():
            command = command.replace(f"localhost:{port}", f"localhost:{here}")
        if ANYTHING in command:
            command = self._fill(command)
        output, status = shell.run(command)
        assert status == 0, f"{command}\n{output}"
        found = re.match(r'\{"id":"([^"]+)"', output)
        if found:
            self._filled["ID"] = found[1]
        return self._as_on_page(output)

    def _as_on_page(self, output: str) -> str:
        for port, here in self._ports.items():
            output = output.replace(f":{here}", f":{port}")
        return output

    def _served(self) -> str:
        """`sage up` runs already, on free ports: that make would start it is looked up."""
        recipe = subprocess.run(
            ["make", "--no-print-directory", "-n", "serve"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert recipe.strip().endswith(".venv/bin/sage up")
        return "\n".join(self._up.lines)

    def _fill(self, command: str) -> str:
        """`ID=…` is the id of the last answer."""
        start, name = re.match(r"((?:export )?(\w+)=)", command).groups()  # type: ignore[union-attr]
        return f"{start}{self._filled[name]}"
