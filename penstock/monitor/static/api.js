// Questions to the monitor. Each carries the token and, if another run is shown, its name.

import { here } from "./router.js";

const TOKEN = "token", WHO = "who";
export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// A token in the address is taken out of it, so that no shared address carries it.
export function knownToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", `${location.pathname}${location.search}#/`);
  }
  return sessionStorage.getItem(TOKEN) || "";
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);
export const who = () => localStorage.getItem(WHO) || "";
export const keepWho = (name) => localStorage.setItem(WHO, name);

export function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN), run = here().query.get("run");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const address = run ? `${path}${path.includes("?") ? "&" : "?"}run=${encodeURIComponent(run)}` : path;
  return fetch(address, { ...options, headers: { ...headers, ...options.headers } });
}

export async function get(names, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return answered(await ask(`${address(names)}${asked.size ? `?${asked}` : ""}`));
}

export async function post(names, body) {
  const headers = { "Content-Type": "application/json", "X-Penstock-Who": encodeURIComponent(who()) };
  return answered(await ask(address(names), { method: "POST", headers, body: JSON.stringify(body) }));
}

// A whole number that JavaScript would round is its digits: the id of a group may have 19 of them.
function exact(_, value, from) {
  return Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(from?.source) ? from.source : value;
}

// Names are put into addresses whole: a gate may be called `x/../code`.
function address(names) {
  return `api/${names.map((name) => encodeURIComponent(name)).join("/")}`;
}

async function answered(answer) {
  const body = await answer.text().then((text) => JSON.parse(text, exact)).catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.message || `the monitor answered ${answer.status}`);
  return body;
}
