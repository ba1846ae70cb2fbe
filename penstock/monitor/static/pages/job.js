// One job: what became of it, where its time went, its program and what that printed.

import { action } from "../acting.js";
import { get } from "../api.js";
import { h, link, renew } from "../dom.js";
import { age, moment } from "../format.js";
import { OUTCOMES } from "../outcomes.js";
import { to } from "../router.js";
import { whyFacts } from "../why.js";

const PARTS = { queued: [7, "in its queue"], permit: [6, "waiting for a permit"], start: [5, "starting, and recording its end"], run: [3, "running"], backoff: [2, "waiting to try again"], working: [1, "at work"] };
const OVER = ["finished", "failed", "canceled", "stopped"];

export function job(host, route) {
  const [id] = route.names;
  let drawn = "", looks = 0, over = false;

  async function load() {
    const found = await get(["jobs", id]).catch((problem) => ({ problem: problem.message }));
    const said = JSON.stringify(found);
    over = OVER.includes(found.status);
    if (said === drawn) return;
    drawn = said;
    renew(host, [h("p", { class: "crumbs" }, link("Queues", to(["queues"])), found.origin && [" / ", link(found.origin, to(["queues", found.origin]))]), h("h1", {}, `Job ${id}`),
      found.problem ? h("p", { class: "sentence warn" }, `${found.problem}.`) : body(found, load)]);
  }

  host.className = "";
  host.append(h("h1", {}, `Job ${id}`));
  load();
  return { title: `job ${id}`, look() { if (looks++ % (over ? 10 : 2) === 1) load(); } };
}

function body(found, then) {
  const call = found.call || {}, result = found.result;
  const ran = result && typeof result === "object" ? result.run_result || result.compile_result : null;
  return [
    h("p", { class: `sentence ${levelOf(found)}` }, sentenceOf(found)),
    h("div", { class: "bar" }, changes(found, then)),
    timeline(found),
    h("h2", {}, "Why"), h("p", {}, `${upper(found.why.sentence)}.`), whyFacts(found.why.facts),
    text("How it failed", found.error, "error"),
    text("Output", ran && ran.stdout), text("Errors it printed", ran && ran.stderr),
    text("Verdicts", result && result.verdicts),
    text("Program", call.code),
    text("Call", call.code ? "" : [call.function, call.note, call.arguments && JSON.stringify(call.arguments)].filter(Boolean).join("\n")),
    folded("Request", call.request), folded("Result", result),
    found.executions.length > 1 && [h("h2", {}, "Its executions"), h("ul", {}, found.executions.map((one) =>
      h("li", {}, `${one.ok ? "ended" : "failed"} ${moment(one.ended)} after ${age(Math.max(0, one.ended - one.started))} on `, one.worker ? link(one.worker, to(["workers", one.worker])) : "a worker")))],
  ];
}

const levelOf = (found) => (found.status === "failed" ? "bad" : found.outcome && found.outcome !== "finished" ? "warn" : "well");

function sentenceOf(found) {
  const queued = found.timeline.find((part) => part.what === "queued"), waited = queued && queued.seconds >= 0.001 ? `It waited ${age(queued.seconds)} in queue ${found.origin}.` : "";
  const permit = found.timeline.find((part) => part.what === "permit");
  const gate = permit && permit.seconds >= 0.001 ? ` Then it waited ${age(permit.seconds)} for a permit${found.gate ? ` of gate ${found.gate}` : ""}.` : "";
  if (found.status === "failed") return `It failed: ${found.error.trim().split("\n").pop().slice(0, 300) || "its worker does not say why"}. ${waited}${gate}`;
  const meaning = OUTCOMES.find(([word]) => word === found.outcome);
  if (meaning) return `Its program ended with “${found.outcome}”: ${meaning[2]}. ${waited}${gate}`;
  const said = { queued: `It waits in its queue, ${found.place}${found.waits ? `: ${found.waits}` : ""}.`, started: "It runs.", finished: "It has finished.", deferred: "It waits for other jobs.", scheduled: "Its time has not come.", canceled: "It was cancelled.", stopped: "It was stopped." };
  return `${said[found.status] || `It is ${found.status}.`} ${waited}${gate}`;
}

function timeline(found) {
  const parts = found.timeline.filter((part) => PARTS[part.what]);
  if (!parts.length) return null;
  const whole = Math.max(1e-6, parts.reduce((sum, { seconds }) => sum + seconds, 0));
  const rows = h("div", { class: "timeline", id: "timeline" });
  let before = 0;
  for (const { what, seconds } of parts) {
    const [colour, means] = PARTS[what], bar = h("i");
    bar.style.background = `var(--c${colour})`;
    bar.style.width = `${(100 * seconds) / whole}%`;
    bar.style.marginLeft = `min(${(100 * before) / whole}%, calc(100% - 3px))`;
    rows.append(h("span", {}, means), h("span", { class: "track" }, bar), h("span", { class: "number" }, age(seconds)));
    before += seconds;
  }
  return h("section", { "aria-label": "Where its time went" }, rows);
}

function changes(found, then) {
  const send = (verb, text) => () => ({ to: ["jobs"], body: { do: verb, ids: [found.id] }, text });
  const act = (label, verb, text, look) => action(label, { title: `${label} job ${found.id}?`, send: send(verb, text), then, look });
  const ended = OVER.includes(found.status);
  return [
    ended && act("Retry", "retry", "It waits in its queue again, even if nobody waits for its result any more."),
    !ended && act("Cancel", "cancel", "If it waits, it leaves its queue; if it runs, it is stopped. Who waits for it is told."),
    found.status !== "started" && act("Delete", "delete", "Its program and its result are gone for good.", "danger"),
  ];
}

const upper = (said) => said.slice(0, 1).toUpperCase() + said.slice(1);
const text = (title, said, look = "") => said && [h("h2", {}, title), h("pre", { class: look }, said)];
const folded = (title, value) => value !== null && value !== undefined && h("details", {}, h("summary", {}, title), h("pre", {}, JSON.stringify(value, null, 1)));
