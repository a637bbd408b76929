"""changedetection.io, which watches pages: sixty tasks in plain English. No page is fetched."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec

from tests.bench.other_server import Check, Expected, OtherServer, OtherTask, is_answer
from tests.integration.servers.installed import python_server
from tests.integration.servers.server_process import server_process

Facts: TypeAlias = dict[str, Any]  # of a watch or a tag, without those that are empty or false

FEW: dict[str, Facts] = {
    "Bakery prices": {"url": "https://bakery.example/prices", "tag": "food"},
    "Cheese shop": {"url": "https://cheese.example/offers", "tag": "food"},
    "Tram timetable": {"url": "https://tram.example/line4", "tag": "travel"},
    "Ferry strikes": {"url": "https://ferry.example/notices", "tag": "travel", "paused": True},
    "Museum news": {"url": "https://museum.example/news", "tag": "culture"},
    "Library hours": {"url": "https://library.example/hours", "tag": "culture", "paused": True},
}
_FEW_TAGS: dict[str, Facts] = {"culture": {}, "food": {}, "spare": {}, "travel": {}}


def _every(**interval: int) -> Facts:
    """Checked at this interval instead of the server's."""
    return {"time_between_check": interval, "time_between_check_use_default": False}


MANY: dict[str, Facts] = {
    "Bike lamps": {"url": "https://shop.example/lamps?sort=price&page=2", "tag": "shopping"},
    "Bike locks": {"url": "https://shop.example/locks", "tag": "shopping", "paused": True},
    "Bike locks (used)": {"url": "https://market.example/locks?used=1&year=2027", "tag": "shopping"},
    "Bike repair hours": {"url": "https://workshop.example/hours"},
    "Garden chairs": {"url": "https://shop.example/chairs", "tag": "garden, shopping", "notification_muted": True},
    "Garden chairs sale": {"url": "https://sale.example/garden/chairs", "tag": "garden", "paused": True},
    "Seed catalogue 2026": {
        "url": "https://seeds.example/catalogue?year=2026",
        "tag": "garden",
        "paused": True,
        "notification_muted": True,
    },
    "Seed catalogue 2027": {"url": "https://seeds.example/catalogue?year=2027", "tag": "garden"},
    "Night trains": {"url": "https://rail.example/night", "tag": "travel", **_every(hours=6)},
    "Night trains to Zürich": {
        "url": "https://rail.example/night?to=Z%C3%BCrich",
        "tag": "travel",
        "notification_muted": True,
    },
    "Café menu": {
        "url": "https://cafe.example/menu",
        "tag": "lunch",
        "notification_urls": ["json://localhost/kitchen"],
    },
    "Lunch of the day": {"url": "https://canteen.example/today", "tag": "lunch", **_every(days=1)},
    "4711": {"url": "https://perfume.example/4711", "tag": "shopping", "paused": True},
    "Job board": {"url": "https://jobs.example/all", "tag": "work"},
    'Job board "remote"': {"url": "https://jobs.example/remote?page=1&size=50", "tag": "work", "paused": True},
    "Council minutes": {"url": "https://council.example/minutes", **_every(minutes=30)},
    "Water levels": {
        "url": "https://river.example/levels",
        "include_filters": ["#gauge"],
        **_every(minutes=15),
    },
    "https://status.example/": {"title": "", "tag": "work", "notification_muted": True},
    "https://shop.example/new?week=1": {"title": ""},
}
_MANY_TAGS: dict[str, Facts] = {
    "garden": {},
    "lunch": {},
    "shopping": {},
    "spare parts": {},
    "travel": {},
    "work": {"notification_muted": True},
}
_MANY_NOTIFICATIONS = ["json://localhost/all", "json://localhost/night"]
_KEY = "x-api-key"


class ServerState(msgspec.Struct, frozen=True):
    """What a server holds: watches by title or, without one, by URL; tags by title; notification URLs."""

    watches: dict[str, Facts]
    tags: dict[str, Facts]
    notifications: list[str]
    version: str


