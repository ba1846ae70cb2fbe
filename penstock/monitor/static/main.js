// The frame: the header, one page at a time, the title and icon, and what is said when news stop.

import { allowAll } from "./acting.js";
import { keepToken, knownToken } from "./api.js";
import { at, h, put } from "./dom.js";
import { age, clock } from "./format.js";
import { live, onLook, restart } from "./live.js";
import { audit } from "./pages/audit.js";
import { gate, gates } from "./pages/gates.js";
import { group, groups } from "./pages/groups.js";
import { found } from "./pages/found.js";
import { job } from "./pages/job.js";
import { overview } from "./pages/overview.js";
import { queue, queues } from "./pages/queues.js";
import { sandboxes } from "./pages/sandboxes.js";
import { why } from "./pages/why.js";
import { worker, workers } from "./pages/workers.js";
import { go, here, to } from "./router.js";

// Each opens with the route and the element to fill, and gives { look?, change?, title }.
const PAGES = { overview, queues, workers, gates, groups, sandboxes, log: audit, find: found };
const ONE = { queues: queue, workers: worker, gates: gate, groups: group, jobs: job, why };
const NAV = [["Overview", []], ["Queues", ["queues"]], ["Workers", ["workers"]], ["Gates", ["gates"]], ["Groups", ["groups"]], ["Sandboxes", ["sandboxes"]], ["Log", ["log"]]];
let page = null, shown = "", run = here().query.get("run") || "", drawn = "";

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return; // the link that skips the header
  at("confirm").close(""); // it asks about what was shown before
  const now = here(), which = JSON.stringify([now.page, now.names]);
  const wanted = now.query.get("run") || "";
  if (wanted !== run) { run = wanted; restart(); shown = ""; }
  header(now);
  if (which === shown && page.change) return page.change(now);
  shown = which;
  const made = now.names.length && Object.hasOwn(ONE, now.page) ? ONE : PAGES;
  const maker = Object.hasOwn(made, now.page) ? made[now.page] : found;
  page = null;
  const host = h("div"); // of this page alone: an answer that comes late does not draw over the next
  at("main").replaceChildren(host);
  page = maker(host, now);
  window.scrollTo(0, 0);
  title();
  look();
}

function look() {
  if (live.fleet && page && page.look) safely(() => page.look(live));
}

// What fails to draw says so itself: the stream that brought its figures is well, and goes on.
function safely(draw) {
  try {
    draw();
  } catch (problem) {
    console.error(problem);
    put(at("live"), `this page could not be drawn: ${problem.message}`, "lost");
  }
}

function header(now) {
  at("nav").replaceChildren(...NAV.map(([text, names]) => h("a", { href: to(names), "aria-current": (names[0] || "overview") === now.page ? "page" : null }, text)));
  document.querySelector(".brand").href = to();
}

function heard(_, { door }) {
  at("door").hidden = !door;
  at("main").hidden = Boolean(door);
  if (door) return askForToken();
  if (live.fleet && !live.lost) {
    put(at("live"), `live · ${clock(live.fleet.at)}`, "");
    runs(live.fleet);
    allowAll();
  }
  stale();
  title();
  if (!live.lost && !document.hidden) look();
}

// Old figures look old, and say how old they are.
function stale() {
  if (!at("door").hidden) return; // nothing is tried until a token is given
  at("main").classList.toggle("stale", Boolean(live.lost && live.fleet));
  at("stale").hidden = !live.lost || !live.fleet;
  if (!live.lost) return;
  put(at("live"), live.lost, "lost");
  if (live.fleet) put(at("stale"), `These figures are ${age((Date.now() - live.since) / 1000)} old: ${live.lost}`);
}

function title() {
  const count = live.fleet ? live.fleet.alarms.length : 0;
  const name = page && page.title ? `${page.title} · penstock` : "penstock";
  document.title = live.lost ? `(old) ${name}` : count ? `(${count}) ${name}` : name;
  icon(live.lost ? "?" : count ? String(Math.min(count, 99)) : "", live.summary ? live.summary.level : "well");
}

function icon(text, level) {
  if (drawn === text + level) return;
  drawn = text + level;
  const canvas = h("canvas", { width: 32, height: 32 }), pen = canvas.getContext("2d");
  pen.fillStyle = { well: "#00795a", unused: "#b25a00", warn: "#b25a00", bad: "#b00020" }[text === "?" ? "bad" : level];
  pen.beginPath(); pen.arc(16, 16, 16, 0, 7); pen.fill();
  pen.fillStyle = "#fff";
  pen.font = "bold 20px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.fillText(text || "p", 16, 23);
  at("icon").href = canvas.toDataURL("image/png");
}

function runs(fleet) {
  const known = [...new Set([fleet.run, ...fleet.registries.map((one) => one.run)])];
  at("runs").hidden = false;
  if (document.activeElement !== at("run") && at("run").value !== fleet.run) at("run").value = fleet.run;
  const offered = [...at("known-runs").children].map((one) => one.value);
  if (offered.join() !== known.join()) at("known-runs").replaceChildren(...known.map((name) => h("option", { value: name })));
}

function askForToken() {
  at("stale").hidden = true;
  title();
  put(at("live"), sessionStorage.getItem("token") ? "that token was refused" : "a token is needed", "lost");
  at("token").focus();
}

at("door").addEventListener("submit", (event) => { event.preventDefault(); keepToken(at("token").value); restart(); });
at("skip").addEventListener("click", (event) => { event.preventDefault(); at("main").focus(); });
at("confirm-no").addEventListener("click", () => at("confirm").close(""));
at("run").addEventListener("change", () => go({ run: at("run").value.trim(), start: "" }));
at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = at("wanted").value.trim();
  if (wanted) location.hash = to(["find"], { q: wanted });
  at("wanted").value = "";
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); at("wanted").focus(); }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
window.addEventListener("resize", look);
window.addEventListener("hashchange", route);
setInterval(stale, 1000);
knownToken();
onLook((...news) => safely(() => heard(...news)));
route();
restart();
