// All gates, and one gate: its terms, who holds its permits, who waits, how its limit moved.

import { action } from "../acting.js";
import { get } from "../api.js";
import { facts, h, link, missing, put } from "../dom.js";
import { age, clock, shortly, whole } from "../format.js";
import { gateChart } from "../fleet_charts.js";
import { to } from "../router.js";
import { Table } from "../table.js";
import { Trends } from "../trends.js";

const state = (g) => (g.paused ? "paused" : g.adaptive && g.adaptive.held > 0 ? "held" : g.limit !== null && g.cost >= g.limit ? "full" : "open");
export const lookOf = (g) => (state(g) !== "open" && g.waiting ? "warn" : g.paused ? "warn" : "");
const inFlight = (g) => (g.cost > g.in_flight ? `${whole(g.in_flight)} (cost ${whole(g.cost)})` : whole(g.in_flight));
const limit = (g) => (g.limit === null ? "–" : g.adaptive && g.adaptive.adapts === "limit" ? `${g.limit} (to ${g.adaptive.max})` : String(g.limit));

export function columnsOf() {
  return [
    { head: "gate", kind: "name", cell: (g) => ({ text: g.name, href: to(["gates", g.name]), title: g.name }), sort: (g) => g.name },
    { head: "in flight", kind: "number", cell: inFlight, sort: (g) => g.cost },
    { head: "limit", kind: "number", cell: limit, sort: (g) => g.limit },
    { head: "waiting", kind: "number", cell: (g) => whole(g.waiting), sort: (g) => g.waiting },
    { head: "oldest wait", kind: "number", cell: (g) => (g.waiting ? age(g.oldest_wait) : ""), sort: (g) => (g.waiting ? g.oldest_wait : 0) },
    ...["granted", "expired", "timeouts"].map((what) => ({ head: what, kind: "number", cell: (g) => whole(g[what]), sort: (g) => g[what] })),
    { head: "state", kind: "says", cell: state },
  ];
}

export function gates(host) {
  const table = new Table(columnsOf(), { key: (g) => g.name, look: lookOf, empty: "There is no gate yet.", label: "Gates" });
  host.className = "";
  host.append(h("h1", {}, "Gates"), table.node);
  return { title: "Gates", look: (live) => table.fill(live.fleet.gates) };
}

export function gate(host, route) {
  const [name] = route.names;
  const said = h("p", { class: "sentence" }), actions = h("div", { class: "bar" }), figures = h("div");
  const trends = new Trends(route, (_, known) => (known.has(name) ? [] : [[name, gateChart(name)]]));
  const holders = new Table(holderColumns, { key: (l) => l.id, empty: "Nobody holds a permit.", label: "Holders" });
  const line = new Table(lineColumns, { key: (w) => w.id, empty: "Nobody waits.", label: "Line" });
  const steps = new Table(stepColumns, { key: (s) => s.at, label: "Changes of the limit" });
  const changes = h("section", { hidden: true }, h("h2", {}, "How its limit moved"), steps.node);
  const counts = [h("span"), h("span")];
  let paused = null, looks = 0;

  async function load() {
    const found = await get(["gates", name]).catch((problem) => missing(said, rest, problem));
    if (!found) return;
    rest.hidden = false;
    const g = found.gate;
    put(said, found.why ? `${found.why}.` : sentenceOf(g), `sentence ${lookOf(g) || "well"}`);
    if (paused !== g.paused) { paused = g.paused; actions.replaceChildren(...changing(g, load)); }
    figures.replaceChildren(facts([
      ["in flight", inFlight(g)], ["limit", limit(g)], ["rate", g.rate && `${shortly(g.rate)} a second`], ["burst", g.burst],
      ...Object.entries(g.amounts).map(([amount, { rate, tokens }]) => [`${amount} a second`, `${shortly(rate)} (${shortly(tokens)} now)`]),
      ["tokens now", g.tokens !== null && shortly(g.tokens)], ["waiting", whole(g.waiting)], ["granted", whole(g.granted)], ["given back", whole(g.released)],
      ["leases that expired", whole(g.expired)], ["gave up waiting", whole(g.timeouts + g.cancelled)], ["cuts", g.adaptive && g.adaptive.cuts], ["raises", g.adaptive && g.adaptive.raises],
    ]));
    holders.fill(found.holders);
    line.fill(found.line);
    put(counts[0], g.in_flight > found.holders.length ? ` (the first ${found.holders.length} to expire, of ${whole(g.in_flight)})` : "");
    put(counts[1], g.waiting > found.line.length ? ` (the first ${found.line.length} of ${whole(g.waiting)})` : "");
    changes.hidden = !found.steps.length;
    steps.fill(found.steps);
  }

  host.className = "";
  const rest = h("div", {}, actions, figures, trends.node,
    h("h2", {}, "Who holds its permits", counts[0]), holders.node, h("h2", {}, "Its line", counts[1]), line.node, changes);
  host.append(h("p", { class: "crumbs" }, link("Gates", to(["gates"]))), h("h1", {}, `Gate ${name}`), said, rest);
  load();
  return { title: `gate ${name}`, change: (now) => trends.change(now), look(live) { trends.look(live); if (looks++ % 2) load(); } };
}

