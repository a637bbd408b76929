"""What is known of a call without asking its runner: whether a byte of it may have left this machine."""

from pathlib import Path
from uuid import UUID

import pytest

from app.tasks import journal
from app.tasks.journal import SentMarks

TASK = UUID(int=7)


def opened(directory: Path) -> SentMarks:
    marks = SentMarks.open(directory)
    assert marks is not None
    return marks


def test_a_call_is_unsent_until_it_is_marked(tmp_path: Path) -> None:
    marks, others = opened(tmp_path / "sent"), opened(tmp_path / "sent")
    assert others.unsent(TASK) is None
    for seq in (3, 4):
        marks.begin(TASK, seq, b"sealed")
        assert others.unsent(TASK) == (seq, b"sealed")
        marks.sent(TASK)
        assert others.unsent(TASK) is None
    marks.forget(TASK)
    marks.sent(TASK)
    assert others.unsent(TASK) is None


def test_marks_of_an_earlier_boot_and_torn_ones_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = opened(tmp_path / "sent")
    marks.begin(TASK, 0, b"sealed")
    whole = (tmp_path / "sent" / str(TASK)).read_bytes()
    for size in range(len(whole)):
        (tmp_path / "sent" / str(TASK)).write_bytes(whole[:size])
        assert marks.unsent(TASK) is None
    marks.begin(TASK, 0, b"sealed")
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(journal, "_BOOT", tmp_path / "boot")
    assert opened(tmp_path / "sent").unsent(TASK) is None


def test_without_room_for_marks_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = opened(tmp_path / "sent")
    marks.begin(TASK, 0, b"sealed")
    (tmp_path / "sent" / str(TASK)).unlink()
    (tmp_path / "sent" / str(TASK)).mkdir()  # so that it cannot be written, as on a full disk
    marks.begin(TASK, 1, b"sealed")
    assert marks.unsent(TASK) is None
    with pytest.raises(OSError, match="directory"):
        marks.sent(TASK)
    monkeypatch.setattr(journal, "_BOOT", tmp_path / "none")
    assert SentMarks.open(tmp_path / "sent") is None
