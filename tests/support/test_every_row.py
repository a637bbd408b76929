"""A test over a table fails for each wrong row, by its name, and for an empty table."""

import pytest

from tests.support.every_row import every_row


def _only_two(rows: dict[str, int], checked: list[int]) -> None:
    with every_row() as row:
        for name, number in rows.items():
            with row(name, number):
                checked.append(number)
                assert number == 2, f"it is {number}"


def test_all_rows_are_checked_and_each_wrong_one_is_named() -> None:
    checked: list[int] = []
    with pytest.raises(pytest.fail.Exception) as failed:
        _only_two({"one\ud800": 1, "two": 2, "three": 3}, checked)
    assert checked == [1, 2, 3]
    said = str(failed.value)
    assert said.startswith("2 of 3 rows are wrong:\none\\ud800, 1: AssertionError at ")
    assert "it is 1" in said
    assert "\nthree, 3: AssertionError at " in said
    assert "two" not in said


def _an_error_and_the_want_of_one() -> None:
    with every_row() as row:
        with row("a"):
            raise KeyError("x")
        with row("b"), pytest.raises(KeyError):
            pass


def test_an_error_and_the_want_of_one_are_failures_of_the_row() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)2 of 2 .*a: KeyError.*b: Failed.*DID NOT RAISE"):
        _an_error_and_the_want_of_one()


def test_a_timeout_ends_the_test() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"^Timeout"), every_row() as row, row("a"):
        pytest.fail("Timeout (>300.0s) from pytest-timeout.")


def test_a_table_without_rows_fails() -> None:
    with pytest.raises(AssertionError, match="no rows"), every_row():
        pass
