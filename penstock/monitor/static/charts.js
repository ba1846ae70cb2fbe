// Lines, or stacked areas, over time on canvas. Series differ in colour, dash and label, never in
// colour alone. At the pointer, or with the arrow keys, the labels say the values of that moment.

import { h } from "./dom.js";
import { age, clock, shortly } from "./format.js";

const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4], [3, 6], [1, 2], [8, 2, 1, 2]];

export class Chart {
  // series: [name, value of a point or null, colour number]
  constructor(title, series, { tell = shortly, stacked = false } = {}) {
    Object.assign(this, { title, tell, stacked, points: [], seconds: 60, place: null });
    this.series = series.map(([name, read, colour], n) => ({ name, read, colour: `--c${colour || n + 1}`, dash: stacked ? [] : DASHES[n] }));
    this.labels = this.series.map(({ name, colour, dash }) => {
      const mark = h("i"), text = document.createTextNode("");
      mark.style.background = stroke(dash, `var(${colour})`);
      return { name, text, item: h("span", {}, mark, text) };
    });
    this.time = h("em");
    this.canvas = h("canvas", { role: "img", tabindex: "0" });
    this.node = h("figure", {}, h("figcaption", {}, h("b", {}, title), this.time, this.labels.map((one) => one.item)), this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX / this.canvas.clientWidth));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
      if (step) { event.preventDefault(); this.point(Math.min(1, Math.max(0, (this.place ?? 1) + step))); }
      if (event.key === "Escape") this.point(null);
    });
  }

  point(place) {
    this.place = place;
    this.draw(this.points, this.seconds);
  }

  draw(points, seconds) {
    Object.assign(this, { points, seconds });
    const sheet = prepared(this.canvas);
    if (!sheet || !points.length) return;
    const end = points[points.length - 1].at, values = this.series.map(({ read }) => points.map((point) => read(point)));
    const drawn = this.stacked ? piled(values) : values;
    const most = Math.max(1e-9, ...drawn.map((line) => line.reduce((top, value) => Math.max(top, value ?? 0), 0))) * 1.08;
    const floor = sheet.height - 17 * sheet.scale;
    this.axes(sheet, floor, most, seconds);
    const where = (index) => sheet.width * (1 - (end - points[index].at) / seconds), high = (value) => floor * (1 - value / most) + 2;
    const gap = Math.max(15, seconds / 60), cut = (index) => index && points[index].at - points[index - 1].at > gap;
    for (let n = drawn.length - 1; n >= 0; n--) this.line(sheet, drawn[n], n, where, high, cut, floor);
    this.say(values, this.chosen(sheet, points, where, floor));
  }

  line({ pen, style, scale }, line, n, where, high, cut, floor) {
    const colour = style.getPropertyValue(this.series[n].colour).trim();
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = (this.stacked ? 1 : 1.8) * scale;
    pen.setLineDash(this.series[n].dash.map((dash) => dash * scale));
    let begun = null;
    const close = (last) => { // an area reaches down to the floor, and those before it are drawn over it
      if (!this.stacked || begun === null) return;
      pen.lineTo(where(last), floor + 2); pen.lineTo(where(begun), floor + 2); pen.closePath(); pen.fill();
    };
    pen.beginPath();
    line.forEach((value, index) => {
      if (value === null || value === undefined || cut(index)) { close(index - 1); if (this.stacked) pen.beginPath(); begun = null; }
      if (value === null || value === undefined) return;
      if (begun === null) { begun = index; pen.moveTo(where(index), high(value)); } else pen.lineTo(where(index), high(value));
    });
    close(line.length - 1);
    if (!this.stacked) pen.stroke();
  }

  axes({ pen, style, width, scale }, floor, most, seconds) {
    pen.setLineDash([]);
    pen.lineWidth = scale;
    pen.strokeStyle = style.getPropertyValue("--line").trim();
    pen.fillStyle = style.getPropertyValue("--soft").trim();
    pen.font = `${11 * scale}px system-ui, sans-serif`;
    for (const share of [0, 0.5, 1]) {
      const y = Math.max(1, floor * (1 - share) + 2);
      pen.beginPath(); pen.moveTo(0, y); pen.lineTo(width, y); pen.stroke();
      if (share) pen.fillText(this.tell((most * share) / 1.08), 2 * scale, y + 11 * scale);
    }
    pen.textAlign = "left"; pen.fillText(`${age(seconds)} ago`, 0, floor + 13 * scale);
    pen.textAlign = "right"; pen.fillText("now", width, floor + 13 * scale);
    pen.textAlign = "left";
  }

  // The point at the pointer, marked; else the last.
  chosen({ pen, style, width, scale }, points, where, floor) {
    if (this.place === null) return points.length - 1;
    let near = points.length - 1;
    points.forEach((_, index) => { if (Math.abs(where(index) - this.place * width) < Math.abs(where(near) - this.place * width)) near = index; });
    pen.setLineDash([]);
    pen.strokeStyle = style.getPropertyValue("--ink").trim();
    pen.lineWidth = scale;
    pen.beginPath(); pen.moveTo(where(near), 0); pen.lineTo(where(near), floor); pen.stroke();
    return near;
  }

  say(values, index) {
    this.time.textContent = this.place === null ? "" : clock(this.points[index].at);
    const said = this.labels.map(({ name, text, item }, n) => {
      text.data = `${name} ${this.tell(values[n][index])}`;
      item.hidden = this.stacked && !values[n].some(Boolean);
      return text.data;
    });
    this.canvas.setAttribute("aria-label", `${this.title}: ${said.join(", ")}`);
  }
}

function piled(values) { // each on top of those before it
  const sums = values[0].map(() => 0);
  return values.map((line) => line.map((value, index) => (sums[index] += value || 0)));
}

function stroke(dash, colour) { // what the pen draws with such dashes, as a background
  let end = 0;
  const parts = dash.map((length, n) => `${n % 2 ? "transparent" : colour} ${end}px ${(end += length)}px`);
  return parts.length ? `repeating-linear-gradient(90deg, ${parts.join(", ")})` : colour;
}

export function prepared(canvas) { // wiped, and as sharp as the screen; null while it is not shown
  const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  if (!box.width) return null;
  const width = Math.round(box.width * scale), height = Math.round(box.height * scale);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  return { pen, style: getComputedStyle(document.documentElement), width, height, scale };
}
