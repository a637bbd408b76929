"""Reading logged experience from the tables: every reason to drop a task, and the rewards of the others."""

from math import nan
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.base.run_settings import RunKind
from app.base.values import BASE, NOT_OPEN, Call, CallResponse, Stop
from app.db import results, tables
from app.db.tables import TaskState
from app.releases import store as releases
from app.releases.exams import store as exams
from app.runs import experience
from tests.support.read_served import best, pair, read, rewards, rollouts, staleness
from tests.support.rows import project_row
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject, minute


@pytest.fixture
async def shop(session: AsyncSession, tmp_path: Path) -> ServedProject:
    return ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))


async def test_served_tasks_become_scored_rollouts(shop: ServedProject) -> None:
    maker, failed = await shop.task(), await shop.task(0.25)
    skill = await shop.skill(maker)
    user, other = await shop.task(used=(skill,)), await shop.task(0.0, used=(skill,))
    paid = {maker.id: 2.0, failed.id: 0.25, user.id: 2.0, other.id: 0.0}
    assert await rewards(shop, reward="skill") == paid
    assert await rewards(shop) == paid | {maker.id: 1.0, user.id: 1.0}, "tasks that used it scored less on average"
    assert [each.position for each in await rollouts(shop)] == [0, 0, 1, 1]
    assert {each.group for each in await rollouts(shop)} == {"scenario greetings, release 1"}
    tokens = 4 * len(shop.turn().sampled_ids)
    assert msgspec.structs.asdict((await read(shop)).data) == {
        "tasks": 4,
        "trajectories": 4,
        "groups": 1,
        "tokens": tokens,
        "fraction": 1.0,
        "dropped": {},
        "staleness": {"0": 4},
    }


async def test_without_scenarios_the_words_of_the_instruction_make_the_group(shop: ServedProject) -> None:
    for score, instruction in (
        (1.0, "count mails from iris"),
        (0.0, "count mails from omar"),
        (0.0, "pay the rent"),
    ):
        await shop.task(score, scenario=None, instruction=instruction)
    assert [each.reward for each in await rollouts(shop)] == [1.0, 0.0]
    assert (await read(shop)).data.dropped == {"no_peers": 1}


async def test_tasks_that_follow_a_conversation_are_learned_from_in_their_scenario_only(
    shop: ServedProject,
) -> None:
    for score in (1.0, 0.0):
        await shop.task(score, scenario=None, instruction="yes, do it", conversation="user: archive all")
    with pytest.raises(InvalidError, match="2 conversation"):
        await read(shop)
    await pair(shop)
    for score in (1.0, 0.0):
        await shop.task(score, conversation="user: archive all")
    assert len(await rollouts(shop)) == 4


async def test_an_exam_has_no_task_that_follows_a_conversation(shop: ServedProject) -> None:
    await shop.task(conversation="user: archive all")
    alone = await shop.task()
    assert [each.task_id for each in await exams.from_log(shop.session, shop.project.id)] == [alone.id]


@pytest.mark.parametrize(
    ("reason", "columns"),
    [
        ("cancelled", {"state": TaskState.CANCELLED, "stop": Stop.CANCELLED}),
        ("cancelled", {"state": TaskState.CANCELLED, "started_at": None, "release_id": None, "score": None}),
        ("failed", {"state": TaskState.FAILED, "score": None}),
        ("unscored", {"score": None}),
        ("no_peers", {"scenario": "another"}),
    ],
)
async def test_a_task_is_dropped_for_what_its_row_shows(
    shop: ServedProject, reason: str, columns: dict[str, Any]
) -> None:
    await pair(shop)
    await shop.task(**({"score": 0.5} | columns))
    data = (await read(shop)).data
    assert (data.trajectories, data.dropped) == (2, {reason: 1})


@pytest.mark.parametrize(
    ("reason", "turn"),
    [
        ("empty", {"sampled_ids": (), "logprobs": (), "text": ""}),
        ("bad_logprobs", {"sampled_ids": (64,), "logprobs": (nan,), "text": "a"}),
        ("other_base", {"sampled_ids": (64,), "logprobs": (-1.0,), "text": "b"}),
        ("other_base", {"sampled_ids": (99_999,), "logprobs": (-1.0,), "text": "b"}),
    ],
)
async def test_a_task_is_dropped_for_what_its_trajectory_shows(
    shop: ServedProject, reason: str, turn: dict[str, Any]
) -> None:
    await pair(shop)
    await shop.rollout(await shop.task(0.5), shop.turn(**turn))
    data = (await read(shop)).data
    assert (data.trajectories, data.dropped) == (2, {reason: 1})


