"""README and tutorial do what they say: every command of theirs is run against a real `sage up`."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.page_commands import ANYTHING, Shell, blocks, commands, matches
from tests.processes import free_ports
from tests.test_up import Up, running

REPOSITORY = Path(__file__).parents[1]
README, TUTORIAL = REPOSITORY / "README.md", REPOSITORY / "app/manual/tutorial.md"
NOT_RUN = """\
SAGE_MODEL=/models/Qwen3-8B make serve
ENGINE_URLS=http://gpu1:8000,http://gpu2:8000 SAGE_MODEL=/models/Qwen3-8B make serve
"""  # they need a model of 16 GB, and GPUs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda path: path.name)
async def test_every_command_of_a_page_does_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    env, found = settings(tmp_path), commands(page.read_text())  # noqa: ASYNC240 - a small file, before all else
    async with running(env, tmp_path) as up:
        reader = Reader(up, env, tmp_path)
        with Shell(tmp_path, reader.env) as shell:
            for command in found:
                output = reader.follow(command.text, shell)
                assert matches(reader.as_on_page(output), command.output or ANYTHING), f"{command.text}\n{output}"


async def test_readme_shows_the_turns_and_the_figures_of_its_two_tasks(tmp_path: Path) -> None:
    text = README.read_text()
    scenario = "archive the mails of a sender"
    env = settings(tmp_path)
    async with running(env, tmp_path) as up:
        headers = {"Authorization": f"Bearer {up.line('export KEY=').removeprefix('export KEY=')}"}
        url = f"http://127.0.0.1:{env['SAGE_PORT']}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            shown = []
            for instruction in ("archive every one of my mails from iris", "please archive the mails from omar"):
                assert instruction in text
                body = {"project": "demo", "scenario": scenario, "instruction": instruction}
                task = (await client.post("/v1/tasks", json=body)).json()["links"]
                await client.get(task["events"])  # ends with the task
                shown.append((await client.get(task["self"])).json())
                turns = (await client.get(task["trajectory"])).json()["turns"]
                assert any(f"```python\n{code}" in text for code in map(_code, turns) if "result" in code)
    for name, task in zip(("first", "second"), shown, strict=True):
        skills = [str(len(task["skills"][each])) for each in ("offered", "used", "written")]
        row = f"| {name} task | {task['turns']} | {task['generated_tokens']} | {' / '.join(skills)} |"
        assert row in text


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda path: path.name)
def test_only_what_needs_other_machines_is_not_run(page: Path) -> None:
    text = page.read_text()
    assert "".join(blocks(text, "sh")) == (NOT_RUN if page == README else "")
    assert not blocks(text, "bash") + blocks(text, "shell") + blocks(text, "")


def test_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 900


def settings(directory: Path) -> dict[str, str]:
    port, engine, demo = free_ports(3)
    return {
        **os.environ,
        "DATABASE_URL": "",
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
        self._filled = {"KEY": up.line("export KEY=").removeprefix("export KEY=")}
        commands_of_venv = Path(sys.executable).parent
        self.env = {**env, "PATH": f"{commands_of_venv}:{env['PATH']}", "no_proxy": "*", "COLUMNS": "200"}
        self._directory = directory

    def follow(self, command: str, shell: Shell) -> str:
        """The command's output. Fails where the shell does."""
        if command == "make serve":
            return self._served()
        for port, here in self._ports.items():
            command = command.replace(f"localhost:{port}", f"localhost:{here}")
        if ANYTHING in command:
            command = self._fill(command)
        output, status = shell.run(command)
        assert status == 0, f"{command}\n{output}"
        found = re.match(r'\{"id":"([^"]+)"', output)
        if found:
            self._filled["ID"] = found[1]
        return output

    def as_on_page(self, output: str) -> str:
        for port, here in self._ports.items():
            output = output.replace(f":{here}", f":{port}")
        return output

    def _served(self) -> str:
        """`sage up` runs already, on free ports: that make would start it is looked up."""
        recipe = subprocess.run(
            ["make", "-n", "serve"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout
        assert recipe.strip().endswith(".venv/bin/sage up")
        return "\n".join(self._up.lines)

    def _fill(self, command: str) -> str:
        """`ID=…` is the id of the last answer, `KEY=sage_…` the key that was printed."""
        start, name = re.match(r"((?:export )?(\w+)=)", command).groups()  # type: ignore[union-attr]
        return f"{start}{self._filled[name]}"


def _code(turn: Mapping[str, str]) -> str:
    return turn["text"].split("```python\n")[1].split("```")[0]
