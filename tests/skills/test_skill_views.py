"""Which versions of skills the tasks of a principal find."""

from uuid import UUID

import msgspec
import numpy as np
import pytest

from app.skills.search import (
    IndexedSkill,
    Retrieval,
    SkillIndex,
    fused,
    query_embedding,
    query_ngram,
    scenario,
    skill_embedding,
)
from app.skills.visibility import Reach
from tests.support.every_row import every_row
from tests.support.skill_search import found
from tests.support.written_functions import offer


def version(number: int, reach: Reach, owner: str = "", name: str = "f") -> IndexedSkill:
    made = msgspec.structs.replace(offer(name, "", number), instruction="archive my mails", version=number)
    return IndexedSkill(offer=made, owner=owner, reach=reach, scenario="s")


VERSIONS: list[tuple[list[IndexedSkill], dict[str, int]]] = [
    ([version(1, "owner", "ann")], {"ann": 1}),
    ([version(1, "trial", "ann")], {"ann": 1, "bob": 1, "": 1}),
    ([version(1, "all"), version(2, "trial", "ann")], {"ann": 2, "bob": 1, "": 1}),
    ([version(1, "all"), version(2, "owner", "ann")], {"ann": 2, "bob": 1, "": 1}),
    ([version(2, "all"), version(1, "owner", "ann")], {"ann": 2, "bob": 2, "": 2}),
    ([version(1, "trial", "ann"), version(2, "trial", "bob")], {"ann": 1, "bob": 2, "": 1}),
    ([version(1, "owner", "ann"), version(2, "owner", "bob")], {"ann": 1, "bob": 2}),
]


def test_of_each_name_a_principal_finds_the_newest_version_that_reaches_it() -> None:
    with every_row() as row:
        for retrieval in (query_ngram, scenario, fused):
            for at, (versions, seen) in enumerate(VERSIONS):
                with row(retrieval.__name__, at, seen):
                    index = SkillIndex()
                    index.put(versions)
                    for who in ("ann", "bob", ""):
                        offers = found(index.view([who]), retrieval, "archive my mails", "s")
                        assert [each.version for each in offers] == ([seen[who]] if who in seen else []), who
                    assert len(found(index, retrieval, "archive my mails", "s", limit=9)) == len(versions)


@pytest.mark.parametrize("retrieval", [query_ngram, query_embedding, skill_embedding, scenario, fused])
def test_skills_that_a_principal_may_not_see_push_none_out_that_it_may(retrieval: Retrieval) -> None:
    vector = np.array([1, 0], np.float32)
    index = SkillIndex("words")
    hidden = [version(number, "owner", "ann", f"hidden_{number}") for number in range(2, 500)]
    index.put(
        [
            msgspec.structs.replace(each, embedder="words", query_vector=vector, source_vector=vector)
            for each in [version(1, "all"), *hidden]
        ]
    )
    offers = found(index.view(["bob"]), retrieval, "archive my mails", "s", vector)
    assert [each.name for each in offers] == ["f"]


def test_a_view_sees_a_version_that_another_one_hid_once_that_is_gone() -> None:
    index = SkillIndex()
    index.put([version(1, "trial", "ann"), version(2, "trial", "bob")])
    index.remove([UUID(int=1)])
    assert [each.version for each in found(index.view(["eve"]), query_ngram, "archive my mails")] == [2]
