"""Files to download: the numbers of a chart or table, and others."""

import csv
import io
from collections.abc import Iterable, Sequence

from litestar import Response

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would carry these out


def attachment(name: str, media_type: str, content: bytes) -> Response[bytes]:
    """A file to keep. Its name must be plain."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


def csv_file(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Response[str]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows([[_plain(value) for value in row] for row in rows])
    disposition = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(text.getvalue(), media_type="text/csv", headers=disposition)


def _plain(value: object) -> object:
    """
    >>> _plain("=1+1"), _plain(-1.5), _plain(None)
    ("'=1+1", -1.5, '')
    """
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
