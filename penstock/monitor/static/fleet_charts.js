// Which charts the overview has. Some come with the first thing that they show.

import { Bars } from "./bars.js";
import { Chart } from "./charts.js";
import { age, shortly } from "./format.js";
import { ENDS } from "./outcomes.js";

const rate = (n) => (n === null || n === undefined ? "–" : `${shortly(n)}/s`);
const seconds = (n) => (n === null || n === undefined ? "–" : age(n));
const starting = (p) => (p.sandboxes.CREATING || 0) + (p.sandboxes.STARTING || 0);

const ALWAYS = {
  programs: () => new Chart("How jobs ended", ENDS.map(([word, colour]) => [word, (p) => p.programs[word] || 0, colour]), { tell: rate, stacked: true }),
  jobs: () => new Chart("Jobs", [["waiting", (p) => p.depth], ["running", (p) => p.running]]),
  rate: () => new Chart("Throughput", [["done", (p) => p.done_per_second]], { tell: rate }),
  latency: () => new Chart("Latency, median", [["waited", (p) => p.wait_median], ["took", (p) => p.took_median]], { tell: seconds }),
  workers: () => new Chart("Workers", [["busy", (p) => p.workers.busy || 0], ["idle", (p) => p.workers.idle || 0], ["dead", (p) => p.workers.dead || 0]]),
};
const GROUPS = {
  groups: () => new Chart("Groups", ["open", "ready", "leased", "quarantined"].map((state) => [state, (p) => p.groups[state] || 0])),
  reward: () => new Chart("Mean reward since the last read", [["reward", (p) => p.mean_reward]]),
  rewards: () => new Bars("Rewards"),
};
const SANDBOXES = {
  sandboxes: () => new Chart("Session sandboxes", [["starting", starting], ["ready", (p) => p.sandboxes.READY || 0],
    ["ending", (p) => p.sandboxes.TERMINATING || 0], ["failing", (p) => p.sandboxes.failing || 0]]),
};

export const gateChart = (name) => new Chart(`Gate ${name}`, ["in flight", "limit", "waiting"].map((what, n) => [what, (p) => (p.gates[name] ? p.gates[name][n] : null)]));

export function fleetCharts() {
  return (fleet, known) => {
    const wanted = { ...ALWAYS, ...(fleet.tasks.length ? GROUPS : {}), ...(fleet.registries.length ? SANDBOXES : {}) };
    for (const gate of fleet.gates.slice(0, 6)) wanted[`gate ${gate.name}`] = () => gateChart(gate.name);
    return Object.entries(wanted).filter(([key]) => !known.has(key)).map(([key, make]) => {
      const made = make();
      if (key === "programs") made.node.className = "wide";
      return [key, made];
    });
  };
}
