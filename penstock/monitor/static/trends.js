// Charts of the last quarter of an hour, hour or day. The address says which.

import { get } from "./api.js";
import { h } from "./dom.js";
import { chips } from "./listing.js";
import { here, to } from "./router.js";

const SPANS = [["", "15 min"], ["hour", "an hour"], ["day", "a day"]];
const SECONDS = { hour: 3600, day: 86400 }, EVERY = { hour: 10, day: 120 };

export class Trends {
  // make(fleet) → [key, chart] pairs; those that were there before stay
  constructor(route, make) {
    this.make = make;
    this.charts = new Map();
    this.bar = h("div");
    this.host = h("div", { class: "charts", id: "charts" });
    this.node = h("section", { "aria-label": "Charts" }, this.bar, this.host);
    this.older = [];
    this.change(route);
  }

  change(route) {
    this.span = Object.hasOwn(SECONDS, route.query.get("span")) ? route.query.get("span") : "";
    const names = route.page === "overview" ? [] : [route.page, ...route.names];
    const query = Object.fromEntries(here().query);
    this.bar.replaceChildren(chips(SPANS, this.span, (span) => to(names, { ...query, span })));
    this.looks = 0;
    if (this.live) this.look(this.live);
  }

  look(live) {
    this.live = live;
    for (const [key, made] of this.make(live.fleet, this.charts)) {
      this.charts.set(key, made);
      this.host.append(made.node);
    }
    if (this.span && this.looks++ % EVERY[this.span] === 0) this.load();
    const now = live.points[live.points.length - 1];
    const points = this.span ? [...this.older, now] : live.points; // the last that is stored may be hours old
    const seconds = this.span ? SECONDS[this.span] : Math.min(900, Math.max(60, now.at - live.points[0].at));
    for (const chart of this.charts.values()) chart.draw(points, seconds);
  }

  async load() {
    const span = this.span, found = await get(["history"], { span }).catch(() => null);
    if (span !== this.span) return;
    if (!found) return void (this.looks = 0); // the next look asks again
    this.older = found.points;
    if (this.live) this.look(this.live);
  }
}
