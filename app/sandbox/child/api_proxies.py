"""`apis.<app>.<operation>(...)`: proxies that forward every call to the host."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.sandbox.child.channel import HostChannel, Response

_CROSSING = "apis"
_SHOWN = 3  # other apps
_LISTED = 300  # characters, of all names
_SIGNS_IN = re.compile(
    r"(?:^|_)(?:passwords?|credentials?|secrets|(?:access_)?tokens?|api_keys?|log_?in|sign_?in|authenticate)(?:_|$)"
)
_SIGNED_IN = (
    " No password, key or token can be looked up: if an API needs one, it is added to every call outside this"
    " session. Go on with the apps that there are, and leave such arguments out."
)
_COMPARED = 5_000  # names
_COMPARED_CHARS = 100


class OperationProxy:
    """Calling it asks the host."""

    __slots__ = ("_api", "_channel")

    def __init__(self, channel: HostChannel, api: str) -> None:
        self._channel = channel
        self._api = api

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._channel.call(self._api, args, kwargs)

    def response(self, /, *args: Any, **kwargs: Any) -> Response:
        """The whole answer: `value`, `status` and `headers`."""
        value, status, headers, _ = self._channel.answer(self._api, args, kwargs, whole=True)
        return Response(value, status, headers)

    def pages(self, /, **kwargs: Any) -> Iterator[Any]:
        """The value of each page, from the one that the arguments ask for. Each is a call of its own."""
        following: Any = {}
        while following is not None:
            if isinstance(following, str):
                raise ValueError(following)
            kwargs |= following
            value, _, _, following = self._channel.answer(self._api, (), kwargs, whole=True)
            yield value

    def __repr__(self) -> str:
        return f"apis.{self._api}"


class AppProxy:
    """The operations of one app. `former` are names that they had before, which are not listed but work."""

    __slots__ = ("_apps", "_former", "_lookup", "_name", "_operations")

    def __init__(
        self,
        name: str,
        operations: Mapping[str, OperationProxy],
        former: Mapping[str, str],
        apps: Mapping[str, "AppProxy"],
        lookup: str,
    ) -> None:
        self._name = name
        self._former = former
        self._operations = operations
        self._apps = apps
        self._lookup = lookup

    def __getattr__(self, name: str) -> OperationProxy:
        operation = self._operations.get(name) or self._operations.get(self._former.get(name, ""))
        if operation is None:
            hint = self._elsewhere(name) or _nearest(name, self._operations)
            if not hint:
                hint = (_every(name, self._operations) or ".") + self._signed_in(name)
            raise _unknown(f"apis.{self._name} has no operation", name, self._lookup, hint)
        return operation

    def _signed_in(self, name: str) -> str:
        """For who looks for a password where no app has anything of the kind."""
        if not _SIGNS_IN.search(name):
            return ""
        known = (each for proxy in self._apps.values() for each in proxy._operations)
        return "" if any(map(_SIGNS_IN.search, known)) else _SIGNED_IN

    def _elsewhere(self, name: str) -> str:
        """The other apps that have an operation of that name."""
        others = [f"apis.{app}" for app, proxy in self._apps.items() if name in proxy._operations]
        return f". {' and '.join(others[:_SHOWN])} {'has' if len(others) == 1 else 'have'} it." if others else ""

    def __dir__(self) -> list[str]:
        return sorted(self._operations)

    def __repr__(self) -> str:
        return f"apis.{self._name}"


# The policy reads these names in error messages: 'App' object is not callable.
AppProxy.__name__ = AppProxy.__qualname__ = "App"
OperationProxy.__name__ = OperationProxy.__qualname__ = "Operation"


class Apis:
    """All apps of the session."""

    __slots__ = ("_apps", "_lookup")

    def __init__(self, channel: HostChannel, names: Mapping[str, Iterable[str]]) -> None:
        documented = set(names.get("api_docs", ()))
        self._lookup = _lookup("show_app_descriptions", "", documented, "dir(apis)")
        self._apps: dict[str, AppProxy] = {}
        for app, operations in names.items():
            lookup = _lookup("show_api_descriptions", f"app_name={app!r}", documented, f"dir(apis.{app})")
            callables = {name: OperationProxy(channel, f"{app}.{name}") for name in operations if "=" not in name}
            former = dict(name.split("=") for name in operations if "=" in name)
            self._apps[app] = AppProxy(app, callables, former, self._apps, lookup)

    def __getattr__(self, name: str) -> AppProxy:
        app = self._apps.get(name)
        if app is None:
            hint = _nearest(name, self._apps) or self._keeper(name) or _every(name, self._apps)
            raise _unknown("apis has no app", name, self._lookup, hint)
        return app

    def _keeper(self, name: str) -> str:
        """Of an app that is called by the name of what it keeps."""
        for app, proxy in self._apps.items():
            if about := next((each for each in proxy._operations if _is_about(name, each)), None):
                return f". Did you mean {app!r} (it has {about!r})?"
        return ""

    def __dir__(self) -> list[str]:
        return sorted(self._apps)

    def __repr__(self) -> str:
        return "apis"


def operations_named(apis: Apis, name: str) -> list[str]:
    """The operations of this name, as code calls them, or else those whose names have all of its words."""
    known = [each for proxy in apis._apps.values() for each in proxy._operations.items()]
    named = [repr(proxy) for operation, proxy in known if operation == name]
    return named or [repr(proxy) for operation, proxy in known if _is_about(name, operation)]


def parts(value: Any) -> tuple[str, Any] | None:
    """The name of a proxy, by which it crosses to another process. None for other values."""
    kind = type(value)
    if kind is Apis:
        return _CROSSING, ""
    if kind is AppProxy:
        return _CROSSING, value._name
    return (_CROSSING, value._api) if kind is OperationProxy else None


def resolve(apis: Apis, kind: str, name: Any) -> Any:
    """The proxy of that name in this process, and nothing else of it. Raises ValueError or LookupError."""
    if kind != _CROSSING:
        raise ValueError("no process can make one")
    if not name:
        return apis
    app, _, operation = name.partition(".")
    found = apis._apps[app]
    return found._operations[operation] if operation else found


def _lookup(operation: str, arguments: str, documented: set[str], otherwise: str) -> str:
    return f"apis.api_docs.{operation}({arguments})" if operation in documented else otherwise


def _unknown(what: str, name: str, lookup: str, hint: str) -> AttributeError:
    return AttributeError(f"{what} {name!r}{hint or '.'} {lookup} lists them.")


def _nearest(name: str, known: Iterable[str]) -> str:
    """Those about the same thing, or else spelled alike."""
    near = [each for each in known if _is_about(name, each)] or difflib.get_close_matches(name, known, cutoff=0.5)
    return f". Did you mean {' or '.join(map(repr, near[:_SHOWN]))}?" if near else ""


def _every(name: str, known: Iterable[str]) -> str:
    """All, if they are few; of many the nearest, however far."""
    names = list(known)
    if len(listed := ", ".join(names)) <= _LISTED:
        return f": it has {listed}." if listed else ""
    matcher = difflib.SequenceMatcher(b=name[:_COMPARED_CHARS])
    ratios = {each: _ratio(matcher, each) for each in names[:_COMPARED]}
    shown = ""
    for each in sorted(ratios, key=lambda each: -ratios[each]):
        if len(shown) + len(each) > _LISTED:
            break
        shown += f"{each}, "
    return f": it has {shown}..." if shown else ""


def _ratio(matcher: difflib.SequenceMatcher[str], name: str) -> float:
    matcher.set_seq1(name[:_COMPARED_CHARS])
    return matcher.quick_ratio()


def _is_about(name: str, operation: str) -> bool:
    """Whether the operation's name has all words of another, in the singular or the plural.

    >>> _is_about("leases", "set_lease"), _is_about("lease_list", "list_leases"), _is_about("__s__", "list_leases")
    (True, True, False)
    """
    words = operation.lower().split("_")
    starts = [word.removesuffix("s") for word in name.lower().split("_") if len(word) > 2]
    return bool(starts) and all(any(word.startswith(start) for word in words) for start in starts)
