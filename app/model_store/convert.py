"""Converts a GGUF file to a model directory in transformers format: whole or not at all, always the same bytes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from app.errors import GgufError, ModelError, StorageError, first_line
from app.model_store.gguf_header import GgufFile, config_of, shape_of
from app.model_store.gguf_tokenizer import tokenizer_config, tokenizer_of
from app.model_store.gguf_weights import weights_size, write_weights
from app.model_store.model_checks import check_directory
from app.publish import publish

_SPARE = 50 << 20  # bytes on the disk for everything but weights


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's card says."""

    title: str
    licence: str
    source: str  # a repository, a package or a file
    sha256: str  # of the GGUF file
    prompt_profile: str


def convert(gguf: Path, target: Path, origin: Origin, progress: Callable[[int, int], object]) -> Path:
    """Make `target`, or leave it as it is. `progress` gets the bytes written, and all of them.

    Raises GgufError, ModelTokenizerError, ChatTemplateError, and StorageError for a full disk.
    """
    file = GgufFile(gguf)
    shape = shape_of(file)
    needed = weights_size(shape)
    partial = target.with_name(f".{target.name}.partial")
    try:
        _make_empty(partial, needed)
        _write_json(partial / "config.json", config_of(file, shape))
        tokenizer_of(file).save(str(partial / "tokenizer.json"))
        _write_json(partial / "tokenizer_config.json", tokenizer_config(file))
        template = file.value("tokenizer.chat_template", str)
        (partial / "chat_template.jinja").write_text(template, "utf-8")
        (partial / "README.md").write_text(_card(origin), "utf-8")
        check_directory(partial)
        write_weights(file, shape, partial / "model.safetensors", lambda size: progress(size, needed))
        publish(partial, target)
    except OSError as error:
        raise StorageError(f"{target} could not be written ({first_line(error)}): free disk space") from error
    except GgufError:
        raise
    except ModelError as error:
        raise type(error)(str(error).replace(str(partial), str(gguf))) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def origin_of(gguf: Path, sha256: str) -> Origin:
    """Of a file that the catalogue does not have. Raises GgufError."""
    file = GgufFile(gguf)
    return Origin(
        title=file.optional("general.name", str) or gguf.stem,
        licence=file.optional("general.license", str) or "unknown",
        source=gguf.name,
        sha256=sha256,
        prompt_profile="full",
    )


def check_disk_space(place: Path, needed: int) -> None:
    """Raises StorageError before a write that cannot end."""
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{needed >> 20} MB are needed in {place}, {free >> 20} MB are free: free some, or set SAGE_DATA_DIR"
        )


def _make_empty(partial: Path, needed: int) -> None:
    shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
    partial.mkdir(parents=True)
    check_disk_space(partial, needed + _SPARE)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _card(origin: Origin) -> str:
    return f"""---
license: {json.dumps(origin.licence)}
library_name: transformers
pipeline_tag: text-generation
prompt_profile: {origin.prompt_profile}
---
# {origin.title}

Converted from {origin.source}, a GGUF file with the SHA-256 `{origin.sha256}`: dequantized to bfloat16, with the
tokenizer and the chat template that it contains.
"""
