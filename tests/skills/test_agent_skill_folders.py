"""Skills as folders: written and read back, and refused where they are not what they should be."""

from typing import Any
from uuid import uuid4

import pytest
import yaml

from app.apis.catalog import Catalog
from app.apis.presentation import AppView, outline
from app.db import tables
from app.db.tables import SkillState
from app.skills.admission import stored_manifest
from app.skills.folders import (
    FolderRefusal,
    RefusedFolderError,
    SkillFolder,
    check_all,
    check_folder,
    folder_name,
    read_all,
    read_folder,
    read_front_matter,
    write_folder,
)
from app.skills.offers import SkillStats
from tests.support.agent_skill_samples import MANIFEST, RECORD, folder, metadata, skill_md
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.processor_time import within

CATALOG = Catalog({"ledger": outline("ledger", AppView.of(Ledger().app("http://ledger.test")).traits)})
ODD = "write “gifts”: 'no', yes,\n\t5 %, 🎁\x07\u2028 #1 --- {x: [*y]} \\ \x85 --- end"


def skill(**changed: Any) -> tables.Skill:
    values = {
        "id": uuid4(),
        "name": "record_gift",
        "version": 3,
        "state": SkillState.ACTIVE,
        "signature": "record_gift(person: str, amount: int) -> int",
        "source": RECORD,
        "apis": ["ledger.add_entry"],
        "instruction": "write down a gift of 5 to iris",
        "slots": ["5", "iris"],
        "scenario": "gifts",
        "manifest": MANIFEST,
    }
    return tables.Skill(**{**values, **changed})


def named(function: str) -> dict[str, str]:
    fields = {"source": RECORD, "signature": "record_gift(person: str, amount: int) -> int"}
    return {"name": function, **{key: text.replace("record_gift", function) for key, text in fields.items()}}


def written(row: tables.Skill) -> SkillFolder:
    return write_folder(row, stored_manifest(row), SkillStats(uses=9, successes=7), release=2)


def refusal_of(candidate: SkillFolder) -> tuple[FolderRefusal, str]:
    with pytest.raises(RefusedFolderError) as raised:
        check_folder(read_folder(candidate), CATALOG)
    return raised.value.kind, str(raised.value)


def test_a_folder_has_what_other_agents_need_and_where_it_comes_from() -> None:
    made = written(skill())
    assert (made.name, list(made.files)) == ("record-gift", ["SKILL.md", "scripts/record_gift.py"])
    assert made.files["scripts/record_gift.py"] == RECORD + "\n"
    _, front, body = made.files["SKILL.md"].split("---\n")
    found = yaml.safe_load(front)
    assert found["name"] == "record-gift"
    assert found["description"] == (
        "Write a gift into the ledger. Use it for tasks such as: write down a gift of 5 to iris; "
        "for the scenario: gifts"
    )
    assert found["compatibility"] == "Python for sage-server: `apis` has to have ledger.add_entry."
    assert all(isinstance(value, str) for value in found["metadata"].values())
    kept = {key: found["metadata"][f"sage-{key}"] for key in ("version", "release", "uses", "successes", "state")}
    assert kept == {"version": "3", "release": "2", "uses": "9", "successes": "7", "state": "active"}
    assert "- `ledger.add_entry` (POST)" in body
    assert "`record_gift(person: str, amount: int) -> int` of [scripts/record_gift.py]" in body


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scenario": None, "slots": []},
        {"instruction": ODD, "scenario": ODD[:200], "slots": ["gifts"]},
        {"instruction": "x" * 20_000, "slots": []},
        named("Grüße"),
        named("_" * 90),
        {"source": RECORD + "\n\n\ndef later() -> int:\n    return record_gift('a', 1)"},
    ],
)
def test_what_is_written_is_read_back_as_it_was(changed: dict[str, Any]) -> None:
    row = skill(**changed)
    made = written(row)
    read = check_folder(read_folder(made), CATALOG)
    for field in ("name", "source", "instruction", "slots", "scenario", "apis", "manifest"):
        assert getattr(read, field) == getattr(row, field), field
    again = skill(**{name: getattr(read, name) for name in read.__struct_fields__ if name not in ("embedder",)})
    assert written(again) == made


def test_names_of_folders_follow_the_format_and_are_distinct() -> None:
    names = ["archive_mails", "Archive_Mails", "archive__mails", "_archive_mails", "archive_mails_", "ä", "a" * 65]
    folders = [folder_name(each) for each in names]
    assert folders[0] == "archive-mails"
    assert len({*folders}) == len(names)
    for each in folders:
        read_folder(folder(each, "def f() -> int: ..."))


