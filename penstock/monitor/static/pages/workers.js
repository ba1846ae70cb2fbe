// All workers, a page at a time, and one worker: what it runs, and what it ended.

import { get } from "../api.js";
import { facts, h, link, missing, put, renew } from "../dom.js";
import { age, many, whole } from "../format.js";
import { Listing, choice, refill, typed } from "../listing.js";
import { live } from "../live.js";
import { unhappy } from "../outcomes.js";
import { to } from "../router.js";
import { Table } from "../table.js";
import { jobColumns } from "./jobs.js";

const STATES = [["", "any"], ["dead", "dead"], ["busy", "busy"], ["suspended", "suspended"], ["idle", "idle"]];
const lookOf = (w) => (w.state === "dead" ? "bad" : w.state === "suspended" ? "warn" : "");
const since = (moment) => (moment && live.fleet ? age(Math.max(0, live.fleet.at - moment)) : "");

const columns = [
  { head: "worker", kind: "name", cell: (w) => ({ text: w.name, href: to(["workers", w.name]), title: w.name }), sort: (w) => w.name },
  { head: "state", kind: "says", cell: (w) => w.state, sort: (w) => w.state },
  { head: "queues", kind: "clip", cell: (w) => w.queues.join(", ") },
  { head: "gate", kind: "name", cell: (w) => (w.gate ? { text: w.gate, href: to(["gates", w.gate]) } : "") },
  { head: "running", kind: "number", cell: (w) => (w.room ? `${w.running} of ${w.room}` : w.running), sort: (w) => w.running },
  { head: "oldest job", kind: "name", cell: (w) => (w.job ? { text: w.job, href: to(["jobs", w.job]) } : "") },
  { head: "since", kind: "number", cell: (w) => since(w.job_since), sort: (w) => w.job_since },
  { head: "done", kind: "number", cell: (w) => whole(w.finished), sort: (w) => w.finished },
  { head: "programs not finished", kind: "number", cell: (w) => whole(unhappy(w.programs)), sort: (w) => unhappy(w.programs) },
  { head: "failed jobs", kind: "number", cell: (w) => whole(w.failed), sort: (w) => w.failed },
  { head: "last heartbeat", kind: "number", cell: (w) => `${age(w.silent)} ago`, sort: (w) => w.silent },
  { head: "host", kind: "name", cell: (w) => w.host, sort: (w) => w.host },
  { head: "pid", kind: "number", cell: (w) => w.pid },
];

export function workers(host, route) {
  const filter = h("div", { class: "bar" }, choice("state", "state", STATES, route.query.get("state") || ""), typed("queue", "queue", route.query.get("queue")), typed("find", "find", route.query.get("find")));
  const states = h("p", { class: "soft", id: "worker-states" });
  const table = new Table(columns, { key: (w) => w.name, look: lookOf, empty: "no worker like that", label: "Workers" });
  const listing = new Listing({ names: ["workers"], table, rows: (answer) => answer.workers, noun: "workers",
    query: (now) => Object.fromEntries(["state", "queue", "find"].map((word) => [word, now.query.get(word)])) });
  host.className = "";
  host.append(h("h1", {}, "Workers"), states, filter, listing.node);
  return {
    title: "Workers",
    change(now) { refill(filter, now); listing.load(); },
    look({ fleet }) {
      put(states, Object.entries(fleet.worker_states).map(([state, n]) => `${whole(n)} ${state}`).join(", ") || "none");
      listing.look();
    },
  };
}

export function worker(host, route) {
  const [name] = route.names;
  const said = h("p", { class: "sentence" }), figures = h("div");
  const running = new Table(jobColumns({ state: "running" }), { key: (j) => j.id, empty: "It runs nothing.", label: "Running jobs" });
  const ended = new Table(jobColumns(), { key: (j) => j.id, empty: "None of the latest jobs of its queues was run by it.", label: "Latest jobs" });
  let looks = 0;

  async function load() {
    const found = await get(["workers", name]).catch((problem) => missing(said, rest, problem));
    if (!found) return;
    rest.hidden = false;
    const w = found.worker;
    put(said, w.state === "dead" ? `It is dead: no heartbeat for ${age(w.silent)}. Other workers take over its jobs.` : `It is ${w.state}, and runs ${many(w.running, "job")}.`, `sentence ${lookOf(w) || "well"}`);
    renew(figures, [facts([
      ["queues", w.queues.map((queue, n) => [n ? ", " : "", link(queue, to(["queues", queue]))]).flat().reduce((all, one) => { all.append(one); return all; }, h("span"))],
      ["gate of its permits", w.gate && link(w.gate, to(["gates", w.gate]))],
      ["host", w.host], ["process", w.pid], ["lives for", since(w.born)], ["last heartbeat", `${age(w.silent)} ago`], ["done", whole(w.finished)], ["failed jobs", whole(w.failed)],
      ...Object.entries(w.programs).map(([outcome, count]) => [outcome, whole(count)]),
      ["cannot reach", w.unreachable.join(", ")],
    ])]);
    running.fill(found.running);
    ended.fill(found.ended);
  }

  host.className = "";
  const rest = h("div", {}, figures, h("h2", {}, "What it runs"), running.node, h("h2", {}, "What it ended last"), ended.node);
  host.append(h("p", { class: "crumbs" }, link("Workers", to(["workers"]))), h("h1", {}, `Worker ${name}`), said, rest);
  load();
  return { title: `worker ${name}`, look() { if (looks++ % 2) load(); } };
}
