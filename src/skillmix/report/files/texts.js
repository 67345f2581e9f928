"use strict";
/* Shows texts with their votes. Whatever a model wrote goes in by textContent alone, and nothing that is hidden stays so. */

const PAGE = 20;
const AHEAD = 4;
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
const OUTCOMES = ["full marks", "all skills, not all else", "skills missing", "format failure", "refused", "ungraded"];

const byId = (id) => document.getElementById(id);
const waiting = new Map();
const loaded = new Map();
let index = null;
let turn = 0;

/* Data files call this. */
function skillmix(kind, number, data) {
  const name = `${kind}-${number}`;
  loaded.set(name, data);
  if (waiting.has(name)) { waiting.get(name).resolve(data); waiting.delete(name); }
}
window.skillmix = skillmix;

function load(kind, number) {
  const name = `${kind}-${number}`;
  if (loaded.has(name)) return Promise.resolve(loaded.get(name));
  if (waiting.has(name)) return waiting.get(name).promise;
  const entry = {};
  entry.promise = new Promise((resolve, reject) => { entry.resolve = resolve; entry.reject = reject; });
  waiting.set(name, entry);
  const script = document.createElement("script");
  script.src = kind === "index" ? "data/index.js" : `data/${name}.js`;
  script.onload = () => script.remove();
  script.onerror = () => { waiting.delete(name); entry.reject(new Error(`data/${name}.js is missing`)); };
  document.head.append(script);
  return entry.promise;
}

function fileOf(kind, number) {
  const starts = index.starts[kind];
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= number) low = middle; else high = middle - 1;
  }
  return low;
}

async function item(kind, number) {
  const file = fileOf(kind, number);
  const data = await load(kind, file);
  return data[number - index.starts[kind][file]];
}

/* Building blocks. */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function words(text, needle) {
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    plain(fragment, text.slice(end, match.index), needle);
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const mark = element("span", "hidden-sign");
    mark.textContent = `U+${code}`;
    mark.title = "a character that would not be seen";
    fragment.append(mark);
    end = match.index + match[0].length;
  }
  plain(fragment, text.slice(end), needle);
  return fragment;
}

function plain(fragment, text, needle) {
  if (!needle) { fragment.append(document.createTextNode(text)); return; }
  const low = text.toLowerCase();
  let from = 0;
  for (let at = low.length === text.length ? low.indexOf(needle) : -1; at >= 0; at = low.indexOf(needle, from)) {
    fragment.append(document.createTextNode(text.slice(from, at)));
    const mark = document.createElement("mark");
    mark.textContent = text.slice(at, at + needle.length);
    fragment.append(mark);
    from = at + needle.length;
  }
  fragment.append(document.createTextNode(text.slice(from)));
}

function labelled(tag, className, text, needle) {
  const made = element(tag, className);
  made.append(words(text, needle));
  return made;
}

function outcomeOf(text, points) {
  if (text[2] === "refused") return "refused";
  if (points === null || points.includes("?") && !points.includes("0")) return "ungraded";
  if (!points.includes("0")) return "full marks";
  if (text[2] === "no marker" || text[2] === "empty") return "format failure";
  return points.slice(0, -3).includes("0") ? "skills missing" : "all skills, not all else";
}

function pointsOf(text, grader) {
  for (const [name, points] of text[4]) if (grader === "" || name === Number(grader)) return [name, points];
  return [null, null];
}

const studentName = (number) => nameOf(index.students[number]);
const graderName = (number) => nameOf(index.graders[number]);
const nameOf = ([run, name]) => (index.runs.length > 1 ? `${run}: ${name}` : name);

/* The filters, in the address so that a view can be linked to. */
const FIELDS = ["q", "a", "b", "grader", "setting", "k", "outcome", "skill", "topic"];

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const cell = given.get("cell");
  if (cell !== null && index.cells[Number(cell)]) {
    const [student, grader, setting, k] = index.cells[Number(cell)];
    given.set("a", student); given.set("grader", grader); given.set("setting", setting); given.set("k", k);
  }
  for (const field of FIELDS) byId(field).value = given.get(field) ?? "";
}

function readFilters() {
  const wanted = Object.fromEntries(FIELDS.map((field) => [field, byId(field).value.trim()]));
  wanted.needle = wanted.q.toLowerCase();
  wanted.skillNumbers = numbersLike(index.skills, wanted.skill);
  wanted.topicNumbers = numbersLike(index.topics, wanted.topic);
  wanted.places = places(wanted);
  return wanted;
}

