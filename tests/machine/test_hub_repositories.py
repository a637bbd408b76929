"""Repositories of the Hugging Face hub: pulled whole, checked before they are installed, or refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.base.settings import Settings
from app.machine.models import pull
from tests.support.file_server import FileServer
from tests.support.model_hub import COMMIT, NOWHERE, publish, sage
from tests.support.tiny_model import make_model_dir

pytestmark = pytest.mark.slow  # each is a command that downloads and converts


@pytest.fixture
def hub() -> Iterator[FileServer]:
    with FileServer().running() as server:
        yield server


def weights_of(name: str) -> str:
    return f"/{name}/resolve/{COMMIT}/model.safetensors"


def refuse_everywhere(hub: FileServer, tmp_path: Path, directory: Path, message: str) -> None:
    """The directory, on the hub and here."""
    publish(hub, "nobody/tiny", directory)
    for name in ("nobody/tiny", str(directory)):
        done = sage(tmp_path, hub.url, "models", "pull", name)
        assert done.returncode == 1
        assert message in done.stderr
        assert not list((tmp_path / "models").glob("nobody*"))


def test_a_repository_of_the_hub_is_pulled_whole(hub: FileServer, tmp_path: Path) -> None:
    publish(hub, "nobody/tiny", make_model_dir(tmp_path / "model"))
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 0, done.stderr
    found = tmp_path / "models" / f"nobody--tiny-{COMMIT[:12]}"
    assert Settings(model="nobody/tiny", data_dir=tmp_path).model_dir == found
    assert pull("nobody/tiny", tmp_path) == found, "without a network"
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert {path.name for path in found.iterdir()} == files
    shown = sage(tmp_path, NOWHERE, "models", "show", "nobody/tiny").stdout
    assert "512 tokens, vocabulary 259" in shown
    assert "512 MB for the KV cache" in shown
    assert "850 MB for the process)" in shown


def test_weights_that_a_repository_has_a_second_time_are_not_pulled(hub: FileServer, tmp_path: Path) -> None:
    files = {path.name for path in make_model_dir(tmp_path / "model").iterdir()}
    for other in (
        "consolidated.safetensors",
        "consolidated-00001-of-00002.safetensors",
        "original/model.safetensors",
    ):
        (tmp_path / "model" / other).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / other).write_bytes(b"other")
    publish(hub, "nobody/tiny", tmp_path / "model")
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in Path(done.stdout.split("\n")[0]).iterdir()} == files
    assert not [path for path, _ in hub.asked if "consolidated" in path or "original" in path]


@pytest.mark.parametrize("missing", ["model.safetensors", "chat_template.jinja"])
def test_a_repository_that_cannot_be_served_is_not_installed(
    missing: str, hub: FileServer, tmp_path: Path
) -> None:
    directory = make_model_dir(tmp_path / "model")
    (directory / missing).unlink()
    publish(hub, "nobody/tiny", directory)
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 1
    assert "has no" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "models").glob("nobody*"))


def test_weights_that_broke_off_go_on_where_they_ended(hub: FileServer, tmp_path: Path) -> None:
    publish(hub, "nobody/tiny", make_model_dir(tmp_path / "model"))
    size = len(hub.files[weights_of("nobody/tiny")])
    small = max(len(hub.files[path]) for path in hub.files if path.endswith((".json", ".jinja")))
    assert small < size // 2
    hub.breaks = [size // 2, *[0] * 5]
    broken = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert broken.returncode == 1
    assert "What has arrived is kept: try again" in broken.stderr
    assert "Traceback" not in broken.stderr
    hub.breaks, hub.asked = [], []
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 0, done.stderr
    assert [each for each in hub.asked if "/resolve/" in each[0]] == [
        (weights_of("nobody/tiny"), f"bytes={size // 2}-")
    ]
    assert not list((tmp_path / "models" / ".downloads").iterdir())


@pytest.mark.parametrize(
    ("file", "message"), [("model.safetensors", "has the SHA-256"), ("tokenizer.json", "has the git object id")]
)
def test_a_file_with_another_hash_is_not_installed(
    hub: FileServer, tmp_path: Path, file: str, message: str
) -> None:
    publish(hub, "nobody/tiny", make_model_dir(tmp_path / "model"))
    path = weights_of("nobody/tiny").replace("model.safetensors", file)
    right = hub.files[path]
    hub.files[path] = right[:-1] + bytes([right[-1] ^ 1])
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 1
    assert message in done.stderr
    assert not list((tmp_path / "models").glob("nobody*"))
    hub.files[path] = right
    assert sage(tmp_path, hub.url, "models", "pull", "nobody/tiny").returncode == 0


def test_weights_with_a_missing_part_are_not_installed(hub: FileServer, tmp_path: Path) -> None:
    directory = make_model_dir(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    message = "lacks 1 of 2 files of its weights, such as model-00002-of-00002.safetensors"
    refuse_everywhere(hub, tmp_path, directory, message)


def test_an_index_that_is_not_read_does_not_matter(hub: FileServer, tmp_path: Path) -> None:
    directory = make_model_dir(tmp_path / "model")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    publish(hub, "nobody/tiny", directory)
    assert sage(tmp_path, hub.url, "models", "pull", "nobody/tiny").returncode == 0
    (directory / "model.safetensors").rename(directory / "other.safetensors")
    (directory / "model.safetensors.index.json").unlink()
    done = sage(tmp_path, hub.url, "models", "pull", str(directory))
    assert "has neither model.safetensors nor model.safetensors.index.json" in done.stderr


def test_half_a_file_of_weights_is_refused_wherever_it_lies(hub: FileServer, tmp_path: Path) -> None:
    directory = make_model_dir(tmp_path / "model")
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refuse_everywhere(hub, tmp_path, directory, "model.safetensors was cut off or damaged")


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (b"<html>", 200, "malformed"),
        (b'{"id": "nobody/tiny"}', 200, "missing required field `sha`"),
        (b"", 401, "it needs an account that may read it: set HF_TOKEN"),
        (b"", 404, "404"),
    ],
)
def test_a_repository_that_cannot_be_read_is_one_error(
    answer: bytes, status: int, message: str, hub: FileServer, tmp_path: Path
) -> None:
    hub.files["/api/models/nobody/tiny"] = answer
    hub.refusals = [status] if status != 200 else []
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 1
    assert message in done.stderr
    assert "copy the model's directory here and set SAGE_MODEL to it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_asked_too_often_is_asked_again(hub: FileServer, tmp_path: Path) -> None:
    publish(hub, "nobody/tiny", make_model_dir(tmp_path / "model"))
    hub.refusals = [429, 503]
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 0, done.stderr
    assert hub.refusals == []


def test_a_file_that_would_lie_outside_of_the_model_is_refused(hub: FileServer, tmp_path: Path) -> None:
    publish(hub, "nobody/tiny", make_model_dir(tmp_path / "model"))
    path = "/api/models/nobody/tiny"
    info = json.loads(hub.files[path])
    info["siblings"].append({"rfilename": "../../../evil.json", "size": 1})
    hub.files[path] = json.dumps(info).encode()
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert "a file that lies outside of it, '../../../evil.json'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("template", ["{{ messages + 1 }}", "{{ 1 / 0 }}", "{{ tools | length }}"])
def test_a_template_that_breaks_is_refused_before_the_weights_are_downloaded(
    template: str, hub: FileServer, tmp_path: Path
) -> None:
    directory = make_model_dir(tmp_path / "model")
    (directory / "chat_template.jinja").write_text(template)
    publish(hub, "nobody/tiny", directory)
    done = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny")
    assert done.returncode == 1
    assert "the model's chat template rejects these messages: " in done.stderr
    assert "Traceback" not in done.stderr
    assert weights_of("nobody/tiny") not in {path for path, _ in hub.asked}
