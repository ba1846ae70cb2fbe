// Who changed what, by this page or by a command.

import { get } from "../api.js";
import { h } from "../dom.js";
import { moment } from "../format.js";
import { Table } from "../table.js";

export function audit(host) {
  const table = new Table(columns, { key: (c) => `${c.at} ${c.what} ${c.target}`, empty: "Nothing has been changed yet.", label: "Changes" });
  let looks = 0;
  const load = async () => {
    const found = await get(["audit"]).catch(() => null); // the next look asks again
    if (found) table.fill(found.changes);
  };
  host.className = "";
  host.append(h("h1", {}, "Log of changes"), h("p", { class: "soft" }, "Changes made from the monitor, from penstock top and by other commands. The latest thousand are kept; the latest 200 are shown."), table.node);
  load();
  return { title: "Log", look() { if (looks++ % 3 === 2) load(); } };
}

const columns = [
  { head: "when", cell: (c) => moment(c.at) },
  { head: "who", kind: "name", cell: (c) => c.who || "did not say" },
  { head: "from", cell: (c) => c.address },
  { head: "what", cell: (c) => c.what },
  { head: "of", kind: "long", cell: (c) => c.target },
  { head: "outcome", kind: "long", cell: (c) => c.outcome },
];
