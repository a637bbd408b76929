"""The keys of a deployment, and the texts that they encrypt."""

import stat
from pathlib import Path

import pytest

from app.base.encryption import KEY_FILE, KeyRing, key_id_of, new_key, write_key_file
from app.base.errors import SettingError, StorageError
from app.base.settings import Settings

OLD, NEW = "o" * 32, "n" * 32


def test_an_encrypted_text_names_its_key_and_never_repeats_itself() -> None:
    ring = KeyRing([OLD])
    first, second = ring.encrypt("s3cret \N{SNOWMAN}"), ring.encrypt("s3cret \N{SNOWMAN}")
    assert first != second
    assert "s3cret" not in first
    assert key_id_of(first) == ring.ids()[0]
    assert ring.decrypt(first) == ring.decrypt(second) == "s3cret \N{SNOWMAN}"


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    both = KeyRing([NEW, OLD])
    assert both.decrypt(KeyRing([OLD]).encrypt("a")) == "a"
    assert key_id_of(both.encrypt("a")) == KeyRing([NEW]).ids()[0]


def test_a_missing_key_is_named_with_the_setting() -> None:
    hidden = KeyRing([OLD]).encrypt("s3cret")
    with pytest.raises(
        SettingError, match=rf"{key_id_of(hidden)}, which this host does not have.*SAGE_SECRET_KEY"
    ):
        KeyRing([NEW]).decrypt(hidden)
    with pytest.raises(SettingError, match="damaged"):
        KeyRing([OLD]).decrypt(hidden[:-4] + "AAA=")
    with pytest.raises(SettingError, match="which this host does not have"):
        KeyRing([OLD]).decrypt("never encrypted")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(SettingError, match="fewer than 32 characters"):
        KeyRing(["password"])


def test_the_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "data" / KEY_FILE
    write_key_file(path, [OLD], replace=False)
    write_key_file(path, [NEW], replace=False)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (f"{OLD}\n", 0o600)
    assert [each.name for each in path.parent.iterdir()] == [KEY_FILE]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="SAGE_DATA_DIR"):
        write_key_file(tmp_path / "file" / KEY_FILE, [OLD], replace=False)


def test_an_open_ring_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    write_key_file(path, [OLD], replace=False)
    ring = KeyRing.open(Settings(data_dir=tmp_path))
    before = ring.encrypt("a")
    write_key_file(path, [NEW, OLD], replace=True)
    assert key_id_of(ring.encrypt("a")) == KeyRing([NEW]).ids()[0]
    assert ring.decrypt(before) == "a"


def test_the_setting_wins_over_the_file_and_one_of_them_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="SAGE_SECRET_KEY"):
        KeyRing.open(Settings(data_dir=tmp_path))
    write_key_file(tmp_path / KEY_FILE, [OLD], replace=False)
    ring = KeyRing.open(Settings(data_dir=tmp_path, secret_key=f"{NEW}, {OLD}"))
    assert ring.ids() == KeyRing([NEW, OLD]).ids()


def test_new_keys_are_long_enough_and_differ() -> None:
    assert len({new_key() for _ in range(3)} | {KeyRing([new_key()]).ids()[0]}) == 4
