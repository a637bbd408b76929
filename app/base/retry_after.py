"""When a server that is busy wants to be asked again (RFC 9110, section 10.2.3)."""

import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds until the time that the header names, at least 0; None without one. Many servers send fractions.

    >>> [retry_after({"retry-after": each}) for each in ("7", "2.5", "soon", "nan", "-1")]
    [7.0, 2.5, None, None, None]
    >>> retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    0.0
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    in_utc = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, in_utc.timestamp() - time.time())
