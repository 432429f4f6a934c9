"""One action that was confirmed, and its end."""

from __future__ import annotations

import time

from minimq_common.errors import InvalidArgument
from minimq_console.action_runs import ActionRuns
from minimq_console.page import Page, PageData, Visit

#: Address of the page.
RUN_PATH = "/actions/{run}"


class ActionRunPage(PageData, frozen=True, kw_only=True):
    """An action that was confirmed."""

    title: str
    #: "under way", "done" or "failed".
    state: str
    said: str
    #: Address of the page that shows the effect; empty until it is done.
    to: str
    form: str

    @property
    def stays(self) -> bool:
        """True once it has ended."""
        return self.state != "under way"


def run_page(runs: ActionRuns) -> Page:
    """Return the page about one of what was confirmed."""

    def gather(visit: Visit) -> ActionRunPage:
        run = runs.find(visit.parameters.name("run"), visit.visitor.browser, time.monotonic())
        if run is None or run.state == "waiting":
            raise InvalidArgument(
                "nothing is known of this action: somebody else confirmed it, nobody did, or it ended long ago; the "
                "pages of the cluster show what is"
            )
        return ActionRunPage(title=run.title, state=run.state, said=run.said, to=run.to, form=run.form)

    return Page(path=RUN_PATH, template="action_run.html", gather=gather, title="Action", live_s=1.0, is_shared=False)
