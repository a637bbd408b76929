"""From the tables to rewarded trajectories: every reason to leave a task out, and what the rest earns."""

from itertools import chain
from math import nan
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, releases, skills
from app.db.models import TaskState
from app.errors import InvalidError
from app.records import Stop, Use
from app.run_settings import RunSettings
from tests.rows import project_row
from tests.scripted import byte_tokenizer
from tests.served_rows import Served
from trainer.experience.filters import BaseModel
from trainer.experience.read import Best, Logged, read_best, read_logged
from trainer.sage.advantages import ScoredRollout


@pytest.fixture
async def shop(session: AsyncSession, tmp_path: Path) -> Served:
    return Served(session, await project_row(session), byte_tokenizer(tmp_path))


async def read(shop: Served, **settings: Any) -> Logged:
    base = BaseModel("seed", shop.tokenizer)
    return await read_logged(shop.session, shop.project.id, RunSettings(**settings), base)


async def best(shop: Served, **more: Any) -> Best:
    base = BaseModel("seed", shop.tokenizer)
    return await read_best(shop.session, shop.project.id, RunSettings(), base, **more)


async def pair(shop: Served) -> None:
    """Two tasks worth comparing."""
    for score in (1.0, 0.0):
        await shop.task(score)


async def rewarded(shop: Served, **settings: Any) -> list[ScoredRollout]:
    """What is learned from, in the order in which it was served."""
    steps = (await read(shop, **settings)).steps
    return sorted(chain.from_iterable(steps), key=lambda each: shop.tasks.index(each.trajectory.task.id))


async def staleness(shop: Served, **settings: Any) -> list[int]:
    return [each.staleness for each in await rewarded(shop, **settings)]


async def rewards(shop: Served, **settings: Any) -> dict[UUID, float]:
    return {each.trajectory.task.id: each.reward for each in await rewarded(shop, **settings)}


async def test_served_tasks_become_rewarded_trajectories(shop: Served) -> None:
    maker, failed = await shop.task(), await shop.task(0.25)
    skill = await shop.skill(maker)
    user, other = await shop.task(used=(skill,)), await shop.task(0.0, used=(skill,))
    assert await rewards(shop) == {maker.id: 2.0, failed.id: 0.25, user.id: 2.0, other.id: 0.0}
    assert [each.position for each in await rewarded(shop)] == [0, 0, 1, 1]
    assert {each.group for each in await rewarded(shop)} == {"scenario greetings, release 1"}
    tokens = 4 * len(shop.turn().sampled_ids)
    assert msgspec.structs.asdict((await read(shop)).kept) == {
        "tasks": 4,
        "trajectories": 4,
        "groups": 1,
        "tokens": tokens,
        "fraction": 1.0,
        "dropped": {},
        "staleness": {"0": 4},
    }


async def test_without_scenarios_the_words_of_the_instruction_make_the_group(shop: Served) -> None:
    for score, instruction in (
        (1.0, "count mails from iris"),
        (0.0, "count mails from omar"),
        (0.0, "pay the rent"),
    ):
        await shop.task(score, scenario=None, instruction=instruction)
    assert [each.reward for each in await rewarded(shop)] == [1.0, 0.0]
    assert (await read(shop)).kept.dropped == {"alone": 1}


@pytest.mark.parametrize(
    ("reason", "columns"),
    [
        ("cancelled", {"state": TaskState.CANCELLED, "stop": Stop.CANCELLED}),
        ("cancelled", {"state": TaskState.CANCELLED, "started_at": None, "release_id": None, "score": None}),
        ("failed", {"state": TaskState.FAILED, "score": None}),
        ("unscored", {"score": None}),
        ("alone", {"scenario": "another"}),
    ],
)
async def test_what_a_row_rules_out_is_left_out(shop: Served, reason: str, columns: dict[str, Any]) -> None:
    await pair(shop)
    await shop.task(**({"score": 0.5} | columns))
    kept = (await read(shop)).kept
    assert (kept.trajectories, kept.dropped) == (2, {reason: 1})


