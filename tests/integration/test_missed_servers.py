"""`make test-servers` is not green with servers that were not tried."""

from pathlib import Path

import pytest

from tests.integration.servers import installed


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Requirements that nothing can fulfil."""
    monkeypatch.setattr(installed, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(installed, "_REQUIREMENTS", tmp_path)
    (tmp_path / "nothing.lock").write_text("./nowhere\n")


@pytest.mark.slow
def test_a_server_that_cannot_be_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRY_ALL_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="nothing cannot be installed: "):
        installed.python_server("nothing")


@pytest.mark.slow
def test_it_fails_where_all_are_to_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRY_ALL_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="nothing cannot be installed: "):
        installed.python_server("nothing")
