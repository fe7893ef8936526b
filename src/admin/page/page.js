"use strict";
// Refreshes the page: fetches it again, parses it without running scripts, and changes the parts that differ.
(() => {
  const pause = document.getElementById("pause");
  const wait = 2000;
  let next = wait;
  let paused = false;
  let last = Date.now();
  const toggle = () => {
    paused = !paused;
    pause.textContent = paused ? "resume" : "pause";
  };
  // What a row is about: its heading, and the reason of an object.
  const about = (row) => row.cells && row.cells[0].textContent + (row.querySelector("a") ? row.cells[1].textContent : "");
  // Makes `old` equal to `now` and keeps the elements, with the focus, the selection and the open parts in them. A row
  // that is about the same moves; a row with the focus stays, and the others move around it.
  const follow = (old, now) => {
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const left = new Set(old.childNodes);
    [...now.childNodes].forEach((node, place) => {
      let same = old.childNodes[place];
      if (node instanceof HTMLTableRowElement) {
        const at = same;
        same = [...left].find((row) => about(row) === about(node)) ?? node;
        if (same.contains(document.activeElement)) while (old.childNodes[place] !== same) old.append(old.childNodes[place]);
        else if (same !== at) old.insertBefore(same, at ?? null);
      }
      left.delete(same);
      if (!same) old.append(node);
      else if (same.nodeName !== node.nodeName) same.replaceWith(node);
      else if (node instanceof Element) follow(same, node);
      else if (same.data !== node.data) same.data = node.data;
    });
    left.forEach((node) => node.remove());
  };
  const refresh = async () => {
    try {
      if (paused || document.hidden) return;
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      // The browser would ask for the password again and again.
      if (answer.status === 401 && !paused) toggle();
      if (!answer.ok) throw `answers ${answer.status}`;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const name of ["alarm", "live"]) follow(document.getElementById(name), fresh.getElementById(name));
      last = Date.now();
      next = wait;
    } catch (why) {
      next = Math.min(next * 2, 30000);
      if (Date.now() - last < 5000 && !paused) return;
      const alarm = document.getElementById("alarm");
      const [word, text] = alarm.childNodes;
      alarm.replaceChildren(word, text);
      word.className = "alarm";
      if (word.textContent !== "! STALE") word.textContent = "! STALE";
      const time = new Date(last).toISOString().slice(0, 19);
      text.data = `: eventweir ${typeof why === "string" ? why : "does not answer"}; these are the numbers of ${time}Z.`;
    } finally {
      setTimeout(refresh, next);
    }
  };
  const keys = document.getElementById("keys");
  let hears = true;
  keys.hidden = false;
  keys.setAttribute("aria-pressed", hears);
  keys.addEventListener("click", () => keys.setAttribute("aria-pressed", (hears = !hears)));
  document.addEventListener("keydown", (event) => {
    if (!hears || event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("find").focus();
    } else if (event.key === "p" && pause) {
      toggle();
    }
  });
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", toggle);
    setTimeout(refresh, wait);
  }
})();