function sentenceOf(g) {
  if (g.paused) return "It is paused: nothing is granted until it is resumed.";
  if (g.adaptive && g.adaptive.held > 0) return `It is held for ${age(g.adaptive.held)}, as its service asked.`;
  if (state(g) === "full") return `It is full: ${whole(g.cost)} of ${g.limit} are in use${g.waiting ? `, and ${whole(g.waiting)} wait` : ""}.`;
  return g.waiting ? `${whole(g.waiting)} wait for its rate.` : "It is open.";
}

function changing(g, then) {
  const wanted = h("input", { type: "number", min: 1, class: "limit", id: "limit", value: g.limit || "" });
  const to_ = ["gates", g.name];
  return [
    action(g.paused ? "Resume" : "Pause", { title: `${g.paused ? "Resume" : "Pause"} gate ${g.name}?`, then,
      send: () => ({ to: to_, body: { paused: !g.paused }, text: g.paused ? "It grants permits again." : "It grants nothing until it is resumed. Permits in flight stay." }) }),
    h("label", {}, "Limit ", wanted),
    action("Set the limit", { title: `Change the limit of gate ${g.name}?`, then,
      send: () => wanted.value && { to: to_, body: { limit: Number(wanted.value) }, text: `At most ${wanted.value} permits in flight. ${g.adaptive ? "It stops to adapt until it is told to." : "If more are, none is granted until enough came back."}` } }),
  ];
}

// A worker's permit is that of a job: `<job>:<execution>`.
const jobOf = (id) => (/^[\w-]+:\d{10,}$/.test(id) ? id.split(":")[0] : "");
const holderColumns = [
  { head: "permit", kind: "name", cell: (l) => (jobOf(l.id) ? { text: `job ${jobOf(l.id)}`, href: to(["jobs", jobOf(l.id)]) } : l.id) },
  { head: "process", kind: "clip", cell: (l) => ({ text: l.process, href: to(["find"], { q: l.process }) }) },
  { head: "held", kind: "number", cell: (l) => age(l.held), sort: (l) => l.held },
  { head: "lease ends in", kind: "number", cell: (l) => age(Math.max(0, l.expires_in)), sort: (l) => l.expires_in },
];
const lineColumns = [
  { head: "place", kind: "number", cell: (w) => w.place },
  { head: "waiter", kind: "name", cell: (w) => w.id },
  { head: "process", kind: "clip", cell: (w) => ({ text: w.process, href: to(["find"], { q: w.process }) }) },
  { head: "lane", kind: "number", cell: (w) => w.lane },
  { head: "share", cell: (w) => w.share },
  { head: "has waited", kind: "number", cell: (w) => age(w.waited) },
  { head: "why", kind: "long", cell: (w) => w.waits },
];
const stepColumns = [
  { head: "when", cell: (s) => clock(s.at) }, { head: "from", kind: "number", cell: (s) => shortly(s.before) },
  { head: "to", kind: "number", cell: (s) => shortly(s.after) }, { head: "why", cell: (s) => s.why },
];
