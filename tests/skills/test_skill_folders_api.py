"""`sage skills export` and `import`, against the real server."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from app.db.database import Sessions
from app.db.tables import SkillState
from app.skills import moves as skill_moves
from app.skills import store as skills
from app.skills.admission import admit, serving
from app.skills.folders import SkillFolder
from app.skills.library import Library
from tests.support.agent_skill_samples import MANIFEST, RECORD, folder, skill_md
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.http_server import served
from tests.support.ledger import Ledger
from tests.support.sage_command import SageCommand

OWN = skills.NewSkill(
    name="record_gift",
    signature="record_gift(person: str, amount: int) -> int",
    source=RECORD,
    apis=["ledger.add_entry"],
    instruction="write down a gift of 5 to iris",
    slots=["5", "iris"],
    scenario="gifts",
    manifest=MANIFEST,
)


@pytest.fixture
async def shell(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[SageCommand]:
    """A server with two projects that have the same API. `demo` has a skill, `copy` has none."""
    async with open_api_app(committed, database_url, directory=tmp_path / "server") as api, served(api) as client:
        await api.project("copy")
        for name in ("demo", "copy"):
            body = {"project": name, "name": "ledger", "document": Ledger().document("http://ledger.test")}
            assert (await api.client.post("/v1/apis", json=body)).status_code == 201
        async with api.sessions.begin() as session:
            await skills.add(session, api.demo.id, OWN)
        yield SageCommand(api, str(client.base_url))


async def of_copy(api: ApiApp) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.client.get("/v1/skills?project=copy")).json()["skills"]
    return found


async def imported(api: ApiApp, *folders: Any, project: str = "copy") -> dict[str, Any]:
    body = {"project": project, "folders": msgspec.to_builtins(folders)}
    answer = await api.client.post("/v1/skills/import", json=body)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()
    return report


async def test_an_imported_skill_is_found_by_its_description_and_again_by_what_is_exported(
    shell: SageCommand,
) -> None:
    api, description = shell.api, 'Counts tickets. Use when asked "How many tickets are open?" or for the backlog.'
    made = folder(md=skill_md("record-gift", description=f"'{description}'"))
    await api.project("third")
    body = {"project": "third", "name": "ledger", "document": Ledger().document("http://ledger.test")}
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    for name in ("copy", "third"):
        await imported(api, made, project=name)
        [held] = (await api.client.get(f"/v1/skills?project={name}")).json()["skills"]
        assert (await api.client.post(f"/v1/skills/{held['id']}/approve")).status_code == 200
        async with api.sessions() as session:
            project_id = (await skills.get(session, UUID(held["id"]))).project_id
        library = Library(api.sessions)
        for request in ("How many tickets are open?", "count the open tickets"):
            assert [each.name for each in await library.find(project_id, request)] == ["record_gift"]
        assert await library.find(project_id, "send a mail to iris") == []
        [line] = (await api.client.get(f"/v1/skills/export?project={name}&name=record_gift")).text.splitlines()
        exported = msgspec.json.decode(line)["folder"]
        assert exported["files"]["SKILL.md"].count(description) == 2
        made = SkillFolder(exported["name"], exported["files"])


async def test_a_skill_goes_from_one_project_into_another_and_out_again_unchanged(
    shell: SageCommand, tmp_path: Path
) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    ended = await shell.run("skills export", str(out), "--project", "demo")
    assert (ended.code, ended.out) == (0, f"wrote 1 skills into {out}\n"), ended.err
    first = out / "record-gift"
    assert (first / "scripts/record_gift.py").read_text() == RECORD + "\n"

    taken = await shell.run("skills import", str(out), "--project", "copy")
    assert taken.code == 0, taken.err
    assert taken.out.split()[:2] == ["imported", "1"]
    [skill] = await of_copy(shell.api)
    assert (skill["state"], skill["held"]) == ("quarantined", True)
    assert skill["reason"] == "it was imported: it waits for a person"
    shown = (await shell.api.client.get(f"/v1/skills/{skill['id']}")).json()
    assert (shown["source"], shown["manifest"], shown["scenario"]) == (RECORD, MANIFEST, "gifts")

    written = json.loads(
        (await shell.run("skills export", str(again), "--project", "copy", "--state", "quarantined", "--json")).out
    )
    assert [(each["name"], each["folder"]) for each in written] == [("record_gift", "record-gift")]
    assert (again / "record-gift/scripts/record_gift.py").read_text() == RECORD + "\n"
    texts = [(each / "record-gift/SKILL.md").read_text().splitlines() for each in (out, again)]
    told = {"  sage-version:", "  sage-state:", "  sage-release:", "  sage-uses:", "  sage-successes:"}
    same = [[line for line in lines if not any(line.startswith(each) for each in told)] for lines in texts]
    assert same[0] == same[1]
    assert "description:" in "".join(same[0])


async def test_an_imported_skill_is_offered_to_nobody_before_a_person_approves_it(shell: SageCommand) -> None:
    api = shell.api
    for policy in ("open", "review", "evidence"):
        settings = {"settings": {"skills": policy}}
        assert (await api.client.patch("/v1/projects/copy", json=settings)).status_code == 200
        report = await imported(api, folder("record-gift", f"{RECORD}\n# {policy}"))
        assert [each["state"] for each in report["folders"]] == ["quarantined"], policy
    listed = await of_copy(api)
    async with api.sessions() as session:
        project_id = (await skills.get(session, listed[0]["id"])).project_id
        live = await skill_moves.live_versions(session, project_id, "record_gift")
        assert serving(live, "") is None
    approved = await shell.run("skills approve", listed[0]["id"])
    assert approved.out == "record_gift v3 is probation\n"
    standing = (await api.client.get(f"/v1/skills/{listed[0]['id']}")).json()["standing"]
    assert standing["missing"] == ["a person's approval, because there is no task that wrote it"]
    async with api.sessions() as session:
        live = await skill_moves.live_versions(session, project_id, "record_gift")
        assert [each.version for each in live if each is serving(live, "")] == [3]
    audited = (await api.client.get("/v1/audit?project=copy")).json()["entries"]
    moves = [each["detail"]["to"] for each in audited if each["action"] == "skill moved"]
    assert moves == ["probation", "quarantined", "quarantined", "quarantined"]
    assert {each["actor"] for each in audited if each["action"] == "skill moved"} == {"key test admin"}


async def test_an_import_replaces_no_version_that_serves_and_brings_none_back(shell: SageCommand) -> None:
    api = shell.api
    changed = folder("record-gift", f"{RECORD}\n# changed")
    report = await imported(api, changed, project="demo")
    assert (report["imported"], report["folders"][0]["version"]) == (1, 2)
    states = [
        (each["version"], each["state"])
        for each in (await api.client.get("/v1/skills?project=demo")).json()["skills"]
    ]
    assert states == [(2, "quarantined"), (1, "active")]
    present = await imported(
        api, folder(), changed.__class__("gifts", {**changed.files, "SKILL.md": skill_md("gifts")}), project="demo"
    )
    assert [(each["result"], each.get("version"), each["error"]) for each in present["folders"]] == [
        ("present", 1, None),
        ("refused", None, "name_clash"),
    ]
    async with api.sessions.begin() as session:
        again = await admit(session, api.demo.id, msgspec.structs.replace(OWN, source=f"{RECORD}\n# own"))
        assert again.state is not SkillState.SUPERSEDED

    shown = (await api.client.get("/v1/skills?project=demo&state=active")).json()["skills"]
    assert (await api.client.post(f"/v1/skills/{shown[0]['id']}/retire")).status_code == 200
    retired = await imported(api, folder("record-gift", f"{RECORD}\n# once more"), project="demo")
    assert [each["state"] for each in retired["folders"]] == ["retired"]


def put(root: Path, path: str, text: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())


def good_and_bad(root: Path, secret: Path) -> dict[str, str | None]:
    """Write folders, of which some lead to a secret. The error of each."""
    for name in ("good", "binary", "huge", "linked-script", "linked-md", "no-python", "unknown", "pipe"):
        put(root, f"{name}/SKILL.md", skill_md(name))
        (root / name / "scripts").mkdir()
    put(root, "good/scripts/good.py", RECORD.replace("record_gift", "good"))
    put(root, "good/references/notes.md", b"\xff")
    put(root, "binary/scripts/binary.py", b"\xff\xfe")
    put(root, "huge/scripts/huge.py", "#" * 600_000)
    (root / "linked-script/scripts/linked_script.py").symlink_to(secret)
    (root / "linked-md/SKILL.md").unlink()
    (root / "linked-md/SKILL.md").symlink_to(secret)
    put(root, "no-python/scripts/run.sh", "echo")
    put(root, "unknown/scripts/record_gift.py", RECORD.replace("ledger", "bank"))
    put(root, "empty/README", "")
    os.mkfifo(root / "pipe/scripts/pipe.py")
    (root / "linked").symlink_to(root.parent)
    (root / ".git").mkdir()
    return {
        "good": None,
        "binary": "unreadable",
        "empty": "front_matter",
        "huge": "too_large",
        "linked": "symlink",
        "linked-md": "symlink",
        "linked-script": "symlink",
        "no-python": "no_python",
        "pipe": "unreadable",
        "unknown": "unknown_operation",
    }


async def test_the_good_folders_are_imported_and_each_other_one_is_named_with_its_error(
    shell: SageCommand, tmp_path: Path
) -> None:
    put(tmp_path, "secret.txt", "hush")
    root = tmp_path / "skills"
    expected = good_and_bad(root, tmp_path / "secret.txt")
    ended = await shell.run("skills import", str(root), "--project", "copy", "--json")
    report = json.loads(ended.out)
    assert ended.code == 1
    assert (report["imported"], report["present"], report["refused"]) == (1, 0, 9)
    assert {each["folder"]: each["error"] for each in report["folders"]} == expected
    assert "hush" not in ended.out
    assert [each["name"] for each in await of_copy(shell.api)] == ["good"]
    one = await shell.run("skills import", str(root / "good"), "--project", "copy")
    assert (one.code, "present" in one.out) == (0, True)
    none = await shell.run("skills import", str(root / ".git"), "--project", "copy")
    assert (none.code, "has no folders" in none.err) == (1, True)


async def test_an_export_writes_no_file_through_a_link(shell: SageCommand, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/record-gift").symlink_to(tmp_path / "elsewhere")
    ended = await shell.run("skills export", str(tmp_path / "out"), "--project", "demo")
    assert (ended.code, "is a link" in ended.err) == (1, True)
    (tmp_path / "out/record-gift").unlink()
    (tmp_path / "out/record-gift").mkdir()
    (tmp_path / "out/record-gift/SKILL.md").symlink_to(tmp_path / "victim")
    ended = await shell.run("skills export", str(tmp_path / "out"), "--project", "demo")
    assert (ended.code, "cannot be written" in ended.err) == (1, True)
    assert not (tmp_path / "victim").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_exports_are_limited_by_state_and_have_one_version_of_each_name(shell: SageCommand) -> None:
    api = shell.api
    async with api.sessions.begin() as session:
        for number in range(3):
            trial = msgspec.structs.replace(OWN, name="trial", source=f"{RECORD}\n# {number}")
            start = skills.StartingState(SkillState.PROBATION)
            await skills.insert(
                session, api.demo.id, trial, await skill_moves.next_rev(session, api.demo.id), start
            )

    async def exported(query: str) -> list[tuple[str, int, str]]:
        answer = await api.client.get(f"/v1/skills/export?project=demo{query}")
        lines = map(json.loads, answer.text.splitlines())
        return [(each["name"], each["version"], each["state"]) for each in lines]

    assert await exported("") == [("record_gift", 1, "active"), ("trial", 3, "probation")]
    assert await exported("&state=probation") == [("trial", 3, "probation")]
    assert await exported("&state=retired") == []
    assert await exported("&name=trial&scenario=gifts") == [("trial", 3, "probation")]
    assert await exported("&state=deleted") == []


async def test_export_and_import_need_the_scope_and_stay_in_the_project(shell: SageCommand) -> None:
    api = shell.api
    body = {"folders": [msgspec.to_builtins(folder())]}
    tasks_only = await api.key("tasks")
    own = await api.key("skills", project_id=api.demo.id)
    for method, path, sent in (("GET", "/v1/skills/export", None), ("POST", "/v1/skills/import", body)):
        refused = await api.client.request(method, path, json=sent, headers=tasks_only)
        assert problem(refused)["status"] == 403
        other = {**sent, "project": "copy"} if sent else None
        elsewhere = await api.client.request(method, f"{path}?project=copy", json=other, headers=own)
        assert problem(elsewhere)["status"] == 404
    assert problem(await api.client.post("/v1/skills/import", json={"folders": []}, headers=own))["status"] == 400
    assert (await api.client.post("/v1/skills/import", json=body, headers=own)).json()["present"] == 1
    async with api.sessions() as session:
        assert len(await skills.versions(session, api.demo.id, "record_gift")) == 1
