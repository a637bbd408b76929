"""What settings hold as text: lists of networks and of URLs, names and paths; which ones fit together."""

import json
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from app.errors import InvalidError, SettingError
from app.plugins import registry
from app.records import Json

_HTTP = {
    "engine_urls",
    "engine_router_url",
    "rollout_engine_urls",
    "embeddings_url",
    "model_url",
    "otel_exporter_otlp_endpoint",
}
_PARTS = {"retrieval": "sage.retrieval"}  # setting -> entry-point group
_EXAMPLE = '{"enable_thinking": false}'
_OF_EACH_PROMPT = {"messages", "tools", "documents", "add_generation_prompt"}  # variables that the server sets


def check_value(name: str, variable: str, value: str) -> None:
    """Raises SettingError for a value that does not fit the setting of this name."""
    if name in _HTTP and value and not are_http(value):
        raise SettingError(f"{variable}={value!r}: write http://host:port, or https://")
    if name == "trusted_proxies":
        try:
            networks_in(value)
        except ValueError as error:
            raise SettingError(f"{variable}={value!r}: {error}; write addresses or networks") from error
    if name == "chat_template_kwargs":
        try:
            object_in(value)
        except ValueError as error:
            raise SettingError(f"{variable}={value!r}: {error}") from error
    if name in _PARTS:
        try:
            registry.find(_PARTS[name], value)
        except InvalidError as error:
            raise SettingError(f"{variable}={value!r}: {error}") from error


def from_text(kind: type, text: str) -> object:
    """For the types msgspec does not know, such as Path."""
    if not text:
        raise ValueError("it is empty; name a directory, or leave it unset")  # Path("") would be this one
    return kind(text)


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


def object_in(text: str) -> dict[str, Json]:
    """The variables of a chat template. Raises ValueError for anything but a JSON object of such.

    >>> object_in('{"enable_thinking": false}'), object_in("")
    ({'enable_thinking': False}, {})
    """
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write an object such as {_EXAMPLE}") from error
    if not isinstance(found, dict):
        raise ValueError(f"write a JSON object such as {_EXAMPLE}")
    if taken := sorted(found.keys() & _OF_EACH_PROMPT):
        raise ValueError(f"the server sets {', '.join(taken)} for each prompt; leave it out")
    return found


def are_http(text: str) -> bool:
    """
    >>> are_http("http://a:8000, https://b/vllm"), are_http("a:8000"), are_http("http://a:x"), are_http(",")
    (True, False, False, False)
    """
    return bool(urls_in(text)) and all(map(_is_http, urls_in(text)))


def check_servers(urls: str, router: str, seconds: float, *, separate_base: bool, sleep: bool) -> None:
    """`seconds` are between resolutions of the names in `urls`. Raises SettingError for what excludes another."""
    if len(urls_in(router)) > 1:
        raise SettingError(f"SAGE_ENGINE_ROUTER_URL={router!r}: name one router")
    if router and not urls:
        raise SettingError(f"SAGE_ENGINE_ROUTER_URL={router!r}: set ENGINE_URLS to the model servers behind it")
    if router and separate_base:
        raise SettingError(
            f"SAGE_ENGINE_ROUTER_URL={router!r}: a router cannot keep requests apart; unset it, or "
            "SAGE_ENGINE_SEPARATE_BASE"
        )
    if seconds and not urls:
        raise SettingError(f"SAGE_ENGINE_DNS_SECONDS={seconds:g}: set ENGINE_URLS to the names to resolve")
    if seconds and sleep:
        raise SettingError(
            f"SAGE_ENGINE_DNS_SECONDS={seconds:g}: only model servers that are named one by one can sleep; set it "
            "to 0, or SAGE_ENGINE_SLEEP to never"
        )
    if seconds and any(url.lower().startswith("https:") for url in urls_in(urls)):
        raise SettingError(
            f"ENGINE_URLS={urls!r}: certificates name no addresses, so with SAGE_ENGINE_DNS_SECONDS write http://"
        )


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is not a number, or a bracket that does not close
        return False
    return bool(named) and not parts.query and not parts.fragment and not re.search(r"\s", url)
