"""The manual as web pages, served from this machine: no key, no script, nothing from elsewhere."""

from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.router import Router
from litestar.static_files import create_static_files_router

from app.errors import NotFoundError
from app.manual.site.html import page_html, search_html, stylesheet
from app.manual.site.manual_pages import DIRECTORY, INDEX, ROOT, load_manual

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


@get(ROOT, include_in_schema=False, sync_to_thread=True)
def show_index() -> Response[str]:
    return _html(page_html(load_manual(), INDEX))


@get(f"{ROOT}/{{name:str}}", include_in_schema=False, sync_to_thread=True)
def show_page(name: FromPath[str]) -> Response[str]:
    manual = load_manual()
    if name not in manual.pages:
        raise NotFoundError(f"the manual has no page {name!r}: {ROOT} lists them")
    return _html(page_html(manual, name))


@get(f"{ROOT}/search", include_in_schema=False, sync_to_thread=True)
def search(q: FromQuery[str] = "") -> Response[str]:
    return _html(search_html(load_manual(), q[:200]))


@get(f"{ROOT}/style.css", include_in_schema=False, sync_to_thread=True)
def show_styles() -> Response[str]:
    return Response(stylesheet(), media_type="text/css")


def manual_routes() -> list[Router | HTTPRouteHandler]:
    images = create_static_files_router(
        path=f"{ROOT}/images", directories=[DIRECTORY / "images"], include_in_schema=False, name="manual-images"
    )
    return [show_index, show_page, search, show_styles, images]


def _html(text: str) -> Response[str]:
    return Response(text, media_type=MediaType.HTML, headers=_HEADERS)
