"""Makes HTML of the struct of a page, and JSON of the same struct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jinja2
import msgspec

from minimq_console import texts
from minimq_console.body_text import visible
from minimq_console.chart import HEIGHT, WIDTH

if TYPE_CHECKING:
    from minimq_console.page import Page, PageData

_FILTERS = {
    "number": texts.number,
    "rate": texts.rate,
    "size": texts.size,
    "duration": texts.duration,
    "instant": texts.instant,
    "share": texts.share,
    "segment": texts.segment,
    "visible": visible,
}


class Rendering:
    """The templates. Thread-safe.

    Everything that a template inserts is escaped, and a name that does not exist is an error.
    """

    def __init__(self, shared: Mapping[str, object]) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("minimq_console", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(_FILTERS)
        self._templates.globals.update(with_query=texts.with_query, chart_width=WIDTH, chart_height=HEIGHT, **shared)

    def page(self, page: Page, data: PageData, context: Mapping[str, object]) -> str:
        """Return a whole page."""
        template = self._templates.get_template(page.template)
        is_live = page.live_s is not None and not data.stays and not context["wrong"]
        html: str = template.render(**context, page=data, title=page.title, is_live=is_live)
        return html

    def live_part(self, page: Page, data: PageData, context: Mapping[str, object]) -> str:
        """Return the part of a page that events bring anew."""
        template = self._templates.get_template(page.template)
        names = template.new_context({**context, "page": data, "title": page.title, "is_live": True})
        return "".join(template.blocks["live"](names))

    def template(self, name: str, context: Mapping[str, object]) -> str:
        """Return what a template makes of a context."""
        html: str = self._templates.get_template(name).render(**context)
        return html


def to_json(value: object) -> bytes:
    """Return a struct as JSON: times in ISO 8601, bytes in base 64."""
    return msgspec.json.encode(value, enc_hook=str)
