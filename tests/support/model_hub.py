"""A Hugging Face hub over HTTP, and `sage` as a command that asks it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.file_server import FileServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GGUF = "nobody/tiny-GGUF/tiny-Q8.gguf"
NOWHERE = "http://127.0.0.1:9"


def sage(data_dir: Path, endpoint: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        env={
            **os.environ,
            "SAGE_DATA_DIR": str(data_dir),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{endpoint}/simple",
            "PIP_EXTRA_INDEX_URL": "",
            **env,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def publish(hub: FileServer, name: str, directory: Path, *, size: int = 0) -> None:
    """As the hub answers for a repository of one commit, with the weights in Git LFS."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}
    tree = [{"type": "file", "path": name, "size": len(content), "oid": COMMIT} for name, content in files.items()]
    siblings = list[dict[str, object]]()
    for file, content in files.items():
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": size or len(content), "pointerSize": 1}
        kept = {"lfs": lfs} if file.endswith(".safetensors") else {}
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        siblings.append({"rfilename": file, "size": size or len(content), "blobId": blob, **kept})
    info = {"_id": "1", "id": name, "sha": COMMIT, "siblings": siblings}
    hub.files[f"/api/models/{name}"] = json.dumps(info).encode()
    hub.files[f"/api/models/{name}/revision/{COMMIT}"] = json.dumps(info).encode()
    hub.files[f"/api/models/{name}/tree/{COMMIT}"] = json.dumps(tree).encode()
    for path in list(hub.files):
        hub.types[path] = "application/json"
    for file, content in files.items():
        hub.files[f"/{name}/resolve/{COMMIT}/{file}"] = content
    hub.headers = {"X-Repo-Commit": COMMIT, "ETag": '"one"'}


def publish_gguf(hub: FileServer, name: str, content: bytes, *, commit: str = COMMIT, hashed: bool = True) -> None:
    """As the hub answers for a file: in Git LFS, or without a hash in git itself."""
    repository, _, file = name.rpartition("/")
    main, pinned = (f"/{repository}/resolve/{revision}/{file}" for revision in ("main", commit))
    digest = hashlib.sha256(content).hexdigest()
    linked = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))} if hashed else {}
    hub.files |= {main: content, pinned: content}
    hub.own_headers |= {path: {"X-Repo-Commit": commit, "ETag": f'"{digest}"'} | linked for path in (main, pinned)}
