"""What the use of a skill earns the task that made it, in logged experience."""

from math import nan
from pathlib import Path

import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Use
from app.db import tables
from app.releases import store as releases
from app.skills import moves
from tests.support.read_served import read, rewards
from tests.support.rows import project_row
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject


@pytest.fixture
async def shop(session: AsyncSession, tmp_path: Path) -> ServedProject:
    return ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))


async def test_an_unusable_task_still_rewards_the_maker_of_the_skill_it_used(shop: ServedProject) -> None:
    maker, _ = await shop.task(), await shop.task(0.0)
    skill = await shop.skill(maker)
    uses = (Use("greet", inherited=True, calls=1, returned=1),)
    unusable = shop.turn(sampled_ids=(64,), logprobs=(nan,), text="a", uses=uses)
    await shop.rollout(await shop.task(), unusable, (skill,))
    assert (await rewards(shop))[maker.id] == 2.0
    assert (await read(shop)).data.dropped == {"bad_logprobs": 1}


async def test_a_stale_task_still_rewards_the_maker_of_the_skill_it_used(shop: ServedProject) -> None:
    first = await releases.active(shop.session, shop.project.id)
    maker, _ = await shop.task(), await shop.task(0.0)
    await shop.release("a")
    await shop.task(used=(await shop.skill(maker),))
    await releases.activate(shop.session, first.id)
    assert (await rewards(shop, max_staleness=0))[maker.id] == 2.0
    assert (await read(shop, max_staleness=0)).data.dropped == {"stale": 1}


async def test_a_wrapper_of_one_api_earns_nothing(shop: ServedProject) -> None:
    maker, _ = await shop.task(), await shop.task(0.0)
    skill = await shop.skill(maker, source="def greet():\n    return apis.mail.list_mails()\n")
    await shop.task(used=(skill,))
    assert (await rewards(shop))[maker.id] == 1.0


async def test_a_skill_that_was_deleted_earns_nothing_and_one_that_was_retired_does(shop: ServedProject) -> None:
    maker, other, _ = await shop.task(), await shop.task(), await shop.task(0.0)
    deleted, retired = await shop.skill(maker, "deleted"), await shop.skill(other, "retired")
    await shop.task(used=(deleted, retired))
    await moves.delete(shop.session, deleted.id)
    await moves.retire(shop.session, retired.id)
    found = await rewards(shop)
    assert (found[maker.id], found[other.id]) == (1.0, 2.0)


async def test_the_maker_of_a_superseded_version_keeps_what_its_users_earned_it(shop: ServedProject) -> None:
    maker, heir = await shop.task(), await shop.task()
    skill = await shop.skill(maker)
    await shop.task(used=(skill,))
    await shop.skill(heir, source="def greet():\n    return 2\n")
    assert await rewards(shop) == {maker.id: 2.0, heir.id: 1.0}


async def test_a_user_keeps_its_bonus_when_the_task_that_made_the_skill_is_deleted(shop: ServedProject) -> None:
    maker = await shop.task()
    skill = await shop.skill(maker)
    user, failed = await shop.task(used=(skill,)), await shop.task(0.0, used=(skill,))
    await shop.session.execute(delete(tables.Task).where(tables.Task.id == maker.id))
    assert await rewards(shop) == {user.id: 2.0, failed.id: 0.0}


async def test_a_skill_of_another_project_earns_nothing(shop: ServedProject) -> None:
    other = ServedProject(shop.session, await project_row(shop.session), shop.tokenizer)
    skill = await other.skill(await other.task())
    user, _ = await shop.task(used=(skill,)), await shop.task(0.0, used=(skill,))
    assert (await rewards(shop))[user.id] == 1.0
