// Jobs as rows, the same columns wherever jobs are listed; and changes of all that fit a filter.

import { get, post } from "../api.js";
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
    { head: "outcome", kind: "says", cell: (j) => j.outcome || j.status, sort: (j) => j.outcome || j.status },
    { head: "what", kind: "clip", cell: (j) => (j.program ? { text: j.program, title: j.description } : j.description.replace(` ${j.id}`, "").slice(0, 200)) },
    state !== "waiting" && { head: "worker", kind: "name", cell: (j) => (j.worker ? { text: j.worker, href: to(["workers", j.worker]), title: j.worker } : "") },
    state === "waiting" && { head: "since", kind: "number", cell: (j) => ago(j.enqueued) },
    state === "running" && { head: "since", kind: "number", cell: (j) => ago(j.started) },
    ended && { head: "ended", kind: "number", cell: (j) => ago(j.ended) },
    state !== "waiting" && { head: "waited", kind: "number", cell: (j) => age(j.waited), sort: (j) => j.waited },
    ended && { head: "took", kind: "number", cell: (j) => age(j.took), sort: (j) => j.took },
    { head: "tries", kind: "number", cell: (j) => j.attempts, sort: (j) => j.attempts },
  ].filter(Boolean);
}

const AT_ONCE = 200;

// First every id, page by page, and then the changes: a job that is retried may fail again meanwhile,
// and is not retried twice. While the pages of a queue are read, workers take its first jobs, and the
// others move up past the next page: so it is read until nothing new is found. `said` hears how many
// there were so far.
export async function changeAll(verb, query, said) {
  const ids = new Set(), all = { done: 0, refused: [] };
  let left = await unseen(query, ids);
  while (left.length) {
    const { done, refused } = await post(["jobs"], { do: verb, ids: left.splice(0, AT_ONCE) });
    all.done += done;
    all.refused.push(...refused);
    said(all.done);
    if (!left.length && query.state === "waiting") left = await unseen(query, ids);
  }
  return all;
}

async function unseen(query, ids) {
  const known = ids.size;
  for (let start = 0; start !== null;) {
    const page = await get(["jobs"], { ...query, start, count: AT_ONCE });
    for (const job of page.jobs) ids.add(job.id);
    start = page.next;
  }
  return [...ids].slice(known); // a set keeps the order in which they came
}
