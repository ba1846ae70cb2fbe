// The stream: one look a second. It says when it is silent, and connects again. A tab that nobody
// sees takes one look, and then rests: a browser allows six connections to one server.

import { ask } from "./api.js";

const KEPT = 900, QUIET = 6, REST = 15;
export const live = { fleet: null, points: [], summary: null, lately: {}, mayAct: false, lost: "", looks: 0, since: 0, rests: false };
const listeners = new Set();
let silence = 0, current = null, wanted = 0;

export function onLook(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Again from the beginning: another token, or another run.
export function restart() {
  live.points = [];
  live.fleet = null;
  wanted++;
  if (current) current.abort(new Error("another run"));
  follow(wanted);
}

async function follow(mine) {
  while (mine === wanted) {
    const stream = (current = new AbortController());
    try {
      expectNews(stream);
      const answer = await ask("api/events", { signal: stream.signal });
      if (answer.status === 401) { live.lost = ""; return tell({ door: true }); }
      if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).message || `the monitor answered ${answer.status}`);
      live.mayAct = answer.headers.get("X-May-Act") === "1";
      await read(answer.body.getReader(), stream, mine);
      stream.abort();
      clearTimeout(silence);
      live.rests = mine === wanted;
      if (live.rests) await rest();
      live.rests = false;
      continue;
    } catch (problem) {
      if (mine === wanted) lose(`no connection to the monitor (${problem.message}); trying again`);
    } finally {
      if (current === stream) clearTimeout(silence);
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

function rest() {
  return new Promise((done) => {
    const timer = setTimeout(over, REST * 1000);
    function over() {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", over);
      done();
    }
    document.addEventListener("visibilitychange", over);
  });
}

function expectNews(stream) { // a connection that hangs ends with the reason
  clearTimeout(silence);
  silence = setTimeout(() => stream.abort(new Error(`it has said nothing for ${QUIET} s`)), QUIET * 1000);
}

// Until there is nobody to read for.
async function read(reader, stream, mine) {
  const decoder = new TextDecoder(), before = live.looks;
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("it ended");
    if (mine !== wanted) return;
    expectNews(stream);
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [event, data] = part.split("\n");
      heard(event.slice(7), JSON.parse(data.slice(6)));
    }
    if (document.hidden && live.looks > before) return;
  }
}

function heard(event, data) {
  if (event === "history") live.points = data;
  if (event === "trouble") lose(data.reason);
  if (event !== "fleet") return;
  live.points.push(data.point);
  if (live.points.length > KEPT) live.points.splice(0, live.points.length - KEPT);
  Object.assign(live, { fleet: data.fleet, summary: data.summary, lately: data.lately, lost: "", since: Date.now() });
  live.looks++;
  tell({});
}

function lose(why) {
  live.lost = why;
  tell({});
}

function tell(what) {
  for (const listener of listeners) listener(live, what);
}
