// Whether all is well, in a sentence; failures before all else; what is empty in one line.

import { h, link, put } from "../dom.js";
import { age, bytes, many, whole } from "../format.js";
import { total, troubles } from "../outcomes.js";
import { to } from "../router.js";
import { Table } from "../table.js";
import { Trends } from "../trends.js";
import { fleetCharts } from "../fleet_charts.js";
import { columnsOf as gateColumns, lookOf as gateLook } from "./gates.js";
import { jobColumns } from "./jobs.js";
import { columnsOf as queueColumns, lookOf as queueLook } from "./queues.js";

const ALARMS = 4, SHOWN = 12;

export function overview(host, route) {
  const sentence = h("p", { class: "sentence", id: "sentence", "aria-live": "polite" });
  const alarms = h("ul", { id: "alarms" }), more = h("details", { hidden: true }, h("summary"), h("ul"));
  const lately = h("p", { id: "lately", class: "soft" }), nothing = h("p", { id: "nothing", class: "soft" }), where = h("p", { class: "crumbs" });
  const trends = new Trends(route, fleetCharts());
  const sections = [
    section("Failed jobs", "failed", new Table(jobColumns(), { key: (j) => j.id, label: "Failed jobs", look: () => "bad" }), (f) => f.failed.slice(0, SHOWN)),
    section("Queues", "queues", new Table(queueColumns(), { key: (q) => q.name, look: queueLook, label: "Queues" }), (f) => worst(f.queues, queueLook), ["queues"]),
    section("Gates", "gates", new Table(gateColumns(), { key: (g) => g.name, look: gateLook, label: "Gates" }), (f) => worst(f.gates, gateLook), ["gates"]),
    section("Workers", "workers", new Table(stateColumns, { key: (s) => s.state, label: "Workers by state", look: (s) => (s.state === "dead" ? "bad" : "") }), workerStates, ["workers"]),
    section("Groups", "tasks", new Table(taskColumns, { key: (t) => t.name, label: "Tasks", look: taskLook }), (f) => f.tasks, ["groups"]),
    section("Versions", "versions", new Table(versionColumns, { key: (t) => t.name, label: "Versions" }), (f) => f.tasks.filter((t) => t.versions)),
    section("Session sandboxes", "registries", new Table(registryColumns, { key: (r) => r.run, label: "Session sandboxes", look: (r) => (r.failing ? "bad" : "") }), (f) => f.registries, ["sandboxes"]),
    section("Recent jobs", "recent", new Table(jobColumns(), { key: (j) => j.id, label: "Recent jobs" }), (f) => f.recent.slice(0, SHOWN)),
  ];
  host.className = "overview";
  host.append(h("h1", { class: "unseen" }, "Overview"), sentence, alarms, more, lately, sections[0].node, trends.node, ...sections.slice(1).map((one) => one.node), nothing, where);
  return {
    title: "",
    change: (now) => trends.change(now),
    look(live) {
      const { fleet } = live;
      say(sentence, live.summary, fleet.alarms[0]);
      showAlarms(fleet.alarms.slice(1), alarms, more);
      put(lately, programsOf(live));
      trends.look(live);
      const empty = sections.filter((one) => !one.fill(fleet)).map((one) => one.title.toLowerCase());
      put(nothing, empty.length ? `Nothing to show: ${empty.join(", ")}.` : "");
      const { server } = fleet;
      put(where, `${server.where} · Redis ${server.version} · ${bytes(server.used_memory)}${server.max_memory ? ` of ${bytes(server.max_memory)}` : ""} · ${many(server.clients, "connection")} · ${whole(server.commands_per_second)} commands/s`);
    },
  };
}

function section(title, id, table, items, names) {
  const node = h("section", { id }, h("h2", {}, title), table.node, names && h("p", {}, link(`All ${title.toLowerCase()}`, to(names))));
  return { title, node, fill(fleet) {
    const shown = items(fleet);
    table.fill(shown);
    node.hidden = !shown.length;
    return shown.length;
  } };
}

// Those in trouble first, and no more than a look can take in.
function worst(items, look) {
  return items.map((item, n) => [look(item) ? 0 : 1, n, item]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).slice(0, SHOWN).map(([, , item]) => item);
}

function say(sentence, { level, sentence: text }, alarm) {
  if (sentence.dataset.said === text) return; // else it would be read out every second
  sentence.dataset.said = text;
  sentence.className = `sentence ${level}`;
  sentence.replaceChildren(text, " ", alarm ? placeOf(alarm) : "");
}

function showAlarms(found, list, more) {
  const said = found.map((alarm) => alarm.text + alarm.remedy).join("\n");
  if (list.dataset.said === said) return;
  list.dataset.said = said;
  const items = found.map((alarm) => h("li", { class: alarm.level }, `${alarm.text}; ${alarm.remedy} `, placeOf(alarm)));
  list.replaceChildren(...items.slice(0, ALARMS));
  more.hidden = items.length <= ALARMS;
  more.firstChild.textContent = `and ${items.length - ALARMS} more`;
  more.lastChild.replaceChildren(...items.slice(ALARMS));
}

