"""Makes HTML of the struct of a page, and JSON of the same struct."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jinja2

from minimq.operations.words import duration_of, size_of
from minimq_console.bodies import visible
from minimq_console.charts import HEIGHT, WIDTH
from minimq_console.parameters import segment, with_query

if TYPE_CHECKING:
    from minimq_console.page import Data, Page

#: Stands for what is not known.
_UNKNOWN = "\N{EN DASH}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


#: Figures and times as pages show them; all show what is not known as a dash.
_FIGURES: dict[str, Callable[[Any], str]] = {
    "number": "{:,.0f}".format,
    "rate": _rate,
    "size": size_of,
    "duration": duration_of,
    "instant": "{:%Y-%m-%d %H:%M:%SZ}".format,
    "share": lambda value: f"{value * 100:.0f} %",
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
        for name, show in _FIGURES.items():
            self._templates.filters[name] = lambda value, show=show: _UNKNOWN if value is None else show(value)
        self._templates.filters.update(segment=segment, visible=visible)
        self._templates.globals.update(with_query=with_query, chart_width=WIDTH, chart_height=HEIGHT, **shared)

    def page(self, page: Page, data: Data, context: Mapping[str, object]) -> str:
        """Return a whole page."""
        template = self._templates.get_template(page.template)
        is_live = page.live_s is not None and not page.stays(data) and not context["wrong"]
        html: str = template.render({**context, "page": data, "title": page.title, "is_live": is_live})
        return html

    def live_part(self, page: Page, data: Data, context: Mapping[str, object]) -> str:
        """Return the part of a page that events bring anew."""
        template = self._templates.get_template(page.template)
        names = template.new_context({**context, "page": data, "title": page.title, "is_live": True})
        return "".join(template.blocks["live"](names))

    def template(self, name: str, context: Mapping[str, object]) -> str:
        """Return what a template makes of a context."""
        html: str = self._templates.get_template(name).render(**context)
        return html
