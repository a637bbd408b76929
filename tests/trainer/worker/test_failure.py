"""The reason of a failed run, as stored in its row."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from app.base.errors import InvalidError, StorageError
from trainer.worker.run_process import describe_failure

RUN = Path("/data/runs/7")
FULL = OSError(errno.ENOSPC, "No space left on device", "/data/adapters/tmp/adapter_model.safetensors")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (FULL, "/data/adapters/tmp"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "/data/runs/7"),
        (caused(RuntimeError("unexpected pos 64 vs 0"), FULL), "/data/adapters/tmp"),
        (
            SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
            "/data/runs/7",
        ),
    ],
)
def test_a_full_disk_is_named_with_its_directory(error: Exception, place: str) -> None:
    described = describe_failure(error, RUN)
    assert described == f"StorageError: no space is left for {place}: free some, then retry"


def test_an_expected_error_is_described_by_its_name_and_message() -> None:
    assert describe_failure(InvalidError("no data: send\nfeedback"), RUN) == "InvalidError: no data: send feedback"


def test_an_error_in_an_exception_group_is_described_without_the_group() -> None:
    group = ExceptionGroup("unhandled errors", [ExceptionGroup("more", [InvalidError("no data")])])
    assert describe_failure(group, RUN) == "InvalidError: no data"


def test_a_defect_points_to_the_log() -> None:
    assert describe_failure(KeyError("reward"), RUN).endswith("(a defect: see the end of /data/runs/7/log)")


def test_a_file_that_cannot_be_written_is_not_called_a_defect() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/data/runs")
    assert describe_failure(error, RUN) == "PermissionError: [Errno 13] Permission denied: '/data/runs'"


def test_a_storage_error_keeps_its_message() -> None:
    error = caused(StorageError("the checkpoint /data/x could not be written"), FULL)
    assert describe_failure(error, RUN) == "StorageError: the checkpoint /data/x could not be written"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_an_out_of_memory_error_names_the_settings_that_need_less(error: Exception) -> None:
    assert "lower micro_batch_tokens" in describe_failure(error, RUN)
    assert "defect" not in describe_failure(error, RUN)
