"""Skills mapped from files are found as those in memory, on random libraries."""

import random
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.index_files import write_skills
from app.skills.mapped_index import MappedIndex, MappedNgrams, MappedSkills, NgramWriter
from app.skills.search import (
    IndexedSkill,
    Query,
    Retrieval,
    SkillIndex,
    fused,
    query_embedding,
    query_ngram,
    scenario,
    skill_embedding,
)
from app.skills.similarity import DEPTH, NgramIndex
from app.skills.visibility import Reach
from tests.support.every_row import every_row

WORDS = ["archive", "delete", "mail", "mails", "all", "my", "note", "from", "iris", "omar", "flag", "pin"]
RETRIEVALS: list[Retrieval] = [fused, query_ngram, query_embedding, skill_embedding, scenario]
PRINCIPALS = ["", "ann", "bob", "eve"]


def text(draw: random.Random, longest: int = 8) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randrange(longest + 1)))


def test_the_ngram_search_of_mapped_texts_returns_what_the_one_in_memory_does(tmp_path: Path) -> None:
    with every_row() as row:
        for seed in range(20):
            with row(seed):
                directory = tmp_path / str(seed)
                directory.mkdir()
                draw = random.Random(seed)
                writer, expected = NgramWriter(), NgramIndex[int]()
                count = draw.choice([0, 1, 5, 70, 500])
                for number in range(count):
                    words, slots = text(draw), set(draw.sample(WORDS, draw.randrange(4)))
                    writer.add(words, slots)
                    expected.add(number, words, slots)
                writer.write(directory)
                index = MappedNgrams(directory)
                hidden = set(draw.sample(range(count), count // 3))
                for number in hidden:
                    expected.remove(number)
                visible = np.array([number not in hidden for number in range(count)], np.bool_)
                for _ in range(30):
                    query, limit = (
                        f"{text(draw, 10)} unknown" * draw.randrange(2) or text(draw, 10),
                        draw.choice([1, 3, DEPTH]),
                    )
                    found, scores = index.search(query, limit, visible)
                    pairs = list(zip(found.tolist(), scores.tolist(), strict=True))
                    assert pairs == expected.search(query, limit), query


class Library:
    """A random library, and its changes."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._ids = 0
        self.skills: dict[UUID, IndexedSkill] = {}  # from the one changed first to the one changed last

    def change(self) -> tuple[list[IndexedSkill], list[UUID]]:
        """What was put, and what was removed."""
        kind = self._draw.random()
        if self.skills and kind < 0.3:
            gone = self._draw.choice(list(self.skills))
            del self.skills[gone]
            return [], [gone]
        if self.skills and kind < 0.5:  # another state
            old = self.skills.pop(self._draw.choice(list(self.skills)))
            new = msgspec.structs.replace(old, reach=self._reach())
        else:
            new = self._new()
        self.skills[new.offer.skill_id] = new
        return [new], []

    def _new(self) -> IndexedSkill:
        self._ids += 1
        name = f"f{self._draw.randrange(40)}"
        made = Offer(
            skill_id=UUID(int=self._draw.getrandbits(128)),
            name=name,
            version=self._ids,
            signature=f"{name}()",
            source="",
            instruction=text(self._draw),
        )
        return IndexedSkill(
            offer=made,
            slots=tuple(self._draw.sample(WORDS, self._draw.randrange(3))),
            scenario=self._draw.choice([None, "s", "t"]),
            owner=self._draw.choice(PRINCIPALS),
            reach=self._reach(),
            described=self._draw.random() < 0.3,
            embedder=self._draw.choice(["words", "words", "old", None]),
            query_vector=self.vector(),
            source_vector=self.vector(),
        )

    def _reach(self) -> Reach:
        return self._draw.choice(("owner", "trial", "all"))

    def vector(self) -> Vector:
        drawn = np.array([self._draw.gauss(0, 1) for _ in range(6)], np.float32)
        return drawn / np.float32(np.linalg.norm(drawn))


def test_files_and_the_changes_since_give_what_all_skills_in_memory_give(tmp_path: Path) -> None:
    with every_row() as row:
        for seed in range(12):
            with row(seed):
                directory = tmp_path / str(seed)
                directory.mkdir()
                draw = random.Random(seed)
                library = Library(draw)
                for _ in range(draw.choice([1, 30, 400])):
                    library.change()
                write_skills(directory, library.skills.values(), "words")
                index = SkillIndex("words", MappedIndex(MappedSkills(directory)))
                for _ in range(draw.choice([0, 1, 60])):
                    put, gone = library.change()
                    index.remove(gone)
                    index.put(put)
                    whole = SkillIndex("words")
                    whole.put(list(library.skills.values()))
                    assert len(index) == len(whole)
                    query = Query(
                        instruction=text(draw), scenario=draw.choice([None, "s", "u"]), vector=library.vector()
                    )
                    principal = draw.choice(PRINCIPALS)
                    view, expected = index.view([principal]), whole.view([principal])
                    assert view.by_ngrams(query.instruction) == expected.by_ngrams(query.instruction)
                    for retrieval in RETRIEVALS:
                        found = retrieval(view, query)
                        assert found == retrieval(expected, query), retrieval
                        assert [view.offer(key) for key, _ in found] == [expected.offer(key) for key, _ in found]
