"""Kinto, which keeps records in collections in buckets: sixty tasks in plain English."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec

from tests.bench.other_server import Check, Expected, OtherServer, OtherTask, is_answer
from tests.integration.servers.installed import python_server
from tests.integration.servers.server_process import server_process

Data: TypeAlias = dict[str, Any]
# A bucket "shop", its collection "shop/teas" and record "shop/teas/chai", its group "shop#staff".
Things: TypeAlias = dict[str, Data]

_INI = """
[server:main]
use = egg:waitress#main
host = 127.0.0.1
port = {port}

[app:main]
use = egg:kinto
kinto.storage_backend = kinto.core.storage.memory
kinto.cache_backend = kinto.core.cache.memory
kinto.permission_backend = kinto.core.permission.memory
kinto.includes = kinto.plugins.default_bucket
kinto.userid_hmac_secret = not a secret here
multiauth.policies = basicauth
"""
_PERSON = ("iris", "pa55 w0rd")

FEW: Things = {
    "shop": {},
    "shop/teas": {},
    "shop/teas/assam": {"name": "Assam Gold", "price": 4, "stock": 12},
    "shop/teas/earl": {"name": "Earl Grey", "price": 5, "stock": 0},
    "shop/teas/sencha": {"name": "Green Sencha", "price": 7, "stock": 3},
    "shop/teas/oolong": {"name": "Dark Oolong", "price": 8, "stock": 0},
    "shop/teas/chai": {"name": "Masala Chai", "price": 3, "stock": 20},
    "shop/cups": {},
    "shop/cups/mug": {"name": "Blue Mug", "price": 9, "stock": 2},
    "shop/spare": {},
    "archive": {},
    "shop#staff": {"members": ["omar"]},
}


def _book(title: str, author: str, year: int, price: int, copies: int, genre: str, lendable: bool = True) -> Data:
    return {
        "title": title,
        "author": author,
        "year": year,
        "price": price,
        "copies": copies,
        "genre": genre,
        "lendable": lendable,
    }


def _loan(book: str, reader: str, due: str, returned: bool) -> Data:
    return {"book": book, "reader": reader, "due": due, "returned": returned}


MANY: Things = {
    "library": {},
    "library/books": {"keeper": "june"},
    "library/books/dune": _book("Dune", "Frank Herbert", 1965, 12, 3, "science fiction"),
    "library/books/dune-2": _book("Dune Messiah", "Frank Herbert", 1969, 11, 0, "science fiction"),
    "library/books/solaris": _book("Solaris", "Stanisław Lem", 1961, 13, 1, "science fiction"),
    "library/books/1984": _book("1984", "George Orwell", 1949, 9, 4, "novel"),
    "library/books/farm": _book("Animal Farm", "George Orwell", 1945, 7, 2, "novel"),
    "library/books/emma": _book("Emma", "Jane Austen", 1815, 8, 1, "novel", lendable=False),
    "library/books/pride": _book("Pride and Prejudice", "Jane Austen", 1813, 10, 5, "novel"),
    "library/books/cien": _book("Cien años de soledad", "Gabriel García Márquez", 1967, 15, 2, "novel"),
    "library/books/secret": _book("The Secret Garden", "Frances Hodgson Burnett", 1911, 9, 3, "children"),
    "library/books/wind": _book("The Wind in the Willows", "Kenneth Grahame", 1908, 9, 2, "children"),
    "library/books/beds": _book("The Vegetable Garden", "Vilmorin", 1885, 40, 1, "gardening", lendable=False),
    "library/books/beds-2": _book(
        "The Vegetable Garden, 2nd edition", "Vilmorin", 1905, 45, 1, "gardening", lendable=False
    ),
    "library/books/panther": _book("Der Panther und andere Gedichte", "Rainer Maria Rilke", 1907, 14, 0, "poems"),
    "library/books/cats": _book("Old Possum's Book of Practical Cats", "T. S. Eliot", 1939, 6, 2, "poems"),
    "library/books/atlas": {
        "title": "World Atlas 2027",
        "year": 2027,
        "price": 60,
        "copies": 1,
        "genre": "reference",
        "lendable": False,
        "link": "https://maps.example/atlas?year=2027&x=1",
    },
    "library/readers": {},
    "library/readers/r1": {"name": "Anna Kowalska", "email": "anna@mail.example", "town": "Leeds"},
    "library/readers/r2": {"name": "Anna Kowalski", "email": "kowalski@mail.example", "town": "York"},
    "library/readers/r3": {"name": "Pavel Novák", "email": "pavel@mail.example", "town": "Leeds"},
    "library/readers/r4": {"name": "Zoë O'Hara", "email": "zoe@mail.example", "town": "Hull"},
    "library/readers/r5": {"name": "Omar Said", "email": "omar@mail.example", "town": "Leeds"},
    "library/readers/r6": {"name": "Li Wei", "email": "li@mail.example", "town": "York"},
    "library/loans": {},
    "library/loans/l1": _loan("dune", "r1", "2027-02-20", False),
    "library/loans/l2": _loan("dune", "r3", "2027-03-15", False),
    "library/loans/l3": _loan("emma", "r2", "2026-12-01", True),
    "library/loans/l4": _loan("solaris", "r4", "2027-01-31", False),
    "library/loans/l5": _loan("secret", "r1", "2027-03-02", False),
    "library/loans/l6": _loan("1984", "r5", "2027-01-10", True),
    "library/loans/l7": _loan("farm", "r5", "2027-02-28", False),
    "library/loans/l8": _loan("pride", "r3", "2026-11-20", True),
    "library/drafts": {},
    "library#librarians": {"members": ["omar", "june"]},
    "library#helpers": {"members": ["june", "pavel", "zoë"]},
    "library#cleaners": {"members": ["ivo"]},
    "archive": {},
    "archive/books": {},
    "archive/books/maps": _book("Old Maps", "Vilmorin", 1890, 20, 1, "reference", lendable=False),
    "archive/books/dune": _book("Dune", "Frank Herbert", 1965, 3, 1, "science fiction", lendable=False),
    "club": {},
    "club/events": {},
    "club/events/chess": {"title": "Chess night", "day": "2027-02-11", "seats": 12, "booked": 12, "open": True},
    "club/events/poetry": {"title": "Poetry night", "day": "2027-02-18", "seats": 40, "booked": 25, "open": True},
    "club/events/quiz": {"title": "Quiz night", "day": "2027-03-04", "seats": 30, "booked": 30, "open": True},
    "club/events/bees": {
        "title": 'Lecture: "Bees & gardens"',
        "day": "2027-03-11",
        "seats": 50,
        "booked": 8,
        "open": False,
    },
    "club#board": {"members": ["ines", "june", "omar"]},
    "scratch": {},
    "temp-2026": {},
}


class ServerState(msgspec.Struct, frozen=True):
    """What a server holds, and who may do what with buckets, collections and groups."""

    things: Things
    permissions: Things
    version: str


@contextmanager
def _running(place: Path, port: int) -> Iterator[httpx.Client]:
    (place / "kinto.ini").write_text(_INI.format(port=port))
    command = (python_server("kinto") / "kinto", "start", "--ini", "kinto.ini", "--port", str(port))
    url = f"http://127.0.0.1:{port}/v1/"
    with (
        server_process(command, place, url),
        httpx.Client(base_url=url, auth=_PERSON, timeout=60, trust_env=False) as client,
    ):
        yield client


def _api(server: httpx.Client) -> dict[str, Any]:
    document = server.get("__api__").raise_for_status()
    [scheme] = document.json()["securityDefinitions"]
    name, password = _PERSON
    return {
        "server": str(server.base_url).rstrip("/"),
        "document": document.text,
        "credentials": {scheme: {"username": name, "password": password}},
    }


def seed(server: httpx.Client, many: bool) -> None:
    """Make the server hold what tasks expect, and nothing else."""
    server.delete("buckets").raise_for_status()
    for name, data in (MANY if many else FEW).items():
        server.put(_path(name), json={"data": data}).raise_for_status()


def _path(name: str) -> str:
    within, _, group = name.partition("#")
    kinds = ("buckets", "collections", "records")
    path = "/".join(f"{kind}/{id}" for kind, id in zip(kinds, within.split("/"), strict=False))
    return f"{path}/groups/{group}" if group else path


def read_state(server: httpx.Client) -> ServerState:
    things: Things = {}
    for bucket, data in _list(server, "buckets").items():
        path = f"buckets/{bucket}"
        things[bucket] = data
        for name, group in _list(server, f"{path}/groups").items():
            things[f"{bucket}#{name}"] = group | {"members": sorted(group["members"])}
        for name, collection in _list(server, f"{path}/collections").items():
            things[f"{bucket}/{name}"] = collection
            for id, record in _list(server, f"{path}/collections/{name}/records").items():
                things[f"{bucket}/{name}/{id}"] = record
    permissions = {name: _get(server, _path(name))["permissions"] for name in things if name.count("/") < 2}
    return ServerState(things, permissions, _get(server, "")["project_version"])


def _list(server: httpx.Client, path: str) -> Things:
    """What a list has, by id."""
    rows = _get(server, path)["data"]
    return {row["id"]: {name: row[name] for name in row if name not in ("id", "last_modified")} for row in rows}


def _get(server: httpx.Client, path: str) -> Any:
    return server.get(path).raise_for_status().json()


def _ends(changes: Mapping[str, Data | None] | None = None, answer: Expected | None = None) -> Check[ServerState]:
    """These things have become so, None being those that are gone with all in them, and nothing else has.

    The name "library/readers/*" is that of a record which gets an id of the server's choice.
    """

    def check(before: ServerState, after: ServerState, said: str) -> bool:
        wanted = _changed(before.things, changes or {})
        kept = before.permissions.keys() & after.permissions.keys()
        return (
            _starred(after.things, wanted) == wanted
            and all(after.permissions[name] == before.permissions[name] for name in kept)
            and (answer is None or is_answer(said, answer))
        )

    return check


def _changed(things: Things, changes: Mapping[str, Data | None]) -> Things:
    gone = {name for name, data in changes.items() if data is None}
    kept = {
        name: data
        for name, data in things.items()
        if not any(name == each or name.startswith((f"{each}/", f"{each}#")) for each in gone)
    }
    return kept | {name: data for name, data in changes.items() if data is not None}


def _starred(things: Things, wanted: Things) -> Things:
    starred: Things = {}
    for name, data in things.items():
        star = f"{name.rpartition('/')[0]}/*"
        starred[star if name not in wanted and star in wanted and star not in starred else name] = data
    return starred


def _version(before: ServerState, after: ServerState, answer: str) -> bool:
    return answer.strip() == before.version and after == before


_TEA = "/buckets/{bucket_id}/collections/{collection_id}/records"
_AT = 'at = {"bucket_id": "shop", "collection_id": "teas"}\n'
_FIND = f'{_AT}ids = {{each["name"]: each["id"] for each in <GET {_TEA}>(**at)["data"]}}\n'


def _few(name: str, /, **fields: Any) -> dict[str, Data]:
    return {name: FEW[name] | fields}


_FIRST: tuple[OtherTask[ServerState], ...] = (
    OtherTask(
        "create bucket",
        'Create a bucket with the id "garden".',
        _ends({"garden": {}}),
        '<PUT /buckets/{id}>(id="garden")',
    ),
    OtherTask(
        "create collection",
        'Create a collection with the id "plates" in the bucket "shop".',
        _ends({"shop/plates": {}}),
        '<PUT /buckets/{bucket_id}/collections/{id}>(bucket_id="shop", id="plates")',
    ),
    OtherTask(
        "delete bucket by id",
        'Delete the bucket "archive".',
        _ends({"archive": None}),
        '<DELETE /buckets/{id}>(id="archive")',
    ),
    OtherTask(
        "delete collection by id",
        'Delete the collection "spare" of the bucket "shop".',
        _ends({"shop/spare": None}),
        '<DELETE /buckets/{bucket_id}/collections/{id}>(bucket_id="shop", id="spare")',
    ),
    OtherTask(
        "create record with an id",
        'Add a record with the id "mint" and the price 6 to the collection "teas" of the bucket "shop".',
        _ends({"shop/teas/mint": {"price": 6}}),
        f'{_AT}<PUT {_TEA}/{{id}}>(**at, id="mint", data={{"price": 6}})',
    ),
    OtherTask(
        "delete record by id",
        'Delete the record "assam" from the collection "teas" of the bucket "shop".',
        _ends({"shop/teas/assam": None}),
        f'{_AT}<DELETE {_TEA}/{{id}}>(**at, id="assam")',
    ),
    OtherTask(
        "delete record by field",
        'Delete the record whose name is "Earl Grey" from the collection "teas" of the bucket "shop".',
        _ends({"shop/teas/earl": None}),
        f'{_FIND}<DELETE {_TEA}/{{id}}>(**at, id=ids["Earl Grey"])',
    ),
    OtherTask(
        "delete records by condition",
        'Delete all records of the collection "teas" of the bucket "shop" whose stock is 0.',
        _ends({"shop/teas/earl": None, "shop/teas/oolong": None}),
        f"""{_AT}for each in <GET {_TEA}>(**at)["data"]:
    if each["stock"] == 0:
        <DELETE {_TEA}/{{id}}>(**at, id=each["id"])""",
    ),
    OtherTask(
        "count buckets",
        "How many buckets are there?",
        _ends(answer=2),
        'answer = len(<GET /buckets>()["data"])',
    ),
    OtherTask(
        "count collections",
        'How many collections does the bucket "shop" have?',
        _ends(answer=3),
        'answer = len(<GET /buckets/{bucket_id}/collections>(bucket_id="shop")["data"])',
    ),
    OtherTask(
        "count records",
        'How many records are in the collection "teas" of the bucket "shop"?',
        _ends(answer=5),
        f'{_AT}answer = len(<GET {_TEA}>(**at)["data"])',
    ),
    OtherTask(
        "count records by field",
        'How many records in the collection "teas" of the bucket "shop" have the stock 0?',
        _ends(answer=2),
        f'{_AT}answer = len([each for each in <GET {_TEA}>(**at)["data"] if each["stock"] == 0])',
    ),
    OtherTask(
        "field by id",
        'What is the price of the record "sencha" in the collection "teas" of the bucket "shop"?',
        _ends(answer=7),
        f'{_AT}answer = <GET {_TEA}/{{id}}>(**at, id="sencha")["data"]["price"]',
    ),
    OtherTask(
        "id by field",
        'What is the id of the record whose name is "Dark Oolong" in the collection "teas" of the bucket "shop"?',
        _ends(answer="oolong"),
        f'{_FIND}answer = ids["Dark Oolong"]',
    ),
    OtherTask(
        "change field by id",
        'Change the price of the record "sencha" in the collection "teas" of the bucket "shop" to 9.',
        _ends(_few("shop/teas/sencha", price=9)),
        f'{_AT}<PATCH {_TEA}/{{id}}>(**at, id="sencha", data={{"price": 9}})',
    ),
    OtherTask(
        "change field by field",
        'In the collection "teas" of the bucket "shop", change the name of the record "Earl Grey" to "Lady Grey".',
        _ends(_few("shop/teas/earl", name="Lady Grey")),
        f'{_FIND}<PATCH {_TEA}/{{id}}>(**at, id=ids["Earl Grey"], data={{"name": "Lady Grey"}})',
    ),
    OtherTask(
        "create group",
        'Create a group with the id "guests" and the member "iris" in the bucket "shop".',
        _ends({"shop#guests": {"members": ["iris"]}}),
        '<PUT /buckets/{bucket_id}/groups/{id}>(bucket_id="shop", id="guests", data={"members": ["iris"]})',
    ),
    OtherTask(
        "delete group by id",
        'Delete the group "staff" of the bucket "shop".',
        _ends({"shop#staff": None}),
        '<DELETE /buckets/{bucket_id}/groups/{id}>(bucket_id="shop", id="staff")',
    ),
    OtherTask(
        "member of group",
        'Who is the member of the group "staff" of the bucket "shop"?',
        _ends(answer="omar"),
        '[answer] = <GET /buckets/{bucket_id}/groups/{id}>(bucket_id="shop", id="staff")["data"]["members"]',
    ),
    OtherTask(
        "read version",
        "Which version of Kinto does the server run?",
        _version,
        'answer = <GET />()["project_version"]',
    ),
)

_RECORDS = """def records(where):
    bucket, collection = where.split("/")
    return <GET /buckets/{bucket_id}/collections/{collection_id}/records>(
        bucket_id=bucket, collection_id=collection
    )["data"]
