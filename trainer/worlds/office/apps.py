"""The office suite before customization: seven apps of items, and the names that a site may choose from."""

from typing import Literal

import msgspec

Role = Literal["login", "list", "show", "prepare", "act1", "act2", "act3"]
Field = Literal["person", "label", "number"]

ACTS: tuple[Role, ...] = ("act1", "act2", "act3")


class Act(msgspec.Struct, frozen=True):
    """An action on an item."""

    verb: str  # in instructions and summaries
    names: tuple[str, ...]  # verbs that a site's operation may be named by
    removes: bool = False  # deletes the item


class AppSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One app: a collection of items, each with a person, a label and a number."""

    name: str
    noun: str
    nouns: str
    persons: tuple[str, ...]  # possible names of the person field
    labels: tuple[str, ...]  # possible names of the label field
    numbers: tuple[str, ...]  # possible names of the number field
    values: tuple[str, ...]  # all labels
    measure: str  # the number, in instructions
    most: str  # the item with the largest number is the ... one
    acts: tuple[Act, Act, Act]


LOGIN_NAMES = ("sign_in", "log_in", "open_session", "start_session")
LIST_VERBS = ("list", "fetch", "find", "browse")
SHOW_VERBS = ("show", "get", "view", "read")
PREPARE_VERBS = ("unlock", "open", "claim")
MEMBER_NAMES = ("list_members", "fetch_members", "find_members", "browse_members")
MEMBER_FIELDS = ("name", "person", "contact")

PEOPLE = ("iris", "omar", "lena", "hugo", "nora", "ivan", "maya", "theo", "ruth", "finn", "zara", "cole")
GROUPS = ("family", "team", "club", "school", "neighbors", "band")
THRESHOLDS = ("20", "30", "40", "50", "60", "70", "80")

DELETE = Act("delete", ("delete", "remove", "erase"), removes=True)

APPS: dict[str, AppSpec] = {
    app.name: app
    for app in (
        AppSpec(
            name="mail",
            noun="mail",
            nouns="mails",
            persons=("sender", "author", "from_name"),
            labels=("folder", "box", "tray"),
            numbers=("size", "bytes", "weight"),
            values=("work", "travel", "bills", "news", "orders", "health"),
            measure="size",
            most="largest",
            acts=(
                Act("archive", ("archive", "store", "shelve")),
                DELETE,
                Act("star", ("star", "flag", "mark")),
            ),
        ),
        AppSpec(
            name="notes",
            noun="note",
            nouns="notes",
            persons=("author", "writer", "owner"),
            labels=("topic", "subject", "theme"),
            numbers=("length", "words", "letters"),
            values=("recipes", "ideas", "quotes", "dreams", "plans", "poems"),
            measure="length",
            most="longest",
            acts=(
                Act("pin", ("pin", "stick", "fasten")),
                DELETE,
                Act("share", ("share", "send", "post")),
            ),
        ),
        AppSpec(
            name="calendar",
            noun="event",
            nouns="events",
            persons=("host", "organizer", "planner"),
            labels=("kind", "type", "category"),
            numbers=("minutes", "duration", "span"),
            values=("meetings", "dinners", "lessons", "trips", "concerts", "visits"),
            measure="duration",
            most="longest",
            acts=(
                Act("accept", ("accept", "confirm", "join")),
                Act("decline", ("decline", "refuse", "reject")),
                Act("cancel", ("cancel", "abort", "void"), removes=True),
            ),
        ),
        AppSpec(
            name="music",
            noun="song",
            nouns="songs",
            persons=("artist", "singer", "performer"),
            labels=("genre", "style", "tag"),
            numbers=("rating", "score", "points"),
            values=("jazz", "rock", "folk", "soul", "blues", "metal"),
            measure="rating",
            most="best",
            acts=(
                Act("like", ("like", "love", "favor")),
                Act("hide", ("hide", "mute", "skip")),
                Act("download", ("download", "save", "pull")),
            ),
        ),
        AppSpec(
            name="payments",
            noun="payment",
            nouns="payments",
            persons=("payer", "debtor", "giver"),
            labels=("purpose", "reason", "category"),
            numbers=("amount", "sum", "value"),
            values=("rent", "food", "fuel", "gifts", "tickets", "repairs"),
            measure="amount",
            most="highest",
            acts=(
                Act("approve", ("approve", "grant", "settle")),
                Act("refund", ("refund", "return", "repay")),
                Act("dispute", ("dispute", "contest", "question")),
            ),
        ),
        AppSpec(
            name="files",
            noun="file",
            nouns="files",
            persons=("owner", "uploader", "creator"),
            labels=("drive", "shelf", "area"),
            numbers=("size", "kilobytes", "bulk"),
            values=("photos", "drafts", "reports", "scans", "backups", "slides"),
            measure="size",
            most="largest",
            acts=(
                Act("compress", ("compress", "pack", "zip")),
                DELETE,
                Act("publish", ("publish", "release", "expose")),
            ),
        ),
        AppSpec(
            name="todo",
            noun="todo",
            nouns="todos",
            persons=("assignee", "worker", "doer"),
            labels=("project", "board", "place"),
            numbers=("effort", "hours", "points"),
            values=("garden", "kitchen", "garage", "office", "attic", "cellar"),
            measure="effort",
            most="hardest",
            acts=(
                Act("finish", ("finish", "complete", "close")),
                Act("postpone", ("postpone", "delay", "defer")),
                Act("drop", ("drop", "discard", "remove"), removes=True),
            ),
        ),
    )
}
