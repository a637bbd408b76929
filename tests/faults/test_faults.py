"""The faults that can be planted are brought along with the code."""

from tests.faults.__main__ import ROOT, read_faults
from tests.support.every_row import every_row


def test_the_line_of_each_fault_stands_once_in_its_file() -> None:
    with every_row() as row:
        for fault in read_faults():
            with row(fault.id, fault.file):
                lines = [line.strip() for line in (ROOT / fault.file).read_text().splitlines()]
                assert lines.count(fault.before) == 1
