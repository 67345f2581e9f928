"use strict";
/* The page of texts: the filters, which are stored in the address, the list, and keyboard shortcuts. */

const PAGE = 20;
const FIELDS = ["q", "sort", "seed", "a", "b", "differ", "grader", "setting", "k", "outcome", "request", "skill", "topic"];
let turn = 0;
let current = null;
let single = null;

/* The address contains names instead of numbers, so that a link also works in another report on the same run. */
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  single = singleText(given);
  for (const field of FIELDS) byId(field).value = given.get(field) ?? "";
  if (byId("sort").value === "random" && byId("seed").value === "") byId("seed").value = "0";
  return FIELDS.filter((field) => given.get(field) && byId(field).value !== given.get(field)).map((field) => given.get(field));
}

/* text=RUN/STUDENT/COMBINATION/GENERATION or combination=COMBINATION; null if the address has neither. */
function singleText(given) {
  if (given.has("combination")) return { combination: given.get("combination"), a: null, generation: null };
  const parts = given.has("text") ? given.get("text").split("/") : [];
  if (parts.length < 4) return null;
  const [combination, generation] = parts.slice(-2);
  return { combination, a: numberOf(index.students, parts.slice(0, -2).join("/")), generation: Number(generation) };
}

async function readFilters() {
  const given = Object.fromEntries(FIELDS.map((field) => [field, byId(field).value.trim()]));
  const number = (list, key) => (key === "" ? null : numberOf(list, key));
  const wanted = {
    needle: given.q.toLowerCase(),
    sort: given.sort, seed: given.seed || "0", differ: given.differ,
    a: number(index.students, given.a), b: number(index.students, given.b), grader: number(index.graders, given.grader),
    setting: given.setting, k: given.k === "" ? null : Number(given.k), outcome: given.outcome, request: given.request,
    skillNumbers: numbersLike(index.skills, given.skill), topicNumbers: numbersLike(index.topics, given.topic),
    combination: null, generation: null, pairs: null, ...single,
  };
  if (wanted.differ && wanted.a !== null && wanted.b !== null) wanted.pairs = await differingPairs(wanted);
  wanted.ranges = rangesOf(wanted);
  return wanted;
}

async function showTexts() {
  const mine = ++turn;
  byId("list").dataset.state = "searching";
  byId("only").hidden = single === null;
  adaptFields();
  try {
    const wanted = await readFilters();
    const view = { mine, wanted, hits: [], shown: 0, seen: 0, texts: 0, unscored: 0, isOver: false };
    current = view;
    explainMarks(wanted);
    for await (const { hits, seen } of scan(wanted)) {
      if (mine !== turn) return;
      count(view, hits, seen);
      if (!wanted.sort && view.shown === 0 && view.hits.length >= PAGE) await nextPage(view);
      if (mine !== turn) return;
      if (view.shown) describe(view);
    }
    if (mine !== turn) return;
    view.isOver = true;
    if (wanted.sort) view.hits.sort((x, y) => x.key - y.key || x.number - y.number);
    if (view.shown === 0) await nextPage(view);
    if (mine !== turn) return;
    describe(view);
    byId("list").dataset.state = "done";
  } catch (problem) {
    if (mine === turn) byId("status").textContent = `The data cannot be read: ${problem.message}.`;
  }
}

function count(view, hits, seen) {
  for (const hit of hits) { view.hits.push(hit); view.texts += hit.left.length; view.unscored += hit.unscored; }
  view.seen += seen;
}

async function nextPage(view) {
  const hits = view.hits.slice(view.shown, view.shown + PAGE);
  const combinations = await Promise.all(hits.map((hit) => item("texts", hit.number)));
  if (view.mine !== turn) return;
  const made = hits.map((hit, at) => (combinations[at] ? card(hit, combinations[at], view.wanted) : element("p", "note", "A combination with more text than a page can show; the journal has it.")));
  if (view.shown === 0) byId("list").replaceChildren(...made); else byId("list").append(...made);
  view.shown += hits.length;
  describe(view);
}

function describe(view) {
  const total = view.wanted.ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0);
  byId("more").hidden = view.shown >= view.hits.length;
  byId("status").textContent = statusLine(view, total);
}

function statusLine(view, total) {
  if (view.wanted.a === -1 || view.wanted.combination && view.isOver && !view.hits.length) return "This report has no such text.";
  if (view.isOver && !view.hits.length) return view.wanted.pairs ? "A and B differ on no combination that fits." : `No text fits (${many(total, "combination")} looked through).`;
  const unscored = view.unscored ? ` (${view.unscored.toLocaleString("en")} of them in no score, such as texts for data sets)` : "";
  const hits = `${many(view.texts, "text")}${unscored} of ${many(view.hits.length, "combination")}`;
  const rest = view.shown < view.hits.length ? `; the first ${view.shown.toLocaleString("en")} combinations are shown` : "";
  return view.isOver ? `${hits}${rest}.` : `${hits} so far, ${view.seen.toLocaleString("en")} of ${total.toLocaleString("en")} combinations looked through…`;
}