def at(where, id):
    bucket, collection = where.split("/")
    return {"bucket_id": bucket, "collection_id": collection, "id": id}
def put(where, id, **data):
    <PUT /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**at(where, id), data=data)
def patch(where, id, **data):
    <PATCH /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**at(where, id), data=data)
def delete(where, id):
    <DELETE /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**at(where, id))
"""
_BOOKS = _RECORDS + 'books = records("library/books")\n'
_LOANS = (
    _BOOKS
    + """title = {each["id"]: each["title"] for each in books}
name = {each["id"]: each["name"] for each in records("library/readers")}
loans = records("library/loans")
"""
)
_EVENTS = _RECORDS + 'events = records("club/events")\n'
_GROUPS = """def members(bucket, group):
    return <GET /buckets/{bucket_id}/groups/{id}>(bucket_id=bucket, id=group)["data"]["members"]
def put_group(bucket, group, members):
    <PUT /buckets/{bucket_id}/groups/{id}>(bucket_id=bucket, id=group, data={"members": members})
"""
_TITLE = (
    "A Full and True Account of the Raising of Melons, Cucumbers and Pumpkins under Glass, with Remarks upon the "
    "Weather of the Years 1771 to 1779 (second, corrected printing)"
)


def _many(name: str, /, **fields: Any) -> dict[str, Data]:
    return {name: MANY[name] | fields}


_MORE: tuple[OtherTask[ServerState], ...] = (
    OtherTask(
        "raise a number by field",
        'All the science fiction in the library\'s collection of books (the bucket is "library", the collection '
        '"books") becomes dearer: add 2 to the price of each book of that genre.',
        _ends(
            _many("library/books/dune", price=14)
            | _many("library/books/dune-2", price=13)
            | _many("library/books/solaris", price=15)
        ),
        _BOOKS
        + """for each in books:
    if each["genre"] == "science fiction":
        patch("library/books", each["id"], price=each["price"] + 2)""",
    ),
    OtherTask(
        "set a boolean by field",
        "Everything by Jane Austen may be lent out from now on. Make sure that lendable is true for all her books "
        'in the collection "books" of the bucket "library".',
        _ends(_many("library/books/emma", lendable=True)),
        _BOOKS
        + """for each in books:
    if each.get("author") == "Jane Austen":
        patch("library/books", each["id"], lendable=True)""",
    ),
    OtherTask(
        "unset a boolean by comparison",
        'In the bucket "club" there is a collection "events". Close every event that is fully booked, that is, '
        'has as many seats booked as there are: set "open" to false.',
        _ends(_many("club/events/chess", open=False) | _many("club/events/quiz", open=False)),
        _EVENTS
        + """for each in events:
    if each["booked"] >= each["seats"]:
        patch("club/events", each["id"], open=False)""",
    ),
    OtherTask(
        "set a boolean over two links",
        'Anna Kowalska has brought "Dune" back. Mark her loan of it as returned (library, collection "loans").',
        _ends(_many("library/loans/l1", returned=True)),
        _LOANS
        + """for each in loans:
    if name[each["reader"]] == "Anna Kowalska" and title[each["book"]] == "Dune":
        patch("library/loans", each["id"], returned=True)""",
    ),
    OtherTask(
        "create with several fields",
        'Please add this to the books of the library, under the id tin: the title is Die Blechtrommel: "Oskar", '
        "the author Günter Grass, the year 1959, the price 14 and the number of copies 2.",
        _ends(
            {
                "library/books/tin": {
                    "title": 'Die Blechtrommel: "Oskar"',
                    "author": "Günter Grass",
                    "year": 1959,
                    "price": 14,
                    "copies": 2,
                }
            }
        ),
        _RECORDS
        + """put(
    "library/books", "tin", title='Die Blechtrommel: "Oskar"', author="Günter Grass", year=1959, price=14, copies=2
)""",
    ),
    OtherTask(
        "create without an id",
        'There is a new reader: Maëlle d\'Aubigné from Hull, maelle@mail.example. Enter her into the "readers" of '
        'the "library" bucket with the same fields that the others have; any id will do.',
        _ends({"library/readers/*": {"name": "Maëlle d'Aubigné", "email": "maelle@mail.example", "town": "Hull"}}),
        """<POST /buckets/{bucket_id}/collections/{collection_id}/records>(
    bucket_id="library",
    collection_id="readers",
    data={"name": "Maëlle d'Aubigné", "email": "maelle@mail.example", "town": "Hull"},
)""",
    ),
    OtherTask(
        "create with links",
        "Li Wei takes Animal Farm home and has to bring it back by 2027-05-01. Write that into the library's "
        'collection "loans" as l9, with the ids of the book and of the reader, like the other loans. It is not '
        "returned yet, of course.",
        _ends({"library/loans/l9": _loan("farm", "r6", "2027-05-01", False)}),
        _LOANS
        + """[book] = [id for id in title if title[id] == "Animal Farm"]
