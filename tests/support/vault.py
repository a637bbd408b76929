"""A live API that hands out passwords and needs one to log in, for tests of what becomes of secrets."""

from typing import Annotated, Any

import httpx
import msgspec
from litestar import Litestar, Request, get, post
from litestar.exceptions import NotAuthorizedException
from litestar.openapi import OpenAPIConfig
from litestar.params import Body, FromQuery

from app.base.values import Json
from tests.support.traced_transport import TracedTransport

SERVER = "http://vault.test"
PASSWORD = "hunter2-mail-9!x"
PIN = "847261"
ACCESS_TOKEN = "acc-51f0c2d7e9"
API_TOKEN = "tok-of-the-api-77"


class LogIn(msgspec.Struct, frozen=True):
    password: str
    user: str = "iris"


class Vault:
    """`log_ins` are the passwords that were sent."""

    def __init__(self) -> None:
        self.log_ins: list[str] = []
        self.asgi = Litestar(
            self._routes(), openapi_config=OpenAPIConfig(title="Vault", version="1"), logging_config=None
        )

    def _routes(self) -> list[Any]:
        @get("/passwords", operation_id="show_passwords", summary="all passwords")
        async def show_passwords() -> dict[str, str]:
            return {"mail": PASSWORD, "bank": PIN}

        @post("/log_in", operation_id="log_in", summary="log in")
        async def log_in(data: Annotated[LogIn, Body()]) -> dict[str, str]:
            self.log_ins.append(data.password)
            if data.password != PASSWORD:
                raise NotAuthorizedException(f"{data.password!r} is wrong")
            return {"access_token": ACCESS_TOKEN, "welcome": f"you sent {data.password}"}

        @get("/inbox", operation_id="show_inbox", summary="the letters")
        async def show_inbox(request: Request[Any, Any, Any], access_token: FromQuery[str]) -> dict[str, str]:
            return {"letter": f"hello {access_token}", "sent": request.headers.get("authorization", "")}

        return [show_passwords, log_in, show_inbox]

    def document(self) -> dict[str, Json]:
        return {**self.asgi.openapi_schema.to_schema(), "servers": [{"url": SERVER}]}

    def client(self) -> httpx.AsyncClient:
        """A client of the API in this process."""
        return httpx.AsyncClient(transport=TracedTransport(self.asgi))
