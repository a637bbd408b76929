"""The pages of skills, of a project with 2,000."""

import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from app.db.tables import SkillState
from app.skills import store as skills
from tests.support.grown_console import GrownConsole
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def _skill(grown: GrownConsole, **only: object) -> str:
    """The path of the newest skill like this."""
    async with grown.api.sessions() as session:
        found = await skills.page(session, skills.SkillFilter(project_id=grown.project.id, **only), limit=1)  # type: ignore[arg-type]
        return f"/console/skills/{found.items[0].id}"


async def test_the_library_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/skills")
    await expect(page.get_by_text("1,920 skills")).to_be_visible()


async def test_the_page_of_a_skill_is_right_everywhere(check_grown: CheckPage, grown: GrownConsole) -> None:
    page = await check_grown(await _skill(grown, name=grown.project.best))
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"{grown.project.best} v4")
    await expect(page.get_by_text("-    while rows := apis")).to_have_count(0)
    await expect(page.get_by_text("limit: int = 200) -> int:").last).to_be_visible()


async def test_the_question_before_a_change_is_right_everywhere(
    check_grown: CheckPage, grown: GrownConsole
) -> None:
    chosen = (await _skill(grown, name=grown.project.best)).rpartition("/")[2]
    page = await check_grown(f"/console/skills/change?move=retire&skill={chosen}")
    await expect(page.get_by_text(grown.project.best).first).to_be_visible()


async def test_the_picture_of_lineage_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/skills/lineage")
    await expect(page.get_by_text("4 versions").first).to_be_visible()


async def test_the_rows_of_the_library_are_gone_through_with_the_keyboard(grown_page: Page) -> None:
    await grown_page.goto("/console/skills")
    links = grown_page.get_by_role("region", name="Skills").locator("tbody").get_by_role("link")
    for key, row in (("j", 0), ("j", 1), ("k", 0)):
        await grown_page.keyboard.press(key)
        await expect(links.nth(row)).to_be_focused()
    name = await links.first.inner_text()
    await grown_page.keyboard.press("Enter")
    await expect(grown_page.get_by_role("heading", level=1)).to_contain_text(name)


