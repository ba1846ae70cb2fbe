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

// Facts as a list: [name, text or element] each; those without a value are left out.
export function facts(rows) {
  return h("dl", { class: "facts" }, rows
    .filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