[reader] = [id for id in name if name[id] == "Li Wei"]
put("library/loans", "l9", book=book, reader=reader, due="2027-05-01", returned=False)""",
    ),
    OtherTask(
        "create with a long title",
        f"Store a record under the id melons in the collection books of the bucket archive, with a single field, "
        f"title: {_TITLE}",
        _ends({"archive/books/melons": {"title": _TITLE}}),
        _RECORDS + f'put("archive/books", "melons", title={_TITLE!r})',
    ),
    OtherTask(
        "change a url by title",
        'The book "World Atlas 2027" in library/books has a link. It should point to '
        "https://maps.example/atlas?year=2028&x=1 instead; don't touch its title.",
        _ends(_many("library/books/atlas", link="https://maps.example/atlas?year=2028&x=1")),
        _BOOKS
        + """[atlas] = [each["id"] for each in books if each["title"] == "World Atlas 2027"]
patch("library/books", atlas, link="https://maps.example/atlas?year=2028&x=1")""",
    ),
    OtherTask(
        "create collection if there is none",
        'The bucket "library" needs collections "readers" and "magazines". Create what does not exist yet, and '
        "leave alone what does.",
        _ends({"library/magazines": {}}),
        """there = {each["id"] for each in <GET /buckets/{bucket_id}/collections>(bucket_id="library")["data"]}