async def test_a_person_finds_the_skill_that_saves_most(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto("/console")
    await grown_page.get_by_role("link", name="Skills", exact=True).click()
    await expect(grown_page.get_by_text("Saves most:")).to_contain_text(grown.project.best)
    first = grown_page.get_by_role("table").get_by_role("row").nth(1)
    await expect(first).to_contain_text(grown.project.best)
    await grown_page.get_by_text("Saves most:").get_by_role("link").click()
    await expect(grown_page.get_by_text("Tokens saved in")).to_be_visible()


async def test_skills_are_searched_while_a_person_types_and_sorted_by_columns(grown_page: Page) -> None:
    await grown_page.goto("/console/skills")
    await grown_page.get_by_label("Search").fill("payments over limit")
    await expect(grown_page.get_by_text(re.compile(r"^3\d skills"))).to_be_visible()
    assert "q=payments+over+limit" in grown_page.url
    await grown_page.get_by_role("link", name="Uses").click()
    await expect(grown_page.get_by_role("columnheader", name="Uses")).to_have_attribute("aria-sort", "descending")
    cells = await grown_page.locator("td.number:nth-child(6)").all_inner_texts()
    uses = [int(text.split()[0].replace(",", "")) for text in cells]
    assert uses == sorted(uses, reverse=True)
    assert uses[0] > 0


async def test_many_skills_are_retired_and_restored_at_once(grown_page: Page) -> None:
    await grown_page.goto("/console/skills?q=export_books_by_status")
    for version in (2, 4):
        await grown_page.get_by_label(f"Select export_books_by_status, version {version}").check()
    await grown_page.get_by_role("button", name="Retire").click()
    await expect(grown_page.get_by_role("heading", name="Retire export_books_by_status?")).to_be_visible()
    changes = grown_page.get_by_role("table")
    await expect(changes.get_by_role("row")).to_have_count(5)  # all versions of the name
    await grown_page.get_by_role("button", name="Retire export_books_by_status").click()
    await expect(grown_page.get_by_role("status")).to_have_text("retired export_books_by_status")
    await grown_page.goto("/console/skills?q=export_books_by_status&state=retired")
    await expect(grown_page.get_by_text(re.compile("^4 skills"))).to_be_visible()
    await grown_page.get_by_role("link", name="export_books_by_status").first.click()
    await expect(grown_page.get_by_text("It is retired because its name was retired")).to_be_visible()
    await grown_page.get_by_role("link", name="Restore").click()
    await grown_page.get_by_role("button", name="Restore export_books_by_status").click()
    await expect(grown_page.get_by_role("status")).to_have_text("restored export_books_by_status")


async def test_what_waits_for_a_person_is_named_and_approved(grown_page: Page) -> None:
    await grown_page.goto("/console/skills")
    await grown_page.get_by_role("link", name=re.compile("wait for a person")).click()
    row = grown_page.get_by_role("row").filter(has_text="waits for approval").first
    await row.get_by_role("link").click()
    await expect(grown_page.get_by_text("Held: offered to nobody until a person approves it.")).to_be_visible()
    await grown_page.get_by_role("link", name="Approve").click()
    await expect(grown_page.get_by_role("cell", name="quarantined, held")).to_be_visible()
    await grown_page.get_by_role("button", name="Approve").click()
    await expect(grown_page.get_by_role("status")).to_contain_text("approved")
    await expect(grown_page.get_by_text("it was approved").first).to_be_visible()


async def test_a_skill_is_merged_into_one_that_does_the_same(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto(await _skill(grown, name="sum_books_of_week", live=True))
    kept = grown_page.get_by_label("Skill to keep")
    await kept.select_option(label=(await kept.locator("option").first.inner_text()))
    name = (await kept.locator("option").first.inner_text()).split()[0]
    await grown_page.get_by_role("button", name="Compare and merge").click()
    await expect(grown_page.get_by_role("heading", name="How the two differ")).to_be_visible()
    await grown_page.get_by_role("button", name="Merge sum_books_of_week").click()
    await expect(grown_page.get_by_role("heading", level=1)).to_contain_text(name)
    async with grown.api.sessions() as session:
        for each in await skills.of_names(session, grown.project.id, ["sum_books_of_week"]):
            assert (each.state, each.reason) == (SkillState.RETIRED, f"{name} does the same")


async def test_a_skill_is_exported(grown_page: Page, grown: GrownConsole, tmp_path: Path) -> None:
    await grown_page.goto(await _skill(grown, name=grown.project.best))
    async with grown_page.expect_download() as started:
        await grown_page.get_by_role("link", name="Export", exact=True).click()
    await (await started.value).save_as(tmp_path / "skill.py")
    assert (tmp_path / "skill.py").read_text().startswith(f"def {grown.project.best}(who: str, limit: int = 200)")


async def test_without_scripts_skills_are_found_and_changed(chromium: Browser, grown: GrownConsole) -> None:
    context = await chromium.new_context(base_url=grown.url, java_script_enabled=False)
    await grown.sign_in(context)
    page = await context.new_page()
    await page.goto("/console/skills")
    await page.get_by_label("Search").fill("export_contacts_of_week")
    await page.get_by_role("button", name="Search").click()
    await page.get_by_role("checkbox").first.check()
    await page.get_by_role("button", name="Retire").click()
    await page.get_by_role("button", name="Retire export_contacts_of_week").click()
    await expect(page.get_by_role("status")).to_have_text("retired export_contacts_of_week")
    await context.close()


async def test_pages_of_skills_are_for_keys_of_the_project_with_the_scope(grown: GrownConsole) -> None:
    path = await _skill(grown)
    other = (await grown.api.project("elsewhere")).id
    change = f"/console/skills/change?move=retire&skill={path.rpartition('/')[2]}"
    async with httpx.AsyncClient(base_url=grown.url, timeout=300) as client:
        for scopes, project_id, status in (
            (["tasks"], None, 403),
            (["skills"], other, 404),
            (["skills"], grown.project.id, 200),
        ):
            cookies = {grown.cookie: await grown.session(*scopes, project_id=project_id)}
            for address in (path, f"{path}/export", f"{path}/lineage.csv", change):
                answer = await client.get(address, headers={"Cookie": f"{grown.cookie}={cookies[grown.cookie]}"})
                assert answer.status_code == status, address


async def test_a_change_that_is_only_looked_at_changes_nothing(grown: GrownConsole, grown_page: Page) -> None:
    path = await _skill(grown, state=SkillState.ACTIVE)
    await grown_page.goto(f"/console/skills/change?move=retire&skill={path.rpartition('/')[2]}")
    await expect(grown_page.get_by_role("heading", name="What will change")).to_be_visible()
    assert await _skill(grown, state=SkillState.ACTIVE) == path