@contextmanager
def _running(place: Path, port: int) -> Iterator[httpx.Client]:
    url, program = f"http://127.0.0.1:{port}", python_server("changedetection") / "changedetection.io"
    command = (program, "-C", "-d", place / "data", "-h", "127.0.0.1", "-p", str(port))
    with server_process(command, place, f"{url}/api/v1/systeminfo"):
        pass  # the first start writes the settings
    file = place / "data" / "changedetection.json"
    settings = json.loads(file.read_text())
    settings["settings"]["application"]["all_paused"] = True
    file.write_text(json.dumps(settings))
    key = {_KEY: settings["settings"]["application"]["api_access_token"]}
    with (
        server_process(command, place, f"{url}/api/v1/systeminfo"),
        httpx.Client(base_url=url, headers=key, timeout=60, trust_env=False) as client,
    ):
        yield client


def _api(server: httpx.Client) -> dict[str, Any]:
    return {
        "server": f"{str(server.base_url).rstrip('/')}/api/v1",
        "document": server.get("/api/v1/full-spec").raise_for_status().text,
        "credentials": {"ApiKeyAuth": {"value": server.headers[_KEY]}},
    }


def seed(server: httpx.Client, many: bool) -> None:
    """Make the server hold what tasks expect, and nothing else."""
    watches, tags = (MANY, _MANY_TAGS) if many else (FEW, _FEW_TAGS)
    for kind, every in (("watch", "watch"), ("tag", "tags")):
        for uuid in _get(server, every):
            gone = server.delete(f"/api/v1/{kind}/{uuid}")
            assert gone.is_success, gone.text
    urls = {"notification_urls": _MANY_NOTIFICATIONS if many else []}
    server.put("/api/v1/notifications", json=urls).raise_for_status()
    for title, fields in tags.items():
        server.post("/api/v1/tag", json={"title": title, **fields}).raise_for_status()
    for name, watch in watches.items():
        server.post("/api/v1/watch", json={"title": name, "url": name, **watch}).raise_for_status()


def read_state(server: httpx.Client) -> ServerState:
    titles = {uuid: tag["title"] for uuid, tag in _get(server, "tags").items()}
    watches: dict[str, Facts] = {}
    for uuid in _get(server, "watch"):
        watch = _facts(_get(server, f"watch/{uuid}"), titles)
        name = watch.get("title") or watch["url"]
        while name in watches:
            name += " again"
        watches[name] = watch
    return ServerState(
        watches,
        {title: _facts(_get(server, f"tag/{uuid}"), titles) for uuid, title in titles.items()},
        sorted(_get(server, "notifications")["notification_urls"]),
        _get(server, "systeminfo")["version"],
    )


_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_CHECKED = ("last_checked", "last_error", "check_count", "fetch_time", "consecutive_filter_failures")
_UNSAID = ("uuid", "date_created", "link", "open_link", "tag", *_CHECKED)  # no settings, or said by another field


def _facts(thing: Mapping[str, Any], titles: Mapping[str, str]) -> Facts:
    """Tags are titles, and an interval is in seconds: none where the server's default holds."""
    facts = {name: value for name, value in thing.items() if name not in _UNSAID}
    facts["tags"] = sorted(titles[uuid] for uuid in thing["tags"] if uuid in titles)
    facts["notification_urls"] = sorted(thing["notification_urls"])
    interval = {} if thing["time_between_check_use_default"] else thing["time_between_check"]
    facts["time_between_check"] = sum(_SECONDS[unit] * (number or 0) for unit, number in interval.items())
    return _said(facts)


def _said(facts: Facts) -> Facts:
    return {name: value for name, value in facts.items() if value}


def _get(server: httpx.Client, path: str) -> Any:
    return server.get(f"/api/v1/{path}").raise_for_status().json()


def _ends(
    watches: Mapping[str, Facts | None] | None = None,
    tags: Mapping[str, Facts | None] | None = None,
    notifications: list[str] | None = None,
    answer: Expected | None = None,
) -> Check[ServerState]:
    """These fields of these watches and tags have become so, None being those that are gone, and nothing else has.

    A tag that has another title, or is gone, has it on the watches as well.
    """

    def check(before: ServerState, after: ServerState, said: str) -> bool:
        wanted = ServerState(
            _changed(_retagged(before.watches, tags or {}), watches or {}),
            _changed(before.tags, tags or {}),
            before.notifications if notifications is None else sorted(notifications),
            before.version,
        )
        return after == wanted and (answer is None or is_answer(said, answer))

    return check


