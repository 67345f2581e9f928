"use strict";
/* The comparison of two students. All numbers and intervals were computed with the report; this page only shows them. */

const SVG = "http://www.w3.org/2000/svg";
const CHART = { width: 220, height: 22, margin: 6 };
let round = 0;

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/* The difference as a dot and its interval as a line, between −1 and 1. */
function chart(row, isSwapped) {
  const { width, height, margin } = CHART;
  const sign = isSwapped ? -1 : 1;
  const x = (value) => (margin + (value * sign + 1) / 2 * (width - 2 * margin)).toFixed(1);
  const made = drawn("svg", { class: "whisker", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  made.append(drawn("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: height }));
  const [difference, low, high] = row.bounds;
  if (low !== null) made.append(drawn("line", { class: "interval", x1: x(low), x2: x(high), y1: height / 2, y2: height / 2 }));
  const side = row.clear * sign;
  made.append(drawn("circle", { class: side > 0 ? "better" : side < 0 ? "worse" : "open", cx: x(difference), cy: height / 2, r: 4.5 }));
  return made;
}

/* The report's verdict is on B minus A, so swapping A and B turns a gain into a loss. The p-value has its own column. */
function verdictOf(row, isSwapped) {
  const [verdict] = row.verdict.split(",");
  if (!isSwapped || !row.clear) return verdict;
  return verdict === "a gain" ? "a loss" : "a gain";
}

function textLink(fields, count, what) {
  if (!count) return element("span", "", "0");
  const link = element("a", "", count.toLocaleString("en"));
  link.href = `texts.html${address(fields)}`;
  link.setAttribute("aria-label", `${many(count, "combination")} ${what}: read the texts`);
  return link;
}

function rowOf(row, chosen, heads) {
  const { isSwapped } = chosen;
  const [first, second] = isSwapped ? [row.values[1], row.values[0]] : row.values;
  const [wins, losses] = isSwapped ? [row.losses, row.wins] : [row.wins, row.losses];
  const run = index.students[chosen.a][0];
  const fields = { a: keyOf(index.students[chosen.a]), b: keyOf(index.students[chosen.b]), grader: `${run}/${row.grader}`, setting: row.setting, k: row.k };
  const [estimate, ...interval] = row.differences[isSwapped ? 1 : 0].split(" ");
  const head = element("th", "short", `k = ${row.k}`);
  head.scope = "row";
  const cell = (className, ...children) => element("td", className, ...children);
  return element("tr", "", head, ...(heads.grader ? [labelled("td", "short", row.grader)] : []),
    cell("number", element("b", "", estimate), " ", element("span", "interval", interval.join(" "))),
    cell("chart", chart(row, isSwapped)), cell("number", first), cell("number", second), cell("number", row.corrected), cell("short", verdictOf(row, isSwapped)),
    cell("number", textLink({ ...fields, differ: "won" }, wins, "on which B is better")),
    cell("number", row.ties.toLocaleString("en")),
    cell("number", textLink({ ...fields, differ: "lost" }, losses, "on which A is better")),
    cell("number", row.combinations.toLocaleString("en")), cell("number", row.needed));
}

function tableHead(chosen, heads) {
  const names = [["k", ""], ...(heads.grader ? [["grader", ""]] : []), ["difference", "number"], ["A better – B better", "chart"], [studentName(chosen.a), "number"], [studentName(chosen.b), "number"], ["p, corrected", "number"], ["verdict", ""], ["wins", "number"], ["ties", "number"], ["losses", "number"], ["combinations", "number"], ["still needed", "number"]];
  return element("tr", "", ...names.map(([name, className]) => {
    const made = labelled("th", className, name);
    made.scope = "col";
    return made;
  }));
}

function body(setting, rows, chosen, heads) {
  const width = heads.grader ? 13 : 12;
  const title = element("th", "", labelled("span", "", `setting ${setting}`));
  title.colSpan = width;
  title.scope = "rowgroup";
  return element("tbody", "", element("tr", "body-heading", title), ...rows.map((row) => rowOf(row, chosen, heads)));
}

function say(text) {
  byId("verdict").replaceChildren(words(text));
}

async function showPair() {
  const mine = ++round;
  const [a, b] = ["a", "b"].map((id) => numberOf(index.students, byId(id).value));
  byId("result").hidden = true;
  const problem = reasonAgainst(a, b);
  if (problem) { say(problem); document.body.dataset.state = "done"; return; }
  const pair = pairOf(a, b);
  const chosen = { a, b, isSwapped: pair.isSwapped };
  const all = await Promise.all(pair.rows.map((number) => item("pairs", number)));
  if (mine !== round) return;
  fillChoices(all);
  const rows = all.filter((row) => row && (!byId("grader").value || row.grader === byId("grader").value) && (!byId("setting").value || row.setting === byId("setting").value));
  const heads = { grader: new Set(rows.map((row) => row.grader)).size > 1 };
  say(pair.sentences[pair.isSwapped ? 1 : 0]);
  const table = byId("rows");
  table.tHead.replaceChildren(tableHead(chosen, heads));
  while (table.tBodies.length) table.tBodies[0].remove();
  const settings = [...new Set(rows.map((row) => row.setting))];
  table.append(...settings.map((setting) => body(setting, rows.filter((row) => row.setting === setting), chosen, heads)));
  const fields = { a: byId("a").value, b: byId("b").value, differ: "any", setting: byId("setting").value };
  const link = element("a", "", "Read all texts on which A and B differ");
  link.href = `texts.html${address(fields)}`;
  byId("differing").replaceChildren(link);
  byId("result").hidden = false;
  document.body.dataset.state = "done";
}

function reasonAgainst(a, b) {
  if (index.students.length < 2) return "This report has one student. A comparison needs two.";
  if (a === b) return "Choose two different students.";
  if (index.students[a][0] !== index.students[b][0]) return "Choose two students of the same run, because runs draw different combinations.";
  return pairOf(a, b) ? "" : "These two students share no complete combination under one grader, or the report has too many pairs; the command skillmix compare shows any pair.";
}

/* The graders and settings of the pair; each list is hidden if it has only one entry. */
function fillChoices(rows) {
  for (const field of ["grader", "setting"]) {
    const names = [...new Set(rows.map((row) => row[field]))];
    const before = byId(field).value;
    fillSelect(field, names.map((name) => [name, name]), `every ${field}`);
    byId(field).value = names.includes(before) ? before : "";
    byId(`${field}-label`).hidden = names.length < 2;
  }
}

function changedChoice() {
  history.replaceState(null, "", address({ a: byId("a").value, b: byId("b").value }));
  showPair();
}

/* The two students in the address, or else the report's first pair. */
function readChoice() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [pair] = index.pairs;
  byId("a").value = given.get("a") ?? (pair ? `${pair[0]}/${pair[1]}` : byId("a").value);
  byId("b").value = given.get("b") ?? (pair ? `${pair[0]}/${pair[2]}` : byId("b").value);
  const unknown = ["a", "b"].filter((id) => byId(id).selectedIndex < 0).map((id) => given.get(id));
  if (!unknown.length) { showPair(); return; }
  byId("result").hidden = true;
  say(`This report does not have ${unknown.join(", ")}.`);
  document.body.dataset.state = "done";
}

async function startComparing() {
  try { index = await load("index", 0); } catch (problem) { say(`${problem.message}.`); return; }
  const compared = index.students.map((entry) => [keyOf(entry), nameOf(entry)]);
  fillSelect("a", compared, null);
  fillSelect("b", compared, null);
  byId("choice").addEventListener("submit", (event) => event.preventDefault());
  byId("choice").addEventListener("input", changedChoice);
  byId("swap").addEventListener("click", () => {
    [byId("a").value, byId("b").value] = [byId("b").value, byId("a").value];
    changedChoice();
  });
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("comparison").focus(); });
  window.addEventListener("hashchange", readChoice);
  readChoice();
}

startComparing();
