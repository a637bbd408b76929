"""Twenty tasks for changedetection.io in plain English, each with a check of what the server has afterwards."""

from collections.abc import Callable
from typing import Any, TypeAlias

import httpx
import msgspec

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


class WatchTask(msgspec.Struct, frozen=True):
    """A task, and whether a state and an answer fulfil it, given the state before."""

    instruction: str
    check: Callable[[ServerState, ServerState, str], bool]


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


def _added(url: str, title: str = "") -> Callable[[ServerState, ServerState, str], bool]:
    def check(before: ServerState, after: ServerState, _: str) -> bool:
        return after.watches.keys() - before.watches.keys() == {title or url} and url in _urls(after)

    return check


def _removed(*titles: str) -> Callable[[ServerState, ServerState, str], bool]:
    return lambda before, after, _: after.watches.keys() == before.watches.keys() - set(titles)


def _paused(*titles: str) -> Callable[[ServerState, ServerState, str], bool]:
    return lambda before, after, _: after.paused == set(titles) and after.watches.keys() == before.watches.keys()


def _answers(expected: str) -> Callable[[ServerState, ServerState, str], bool]:
    return lambda before, after, answer: answer.strip() == expected and _same(before, after)


def _renamed(old: str, new: str) -> Callable[[ServerState, ServerState, str], bool]:
    return lambda before, after, _: (
        after.watches.keys() ^ before.watches.keys() == {old, new} and _urls(after) == _urls(before)
    )


TASKS = (
    WatchTask("Start watching https://garden.example/seeds", _added("https://garden.example/seeds")),
    WatchTask(
        'Watch the page https://opera.example/tickets under the title "Opera".',
        _added("https://opera.example/tickets", "Opera"),
    ),
    WatchTask('Delete the watch with the title "Tram timetable".', _removed("Tram timetable")),
    WatchTask("Stop watching https://cheese.example/offers: delete that watch.", _removed("Cheese shop")),
    WatchTask("Delete all watches that are paused.", _removed("Ferry strikes", "Library hours")),
    WatchTask(
        'Pause the watch with the title "Cheese shop".', _paused("Cheese shop", "Ferry strikes", "Library hours")
    ),
    WatchTask('The watch titled "Library hours" is paused: unpause it.', _paused("Ferry strikes")),
    WatchTask("Pause all watches.", _paused(*SEEDED)),
    WatchTask("How many watches are there?", _answers("6")),
    WatchTask("How many watches are paused?", _answers("2")),
    WatchTask(
        "What is the title of the watch whose url is https://ferry.example/notices?", _answers("Ferry strikes")
    ),
    WatchTask(
        'What is the url of the watch with the title "Museum news"?', _answers("https://museum.example/news")
    ),
    WatchTask('Change the title of the watch "Tram timetable" to "Line 4".', _renamed("Tram timetable", "Line 4")),
    WatchTask(
        'Change the url of the watch "Bakery prices" to https://bakery.example/menu',
        lambda _, after, __: after.watches["Bakery prices"]["url"] == "https://bakery.example/menu",
    ),
    WatchTask(
        'Mute the notifications of the watch "Bakery prices".',
        lambda _, after, __: after.muted == {"Bakery prices"},
    ),
    WatchTask(
        'Create a tag with the title "sports".', lambda before, after, _: after.tags - before.tags == {"sports"}
    ),
    WatchTask('Delete the tag "spare".', lambda before, after, _: before.tags - after.tags == {UNUSED_TAG}),
    WatchTask("How many tags are there?", _answers("4")),
    WatchTask(
        "Add the notification url json://localhost/hook",
        lambda _, after, __: after.notifications == ["json://localhost/hook"],
    ),
    WatchTask(
        "Which version does the system run?",
        lambda before, after, answer: answer == before.version and _same(before, after),
    ),
)
