// What has an id or a name. If one thing alone has exactly that, it is opened at once.

import { get } from "../api.js";
import { h, link, put } from "../dom.js";
import { to } from "../router.js";
import { Table } from "../table.js";

const address = ({ kind, name, where }) => ({
  job: () => to(["jobs", name]), queue: () => to(["queues", name]), worker: () => to(["workers", name]), gate: () => to(["gates", name]),
  task: () => to(["groups"], { task: name }), sandbox: () => to(["sandboxes"], { run: where, find: name }), group: () => to(["groups", where, ...name.split(/:(?=\d+$)/)]),
}[kind]());

export function found(host, route) {
  const wanted = route.query.get("q") || "", said = h("p", { class: "soft" });
  const table = new Table([
    { head: "what", cell: (one) => one.kind },
    { head: "name", kind: "long", cell: (one) => ({ text: one.name, href: address(one) }) },
    { head: "of", cell: (one) => one.where },
  ], { key: (one) => `${one.kind}/${one.where}/${one.name}`, empty: "Nothing has that id or name.", label: "Found" });
  host.className = "";
  host.append(h("h1", {}, wanted ? `Find “${wanted}”` : "There is no such page"), said, table.node);
  if (!wanted) said.append(link("Back to the overview", to()));
  else load();
  return { title: `find ${wanted}` };

  async function load() {
    const answer = await get(["find"], { q: wanted }).catch((problem) => put(said, problem.message));
    if (!answer || !host.isConnected) return; // another page is open by now
    const exact = answer.found.filter((one) => one.exact);
    if (exact.length === 1) return location.replace(address(exact[0]));
    said.replaceChildren("A queue, gate, worker, task, group, sandbox or job. Ids of jobs must be whole. ",
      link("Look for an item or a session of that id", to(["why", wanted])));
    table.fill(answer.found);
  }
}
