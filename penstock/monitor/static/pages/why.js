// Whatever has an id, and why it has its reward: a job, an item, a group, a session, a sandbox.

import { get } from "../api.js";
import { h, renew } from "../dom.js";
import { whyFacts, whySentence } from "../why.js";

export function why(host, route) {
  const [id] = route.names, shown = h("div");
  let drawn = "", looks = 0;

  async function load() {
    const answer = await get(["why", id]).catch((problem) => ({ problem: problem.message }));
    const said = JSON.stringify(answer);
    if (said === drawn) return;
    drawn = said;
    renew(shown, answer.problem ? [h("p", { class: "sentence warn" }, `${answer.problem}.`)] : answer.found.flatMap((one) => [whySentence(one), whyFacts(one.facts)]));
  }

  host.className = "";
  host.append(h("h1", {}, `Why ${id}`), shown);
  load();
  return { title: `why ${id}`, look() { if (looks++ % 10 === 9) load(); } };
}
