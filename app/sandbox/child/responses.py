"""The whole answers of APIs, as the agent's code sees them."""

from typing import Any


class Headers(dict[str, str]):
    """Headers by lower-case name. A look-up takes any case."""

    def __getitem__(self, name: str, /) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object, /) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None, /) -> Any:
        return super().get(name.lower(), default)


class Response:
    """`value` is what the call alone returns; `status` is None if the host answered it."""

    __slots__ = ("headers", "status", "value")

    def __init__(self, value: Any, status: int | None, headers: dict[str, str]) -> None:
        self.value = value
        self.status = status
        self.headers = Headers(headers)

    def __repr__(self) -> str:
        return f"<Response {self.status}>"
