"""Services of the deployment and link-local addresses are closed to calls, also where private hosts are open."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from app.apis.calls.network import OwnServices, PublicNetwork, Service, open_client
from app.base.errors import HostError, SettingError
from app.base.settings import Settings
from app.db.database import Sessions
from tests.processes.test_asgi import environment, until_up
from tests.processes.test_killed_api import server
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.ledger_project import ledger_key
from tests.support.processes import free_ports
from tests.support.raw_server import raw_server
from tests.support.scripted_engine import ScriptedEngine, byte_tokenizer
from tests.support.scripted_server import scripted_server
from tests.support.small_internet import found, moved

HERE = """
127.0.0.1 localhost LOCALHOST 127.0.0.2 0.0.0.0 2130706433 0x7f000001 127.1 [::1] [::] [::ffff:127.0.0.1]
[64:ff9b::7f00:1] [2002:7f00:1::]
"""
LINK_LOCAL = """
169.254.169.254 169.254.0.1 ::ffff:169.254.169.254 ::169.254.169.254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1 fe80::1
febf::1 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254
"""


def addresses_here() -> set[str]:
    """Those of this machine's interfaces that its name leads to."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), 80, socket.AF_INET)}
    except OSError:
        return set()


def client_of(url: str, host: str = "localhost") -> httpx.AsyncClient:
    """Of a deployment with a model server there."""
    port = httpx.URL(url).port
    assert port is not None
    return open_client(allow_private_hosts=True, own=OwnServices((Service(host, port, "a model server"),)))


@contextmanager
def silent_at(host: str, port: int | None) -> Iterator[None]:
    """A place that lets connections wait: nobody accepts those that have filled its queue."""
    with socket.socket() as listening, ExitStack() as waiting:
        listening.bind((host, port))
        listening.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((host, port))
        yield


async def test_an_own_service_is_closed_under_every_name_of_this_machine() -> None:
    async with raw_server(found(b"here")) as own, raw_server(found(b"an API")) as other:
        port = httpx.URL(own).port
        with every_row() as row:
            for named in ("localhost", "127.0.0.1", "0.0.0.0", socket.gethostname()):
                async with client_of(own, named) as client:
                    for host in [*HERE.split(), *addresses_here()]:
                        closed = pytest.raises(HostError, match="a model server is, which is closed to calls")
                        with row(named, host), closed:
                            await client.get(f"http://{host}:{port}/v1/models")
                    with row(named, "another port"):
                        assert (await client.get(other)).text == "an API"


async def test_a_redirect_does_not_lead_to_an_own_service() -> None:
    async with raw_server(found(b"here")) as own, raw_server(moved(own)) as other, client_of(own) as client:
        with pytest.raises(HostError, match="a model server is"):
            await client.get(other, follow_redirects=True)


async def test_a_service_on_another_host_is_closed_by_name_and_by_address() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:  # noqa: ARG001
        return {"gpu": ["10.0.0.5"], "alias": ["10.0.0.5"], "other": ["10.0.0.6"]}[host]

    own = OwnServices((Service("gpu", 8000, "a model server"),))
    network = PublicNetwork(resolve, private=True, own=own)
    for host in ("gpu", "alias"):
        with pytest.raises(HostError, match="a model server is"):
            await network._open_addresses(host, 8000)
    assert await network._open_addresses("gpu", 80)
    assert await network._open_addresses("other", 8000)


async def test_an_own_service_is_looked_up_once_for_each_connection() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:  # noqa: ARG001
        asked.append(host)
        return ["10.0.0.9"] if host == "sage.test" else ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

    own = OwnServices((Service("sage.test", 443, "this server"),))
    network = PublicNetwork(resolve, private=True, own=own)
    assert len(await network._open_addresses("tickets.test", 443)) == 3
    assert asked == ["tickets.test", "sage.test"]


async def test_behind_an_ingress_this_server_is_closed_by_its_name_and_other_apis_are_open() -> None:
    """Whatever has a name of its own is what the ingress leads that name to."""
    ingress, here = "10.0.0.9", next(iter(addresses_here()), "127.0.0.1")
    own_names = [
        "sage.corp.test",
        "sage.corp.test.",
        "SAGE.corp.test",
        "sage",
        "sage.corp",
        "sage.corp.test.corp.test",
    ]
    addresses = ["10.0.0.9", "10.0.0.9.", "0x0a000009", "167772169", "::ffff:10.0.0.9", "ingress.default.svc"]

    async def openings(public_url: str, at: str) -> set[str]:
        async def resolve(host: str, port: int) -> Sequence[str]:  # noqa: ARG001
            return [f"::ffff:{at}" if ":" in host else at]

        settings = Settings(public_url=public_url)
        own = OwnServices(tuple(each for each in OwnServices.of(settings).services if each.port == 443))
        found = set()
        for host in [*own_names, *addresses, "tickets.corp.test", "sage-2.corp.test"]:
            with suppress(HostError):
                await PublicNetwork(resolve, private=True, own=own)._open_addresses(host, 443)
                found.add(host)
        return found

    others = {"tickets.corp.test", "sage-2.corp.test"}
    assert await openings("https://sage.corp.test", ingress) == others
    assert await openings("https://SAGE.corp.test.", ingress) == others
    assert {each.host for each in OwnServices.of(Settings(public_url="https://Säge.test")).services} >= {
        httpx.URL("https://säge.test").raw_host.decode()
    }
    assert not await openings("https://sage.corp.test", here), "what is on this machine may be this server"
    with every_row() as row:
        for direct in ("https://sage.prod.svc.cluster.local", "https://sage", f"https://{ingress}"):
            with row(direct):
                assert not await openings(direct, ingress)


