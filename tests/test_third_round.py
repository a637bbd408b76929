"""Third round of attacks: other spellings, routes and orders of effects that were closed before."""

import codecs
import gzip
import io
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select

from app.apis.approvals.gate import shown_call
from app.apis.calls.gateway import Gateway
from app.apis.calls.network import PublicNetwork, open_client
from app.apis.calls.skill_guard import PARAMETER, refusal
from app.apis.catalog import Catalog
from app.apis.credentials.credential import FixedCredentials, bearer
from app.apis.documents.protocols import parse_document
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import McpServers
from app.apis.mcp.listing import fetch_listing
from app.base.errors import AdapterError, GgufError, HostError, InvalidError, public_text
from app.base.secrets import SecretValues
from app.base.text import visible, visible_value
from app.base.values import Stop
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, SkillState
from app.machine.backup import unpack_rows
from app.machine.gguf import convert
from app.projects import audit, keys
from app.skills import admission
from app.skills.checks import name_objection
from app.tasks import feedback
from tests.apis.calls.test_redirected_calls import CHANGES, calls, moved
from tests.apis.calls.test_second_round_manifest import _ALLOWED, _seen
from tests.apis.calls.test_skill_guard import Sender, operation
from tests.machine.test_convert_gguf import ORIGIN
from tests.machine.test_refused_gguf import ARRAY, head
from tests.support.every_row import every_row
from tests.support.listening_app import listening_app
from tests.support.notebook_server import Notebook
from tests.support.raw_server import http_answer
from tests.support.recording_server import recording_server
from tests.support.rows import project_row, turn_of
from tests.support.skill_project import SkillProject
from tests.support.tiny_gguf import write_gguf
from tests.support.trajectory_samples import trajectory
from trainer.hosted import judge_messages

# Redirected changes

SIGN_IN = "<!doctype html><title>Sign in</title>"
HTML = "Content-Type: text/html"
PAGES: dict[str, bytes] = {
    "after blanks": http_answer(b" \r\n" * 1_000 + SIGN_IN.encode(), HTML),
    "after a comment": http_answer(b"<!-- saved --><html>Sign in</html>"),
    "after comments and blanks": http_answer(b"<!-- a -->\n<!-- b -->\n<!DOCTYPE  HTML>"),
    "after an XML declaration": http_answer(
        b'<?xml version="1.0"?><!DOCTYPE html><html/>', "Content-Type: text/xml"
    ),
    "after NUL": http_answer(b"\0<html>", HTML),
    "after a zero-width space": http_answer("\u200b<html>".encode(), HTML),
    "after two marks": http_answer(
        codecs.BOM_UTF8 * 2 + SIGN_IN.encode(), "Content-Type: application/octet-stream"
    ),
    "UTF-16 with a mark": http_answer(SIGN_IN.encode("utf-16"), f"{HTML}; charset=utf-16"),
    "UTF-16 without its name": http_answer(SIGN_IN.encode("utf-16")),
    "UTF-16 by its name": http_answer(SIGN_IN.encode("utf-16-be"), f"{HTML}; charset=utf-16be"),
    "a head alone": http_answer(b"<head><title>Sign in</title></head>", "Content-Type: text/plain"),
    "words before its form": http_answer(b"Sign in: <form action=/login>", HTML),
    "status 203": http_answer(SIGN_IN.encode(), HTML, status="203 Elsewhere"),
    "status 205": http_answer(SIGN_IN.encode(), HTML, status="205 Elsewhere"),
}
ELSEWHERE: dict[str, bytes] = {
    "300": moved(300, "/login"),
    "a tab": moved(308, "/it\tems/"),
    "a control character": moved(302, "/it\x01ems"),
    "a port that is none": moved(307, "http://127.0.0.1:99999999/items"),
    "another slash": moved(307, "/items//"),
    "an encoded slash": moved(308, "/items%2F"),
    "a parameter of the path": moved(307, "/items;/"),
    "two addresses": moved(302, "/items", b"", "Location: /login"),
    "with JSON": moved(303, "/login", b'[{"id": 7}]', "Content-Type: application/json"),
    "another query": moved(308, "/items/?name=pen"),
    "backslashes": moved(307, "\\\\evil.test\\items/"),
    "a script": moved(302, "javascript:alert(1)"),
    "Refresh": http_answer(b"", "Refresh: 0; url=/login"),
    "Refresh with JSON": http_answer(b"{}", "Refresh: 5;URL='/login'", "Content-Type: application/json"),
}


