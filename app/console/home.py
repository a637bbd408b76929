"""The first page: is it learning, and what needs a person?"""

from litestar import Controller, Response, get

from app.api.access import ANY_KEY
from app.console.visit import Visitor, page


class HomePages(Controller):
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor) -> Response[str]:
        return page(visit, "home.html")
