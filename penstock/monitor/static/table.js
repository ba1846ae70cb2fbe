// Tables keep their rows, so that focus, ticks and what is being typed stay where they are.

import { h, put } from "./dom.js";

// columns  [{head, cell(item) → text or {text, href}, kind: number|long|clip|name|says (its word has the colour of the row), sort(item), make(row)}]
//          `make` is called once a row, and reads `row.item` when something is pressed
// options  key(item), look(item) → class, empty: text, select: (how many ticked) → …
export class Table {
  constructor(columns, { key, look = () => "", empty = "none", select = null, label = "" }) {
    Object.assign(this, { columns, key, look, select, items: [], rows: new Map(), order: null });
    this.head = h("tr", {}, select && h("th", { scope: "col", class: "tick" }, this.all()), columns.map((column, n) => this.heading(column, n)));
    this.body = h("tbody");
    this.node = h("div", { class: "scroll" }, h("table", { "aria-label": label }, h("thead", {}, this.head), this.body));
    this.nothing = h("p", { class: "empty" }, empty);
  }

  heading(column, n) {
    const cell = h("th", { scope: "col", class: column.kind === "number" ? "number" : "" });
    if (!column.head) cell.setAttribute("aria-label", column.make ? "actions" : "names");
    if (!column.sort) cell.append(column.head);
    else cell.append(h("button", { type: "button", class: "sort", onclick: () => this.sortBy(n) }, column.head));
    return cell;
  }

  all() {
    return h("input", { type: "checkbox", "aria-label": "all of this page", onchange: (event) => {
      for (const row of this.rows.values()) row.tick.checked = event.target.checked;
      this.select(this.ticked().length);
    } });
  }

  ticked() {
    return [...this.rows.values()].filter((row) => row.tick && row.tick.checked).map((row) => row.item);
  }

  sortBy(n) {
    const before = this.order && this.order.n === n ? this.order.up : null;
    this.order = before === false ? { n, up: true } : before === true ? null : { n, up: false };
    const first = this.select ? 1 : 0;
    [...this.head.cells].forEach((cell, at) => cell.setAttribute("aria-sort", this.order && at - first === n ? (this.order.up ? "ascending" : "descending") : "none"));
    this.fill(this.items);
  }

  sorted(items) {
    if (!this.order) return items;
    const { sort } = this.columns[this.order.n], sign = this.order.up ? 1 : -1;
    const compared = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (a ?? -Infinity) - (b ?? -Infinity));
    return [...items].sort((a, b) => sign * compared(sort(a), sort(b)));
  }

  fill(items) {
    this.items = items;
    const live = new Set(items.map((item) => this.key(item)));
    // Before all else: a row that is moved past one that goes would lose the focus.
    for (const [key, row] of this.rows) if (!live.has(key)) { row.remove(); this.rows.delete(key); }
    this.sorted(items).forEach((item, index) => {
      const key = this.key(item), row = this.rows.get(key) || this.row(key, item);
      row.item = item;
      this.columns.forEach((column, n) => column.cell && show(row.shown[n], column.cell(item)));
      const look = this.look(item);
      if (row.className !== look) row.className = look;
      if (this.body.rows[index] !== row) this.body.insertBefore(row, this.body.rows[index] || null);
    });
    if (items.length) this.nothing.remove();
    else if (!this.nothing.isConnected) this.node.append(this.nothing);
    if (this.select) this.select(this.ticked().length);
  }

  row(key, item) {
    const row = h("tr");
    row.item = item;
    if (this.select) {
      row.tick = h("input", { type: "checkbox", "aria-label": `tick ${key}`, onchange: () => this.select(this.ticked().length) });
      row.append(h("td", { class: "tick" }, row.tick));
    }
    row.shown = this.columns.map((column) => {
      const cell = h("td", { class: column.kind || "" }, column.make && column.make(row));
      row.append(cell);
      return cell;
    });
    this.rows.set(key, row);
    return row;
  }
}

function show(cell, value) {
  if (value === null || typeof value !== "object") return put(cell, value ?? "");
  const known = cell.firstChild instanceof HTMLAnchorElement ? cell.firstChild : null;
  const anchor = known || h("a");
  if (!known) cell.replaceChildren(anchor);
  put(anchor, value.text);
  if (anchor.getAttribute("href") !== value.href) anchor.setAttribute("href", value.href);
  if (value.title && anchor.title !== value.title) anchor.title = value.title;
}
