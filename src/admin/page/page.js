"use strict";
// Refreshes the page: fetches it again, parses it without running scripts, and replaces the changed parts.
(() => {
  const pause = document.getElementById("pause");
  const age = document.getElementById("age");
  const wait = 2000;
  let next = wait;
  let paused = false;
  let last = Date.now();
  const toggle = () => {
    paused = !paused;
    pause.textContent = paused ? "resume" : "pause";
  };
  const refresh = async () => {
    try {
      if (paused || document.hidden) return;
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const name of ["alarm", "live"]) {
        const old = document.getElementById(name);
        const now = fresh.getElementById(name);
        for (const open of now ? old.querySelectorAll("details[open]") : []) {
          const same = [...now.querySelectorAll("details")].find((next) => next.firstChild.textContent === open.firstChild.textContent);
          if (same) same.open = true;
        }
        if (now && old.innerHTML !== now.innerHTML && !old.contains(document.activeElement)) old.replaceChildren(...now.childNodes);
      }
      last = Date.now();
      next = wait;
    } catch {
      next = Math.min(next * 2, 30000);
    } finally {
      const seconds = Math.round((Date.now() - last) / 1000);
      age.textContent = seconds > 5 ? `no answer from eventweir for ${seconds} s` : "";
      setTimeout(refresh, next);
    }
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
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