async def test_a_task_whose_policy_met_a_secret_is_dropped_and_counted(shop: ServedProject) -> None:
    await pair(shop)
    row = await shop.task(0.5)
    whole = await shop.rollout(row, shop.turn())
    turn = msgspec.structs.replace(whole.turns[0], context_ids=(), sampled_ids=(), logprobs=())
    masked = msgspec.structs.replace(whole, turns=(turn,), masked=True)
    await results.save(shop.session, shop.project.id, masked)
    data = (await read(shop)).data
    assert (data.trajectories, data.dropped) == (2, {"secret": 1})


async def test_the_token_that_ends_an_answer_is_not_part_of_its_text(shop: ServedProject) -> None:
    await pair(shop)
    turn = shop.turn()
    ended = (*turn.sampled_ids, *shop.tokenizer.stop_ids)
    await shop.rollout(await shop.task(0.5), shop.turn(sampled_ids=ended, logprobs=(-0.5,) * len(ended)))
    assert (await read(shop)).data.trajectories == 3


async def test_a_task_whose_trajectory_is_missing_counts_as_failed(shop: ServedProject) -> None:
    await pair(shop)
    lost = await shop.task(0.5)
    await shop.session.execute(delete(tables.Trajectory).where(tables.Trajectory.task_id == lost.id))
    assert (await read(shop)).data.dropped == {"not_kept": 1}


async def test_samples_of_another_base_model_are_dropped(shop: ServedProject) -> None:
    shop.session.add_all(
        [tables.Adapter(hash="ours", base="seed", rank=4), tables.Adapter(hash="x", base="y", rank=4)]
    )
    await shop.release("x")
    await pair(shop)
    await shop.release("ours")
    await pair(shop)
    data = (await read(shop)).data
    assert (data.trajectories, data.dropped) == (2, {"other_base": 2})


async def test_samples_are_stale_by_the_releases_that_served_since(shop: ServedProject) -> None:
    await pair(shop)
    for model in ("a", "b"):
        rejected = await releases.propose(shop.session, shop.project.id, f"no {model}")
        await releases.reject(shop.session, rejected.id, {})
        await shop.release(model)
        await pair(shop)
    assert await staleness(shop) == [2, 2, 1, 1, 0, 0]
    data = (await read(shop, max_staleness=1)).data
    assert (data.dropped, data.staleness) == ({"stale": 2}, {"0": 2, "1": 2})
    assert (await read(shop)).data.dropped == {"stale": 4}


async def test_a_release_that_changes_no_weights_makes_no_sample_stale(shop: ServedProject) -> None:
    await pair(shop)
    for model in ("a", "a", "b", "b"):
        await shop.release(model)
        await pair(shop)
    assert await staleness(shop) == [2, 2, 1, 1, 1, 1, 0, 0, 0, 0]


async def test_after_a_roll_back_the_samples_of_the_later_release_are_stale(shop: ServedProject) -> None:
    first = await releases.active(shop.session, shop.project.id)
    await shop.release("a")
    await pair(shop)
    await releases.activate(shop.session, first.id)
    await pair(shop)
    assert await staleness(shop) == [1, 1, 0, 0]


async def test_for_a_run_that_starts_from_the_base_the_samples_of_adapters_are_stale(shop: ServedProject) -> None:
    await pair(shop)
    await shop.release("a")
    await pair(shop)
    assert await staleness(shop, start=BASE) == [0, 0, 1, 1]


async def test_samples_are_stale_by_the_weights_that_the_run_continues_even_if_others_are_active_by_now(
    shop: ServedProject,
) -> None:
    for model in ("a", "b"):
        await shop.release(model)
        await pair(shop)
    assert await staleness(shop, start="a") == [0, 0, 1, 1]


async def test_words_that_a_skill_took_as_arguments_may_differ_within_a_group(shop: ServedProject) -> None:
    maker = await shop.task(scenario=None, instruction="text Bo Lee Smith")
    await shop.task(0.0, scenario=None, instruction="text Al Van Ray")
    with pytest.raises(InvalidError, match="2 no_peers"):
        await read(shop)
    await shop.skill(maker, slots=["bo", "lee", "smith"])
    assert len(await rollouts(shop)) == 2


async def test_a_window_without_anything_scored_is_refused_with_advice(shop: ServedProject) -> None:
    with pytest.raises(InvalidError, match="no task ended in the window"):
        await read(shop)
    await shop.task(None)
    with pytest.raises(InvalidError, match=r"no scored tasks in the window, of 1 .*check.*feedback"):
        await read(shop)


