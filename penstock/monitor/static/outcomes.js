// How programs end, in one order and one colour each, wherever they are shown.

import { h } from "./dom.js";
import { part, whole } from "./format.js";

// [word, colour, what it means]
export const OUTCOMES = [
  ["finished", 3, "ran to its end and returned 0, or passed all its cases"],
  ["wrong", 6, "its first failed case printed something else"],
  ["error", 2, "it failed: an exit code, a signal, or it did not compile"],
  ["timeout", 4, "it ran out of time"],
  ["memory", 5, "it ran out of memory"],
  ["limit", 1, "it printed too much, or had too many processes"],
  ["data", 1, "its case or its checker is broken, and nothing is known of the program"],
  ["masked", 8, "our side failed, and nothing is known of the program"],
  ["unknown", 7, "an older worker ran it, and does not say"],
];
export const ENDS = [...OUTCOMES.slice(0, 8), ["failed", 8, "the job itself raised an error"], ["functions", 7, "a function of yours returned"], OUTCOMES[8]];
const BAD = ["wrong", "error", "timeout", "memory", "limit", "data", "masked"];

export const total = (programs) => OUTCOMES.reduce((sum, [word]) => sum + (programs[word] || 0), 0);
export const unhappy = (programs) => BAD.reduce((sum, word) => sum + (programs[word] || 0), 0);

// `12 % timeout, 3 % memory`: what did not finish, the most frequent first.
export function troubles(programs) {
  const all = total(programs);
  return BAD.filter((word) => programs[word]).sort((a, b) => programs[b] - programs[a])
    .map((word) => `${part(programs[word], all)} ${word}`).join(", ");
}

// A bar of shares, with its figures as its title and beside it.
export function shares(programs, { address } = {}) {
  const all = total(programs), bar = h("div", { class: "shares" });
  for (const [word, colour, means] of OUTCOMES) {
    const count = programs[word] || 0;
    if (!count) continue;
    const piece = h("span", { title: `${whole(count)} ${word}: ${means}` });
    piece.style.flexGrow = count;
    piece.style.background = `var(--c${colour})`;
    bar.append(piece);
  }
  const words = OUTCOMES.filter(([word]) => programs[word]).map(([word, colour, means]) => {
    const mark = h("i");
    mark.style.background = `var(--c${colour})`;
    const text = `${word} ${whole(programs[word])} (${part(programs[word], all)})`;
    return h("span", { title: means }, mark, address && word !== "unknown" ? h("a", { href: address(word) }, text) : text);
  });
  return h("div", { class: "outcome" }, bar, h("div", { class: "legend" }, words));
}
