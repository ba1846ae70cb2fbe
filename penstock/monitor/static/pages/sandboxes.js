// Session sandboxes of every run, or of one; those that cannot be ended first.

import { action } from "../acting.js";
import { h } from "../dom.js";
import { age } from "../format.js";
import { Listing, choice, refill, typed } from "../listing.js";
import { live } from "../live.js";
import { to } from "../router.js";
import { Table } from "../table.js";
import { registryColumns } from "./overview.js";

export function sandboxes(host, route) {
  const reap = (row) => action("Reap", { title: "Reap now?", send: () => ({ to: ["sandboxes", row.item.run, "reap"], text: `All sandboxes of run ${row.item.run} whose owner is dead are ended now.` }) });
  const end = (row) => action("End", { title: `End sandbox ${row.item.name}?`, look: "danger", send: () => ({ to: ["sandboxes", row.item.run, row.item.name, "end"], text: "It is ended even if it is in use." }) });
  const registries = new Table([...registryColumns, { head: "", make: reap }], { key: (r) => r.run, empty: "No session sandbox has been started yet.", label: "Runs",
    look: (r) => (r.failing ? "bad" : Object.keys(r.states).length && !r.reaper ? "warn" : "") });
  const boxes = new Table([...columns, { head: "", make: end }], { key: (b) => `${b.run}/${b.name}`, empty: "no sandbox like that", label: "Sandboxes", look: (b) => (b.failing ? "bad" : "") });
  const listing = new Listing({ names: ["sandboxes"], table: boxes, rows: (answer) => answer.sandboxes, noun: "sandboxes",
    query: (now) => Object.fromEntries(["state", "find"].map((word) => [word, now.query.get(word)])) });
  const filter = h("div", { class: "bar" }, choice("state", "state", STATES, route.query.get("state") || ""), typed("find", "find", route.query.get("find")));
  host.className = "";
  host.append(h("h1", {}, "Session sandboxes"), h("section", { id: "registries" }, registries.node), h("section", { id: "sandboxes" }, filter, listing.node));
  const only = route.query.get("run");
  return {
    title: "Sandboxes",
    change(now) { refill(filter, now); listing.load(); },
    look({ fleet }) {
      registries.fill(fleet.registries.filter((one) => !only || one.run === only));
      listing.look();
    },
  };
}

const STATES = [["", "any"], ["failing", "fails to end"], ...["WAITING", "CREATING", "STARTING", "READY", "TERMINATING"].map((state) => [state, state.toLowerCase()])];

const columns = [
  { head: "sandbox", kind: "name", cell: (b) => ({ text: b.name, href: to(["why", b.name]), title: b.name }) },
  { head: "id", kind: "name", cell: (b) => (b.id.startsWith(b.name) ? b.id.slice(b.name.length) : b.id) }, // the local provider's repeats the name
  { head: "run", kind: "name", cell: (b) => b.run },
  { head: "provider", cell: (b) => b.provider },
  { head: "state", kind: "says", cell: (b) => b.state.toLowerCase() },
  { head: "session", kind: "name", cell: (b) => b.session },
  { head: "owner", kind: "name", cell: (b) => b.owner },
  { head: "since", kind: "number", cell: (b) => (b.since && live.fleet ? `${age(Math.max(0, live.fleet.at - b.since))} ago` : ""), sort: (b) => b.since },
  { head: "tries", kind: "number", cell: (b) => b.tries || "", sort: (b) => b.tries },
  { head: "why it waits, or does not end", kind: "long", cell: (b) => b.trouble || b.waits },
];
