// The page: one stream of looks, tables that keep their rows, details on demand, actions.

const KEPT = 900, QUIET = 6, at = (id) => document.getElementById(id);
let points = [], charts = new Map(), mayAct = false, token = "", everyone = null, latest = null, silence = 0;

function knownToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token") || "";
}

function ask(path, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { ...options, headers: { ...headers, ...options.headers } });
}

// The stream

async function follow() {
  for (;;) {
    const stream = new AbortController();
    try {
      expectNews(stream); // there is some each second
      const answer = await ask("api/events", { signal: stream.signal });
      if (answer.status === 401) { showDoor(); return; }
      if (!answer.ok) throw new Error(`the monitor answered ${answer.status}`);
      mayAct = answer.headers.get("X-May-Act") === "1";
      at("door").hidden = true;
      at("main").hidden = false;
      await read(answer.body.getReader(), stream);
    } catch (problem) {
      lost(`no connection to the monitor (${problem.message}); trying again`);
    } finally {
      clearTimeout(silence);
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

function expectNews(stream) { // a connection that hangs ends with the reason
  clearTimeout(silence);
  silence = setTimeout(() => stream.abort(new Error(`it has said nothing for ${QUIET} s`)), QUIET * 1000);
}

async function read(reader, stream) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("it ended");
    expectNews(stream);
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [event, data] = part.split("\n");
      heard(event.slice(7), JSON.parse(data.slice(6)));
    }
  }
}

function heard(event, data) {
  if (event === "history") points = data;
  if (event === "trouble") lost(data.reason);
  if (event !== "fleet") return;
  points.push(data.point);
  if (points.length > KEPT) points.splice(0, points.length - KEPT);
  latest = data.fleet;
  at("live").className = "";
  at("live").textContent = `live · ${new Date(latest.at * 1000).toLocaleTimeString()}`;
  if (!document.hidden) show(latest);
}

function lost(why) {
  at("live").className = "lost";
  at("live").textContent = why;
}

function showDoor() {
  at("door").hidden = false;
  at("main").hidden = true;
  lost(token ? "that token was refused" : "a token is needed");
  at("token").focus();
}

// What is shown