def _changed(things: Mapping[str, Facts], changes: Mapping[str, Facts | None]) -> dict[str, Facts]:
    plainest = min(things.values(), key=len)  # nothing is set that need not be
    new = {name: value for name, value in plainest.items() if name not in ("url", "title", "tags")}
    changed = {name: thing for name, thing in things.items() if name not in changes}
    for name, fields in changes.items():
        if fields is not None:
            thing = _said(things.get(name, new) | fields)
            changed[thing.get("title") or thing["url"]] = thing
    return changed


def _retagged(watches: Mapping[str, Facts], tags: Mapping[str, Facts | None]) -> dict[str, Facts]:
    titles = {old: None if fields is None else fields.get("title", old) for old, fields in tags.items()}
    moved = {
        name: sorted(filter(None, (titles.get(tag, tag) for tag in watch.get("tags", ()))))
        for name, watch in watches.items()
    }
    return {name: _said(watch | {"tags": moved[name]}) for name, watch in watches.items()}


def _version(before: ServerState, after: ServerState, answer: str) -> bool:
    return answer == before.version and after == before


_FIND = 'ids = {each["title"]: uuid for uuid, each in <GET /watch>().items()}\n'
_WHOLE = "every = [<GET /watch/{uuid}>(uuid=uuid) for uuid in <GET /watch>()]\n"
_TAGS = 'tags = {each["title"]: uuid for uuid, each in <GET /tags>().items()}\n'


def _put(title: str, fields: str) -> str:
    return f"{_FIND}<PUT /watch/{{uuid}}>(uuid=ids[{title!r}], {fields})"


_FIRST: tuple[OtherTask[ServerState], ...] = (
    OtherTask(
        "create by url",
        "Start watching https://garden.example/seeds",
        _ends({"new": {"url": "https://garden.example/seeds"}}),
        '<POST /watch>(url="https://garden.example/seeds")',
    ),
    OtherTask(
        "create with a title",
        'Watch the page https://opera.example/tickets under the title "Opera".',
        _ends({"new": {"url": "https://opera.example/tickets", "title": "Opera"}}),
        '<POST /watch>(url="https://opera.example/tickets", title="Opera")',
    ),
    OtherTask(
        "delete by title",
        'Delete the watch with the title "Tram timetable".',
        _ends({"Tram timetable": None}),
        f'{_FIND}<DELETE /watch/{{uuid}}>(uuid=ids["Tram timetable"])',
    ),
    OtherTask(
        "delete by url",
        "Stop watching https://cheese.example/offers: delete that watch.",
        _ends({"Cheese shop": None}),
        f'{_FIND}<DELETE /watch/{{uuid}}>(uuid=ids["Cheese shop"])',
    ),
    OtherTask(
        "delete by condition",
        "Delete all watches that are paused.",
        _ends({"Ferry strikes": None, "Library hours": None}),
        f'{_WHOLE}for each in every:\n    if each["paused"]:\n        <DELETE /watch/{{uuid}}>(uuid=each["uuid"])',
    ),
    OtherTask(
        "pause by title",
        'Pause the watch with the title "Cheese shop".',
        _ends({"Cheese shop": {"paused": True}}),
        _put("Cheese shop", "paused=True"),
    ),
    OtherTask(
        "unpause by title",
        'The watch titled "Library hours" is paused: unpause it.',
        _ends({"Library hours": {"paused": False}}),
        _put("Library hours", "paused=False"),
    ),
    OtherTask(
        "pause all",
        "Pause all watches.",
        _ends({title: {"paused": True} for title in FEW}),
        "for uuid in <GET /watch>():\n    <PUT /watch/{uuid}>(uuid=uuid, paused=True)",
    ),
    OtherTask("count all", "How many watches are there?", _ends(answer=6), "answer = len(<GET /watch>())"),
    OtherTask(
        "count by a boolean",
        "How many watches are paused?",
        _ends(answer=2),
        f'{_WHOLE}answer = len([each for each in every if each["paused"]])',
    ),
    OtherTask(
        "title by url",
        "What is the title of the watch whose url is https://ferry.example/notices?",
        _ends(answer="Ferry strikes"),
        f'{_WHOLE}[answer] = [each["title"] for each in every if each["url"] == "https://ferry.example/notices"]',
    ),
    OtherTask(
        "url by title",
        'What is the url of the watch with the title "Museum news"?',
        _ends(answer="https://museum.example/news"),
        f'{_WHOLE}[answer] = [each["url"] for each in every if each["title"] == "Museum news"]',
    ),
    OtherTask(
        "rename",
        'Change the title of the watch "Tram timetable" to "Line 4".',
        _ends({"Tram timetable": {"title": "Line 4"}}),
        _put("Tram timetable", 'title="Line 4"'),
    ),
    OtherTask(
        "change url by title",
        'Change the url of the watch "Bakery prices" to https://bakery.example/menu',
        _ends({"Bakery prices": {"url": "https://bakery.example/menu"}}),
        _put("Bakery prices", 'url="https://bakery.example/menu"'),
    ),
    OtherTask(
        "mute by title",
        'Mute the notifications of the watch "Bakery prices".',
        _ends({"Bakery prices": {"notification_muted": True}}),
        _put("Bakery prices", "notification_muted=True"),
    ),
    OtherTask(
        "create tag",
        'Create a tag with the title "sports".',
        _ends(tags={"new": {"title": "sports"}}),
        '<POST /tag>(title="sports")',
    ),
    OtherTask(
        "delete tag by title",
        'Delete the tag "spare".',
        _ends(tags={"spare": None}),
        f'{_TAGS}<DELETE /tag/{{uuid}}>(uuid=tags["spare"])',
    ),
    OtherTask("count tags", "How many tags are there?", _ends(answer=4), "answer = len(<GET /tags>())"),
    OtherTask(
        "add server notification",
        "Add the notification url json://localhost/hook",
        _ends(notifications=["json://localhost/hook"]),
        '<POST /notifications>(notification_urls=["json://localhost/hook"])',
    ),
    OtherTask(
        "read version",
        "Which version does the system run?",
        _version,
        'answer = <GET /systeminfo>()["version"]',
    ),
)

