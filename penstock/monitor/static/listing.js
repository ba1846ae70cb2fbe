// A page of a long list: it is read again with every third look, and as soon as its address changes.

import { Refused, get } from "./api.js";
import { h, link, put } from "./dom.js";
import { whole } from "./format.js";
import { go, here } from "./router.js";

const EVERY = 3;

export class Listing {
  // names, query(route) → what is asked; table; rows(answer) → items; noun
  constructor({ names, query, table, rows, noun, heard }) {
    Object.assign(this, { names, query, table, rows, noun, heard, looks: 0, asked: 0 });
    this.said = h("span", { class: "soft" });
    this.first = link("First page", "");
    this.next = link("Next page", "");
    this.node = h("div", {}, table.node, h("p", { class: "bar" }, this.said, this.first, this.next));
    this.load();
  }

  look() {
    if (this.looks++ % EVERY === EVERY - 1) this.load();
  }

  async load() {
    const mine = ++this.asked, route = here(), query = this.query(route);
    try {
      const answer = await get(this.names, { ...query, start: route.query.get("start") || "" });
      if (mine !== this.asked) return; // a later question is under way
      this.show(answer, Number(route.query.get("start") || 0));
    } catch (problem) {
      if (!(problem instanceof Refused) && !(problem instanceof TypeError)) throw problem;
      put(this.said, problem.message);
    }
  }

  show(answer, start) {
    const items = this.rows(answer);
    this.table.fill(items);
    const looked = answer.looked !== undefined && answer.looked > items.length ? `, of ${whole(answer.looked)} looked at` : "";
    put(this.said, `${whole(items.length)} shown${looked}; ${whole(answer.total)} ${this.noun} in all`);
    this.first.hidden = !start;
    this.next.hidden = answer.next === null;
    this.first.href = addressOf("");
    this.next.href = addressOf(answer.next);
    if (this.heard) this.heard(answer);
  }
}

function addressOf(start) {
  const now = new URLSearchParams(here().query);
  if (start) now.set("start", start);
  else now.delete("start");
  return `${location.hash.split("?")[0]}${now.size ? `?${now}` : ""}`;
}

// A field of a filter: what is chosen becomes a part of the address.
export function choice(name, label, options, now) {
  const select = h("select", { name, onchange: () => go({ [name]: select.value, start: "" }) },
    options.map(([value, text]) => h("option", { value, selected: value === now }, text)));
  return h("label", {}, `${label} `, select);
}

export function typed(name, label, now, { type = "search", size = 14, step } = {}) {
  let later = 0;
  const tell = () => {
    if (later && input.isConnected) go({ [name]: input.value.trim(), start: "" }, true);
    clearTimeout(later);
    later = 0;
  };
  const input = h("input", { name, type, size, step, value: now || "", onchange: tell, oninput: () => {
    clearTimeout(later);
    later = setTimeout(tell, 250);
  } });
  return h("label", {}, `${label} `, input);
}

// The fields of a filter show what the address says; what is being typed into one stays.
export function refill(filter, now) {
  for (const field of filter.querySelectorAll("[name]")) {
    const wanted = now.query.get(field.name) || "";
    if (field.value.trim() !== wanted) field.value = wanted;
  }
}

export function chips(options, now, address) {
  return h("div", { class: "chips" }, options.map(([value, text]) => h("a", { href: address(value), "aria-current": value === now ? "true" : null }, text)));
}