def test_a_folder_of_foreign_make_may_call_what_its_code_names() -> None:
    only = "def give(n: int) -> int:\r\n    return apis.ledger.add_entry(text='a gift', amount=n)\r\n"
    files = {
        "SKILL.md": skill_md("gifts", "version: 1.0", "license: MIT"),
        "scripts/run.py": only,
        "LICENSE": "MIT",
    }
    read = check_folder(read_folder(SkillFolder("gifts", files)), CATALOG)
    assert (read.name, read.instruction, read.scenario) == ("give", "Writes gifts down", None)
    assert read.source == only.replace("\r", "").rstrip("\n")
    assert read.taint == "the imported folder gifts"
    assert stored_manifest(read).operations["ledger.add_entry"].arguments is None
    assert stored_manifest(read).operations["ledger.add_entry"].method == "POST"


def given(**values: Any) -> SkillFolder:
    return folder("record-gift", RECORD, *metadata(**values))


def manifest(**operations: Any) -> dict[str, Any]:
    return {"operations": {name.replace("__", "."): value for name, value in operations.items()}}


REFUSED: list[tuple[SkillFolder, str, str]] = [
    (folder("Record-Gift"), "folder_name", "lower-case"),
    (folder("record--gift"), "folder_name", "lower-case"),
    (folder("../../etc"), "folder_name", "lower-case"),
    (folder("a" * 65), "folder_name", "1 to 64"),
    (folder(path="scripts/../../../etc/cron.d/x.py"), "path", "no path of a file in the folder"),
    (folder(path="/etc/x.py"), "path", "no path"),
    (folder(path="scripts/a\\..\\x.py"), "path", "no path"),
    (folder(script="#" * 200_000), "too_large", "131,072"),
    (folder(script=f"{RECORD}\n#{'x' * 9_900}"), "check", "longer than 10,000"),
    (folder(script=f"{RECORD}\n#{'x' * 8_000}"), "check", "longer than 8,000"),
    (SkillFolder("a", {f"scripts/{n}.py": "" for n in range(101)}), "too_large", "100 files"),
    (SkillFolder("a", {"scripts/a.py": RECORD}), "front_matter", "missing"),
    (folder(md="# no front matter"), "front_matter", "between two lines"),
    (folder(md="---\nname: record-gift\n"), "front_matter", "between two lines"),
    (folder(md="---\n- a\n---\n"), "front_matter", "mapping"),
    (folder(md="---\nname: [\n---\n"), "front_matter", "line 2"),
    (folder(md="---\nname: record-gift\n---\n"), "front_matter", "description"),
    (folder(md=skill_md("record-gift", description=" ")), "front_matter", "description"),
    (folder(md=skill_md("record-gift", description="x" * 1_025)), "front_matter", "1,024"),
    (folder(md=skill_md("another")), "front_matter", "'another'"),
    (folder(md=skill_md("record-gift", "metadata: {a: [1]}")), "front_matter", "metadata"),
    (folder("record-gift", RECORD, 'metadata: {sage-instruction: "\\0"}'), "front_matter", "NUL"),
    (folder("record-gift", RECORD, 'metadata: {sage-scenario: "\\uD800"}'), "front_matter", "surrogate"),
    (folder("record-gift", None), "no_python", "a Python function that calls the project's APIs"),
    (folder("record-gift", "echo hi", path="scripts/run.sh"), "no_python", "Python"),
    (folder("record-gift", RECORD, path="assets/x.py"), "no_python", "Python"),
    (
        SkillFolder("a-b", {"SKILL.md": skill_md("a-b"), "scripts/c.py": RECORD, "scripts/d.py": RECORD}),
        "several_files",
        "named after the folder",
    ),
    (folder(script="print('pwned')"), "no_function", "top level"),
    (folder(script=""), "no_function", "top level"),
    (folder(script="class A:\n    def record_gift(self): ..."), "no_function", "top level"),
    (folder(script=RECORD, path="scripts/x.py"), "several_functions", "name the file after the skill"),
    (folder(script=f"{RECORD}\n\n{RECORD}"), "several_functions", "no function twice"),
    (folder(script=RECORD.replace("record_gift", "x" * 201)), "several_functions", "several"),
    (folder(script=f"def {'x' * 201}() -> int:\n    return 1"), "name", "200"),
    (folder(script="def f(:"), "check", "does not compile"),
    (folder(script="def f():\n    \0"), "check", "does not compile"),
    (folder(script=RECORD.replace(": int) ->", ") ->")), "check", "Parameters without a type: amount"),
    (folder(script=f"import os\nos.system('id')\n{RECORD}"), "check", "runs when it is loaded"),
    (folder(script=f"{RECORD}\nrecord_gift('a', 1)"), "check", "runs when it is loaded"),
    (folder(script=RECORD.replace("return apis", "return eval('1') or apis")), "check", "eval"),
    (
        folder(script=RECORD.replace("return apis", "a = apis\n    return apis")),
        "check",
        "without other access",
    ),
    (folder(script="def record_gift() -> int:\n    return 1"), "check", "It calls no API"),
    (folder(script=RECORD.replace("add_entry", "drop")), "unknown_operation", "ledger.drop"),
    (folder(script=RECORD.replace("ledger", "bank")), "unknown_operation", "bank.add_entry"),
    (given(manifest="{"), "manifest", "sage-manifest is damaged"),
    (given(manifest="[" * 50_000), "manifest", "damaged"),
    (given(slots={"a": 1}), "manifest", "sage-slots is damaged"),
    (given(manifest=manifest(ledger__list_entries={})), "manifest", "ledger.list_entries"),
    (
        given(manifest=manifest(ledger__add_entry={"arguments": {"text": ["anywhere"]}})),
        "manifest",
        "anywhere",
    ),
    (given(manifest=manifest(ledger__add_entry={"arguments": {"text": ["result:a.b"]}})), "manifest", "a.b"),
    (given(manifest=manifest(ledger__add_entry={"method": "GET"})), "unknown_operation", "other operations"),
    (
        given(manifest=manifest(ledger__add_entry={"method": "POST", "arguments": {"to\0": []}})),
        "unknown_operation",
        "other operations",
    ),
    (given(scenario="x" * 201), "too_large", "sage-scenario"),
    (given(instruction="x" * 20_001), "too_large", "sage-instruction"),
]


