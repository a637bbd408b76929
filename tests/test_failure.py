"""Why a run failed, as its row tells it."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from app.errors import InvalidError, StorageError
from trainer.worker.failure import failure_of

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
    said = failure_of(error, RUN)
    assert said == f"StorageError: no space is left for {place}: free some, then retry"


def test_a_foreseen_error_is_its_name_and_message() -> None:
    assert failure_of(InvalidError("no data: send\nfeedback"), RUN) == "InvalidError: no data: send feedback"


def test_an_error_from_a_group_of_tasks_is_told_without_the_group() -> None:
    group = ExceptionGroup("unhandled errors", [ExceptionGroup("more", [InvalidError("no data")])])
    assert failure_of(group, RUN) == "InvalidError: no data"


def test_a_defect_points_to_the_log() -> None:
    assert failure_of(KeyError("reward"), RUN).endswith("(a defect: see the end of /data/runs/7/log)")


def test_a_file_that_cannot_be_written_is_no_defect() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/data/runs")
    assert failure_of(error, RUN) == "PermissionError: [Errno 13] Permission denied: '/data/runs'"


def test_a_full_disk_that_is_foreseen_keeps_its_message() -> None:
    error = caused(StorageError("the checkpoint /data/x could not be written"), FULL)
    assert failure_of(error, RUN) == "StorageError: the checkpoint /data/x could not be written"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_run_that_needs_too_much_memory_says_what_would_need_less(error: Exception) -> None:
    assert "lower micro_batch_tokens" in failure_of(error, RUN)
    assert "defect" not in failure_of(error, RUN)
