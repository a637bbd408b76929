"""Parts that are registered, installed by another package, or named as "module:attribute"."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from app.apis.documents.protocols import parse_document
from app.base import plugins
from app.base.errors import ApiDocumentError, InvalidError
from app.base.run_settings import RunSettings, check_runnable
from app.skills.checks import refusals
from app.skills.extract import Draft, extract
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.search import load_retrieval, needs_embeddings
from tests.support.third_party_parts import PROCEDURES, install, longest_instruction
from tests.support.written_functions import ARCHIVE, CATALOG, archived


def run(script: str, directory: Path | None = None) -> str:
    """The output of a script in a fresh interpreter that also finds what is installed in `directory`."""
    path = os.pathsep.join(map(str, [Path.cwd(), *([directory] if directory else [])]))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def draft(name: str, instruction: str) -> Draft:
    [written] = extract(archived("iris", ARCHIVE.replace("archive_mails_by_person", name), name))
    return msgspec.structs.replace(written, instruction=instruction, slots=())


def test_listing_the_parts_of_every_group_imports_none_of_them() -> None:
    script = """
import sys
from importlib.metadata import entry_points
from app.base import plugins as registry
groups = {group.removeprefix("sage.") for group in entry_points().groups if group.startswith("sage.")}
assert groups >= {"commands", "environments", "rewards", "retrieval", "skill_checks", "api_protocols", "experts"}
for group in groups:
    for name in registry.names(f"sage.{group}"):
        registry.find(f"sage.{group}", name)
heavy = ("torch", "numpy", "faiss", "transformers", "trainer", "app.skills", "app.apis")
print([name for name in heavy if name in sys.modules])
"""
    assert run(script) == "[]\n"


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        InvalidError,
        match=r"sage.retrieval has no 'psychic', it has fused, query_embedding, query_ngram, ",
    ):
        load_retrieval("psychic")


def test_a_part_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(InvalidError, match=r"parts:nothing' of sage\.retrieval cannot be imported"):
        load_retrieval("tests.support.third_party_parts:nothing")


@pytest.mark.parametrize("field", ["retrieval", "reward"])
def test_a_run_with_an_unknown_part_is_refused_at_once(field: str) -> None:
    with pytest.raises(InvalidError, match=f"sage.{field}s? has no 'psychic', it has "):
        check_runnable(msgspec.structs.replace(RunSettings(), **{field: "psychic"}))


@pytest.mark.parametrize("field", ["environment", "retrieval", "reward"])
def test_a_run_may_not_name_any_object_that_the_worker_can_import(field: str) -> None:
    with pytest.raises(
        InvalidError, match=f"{field}='tests.support.third_party_parts:longest_instruction': a run may name"
    ):
        check_runnable(
            msgspec.structs.replace(
                RunSettings(), **{field: "tests.support.third_party_parts:longest_instruction"}
            )
        )


async def test_a_retrieval_named_by_module_and_attribute_ranks_the_skills_that_are_offered() -> None:
    retrieval = load_retrieval("tests.support.third_party_parts:longest_instruction")
    assert retrieval is longest_instruction
    assert not needs_embeddings(retrieval)
    library = InMemoryLibrary(retrieval=retrieval, limit=2)
    await library.save(
        [draft("one", "archive"), draft("two", "archive mails and notes"), draft("three", "archive mails")]
    )
    offers = await library.find("archive")
    assert [(each.name, each.ranks) for each in offers] == [("two", {"longest": 1}), ("three", {"longest": 2})]


def test_a_retrieval_of_an_installed_package_is_found_by_its_name(tmp_path: Path) -> None:
    install(tmp_path)
    script = """
from app.base import plugins as registry
from app.skills.search import load_retrieval
print("longest" in registry.names("sage.retrieval"), load_retrieval("longest").__name__)
"""
    assert run(script, tmp_path) == "True longest_instruction\n"
    assert "longest" not in plugins.names("sage.retrieval")


def test_a_check_of_an_installed_package_refuses_skills_like_the_built_in_ones(tmp_path: Path) -> None:
    install(tmp_path)
    script = """
from app.skills.checks import validate_drafts
from tests.support.written_functions import ARCHIVE, CATALOG, archived
bare = ARCHIVE.replace('''    \"\"\"Archive all mails from one person.\"\"\"\\n''', "")
good = validate_drafts(archived("iris"), CATALOG)
print(validate_drafts(archived("iris", bare), CATALOG).refused, len(good.kept))
"""
    assert run(script, tmp_path) == "{'archive_mails_by_person': ['It has no docstring.']} 1\n"
    assert run(script) == "{} 1\n"


def test_all_checks_run_in_the_order_of_their_names() -> None:
    assert list(plugins.load_all("sage.skill_checks")) == sorted(plugins.names("sage.skill_checks"))
    bad = msgspec.structs.replace(draft("list", "go"), apis=(), calls=0, source="def list(n): return x")
    assert refusals(bad, archived(), CATALOG) == [
        "It calls no API.",
        "It was not called.",
        "Its name hides the builtin list.",
        "It uses names that it does not define or import: x.",
        "Parameters without a type: n.",
    ]


def test_an_installed_protocol_parses_its_documents_and_encodes_its_calls(tmp_path: Path) -> None:
    install(tmp_path)
    script = """
from app.apis.documents.protocols import encode, parse_document
app = parse_document("sums", {"procedures": {"add": ["a", "b"]}, "address": "http://sums.test"})
request = encode(app, app.operations["add"], {"a": 1, "b": 2})
print(app.protocol, app.server, request.target, request.content.decode())
document = {"openapi": "3.1.0", "servers": [{"url": "http://x"}], "paths": {"/a": {"get": {}}}}
print(parse_document("plain", document).protocol)
"""
    sums = 'procedures http://sums.test /call {"call":"add","with":{"a":1,"b":2}}'
    assert run(script, tmp_path) == f"{sums}\nopenapi\n"
    assert plugins.load("sage.api_protocols", "tests.support.third_party_parts:PROCEDURES") is PROCEDURES
    with pytest.raises(ApiDocumentError, match=r"of no known kind \(mcp, openapi\)"):
        parse_document("sums", {"procedures": {}})
