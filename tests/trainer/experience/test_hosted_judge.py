"""A hosted model of a project judges its tasks, by the name of its entry."""

import re
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from app.base.errors import InvalidError, SettingError
from app.base.judge import GroupJudge, load_judge
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.db import tables
from app.db.database import Sessions
from app.projects import usage
from app.releases import hosted_models
from tests.support.odd_endpoint import OddEndpoint, Reply, refused, said
from tests.support.rows import project_row
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject
from tests.trainer.experience.test_openai_judge import served
from trainer import hosted
from trainer.experience import judge_window

KEY = "sk-0123456789-secret"
JUDGE = "trainer.hosted:load_hosted_judge?model=wise&group_size=3"


def by_output(sent: Mapping[str, Any]) -> Reply:
    """A success where the code printed "paid"."""
    attempts = re.findall(r"<attempt \d+ \w+>\n(.*?)\n</attempt", sent["messages"][1]["content"], re.DOTALL)
    scores = [float("paid" in each) for each in attempts]
    return said(f'{{"scores": {scores}}}', usage={"prompt_tokens": 90, "completion_tokens": 10})


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[OddEndpoint, str]]:
    endpoint = OddEndpoint(by_output)
    async with endpoint.listening() as url:
        yield endpoint, url


@pytest.fixture
async def shop(committed: Sessions, tmp_path: Path) -> AsyncIterator[ServedProject]:
    async with committed() as session:
        yield ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))


async def add(shop: ServedProject, url: str) -> None:
    more = {"url": url, "model": "wise-1", "price_in": 3.0, "price_out": 15.0, "trusted": True}
    await hosted_models.add(shop.session, shop.project.id, "wise", KEY, **more)
    await shop.session.commit()


async def judge(shop: ServedProject, committed: Sessions, text: str = JUDGE) -> list[tables.Task]:
    """The tasks after the judge was asked, oldest first."""
    await judge_window(committed, shop.project.id, RunSettings(), Settings(judge=text))
    found = [await shop.session.get(tables.Task, each, populate_existing=True) for each in shop.tasks]
    return [each for each in found if each is not None]


async def test_it_judges_with_the_key_of_its_entry_and_the_project_pays(
    shop: ServedProject, committed: Sessions, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    await add(shop, url)
    await served(shop, "paid", "refused", "paid", "refused")
    tasks = await judge(shop, committed)
    assert [each.score for each in tasks] == [1.0, 0.0, 1.0, 0.0]
    assert {each.score_source for each in tasks} == {"judge"}
    assert [each["authorization"] for each in asked.headers] == [f"Bearer {KEY}"] * 2
    assert {each["model"] for each in asked.requests} == {"wise-1"}
    spent = (await usage.of_today(shop.session, shop.project.id)).cost
    assert spent == pytest.approx(2 * (90 * 3 + 10 * 15) / 1e6)
    await judge(shop, committed)
    assert len(asked.requests) == 2, "no task is judged twice"


@pytest.mark.parametrize("finish", ["stop", "error"])
async def test_an_answer_that_holds_no_scores_or_breaks_off_costs_as_much(
    shop: ServedProject, committed: Sessions, endpoint: tuple[OddEndpoint, str], finish: str
) -> None:
    asked, url = endpoint
    asked.answer = lambda _: said("all are fine", finish, {"prompt_tokens": 90, "completion_tokens": 10})
    await add(shop, url)
    await served(shop, "paid")
    [task] = await judge(shop, committed)
    spent = (await usage.of_today(shop.session, shop.project.id)).cost
    assert task.score is None
    assert spent == pytest.approx((90 * 3 + 10 * 15) / 1e6)


async def test_another_model_under_its_name_is_another_judge(
    shop: ServedProject, committed: Sessions, endpoint: tuple[OddEndpoint, str]
) -> None:
    _, url = endpoint
    await add(shop, url)
    await served(shop, "paid")
    [first] = [each.judged_by for each in await judge(shop, committed)]
    await shop.session.execute(update(tables.HostedModel).values(model="wise-2"))
    await shop.session.commit()
    [second] = [each.judged_by for each in await judge(shop, committed)]
    assert first
    assert second not in (first, None)


async def test_a_project_without_it_is_not_judged_and_a_refusal_is_noted_with_the_model(
    shop: ServedProject, committed: Sessions, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    await served(shop, "paid")
    with capture_logs() as logged:
        [task] = await judge(shop, committed)
    assert (task.score, asked.requests) == (None, [])
    assert "no hosted model named 'wise'" in str(logged)
    asked.answer = lambda _: refused("Incorrect API key", 401)
    await add(shop, url)
    [task] = await judge(shop, committed)
    entry = await hosted_models.get(shop.session, shop.project.id, "wise")
    assert (task.score, "Incorrect API key" in (entry.failure or "")) == (None, True)


async def test_it_is_loaded_before_any_database_is_open_and_judges_within_a_project() -> None:
    named = load_judge(JUDGE)
    assert named is not None
    assert isinstance(named.group, GroupJudge)
    assert named.group.group_size == 3
    with pytest.raises(InvalidError, match="belongs to a project"):
        await named.group.score_group("", [])
    with pytest.raises(SettingError, match="needs the option model"):
        load_judge(JUDGE.partition("?")[0])


def test_the_package_names_it_hosted() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    [value] = re.findall(r'^\[project\.entry-points\."sage\.judges"\]\nhosted = "(.*)"$', text, re.MULTILINE)
    assert EntryPoint("hosted", value, "sage.judges").load() is hosted.load_hosted_judge