function show(fleet) {
  const server = fleet.server;
  at("where").textContent = `run ${fleet.run} · ${server.where} · ${server.version} · ${bytes(server.used_memory)}`;
  showNotes(fleet);
  showCharts(fleet);
  fill("queues", [["queue"], ["waiting", 1], ["oldest", 1], ["running", 1], ["workers", 1], ["done", 1], ["failed", 1], ["verdict"]],
    fleet.queues, (q) => q.name, (q) => [q.name, q.depth, q.depth ? age(q.oldest) : "", q.running, q.workers,
      q.counters.finished || 0, q.counters.failed || 0, q.reason || q.verdict],
    (q) => q.verdict === "no workers" ? "bad" : ["held back", "suspended"].includes(q.verdict) ? "warn" : "");
  fill("gates", [["gate"], ["in flight", 1], ["limit", 1], ["waiting", 1], ["oldest wait", 1], ["granted", 1], ["expired", 1], ["timeouts", 1], ["state"], ["action"]],
    fleet.gates, (g) => g.name, (g) => [g.name, g.in_flight, g.limit ?? "–", g.waiting, g.waiting ? age(g.oldest_wait) : "",
      g.granted, g.expired, g.timeouts, gateState(g), null],
    (g) => g.paused || (gateState(g) === "full" && g.waiting) ? "warn" : "", gateActions);
  for (const row of at("gates").tBodies[0].rows) {
    if (row.item) row.querySelector("button").textContent = row.item.paused ? "Resume" : "Pause";
  }
  showWorkers(fleet);
  fill("tasks", [["task"], ["open", 1], ["ready", 1], ["leased", 1], ["delivered", 1], ["discarded", 1], ["quarantined", 1], ["items", 1], ["bytes", 1], ["mean reward", 1], ["rollout"]],
    fleet.tasks, (t) => t.name, (t) => [t.name, ...["open", "ready", "leased", "delivered", "discarded", "quarantined"].map((s) => t.groups[s] || 0),
      t.counters.stored || 0, bytes(t.bytes), t.mean_reward === null ? "–" : t.mean_reward.toFixed(3), t.rollout],
    (t) => t.rollout === "failed" ? "bad" : t.groups.quarantined ? "warn" : "");
  const byAge = (counts) => Object.entries(counts).filter(([, n]) => n).sort(([a], [b]) => b - a).map(([a, n]) => `${a}: ${n}`).join(", ");
  const mean = (seconds) => seconds ? age(seconds) : "–";
  fill("versions", [["task"], ["version", 1], ["line", 1], ["taken", 1], ["under way by age"], ["ready by age"], ["slots", 1], ["parked", 1], ["again", 1], ["asks", 1], ["made in", 1], ["dropped ones in", 1], ["waits for", 2]],
    fleet.tasks.filter((t) => t.versions), (t) => t.name, ({ name, versions: v, generation_seconds: s }) => [name, v.version, v.line, v.taken,
      byAge(v.outstanding), byAge(v.ready), v.slots, v.parked, v.again, v.waiting, mean(s.delivered), mean(s.dropped),
      v.waits_for.map((w) => w.instance_id || w.slot).join(", ")], () => "");
  showSandboxes(fleet);
  const heads = [["group"], ["task"], ["round", 1], ["state"], ["items", 1]];
  const cells = (g) => [link(String(g.instance_id), () => openGroup(g)), g.task, g.round, g.state, g.items];
  const key = (g) => `${g.task}/${g.instance_id}/${g.round}`;
  fill("quarantine", [...heads, ["reason", 2], ["action"]], fleet.quarantine, key, (g) => [...cells(g), g.reason, null], () => "warn", (g) =>
    button("Requeue", () => act(`api/groups/${encodeURIComponent(g.task)}/requeue`, { instance_id: g.instance_id, round: g.round })));
  fill("groups", [...heads, ["age", 1]], fleet.groups, key, (g) => [...cells(g), age(fleet.at - g.since)], () => "");
  const jobHeads = [["job"], ["queue"], ["what", 3], ["worker"], ["ended", 1], ["waited", 1], ["took", 1], ["tries", 1]];
  const jobCells = (j) => [link(j.id, () => openJob(j.id)), j.queue, j.description.replace(` ${j.id}`, ""), j.worker.slice(0, 24), j.ended ? `${age(fleet.at - j.ended)} ago` : "",
    j.waited === null ? "" : age(j.waited), j.took === null ? "" : age(j.took), j.attempts];
  fill("failed", [...jobHeads, ["action"]], fleet.failed, (j) => j.id, (j) => [...jobCells(j), null], () => "bad",
    (j) => button("Requeue", () => act(`api/jobs/${encodeURIComponent(j.id)}/requeue`)));
  fill("recent", jobHeads, fleet.recent, (j) => j.id, jobCells, () => "");
}

function showNotes(fleet) {
  const said = fleet.notes.length ? fleet.notes : ["all is well"];
  const list = at("notes");
  if (list.dataset.said === said.join("\n")) return; // else it would be read out every second
  list.dataset.said = said.join("\n");
  list.replaceChildren(...said.map((note) => {
    const item = document.createElement("li");
    item.textContent = note;
    item.className = !fleet.notes.length ? "well" : /no worker|silent|cannot reach|could not be ended|rollout failed/.test(note) ? "bad" : "";
    return item;
  }));
}