for id in ("readers", "magazines"):
    if id not in there:
        <PUT /buckets/{bucket_id}/collections/{id}>(bucket_id="library", id=id)""",
    ),
    OtherTask(
        "check then change",
        'Look up how many copies of "Dune Messiah" and of "Solaris" the library owns (bucket library, collection '
        "books). Where there is none, we have bought 2: set copies to that. Otherwise nothing changes.",
        _ends(_many("library/books/dune-2", copies=2)),
        _BOOKS
        + """for each in books:
    if each["title"] in ("Dune Messiah", "Solaris") and each["copies"] == 0:
        patch("library/books", each["id"], copies=2)""",
    ),
    OtherTask(
        "add member to group",
        'ivo is joining the group "helpers" of the bucket "library". The present helpers remain.',
        _ends({"library#helpers": {"members": ["ivo", "june", "pavel", "zoë"]}}),
        _GROUPS + 'put_group("library", "helpers", members("library", "helpers") + ["ivo"])',
    ),
    OtherTask(
        "remove member from all groups",
        'june is leaving the library: take her out of every group of the bucket "library" that she is in. Her '
        "place in the club is another matter.",
        _ends({"library#librarians": {"members": ["omar"]}, "library#helpers": {"members": ["pavel", "zoë"]}}),
        _GROUPS
        + """for each in <GET /buckets/{bucket_id}/groups>(bucket_id="library")["data"]:
    if "june" in each["members"]:
        put_group("library", each["id"], [name for name in each["members"] if name != "june"])""",
    ),
    OtherTask(
        "create group from records",
        'Make a group "leeds" in the bucket "library". Its members are the ids of all readers (collection '
        '"readers") who live in the town of Leeds.',
        _ends({"library#leeds": {"members": ["r1", "r3", "r5"]}}),
        _RECORDS
        + _GROUPS
        + """found = [each["id"] for each in records("library/readers") if each["town"] == "Leeds"]
