"""What the code of an agent is told of apps and operations that are not there."""

from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Observation, SessionLimits

_LIMITS = SessionLimits(cpu_seconds=0.5, wall_seconds=30, calls=5, output_chars=1000, frame_bytes=1 << 16)
_APIS = {"mail": ["send", "search"], "api_docs": ["show_api_descriptions", "show_app_descriptions"]}


async def _call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise AssertionError(f"{api} was called: {args}, {kwargs}")


async def _run(sandbox: ForkedSandbox, *turns: str) -> list[Observation]:
    session = await sandbox.open(_APIS, _call, _LIMITS)
    try:
        return [await session.run(turn) for turn in turns]
    finally:
        await session.close()


async def test_an_unknown_name_suggests_the_nearest_and_names_the_look_up(sandbox: ForkedSandbox) -> None:
    operation, app, elsewhere = await _run(
        sandbox, "apis.mail.serch", "apis.male", "apis.mail.show_app_descriptions"
    )
    assert "no operation 'serch'. Did you mean 'search'?" in (operation.error or "")
    assert "apis.api_docs.show_api_descriptions(app_name='mail')" in (operation.error or "")
    assert "no app 'male'. Did you mean 'mail'? apis.api_docs.show_app_descriptions()" in (app.error or "")
    assert "no operation 'show_app_descriptions'. apis.api_docs has it." in (elsewhere.error or "")


async def test_a_former_name_still_works_and_is_not_listed(sandbox: ForkedSandbox) -> None:
    asked: list[str] = []

    async def call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
        asked.append(f"{api} {args} {kwargs}")
        return "sent"

    apis = {"mail": ["send_mail", "list_mails", "mails_send=send_mail"]}
    session = await sandbox.open(apis, call, _LIMITS)
    try:
        seen = await session.run("print(apis.mail.mails_send(to='x'), dir(apis.mail))\napis.mail.sand_mail")
    finally:
        await session.close()
    assert seen.stdout == "sent ['list_mails', 'send_mail']\n"
    assert asked == ["mail.send_mail [] {'to': 'x'}"]
    assert "Did you mean 'send_mail'" in (seen.error or "")


async def test_an_operation_called_by_its_thing_alone_is_one_of_those_about_it(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, "apis.api_docs.descriptions()")
    assert "Did you mean 'show_api_descriptions' or 'show_app_descriptions'?" in (seen.error or "")


async def test_an_app_called_by_the_name_of_what_it_keeps_is_found_by_its_operations(
    sandbox: ForkedSandbox,
) -> None:
    kept, unknown = await _run(sandbox, "apis.sends", "apis.weather")
    assert "no app 'sends'. Did you mean 'mail' (it has 'send')?" in (kept.error or "")
    assert "no app 'weather': it has mail, api_docs. apis.api_docs.show_app_descriptions() lists them." in (
        unknown.error or ""
    )


async def test_where_no_name_is_near_all_are_listed_or_of_many_the_nearest(sandbox: ForkedSandbox) -> None:
    names = [f"list_beds_of_ward_{number}" for number in range(40)]
    near = ", ".join(names[:13])
    for operations, hint in (
        (["list_beds", "add_bed"], ": it has list_beds, add_bed."),
        ([*names, "wxyzz"], f": it has wxyzz, {near}, ..."),
    ):
        session = await sandbox.open({"clinic": operations}, _call, _LIMITS)
        try:
            seen = await session.run("apis.clinic.zz__()")
        finally:
            await session.close()
        assert f"no operation 'zz__'{hint} dir(apis.clinic) lists them." in (seen.error or "")
