// How rewards are spread: their share in each tenth from -1 to 1, of the whole run and of the last while.

import { prepared } from "./charts.js";
import { h } from "./dom.js";
import { age, shortly } from "./format.js";

const STEPS = 22; // up to -1, then a tenth each, then all above 1

export class Bars {
  constructor(title) {
    this.title = title;
    this.said = { all: document.createTextNode(""), lately: document.createTextNode("") };
    this.canvas = h("canvas", { role: "img" });
    this.node = h("figure", {}, h("figcaption", {}, h("b", {}, title),
      h("span", {}, h("i", { class: "outline" }), this.said.all), h("span", {}, h("i", { class: "filled" }), this.said.lately)), this.canvas);
  }

  draw(points, seconds) {
    if (!points.length) return;
    const all = points[points.length - 1].rewards, before = points[0].rewards;
    const sum = (counts) => counts.reduce((total, count) => total + count, 0);
    const lately = all.map((count, at) => Math.max(0, count - (before[at] || 0)));
    const total = sum(all), fresh = sum(lately), time = age(seconds);
    const most = all.indexOf(Math.max(...all));
    this.said.all.data = `run ${shortly(total)}`;
    this.said.lately.data = `last ${time} ${shortly(fresh)}`;
    this.canvas.setAttribute("aria-label", total
      ? `${this.title}: ${total} in all, ${fresh} in the last ${time}; most of them, ${Math.round((100 * all[most]) / total)} %, ${stepName(most)}`
      : `${this.title}: none yet`);
    const sheet = prepared(this.canvas);
    if (!sheet) return;
    const { pen, style, width, height, scale } = sheet, floor = height - 17 * scale;
    const share = (counts, of) => (of ? counts.map((count) => count / of) : []);
    const shares = [share(all, total), share(lately, fresh)];
    const top = Math.max(0.01, ...shares.flat()) * 1.08, wide = width / STEPS;
    const colour = (name) => style.getPropertyValue(name).trim();
    pen.setLineDash([]);
    pen.lineWidth = scale;
    pen.strokeStyle = colour("--c1");
    shares[0].forEach((part, at) => {
      const high = (part / top) * (floor - 2);
      if (part) pen.strokeRect((at + 0.08) * wide, floor - high, wide * 0.84, high);
    });
    pen.fillStyle = colour("--c2");
    shares[1].forEach((part, at) => {
      const high = (part / top) * (floor - 2);
      pen.fillRect((at + 0.27) * wide, floor - high, wide * 0.46, high);
    });
    pen.strokeStyle = colour("--line");
    pen.beginPath(); pen.moveTo(0, floor); pen.lineTo(width, floor); pen.stroke();
    pen.fillStyle = colour("--soft");
    pen.font = `${11 * scale}px system-ui, sans-serif`;
    pen.textAlign = "center";
    for (const [at, text] of [[1, "-1"], [11, "0"], [16, "0.5"], [6, "-0.5"], [21, "1"]]) pen.fillText(text, at * wide, floor + 13 * scale);
    pen.textAlign = "left";
    if (total) pen.fillText(`${Math.round((100 * top) / 1.08)} %`, 2 * scale, 11 * scale);
  }
}

function stepName(at) {
  if (at === 0) return "at most -1";
  return at === STEPS - 1 ? "above 1" : `above ${(at - 11) / 10} and at most ${(at - 10) / 10}`;
}