put_group("library", "leeds", found)""",
    ),
    OtherTask(
        "copy group to another bucket",
        'The bucket "club" should get a group "helpers" with exactly the people who are in the group of that name '
        'in the bucket "library".',
        _ends({"club#helpers": {"members": ["june", "pavel", "zoë"]}}),
        _GROUPS + 'put_group("club", "helpers", members("library", "helpers"))',
    ),
    OtherTask(
        "move record",
        'Move "The Vegetable Garden" (the first one, not the 2nd edition) from the books of the library to the '
        "books of the archive. It keeps its id and all its fields there, and is gone from the library.",
        _ends({"library/books/beds": None, "archive/books/beds": MANY["library/books/beds"]}),
        _BOOKS
        + """[book] = [each for each in books if each["title"] == "The Vegetable Garden"]
put("archive/books", book["id"], **{key: book[key] for key in book if key not in ("id", "last_modified")})
delete("library/books", book["id"])""",
    ),
    OtherTask(
        "remove a field",
        "Zoë O'Hara (a reader in the library) asks us to forget her email address: that field has to go from her "
        "record altogether, while the rest stays.",
        _ends({"library/readers/r4": {"name": "Zoë O'Hara", "town": "Hull"}}),
        _RECORDS
        + """[zoe] = [each for each in records("library/readers") if each["name"] == "Zoë O'Hara"]
