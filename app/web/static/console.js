// What pages do beyond links and forms, which work without it:
// live parts, filters that replace only their results, and the keyboard.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// --- parts of a page, fetched again -------------------------------------------------------------

// Replaces the element with this id by its newer self from the page at this address.
async function replace(id, address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
  if (answer.status >= 500) throw new Error(answer.statusText);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
  if (answer.redirected && !fresh) return location.assign(answer.url); // the session has ended
  const old = document.getElementById(id);
  if (fresh && old) swap(old, fresh);
}

// Puts the newer self of an element in its place. What is open in it stays open, and the focus where it is.
function swap(old, fresh) {
  for (const open of $$("details[id][open]", old)) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  if (fresh.isEqualNode(old)) return;
  const focused = old.contains(document.activeElement) && path(document.activeElement);
  old.replaceWith(fresh);
  if (focused) $(focused)?.focus({ preventScroll: true });
  prepare(fresh);
}

// A selector of an element that has an id, or is the summary of one that has.
function path(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  return element.matches("details[id] > summary") ? `${path(element.parentElement)} > summary` : "";
}

// <form data-results="ID">: its fields filter the element with that id while they change.
function filter(form) {
  let last = 0;
  const apply = async () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const address = `${form.getAttribute("action") ?? location.pathname}?${query}`;
    const turn = ++last;
    await new Promise((done) => setTimeout(done, 200));
    if (turn !== last) return;
    history.replaceState(null, "", address);
    form.setAttribute("aria-busy", "true");
    await replace(form.dataset.results, address).finally(() => form.removeAttribute("aria-busy"));
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => (event.preventDefault(), apply()));
}

// <div id data-refresh="SECONDS">: fetched again while somebody looks, unless they work in it. From this page, or
// from the address in data-from.
function refresh() {
  for (const part of $$("[data-refresh]")) {
    const due = (part.looked ??= Date.now()) + part.dataset.refresh * 1000;
    const entered = $$("input, textarea", part).some((field) => field.value !== field.defaultValue);
    const busy = part.asked || entered || part.contains(document.activeElement);
    if (document.hidden || Date.now() < due || busy) continue;
    part.looked = Date.now();
    part.asked = true; // one answer at a time: it may take longer than until the next look
    const answered = replace(part.id, part.dataset.from ?? location.href);
    answered.catch(() => {}).finally(() => (part.asked = false)); // it is tried again
  }
}

// --- live streams -------------------------------------------------------------------------------

const PAUSE = 1000; // before a page is asked again

// <div data-stream="ADDRESS">: messages are HTML. An element replaces the one with its id, or is added at the end
// of the one whose id is in its data-into. The browser connects again by itself, with the last message's id, and gives
// up if there is nothing left to send. At the end a box with data-then="reload" is fetched again.
function stream(box) {
  const source = new EventSource(box.dataset.stream);
  const tell = (text) => $$("[data-stream-status]", box).forEach((status) => (status.textContent = text));
  const end = () => {
    source.close();
    tell("");
    if (box.dataset.then === "reload") replace(box.id, location.href).catch(() => setTimeout(end, PAUSE));
  };
  source.addEventListener("open", () => tell("live"));
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) setTimeout(end, PAUSE);
    else tell("connecting again…");
  });
  source.addEventListener("end", end);
  source.addEventListener("message", ({ data }) => {
    const template = document.createElement("template");
    template.innerHTML = data;
    const follows = innerHeight + scrollY > document.body.scrollHeight - 160;
    for (const part of [...template.content.children]) {
      const old = part.id && document.getElementById(part.id);
      if (old) swap(old, part);
      else document.getElementById(part.dataset.into)?.append(part), prepare(part);
    }
    tell("live");
    if (follows && box.dataset.follow !== undefined) scrollTo({ top: document.body.scrollHeight });
  });
}

// --- copying ------------------------------------------------------------------------------------

// <button data-copy="TEXT">: copies it, and says so.
async function copy(button) {
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
}

// --- the keyboard -------------------------------------------------------------------------------

const KEYS_OFF = "sage-keys-off";
let pressedG = 0;

function shortcut(event) {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(KEYS_OFF)) return;
  const after = Date.now() - pressedG < 1500;
  pressedG = event.key === "g" ? Date.now() : 0;
  if (after) {
    const link = $(`a[data-key="${CSS.escape(event.key)}"]`);
    if (link) location.assign(link.href);
  } else if (event.key === "/") {
    const search = $("input[type=search]");
    if (search) event.preventDefault(), search.focus();
  } else if (event.key === "?") {
    $("#shortcuts")?.showModal();
  } else if (event.key === "j" || event.key === "k") {
    const links = $$("main tbody tr, main [data-row]").map((row) => $("a", row)).filter(Boolean);
    const next = links.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
    links[Math.max(0, Math.min(next, links.length - 1))]?.focus();
  }
}

// <input type="checkbox" data-all="NAME">: checks or clears the boxes of this name in its form.
function chooseAll(box) {
  const boxes = $$(`input[name="${CSS.escape(box.dataset.all)}"]`, box.form);
  box.addEventListener("change", () => boxes.forEach((each) => (each.checked = box.checked)));
  box.form.addEventListener("change", () => {
    const chosen = boxes.filter((each) => each.checked).length;
    box.checked = chosen === boxes.length;
    box.indeterminate = chosen > 0 && chosen < boxes.length;
  });
}

// --- starting -----------------------------------------------------------------------------------

function prepare(part) {
  const within = (selector) => [...(part.matches?.(selector) ? [part] : []), ...$$(selector, part)];
  within("form[data-results]").forEach(filter);
  within("form[data-auto]").forEach((form) => form.addEventListener("change", () => form.requestSubmit()));
  within("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button)));
  within("[data-stream]").forEach(stream);
  within("[data-all]").forEach(chooseAll);
}

document.documentElement.classList.add("script");
prepare(document);
setInterval(refresh, 1000);
addEventListener("keydown", shortcut);
const off = $("#keys-off");
if (off) {
  off.checked = Boolean(localStorage.getItem(KEYS_OFF));
  off.addEventListener("change", () => off.checked ? localStorage.setItem(KEYS_OFF, "1") : localStorage.removeItem(KEYS_OFF));
}