async def test_no_change_is_done_that_ends_elsewhere() -> None:
    with every_row() as row:
        for name, answer in (PAGES | ELSEWHERE).items():
            for method in CHANGES:
                async with calls({f"{method} /items": answer}) as to:
                    with row(name, method):
                        assert f"whether this {method} has changed anything is not known" in await to.refusal(
                            method
                        )
                        assert to.gateway.in_doubt
                        assert len(to.server.received) == 1
    for html in (b"done", b"3 < 4", b'{"note": "<b>bold</b>"}', b'["<p>"]'):
        async with calls({"POST /items": http_answer(html, HTML)}) as to:
            assert await to.call("POST") == html.decode(), "no page, though it is called one"
    async with calls({"GET /items": http_answer(b"{}", "Refresh: 5; url=/items")}) as to:
        assert await to.call("GET") == "{}"


class McpMoved:
    """A notebook whose calls are redirected. `seen` are the paths of its requests."""

    def __init__(self, status: int, location: str) -> None:
        self.notebook = Notebook()
        self.status, self.location = status, location
        self.moves = False
        self.seen: list[str] = []

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[Gateway]:
        application = self.notebook.server.streamable_http_app()

        async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            if not (self.moves and scope["type"] == "http"):
                return await application(scope, receive, send)
            self.seen.append(scope["path"])
            headers = [(b"location", self.location.encode())]
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        async with (
            listening_app(app, timeout_graceful_shutdown=0) as url,
            open_client(allow_private_hosts=True) as client,
            McpServers(client, {}, None) as servers,
        ):
            listing = msgspec.json.decode(await fetch_listing(servers, f"{url}/mcp", None))
            catalog = Catalog({"notes": parse_document("notes", listing)})
            callers = mcp_callers(servers, UUID(int=1), "iris", 30)
            yield Gateway(
                catalog, client, callers=callers, credentials=FixedCredentials(bearer("tok-of-the-owner"))
            )


async def test_a_tool_call_that_is_redirected_is_in_doubt_and_goes_nowhere_else() -> None:
    async with recording_server() as evil:
        with every_row() as row:
            for status in (301, 302, 303, 307, 308):
                for location in ("/other", f"{evil.url}/mcp", "/mcp/other", "/mcp?tool=erase"):
                    moving = McpMoved(status, location)
                    async with moving.gateway() as gateway:
                        with row(status, location):
                            await gateway("notes.write", ["first"], {})
                            moving.moves = True
                            with pytest.raises(HostError, match="has changed anything is not known"):
                                await gateway("notes.write", ["hello"], {})
                            assert gateway.in_doubt
                            assert moving.seen == ["/mcp"]
                            assert evil.received == []


# A skill that passes a secret on

SECRET = "hunter2-and-more"
_BITS = [each == "1" for byte in SECRET.encode() for each in f"{byte:08b}"]


def _spelled(zero: str, one: str) -> list[str]:
    return [one if bit else zero for bit in _BITS]


def _cased(word: str) -> str:
    letters = (word * len(_BITS))[: len(_BITS)]
    odd = "".join(letter.upper() if bit else letter for letter, bit in zip(letters, _BITS, strict=True))
    return " ".join(odd[at : at + len(word)] for at in range(0, len(odd), len(word)))


