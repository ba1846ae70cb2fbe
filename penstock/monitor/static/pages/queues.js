// All queues, and one queue: why it does not move, how its programs ended, its jobs by state.

import { action, say } from "../acting.js";
import { facts, h, link, put, renew } from "../dom.js";
import { age, many, shortly, whole } from "../format.js";
import { Listing, chips, choice, refill, typed } from "../listing.js";
import { OUTCOMES, shares, total, troubles, unhappy } from "../outcomes.js";
import { to } from "../router.js";
import { Table } from "../table.js";
import { changeAll, jobColumns } from "./jobs.js";

const STATES = ["waiting", "running", "finished", "failed", "deferred", "scheduled", "canceled"];
const STOPPED = ["suspended", "paused", "held back"];

export const lookOf = (q) => (q.verdict === "no workers" ? "bad" : STOPPED.includes(q.verdict) && q.depth ? "warn" : "");

export function columnsOf() {
  const jobs = (state, count) => (q) => ({ text: whole(count(q)), href: to(["queues", q.name], { state }) });
  return [
    { head: "queue", kind: "name", cell: (q) => ({ text: q.name, href: to(["queues", q.name]), title: q.name }), sort: (q) => q.name },
    { head: "waiting", kind: "number", cell: jobs("waiting", (q) => q.depth), sort: (q) => q.depth },
    { head: "oldest", kind: "number", cell: (q) => (q.depth ? age(q.oldest) : ""), sort: (q) => q.oldest },
    { head: "running", kind: "number", cell: jobs("running", (q) => q.running), sort: (q) => q.running },
    { head: "workers", kind: "number", cell: (q) => ({ text: q.workers, href: to(["workers"], { queue: q.name }) }), sort: (q) => q.workers },
    { head: "done", kind: "number", cell: (q) => whole(q.counters.finished), sort: (q) => q.counters.finished || 0 },
    { head: "failed jobs", kind: "number", cell: jobs("failed", (q) => q.counters.failed || 0), sort: (q) => q.counters.failed || 0 },
    { head: "programs not finished", cell: (q) => (total(q.programs) ? `${whole(unhappy(q.programs))} of ${whole(total(q.programs))}${troubles(q.programs) ? `: ${troubles(q.programs)}` : ""}` : ""), sort: (q) => unhappy(q.programs) },
    { head: "verdict", kind: "long says", cell: (q) => q.reason || q.verdict },
  ];
}

export function queues(host) {
  const table = new Table(columnsOf(), { key: (q) => q.name, look: lookOf, empty: "No queue has been used yet.", label: "Queues" });
  host.className = "";
  host.append(h("h1", {}, "Queues"), table.node);
  return { title: "Queues", look: (live) => table.fill(live.fleet.queues) };
}

