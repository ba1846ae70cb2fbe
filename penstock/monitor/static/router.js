// Addresses: `#/queues/code?state=failed`. They can be shared, and Back works. A run that is not
// the monitor's own is a part of each.

export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const names = path.split("/").filter(Boolean).map(decoded);
  return { page: names[0] || "overview", names: names.slice(1), query: new URLSearchParams(query) };
}

export function to(names = [], query = {}) {
  const run = here().query.get("run");
  const asked = new URLSearchParams(Object.entries({ ...(run ? { run } : {}), ...query }).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const path = names.map((name) => encodeURIComponent(name)).join("/");
  return `#/${path}${asked.size ? `?${asked}` : ""}`;
}

// The same page with other words in its query; without a new entry for Back if `quietly`.
export function go(query, quietly = false) {
  const now = here(), words = { ...Object.fromEntries(now.query), ...query };
  const address = to(now.page === "overview" ? [] : [now.page, ...now.names], words);
  if (quietly) {
    history.replaceState(null, "", address);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