FORMS: dict[str, Any] = {
    "as many empty texts as a code": [""] * 104,
    "empty texts in a mapping": dict.fromkeys(("iris", "hello", "how", "are", "you", "see", "a/b", "1", "2"), ""),
    "blanks in a list": _spelled(" ", "\t"),
    "blanks by their number": _spelled(" ", "  "),
    "kinds of blanks": _spelled("\u2002", "\u2003"),
    "blanks after the parameter": _spelled("iris", "iris "),
    "blanks before the parameter": _spelled("iris", "\u00a0iris"),
    "blanks between parameters": "iris".join(_spelled(" ", "\t")),
    "blanks of other kinds between": "iris".join(_spelled(" ", "\u2009")),
    "line ends between": "iris".join(_spelled("\n", "\r\n")),
    "names that are blank": [{" " * (1 + bit): "iris"} for bit in _BITS],
    "letters in upper case": _cased("iris"),
    "letters in a list": _cased("iris").split(),
    "first letters": " ".join(_spelled("hello", "hEllo")),
    "long s": " ".join(_spelled("iris", "iri\u017f")),
    "the Kelvin sign": "\u212a",
    "zero and minus zero": [-0.0 if bit else 0 for bit in _BITS],
    "numbers as texts": ["7" if bit else 7 for bit in _BITS],
    "full-width digits": ["\uff17" if bit else "7" for bit in _BITS],
    "zeros before a number": ["007" if bit else "07" for bit in _BITS],
    "NaN and Infinity": [float("nan") if bit else float("inf") for bit in _BITS],
    "variation selectors": "iris".join(_spelled("\ufe00", "\ufe01")),
    "tags of a flag": "".join(chr(0xE0061 + byte % 26) for byte in SECRET.encode()),
    "braille": "".join(chr(0x2800 + byte) for byte in SECRET.encode()),
    "code points": [f"U+{ord(each):04X}" for each in SECRET],
}


def test_no_form_of_an_argument_tells_a_secret() -> None:
    with every_row() as row:
        for name, sent in FORMS.items():
            with row(name):
                assert refusal(_ALLOWED, operation("mail.send", "POST"), {"text": sent}, _seen()) is not None


def test_call_after_call_forms_tell_no_more_than_their_budget() -> None:
    ways: dict[str, list[Any]] = {
        "a blank after it": _spelled("iris", "iris "),
        "kinds of blanks": _spelled("iris iris", "iris\u2003iris"),
        "case": _spelled("iris", "IRIS"),
        "empty texts": [["iris", *[""] * (1 + bit)] for bit in _BITS],
        "null": [["iris", *[None] * (1 + bit)] for bit in _BITS],
        "empty lists": [["iris", [] if bit else {}] for bit in _BITS],
    }
    with every_row() as row:
        for name, values in ways.items():
            with row(name):
                assert Sender(PARAMETER).passes(values) < 64, "each call tells at least a bit"
    for honest in (["Dear Iris"] * 200, ["IRIS"] * 200, [" iris\n"] * 200, ["iris  iris"] * 200):
        sender = Sender(PARAMETER, "constant", constant="Dear")
        assert sender.passes(honest) == 200, "the form of the last call costs nothing"


# What an approver sees

UNSEEN = {
    "a variation selector after a letter": "pay\ufe0f",
    "after a digit": "pay 1\ufe0f00",
    "twice after a symbol": "\u2764\ufe0f\ufe0f",
    "alone": "\ufe0fpay",
    "braille blank": "a\u2800b",
    "a joiner of hieroglyphs": "a\U00013430b",
    "the Khitan filler": "a\U00016fe4b",
    "a null notehead": "a\U0001d159b",
    "a Syriac abbreviation": "a\u070fb",
    "a Hangul filler": "a\u115fb",
    "an inherent vowel": "a\u17b4b",
    "a grapheme joiner": "a\u034fb",
    "an invisible plus": "a\u2064b",
    "a shorthand control": "a\U0001bca2b",
    "a musical control": "a\U0001d176b",
    "an annotation": "a\ufffab",
    "a selector of the supplement": "a\U000e0101b",
    "a language tag": "a\U000e0001b",
    "a line separator": "a\u2028b",
    "a deprecated control": "a\u206ab",
    "NEL": "a\x85b",
    "a backspace": "100\x08\x08\x08999",
    "a return over the line": "pay 1\rpay 9",
    "an OSC of a terminal": "\x9d8;;http://evil.test\x9c",
}


def test_nothing_that_cannot_be_seen_stays_in_what_an_approver_reads() -> None:
    with every_row() as row:
        for name, text in UNSEEN.items():
            with row(name):
                assert "\\" in visible(text)
                [key] = visible_value({text: 1})
                assert key == visible(text), "names of arguments, too"
    for honest in ("❤️ ☎️ ⚠️", "naïve façade", "مرحبا", "10\u202f000 €", "日本語　テキスト"):
        assert visible(honest) == honest