export function queue(host, route) {
  const [name] = route.names;
  const why = h("p", { class: "sentence" }), figures = h("div"), ends = h("div"), filter = h("div");
  const pause = h("span"), bulk = h("span", { class: "soft" });
  const everything = h("input", { type: "checkbox", id: "everything", onchange: () => tick(table.ticked().length) });
  let listing = null, table = null, drawn = "", paused = null, latest = route;

  const query = (now) => ({ queue: name, state: now.query.get("state") || "waiting", outcome: now.query.get("outcome"), find: now.query.get("find"), worker: now.query.get("worker") });
  const send = (verb) => () => {
    const asked = query(latest); // what the dialog says is what is done, wherever the address goes meanwhile
    if (everything.checked) return { post: () => changeAll(verb, asked, (done) => say(`${whole(done)} so far`)), text: `${verb} every job that this filter shows, on all pages: ${described(asked)}. ${AFTER[verb]}` };
    const ids = table.ticked().map((j) => j.id);
    if (!ids.length) return say("Tick jobs first, or all pages.");
    return { to: ["jobs"], body: { do: verb, ids }, text: `${verb} ${many(ids.length, "job")} of queue ${name}. ${AFTER[verb]}` };
  };
  const then = () => { everything.checked = false; listing.load(); };
  const actions = [["Retry", "retry"], ["Cancel", "cancel"], ["Delete", "delete"]].map(([label, verb]) => action(label, { send: send(verb), then, look: verb === "delete" ? "danger" : "" }));

  function open(now) {
    latest = now;
    everything.checked = false;
    const chosen = now.query.get("state") || "waiting";
    const address = (query) => to(["queues", name], { state: chosen, outcome: now.query.get("outcome"), ...query });
    table = new Table(jobColumns({ state: chosen }), { key: (j) => j.id, empty: `no ${chosen} jobs like that`, label: `${chosen} jobs`, select: tick, look: (j) => (j.status === "failed" ? "bad" : "") });
    filter.replaceChildren(chips(STATES.map((one) => [one, one]), chosen, (one) => address({ state: one, outcome: "" })),
      h("div", { class: "bar" },
        chosen === "finished" && choice("outcome", "outcome", [["", "any"], ...OUTCOMES.slice(0, 8).map(([word]) => [word, word])], now.query.get("outcome") || ""),
        typed("find", "find", now.query.get("find")), typed("worker", "worker", now.query.get("worker")), ...actions, h("label", {}, everything, " all pages"), bulk));
    body.replaceChildren();
    again();
  }

  function again() {
    listing = new Listing({ names: ["jobs"], table, rows: (answer) => answer.jobs, noun: `${latest.query.get("state") || "waiting"} jobs`, query });
    body.replaceChildren(listing.node);
  }

  function tick(count) {
    put(bulk, everything.checked ? "every job of this filter" : count ? `${many(count, "job")} ticked` : "tick jobs to retry, cancel or delete them");
    for (const button of actions) button.classList.toggle("idle", !count && !everything.checked);
  }

  const shown = h("div", {}, h("div", { class: "bar" }, pause), figures, ends), body = h("div");
  host.className = "";
  host.append(h("p", { class: "crumbs" }, link("Queues", to(["queues"]))), h("h1", {}, `Queue ${name}`), why, shown, filter, body);
  open(route);
  return {
    title: `queue ${name}`,
    change(now) {
      const same = ["state", "outcome"].every((word) => (now.query.get(word) || "") === (latest.query.get(word) || ""));
      latest = now;
      if (!same) return open(now);
      refill(filter, now);
      listing.load();
    },
    look(live) {
      const q = live.fleet.queues.find((one) => one.name === name);
      listing.look();
      shown.hidden = !q;
      if (!q) return put(why, "Nothing has used this queue yet.", "sentence warn");
      put(why, sentenceOf(q), `sentence ${lookOf(q) || "well"}`);
      if (paused !== q.paused) pause.replaceChildren(pausing(q, (paused = q.paused)));
      renew(figures, [facts([
        ["waiting", whole(q.depth)], ["oldest waits for", q.depth ? age(q.oldest) : ""], ["running", whole(q.running)],
        ["workers", link(whole(q.workers), to(["workers"], { queue: name }))], ["finished", whole(q.counters.finished)], ["failed", whole(q.counters.failed)],
        ["retried", q.counters.retried && whole(q.counters.retried)], ["requeued after a worker's death", q.counters.requeued && whole(q.counters.requeued)],
        ["mean wait", mean(q.waited)], ["mean run", mean(q.took)],
      ])]);
      const said = JSON.stringify(q.programs);
      if (said === drawn) return;
      drawn = said;
      renew(ends, total(q.programs) ? [h("h2", {}, "How its programs ended"), shares(q.programs, { address: (outcome) => to(["queues", name], { state: "finished", outcome }) })] : []);
    },
  };
}

const AFTER = {
  retry: "They wait in their queue again, even if nobody waits for their result any more.",
  cancel: "Waiting ones leave the queue; running ones are stopped. Who waits for them is told.",
  delete: "Their programs and results are gone for good. Running ones are refused.",
};

const described = ({ queue, state, outcome, find, worker }) => [`${state} jobs of queue ${queue}`, outcome && `that ended as ${outcome}`, find && `with “${find}”`, worker && `of worker ${worker}`].filter(Boolean).join(" ");

function sentenceOf(q) {
  if (q.reason) return `${q.reason[0].toUpperCase()}${q.reason.slice(1)}${q.depth ? `; ${many(q.depth, "job waits", "jobs wait")}` : ""}${q.remedy ? `; ${q.remedy}` : ""}.`;
  return { idle: "Nothing waits and nothing runs.", working: "It is worked on." }[q.verdict] || q.verdict;
}

function pausing(q) {
  const text = q.paused ? `Workers take jobs of ${q.name} again within a second.` : `Workers take no more jobs of ${q.name}; running ones go on. RQ's own workers do not know this pause.`;
  return action(q.paused ? "Resume" : "Pause", { title: `${q.paused ? "Resume" : "Pause"} queue ${q.name}?`, send: () => ({ to: ["queues", q.name], body: { paused: !q.paused }, text }) });
}

function mean({ counts, seconds }) {
  const count = counts.reduce((sum, n) => sum + n, 0);
  return count ? `${age(seconds / count)} (of ${shortly(count)})` : "";
}