kept = {key: zoe[key] for key in zoe if key not in ("id", "last_modified", "email")}
put("library/readers", zoe["id"], **kept)""",
    ),
    OtherTask(
        "rename a field",
        'In all records of the collection "readers" in the bucket "library", the field "town" should be called '
        '"city"; its value is kept.',
        _ends(
            {
                f"library/readers/r{number}": {
                    "name": MANY[f"library/readers/r{number}"]["name"],
                    "email": MANY[f"library/readers/r{number}"]["email"],
                    "city": MANY[f"library/readers/r{number}"]["town"],
                }
                for number in range(1, 7)
            }
        ),
        _RECORDS
        + """for each in records("library/readers"):
    put("library/readers", each["id"], name=each["name"], email=each["email"], city=each["town"])""",
    ),
    OtherTask(
        "change by link and condition",
        "Pavel Novák is ill. What he has borrowed and not yet returned is due on 2027-04-30 now (the library's "
        "loans name a reader by id).",
        _ends(_many("library/loans/l2", due="2027-04-30")),
        _LOANS
        + """for each in loans:
    if name[each["reader"]] == "Pavel Novák" and not each["returned"]:
        patch("library/loans", each["id"], due="2027-04-30")""",
    ),
    OtherTask(
        "change two records by amounts",
        'One copy of "The Secret Garden" is lost, and a forgotten one of "The Wind in the Willows" has turned up. '
        "Correct the numbers of copies in library/books.",
        _ends(_many("library/books/secret", copies=2) | _many("library/books/wind", copies=3)),
        _BOOKS
        + """for each in books:
    more = {"The Secret Garden": -1, "The Wind in the Willows": 1}.get(each["title"])
    if more:
        patch("library/books", each["id"], copies=each["copies"] + more)""",
    ),
    OtherTask(
        "create several buckets",
        "I need three new buckets for our reports, one a year: reports-2025, reports-2026 and reports-2027.",
        _ends({f"reports-{year}": {} for year in (2025, 2026, 2027)}),
        'for year in (2025, 2026, 2027):\n    <PUT /buckets/{id}>(id=f"reports-{year}")',
    ),
    OtherTask(
        "delete empty buckets",
        "Clean up: get rid of every bucket that contains no collection.",
        _ends({"scratch": None, "temp-2026": None}),
        """for each in <GET /buckets>()["data"]:
    if not <GET /buckets/{bucket_id}/collections>(bucket_id=each["id"])["data"]:
        <DELETE /buckets/{id}>(id=each["id"])""",
    ),
    OtherTask(
        "delete record and its links",
        "The library no longer has the book 1984. Delete it from the books, and any loans of it from the loans.",
        _ends({"library/books/1984": None, "library/loans/l6": None}),
        _RECORDS
        + """delete("library/books", "1984")
