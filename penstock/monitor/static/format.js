// How figures are written.

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let n = 0;
  for (; count >= 1000 && n < 4; n++) count /= 1000;
  return `${Math.round(count * 10) / 10} ${units[n]}`;
}

export function shortly(value) {
  if (value === null || value === undefined) return "–";
  const [size, unit] = value >= 1e10 ? [1e9, "G"] : value >= 1e7 ? [1e6, "M"] : [1e3, "k"];
  if (value >= 10000) return (value / size).toFixed(0) + unit;
  if (Math.abs(value) < 1) return String(Number(value.toPrecision(2))); // a slow rate is not 0
  return String(value >= 100 ? Math.round(value) : Math.round(value * 100) / 100);
}

export const whole = (count) => Number(count || 0).toLocaleString("en");
export const many = (count, one, more = `${one}s`) => `${whole(count)} ${count === 1 ? one : more}`;
export const clock = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleTimeString() : "");
export const moment = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString() : "");
export const part = (count, total) => (total ? `${Math.round((100 * count) / total)} %` : "");