function showCharts(fleet) {
  const host = at("charts");
  const have = (key, title, series, tell) => charts.has(key) || charts.set(key, new Chart(host, title, series, tell));
  have("queue", "Jobs", [["waiting", (p) => p.depth], ["running", (p) => p.running]]);
  have("rate", "Throughput", [["done", (p) => p.done_per_second]], (n) => `${shortly(n)}/s`);
  have("latency", "Latency, median", [["waited", (p) => p.wait_median], ["took", (p) => p.took_median]], (n) => (n === null ? "–" : age(n)));
  have("workers", "Workers", [["busy", (p) => p.workers.busy || 0], ["idle", (p) => p.workers.idle || 0], ["dead", (p) => p.workers.dead || 0]]);
  have("groups", "Groups", ["open", "ready", "leased", "quarantined"].map((s) => [s, (p) => p.groups[s] || 0]));
  if (fleet.registries.length) have("sandboxes", "Session sandboxes", [["starting", (p) => (p.sandboxes.CREATING || 0) + (p.sandboxes.STARTING || 0)],
    ["ready", (p) => p.sandboxes.READY || 0], ["ending", (p) => p.sandboxes.TERMINATING || 0], ["failing", (p) => p.sandboxes.failing || 0]]);
  have("reward", "Mean reward since the last read", [["reward", (p) => p.mean_reward]]);
  if (!charts.has("rewards")) charts.set("rewards", new Bars(host, "Rewards"));
  for (const gate of fleet.gates.slice(0, 6)) {
    const read = (n) => (p) => (p.gates[gate.name] ? p.gates[gate.name][n] : null);
    have(`gate ${gate.name}`, `Gate ${gate.name}`, [["in flight", read(0)], ["limit", read(1)], ["waiting", read(2)]]);
  }
  const seconds = Math.min(KEPT, Math.max(60, points[points.length - 1].at - points[0].at));
  for (const chart of charts.values()) chart.draw(points, seconds);
}

function showSandboxes(fleet) {
  const path = (run) => `api/sandboxes/${encodeURIComponent(run)}`;
  const starting = (r) => ["WAITING", "CREATING", "STARTING"].reduce((sum, state) => sum + (r.states[state] || 0), 0);
  fill("registries", [["run"], ["starting", 1], ["ready", 1], ["ending", 1], ["failing", 1], ["opened", 1], ["ended", 1], ["reaped", 1], ["strays", 1], ["reaper"], ["action"]],
    fleet.registries, (r) => r.run, (r) => [r.run, starting(r), r.states.READY || 0, r.states.TERMINATING || 0, r.failing,
      ...["opened", "ended", "reaped", "strays"].map((what) => r.counters[what] || 0), r.reaper || "none", null],
    (r) => r.failing ? "bad" : Object.keys(r.states).length && !r.reaper ? "warn" : "", (r) => button("Reap", () => act(`${path(r.run)}/reap`)));
  fill("sandboxes", [["sandbox"], ["id"], ["run"], ["provider"], ["state"], ["session"], ["owner"], ["since", 1], ["tries", 1], ["last failure", 2], ["action"]],
    fleet.sandboxes, (b) => `${b.run}/${b.name}`, (b) => [b.name, b.id.startsWith(b.name) ? b.id.slice(b.name.length) : b.id, b.run, b.provider, b.state.toLowerCase(), b.session, b.owner,
      b.since ? `${age(fleet.at - b.since)} ago` : "", b.tries || "", b.trouble, null],
    (b) => b.failing ? "bad" : "", (b) => button("End", () => act(`${path(b.run)}/${encodeURIComponent(b.name)}/end`)));
}

function showWorkers(fleet) {
  const states = Object.entries(fleet.worker_states).map(([state, n]) => `${n} ${state}`).join(", ");
  at("worker-states").textContent = states || "none";
  const wanted = at("find-worker").value.toLowerCase();
  const listed = (everyone || fleet.workers).filter((w) => !wanted || `${w.name} ${w.state} ${w.host} ${w.job} ${w.queues}`.toLowerCase().includes(wanted));
  fill("workers", [["worker"], ["state"], ["queues"], ["gate"], ["running", 1], ["oldest job"], ["since", 1], ["done", 1], ["failed", 1], ["masked", 1], ["last heartbeat", 1], ["host"], ["pid", 1]],
    listed.slice(0, 100), (w) => w.name, (w) => [w.name.slice(0, 24), w.state, w.queues.join(", "), w.gate, w.running,
      w.job ? link(w.job, () => openJob(w.job)) : "", w.job_since ? age(fleet.at - w.job_since) : "", w.finished, w.failed, w.masked, `${age(w.silent)} ago`, w.host, w.pid],
    (w) => (w.state === "dead" ? "bad" : w.state === "suspended" ? "warn" : ""));
}

function gateState(gate) {
  return gate.paused ? "paused" : gate.limit !== null && gate.in_flight >= gate.limit ? "full" : "open";
}