def test_answers_hide_no_argument_however_they_call_it_a_secret() -> None:
    iban = "DE89-3704-0044"
    ways: dict[str, Any] = {
        "by name": {"password": iban},
        "in camel case": {"accessToken": iban},
        "as a list": {"api_keys": [iban]},
        "deep": [[{"x": {"client_secret": {"y": iban}}}]],
        "in reverse": {"token": iban[::-1]},
        "a part of it": {"secret": iban[:9]},
        "in pieces": {"token": list(iban), "secret": iban[5:]},
        "with what surrounds it": {"password": f"pay {iban} now"},
        "as a number": {"pin": 37040044},
    }
    with every_row() as row:
        for name, answer in ways.items():
            with row(name):
                secrets = SecretValues()
                secrets.add("tok-of-the-project")
                secrets.note("bank.list", {}, answer)
                secrets.note("bank.show_tokens", {}, answer)
                shown = shown_call({"text": f"pay {iban} now", "to": [iban]}, secrets)
                assert shown.arguments == {"text": f"pay {iban} now", "to": [iban]}


LOOKALIKES = {
    "Cyrillic alone": "\u0440\u0430\u0443",
    "Cyrillic scope": "\u0455\u0441\u043e\u0440\u0435",
    "Cyrillic and digits": "\u0440\u0430\u0443_2",
    "Cyrillic capitals": "\u0421\u041e\u0420\u0423".replace("\u0423", "\u04ae"),
    "Greek omicron": "\u03bf",
    "Greek capitals": "\u039c\u0391\u0399\u039a",
    "script a": "\u0251dd",
    "script g": "\u0261et",
    "Armenian in Latin": "s\u0585rt",
    "Cherokee": "\u13da\u13ac_ND",
    "Lisu": "\ua4d0_dd",
    "Coptic": "\u2c9fpen",
    "a combining dot": "se\u0307nd",
    "a letter-like symbol": "\u212fdit",
    "a ligature": "\ufb02ush",
    "a Roman numeral": "send\u217c",
    "a filler": "send_\u3164",
}


def test_no_skill_has_a_name_that_looks_like_another() -> None:
    with every_row() as row:
        for about, name in LOOKALIKES.items():
            with row(about):
                assert name_objection(name) is not None
        for name in ("нет", "сортировать", "größe", "λίστα", "ΛΙΣΤΑ", "メール", "añadir"):
            with row(name):
                assert name_objection(name) is None


# Skills by one key

OWN, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
async def project(session: Any) -> SkillProject:
    return SkillProject(session, (await project_row(session)).id)


Order = Callable[[SkillProject, tables.Skill], Awaitable[None]]


async def _twice(project: SkillProject, skill: tables.Skill) -> None:
    for score in (0.0, 1.0, 1.0):
        await feedback.add(project.session, _maker(skill), score, scored_by=OWN)
    for who in ("bob", "eve", "kim"):
        await project.use(skill, who, scored_by=OWN)


async def _after_another(project: SkillProject, skill: tables.Skill) -> None:
    """Its good scores replace bad ones of another key."""
    await feedback.add(project.session, _maker(skill), 0.0, scored_by=OTHER)
    await feedback.add(project.session, _maker(skill), 1.0, scored_by=OWN)
    for who in ("bob", "eve", "kim", "joe"):
        await project.use(skill, who, scored_by=OWN)


async def _over_checks(project: SkillProject, skill: tables.Skill) -> None:
    """Its good scores replace bad ones of checks."""
    await feedback.add(project.session, _maker(skill), 1.0, scored_by=OWN)
    for who in ("bob", "eve", "kim", "joe"):
        await project.use(skill, who, check=0.0, scored_by=OWN)


async def _in_its_own_name(project: SkillProject, skill: tables.Skill) -> None:
    for _ in range(6):
        await project.use(skill, skill.principal, scored_by=OWN)


async def _without_replays(project: SkillProject, skill: tables.Skill) -> None:
    await feedback.add(project.session, _maker(skill), 1.0, scored_by=OTHER)
    for who in ("bob", "eve", "kim", "joe"):
        await project.use(skill, who, replayed=False, scored_by=OTHER)


async def _on_tasks_of_another(project: SkillProject, skill: tables.Skill) -> None:
    """It scores the tasks that another key has submitted."""
    project.key = OTHER
    for who in ("bob", "eve", "kim", "joe"):
        await project.use(skill, who, scored_by=OWN)