function placeOf({ kind, name }) {
  const names = { queue: ["queues", name], gate: ["gates", name], worker: name ? ["workers", name] : ["workers"], task: ["groups"], run: ["sandboxes"], job: ["jobs", name] }[kind];
  return names ? link("Look", to(names, kind === "task" ? { task: name } : kind === "worker" && !name ? { state: "dead" } : {})) : "";
}

function programsOf({ lately }) {
  const ended = total(lately);
  if (!ended) return "";
  const finished = lately.finished || 0;
  const rest = troubles(lately);
  return `Programs in the last minute: ${whole(Math.round(ended))}, ${Math.round((100 * finished) / ended)} % finished${rest ? `, ${rest}` : ""}.`;
}

const stateColumns = [
  { head: "state", kind: "says", cell: (s) => ({ text: s.state, href: to(["workers"], { state: s.state }) }) },
  { head: "workers", kind: "number", cell: (s) => whole(s.count) },
  { head: "", kind: "clip", cell: (s) => s.names },
];

function workerStates(fleet) {
  return Object.entries(fleet.worker_states).map(([state, count]) => ({
    state, count, names: fleet.workers.filter((w) => w.state === state).slice(0, 3).map((w) => w.name).join(", "),
  }));
}

const taskColumns = [
  { head: "task", kind: "name", cell: (t) => ({ text: t.name, href: to(["groups"], { task: t.name }) }) },
  ...["open", "ready", "leased", "delivered", "discarded", "quarantined"].map((state) => ({ head: state, kind: "number", cell: (t) => whole(t.groups[state] || 0) })),
  { head: "timed out", kind: "number", cell: (t) => ({ text: whole(t.counters.expired || 0), href: to(["groups"], { task: t.name, state: "kept", why: "timeout" }) }) },
  { head: "items", kind: "number", cell: (t) => whole(t.counters.stored || 0) },
  { head: "bytes", kind: "number", cell: (t) => bytes(t.bytes) },
  { head: "mean reward", kind: "number", cell: (t) => (t.mean_reward === null ? "–" : t.mean_reward.toFixed(3)) },
  { head: "rollout", cell: (t) => t.rollout },
];
const taskLook = (t) => (t.rollout === "failed" ? "bad" : t.groups.quarantined ? "warn" : "");

const byAge = (counts) => Object.entries(counts).filter(([, n]) => n).sort(([a], [b]) => b - a).map(([a, n]) => `${a}: ${n}`).join(", ");
const sum = (counts) => Object.values(counts).reduce((all, n) => all + n, 0);
const versionColumns = [
  { head: "task", kind: "name", cell: (t) => t.name },
  { head: "version", kind: "number", cell: (t) => t.versions.version },
  { head: "line", kind: "number", cell: (t) => t.versions.line },
  { head: "taken", kind: "number", cell: (t) => t.versions.taken },
  { head: "under way by age", cell: (t) => byAge(t.versions.outstanding) },
  { head: "ready by age", cell: (t) => byAge(t.versions.ready) },
  ...["slots", "parked", "again"].map((name) => ({ head: name, kind: "number", cell: (t) => t.versions[name] })),
  { head: "asks", kind: "number", cell: (t) => t.versions.waiting },
  { head: "why asks wait", kind: "long", cell: (t) => t.versions.held_by },
  { head: "made in", kind: "number", cell: (t) => age(t.generation_seconds.delivered || null) },
  { head: "dropped ones in", kind: "number", cell: (t) => age(t.generation_seconds.dropped || null) },
  { head: "dropped", kind: "number", cell: ({ versions: v }) => (sum(v.dropped_by) ? `${((100 * sum(v.dropped_by)) / (sum(v.dropped_by) + sum(v.ages))).toFixed(1)} %` : "") },
  { head: "dropped most", kind: "long", cell: (t) => Object.entries(t.versions.dropped).map(([name, n]) => `${name}: ${n}`).join(", ") },
  { head: "waits for", kind: "long", cell: (t) => t.versions.waits_for.map((w) => w.instance_id || w.slot).join(", ") },
];

const starting = (r) => ["WAITING", "CREATING", "STARTING"].reduce((all, state) => all + (r.states[state] || 0), 0);
export const registryColumns = [
  { head: "run", kind: "name", cell: (r) => ({ text: r.run, href: to(["sandboxes"], { run: r.run }) }) },
  { head: "starting", kind: "number", cell: starting },
  { head: "ready", kind: "number", cell: (r) => r.states.READY || 0 },
  { head: "ending", kind: "number", cell: (r) => r.states.TERMINATING || 0 },
  { head: "failing", kind: "number", cell: (r) => r.failing },
  ...["opened", "ended", "reaped", "strays"].map((what) => ({ head: what, kind: "number", cell: (r) => whole(r.counters[what] || 0) })),
  { head: "reaper", kind: "clip", cell: (r) => r.reaper || "none" },
];
