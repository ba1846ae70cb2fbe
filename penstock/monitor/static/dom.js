// Elements made of text and elements alone: what others wrote is never read as HTML.

export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...nodes(children));
  return made;
}

export function nodes(children) {
  return children.flat(2)
    .filter((child) => child !== undefined && child !== null && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

export const at = (id) => document.getElementById(id);

export const link = (text, href) => h("a", { href }, text);

export function button(text, press, { look = "" } = {}) {
  return h("button", { type: "button", class: look, onclick: press }, text);
}

// Write only what has changed, so that focus, selection and screen readers stay in peace.
export function put(element, text, look) {
  if (element.textContent !== String(text)) element.textContent = text;
  if (look !== undefined && element.className !== look) element.className = look;
}

// Give an element these children. What is equal stays, and of the rest what holds it: so do focus,
// selection, and what is open. A button is never made into another: it would do what that one did.
export function renew(element, children) {
  const known = [...element.childNodes], made = nodes(children);
  made.forEach((child, n) => {
    const node = child instanceof Node ? child : document.createTextNode(child);
    const old = known[n];
    if (!old) return element.append(node);
    if (old.isEqualNode(node)) return;
    if (old.open) node.open = true;
    const alike = old instanceof Element && old.nodeName !== "BUTTON" && old.cloneNode().isEqualNode(node.cloneNode());
    if (alike) renew(old, [...node.childNodes]);
    else old.replaceWith(node);
  });
  for (const old of known.slice(made.length)) old.remove();
}

// Say why something could not be read. What was shown of it goes if there is no such thing any more.
export function missing(said, rest, problem) {
  put(said, `${problem.message}.`, "sentence warn");
  rest.hidden = problem.status === 404;
}

// Facts as a list: [name, text or element] each; those without a value are left out.
export function facts(rows) {
  return h("dl", { class: "facts" }, rows
    .filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
