"""Numbers and times as people read them, and files of numbers to download."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from litestar import Response
from markupsafe import Markup

_NOTHING = "-"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_DAY = 86_400
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would carry these out


def count(value: float | None) -> str:
    """A count, or the mean of counts.

    >>> count(12345), count(2.345), count(0), count(None), count(4_560_000)
    ('12,345', '2.3', '0', '-', '4.56 M')
    """
    if value is None:
        return _NOTHING
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def money(value: float | None) -> str:
    """In the unit of the prices.

    >>> money(1234.5), money(0.01234), money(0.0), money(None)
    ('1,234.50', '0.012', '0', '-')
    """
    if value is None:
        return _NOTHING
    return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """
    >>> percent(0.1234), percent(1.0), percent(0.999), percent(None)
    ('12.3 %', '100 %', '99.9 %', '-')
    """
    if share is None:
        return _NOTHING
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def score(value: float | None) -> str:
    """
    >>> score(1.0), score(0.25), score(None)
    ('1', '0.25', '-')
    """
    return _NOTHING if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def signed(value: float | None) -> str:
    """A difference.

    >>> signed(0.1234), signed(-12.34), signed(1234.5), signed(0.0), signed(None)
    ('+0.12', '-12.3', '+1,234', '0', '-')
    """
    if value is None:
        return _NOTHING
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 2 else 2
    text = f"{value:+,.{digits}f}"
    return "0" if float(text.replace(",", "")) == 0 else text


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.0123), duration(4.26), duration(75), duration(7300), duration(None)
    ('12 ms', '4.3 s', '1 min 15 s', '2 h 1 min', '-')
    """
    if seconds is None:
        return _NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return _longest(round(seconds), 2)


def size(bytes_: int | None) -> str:
    """
    >>> size(12), size(2_500_000), size(3 << 40), size(None)
    ('12 B', '2.5 MB', '3.3 TB', '-')
    """
    if bytes_ is None:
        return _NOTHING
    power = min(4, max(0, len(str(bytes_)) - 1) // 3)
    return f"{bytes_ / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def when(time: datetime | None, now: datetime) -> Markup:
    """How long ago, or the date if that is long; the exact time in UTC is its title.

    >>> now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> when(datetime(2026, 1, 31, 11, 55, tzinfo=UTC), now)
    Markup('<time datetime="2026-01-31T11:55:00Z" title="2026-01-31 11:55:00 UTC">5 min ago</time>')
    >>> when(datetime(2025, 12, 1, tzinfo=UTC), now).striptags()
    '1 Dec 2025'
    >>> when(datetime(2026, 1, 31, 14, tzinfo=UTC), now).striptags()
    'in 2 h'
    """
    if time is None:
        return Markup(_NOTHING)
    exact = time.astimezone(UTC)
    return Markup('<time datetime="{:%Y-%m-%dT%H:%M:%SZ}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        exact, exact, _distance(exact, now)
    )


def _distance(time: datetime, now: datetime) -> str:
    seconds = (now - time).total_seconds()
    if abs(seconds) >= 7 * _DAY:
        return f"{time.day} {time:%b %Y}" if time.year != now.year else f"{time.day} {time:%b}"
    if abs(seconds) < 1:
        return "now"
    text = _longest(round(abs(seconds)), 1)
    return f"{text} ago" if seconds > 0 else f"in {text}"


def _longest(seconds: int, parts: int) -> str:
    """The largest units of a time."""
    found = []
    for length, unit in _UNITS:
        number, seconds = divmod(seconds, length)
        if number:
            found.append(f"{number} {unit}")
        elif found:
            break
    return " ".join(found[:parts]) or "0 s"


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
