// Every change is confirmed, says who made it, and says what came of it.

import { Refused, keepWho, post, who } from "./api.js";
import { at, button, h } from "./dom.js";
import { live } from "./live.js";

const READ_ONLY = "This monitor only shows: it was started without PENSTOCK_MONITOR_TOKEN";

// A button that asks before it acts. `text` says what will happen; `then` runs after it did. What
// is sent may be a `post` of its own, if one call is not enough.
export function action(label, { title, text, send, then, look = "" }) {
  const made = button(label, async () => {
    const wanted = await send();
    if (!wanted || !(await confirmed(title || `${label}?`, wanted.text || text, label))) return;
    await run(wanted.post || (() => post(wanted.to, wanted.body)), then);
  }, { look });
  made.dataset.acts = "";
  allow(made);
  return made;
}

// Whether changes are taken is known with the first look, perhaps after the page was made.
export function allowAll() {
  for (const made of document.querySelectorAll("button[data-acts]")) allow(made);
}

function allow(made) {
  if (made.disabled === !live.mayAct) return;
  made.disabled = !live.mayAct;
  made.title = live.mayAct ? "" : READ_ONLY;
}

export function confirmed(title, text, label) {
  const dialog = at("confirm");
  at("confirm-title").textContent = title;
  at("confirm-text").replaceChildren(...[text].flat().map((line) => h("p", {}, line)));
  at("confirm-yes").textContent = label;
  at("who").value = who();
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    const yes = dialog.returnValue === "yes";
    if (yes) keepWho(at("who").value.trim());
    done(yes);
  }, { once: true }));
}

async function run(send, then) {
  try {
    const answer = await send();
    const refused = answer.refused || [];
    const done = answer.done === 0 ? "no job matched" : "done";
    say(refused.length ? `${answer.done} done, ${refused.length} refused: ${refused[0].id}: ${refused[0].why}` : done);
    if (then) await then(answer);
  } catch (problem) {
    if (!(problem instanceof Refused) && !(problem instanceof TypeError)) throw problem;
    say(problem.message);
  }
}

export function say(text) {
  at("said").textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (at("said").textContent = ""), 6000);
}