function numbersLike(names, text) {
  if (!text) return null;
  const low = text.toLowerCase();
  const exact = names.findIndex((name) => name.toLowerCase() === low);
  if (exact >= 0) return new Set([exact]);
  return new Set(names.map((name, number) => [name, number]).filter(([name]) => name.toLowerCase().includes(low)).map(([, number]) => number));
}

/* Runs of combination numbers that the setting and k leave; all of them if neither is chosen. */
function places(wanted) {
  if (!wanted.setting && !wanted.k) return index.combinations ? [[0, index.combinations - 1]] : [];
  const chosen = index.cells.filter(([student, grader, setting, k]) =>
    (!wanted.setting || setting === wanted.setting) && (!wanted.k || k === Number(wanted.k)) &&
    (wanted.a === "" || student === Number(wanted.a)) && (wanted.grader === "" || grader === Number(wanted.grader)));
  const ranges = chosen.flatMap((cell) => cell[4]).sort((x, y) => x[0] - y[0]);
  const merged = [];
  for (const [first, last] of ranges) {
    const end = merged[merged.length - 1];
    if (end && first <= end[1] + 1) end[1] = Math.max(end[1], last); else merged.push([first, last]);
  }
  return merged;
}

function* filesOf(ranges) {
  let done = -1;
  for (const [first, last] of ranges) {
    for (let file = Math.max(fileOf("texts", first), done + 1); file <= fileOf("texts", last); file += 1) { done = file; yield file; }
  }
}

/* Which texts of a combination are wanted; null if none. */
function chosenTexts(combination, wanted) {
  const [, skills, topic, texts] = combination;
  if (wanted.k && skills.length !== Number(wanted.k)) return null;
  if (wanted.skillNumbers && !skills.some((skill) => wanted.skillNumbers.has(skill))) return null;
  if (wanted.topicNumbers && !wanted.topicNumbers.has(topic)) return null;
  const named = wanted.needle && (index.topics[topic].toLowerCase().includes(wanted.needle) || skills.some((s) => index.skills[s].toLowerCase().includes(wanted.needle)));
  const fits = (text) =>
    (wanted.a === "" || text[0] === Number(wanted.a)) &&
    (wanted.grader === "" || text[4].some(([grader]) => grader === Number(wanted.grader)) || !text[4].length) &&
    (!wanted.outcome || outcomeOf(text, pointsOf(text, wanted.grader)[1]) === wanted.outcome) &&
    (!wanted.needle || named || text[3].toLowerCase().includes(wanted.needle));
  const found = texts.filter(fits);
  if (!found.length) return null;
  if (wanted.b === "") return { left: found, right: null };
  const right = texts.filter((text) => text[0] === Number(wanted.b));
  return right.length ? { left: found, right } : null;
}

/* Goes through the data file by file and shows what fits, a page at a time. */
async function* matches(wanted) {
  const files = [...filesOf(wanted.places)];
  let range = 0;
  for (let place = 0; place < files.length; place += 1) {
    for (const next of files.slice(place + 1, place + 1 + AHEAD)) load("texts", next).catch(() => {});
    const start = index.starts.texts[files[place]];
    const data = await load("texts", files[place]);
    for (let offset = 0; offset < data.length; offset += 1) {
      const number = start + offset;
      while (range < wanted.places.length && wanted.places[range][1] < number) range += 1;
      if (range >= wanted.places.length) return;
      if (number < wanted.places[range][0]) continue;
      const texts = chosenTexts(data[offset], wanted);
      yield texts && { combination: data[offset], ...texts };
    }
  }
}

let current = null;

async function show() {
  const mine = ++turn;
  const wanted = readFilters();
  byId("list").replaceChildren();
  byId("more").hidden = true;
  byId("status").textContent = "Searching…";
  current = { mine, wanted, source: matches(wanted), shown: 0, seen: 0, texts: 0 };
  await nextPage(current);
}

async function nextPage(view) {
  let added = 0;
  try {
    while (added < PAGE) {
      const { value, done } = await view.source.next();
      if (view.mine !== turn) return;
      if (done) { finish(view, true); return; }
      view.seen += 1;
      if (value) {
        byId("list").append(card(value, view.wanted));
        view.shown += 1; view.texts += value.left.length; added += 1;
      }
    }
    finish(view, false);
  } catch (problem) {
    byId("status").textContent = `The data cannot be read: ${problem.message}.`;
  }
}