def test_a_folder_is_refused_with_the_name_and_the_reason_of_the_error() -> None:
    with every_row() as row:
        for candidate, kind, says in REFUSED:
            with row(candidate, kind, says):
                found, message = refusal_of(candidate)
                assert (found, says in message) == (kind, True), message


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(f'*{old}' for _ in range(9))}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


HOSTILE_YAML: list[str] = [
    BOMB,
    "a: &a\n  b: *a",
    "a: " + "[" * 60_000,
    "a: " + "{a: " * 20_000,
    "- " * 30_000,
    "? " * 30_000,
    "\n".join(f"k{number}: v" for number in range(10_000)),
    "a: [" + "x," * 50_000 + "]",
    "name: !!python/object/apply:os.system [id]",
    "%YAML 9.9\n---",
    "a: \x07",
    "? [a]\n: b",
]


def test_hostile_yaml_is_refused_at_once() -> None:
    with every_row() as row:
        for yaml_text in HOSTILE_YAML:
            with row(yaml_text), within():
                with pytest.raises(RefusedFolderError) as raised:
                    read_front_matter(
                        f"---\nname: a\ndescription: b\n{yaml_text}\n---\n"
                        if "name:" not in yaml_text
                        else f"---\n{yaml_text}\n---\n"
                    )
                assert raised.value.kind == FolderRefusal.FRONT_MATTER


def test_values_of_the_front_matter_are_texts_whatever_yaml_would_make_of_them() -> None:
    front = read_front_matter(
        "---\nname: '2020-01-01'\ndescription: yes\nmetadata:\n  version: 1.0\n  at: 2020-01-01\n---\nbody"
    )
    assert (front.description, front.metadata) == ("yes", {"version": "1.0", "at": "2020-01-01"})


def test_one_folder_of_two_with_the_same_function_is_imported() -> None:
    other = SkillFolder("other", {"SKILL.md": skill_md("other"), "scripts/record_gift.py": RECORD})
    bad, new, clash = check_all(read_all([folder("Bad"), folder(), other]), CATALOG)
    assert isinstance(bad, RefusedFolderError)
    assert bad.kind == FolderRefusal.FOLDER_NAME
    assert not isinstance(new, RefusedFolderError)
    assert isinstance(clash, RefusedFolderError)
    assert clash.kind == FolderRefusal.NAME_CLASH
    assert "record-gift has a function record_gift, too" in str(clash)