async def _among_others(project: SkillProject, skill: tables.Skill) -> None:
    """Its invented principals, scored by another, where others submit tasks."""
    await feedback.add(project.session, _maker(skill), 1.0, scored_by=OTHER)
    project.key = OTHER
    await project.task("zoe")
    project.key = OWN
    for who in ("bob", "eve", "kim", "joe"):
        await project.use(skill, who, scored_by=OTHER)


def _maker(skill: tables.Skill) -> UUID:
    assert skill.task_id is not None
    return skill.task_id


@pytest.mark.parametrize(
    "order",
    [
        _twice,
        _after_another,
        _over_checks,
        _in_its_own_name,
        _without_replays,
        _on_tasks_of_another,
        _among_others,
    ],
    ids=lambda order: order.__name__,
)
async def test_no_order_of_scores_lets_a_key_prove_its_own_skill(project: SkillProject, order: Order) -> None:
    project.key = OWN
    skill = await project.write()
    await order(project, skill)
    await admission.scored(project.session, _maker(skill), 1.0)
    await project.session.refresh(skill)
    assert skill.state is SkillState.PROBATION


# The audit log


async def test_an_admin_key_that_is_made_without_the_server_is_audited(committed: Sessions) -> None:
    async with committed.begin() as session:
        secret = await keys.create_admin(session, "lost-and-found")
    async with committed() as session:
        [entry] = (await audit.page(session, None, limit=5)).items
        key = await session.scalar(select(tables.Key).where(tables.Key.name == "lost-and-found"))
        assert key is not None
        assert (entry.action, entry.actor) == (AuditAction.KEY_CREATED, "server")
        assert entry.detail == {"key": str(key.id), "name": key.name, "prefix": key.hint, "scopes": ["admin"]}
        assert secret not in str(entry.detail)
    assert "create" not in {name for name in keys.create.__code__.co_names if name == "audit"}, (
        "the function itself leaves it to its callers"
    )


# Addresses

LINK_LOCAL = """
64:ff9b:1::a9fe:a9fe 64:ff9b:1:2::a9fe:a9fe ::ffff:0:a9fe:a9fe 2001:0:808:808::5601:5601 fd00::5efe:a9fe:a9fe
2001:db8::200:5efe:a9fe:a9fe 2002:a9fe:aa02::1 ::ffff:169.254.170.2 fe80::a9fe:a9fe fd20:ce::254 fd00:ec2::23
fd00:ec2::253 169.254.170.23 64:ff9b::6464:64c8 ::ffff:168.63.129.16
"""


async def test_other_translations_and_other_clouds_are_closed() -> None:
    with every_row() as row:
        for address in LINK_LOCAL.split():
            with row(address):

                async def resolve(_host: str, _port: int, address: str = address) -> list[str]:
                    return ["9.9.9.9", address]

                network = PublicNetwork(resolve, private=True)
                with pytest.raises(HostError, match="at the link-local address"):
                    await network.connect_tcp("innocent.test", 80)
        for address in ("10.0.0.1", "fd00::1", "192.168.1.1", "8.8.8.8", "::1", "64:ff9b:1::a00:1"):
            with row(address, "open"):

                async def find(_host: str, _port: int, address: str = address) -> list[str]:
                    return [address]

                assert await PublicNetwork(find, private=True)._open_addresses("innocent.test", 80)


# Files

GGUF: list[tuple[str, dict[str, Any]]] = [
    ("NaN", {"qwen2__rope__freq_base": float("nan")}),
    ("infinity", {"qwen2__rope__freq_base": float("inf")}),
    ("a NaN of norms", {"qwen2__attention__layer_norm_rms_epsilon": float("nan")}),
    ("no alignment", {"general__alignment": 0}),
    ("an odd alignment", {"general__alignment": 3}),
    ("an alignment beyond the file", {"general__alignment": 1 << 31}),
    ("another alignment", {"general__alignment": 1}),
    ("no heads", {"qwen2__attention__head_count": 0}),
    ("no width", {"qwen2__embedding_length": 0}),
    ("no layers", {"qwen2__block_count": 0}),
    ("a text of tokens", {"tokenizer__ggml__tokens": "abc"}),
    ("parts", {"split__count": 4_294_967_295}),
]
HEADS: list[tuple[str, bytes]] = [
    ("a version of the other byte order", b"GGUF" + struct.pack(">IQQ", 3, 1 << 40, 1 << 40)),
    ("an unknown kind", head(99, bytes(8))),
    ("an array of an unknown kind", head(ARRAY, struct.pack("<IQ", 99, 1) + bytes(8))),
    ("a key of no text", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe" + struct.pack("<I", 0) + b"\0"),
    ("a long key", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63)),
    ("keys alone", b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 64) - 1)),
    ("version 0", b"GGUF" + struct.pack("<IQQ", 0, 0, 0)),
]


