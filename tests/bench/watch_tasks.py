"""changedetection.io, which watches pages: twenty tasks in plain English. No page is fetched."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec

from tests.bench.other_server import Check, OtherServer, OtherTask
from tests.servers.installed import python_server
from tests.servers.server_process import server_process

Watches: TypeAlias = dict[str, dict[str, Any]]  # by title

SEEDED: dict[str, dict[str, Any]] = {
    "Bakery prices": {"url": "https://bakery.example/prices", "tag": "food"},
    "Cheese shop": {"url": "https://cheese.example/offers", "tag": "food"},
    "Tram timetable": {"url": "https://tram.example/line4", "tag": "travel"},
    "Ferry strikes": {"url": "https://ferry.example/notices", "tag": "travel", "paused": True},
    "Museum news": {"url": "https://museum.example/news", "tag": "culture"},
    "Library hours": {"url": "https://library.example/hours", "tag": "culture", "paused": True},
}
UNUSED_TAG = "spare"
_KEY = "x-api-key"


class ServerState(msgspec.Struct, frozen=True):
    """What a server holds: watches by title or, without one, by URL; titles of tags; notification URLs."""

    watches: Watches
    tags: set[str]
    notifications: list[str]
    version: str

    @property
    def paused(self) -> set[str]:
        return {title for title, watch in self.watches.items() if watch["paused"]}

    @property
    def muted(self) -> set[str]:
        return {title for title, watch in self.watches.items() if watch["notification_muted"]}


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


def seed(server: httpx.Client) -> None:
    """Make the server hold what tasks expect, and nothing else."""
    for kind, every in (("watch", "watch"), ("tag", "tags")):
        for uuid in _get(server, every):
            gone = server.delete(f"/api/v1/{kind}/{uuid}")
            assert gone.is_success, gone.text
    server.put("/api/v1/notifications", json={"notification_urls": []}).raise_for_status()
    for title in sorted({each["tag"] for each in SEEDED.values()} | {UNUSED_TAG}):
        server.post("/api/v1/tag", json={"title": title}).raise_for_status()
    for title, watch in SEEDED.items():
        server.post("/api/v1/watch", json={"title": title, **watch}).raise_for_status()


def read_state(server: httpx.Client) -> ServerState:
    watches: Watches = {}
    for uuid in _get(server, "watch"):
        watch = _get(server, f"watch/{uuid}")
        watches[watch["title"] or watch["url"]] = watch
    tags = {tag["title"] for tag in _get(server, "tags").values()}
    return ServerState(
        watches, tags, _get(server, "notifications")["notification_urls"], _get(server, "systeminfo")["version"]
    )


def _get(server: httpx.Client, path: str) -> Any:
    return server.get(f"/api/v1/{path}").raise_for_status().json()


def _urls(state: ServerState) -> set[str]:
    return {watch["url"] for watch in state.watches.values()}


def _same(before: ServerState, after: ServerState) -> bool:
    return _summary(before) == _summary(after)


def _summary(state: ServerState) -> list[object]:
    watches = sorted((title, each["url"], each["paused"]) for title, each in state.watches.items())
    return [watches, state.tags, state.notifications]


def _added(url: str, title: str = "") -> Check[ServerState]:
    def check(before: ServerState, after: ServerState, _: str) -> bool:
        return after.watches.keys() - before.watches.keys() == {title or url} and url in _urls(after)

    return check


def _removed(*titles: str) -> Check[ServerState]:
    return lambda before, after, _: after.watches.keys() == before.watches.keys() - set(titles)


def _paused(*titles: str) -> Check[ServerState]:
    return lambda before, after, _: after.paused == set(titles) and after.watches.keys() == before.watches.keys()


def _answers(expected: str) -> Check[ServerState]:
    return lambda before, after, answer: answer.strip() == expected and _same(before, after)


def _renamed(old: str, new: str) -> Check[ServerState]:
    return lambda before, after, _: (
        after.watches.keys() ^ before.watches.keys() == {old, new} and _urls(after) == _urls(before)
    )


_FIND = 'ids = {each["title"]: uuid for uuid, each in <GET /watch>().items()}\n'
_WHOLE = "every = [<GET /watch/{uuid}>(uuid=uuid) for uuid in <GET /watch>()]\n"
_TAGS = 'ids = {each["title"]: uuid for uuid, each in <GET /tags>().items()}\n'


def _put(title: str, fields: str) -> str:
    return f"{_FIND}<PUT /watch/{{uuid}}>(uuid=ids[{title!r}], {fields})"


_TASKS: tuple[OtherTask[ServerState], ...] = (
    OtherTask(
        "Start watching https://garden.example/seeds",
        _added("https://garden.example/seeds"),
        '<POST /watch>(url="https://garden.example/seeds")',
    ),
    OtherTask(
        'Watch the page https://opera.example/tickets under the title "Opera".',
        _added("https://opera.example/tickets", "Opera"),
        '<POST /watch>(url="https://opera.example/tickets", title="Opera")',
    ),
    OtherTask(
        'Delete the watch with the title "Tram timetable".',
        _removed("Tram timetable"),
        f'{_FIND}<DELETE /watch/{{uuid}}>(uuid=ids["Tram timetable"])',
    ),
    OtherTask(
        "Stop watching https://cheese.example/offers: delete that watch.",
        _removed("Cheese shop"),
        f'{_FIND}<DELETE /watch/{{uuid}}>(uuid=ids["Cheese shop"])',
    ),
    OtherTask(
        "Delete all watches that are paused.",
        _removed("Ferry strikes", "Library hours"),
        f'{_WHOLE}for each in every:\n    if each["paused"]:\n        <DELETE /watch/{{uuid}}>(uuid=each["uuid"])',
    ),
    OtherTask(
        'Pause the watch with the title "Cheese shop".',
        _paused("Cheese shop", "Ferry strikes", "Library hours"),
        _put("Cheese shop", "paused=True"),
    ),
    OtherTask(
        'The watch titled "Library hours" is paused: unpause it.',
        _paused("Ferry strikes"),
        _put("Library hours", "paused=False"),
    ),
    OtherTask(
        "Pause all watches.",
        _paused(*SEEDED),
        "for uuid in <GET /watch>():\n    <PUT /watch/{uuid}>(uuid=uuid, paused=True)",
    ),
    OtherTask("How many watches are there?", _answers("6"), "answer = len(<GET /watch>())"),
    OtherTask(
        "How many watches are paused?",
        _answers("2"),
        f'{_WHOLE}answer = len([each for each in every if each["paused"]])',
    ),
    OtherTask(
        "What is the title of the watch whose url is https://ferry.example/notices?",
        _answers("Ferry strikes"),
        f'{_WHOLE}[answer] = [each["title"] for each in every if each["url"] == "https://ferry.example/notices"]',
    ),
    OtherTask(
        'What is the url of the watch with the title "Museum news"?',
        _answers("https://museum.example/news"),
        f'{_WHOLE}[answer] = [each["url"] for each in every if each["title"] == "Museum news"]',
    ),
    OtherTask(
        'Change the title of the watch "Tram timetable" to "Line 4".',
        _renamed("Tram timetable", "Line 4"),
        _put("Tram timetable", 'title="Line 4"'),
    ),
    OtherTask(
        'Change the url of the watch "Bakery prices" to https://bakery.example/menu',
        lambda _, after, __: after.watches["Bakery prices"]["url"] == "https://bakery.example/menu",
        _put("Bakery prices", 'url="https://bakery.example/menu"'),
    ),
    OtherTask(
        'Mute the notifications of the watch "Bakery prices".',
        lambda _, after, __: after.muted == {"Bakery prices"},
        _put("Bakery prices", "notification_muted=True"),
    ),
    OtherTask(
        'Create a tag with the title "sports".',
        lambda before, after, _: after.tags - before.tags == {"sports"},
        '<POST /tag>(title="sports")',
    ),
    OtherTask(
        'Delete the tag "spare".',
        lambda before, after, _: before.tags - after.tags == {UNUSED_TAG},
        f'{_TAGS}<DELETE /tag/{{uuid}}>(uuid=ids["spare"])',
    ),
    OtherTask("How many tags are there?", _answers("4"), "answer = len(<GET /tags>())"),
    OtherTask(
        "Add the notification url json://localhost/hook",
        lambda _, after, __: after.notifications == ["json://localhost/hook"],
        '<POST /notifications>(notification_urls=["json://localhost/hook"])',
    ),
    OtherTask(
        "Which version does the system run?",
        lambda before, after, answer: answer == before.version and _same(before, after),
        'answer = <GET /systeminfo>()["version"]',
    ),
)

CHANGEDETECTION = OtherServer(
    "changedetection", "changes", _running, _api, ("GET", "/systeminfo"), seed, read_state, _TASKS
)