function finish(view, isOver) {
  const total = view.wanted.places.reduce((sum, [first, last]) => sum + last - first + 1, 0);
  const isAll = isOver || view.seen >= total;
  const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  byId("status").textContent = view.shown === 0 ? `No text fits (${many(total, "combination")} looked through).`
    : `${many(view.texts, "text")} of ${many(view.shown, "combination")}${isAll ? "" : `, of the first ${many(view.seen, "combination")} of ${total.toLocaleString("en")}`}.`;
  byId("more").hidden = isAll;
  byId("list").dataset.state = "done";
}

function card({ combination, left, right }, wanted) {
  const [id, skills, topic] = combination;
  const chips = skills.map((skill) => labelled("span", "chip", index.skills[skill], wanted.needle));
  const head = element("header", "", labelled("h2", "", index.topics[topic], wanted.needle), element("p", "chips", ...chips));
  const made = element("article", "card", head);
  made.dataset.combination = id;
  if (!right) {
    made.append(...left.map((text) => textBlock(combination, text, wanted, true)));
    return made;
  }
  const column = (texts) => element("div", "column", labelled("h3", "", studentName(texts[0][0])), ...texts.map((text) => textBlock(combination, text, wanted, false)));
  made.append(element("div", "beside", column(left), column(right)));
  return made;
}

function textBlock(combination, text, wanted, isNamed) {
  const [student, generation, status, content, graded, talk, votes, found, unrequested] = text;
  const made = element("section", "text");
  const title = element("p", "who");
  if (isNamed) title.append(labelled("b", "", studentName(student)), " ");
  title.append(`text ${generation + 1}`);
  if (status !== "fine") title.append(" ", labelled("span", "badge bad", status));
  const quote = content ? labelled("blockquote", "", content, wanted.needle) : element("blockquote", "empty", "(nothing to grade)");
  quote.dir = "auto";
  made.append(title, quote);
  const shown = graded.filter(([grader]) => wanted.grader === "" || grader === Number(wanted.grader));
  for (const entry of shown) made.append(pointsLine(combination, text, entry, shown.length > 1));
  if (!shown.length) made.append(element("p", "points", element("span", "badge", "not graded")));
  if (unrequested && unrequested.length) made.append(element("p", "more-skills", "Also shows, unasked: ", ...unrequested.map((skill) => labelled("span", "chip faint", index.skills[skill]))));
  const actions = element("p", "actions");
  const room = element("div", "room");
  if (votes >= 0) actions.append(opener("Votes and replies", room, () => votesView(combination, text)));
  if (talk >= 0) actions.append(opener("Conversation", room, () => talkView(text)));
  made.append(actions, room);
  return made;
}

function pointsLine(combination, text, [grader, points, reasons], isNamed) {
  const names = [...combination[1].map((skill) => index.skills[skill]), "topic", "sense", "length"];
  const outcome = outcomeOf(text, points);
  const line = element("p", "points", labelled("span", outcome === "full marks" ? "badge good" : "badge", outcome));
  if (isNamed) line.append(labelled("span", "grader", graderName(grader)));
  names.forEach((name, place) => {
    const sign = { 1: "✓", 0: "✗", "?": "?" }[points[place]];
    const point = labelled("span", `point p${points[place] === "?" ? "u" : points[place]}`, `${sign} ${name}`);
    const evidence = Array.isArray(text[7]) ? text[7][place] : null;
    if (evidence) point.append(labelled("q", "", evidence));
    const reason = reasons ? reasons[place] : null;
    if (reason !== null) point.append(labelled("span", "reason", typeof reason === "number" ? index.reasons[reason] : reason));
    line.append(point);
  });
  return line;
}

function opener(label, room, make) {
  const button = element("button", "link", label);
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", async () => {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    for (const other of button.parentElement.children) other.setAttribute("aria-expanded", "false");
    room.replaceChildren();
    if (isOpen) return;
    button.setAttribute("aria-expanded", "true");
    try { room.replaceChildren(await make()); } catch (problem) { room.textContent = `It cannot be read: ${problem.message}.`; }
  });
  return button;
}

async function prompt(parts, answer) {
  let made = "";
  let isFresh = true;
  for (const number of parts) {
    if (number === -1) { made += answer; isFresh = true; continue; }
    made += (isFresh ? "" : "\n") + await item("lines", number);
    isFresh = false;
  }
  return made;
}

function folded(title, text, isOpen) {
  const pre = element("pre", "");
  pre.dir = "auto";
  pre.append(words(text));
  const made = element("details", "raw", labelled("summary", "", title), pre);
  made.open = Boolean(isOpen);
  return made;
}

