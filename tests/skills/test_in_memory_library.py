"""The library of one chain."""

import time

import numpy as np
from structlog.testing import capture_logs

from app.apis.calls.skill_guard import SkillManifest
from app.skills.extract import extract
from app.skills.in_memory_library import GrownSkill, InMemoryLibrary
from app.skills.search import IndexedSkill, OptionalEmbedder, query_embedding, query_ngram
from tests.support.embedders import WordEmbedder
from tests.support.written_functions import ARCHIVE, archived

MANIFEST = SkillManifest.unrestricted(["mail.archive_mail"])


async def test_a_function_that_the_first_task_wrote_is_offered_to_the_second() -> None:
    library = InMemoryLibrary()
    [saved] = await library.save(extract(archived("iris")), "scenario")
    [found] = await library.find("archive every one of my mails from omar")
    assert (found.skill_id, found.name, found.source) == (saved.skill_id, saved.name, ARCHIVE.rstrip("\n"))
    assert found.instruction == "archive every one of my mails from iris"
    assert found.ranks == {"query_ngram": 1}


async def test_chains_share_nothing() -> None:
    await InMemoryLibrary().save(extract(archived()))
    assert await InMemoryLibrary().find("archive every one of my mails from omar") == []


async def test_a_known_name_is_replaced_by_its_next_version() -> None:
    library = InMemoryLibrary()
    await library.save(extract(archived("iris")))
    better = ARCHIVE.replace("page = 1", "page = 0")
    await library.save(extract(archived("omar", better)))
    [found] = await library.find("archive every one of my mails from lena")
    assert (found.version, found.source) == (2, better.rstrip("\n"))
    assert len(library) == 1


async def test_what_was_there_before_is_found_and_replaced_but_not_counted() -> None:
    source = InMemoryLibrary()
    [before] = await source.save(extract(archived("iris")))
    grown = [GrownSkill(indexed=IndexedSkill(offer=before), manifest=MANIFEST)]
    first, second = InMemoryLibrary(grown=grown), InMemoryLibrary(grown=grown)
    [found] = await first.find("archive every one of my mails from iris")
    assert (found.skill_id, found.source, len(first)) == (before.skill_id, before.source, 0)
    better = ARCHIVE.replace("page = 1", "page = 0")
    await first.save(extract(archived("omar", better)))
    [newer] = await first.find("archive every one of my mails from iris")
    assert (newer.version, newer.source) == (2, better.rstrip("\n"))
    [unchanged] = await second.find("archive every one of my mails from iris")
    assert unchanged.skill_id == before.skill_id, "chains share none that they write"


async def test_what_was_there_before_and_has_proved_itself_is_not_hidden_by_a_new_version() -> None:
    source = InMemoryLibrary()
    [before] = await source.save(extract(archived("iris")))
    library = InMemoryLibrary(
        grown=[GrownSkill(indexed=IndexedSkill(offer=before), manifest=MANIFEST, proven=True)]
    )
    [newer] = await library.save(extract(archived("omar", ARCHIVE.replace("page = 1", "page = 0"))))
    assert newer.version == 2
    [found] = await library.find("archive every one of my mails from iris")
    assert found.skill_id == before.skill_id
    assert len(library) == 0


async def test_manifests_are_kept_by_skill() -> None:
    source = InMemoryLibrary()
    [before] = await source.save(extract(archived("iris")))
    assert source.manifests == {}
    library = InMemoryLibrary(grown=[GrownSkill(indexed=IndexedSkill(offer=before), manifest=MANIFEST)])
    other = SkillManifest.unrestricted(["mail.list_mails"])
    [newer] = await library.save(extract(archived("omar")), manifests={before.name: other})
    assert library.manifests == {before.skill_id: MANIFEST, newer.skill_id: other}


async def test_the_limit_holds() -> None:
    library = InMemoryLibrary(limit=2)
    for name in ("one", "two", "three"):
        await library.save(extract(archived("iris", ARCHIVE.replace("archive_mails_by_person", name), name)))
    assert len(await library.find("archive all mails from omar")) == 2
    assert len(await library.find("archive all mails from omar", limit=3)) == 3
    assert await library.find("archive all mails from omar", limit=0) == []


async def test_retrieval_by_embedding_finds_by_meaning() -> None:
    library = InMemoryLibrary(WordEmbedder(), retrieval=query_embedding)
    await library.save(extract(archived("iris")))
    [found] = await library.find("mails, archived")
    assert found.ranks == {"query_embedding": 1}
    assert await library.find("delete notes") == []


async def test_a_retrieval_without_embeddings_embeds_no_query() -> None:
    embedder = WordEmbedder()
    library = InMemoryLibrary(embedder, retrieval=query_ngram)
    await library.save(extract(archived("iris")))
    embedder.asked.clear()
    await library.find("archive my mails")
    assert embedder.asked == []


async def test_a_search_among_a_handful_takes_far_less_than_a_millisecond() -> None:
    library = InMemoryLibrary(retrieval=query_ngram)
    for name in ("one", "two", "three", "four"):
        await library.save(extract(archived("iris", ARCHIVE.replace("archive_mails_by_person", name), name)))
    took = []
    for _ in range(200):
        start = time.process_time()
        await library.find("archive every one of my mails from omar")
        took.append(time.process_time() - start)
    assert sorted(took)[100] < 1e-3


async def test_an_outage_is_logged_once_and_the_embedder_is_not_called_for_30_seconds() -> None:
    now = 0.0
    embedder = WordEmbedder()
    embedder.down = True
    optional = OptionalEmbedder(embedder, clock=lambda: now)
    with capture_logs() as logs:
        assert await optional.embed(["a"]) is None
        assert await optional.embed(["b"]) is None
        now = 31.0
        assert await optional.embed(["c"]) is None
        embedder.down, now = False, 62.0
        assert await optional.embed(["mail"]) is not None
    assert embedder.asked == ["a", "c", "mail"]
    assert [line["event"] for line in logs] == [
        "the embedder failed: skills are found by n-grams only",
        "the embedder recovered",
    ]


async def test_a_long_text_is_cut_before_it_is_embedded() -> None:
    embedder = WordEmbedder()
    await OptionalEmbedder(embedder).embed(["x" * 5000])
    assert [len(text) for text in embedder.asked] == [2000]


async def test_a_text_that_is_refused_is_cut_shorter_and_no_outage() -> None:
    embedder = WordEmbedder()
    embedder.is_refused = lambda text: len(text) > 600 or "secret" in text
    optional = OptionalEmbedder(embedder)
    long = "mail " * 400
    with capture_logs() as logs:
        found = await optional.embed(["note", long, "travel", "secret", "delete"])
    expected = await WordEmbedder().embed(["note", long[:500], "travel", "delete"])
    assert found is not None
    assert found[3] is None
    assert np.array_equal([each for each in found if each is not None], expected)
    assert logs == []
    assert await optional.embed(["secret"]) == [None]


async def test_a_server_that_refuses_every_request_is_an_outage() -> None:
    embedder = WordEmbedder()
    embedder.is_refused, embedder.refusal = lambda _: True, 404
    optional = OptionalEmbedder(embedder)
    assert await optional.embed(["mail", "note"]) is None
    assert await optional.embed(["mail"]) is None
    assert embedder.requests == 1
