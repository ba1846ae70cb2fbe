// Why something has its reward: one sentence, and the facts behind it, as `penstock why` prints them.

import { h, link } from "./dom.js";
import { to } from "./router.js";

const GO = {
  job: ({ name }) => to(["jobs", name]), queue: ({ name }) => to(["queues", name]), worker: ({ name }) => to(["workers", name]), gate: ({ name }) => to(["gates", name]),
  group: ({ name, where }) => to(["groups", where, ...name.split(/:(?=\d+$)/)]), item: ({ name }) => to(["why", name]), session: ({ name }) => to(["why", name]), sandbox: ({ name }) => to(["why", name]),
};

export const whySentence = (one) => h("p", { class: `sentence ${one.look || "well"}` }, `${one.kind} ${one.name}${one.where ? ` of ${one.where}` : ""}: ${one.sentence}.`);

export function whyFacts(facts) {
  return h("dl", { class: "facts why" }, facts.map((fact) => h("div", {}, h("dt", {}, fact.what),
    h("dd", { class: fact.look }, fact.kind ? link(fact.said, GO[fact.kind](fact)) : fact.said))));
}
