"""Lists that a setting holds as one text: networks, and URLs."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit


def networks_in(text: str) -> list[IPv4Network | IPv6Network]:
    """Raises ValueError for anything but addresses and networks.

    >>> networks_in("10.0.0.0/8, ::1")
    [IPv4Network('10.0.0.0/8'), IPv6Network('::1/128')]
    """
    return [ip_network(each.strip()) for each in text.split(",") if each.strip()]


def urls_in(text: str) -> list[str]:
    """
    >>> urls_in("http://a, http://b,")
    ['http://a', 'http://b']
    """
    return [url.strip() for url in text.split(",") if url.strip()]


def are_http(text: str) -> bool:
    """
    >>> are_http("http://a:8000, https://b/vllm"), are_http("a:8000"), are_http("http://a:x"), are_http(",")
    (True, False, False, False)
    """
    return bool(urls_in(text)) and all(map(_is_http, urls_in(text)))


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is not a number, or a bracket that does not close
        return False
    return bool(named) and not parts.query and not parts.fragment and not re.search(r"\s", url)
