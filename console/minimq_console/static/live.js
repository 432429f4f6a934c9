// Updates the live part of a page by server-sent events: "part" replaces it, "rows" adds rows to its table with
// data-rows. Nothing is evaluated; the server escapes everything that it inserts.
"use strict";
(() => {
  const pause = document.getElementById("pause");
  const lost = document.getElementById("lost");
  const mostRows = 500;
  let source = null;

  function live() {
    return document.querySelector("#live[data-live]");
  }

  // Keeps the focus: on the element with the same id, or on the link with the same target.
  function replace(part, html) {
    const active = document.activeElement;
    const inside = active !== null && part.contains(active);
    const id = inside ? active.id : "";
    const href = inside ? active.getAttribute("href") : null;
    const scrolled = [...part.querySelectorAll(".wide")].map((each) => each.scrollLeft);
    part.innerHTML = html;
    part.querySelectorAll(".wide").forEach((each, number) => { each.scrollLeft = scrolled[number] || 0; });
    if (window.htmx) window.htmx.process(part);
    if (!inside) return;
    const same = id ? document.getElementById(id)
      : [...part.querySelectorAll("a[href]")].find((each) => each.getAttribute("href") === href);
    if (same) same.focus({ preventScroll: true });
  }

  // A selection would be lost, so a part with selected text is not replaced.
  function isMarked(part) {
    const selection = window.getSelection();
    return selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function addRows(part, html) {
    const rows = part.querySelector("[data-rows]");
    if (rows === null) return;
    rows.insertAdjacentHTML("afterbegin", html);
    while (rows.rows.length > mostRows) rows.deleteRow(-1);
  }

  function close() {
    if (source !== null) source.close();
    source = null;
  }

  function open() {
    close();
    const part = live();
    if (part === null || document.hidden || (pause && pause.getAttribute("aria-pressed") === "true")) return;
    source = new EventSource(part.dataset.live || window.location.href);
    source.addEventListener("open", () => { lost.hidden = true; });
    source.addEventListener("error", () => {
      lost.hidden = false;
      if (source !== null && source.readyState === EventSource.CLOSED) setTimeout(open, 3000);
    });
    source.addEventListener("part", (event) => { if (!isMarked(part)) replace(part, event.data); });
    source.addEventListener("rows", (event) => addRows(part, event.data));
  }

  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      const pressed = pause.getAttribute("aria-pressed") === "true";
      pause.setAttribute("aria-pressed", String(!pressed));
      pause.textContent = pressed ? "Pause updates" : "Go on";
      open();
    });
  }
  document.addEventListener("visibilitychange", open);
  document.addEventListener("htmx:pushedIntoHistory", open);
  window.addEventListener("pagehide", close);
  open();
})();
