"""The vectors of stored skills: who makes them, and when."""

import asyncio

import numpy as np

from app.base.errors import EngineError
from app.db.database import Sessions
from app.skills import store as skills
from app.skills.library import Library
from app.skills.search import query_embedding, skill_embedding
from tests.support.archiving_skills import QUERY, draft, named, project
from tests.support.embedders import WordEmbedder


async def test_vectors_are_stored_with_their_embedder_and_found_by_another_process(committed: Sessions) -> None:
    here = await project(committed)
    await Library(committed, WordEmbedder()).save(here, [draft()])
    library = Library(committed, WordEmbedder(), retrieval=query_embedding)
    [found] = await library.find(here, "mails to be archived")
    assert found.ranks == {"query_embedding": 1}
    async with committed() as session:
        row = await skills.get(session, found.skill_id)
    assert row.embedder == "words"
    [expected] = await WordEmbedder().embed([row.instruction])
    assert np.array_equal(np.frombuffer(row.query_vector or b"", np.float32), expected)


async def test_skills_saved_during_an_outage_are_found_and_embedded_later(
    committed: Sessions,
) -> None:
    here = await project(committed)
    embedder = WordEmbedder()
    embedder.down = True
    library = Library(committed, embedder)
    await library.save(here, [draft(), named("other")])
    assert len(await library.find(here, QUERY)) == 2
    async with committed() as session:
        assert len(await skills.without_vectors(session, "words")) == 2

    fresh = Library(committed, WordEmbedder(), retrieval=skill_embedding)
    assert await fresh.fill_vectors() == 0
    async with committed() as session:
        assert await skills.without_vectors(session, "words") == []
    assert await fresh.fill_vectors() is None, "there is nothing more to embed"
    await fresh.refresh(here)
    assert len(await fresh.find(here, "archive mails")) == 2


async def test_an_embedder_that_starts_late_is_used_without_a_restart(committed: Sessions) -> None:
    here, embedder, there = await project(committed), WordEmbedder(), False

    async def opening() -> WordEmbedder:
        if not there:
            raise EngineError("no embedder listens there yet")
        return embedder

    now = 0.0
    library = Library(committed, retrieval=query_embedding, clock=lambda: now, open_embedder=opening)
    await library.save(here, [draft()])
    assert [found.ranks for found in await library.find(here, QUERY)] == [{"query_ngram": 1}]
    there = True
    assert await library.fill_vectors() is None  # not called for 30 s after a failure
    now = 31.0
    assert await library.fill_vectors() == 0
    await library.refresh(here)
    assert [found.ranks for found in await library.find(here, QUERY)] == [{"query_embedding": 1}]
    another = Library(committed, retrieval=query_embedding, open_embedder=opening)  # a library that only searches
    assert [found.ranks for found in await another.find(here, QUERY)] == [{"query_embedding": 1}]


async def test_vectors_of_a_previous_embedder_are_replaced(committed: Sessions) -> None:
    here = await project(committed)
    await Library(committed, WordEmbedder("old")).save(here, [draft()])
    library = Library(committed, WordEmbedder("new"), retrieval=query_embedding)
    [found] = await library.find(here, QUERY)
    assert found.ranks == {"query_ngram": 1}  # the old vector is not compared
    assert await library.fill_vectors() == 0
    await library.refresh(here)
    [found] = await library.find(here, QUERY)
    assert found.ranks == {"query_embedding": 1}


async def test_no_transaction_is_open_while_texts_are_embedded(committed: Sessions) -> None:
    here = await project(committed)
    embedder = WordEmbedder()
    embedder.held = asyncio.Event()
    saving = asyncio.create_task(Library(committed, embedder).save(here, [draft()]))
    await embedder.reached.wait()
    await Library(committed).save(here, [named("quick")])  # does not wait
    assert not saving.done()
    embedder.held.set()
    assert len(await saving) == 1


async def test_skills_whose_embedding_was_cut_short_are_embedded_by_the_next_process_without_a_task(
    committed: Sessions,
) -> None:
    here, there = await project(committed), await project(committed, "other")
    for each in (here, there):
        await Library(committed).save(each, [draft()])
    stopped = WordEmbedder()
    stopped.held = asyncio.Event()
    async with Library(committed, stopped).filling():
        await stopped.reached.wait()
    async with committed() as session:
        assert len(await skills.without_vectors(session, "words")) == 2
    async with Library(committed, WordEmbedder()).filling():
        while True:
            async with committed() as session:
                if not await skills.without_vectors(session, "words"):
                    break
            await asyncio.sleep(0.02)


async def test_the_functions_of_a_task_are_embedded_in_one_request(committed: Sessions) -> None:
    here, embedder = await project(committed), WordEmbedder()
    await Library(committed, embedder).save(here, [draft(), named("other")])
    assert (len(embedder.asked), embedder.requests) == (4, 1)


async def test_a_skill_that_the_embedder_refuses_is_asked_for_once_and_holds_no_other_up(
    committed: Sessions,
) -> None:
    here, embedder = await project(committed), WordEmbedder()
    await Library(committed).save(here, [draft(), named("refused")])
    embedder.is_refused = lambda text: "def refused" in text
    library = Library(committed, embedder, retrieval=query_embedding)
    assert await library.fill_vectors() == 0
    asked = embedder.requests
    assert await library.fill_vectors() is None
    assert embedder.requests == asked
    await library.refresh(here)
    assert {found.name for found in await library.find(here, QUERY)} == {draft().name, "refused"}
    async with committed() as session:
        rows = {each.name: await skills.get(session, each.skill_id) for each in await library.find(here, QUERY)}
    assert rows["refused"].query_vector is not None
    assert rows["refused"].source_vector is None
    assert rows[draft().name].source_vector is not None


async def test_a_refused_text_of_one_task_costs_no_other_its_vectors(committed: Sessions) -> None:
    here, embedder = await project(committed), WordEmbedder()
    embedder.is_refused = lambda text: "def refused" in text
    library = Library(committed, embedder, retrieval=query_embedding)
    await library.save(here, [named("refused")])
    await library.save(here, [draft()])
    found = await library.find(here, QUERY)
    assert {each.name: list(each.ranks) for each in found}[draft().name] == ["query_embedding"]
