// The site's search: a page whose title has the question's words comes first, and a guide before the rest.

const asked = (new URLSearchParams(location.search).get("q") || "").toLowerCase().match(/[a-z0-9_]{3,}/g) || [];

var Scorer = {
  score([page, title, , , score]) {
    const said = title.toLowerCase();
    const named = asked.filter((word) => said.includes(word.replace(/(ing|ed|es|s)$/, ""))).length;
    const room = page.includes("/guide/") ? 3 : /CHANGELOG|\/inside\//.test(page) ? -5 : 0;
    return score + 10 * named + room;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