@pytest.mark.parametrize(
    ("reason", "turn"),
    [
        ("rewritten", {"extends": False}),
        ("empty", {"sampled_ids": (), "logprobs": (), "text": ""}),
        ("bad_logprobs", {"sampled_ids": (64,), "logprobs": (nan,), "text": "a"}),
        ("other_base", {"sampled_ids": (64,), "logprobs": (-1.0,), "text": "b"}),
        ("other_base", {"sampled_ids": (99_999,), "logprobs": (-1.0,), "text": "b"}),
    ],
)
async def test_what_a_trajectory_rules_out_is_left_out(shop: Served, reason: str, turn: dict[str, Any]) -> None:
    await pair(shop)
    await shop.rollout(await shop.task(0.5), shop.turn(**turn))
    kept = (await read(shop)).kept
    assert (kept.trajectories, kept.dropped) == (2, {reason: 1})


async def test_the_token_that_ends_an_answer_is_not_part_of_its_text(shop: Served) -> None:
    await pair(shop)
    turn = shop.turn()
    ended = (*turn.sampled_ids, *shop.tokenizer.stop_ids)
    await shop.rollout(await shop.task(0.5), shop.turn(sampled_ids=ended, logprobs=(-0.5,) * len(ended)))
    assert (await read(shop)).kept.trajectories == 3


async def test_a_task_whose_trajectory_is_missing_counts_as_failed(shop: Served) -> None:
    await pair(shop)
    lost = await shop.task(0.5)
    await shop.session.execute(delete(models.Trajectory).where(models.Trajectory.task_id == lost.id))
    assert (await read(shop)).kept.dropped == {"failed": 1}


async def test_an_adapter_of_another_base_is_left_out(shop: Served) -> None:
    shop.session.add_all(
        [models.Adapter(hash="ours", base="seed", rank=4), models.Adapter(hash="x", base="y", rank=4)]
    )
    await shop.release("x")
    await pair(shop)
    await shop.release("ours")
    await pair(shop)
    kept = (await read(shop)).kept
    assert (kept.trajectories, kept.dropped) == (2, {"other_base": 2})


async def test_samples_are_stale_by_the_releases_that_served_since(shop: Served) -> None:
    await pair(shop)
    for model in ("a", "b"):
        rejected = await releases.propose(shop.session, shop.project.id, f"no {model}")
        await releases.reject(shop.session, rejected.id, {})
        await shop.release(model)
        await pair(shop)
    assert await staleness(shop) == [2, 2, 1, 1, 0, 0]
    kept = (await read(shop, max_staleness=1)).kept
    assert (kept.dropped, kept.staleness) == ({"stale": 2}, {"0": 2, "1": 2})


async def test_a_release_that_changes_no_weights_makes_no_sample_stale(shop: Served) -> None:
    await pair(shop)
    for model in ("a", "a", "b", "b"):
        await shop.release(model)
        await pair(shop)
    assert await staleness(shop) == [2, 2, 1, 1, 1, 1, 0, 0, 0, 0]


async def test_after_a_roll_back_the_samples_of_the_later_release_are_stale(shop: Served) -> None:
    first = await releases.active(shop.session, shop.project.id)
    await shop.release("a")
    await pair(shop)
    await releases.activate(shop.session, first.id)
    await pair(shop)
    assert await staleness(shop) == [1, 1, 0, 0]


async def test_a_run_that_starts_from_the_base_takes_no_adapters_sample_for_its_own(shop: Served) -> None:
    await pair(shop)
    await shop.release("a")
    await pair(shop)
    assert await staleness(shop, start="base") == [0, 0, 1, 1]


async def test_a_broken_task_still_shows_what_the_skill_it_used_was_worth(shop: Served) -> None:
    maker, _ = await shop.task(), await shop.task(0.0)
    skill = await shop.skill(maker)
    uses = (Use("greet", inherited=True, calls=1, returned=1),)
    await shop.rollout(await shop.task(), shop.turn(extends=False, uses=uses), (skill,))
    assert (await rewards(shop))[maker.id] == 2.0
    assert (await read(shop)).kept.dropped == {"rewritten": 1}


async def test_a_stale_task_still_shows_what_the_skill_it_used_was_worth(shop: Served) -> None:
    first = await releases.active(shop.session, shop.project.id)
    maker, _ = await shop.task(), await shop.task(0.0)
    await shop.release("a")
    await shop.task(used=(await shop.skill(maker),))
    await releases.activate(shop.session, first.id)
    assert (await rewards(shop, max_staleness=0))[maker.id] == 2.0
    assert (await read(shop, max_staleness=0)).kept.dropped == {"stale": 1}


