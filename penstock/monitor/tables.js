// Tables keep their rows, so that focus and what is being typed stay where they are.

function fill(id, heads, rows, keyOf, cellsOf, classOf, actionOf) {
  const table = at(id);
  if (!table.tHead) {
    const head = table.createTHead().insertRow();
    for (const [text, kind] of heads) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      if (kind === 1) cell.className = "number";
      head.append(cell);
    }
    table.createTBody();
    table.rowsByKey = new Map();
  }
  const body = table.tBodies[0], known = table.rowsByKey, live = new Set();
  rows.forEach((item, index) => {
    const key = keyOf(item);
    live.add(key);
    let row = known.get(key);
    if (!row) {
      known.set(key, (row = document.createElement("tr")));
      heads.forEach(([, kind]) => { row.insertCell().className = ["", "number", "long", "clip"][kind || 0]; });
    }
    row.item = item;
    const cells = cellsOf(item);
    cells.forEach((value, n) => put(row.cells[n], value, () => actionOf(item)));
    const look = classOf(item);
    if (row.className !== look) row.className = look;
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] || null);
  });
  for (const [key, row] of known) if (!live.has(key)) { row.remove(); known.delete(key); }
  if (table.caption) table.deleteCaption();
  for (const row of [...body.rows]) if (row.dataset.empty) row.remove();
  if (!rows.length) {
    const row = body.insertRow(), cell = row.insertCell();
    row.dataset.empty = "1";
    cell.colSpan = heads.length;
    cell.className = "empty";
    cell.textContent = "none";
  }
}

function put(cell, value, makeAction) {
  if (value === null) { if (!cell.firstChild) cell.append(makeAction()); return; }
  if (value && value.text !== undefined) {
    if (!cell.firstChild) cell.append(button(value.text, value.open, "link"));
    if (cell.firstChild.textContent !== value.text) cell.firstChild.textContent = value.text;
    cell.firstChild.onclick = value.open;
    return;
  }
  const text = String(value);
  if (cell.textContent !== text) cell.textContent = text;
}

const link = (text, open) => ({ text, open });

function button(text, deed, look = "") {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.className = look;
  made.onclick = deed;
  if (!look && !mayAct) { made.disabled = true; made.title = "This monitor only shows: it has no token"; }
  return made;
}