async function votesView(combination, text) {
  const [prompts, votes] = await item("votes", text[6]);
  const names = [...combination[1].map((skill) => index.skills[skill]), "topic", "sense", "length"];
  const title = ([grader, round, attempt]) => `${graderName(grader)}, round ${round + 1}${attempt ? `, attempt ${attempt + 1}` : ""}`;
  const head = element("tr", "", element("th", "", "criterion"), ...votes.map((vote) => labelled("th", "", title(vote))));
  const rows = names.map((name, place) => element("tr", "", labelled("th", "", name), ...votes.map((vote) => {
    const point = vote[5] ? vote[5][place] : null;
    return element("td", point === null ? "none" : point > 0.5 ? "p1" : "p0", point === null ? "–" : String(point));
  })));
  const made = element("div", "votes", element("div", "scroll", element("table", "", element("thead", "", head), element("tbody", "", ...rows))));
  made.append(element("p", "note", "What each vote says. The length is counted by code whatever a grader says, and so is a skill that is named instead of shown."));
  for (const vote of votes) {
    const [, , , , reply, , problem, notes] = vote;
    const about = problem ? ` – not counted: ${problem}` : notes.length ? ` – ${notes.join("; ")}` : "";
    made.append(folded(`Reply: ${title(vote)}${about}`, reply ?? `(no reply: ${problem})`, votes.length === 1));
  }
  for (const [number, messages] of prompts.entries()) {
    const parts = [];
    for (const [role, lines] of messages) parts.push(`[${role}]\n${await prompt(lines, text[3])}`);
    const users = [...new Set(votes.filter((vote) => vote[3] === number).map((vote) => graderName(vote[0])))];
    if (parts.length) made.append(folded(`Prompt of ${users.join(", ")}`, parts.join("\n\n")));
  }
  return made;
}

async function talkView(text) {
  const [model, messages, reply, problem] = await item("talks", text[5]);
  const made = element("div", "talk", labelled("p", "note", `Asked of ${model}.`));
  const isWorked = (place) => messages.slice(place).some(([role, content]) => role === "assistant" && typeof content !== "string");
  let turnNumber = 1;
  for (const [place, [role, content]] of messages.entries()) {
    const isOwn = typeof content === "string";
    const said = isOwn ? content : await prompt(content, "");
    const title = isOwn ? `Reply ${turnNumber}` : role === "system" ? "System text" : isWorked(place) ? `Worked example, ${role}` : role === "user" ? `Prompt ${turnNumber}` : role;
    made.append(folded(title, said, isOwn));
    if (isOwn) turnNumber += 1;
  }
  if (reply !== null) made.append(folded(`Reply ${turnNumber}, the last`, reply, true));
  else made.append(labelled("p", "note", `No reply: ${problem}`));
  return made;
}

/* Start. */
function fillSelect(id, entries, any) {
  const select = byId(id);
  const option = (value, text) => { const made = labelled("option", "", String(text)); made.value = value; return made; };
  select.replaceChildren(option("", any), ...entries.map(([value, text]) => option(String(value), text)));
}

function fillForms() {
  const students = index.students.map((_, number) => [number, studentName(number)]);
  fillSelect("a", students, "all");
  fillSelect("b", students, "nobody");
  fillSelect("grader", index.graders.map((_, number) => [number, graderName(number)]), "all");
  fillSelect("setting", [...new Set(index.cells.map((cell) => cell[2]))].map((name) => [name, name]), "all");
  fillSelect("k", [...new Set(index.cells.map((cell) => cell[3]))].sort((x, y) => x - y).map((k) => [k, k]), "all");
  fillSelect("outcome", OUTCOMES.map((name) => [name, name]), "all");
  for (const [id, names] of [["skills", index.skills], ["topics", index.topics]]) {
    byId(id).replaceChildren(...[...names].sort().map((name) => { const made = document.createElement("option"); made.value = name; return made; }));
  }
}

function changed() {
  const given = new URLSearchParams(FIELDS.map((field) => [field, byId(field).value.trim()]).filter(([, value]) => value !== ""));
  history.replaceState(null, "", `#${given}`);
  show();
}

async function start() {
  try { index = await load("index", 0); } catch (problem) { byId("status").textContent = `${problem.message}.`; return; }
  fillForms();
  readAddress();
  let timer = 0;
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(changed, 200); });
  byId("clear").addEventListener("click", () => { for (const field of FIELDS) byId(field).value = ""; changed(); });
  byId("more").addEventListener("click", () => { byId("more").hidden = true; nextPage(current); });
  window.addEventListener("hashchange", () => { readAddress(); show(); });
  await show();
}

start();
