"""`sage apis add`, `connect`, `credentials` and `disconnect` give an API every kind of credentials."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.apis.calls.network import open_client
from app.apis.credentials.commands import OPEN_FIELDS, SECRET_FIELDS
from app.apis.credentials.credential import SECRETS, Credential
from app.cli import main
from app.db.database import Sessions
from tests.support.api_app import open_api_app
from tests.support.http_server import served
from tests.support.protected_server import ProtectedServer
from tests.support.sage_command import SageCommand
from tests.support.secured_service import CLIENT, KEY, PASSWORD, SECRET, SecuredService
from tests.support.terminal_dialog import dialog as typed

SECRETS_OF_USER = {"KEY_OF_VAULT": KEY, "PASSWORD": PASSWORD, "CLIENT_SECRET": SECRET}
VISIT = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"


@pytest.fixture
async def shell(committed: Sessions, database_url: str) -> AsyncIterator[SageCommand]:
    async with (
        open_client(allow_private_hosts=True) as services,
        open_api_app(committed, database_url, http_client=services) as api,
        served(api) as client,
    ):
        api.reached_at(str(client.base_url))
        yield SageCommand(api, str(client.base_url))


@pytest.fixture
async def service() -> AsyncIterator[SecuredService]:
    opened = SecuredService()
    async with opened.listening():
        yield opened


@pytest.fixture
def document(service: SecuredService, tmp_path: Path) -> str:
    file = tmp_path / "vault.json"
    file.write_text(json.dumps(service.document()))
    return str(file)


async def works(shell: SageCommand, way: str) -> bool:
    """Whether a call with the credentials of one scheme is answered."""
    answer = await shell.api.client.post("/v1/apis/vault/test", json={"operation": f"who_{way}"})
    return bool(answer.json()["ok"])


async def address_of(process: asyncio.subprocess.Process) -> str:
    """The address that a command shows on standard error."""
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode().strip():
        if line.startswith("http"):
            return line
    raise AssertionError("no address was shown")


async def test_an_api_is_added_with_credentials_of_every_kind(
    shell: SageCommand, document: str, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    given = (
        "header_key.value=env:KEY_OF_VAULT",
        f"query_key.value=file:{tmp_path}/key",
        "basic.username=iris",
        "basic.password=env:PASSWORD",
        "token.value=env:KEY_OF_VAULT",
        f"client.client_id={CLIENT}",
        "client.client_secret=env:CLIENT_SECRET",
        "client.scopes=mail.read,mail.write",
        "login.username=iris",
        "login.password=env:PASSWORD",
    )
    options = [part for each in given for part in ("--credential", each)]
    added = await shell.run("apis add", "vault", document, *options, **SECRETS_OF_USER)
    assert added.code == 0, added.err
    assert not any(secret in added.out + added.err for secret in (KEY, PASSWORD, SECRET))
    for way in ("header_key", "query_key", "basic", "token", "client", "login"):
        assert await works(shell, way), way
    listed = json.loads((await shell.run("apis credentials", "vault", "--json")).out)
    assert {each["scheme"] for each in listed} == {each.partition(".")[0] for each in given}
    gone = await shell.run("apis disconnect", "vault", "basic")
    assert (gone.code, gone.out) == (0, "deleted the credentials basic of vault\n")
    assert not await works(shell, "basic")
    assert (await shell.run("apis disconnect", "vault", "basic")).code == 6


async def test_what_is_missing_is_shown_with_the_command_that_gives_it(shell: SageCommand, document: str) -> None:
    added = await shell.run("apis add", "vault", document, "--project", "demo")
    assert added.code == 0, added.err
    assert "header_key (api_key) is missing: from your profile\n" in added.err
    commands = [line.strip() for line in added.err.splitlines() if line.startswith("    sage ")]
    assert "sage apis connect vault basic username=USERNAME password=env:PASSWORD --project demo" in commands
    for way, filled in (("cookie_key", {"VALUE": KEY}), ("login", {"PASSWORD": PASSWORD})):
        command = next(each for each in commands if f" {way} " in each)
        _, *words = shlex.split(command.replace("USERNAME", "iris"))
        stored = await shell.run(" ".join(words[:2]), *words[2:], **filled)
        assert (stored.code, stored.out) == (0, f"stored the credentials {way} of vault\n"), stored.err
        assert await works(shell, way)
    shown = await shell.run("apis show", "vault")
    assert "cookie_key (api_key)" not in shown.err
    assert re.search(r"credentials cookie_key +ready\n", shown.out)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("connect", "vault", "header_key", f"value={KEY}"), "a secret is no argument"),
        (("add", "vault", "x.json", "--token", KEY), "a secret is no argument"),
        (("add", "vault", "-", "--credential", f"header_key.value={KEY}"), "a secret is no argument"),
        (("add", "vault", "-", "--credential", "value=env:KEY"), "'value' names no scheme"),
        (("connect", "vault", "header_key", "key=env:KEY"), "'key' is no field: write one of value, password"),
        (("connect", "vault", "header_key", "value=file:/none"), "'/none' cannot be read"),
        (("connect", "vault", "header_key", "value=prompt"), "value cannot be asked for without a terminal"),
        (("add", "vault"), "give either a document or --mcp"),
        (("add", "vault", "x.json", "--mcp", "https://mcp.test"), "give either a document or --mcp"),
    ],
)
def test_a_secret_in_an_argument_is_refused_before_anything_is_sent(
    arguments: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text("{}")
    env = {"SAGE_KEY": "x", "SAGE_URL": "http://127.0.0.1:9"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ended = CliRunner().invoke(main, ["apis", *arguments], input="{}", env=env)
    assert (ended.exit_code, reason in " ".join(ended.output.split())) == (2, True), ended.output
    assert KEY not in ended.output


async def test_which_scheme_is_meant_has_to_be_clear_and_a_token_may_serve_all(
    shell: SageCommand, document: str
) -> None:
    await shell.run("apis add", "vault", document)
    unclear = await shell.run("apis connect", "vault", "value=env:VALUE", VALUE=KEY)
    assert (unclear.code, "name the scheme: basic, bearer, client" in unclear.err) == (2, True)
    without = await shell.run("apis connect", "vault", "basic")
    assert without.code == 2
    assert "sage apis connect vault basic username=USERNAME password=env:PASSWORD" in without.err
    wrong = await shell.run("apis connect", "vault", "basic", "username=iris")
    assert (wrong.code, "basic needs `password`" in wrong.err) == (6, True)
    own = ("own", "place=header", "name=X-Api-Key", "value=env:VALUE")
    assert (await shell.run("apis connect", "vault", *own, VALUE=KEY)).code == 0
    assert await works(shell, "header_key")
    token = await shell.run("apis connect", "vault", "bearer_token", "value=env:VALUE", VALUE=KEY)
    assert (token.code, await works(shell, "bearer")) == (0, True), token.err
    assert (await shell.run("apis disconnect", "vault", "bearer_token")).code == 0
    assert not await works(shell, "bearer")


async def test_a_command_waits_until_a_person_has_consented(
    shell: SageCommand, service: SecuredService, document: str
) -> None:
    given = (
        "--credential",
        f"person.client_id={CLIENT}",
        "--credential",
        "person.client_secret=env:CLIENT_SECRET",
    )
    added = await shell.run("apis add", "vault", document, *given, **SECRETS_OF_USER)
    assert "person (oauth2) waits for a person's consent\n    sage apis connect vault person\n" in added.err
    for again in (False, True):
        process = await shell.start("apis connect", "vault", "person", "--json")
        back = service.consent(await address_of(process))
        assert process.returncode is None
        await shell.api.client.get(back.pop("callback"), params=back, headers={"Authorization": ""})
        ended = await shell.ended(process)
        assert ended.code == 0, ended.err
        assert (json.loads(ended.out)["state"], await works(shell, "person")) == ("ready", True), again
    process = await shell.start("apis connect", "vault", "person", "--principal", "noa")
    back = service.consent(await address_of(process))
    refusal = {"state": back["state"], "error": "access_denied"}
    await shell.api.client.get(back["callback"], params=refusal, headers={"Authorization": ""})
    ended = await shell.ended(process)
    assert ended.code == 1
    assert ended.err == "Error: not connected: the authorization server refused: access_denied\n"
    assert await works(shell, "person"), "the connection of all tasks is as it was"


async def test_an_mcp_server_is_added_and_connected_by_a_browser(shell: SageCommand) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        added = await shell.run("apis add", "notes", "--mcp", url)
        assert (added.code, "    sage apis connect notes oauth\n" in added.err) == (0, True), added.err
        printed = await shell.run("apis connect", "notes", "--no-wait")
        assert printed.out.startswith(url.removesuffix("/mcp") + "/authorize?"), printed.err
        browser = f"{sys.executable} -c {shlex.quote(VISIT)} %s"
        connected = await shell.run("apis connect", "notes", "--browser", BROWSER=browser)
        assert (connected.code, connected.out) == (0, "notes is connected by oauth\n"), connected.err
        assert len(server.consents.access) == 1


@pytest.mark.parametrize(
    ("command", "dialog", "way"),
    [
        ("connect vault login", {"number: ": "1", "username: ": "iris", "password: ": PASSWORD}, "login"),
        ("add vault DOCUMENT --token prompt", {"token: ": KEY}, "bearer"),
    ],
)
async def test_a_terminal_is_asked_and_does_not_show_the_secret(
    shell: SageCommand, document: str, command: str, dialog: dict[str, str], way: str
) -> None:
    await shell.run("apis add", "vault", document)
    words = ["apis", *command.replace("DOCUMENT", document).split()]
    code, seen = await typed(shell, words, dialog)
    assert code == 0, seen
    assert not any(secret in seen for secret in (PASSWORD, KEY))
    assert await works(shell, way)


def test_the_commands_know_all_fields_and_secrets() -> None:
    fields = {each.name for each in msgspec.structs.fields(Credential)}
    assert set(SECRET_FIELDS) == set(SECRETS)
    assert {*SECRET_FIELDS, *OPEN_FIELDS} == fields