def test_other_services_are_closed_by_address_whatever_their_names() -> None:
    settings = Settings(
        public_url="https://sage.corp.test",
        engine_urls="http://gpu.corp.test:8000",
        database_url="postgresql://db.corp.test/sage",
        broker_url="redis://queue.corp.test/0",
    )
    shared = [each.host for each in OwnServices.of(settings).services if each.shared]
    assert shared == ["sage.corp.test"]


async def test_link_local_addresses_are_closed_in_every_spelling() -> None:
    with every_row() as row:
        for address in LINK_LOCAL.split():
            with row(address):

                async def resolve(_host: str, _port: int, address: str = address) -> Sequence[str]:
                    return [address]

                network = PublicNetwork(resolve, private=True)
                with pytest.raises(HostError, match="at the link-local address"):
                    await network.connect_tcp("innocent.test", 80)


async def test_where_private_hosts_are_open_a_name_with_two_addresses_leads_to_the_one_that_answers() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["::1", "127.0.0.1"]  # it listens at the second one

    async with (
        raw_server(found(b"here")) as url,
        open_client(allow_private_hosts=True, network=PublicNetwork(resolve, private=True)) as client,
    ):
        assert (await client.get(url)).text == "here"


async def test_an_address_that_never_answers_holds_up_the_next_one_for_seconds_alone() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with (
        raw_server(found(b"here")) as url,
        open_client(
            allow_private_hosts=True, timeout=3600, network=PublicNetwork(resolve, private=True)
        ) as client,
    ):
        port = httpx.URL(url).port
        with silent_at("127.0.0.2", port):
            assert (await client.get(url)).text == "here"


def test_the_settings_name_the_own_services_and_not_the_demo() -> None:
    settings = Settings(
        host="0.0.0.0",
        public_url="https://sage.example",
        metrics_port=9_000,
        runners=2,
        engine_urls="http://gpu-1:8000,http://gpu-2:8000/v1,dns+http://pods",
        embeddings_url="http://embed:80",
        database_url="postgresql+psycopg://sage:pw@db-1:5432,db-2:6432/sage",
        database_direct_url="postgresql:///sage?host=/var/run/postgresql",
        broker_url="redis://broker/0",
        otel_exporter_otlp_endpoint="http://otel:4318",
    )
    found = [(each.host, each.port) for each in OwnServices.of(settings).services]
    assert found == [
        ("localhost", 8000),
        ("sage.example", 443),
        ("localhost", 9_000),
        ("localhost", 9_001),
        ("gpu-1", 8000),
        ("gpu-2", 8000),
        ("pods", 80),
        ("embed", 80),
        ("otel", 4318),
        ("broker", 6379),
        ("db-1", 5432),
        ("db-2", 6432),
    ]
    alone = [(each.host, each.port) for each in OwnServices.of(Settings(demo_port=8100)).services]
    assert alone == [("127.0.0.1", 8000), ("localhost", 8001)]


def test_a_password_in_the_address_of_the_broker_may_have_a_comma() -> None:
    brokers = "redis://:pass,word@broker-1/0;redis://:pass,word@broker-2:7000/0"
    found = [(each.host, each.port) for each in OwnServices.of(Settings(broker_url=brokers)).services]
    assert found[-2:] == [("broker-1", 6379), ("broker-2", 7000)]


def test_an_address_of_the_broker_that_cannot_be_read_is_named_without_its_password() -> None:
    with every_row() as row:
        for url in ("redis://:hun[ter@broker/0", "redis://:hunter@broker:port/0", "redis://:hun/ter@broker/0"):
            with row(url), pytest.raises(SettingError, match="BROKER_URL cannot be read") as raised:
                OwnServices.of(Settings(broker_url=url))
            assert "hun" not in str(raised.value)


async def test_a_projects_key_reads_neither_this_server_nor_its_model_server(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    (port,) = free_ports(1)
    base = f"http://127.0.0.1:{port}"
    async with (
        ledger.listening() as services,
        scripted_server(ScriptedEngine(byte_tokenizer(tmp_path))) as model,
        httpx.AsyncClient(base_url=base, timeout=300, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await ledger_key(committed, ledger, services, 'admin')}"
        env = environment(tmp_path, database_url, port) | {"ENGINE_URLS": model, "SAGE_PROMPT_PROFILE": "compact"}
        async with server(env) as api:
            await until_up(client, api)
            for url, what in ((base, "this server"), (model, "a model server")):
                answer = await client.post("/v1/apis", json={"name": "own", "url": f"{url}/schema/openapi.json"})
                assert answer.status_code == 400, answer.text
                assert f"127.0.0.1 is where {what} is, which is closed to calls" in answer.json()["detail"]