/* Explains the marked points. */
function explainMarks(wanted) {
  const between = wanted.b !== null ? "A and B" : wanted.sort === "disagreement" ? "graders" : "";
  byId("legend").hidden = !between;
  byId("legend").textContent = `Filled points with a thick frame differ between ${between}.${wanted.pairs ? " Each side shows its best text." : ""}`;
}

/* Shows fields that depend on other fields only when they apply. */
function adaptFields() {
  byId("seed-label").hidden = byId("sort").value !== "random";
  byId("differ-label").hidden = !(byId("a").value && byId("b").value);
  if (byId("differ-label").hidden) byId("differ").value = "";
}

function fillForms() {
  const students = index.students.map((entry) => [keyOf(entry), nameOf(entry)]);
  fillSelect("sort", [["worst", "fewest points first"], ["disagreement", "graders disagree most"], ["random", "random, by seed"]], "order of the draw");
  byId("sort").options[2].disabled = index.graders.length < 2;
  fillSelect("a", students, "every student");
  fillSelect("b", students, "nobody");
  fillSelect("differ", [["any", "differ"], ["won", "differ, B is better"], ["lost", "differ, A is better"]], "all combinations");
  fillSelect("grader", index.graders.map((entry) => [keyOf(entry), nameOf(entry)]), "every grader");
  fillSelect("setting", [...new Set(index.cells.map((cell) => cell[2]))].map((name) => [name, name]), "every setting");
  fillSelect("k", [...new Set(index.cells.map((cell) => cell[3]))].sort((x, y) => x - y).map((k) => [k, k]), "every k");
  const named = index.outcome_runs ?? [];
  const outcomes = [...(named.length < index.runs.length ? OUTCOMES : []), ...(named.length ? [...NAMED_OUTCOMES, "undecided"] : [])];
  fillSelect("outcome", [...outcomes, ...Object.keys(FLAGS)].map((name) => [name, name]), "every outcome");
  fillSelect("request", [["probes", "probes"], ["controls", "controls"]], "probes and controls");
  byId("request-label").hidden = !named.length;
  for (const [id, names] of [["skills", index.skills], ["topics", index.topics]]) {
    byId(id).replaceChildren(...[...names].sort().map((name) => option(name, "")));
  }
  byId("panel").open = !matchMedia("(max-width: 760px)").matches;
}

function changed() {
  single = null;
  if (byId("sort").value === "random" && byId("seed").value === "") byId("seed").value = "0";
  adaptFields();
  const fields = Object.fromEntries(FIELDS.map((field) => [field, byId(field).value.trim()]));
  if (fields.sort !== "random") fields.seed = "";
  history.replaceState(null, "", address(fields));
  showTexts();
}

function followAddress() {
  const unknown = readAddress();
  if (!unknown.length) { showTexts(); return; }
  turn += 1;
  byId("list").replaceChildren();
  byId("more").hidden = true;
  byId("status").replaceChildren(words(`This report does not have ${unknown.join(", ")}.`));
  byId("only").hidden = false;
  byId("list").dataset.state = "done";
}

/* Keyboard shortcuts. */
async function step(by) {
  const cards = () => [...document.querySelectorAll(".card")];
  const at = cards().indexOf(document.activeElement.closest(".card"));
  if (by > 0 && at === cards().length - 1 && !byId("more").hidden) await nextPage(current);
  const next = cards()[Math.max(0, at + by)];
  if (!next) return;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "start" });
}

function openFirst(label) {
  const here = document.activeElement.closest(".card") || document.querySelector(".card");
  const found = here && [...here.querySelectorAll(".actions button")].find((control) => control.textContent.startsWith(label));
  if (found) found.click();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  o: () => openFirst("Votes"),
  c: () => openFirst("Conversation"),
  "/": () => { byId("panel").open = true; byId("q").focus(); byId("q").select(); },
  "?": () => { if (!byId("help").open) byId("help").showModal(); },
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || byId("help").open) return;
  const isField = event.target instanceof Element && event.target.matches("input, select, textarea");
  if (isField) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

async function start() {
  try { index = await load("index", 0); } catch (problem) { byId("status").textContent = `${problem.message}.`; return; }
  fillForms();
  fillDefinitions();
  let delay = 0;
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  /* A selection applies immediately; typed text applies after a pause. */
  byId("filters").addEventListener("input", (event) => {
    clearTimeout(delay);
    if (event.target.tagName === "SELECT") changed(); else delay = setTimeout(changed, 120);
  });
  byId("clear").addEventListener("click", () => { for (const field of FIELDS) byId(field).value = ""; changed(); });
  byId("keys").addEventListener("click", KEYS["?"]);
  byId("all").addEventListener("click", (event) => { event.preventDefault(); byId("clear").click(); });
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("found").focus(); });
  byId("more").addEventListener("click", () => nextPage(current));
  document.addEventListener("keydown", pressed);
  window.addEventListener("hashchange", followAddress);
  followAddress();
}

start();
