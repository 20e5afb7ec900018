// Keeps what is marked data-live as the server has it now, and moves the focus by keys. Every page works without this.
"use strict";
(() => {
  const PERIOD_MS = 3000, SLOWEST_MS = 60000;
  const button = document.getElementById("live");
  const live = [...document.querySelectorAll("[data-live]")];
  let isLive = true, waitMs = PERIOD_MS, timer = 0;

  // Changes what differs and leaves the rest, so that focus, selection and scrolling stay.
  function become(now, wanted) {
    if (now.isEqualNode(wanted)) return;
    if (now.nodeType !== wanted.nodeType || now.nodeName !== wanted.nodeName) {
      now.replaceWith(wanted);
      return;
    }
    if (now.nodeType !== Node.ELEMENT_NODE) {
      now.nodeValue = wanted.nodeValue;
      return;
    }
    for (const { name } of [...now.attributes]) if (!wanted.hasAttribute(name)) now.removeAttribute(name);
    for (const { name, value } of wanted.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    if (now.nodeName === "TBODY") placeRows(now, wanted);
    else becomeChildren(now, [...wanted.childNodes]);
  }

  function becomeChildren(now, wanted) {
    const known = [...now.childNodes];
    wanted.forEach((child, index) => known[index] ? become(known[index], child) : now.append(child));
    known.slice(wanted.length).forEach((child) => child.remove());
  }

  // Rows with a name are moved rather than written over: the focus stays with its Service when others come and go.
  function placeRows(now, wanted) {
    const named = new Map([...now.children].filter((row) => row.id).map((row) => [row.id, row]));
    if (!named.size) {
      becomeChildren(now, [...wanted.childNodes]);
      return;
    }
    const rows = [...wanted.children].map((row) => {
      const known = named.get(row.id);
      if (!known) return row;
      become(known, row);
      return known;
    });
    const focused = document.activeElement;
    rows.forEach((row, index) => {
      if (now.children[index] !== row) now.insertBefore(row, now.children[index] || null);
    });
    while (now.children.length > rows.length) now.lastElementChild.remove();
    if (focused !== document.activeElement && now.contains(focused)) focused.focus({ preventScroll: true });
  }

  async function look() {
    try {
      const answer = await fetch(location.href, { cache: "no-store", credentials: "omit" });
      if (answer.status === 404) return gone();
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of live) {
        const wanted = page.getElementById(part.id);
        if (wanted) become(part, document.adoptNode(wanted));
      }
      waitMs = PERIOD_MS;
      button.textContent = "Live";
    } catch {
      waitMs = Math.min(2 * waitMs, SLOWEST_MS);
      button.textContent = "No answer";
    }
    plan();
  }

  function gone() {
    isLive = false;
    button.textContent = "Gone";
    button.disabled = true;
  }

  function plan() {
    clearTimeout(timer);
    if (isLive && !document.hidden) timer = setTimeout(look, waitMs);
  }

  function toggle() {
    isLive = !isLive;
    button.setAttribute("aria-pressed", String(isLive));
    button.textContent = isLive ? "Live" : "Paused";
    plan();
  }

  function step(by) {
    const links = [...document.querySelectorAll("tbody th a")];
    if (!links.length) return;
    const here = links.indexOf(document.activeElement);
    const next = links[Math.min(Math.max(here < 0 ? 0 : here + by, 0), links.length - 1)];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  const keys = {
    "/": () => document.querySelector("input[type=search], form input")?.focus(),
    j: () => step(1),
    k: () => step(-1),
    l: () => button.hidden || toggle(),
  };
  document.getElementById("keys").hidden = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  // The time of the page alone is not worth asking for.
  if (live.length > 1) {
    button.hidden = false;
    button.addEventListener("click", toggle);
    document.addEventListener("visibilitychange", plan);
    plan();
  }
})();
