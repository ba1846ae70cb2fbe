// Groups of the run by state, task, version and mean reward; and one group with its items.

import { action } from "../acting.js";
import { get } from "../api.js";
import { h, link, put } from "../dom.js";
import { age, bytes, many } from "../format.js";
import { Listing, chips, choice, refill, typed } from "../listing.js";
import { live } from "../live.js";
import { to } from "../router.js";
import { Table } from "../table.js";

// [what the address says, what it is called]; `timeout` is of those that are kept.
const STATES = [["open", "open"], ["ready", "ready"], ["leased", "leased"], ["kept", "kept"], ["timeout", "timed out"], ["quarantined", "quarantined"]];
const WORDS = ["task", "state", "why", "version", "least", "most"];
const ENDED = { count: "all its items", timeout: "timeout", judged: "its function" };

const columns = [
  { head: "group", kind: "name", cell: (g) => ({ text: String(g.instance_id), href: to(["groups", g.task, g.instance_id, g.round]), title: String(g.instance_id) }) },
  { head: "task", kind: "name", cell: (g) => g.task },
  { head: "round", kind: "number", cell: (g) => g.round },
  { head: "state", kind: "says", cell: (g) => g.state },
  { head: "ended by", cell: (g) => ENDED[g.why] || "" },
  { head: "version", kind: "number", cell: (g) => g.version ?? "", sort: (g) => g.version },
  { head: "mean reward", kind: "number", cell: (g) => (g.reward === null ? "" : g.reward.toFixed(3)), sort: (g) => g.reward },
  { head: "items", kind: "number", cell: (g) => g.items, sort: (g) => g.items },
  { head: "bytes", kind: "number", cell: (g) => bytes(g.bytes), sort: (g) => g.bytes },
  { head: "age", kind: "number", cell: (g) => (g.since && live.fleet ? age(Math.max(0, live.fleet.at - g.since)) : ""), sort: (g) => -g.since },
  { head: "reason", kind: "long", cell: (g) => g.reason },
];

export function groups(host, route) {
  const filter = h("div"), known = h("span");
  const table = new Table(columns, { key: (g) => `${g.task}/${g.instance_id}/${g.round}`, empty: "no group like that", label: "Groups", look: (g) => (g.state === "quarantined" ? "warn" : "") });
  const listing = new Listing({ names: ["groups"], table, rows: (answer) => answer.groups, noun: "groups of this state", heard: (answer) => tasks(answer.tasks),
    query: (now) => Object.fromEntries(WORDS.map((word) => [word, now.query.get(word)])) });
  let drawn = "", latest = route;

  function tasks(names) {
    if (drawn === String(names)) return;
    drawn = String(names);
    known.replaceChildren(choice("task", "task", [["", "all"], ...names.map((name) => [name, name])], latest.query.get("task") || ""));
  }

  function draw(now) {
    latest = now;
    const query = Object.fromEntries(now.query);
    const chosen = now.query.get("why") === "timeout" ? "timeout" : now.query.get("state") || "ready";
    const words = (state) => (state === "timeout" ? { state: "kept", why: "timeout" } : { state, why: "" });
    states.replaceChildren(chips(STATES, chosen, (state) => to(["groups"], { ...query, ...words(state), start: "" })));
  }

  const states = h("div");
  filter.append(states, h("div", { class: "bar" }, known, typed("version", "version", route.query.get("version"), { type: "number", size: 6 }),
    typed("least", "mean reward from", route.query.get("least"), { type: "number", step: "any" }), typed("most", "to", route.query.get("most"), { type: "number", step: "any" })));
  draw(route);
  host.className = "";
  host.append(h("h1", {}, "Groups"), filter, listing.node);
  return { title: "Groups", change(now) { draw(now); refill(filter, now); listing.load(); }, look: () => listing.look() };
}

export function group(host, route) {
  const [task, instance, round = "0"] = route.names;
  const said = h("p", { class: "sentence" }), items = h("div"), bar = h("div", { class: "bar" });
  const requeue = () => ({ to: ["groups", task, "requeue"], body: { instance_id: instance, round: Number(round) }, text: "A group in quarantine, or one that was discarded and is kept, is ready again." });

  async function load() {
    const found = await get(["groups", task], { instance_id: instance, round }).catch((problem) => put(said, `${problem.message}.`, "sentence warn"));
    if (!found) return items.replaceChildren();
    put(said, `Task ${task}, round ${round}, ${found.state}: ${many(found.in_all, "item")}${found.in_all > found.items.length ? `, the first ${found.items.length} are shown` : ""}.`, `sentence ${found.state === "quarantined" ? "warn" : ""}`);
    items.replaceChildren(...found.items.flatMap((item, n) => [h("h2", {}, `Item ${n + 1}${typeof item.reward === "number" ? `, reward ${item.reward}` : ""} `, link("why", to(["why", String(item.uid)]))), h("pre", {}, JSON.stringify(item, null, 1))]));
  }

  host.className = "";
  bar.append(action("Requeue", { title: `Requeue group ${instance}?`, then: load, send: requeue }));
  host.append(h("p", { class: "crumbs" }, link("Groups", to(["groups"], { task }))), h("h1", {}, `Group ${instance}`), said, bar, items);
  load();
  return { title: `group ${instance}` };
}