_LOOK = (
    _WHOLE
    + _TAGS
    + """by_title = {each["title"]: each for each in every}
def put(watch, **fields):
    <PUT /watch/{uuid}>(uuid=watch["uuid"], **fields)
"""
)
_LONG_TITLE = (
    "Planning applications in the river quarter, the old harbour and the streets behind the station, as the "
    "council lists them week by week, with objections (read these first!)"
)

_MORE: tuple[OtherTask[ServerState], ...] = (
    OtherTask(
        "pause by host but one",
        'Pause everything that I watch on shop.example, all but "Bike lamps".',
        _ends({name: {"paused": True} for name in ("Garden chairs", "https://shop.example/new?week=1")}),
        _LOOK
        + """for each in every:
    if each["url"].startswith("https://shop.example/") and each["title"] != "Bike lamps":
        put(each, paused=True)""",
    ),
    OtherTask(
        "unpause by tag",
        "Spring is coming. Those watches tagged garden that are on pause should run again.",
        _ends({name: {"paused": False} for name in ("Garden chairs sale", "Seed catalogue 2026")}),
        _LOOK
        + """for each in every:
    if tags["garden"] in each["tags"] and each["paused"]:
        put(each, paused=False)""",
    ),
    OtherTask(
        "mute by tag",
        "I'm on holiday: no notifications from any of the watches under the travel tag, please. Mute these "
        "watches, but leave the tag itself alone.",
        _ends({"Night trains": {"notification_muted": True}}),
        _LOOK
        + """for each in every:
    if tags["travel"] in each["tags"]:
        put(each, notification_muted=True)""",
    ),
    OtherTask(
        "unmute by title",
        'I want to hear about "Garden chairs" again, its notifications are muted at the moment.',
        _ends({"Garden chairs": {"notification_muted": False}}),
        _LOOK + 'put(by_title["Garden chairs"], notification_muted=False)',
    ),
    OtherTask(
        "create with several fields",
        "Set up a watch for https://opera.example/tickets?year=2027&x=1 and call it Opera tickets 2027. It "
        "belongs under travel, and should be paused for now.",
        _ends(
            {
                "new": {
                    "url": "https://opera.example/tickets?year=2027&x=1",
                    "title": "Opera tickets 2027",
                    "tags": ["travel"],
                    "paused": True,
                }
            }
        ),
        """<POST /watch>(
    url="https://opera.example/tickets?year=2027&x=1", title="Opera tickets 2027", tag="travel", paused=True
)""",
    ),
    OtherTask(
        "create if there is none",
        "Is https://council.example/agenda being watched already? If not, add it with the title Council agenda.",
        _ends({"new": {"url": "https://council.example/agenda", "title": "Council agenda"}}),
        _LOOK
        + """if all(each["url"] != "https://council.example/agenda" for each in every):
    <POST /watch>(url="https://council.example/agenda", title="Council agenda")""",
    ),
    OtherTask(
        "create what is missing of several",
        "These three pages have to be watched: https://jobs.example/all, https://jobs.example/part-time and "
        "https://perfume.example/4711 - add whichever is not there yet (a title isn't needed), and no page twice.",
        _ends({"new": {"url": "https://jobs.example/part-time"}}),
        _LOOK
        + """urls = {each["url"] for each in every}
for url in ("https://jobs.example/all", "https://jobs.example/part-time", "https://perfume.example/4711"):
    if url not in urls:
        <POST /watch>(url=url)""",
    ),
    OtherTask(
        "create with a long title",
        f"Please watch https://council.example/planning?area=7&sort=-date under exactly this title: {_LONG_TITLE}",
        _ends({"new": {"url": "https://council.example/planning?area=7&sort=-date", "title": _LONG_TITLE}}),
        f"""<POST /watch>(
    url="https://council.example/planning?area=7&sort=-date",
    title={_LONG_TITLE!r},
)""",
    ),
    OtherTask(
        "create several under a new tag",
        "We need a tag called museum, and under it three watches titled Room 1, Room 2 and Room 3 for the pages "
        "https://museum.example/rooms/1, https://museum.example/rooms/2 and https://museum.example/rooms/3.",
        _ends(
            {
                f"new {number}": {
                    "url": f"https://museum.example/rooms/{number}",
                    "title": f"Room {number}",
                    "tags": ["museum"],
                }
                for number in (1, 2, 3)
            },
            {"new": {"title": "museum"}},
        ),
        """tag = <POST /tag>(title="museum")["uuid"]
for number in (1, 2, 3):
    <POST /watch>(url=f"https://museum.example/rooms/{number}", title=f"Room {number}", tags=[tag])""",
    ),
    OtherTask(
        "rename with quotes",
        'Rename the watch "Job board" to: Jobs at "Müller & Söhne"',
        _ends({"Job board": {"title": 'Jobs at "Müller & Söhne"'}}),
        _LOOK + """put(by_title["Job board"], title='Jobs at "Müller & Söhne"')""",
    ),
    OtherTask(
        "title for the untitled",
        "Two of my watches never got a title. Use the host name in its address (like www.site.example) as the "
        "title of each.",
        _ends(
            {
                "https://status.example/": {"title": "status.example"},
                "https://shop.example/new?week=1": {"title": "shop.example"},
            }
        ),
        _LOOK
        + """for each in every:
    if not each["title"]:
        put(each, title=each["url"].split("/")[2])""",
    ),
    OtherTask(
        "rename tag",
        "The tag lunch should be called Mittagessen from now on.",
        _ends(tags={"lunch": {"title": "Mittagessen"}}),
        _LOOK + '<PUT /tag/{uuid}>(uuid=tags["lunch"], title="Mittagessen")',
    ),
    OtherTask(
        "delete unused tag",
        "One of the tags isn't on any watch. Get rid of that tag.",
        _ends(tags={"spare parts": None}),
        _LOOK
        + """used = {uuid for each in every for uuid in each["tags"]}
for uuid in tags.values():
    if uuid not in used:
        <DELETE /tag/{uuid}>(uuid=uuid)""",
    ),
    OtherTask(
        "delete by two conditions",
        "Throw out the shopping watches that are paused; keep all other watches.",
        _ends({"Bike locks": None, "4711": None}),
        _LOOK
        + """for each in every:
    if tags["shopping"] in each["tags"] and each["paused"]:
        <DELETE /watch/{uuid}>(uuid=each["uuid"])""",
    ),
    OtherTask(
        "change a part of several urls",
        "The railway has moved its site from rail.example to trains.example. Correct the address of each watch "
        "that is affected; whatever comes after the host name stays as it is.",
        _ends(
            {
                "Night trains": {"url": "https://trains.example/night"},
                "Night trains to Zürich": {"url": "https://trains.example/night?to=Z%C3%BCrich"},
            }
        ),
        _LOOK
        + """for each in every:
    if "//rail.example/" in each["url"]:
        put(each, url=each["url"].replace("//rail.example/", "//trains.example/"))""",
    ),
    OtherTask(
        "add a tag to a watch",
        "Put 4711 under garden too, besides the tag that this watch already has.",
        _ends({"4711": {"tags": ["garden", "shopping"]}}),
        _LOOK + 'put(by_title["4711"], tags=by_title["4711"]["tags"] + [tags["garden"]])',
    ),
    OtherTask(
        "take a tag off a watch",
        "Garden chairs should no longer count as shopping. It does stay a garden watch.",
        _ends({"Garden chairs": {"tags": ["garden"]}}),
        _LOOK + 'put(by_title["Garden chairs"], tags=[tags["garden"]])',
    ),
    OtherTask(
        "new tag on several watches",
        'Make a new tag "money" and give it to both of the seed catalogues, which keep the tag that they have.',
        _ends(
            {name: {"tags": ["garden", "money"]} for name in ("Seed catalogue 2026", "Seed catalogue 2027")},
            {"new": {"title": "money"}},
        ),
        _LOOK
        + """tag = <POST /tag>(title="money")["uuid"]
for each in every:
    if (each["title"] or "").startswith("Seed catalogue"):
        put(each, tags=each["tags"] + [tag])""",
    ),
    OtherTask(
        "check then pause and unpause",
        'Have a look whether "Bike locks" is paused. If so, let it run again and pause "Bike locks (used)" '
        "instead; if it is running, do nothing.",
        _ends({"Bike locks": {"paused": False}, "Bike locks (used)": {"paused": True}}),
        _LOOK
        + """if by_title["Bike locks"]["paused"]:
    put(by_title["Bike locks"], paused=False)
    put(by_title["Bike locks (used)"], paused=True)""",
    ),
    OtherTask(
        "change interval",
        "Lunch of the day is checked once a day. Once every 3 hours would be better.",
        _ends({"Lunch of the day": {"time_between_check": 3 * 3_600}}),
        _LOOK + 'put(by_title["Lunch of the day"], time_between_check={"hours": 3})',
    ),
    OtherTask(
        "back to the default interval",
        "The council minutes don't need an interval of their own any more: check them as often as the server does "
        "by default.",
        _ends({"Council minutes": {"time_between_check_use_default": True, "time_between_check": 0}}),
        _LOOK + 'put(by_title["Council minutes"], time_between_check_use_default=True)',
    ),
    OtherTask(
        "set a filter",
        'Of the page of "Night trains", only what the CSS selector .departures selects is of interest. Set that '
        "up.",
        _ends({"Night trains": {"include_filters": [".departures"]}}),
        _LOOK + 'put(by_title["Night trains"], include_filters=[".departures"])',
    ),
    OtherTask(
        "add notification of a watch",
        "When the café menu changes, json://localhost/team should get a notification as well, not only the "
        "address that gets one now. This concerns that watch alone.",
        _ends({"Café menu": {"notification_urls": ["json://localhost/kitchen", "json://localhost/team"]}}),
        _LOOK
        + """cafe = by_title["Café menu"]
put(cafe, notification_urls=cafe["notification_urls"] + ["json://localhost/team"])""",
    ),
    OtherTask(
        "remove server notification",
        "Among the notification addresses of the whole server is json://localhost/night. Remove it; the rest "
        "stays.",
        _ends(notifications=["json://localhost/all"]),
        '<DELETE /notifications>(notification_urls=["json://localhost/night"])',
    ),
    OtherTask(
        "pause by tag and count",
        "Pause all the watches with the tag work, and answer with the number of those that were not paused "
        "before.",
        _ends({name: {"paused": True} for name in ("Job board", "https://status.example/")}, answer=2),
        _LOOK
        + """answer = 0
for each in every:
    if tags["work"] in each["tags"] and not each["paused"]:
        put(each, paused=True)
        answer += 1""",
    ),
    OtherTask(
        "count by host",
        "How many of my watches look at a page on shop.example?",
        _ends(answer=4),
        _LOOK + 'answer = sum(each["url"].startswith("https://shop.example/") for each in every)',
    ),
    OtherTask(
        "count by tag",
        "How many pages do I watch under the tag garden?",
        _ends(answer=4),
        'answer = len(<GET /watch>(tag="garden"))',
    ),
    OtherTask(
        "count by two booleans",
        "Some watches keep silent, since their notifications are muted, and yet are active, so not paused. How "
        "many?",
        _ends(answer=3),
        _LOOK + 'answer = len([each for each in every if each["notification_muted"] and not each["paused"]])',
    ),
    OtherTask(
        "list by a boolean in order",
        "Give me a list of the titles of all paused watches, in alphabetical order.",
        _ends(answer=["4711", "Bike locks", "Garden chairs sale", 'Job board "remote"', "Seed catalogue 2026"]),
        _LOOK + 'answer = sorted(each["title"] for each in every if each["paused"])',
    ),
    OtherTask(
        "url by look-alike title",
        'Which web address is behind the watch "Job board", the one without "remote"?',
        _ends(answer="https://jobs.example/all"),
        _LOOK + 'answer = by_title["Job board"]["url"]',
    ),
    OtherTask(
        "title by url with a query",
        "What have I called the watch of https://market.example/locks?used=1&year=2027 ?",
        _ends(answer="Bike locks (used)"),
        _LOOK
        + """[answer] = [
    each["title"] for each in every if each["url"] == "https://market.example/locks?used=1&year=2027"
]""",
    ),
    OtherTask(
        "list the untitled",
        "List the addresses of the watches that have no title.",
        _ends(answer={"https://status.example/", "https://shop.example/new?week=1"}),
        _LOOK + 'answer = [each["url"] for each in every if not each["title"]]',
    ),
    OtherTask(
        "shortest interval",
        "Several watches have a check interval of their own. Which is checked most often? Answer with its title.",
        _ends(answer="Water levels"),
        _LOOK
        + """def minutes(watch):
    each = watch["time_between_check"]
    return (each.get("days") or 0) * 1440 + (each.get("hours") or 0) * 60 + (each.get("minutes") or 0)
answer = min((each for each in every if not each["time_between_check_use_default"]), key=minutes)["title"]""",
    ),
    OtherTask(
        "most used tag",
        "Which tag is on more watches than any other?",
        _ends(answer="shopping"),
        _LOOK + 'answer = max(tags, key=lambda title: sum(tags[title] in each["tags"] for each in every))',
    ),
    OtherTask(
        "find unused tag",
        "There is a tag that no watch has. What is it called?",
        _ends(answer="spare parts"),
        _LOOK + '[answer] = [title for title in tags if all(tags[title] not in each["tags"] for each in every)]',
    ),
    OtherTask(
        "tags of a watch",
        'What are the names of the tags that the watch "Garden chairs" has?',
        _ends(answer={"garden", "shopping"}),
        _LOOK + 'answer = [title for title, uuid in tags.items() if uuid in by_title["Garden chairs"]["tags"]]',
    ),
    OtherTask(
        "truth by title",
        'Is "Night trains to Zürich" paused right now? Answer yes or no.',
        _ends(answer=False),
        _LOOK + 'answer = "yes" if by_title["Night trains to Zürich"]["paused"] else "no"',
    ),
    OtherTask(
        "list without a tag",
        "I forgot to tag some pages. Which watches have no tag at all? List their addresses.",
        _ends(
            answer={
                "https://workshop.example/hours",
                "https://council.example/minutes",
                "https://river.example/levels",
                "https://shop.example/new?week=1",
            }
        ),
        _LOOK + 'answer = [each["url"] for each in every if not each["tags"]]',
    ),
    OtherTask(
        "read a filter",
        "Which CSS selector is the watch Water levels limited to?",
        _ends(answer="#gauge"),
        _LOOK + '[answer] = by_title["Water levels"]["include_filters"]',
    ),
    OtherTask(
        "count distinct hosts",
        "Several watches share a site. On how many different hosts are the pages that I watch?",
        _ends(answer=13),
        _LOOK + 'answer = len({each["url"].split("/")[2] for each in every})',
    ),
)

CHANGEDETECTION = OtherServer(
    "changedetection", "changes", _running, _api, ("GET", "/systeminfo"), seed, read_state, _FIRST, _MORE
)