for each in records("library/loans"):
    if each["book"] == "1984":
        delete("library/loans", each["id"])""",
    ),
    OtherTask(
        "add a field to a collection",
        'Put a note on the collection "books" of the bucket "library" itself, not on the books: a field "note" '
        'with the text "counted in May 2027". It has another field, which should stay.',
        _ends({"library/books": {"keeper": "june", "note": "counted in May 2027"}}),
        """<PATCH /buckets/{bucket_id}/collections/{id}>(
    bucket_id="library", id="books", data={"note": "counted in May 2027"}
)""",
    ),
    OtherTask(
        "change by field and count",
        'The genre "children" is to be called "for children". Change it in all the books of the library that have '
        "it, and tell me how many these were.",
        _ends(
            _many("library/books/secret", genre="for children")
            | _many("library/books/wind", genre="for children"),
            answer=2,
        ),
        _BOOKS
        + """answer = 0
for each in books:
    if each["genre"] == "children":
        patch("library/books", each["id"], genre="for children")
        answer += 1""",
    ),
    OtherTask(
        "count by comparison",
        'How many of the books in the "library" bucket cost less than 10?',
        _ends(answer=6),
        _BOOKS + 'answer = len([each for each in books if each["price"] < 10])',
    ),
    OtherTask(
        "sum",
        "If you add up the copies of all books that the library has, how many are there?",
        _ends(answer=28),
        _BOOKS + 'answer = sum(each["copies"] for each in books)',
    ),
    OtherTask(
        "average by field",
        "What does a science fiction book of the library (bucket library, collection books) cost on average?",
        _ends(answer=12),
        _BOOKS
        + """prices = [each["price"] for each in books if each["genre"] == "science fiction"]
