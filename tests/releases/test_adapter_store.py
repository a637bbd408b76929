"""Adapters move between hosts through a store: a directory, or any URL of fsspec."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from app.base.errors import AdapterError, EngineError, SettingError, StorageError, UnreadableAdapterError
from app.engine.adapter_files import CONFIG, WEIGHTS, content_hash
from app.releases.adapter_store import AdapterStore
from tests.support.processes import free_ports
from tests.support.s3_server import KEYS, s3_server
from tests.support.synced_paths import synced_paths

BUCKET = "adapters"


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server(BUCKET) as url:
        yield url


@pytest.fixture(params=["directory", "file", "memory", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store that is shared by hosts."""
    if request.param == "s3":
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": request.getfixturevalue("s3_url")}.items():
            monkeypatch.setenv(name, value)
        return f"s3://{BUCKET}/{uuid4().hex}"
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    return f"{'file://' if request.param == 'file' else ''}{tmp_path / 'store'}"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced, in order."""
    return synced_paths(monkeypatch)


def trained(host: Path, text: str = "weights") -> str:
    """Publishes files as a trainer does, and returns their name."""
    made = host / "made"
    made.mkdir(parents=True)
    (made / CONFIG).write_text("{}\n")
    (made / WEIGHTS).write_bytes(text.encode() * 1000)
    name = content_hash(made)
    made.rename(host / name)
    return name


async def test_another_host_fetches_exactly_the_bytes_that_were_put(store_url: str, tmp_path: Path) -> None:
    name = trained(tmp_path / "trainer")
    giving = AdapterStore(tmp_path / "trainer", store_url)
    await giving.put(name)
    await giving.put(name)
    taking = AdapterStore(tmp_path / "api", store_url)
    path = await taking.fetch(name)
    assert path == tmp_path / "api" / name
    assert [each.name for each in sorted(path.iterdir())] == [CONFIG, WEIGHTS]
    assert content_hash(path) == name
    assert [each.name for each in path.parent.iterdir()] == [name], "nothing of the transfer is left"


async def test_a_missing_adapter_is_named_and_fetched_once_it_is_put(store_url: str, tmp_path: Path) -> None:
    name = trained(tmp_path / "trainer")
    taking = AdapterStore(tmp_path / "api", store_url)
    with pytest.raises(UnreadableAdapterError, match=f"does not hold {name}"):
        await taking.fetch(name)
    await AdapterStore(tmp_path / "trainer", store_url).put(name)
    assert content_hash(await taking.fetch(name)) == name


async def test_an_interrupted_upload_is_not_trusted_and_the_next_one_completes_it(tmp_path: Path) -> None:
    name = trained(tmp_path / "trainer")
    store = str(tmp_path / "store")
    await AdapterStore(tmp_path / "trainer", store).put(name)
    (tmp_path / "store" / name / "complete").unlink()
    (tmp_path / "store" / name / WEIGHTS).write_bytes(b"half")
    taking = AdapterStore(tmp_path / "api", store)
    with pytest.raises(UnreadableAdapterError, match=f"does not hold {name}"):
        await taking.fetch(name)
    await AdapterStore(tmp_path / "trainer", store).put(name)
    assert content_hash(await taking.fetch(name)) == name


async def test_damaged_weights_are_refused_by_their_hash_and_nothing_is_kept(tmp_path: Path) -> None:
    name = trained(tmp_path / "trainer")
    store = tmp_path / "store"
    await AdapterStore(tmp_path / "trainer", str(store)).put(name)
    (store / name / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(AdapterError, match=rf"{name} has the content hash \w{{32}}, so it is damaged") as refused:
        await AdapterStore(tmp_path / "api", str(store)).fetch(name)
    assert refused.type is AdapterError, "which rejects a release that passed"
    assert not list((tmp_path / "api").iterdir())


async def test_without_a_store_an_adapter_is_only_on_its_own_machine(tmp_path: Path) -> None:
    name = trained(tmp_path)
    alone = AdapterStore(tmp_path)
    await alone.put(name)
    assert await alone.fetch(name) == tmp_path / name
    with pytest.raises(UnreadableAdapterError, match=r"there is no adapter in .*missing"):
        await alone.fetch("missing")


async def test_without_a_store_a_disk_that_cannot_be_read_lets_the_adapter_wait(tmp_path: Path) -> None:
    with pytest.raises(UnreadableAdapterError, match=r"cannot be read .*too long.*: check the disk"):
        await AdapterStore(tmp_path).fetch("a" * 300)


async def test_concurrent_fetches_of_an_adapter_all_succeed(tmp_path: Path) -> None:
    name = trained(tmp_path / "trainer")
    store = str(tmp_path / "store")
    await AdapterStore(tmp_path / "trainer", store).put(name)
    processes = [AdapterStore(tmp_path / "api", store) for _ in range(4)]
    paths = await asyncio.gather(*(each.fetch(name) for each in processes for _ in range(3)))
    assert set(paths) == {tmp_path / "api" / name}
    assert [each.name for each in (tmp_path / "api").iterdir()] == [name]


@pytest.mark.parametrize(
    "left", [{CONFIG: b"{}\n"}, {CONFIG: b"", WEIGHTS: b""}, {CONFIG: b"{}\n", WEIGHTS: b"other"}]
)
async def test_what_a_power_failure_left_of_a_local_adapter_is_fetched_again(
    tmp_path: Path, left: dict[str, bytes]
) -> None:
    name = trained(tmp_path / "trainer")
    store = str(tmp_path / "store")
    await AdapterStore(tmp_path / "trainer", store).put(name)
    (tmp_path / "api" / name).mkdir(parents=True)
    for file, content in left.items():
        (tmp_path / "api" / name / file).write_bytes(content)
    assert content_hash(await AdapterStore(tmp_path / "api", store).fetch(name)) == name


async def test_a_damaged_local_adapter_is_no_fault_of_its_weights_while_the_store_is_down(tmp_path: Path) -> None:
    name = trained(tmp_path)
    (tmp_path / name / WEIGHTS).write_bytes(b"")
    (tmp_path / "store").write_text("a file where the directory should be")
    with pytest.raises(EngineError, match=f"{name} cannot be fetched"):
        await AdapterStore(tmp_path, str(tmp_path / "store")).fetch(name)


async def test_a_fetched_adapter_is_on_the_disk_before_it_has_its_name(tmp_path: Path, synced: list[str]) -> None:
    name = trained(tmp_path / "trainer")
    store = str(tmp_path / "store")
    await AdapterStore(tmp_path / "trainer", store).put(name)
    await AdapterStore(tmp_path / "api", store).fetch(name)
    assert [Path(path).name for path in synced] == [CONFIG, WEIGHTS, name, "api"]


async def test_a_store_that_is_down_is_not_the_adapters_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = free_ports(1)
    for key, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(key, value)
    store = AdapterStore(tmp_path, f"s3://{BUCKET}/down")
    with pytest.raises(EngineError, match="cannot be fetched from s3://adapters/down"):
        await store.fetch("a" * 32)
    name = trained(tmp_path)
    with pytest.raises(StorageError, match="SAGE_ADAPTER_STORE"):
        await store.put(name)


async def test_a_full_disk_is_reported_as_such(tmp_path: Path) -> None:
    name = trained(tmp_path / "trainer")
    (tmp_path / "store").write_text("a file where the directory should be")
    with pytest.raises(StorageError, match=f"does not accept {name}"):
        await AdapterStore(tmp_path / "trainer", str(tmp_path / "store")).put(name)


def test_an_unsupported_url_is_refused_at_once_naming_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="SAGE_ADAPTER_STORE=nosuch://x: Protocol not known"):
        AdapterStore(tmp_path, "nosuch://x")