async def test_the_best_served_tasks_are_selected_however_stale(shop: ServedProject) -> None:
    maker, long = await shop.task(), await shop.task()
    await shop.rollout(long, shop.turn("print('a longer answer')"))
    await shop.task(0.5)
    skill = await shop.skill(maker)
    for model in ("a", "b", "c", "d"):
        await shop.release(model)
    user = await shop.task(used=(skill,))
    found = await best(shop, count=1)
    assert [each.task.id for each in found.trajectories] == [maker.id, user.id]
    assert (found.data.groups, found.data.dropped) == (1, {"unsuccessful": 1, "surplus": 1})
    assert len((await best(shop)).trajectories) == 3


async def test_samples_of_another_temperature_than_1_are_only_imitated(shop: ServedProject) -> None:
    for score in (1.0, 0.0):
        await shop.rollout(await shop.task(score), shop.turn(), temperature=0.0)
    with pytest.raises(InvalidError, match=r"2 wrong_temperature\): .*SAGE_TEMPERATURE=1"):
        await read(shop)
    assert len((await best(shop)).trajectories) == 1


async def test_attempts_that_exploration_kept_from_a_call_are_not_learned_from(shop: ServedProject) -> None:
    """Or runs would teach the policy that such calls are in vain."""
    error = f"PermissionError: mail.send_mail {NOT_OPEN}"
    kept = Call(seq=0, turn=0, api="mail.send_mail", arguments={}, error=error)
    said = msgspec.structs.replace(kept, error=f"ApiError: {NOT_OPEN}", response=CallResponse(status=400))
    for score, call in ((1.0, kept), (0.0, kept), (1.0, said), (0.0, said)):
        turn = msgspec.structs.replace(shop.turn(), calls=(call,))
        await shop.rollout(await shop.task(score), turn)
    found = await read(shop)
    assert (found.data.trajectories, found.data.dropped) == (2, {"kept_back": 2})


async def test_without_a_success_there_is_nothing_to_imitate(shop: ServedProject) -> None:
    await shop.task(0.9)
    await shop.task(1.0, stop=Stop.NO_CODE)
    with pytest.raises(InvalidError, match=r"2 unsuccessful.*wait for tasks that succeed"):
        await best(shop)


async def _adopted(shop: ServedProject, minutes: int, **more: Any) -> tables.Release:
    """The release of a run on served tasks, which serves."""
    return await releases.activate(shop.session, (await shop.trained(minutes, **more)).id)


async def test_a_run_learns_from_what_is_new_and_replays_a_share(shop: ServedProject) -> None:
    for score in (1.0, 0.0) * 6:
        await shop.task(score)
    await _adopted(shop, 9)  # eight had ended
    found = await read(shop, replay=0.25, max_staleness=1)
    assert found.data.dropped == {"learned": 7}
    kept = [
        shop.tasks.index(each.trajectory.task.id) for each in await rollouts(shop, replay=0.25, max_staleness=1)
    ]
    assert kept == [7, 8, 9, 10, 11]
    assert len(await rollouts(shop, replay=0.0, max_staleness=1)) == 4
    assert len(await rollouts(shop, replay=1.0, max_staleness=1)) == 12
    assert len(await rollouts(shop, since=minute(0), max_staleness=1)) == 12


async def test_what_a_rejected_release_learned_from_counts_as_new(shop: ServedProject) -> None:
    for score in (1.0, 0.0) * 2:
        await shop.task(score)
    await releases.reject(shop.session, (await shop.trained(9)).id, {})
    assert len(await rollouts(shop)) == 4


async def test_what_only_weights_learned_from_that_no_longer_serve_counts_as_new(shop: ServedProject) -> None:
    first = await releases.active(shop.session, shop.project.id)
    await pair(shop)
    learned = await _adopted(shop, 2)  # one had ended
    await releases.activate(shop.session, first.id)
    assert len(await rollouts(shop)) == 2
    again = await releases.propose(shop.session, shop.project.id, learned.model)  # as another prompt would
    await releases.activate(shop.session, again.id)
    assert (await experience.learned_until(shop.session, shop.project.id)) == minute(2)


async def test_what_weights_learned_from_before_they_were_trained_on_otherwise_counts(shop: ServedProject) -> None:
    logged = await _adopted(shop, 2)
    demonstrated = await _adopted(shop, 3, kind=RunKind.SFT, started_from=logged.model)
    await _adopted(shop, 4, kind=RunKind.ROLLOUT, started_from=demonstrated.model)
    assert (await experience.learned_until(shop.session, shop.project.id)) == minute(2)
    await _adopted(shop, 5, kind=RunKind.ROLLOUT)
    assert (await experience.learned_until(shop.session, shop.project.id)) is None


async def test_without_new_tasks_there_is_nothing_to_learn_from(shop: ServedProject) -> None:
    await pair(shop)
    await _adopted(shop, 9)
    with pytest.raises(InvalidError, match=r"nothing to learn from in 2 tasks \(2 learned\): wait for new tasks"):
        await read(shop)
