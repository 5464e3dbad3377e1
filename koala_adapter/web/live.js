// Brings a page up to date when the service tells of a change: it is fetched again, and its sections are exchanged.
"use strict";
(() => {
  const main = document.querySelector("main[data-pause]");
  if (!main || !window.EventSource) return;
  const pause = 1000 * Number(main.dataset.pause);
  let busy = false, wanted = false, last = "", timer = 0;

  function takeOver(old, fresh) {
    const boxes = fresh.querySelectorAll(".wide, pre");
    const moved = [...old.querySelectorAll(".wide, pre")].map((box) => [box.scrollLeft, box.scrollTop]);
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    old.replaceWith(fresh);
    moved.forEach(([left, top], number) => boxes[number]?.scrollTo(left, top));
    for (const name of active ? ["href", "aria-label"] : []) {
      const value = active.getAttribute(name);
      const same = value && fresh.querySelector(`[${name}="${CSS.escape(value)}"]`);
      if (same) { same.focus({preventScroll: true}); return; }
    }
  }

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (!fresh) return;
    main.dataset.every = fresh.dataset.every ?? "";
    const names = (where) => [...where.querySelectorAll(":scope > section[id]")].map((one) => one.id);
    if (names(main).join() !== names(fresh).join()) { main.replaceChildren(...fresh.childNodes); return; }
    for (const id of names(main)) {
      const [old, other] = [document.getElementById(id), fresh.querySelector(`#${CSS.escape(id)}`)];
      if (old.outerHTML !== other.outerHTML) takeOver(old, other);
    }
  }

  async function refresh() {
    if (busy || document.hidden) { wanted = true; return; }
    [busy, wanted] = [true, false];
    try {
      const answer = await fetch(location.href, {cache: "no-store"});
      if (answer.ok) show(await answer.text());
    } catch { /* the source of events tells that the server has gone */ }
    setTimeout(() => { busy = false; if (wanted) refresh(); }, pause);
    lookAgain();
  }

  // The service does not tell that a job has printed something.
  function lookAgain() {
    clearTimeout(timer);
    if (main.dataset.every) timer = setTimeout(refresh, 1000 * Number(main.dataset.every));
  }

  const source = new EventSource(main.dataset.events);
  source.onmessage = (event) => { if (event.data !== last) { last = event.data; refresh(); } };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) document.getElementById("lost")?.removeAttribute("hidden");
  };
  lookAgain();
  document.addEventListener("visibilitychange", () => { if (wanted) refresh(); });
})();
