"""A question of the course in a notebook's page; the site uses the same script."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

_FILE = Path(__file__)
_RENDER = """
export default { render({ model, el }) {
  el.classList.add("specwb-question");
  el.innerHTML = model.get("page");
  const answer = asButtons(el, model.get("given"), (choice) => {
    model.set("given", choice);
    model.save_changes();
  });
  model.on("change:given", () => answer(model.get("given")));
} };
"""


class QuestionButtons(anywidget.AnyWidget):
    """A question whose choices are buttons; the first click answers it, in the page.

    Args:
        page: HTML of the question, its choices and the folded answer.
        given: the choice that was made, None before.
    """

    _esm = _FILE.with_suffix(".js").read_text("utf-8") + _RENDER
    _css = _FILE.with_suffix(".css").read_text("utf-8")
    page = traitlets.Unicode().tag(sync=True)
    given = traitlets.Unicode(allow_none=True, default_value=None).tag(sync=True)