def test_other_numbers_of_a_gguf_file_are_refused_by_name(tmp_path: Path) -> None:
    with every_row() as row:
        for at, (name, values) in enumerate(GGUF):
            with row(name):
                directory = tmp_path / str(at)
                directory.mkdir()
                path = write_gguf(directory / "tiny.gguf", directory / "model", **values)
                with pytest.raises(GgufError):
                    convert(path, directory / "out", ORIGIN, lambda *_: None)
        for at, (name, content) in enumerate(HEADS):
            with row(name):
                path = tmp_path / f"{at}.gguf"
                path.write_bytes(content)
                with pytest.raises(GgufError, match="cannot be read as GGUF"):
                    convert(path, tmp_path / "out", ORIGIN, lambda *_: None)


def _packed() -> Iterator[tuple[str, bytes]]:
    rows = b"1\ta row\n" * 1_000
    yield "zlib", zlib.compress(rows)
    yield "bare deflate", zlib.compress(rows)[2:-4]
    yield "a wrong checksum", gzip.compress(rows)[:-8] + bytes(8)
    yield "without its end", gzip.compress(rows)[:-9]
    yield "a reserved flag", gzip.compress(rows).replace(b"\x1f\x8b\x08\x00", b"\x1f\x8b\x08\xe0", 1)
    yield "zeros after it", gzip.compress(rows) + bytes(512)
    yield "two members", gzip.compress(rows) * 2
    yield "packed twice", gzip.compress(gzip.compress(bytes(300 << 20), 9), 9)[:100]
    yield "nothing", b""
    yield "zeros", gzip.compress(bytes(64 << 20), 9)


def test_rows_of_a_backup_in_other_packings_are_refused() -> None:
    with every_row() as row:
        for name, packed in _packed():
            with row(name), pytest.raises(InvalidError):
                list(unpack_rows(io.BytesIO(packed)))


PATHS = {
    "at the end": "no adapter in /srv/sage/adapters",
    "in brackets": "[/srv/sage/adapters/a]",
    "in quotation marks": "cannot open '/srv/sage/my adapters/b'",
    "after =": "path=/srv/sage/adapters/c",
    "of a file URL": "file:///srv/sage/adapters/d",
    "twice": "/srv/sage/a is not /srv/sage/b",
    "after a colon": "error:/srv/sage/adapters/e",
    "in back quotes": "`/srv/sage/f`",
    "with two slashes": "//srv//sage//g",
}


def test_no_error_names_a_directory_of_the_host() -> None:
    with every_row() as row:
        for name, text in PATHS.items():
            with row(name):
                shown = public_text(AdapterError(text))
                assert "srv" not in shown
                assert "sage" not in shown
    for kept in ("see http://gpu:8000/v1/models/x", "https://a.test//b/c"):
        assert public_text(AdapterError(kept)) == kept


# Judges


def test_a_cut_lets_no_code_of_an_agent_read_as_output() -> None:
    mark = "0123456789abcdef"
    with every_row() as row:
        for turns in (1, 3, 30, 60, 200):
            for size in (10, 600, 1_999, 5_000):
                with row(turns, size):
                    made = [
                        msgspec.structs.replace(turn_of(f"CODE{n} " + "c" * size), observation="o" * size)
                        for n in range(turns)
                    ]
                    given = trajectory(*made, stop=Stop.COMPLETED)
                    text = judge_messages("", [given] * 2, mark)[1].content
                    assert len(text) < 61_000
                    parts = text.split(f"{mark} Output:\n")
                    assert not [
                        part for part in parts[1:] if "c" in part.split(f"{mark} ")[0].split("</attempt")[0]
                    ]
                    assert "CODE" in text
