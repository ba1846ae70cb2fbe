// Jobs as rows: the same columns wherever jobs are listed.

import { live } from "../live.js";
import { age } from "../format.js";
import { to } from "../router.js";

const now = () => (live.fleet ? live.fleet.at : Date.now() / 1000);
const ago = (moment) => (moment ? `${age(Math.max(0, now() - moment))} ago` : "");

export function jobColumns({ state = "" } = {}) {
  const ended = !["waiting", "running", "deferred", "scheduled"].includes(state);
  return [
    { head: "job", kind: "name", cell: (j) => ({ text: j.id, href: to(["jobs", j.id]), title: j.id }) },
    !state && { head: "queue", kind: "name", cell: (j) => ({ text: j.queue, href: to(["queues", j.queue]) }) },
    { head: "outcome", cell: (j) => j.outcome || j.status, sort: (j) => j.outcome || j.status },
    { head: "what", kind: "clip", cell: (j) => j.description.replace(` ${j.id}`, "").slice(0, 200) },
    state !== "waiting" && { head: "worker", kind: "name", cell: (j) => (j.worker ? { text: j.worker, href: to(["workers", j.worker]), title: j.worker } : "") },
    state === "waiting" && { head: "since", kind: "number", cell: (j) => ago(j.enqueued) },
    state === "running" && { head: "since", kind: "number", cell: (j) => ago(j.started) },
    ended && { head: "ended", kind: "number", cell: (j) => ago(j.ended) },
    state !== "waiting" && { head: "waited", kind: "number", cell: (j) => age(j.waited), sort: (j) => j.waited },
    ended && { head: "took", kind: "number", cell: (j) => age(j.took), sort: (j) => j.took },
    { head: "tries", kind: "number", cell: (j) => j.attempts, sort: (j) => j.attempts },
  ].filter(Boolean);
}
