// Fetches the parts of the page that change, and puts them in the place of the ones before. All
// markup comes from the program, which escapes what others wrote; nothing here makes any.
"use strict";

const PARTS = ["notices", "summary", "picture", "rows"];
const EVERY = 4000;
const SMALLEST = 0.7;

const element = (id) => document.getElementById(id);
const token = location.hash.slice(1);
const focus = { search: "", namespace: "", problems: "" };
let seen = "";
let timer;
let asking = 0;

async function ask(path, query, headers) {
  const text = new URLSearchParams(query).toString();
  const authorization = `Bearer ${token}`;
  return fetch(`${path}?${text}`, { headers: { authorization, ...headers }, cache: "no-store" });
}

function live(tone, words) {
  const badge = element("live");
  badge.className = `badge ${tone}`;
  if (badge.textContent !== words) badge.textContent = words;
}

// What has the focus keeps it, though it is another element then.
function focusKey() {
  const active = document.activeElement;
  if (!active || !active.closest("#picture, #rows")) return null;
  const where = active.closest("#picture") ? "#picture" : "#rows";
  for (const name of ["edge", "search", "open"]) {
    const value = active.dataset[name];
    if (value !== undefined) return `${where} [data-${name}="${CSS.escape(value)}"]`;
  }
  return null;
}

function show(markup) {
  const parsed = new DOMParser().parseFromString(markup, "text/html");
  const key = focusKey();
  for (const id of PARTS) {
    const fresh = parsed.getElementById(id);
    if (fresh) element(id).replaceChildren(...fresh.childNodes);
  }
  size();
  const again = key && document.querySelector(key);
  if (again) again.focus({ preventScroll: true });
}

// As wide as the window, but never so small that nobody can read it.
function size() {
  const map = element("map");
  if (!map) return;
  const natural = Number(map.getAttribute("width"));
  const room = element("scroll").clientWidth;
  const fitting = Math.max(Math.min(natural, room), SMALLEST * natural);
  const width = element("full").checked ? natural : fitting;
  map.style.width = `${Math.round(width)}px`;
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++asking;
  if (!token) {
    live("bad", "the address lacks its token: use the one that kubectl denizen ui printed");
    return;
  }
  try {
    const answer = await ask("/picture", focus, seen ? { "if-none-match": seen } : {});
    if (mine !== asking) return;
    if (answer.status === 200) {
      show(await answer.text());
      seen = answer.headers.get("etag") || "";
    }
    if (answer.ok || answer.status === 304) live("good", "live");
    else live("bad", (await answer.text()).trim());
  } catch {
    if (mine === asking) live("bad", "kubectl denizen ui does not answer: it may have ended");
  }
  if (mine === asking) timer = setTimeout(refresh, EVERY);
}

function lookFor(change) {
  Object.assign(focus, change);
  element("search").value = focus.search;
  element("all").hidden = !focus.namespace;
  seen = "";
  refresh();
}

async function explain(edge) {
  const panel = element("explanation");
  panel.hidden = false;
  element("explained").textContent = "asking the nodes…";
  panel.focus();
  panel.scrollIntoView({ block: "nearest" });
  try {
    const answer = await ask("/explain", { edge }, {});
    element("explained").textContent = await answer.text();
  } catch {
    element("explained").textContent = "kubectl denizen ui does not answer";
  }
}

function close() {
  element("explanation").hidden = true;
  element("scroll").focus({ preventScroll: true });
}

function activate(target) {
  const { edge, open, search } = target.dataset;
  if (edge !== undefined) explain(edge);
  else if (open !== undefined) lookFor({ namespace: open, search: "" });
  else if (search !== undefined) lookFor({ search });
}

// From edge to edge, or from box to box, as they stand from top to bottom, or from left to right.
function step(kind, by, side) {
  const place = (one) => one.getBoundingClientRect()[side];
  const edges = [...document.querySelectorAll(`#map .${kind}`)];
  edges.sort((one, other) => place(one) - place(other));
  if (!edges.length) return;
  const at = edges.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : edges.length - 1) : (at + by + edges.length) % edges.length;
  edges[next].focus();
}

// The edges of the box that is pointed at.
function point(target) {
  const box = target && target.closest ? target.closest(".box") : null;
  for (const edge of document.querySelectorAll("#map .edge")) {
    const near = box !== null && edge.dataset.ends.split(" ").includes(box.dataset.box);
    edge.classList.toggle("near", near);
  }
  element("picture").classList.toggle("pointed", box !== null);
}
element("picture").addEventListener("pointerover", (event) => point(event.target));
element("picture").addEventListener("pointerleave", () => point(null));
element("picture").addEventListener("focusin", (event) => point(event.target));

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-edge], [data-open], [data-search]");
  if (target) activate(target);
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input");
  const inPicture = event.target.closest && event.target.closest("#scroll");
  if (event.key === "Escape") {
    if (!element("explanation").hidden) close();
    else if (focus.search || focus.namespace) lookFor({ search: "", namespace: "" });
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    element("search").focus();
  } else if (inPicture && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    step("edge", event.key === "ArrowDown" ? 1 : -1, "top");
  } else if (inPicture && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    event.preventDefault();
    step("box", event.key === "ArrowRight" ? 1 : -1, "left");
  } else if (inPicture && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    activate(event.target);
  }
});

let typed;
element("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => lookFor({ search: element("search").value }), 250);
});
element("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  lookFor({ search: element("search").value });
});
element("problems").addEventListener("change", (event) => {
  lookFor({ problems: event.target.checked ? "yes" : "" });
});
element("full").addEventListener("change", size);
window.addEventListener("resize", size);
element("all").addEventListener("click", () => lookFor({ namespace: "" }));
element("close").addEventListener("click", close);

refresh();