function gateActions(gate) {
  const box = document.createElement("span"), path = `api/gates/${encodeURIComponent(gate.name)}`;
  const turn = button("", () => {
    const now = latest.gates.find((one) => one.name === gate.name);
    act(path, { paused: !(now && now.paused) });
  });
  const limit = document.createElement("input");
  limit.type = "number"; limit.min = "1"; limit.className = "limit"; limit.disabled = !mayAct;
  limit.placeholder = "limit";
  limit.setAttribute("aria-label", `New limit of gate ${gate.name}`);
  limit.onkeydown = (event) => { if (event.key === "Enter" && limit.value) { act(path, { limit: Number(limit.value) }); limit.value = ""; } };
  box.append(turn, " ", limit);
  return box;
}

// Details and actions

async function openJob(id) {
  const answer = await ask(`api/jobs/${encodeURIComponent(id)}`), job = await answer.json();
  if (!answer.ok) return say(job.message);
  const call = job.call || {}, ran = job.result && (job.result.run_result || job.result.compile_result);
  const facts = ["status", "origin", "worker_name", "enqueued_at", "started_at", "ended_at"].filter((name) => job[name]);
  detail(`Job ${id}`, [
    ["", facts.map((name) => `${name.replace("_", " ")}: ${job[name]}`).join("\n")],
    ["Program", call.code], ["Call", call.code ? "" : [call.function, call.note, call.arguments && JSON.stringify(call.arguments)].filter(Boolean).join("\n")],
    ["Output", ran && ran.stdout], ["Errors it printed", ran && ran.stderr], ["How it failed", job.error],
    ["Request", call.request && JSON.stringify(call.request, null, 1)],
    ["Result", job.result === null ? "" : JSON.stringify(job.result, null, 1)],
  ]);
}

async function openGroup(group) {
  const asked = new URLSearchParams({ instance_id: group.instance_id, round: group.round });
  const answer = await ask(`api/groups/${encodeURIComponent(group.task)}?${asked}`), found = await answer.json();
  if (!answer.ok) return say(found.message);
  detail(`Group ${group.instance_id}, round ${group.round}`, [
    ["", `task ${group.task}, ${group.state}, ${found.in_all} items`], ["Reason", group.reason],
    ...found.items.map((item, n) => [`Item ${n + 1}`, JSON.stringify(item, null, 1)]),
  ]);
}

function detail(title, parts) {
  at("detail-title").textContent = title;
  at("detail-body").replaceChildren(...parts.filter(([, text]) => text).flatMap(([head, text]) => {
    const title = document.createElement("h3"), body = document.createElement("pre");
    title.textContent = head;
    body.textContent = text;
    return head ? [title, body] : [body];
  }));
  at("detail").showModal();
}

async function act(path, body) {
  const headers = { "Content-Type": "application/json" }; // what is not JSON is refused
  const answer = await ask(path, { method: "POST", headers, body: body && JSON.stringify(body) });
  const said = await answer.json().catch(() => ({}));
  say(answer.ok ? "done" : said.message || `refused (${answer.status})`);
}

function say(text) {
  at("said").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (at("said").textContent = ""), 4000);
}

function age(seconds) {
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let n = 0;
  for (; count >= 1000 && n < 4; n++) count /= 1000;
  return `${Math.round(count * 10) / 10} ${units[n]}`;
}

at("door").onsubmit = (event) => {
  event.preventDefault();
  token = at("token").value;
  sessionStorage.setItem("token", token);
  follow();
};
at("all-workers").onclick = async () => {
  if (everyone) { everyone = null; at("all-workers").textContent = "List all"; return latest && showWorkers(latest); }
  const answer = await ask("api/fleet?workers=10000");
  if (!answer.ok) return say(`refused (${answer.status})`);
  everyone = (await answer.json()).workers;
  at("all-workers").textContent = "List the first";
  showWorkers(latest);
};
at("find-worker").oninput = () => latest && showWorkers(latest);
document.addEventListener("visibilitychange", () => { if (!document.hidden && latest) show(latest); });
window.addEventListener("resize", () => latest && showCharts(latest));
token = knownToken();
follow();