async def test_a_wrapper_of_one_api_earns_nothing(shop: Served) -> None:
    maker, _ = await shop.task(), await shop.task(0.0)
    skill = await shop.skill(maker, source="def greet():\n    return apis.mail.list_mails()\n")
    await shop.task(used=(skill,))
    assert (await rewards(shop))[maker.id] == 1.0


async def test_a_skill_that_was_deleted_earns_nothing_and_one_that_was_retired_does(shop: Served) -> None:
    maker, other, _ = await shop.task(), await shop.task(), await shop.task(0.0)
    gone, rested = await shop.skill(maker, "gone"), await shop.skill(other, "rested")
    await shop.task(used=(gone, rested))
    await skills.delete(shop.session, gone.id)
    await skills.retire(shop.session, rested.id)
    found = await rewards(shop)
    assert (found[maker.id], found[other.id]) == (1.0, 2.0)


async def test_the_maker_of_a_superseded_version_keeps_what_its_users_earned_it(shop: Served) -> None:
    maker, heir = await shop.task(), await shop.task()
    skill = await shop.skill(maker)
    await shop.task(used=(skill,))
    await shop.skill(heir, source="def greet():\n    return 2\n")
    assert await rewards(shop) == {maker.id: 2.0, heir.id: 1.0}


async def test_a_user_keeps_its_bonus_when_the_task_that_made_the_skill_is_deleted(shop: Served) -> None:
    maker = await shop.task()
    skill = await shop.skill(maker)
    user, failed = await shop.task(used=(skill,)), await shop.task(0.0, used=(skill,))
    await shop.session.execute(delete(models.Task).where(models.Task.id == maker.id))
    assert await rewards(shop) == {user.id: 2.0, failed.id: 0.0}


async def test_a_skill_of_another_project_earns_nothing(shop: Served) -> None:
    other = Served(shop.session, await project_row(shop.session), shop.tokenizer)
    skill = await other.skill(await other.task())
    user, _ = await shop.task(used=(skill,)), await shop.task(0.0, used=(skill,))
    assert (await rewards(shop))[user.id] == 1.0


async def test_words_that_a_skill_took_as_arguments_may_differ_within_a_group(shop: Served) -> None:
    maker = await shop.task(scenario=None, instruction="text Bo Lee Smith")
    await shop.task(0.0, scenario=None, instruction="text Al Van Ray")
    with pytest.raises(InvalidError, match="2 alone"):
        await read(shop)
    await shop.skill(maker, slots=["bo", "lee", "smith"])
    assert len(await rewarded(shop)) == 2


async def test_a_window_without_anything_scored_is_refused_with_advice(shop: Served) -> None:
    with pytest.raises(InvalidError, match="no task ended in the window"):
        await read(shop)
    await shop.task(None)
    with pytest.raises(InvalidError, match=r"no scored tasks in the window, of 1 .*check.*feedback"):
        await read(shop)


async def test_the_best_of_what_was_served_is_chosen_however_stale_it_is(shop: Served) -> None:
    maker, long = await shop.task(), await shop.task()
    await shop.rollout(long, shop.turn("print('a longer answer')"))
    await shop.task(0.5)
    skill = await shop.skill(maker)
    for model in ("a", "b", "c", "d"):
        await shop.release(model)
    user = await shop.task(used=(skill,))
    found = await best(shop, count=1)
    assert [each.task.id for each in found.trajectories] == [maker.id, user.id]
    assert (found.kept.groups, found.kept.dropped) == (1, {"weak": 1, "surplus": 1})
    assert len((await best(shop)).trajectories) == 3


async def test_what_was_sampled_at_another_temperature_than_1_is_only_imitated(shop: Served) -> None:
    for score in (1.0, 0.0):
        await shop.rollout(await shop.task(score), shop.turn(), temperature=0.0)
    with pytest.raises(InvalidError, match=r"2 not_sampled\): .*SAGE_TEMPERATURE=1"):
        await read(shop)
    assert len((await best(shop)).trajectories) == 1


async def test_without_a_success_there_is_nothing_to_imitate(shop: Served) -> None:
    await shop.task(0.9)
    await shop.task(1.0, stop=Stop.NO_CODE)
    with pytest.raises(InvalidError, match=r"2 weak.*wait for tasks that succeed"):
        await best(shop)
