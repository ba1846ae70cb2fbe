"use strict";
// Lines over time on canvas. Series differ in colour, in dash and in their label, never in colour alone.

const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];

class Chart {
  constructor(host, title, series, tell = shortly) {
    this.series = series; // [name, function of a point, or null where there is no value]
    this.tell = tell; // how a value is written
    this.figure = document.createElement("figure");
    this.caption = document.createElement("figcaption");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    const name = document.createElement("b");
    name.textContent = title;
    this.caption.append(name);
    this.labels = series.map(([label], at) => {
      const item = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = stroke(DASHES[at], `var(--c${at + 1})`);
      const text = document.createTextNode("");
      item.append(mark, text);
      this.caption.append(item);
      return [label, text];
    });
    this.title = title;
    this.figure.append(this.caption, this.canvas);
    host.append(this.figure);
  }

  draw(points, seconds) {
    const sheet = prepared(this.canvas);
    if (!sheet || !points.length) return;
    const { pen, style, width, height, scale } = sheet;
    const values = this.series.map(([, read]) => points.map(read));
    const most = Math.max(1e-9, ...values.flat().filter((value) => value !== null)) * 1.08;
    const end = points[points.length - 1].at, floor = height - 17 * scale;
    this.axes(pen, style, width, floor, most, seconds, scale);
    values.forEach((line, at) => {
      pen.strokeStyle = style.getPropertyValue(`--c${at + 1}`).trim();
      pen.lineWidth = 1.8 * scale;
      pen.setLineDash(DASHES[at].map((dash) => dash * scale));
      pen.beginPath();
      let down = false;
      line.forEach((value, index) => {
        const gone = index && points[index].at - points[index - 1].at > 15;
        if (value === null) { down = false; return; }
        const x = width * (1 - (end - points[index].at) / seconds), y = floor * (1 - value / most) + 2;
        if (down && !gone) pen.lineTo(x, y); else pen.moveTo(x, y);
        down = true;
      });
      pen.stroke();
    });
    const said = this.labels.map(([label, text], at) => {
      text.data = `${label} ${this.tell(values[at][points.length - 1])}`;
      return text.data;
    });
    this.canvas.setAttribute("aria-label", `${this.title}: ${said.join(", ")}`);
  }

  axes(pen, style, width, floor, most, seconds, scale) {
    pen.setLineDash([]);
    pen.lineWidth = scale;
    pen.strokeStyle = style.getPropertyValue("--line").trim();
    pen.fillStyle = style.getPropertyValue("--soft").trim();
    pen.font = `${11 * scale}px system-ui, sans-serif`;
    for (const part of [0, 0.5, 1]) {
      const y = Math.max(1, floor * (1 - part) + 2);
      pen.beginPath(); pen.moveTo(0, y); pen.lineTo(width, y); pen.stroke();
      if (part) pen.fillText(this.tell(most * part / 1.08), 2 * scale, y + 11 * scale);
    }
    pen.textAlign = "left"; pen.fillText(`${Math.round(seconds / 60)} min ago`, 0, floor + 13 * scale);
    pen.textAlign = "right"; pen.fillText("now", width, floor + 13 * scale);
    pen.textAlign = "left";
  }
}

function stroke(dash, colour) { // what the pen draws with such dashes, as a background
  let end = 0;
  const parts = dash.map((length, at) => `${at % 2 ? "transparent" : colour} ${end}px ${(end += length)}px`);
  return parts.length ? `repeating-linear-gradient(90deg, ${parts.join(", ")})` : colour;
}

function prepared(canvas) { // wiped, and as sharp as the screen; null while it is not shown
  const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  if (!box.width) return null;
  const width = Math.round(box.width * scale), height = Math.round(box.height * scale);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  return { pen, style: getComputedStyle(document.documentElement), width, height, scale };
}

function shortly(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return (value / 1000).toFixed(0) + "k";
  return String(value >= 100 ? Math.round(value) : Math.round(value * 100) / 100);
}
