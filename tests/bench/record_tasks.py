"""Kinto, which keeps records in collections in buckets: twenty tasks in plain English."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.bench.other_server import Check, OtherServer, OtherTask
from tests.servers.installed import python_server
from tests.servers.server_process import server_process

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

SEEDED: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "shop": {
        "teas": {
            "assam": {"name": "Assam Gold", "price": 4, "stock": 12},
            "earl": {"name": "Earl Grey", "price": 5, "stock": 0},
            "sencha": {"name": "Green Sencha", "price": 7, "stock": 3},
            "oolong": {"name": "Dark Oolong", "price": 8, "stock": 0},
            "chai": {"name": "Masala Chai", "price": 3, "stock": 20},
        },
        "cups": {"mug": {"name": "Blue Mug", "price": 9, "stock": 2}},
        "spare": {},
    },
    "archive": {},
}
STAFF = ["omar"]


class ServerState(msgspec.Struct, frozen=True):
    """What a server holds: records by bucket, collection and id, and members by bucket and group."""

    buckets: dict[str, dict[str, dict[str, dict[str, Any]]]]
    groups: dict[str, dict[str, list[str]]]
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


def seed(server: httpx.Client) -> None:
    """Make the server hold what tasks expect, and nothing else."""
    server.delete("buckets").raise_for_status()
    for bucket, collections in SEEDED.items():
        server.put(f"buckets/{bucket}").raise_for_status()
        for collection, records in collections.items():
            server.put(f"buckets/{bucket}/collections/{collection}").raise_for_status()
            for id, data in records.items():
                path = f"buckets/{bucket}/collections/{collection}/records/{id}"
                server.put(path, json={"data": data}).raise_for_status()
    server.put("buckets/shop/groups/staff", json={"data": {"members": STAFF}}).raise_for_status()


def read_state(server: httpx.Client) -> ServerState:
    buckets, groups = {}, {}
    for bucket in _get(server, "buckets"):
        path = f"buckets/{bucket}"
        buckets[bucket] = {
            collection: _get(server, f"{path}/collections/{collection}/records")
            for collection in _get(server, f"{path}/collections")
        }
        groups[bucket] = {name: group["members"] for name, group in _get(server, f"{path}/groups").items()}
    return ServerState(buckets, groups, server.get("").raise_for_status().json()["project_version"])


def _get(server: httpx.Client, path: str) -> dict[str, dict[str, Any]]:
    """What a list has, by id."""
    rows = server.get(path).raise_for_status().json()["data"]
    return {row["id"]: {name: row[name] for name in row if name not in ("id", "last_modified")} for row in rows}


def _answers(expected: str) -> Check[ServerState]:
    return lambda before, after, answer: answer.strip() == expected and after == before


def _version(before: ServerState, after: ServerState, answer: str) -> bool:
    return answer.strip() == before.version and after == before


def _teas(**changed: dict[str, Any] | None) -> Check[ServerState]:
    """The teas have changed so, None being those that are gone, and nothing else has."""
    teas = {id: tea for id, tea in (SEEDED["shop"]["teas"] | changed).items() if tea is not None}
    return _buckets(shop=SEEDED["shop"] | {"teas": teas})


def _buckets(**changed: dict[str, Any] | None) -> Check[ServerState]:
    """As `_teas`, of the buckets."""
    wanted = {name: bucket for name, bucket in (SEEDED | changed).items() if bucket is not None}
    return lambda _, after, __: after.buckets == wanted and after.groups["shop"] == {"staff": STAFF}


def _groups(**wanted: list[str]) -> Check[ServerState]:
    return lambda before, after, _: after.buckets == before.buckets and after.groups["shop"] == wanted


_TEA = "/buckets/{bucket_id}/collections/{collection_id}/records"
_AT = 'at = {"bucket_id": "shop", "collection_id": "teas"}\n'
_FIND = f'{_AT}ids = {{each["name"]: each["id"] for each in <GET {_TEA}>(**at)["data"]}}\n'
_TEAS = SEEDED["shop"]["teas"]
_WITHOUT_SPARE = {name: records for name, records in SEEDED["shop"].items() if name != "spare"}

_TASKS: tuple[OtherTask[ServerState], ...] = (
    OtherTask('Create a bucket with the id "garden".', _buckets(garden={}), '<PUT /buckets/{id}>(id="garden")'),
    OtherTask(
        'Create a collection with the id "plates" in the bucket "shop".',
        _buckets(shop=SEEDED["shop"] | {"plates": {}}),
        '<PUT /buckets/{bucket_id}/collections/{id}>(bucket_id="shop", id="plates")',
    ),
    OtherTask('Delete the bucket "archive".', _buckets(archive=None), '<DELETE /buckets/{id}>(id="archive")'),
    OtherTask(
        'Delete the collection "spare" of the bucket "shop".',
        _buckets(shop=_WITHOUT_SPARE),
        '<DELETE /buckets/{bucket_id}/collections/{id}>(bucket_id="shop", id="spare")',
    ),
    OtherTask(
        'Add a record with the id "mint" and the price 6 to the collection "teas" of the bucket "shop".',
        _teas(mint={"price": 6}),
        f'{_AT}<PUT {_TEA}/{{id}}>(**at, id="mint", data={{"price": 6}})',
    ),
    OtherTask(
        'Delete the record "assam" from the collection "teas" of the bucket "shop".',
        _teas(assam=None),
        f'{_AT}<DELETE {_TEA}/{{id}}>(**at, id="assam")',
    ),
    OtherTask(
        'Delete the record whose name is "Earl Grey" from the collection "teas" of the bucket "shop".',
        _teas(earl=None),
        f'{_FIND}<DELETE {_TEA}/{{id}}>(**at, id=ids["Earl Grey"])',
    ),
    OtherTask(
        'Delete all records of the collection "teas" of the bucket "shop" whose stock is 0.',
        _teas(earl=None, oolong=None),
        f"""{_AT}for each in <GET {_TEA}>(**at)["data"]:
    if each["stock"] == 0:
        <DELETE {_TEA}/{{id}}>(**at, id=each["id"])""",
    ),
    OtherTask("How many buckets are there?", _answers("2"), 'answer = len(<GET /buckets>()["data"])'),
    OtherTask(
        'How many collections does the bucket "shop" have?',
        _answers("3"),
        'answer = len(<GET /buckets/{bucket_id}/collections>(bucket_id="shop")["data"])',
    ),
    OtherTask(
        'How many records are in the collection "teas" of the bucket "shop"?',
        _answers("5"),
        f'{_AT}answer = len(<GET {_TEA}>(**at)["data"])',
    ),
    OtherTask(
        'How many records in the collection "teas" of the bucket "shop" have the stock 0?',
        _answers("2"),
        f'{_AT}answer = len([each for each in <GET {_TEA}>(**at)["data"] if each["stock"] == 0])',
    ),
    OtherTask(
        'What is the price of the record "sencha" in the collection "teas" of the bucket "shop"?',
        _answers("7"),
        f'{_AT}answer = <GET {_TEA}/{{id}}>(**at, id="sencha")["data"]["price"]',
    ),
    OtherTask(
        'What is the id of the record whose name is "Dark Oolong" in the collection "teas" of the bucket "shop"?',
        _answers("oolong"),
        f'{_FIND}answer = ids["Dark Oolong"]',
    ),
    OtherTask(
        'Change the price of the record "sencha" in the collection "teas" of the bucket "shop" to 9.',
        _teas(sencha=_TEAS["sencha"] | {"price": 9}),
        f'{_AT}<PATCH {_TEA}/{{id}}>(**at, id="sencha", data={{"price": 9}})',
    ),
    OtherTask(
        'In the collection "teas" of the bucket "shop", change the name of the record "Earl Grey" to "Lady Grey".',
        _teas(earl=_TEAS["earl"] | {"name": "Lady Grey"}),
        f'{_FIND}<PATCH {_TEA}/{{id}}>(**at, id=ids["Earl Grey"], data={{"name": "Lady Grey"}})',
    ),
    OtherTask(
        'Create a group with the id "guests" and the member "iris" in the bucket "shop".',
        _groups(staff=STAFF, guests=["iris"]),
        '<PUT /buckets/{bucket_id}/groups/{id}>(bucket_id="shop", id="guests", data={"members": ["iris"]})',
    ),
    OtherTask(
        'Delete the group "staff" of the bucket "shop".',
        _groups(),
        '<DELETE /buckets/{bucket_id}/groups/{id}>(bucket_id="shop", id="staff")',
    ),
    OtherTask(
        'Who is the member of the group "staff" of the bucket "shop"?',
        _answers("omar"),
        '[answer] = <GET /buckets/{bucket_id}/groups/{id}>(bucket_id="shop", id="staff")["data"]["members"]',
    ),
    OtherTask("Which version of Kinto does the server run?", _version, 'answer = <GET />()["project_version"]'),
)

KINTO = OtherServer("kinto", "records", _running, _api, ("GET", "/buckets"), seed, read_state, _TASKS)