answer = sum(prices) / len(prices)""",
    ),
    OtherTask(
        "sum of products",
        'Price times copies, added up over all novels (genre "novel") in library/books: what are they worth?',
        _ends(answer=138),
        _BOOKS + 'answer = sum(each["price"] * each["copies"] for each in books if each["genre"] == "novel")',
    ),
    OtherTask(
        "largest by boolean",
        "Among the library's books that are lendable, which is the most expensive? I'd like the title.",
        _ends(answer="Cien años de soledad"),
        _BOOKS
        + """lendable = [each for each in books if each["lendable"]]
answer = max(lendable, key=lambda each: each["price"])["title"]""",
    ),
    OtherTask(
        "field of the smallest",
        "Who wrote the oldest book in the library's collection of books?",
        _ends(answer="Jane Austen"),
        _BOOKS + 'answer = min(books, key=lambda each: each["year"])["author"]',
    ),
    OtherTask(
        "list by range in order",
        "Which books of the library came out between 1950 and 2000? List their titles, the earliest first.",
        _ends(answer=["Solaris", "Dune", "Cien años de soledad", "Dune Messiah"]),
        _BOOKS
        + """found = [each for each in books if 1950 <= each["year"] <= 2000]
answer = [each["title"] for each in sorted(found, key=lambda each: each["year"])]""",
    ),
    OtherTask(
        "find by a missing field",
        "For one of the books in the library nobody has entered an author. What is its title?",
        _ends(answer="World Atlas 2027"),
        _BOOKS + '[answer] = [each["title"] for each in books if not each.get("author")]',
    ),
    OtherTask(
        "name over two links",
        'Someone has borrowed "Solaris" from the library and still has it. What is the name of that reader?',
        _ends(answer="Zoë O'Hara"),
        _LOANS
        + """[answer] = [
    name[each["reader"]] for each in loans if title[each["book"]] == "Solaris" and not each["returned"]
]""",
    ),
    OtherTask(
        "list by link and date",
        'Today is 2027-03-01. Give me the titles of the books that are overdue: loans in the bucket "library" '
        "whose due date is past and that are not returned.",
        _ends(answer={"Dune", "Solaris", "Animal Farm"}),
        _LOANS
        + """overdue = [each for each in loans if each["due"] < "2027-03-01" and not each["returned"]]
answer = [title[each["book"]] for each in overdue]""",
    ),
    OtherTask(
        "find without a link",
        "One of the library's readers has never borrowed anything: there is no loan at all in that name. Who is "
        "it?",
        _ends(answer="Li Wei"),
        _LOANS
        + """borrowed = {each["reader"] for each in loans}
[answer] = [name[id] for id in name if id not in borrowed]""",
    ),
    OtherTask(
        "groups of a member",
        'In which groups of the bucket "library" is june? List the ids of the groups.',
        _ends(answer={"librarians", "helpers"}),
        """groups = <GET /buckets/{bucket_id}/groups>(bucket_id="library")["data"]
answer = [each["id"] for each in groups if "june" in each["members"]]""",
    ),
    OtherTask(
        "truth by comparison",
        'Are there any free seats left for the quiz night (bucket "club", collection "events")? Answer yes or no.',
        _ends(answer=False),
        _EVENTS
        + """[quiz] = [each for each in events if each["title"] == "Quiz night"]
answer = "yes" if quiz["booked"] < quiz["seats"] else "no"
""",
    ),
    OtherTask(
        "count records of a bucket",
        'How many records are there in the bucket "library", in all its collections together?',
        _ends(answer=29),
        _RECORDS
        + """answer = sum(
    len(records("library/" + each["id"]))
    for each in <GET /buckets/{bucket_id}/collections>(bucket_id="library")["data"]
)""",
    ),
    OtherTask(
        "field by look-alike name",
        "What is the email address of Anna Kowalska, a reader of the library?",
        _ends(answer="anna@mail.example"),
        _RECORDS
        + '[answer] = [each["email"] for each in records("library/readers") if each["name"] == "Anna Kowalska"]',
    ),
)

KINTO = OtherServer("kinto", "records", _running, _api, ("GET", "/buckets"), seed, read_state, _FIRST, _MORE)
