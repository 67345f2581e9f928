"use strict";

/* Show one rater the texts and the questions, and send the answers to the server. Text from the server is inserted only
   as text nodes. An unconfirmed answer stays in the browser's storage, and is sent again until the server confirms it. */

const token = location.pathname.split("/")[1];
const $ = (id) => document.getElementById(id);
const VOTES = [[1, "Yes", "yes", "1"], [0, "No", "no", "0"], [null, "Unsure", "unsure", "?"]];
const AGAIN_MS = 1500;
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/u;

let done = [];          // whether each text has an answer
let number = -1;        // the text on the screen; done.length is the last page
let asked = -1;         // the text that is loading or on the screen
let item = null;
let votes = new Map();  // by criterion
let history = [];       // criteria in the order of the votes
let current = 0;        // the question that a key press answers
let spent = 0;          // milliseconds spent on this text
let shownAt = null;     // when the page became visible; null if it is hidden
let isSending = false;
let refused = "";       // why the server rejected an answer; shown until the next answer
const items = new Map();

/* Storage */

const keyOf = (name) => `skillmix-annotate/${token}/${name}`;

function stored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(keyOf(name))) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function store(name, value) {
  try {
    if (value === null) localStorage.removeItem(keyOf(name));
    else localStorage.setItem(keyOf(name), JSON.stringify(value));
  } catch { /* without storage, answers are kept while the page is open */ }
}

let waiting = stored("waiting", []);

function keepWaiting() {
  store("waiting", waiting.length ? waiting : null);
}

/* The server */

async function ask(path, options) {
  const response = await fetch(path, { credentials: "omit", cache: "no-store", ...options });
  const body = await response.json().catch(() => ({}));
  return { status: response.status, body };
}

function trouble(words) {
  const shown = words || refused;
  $("trouble").hidden = !shown;
  if ($("trouble").textContent !== shown) $("trouble").textContent = shown;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/* Request a path until the server returns it. */
async function get(path) {
  for (;;) {
    try {
      const { status, body } = await ask(path);
      if (status === 200) {
        if (!waiting.length) trouble("");
        return body;
      }
      trouble(status === 403 ? "This link is no longer valid. Ask for a new one. Your answers are kept in this browser." : `The server answers with ${status}. Trying again.`);
    } catch {
      trouble(lost());
    }
    await pause(AGAIN_MS);
  }
}

function lost() {
  const kept = waiting.length === 1 ? "Your last answer is kept and will be sent again." : `${waiting.length} answers are kept and will be sent again.`;
  return `The server does not answer. ${waiting.length ? kept : "Nothing is lost."} Trying again.`;
}

async function send() {
  if (isSending) return;
  isSending = true;
  while (waiting.length) {
    const answer = waiting[0];
    try {
      const { status, body } = await ask("answers", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(answer),
      });
      if (status === 200 || status === 400) {
        waiting.shift();
        keepWaiting();
        refused = status === 400 ? `An answer was rejected: ${body.error}. Please answer that text again.` : refused;
        if (status === 400) await reload();
        trouble("");
        progress();
        continue;
      }
      trouble(`${body.error || `The server answers with ${status}.`} ${lost()}`);
    } catch {
      trouble(lost());
    }
    await pause(AGAIN_MS);
  }
  isSending = false;
  if (number === done.length) finish();
}

async function reload() {
  const state = await get("state");
  $("rater").textContent = state.rater;
  done = [...state.done].map((sign) => sign === "1");
  items.clear();
}

function itemOf(index) {
  if (!items.has(index)) items.set(index, get(`items/${index}`));
  return items.get(index);
}

/* The page */

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/* Invisible characters could hide or reorder words, so each is shown as its code point. */
function showText(place, text) {
  place.replaceChildren();
  for (const part of text.split(new RegExp(`(${INVISIBLE.source})`, "u"))) {
    if (part.length === 1 && INVISIBLE.test(part)) {
      const code = part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      place.append(element("span", "hidden-sign", `U+${code}`));
    } else {
      place.append(part);
    }
  }
}

function progress() {
  const answered = done.filter(Boolean).length;
  $("progress").max = done.length;
  $("progress").value = answered;
  $("position").textContent = number < done.length ? `Text ${number + 1} of ${done.length}` : `${done.length} texts`;
  const unsent = waiting.length ? `, ${waiting.length} not sent yet` : "";
  $("answered").textContent = `${answered} answered${unsent}`;
}

async function open(index) {
  leave();
  if (index >= done.length) return finish();
  const wanted = Math.max(0, index);
  asked = wanted;
  document.body.classList.add("loading");
  const next = await itemOf(wanted);
  if (asked !== wanted) return;  // another text was opened in the meantime
  document.body.classList.remove("loading");
  number = wanted;
  item = next;
  const draft = stored(`draft/${item.id}`, null);
  const answer = draft || item.answer || { votes: {}, comment: "" };
  votes = new Map(Object.entries(answer.votes));
  history = draft ? Object.keys(draft.votes) : [];
  spent = draft ? draft.spent || 0 : 0;
  shownAt = document.hidden ? null : performance.now();
  show(answer.comment || "");
  for (const ahead of [number + 1, number + 2]) {
    if (ahead < done.length) itemOf(ahead);  // preload the next texts
  }
}

/* Keep unsaved votes and comments as a draft before another text is shown. */
function leave() {
  if (!item) return;
  count();
  const comment = $("comment").value;
  const saved = item.answer || { votes: {}, comment: "" };
  const isSame = comment === saved.comment && item.questions.every(({ name }) => votes.get(name) === saved.votes[name]);
  store(`draft/${item.id}`, isSame ? null : { votes: Object.fromEntries(votes), comment, spent });
}

function count() {
  if (shownAt !== null) spent += performance.now() - shownAt;
  shownAt = document.hidden ? null : performance.now();
}

function show(comment) {
  $("finished").hidden = true;
  $("task").hidden = $("bar").hidden = false;
  showText($("text"), item.text);
  $("text").scrollTop = 0;
  $("topic").textContent = item.topic;
  const skills = item.questions.map((question) => question.name).slice(0, -2);
  $("skills").replaceChildren(...skills.flatMap((skill, index) => [
    index === 0 ? "" : index === skills.length - 1 ? " and " : ", ", element("b", "", skill),
  ]));
  $("questions").replaceChildren(...item.questions.map(questionRow));
  $("comment").value = comment;
  $("back").disabled = number === 0;
  progress();
  const open = item.questions.findIndex((question) => !votes.has(question.name));
  measure();
  scrollTo(0, 0);
  select(open === -1 ? 0 : open, { scrolls: false });
}

/* On a phone, the text stays above the questions; reserve its height, so that it does not cover a question. */
function measure() {
  const text = $("text").getBoundingClientRect();
  const isAbove = getComputedStyle($("text")).position === "sticky";
  const height = document.querySelector("header").offsetHeight + (isAbove ? text.height : 0) + 12;
  document.documentElement.style.setProperty("--above", `${height}px`);
}

function questionRow(question, index) {
  const row = element("li", "question");
  row.tabIndex = -1;
  row.id = `question-${index}`;
  const title = element("h3", "", question.words);
  title.id = `title-${index}`;
  row.setAttribute("aria-labelledby", title.id);
  row.append(title);
  if (question.definition) row.append(element("p", "about", question.definition));
  if (question.example) row.append(element("p", "about", `Example: ${question.example}`));
  const group = element("div", "votes");
  group.setAttribute("role", "group");
  group.setAttribute("aria-labelledby", title.id);
  for (const [vote, label, className, key] of VOTES) {
    const button = element("button", className, label);
    button.type = "button";
    button.setAttribute("aria-keyshortcuts", key);
    button.addEventListener("click", () => {
      select(index, { scrolls: false });
      press(vote);
    });
    group.append(button);
  }
  title.after(group);
  row.addEventListener("click", (event) => {
    if (!event.target.closest("button")) select(index, { scrolls: false });
  });
  mark(row, question.name);
  return row;
}

function mark(row, name) {
  row.querySelectorAll("button").forEach((button, index) => {
    button.setAttribute("aria-pressed", String(votes.has(name) && votes.get(name) === VOTES[index][0]));
  });
}

function rows() {
  return [...$("questions").children];
}

function select(index, { scrolls = true } = {}) {
  current = Math.min(Math.max(0, index), item.questions.length - 1);
  rows().forEach((row, other) => row.classList.toggle("current", other === current));
  rows()[current].focus({ preventScroll: true });
  if (scrolls) rows()[current].scrollIntoView({ block: "nearest" });
  say("");
}

function say(words) {
  const open = item ? item.questions.filter((question) => !votes.has(question.name)).length : 0;
  const left = open === 0 ? "Ready to save" : `${open} of ${item.questions.length} open`;
  $("status").textContent = words || left;
  $("save").classList.toggle("waiting", open > 0);
}

function press(vote) {
  const name = item.questions[current].name;
  votes.set(name, vote);
  history = [...history.filter((other) => other !== name), name];
  mark(rows()[current], name);
  leave();
  const open = [...item.questions.keys()].filter((index) => !votes.has(item.questions[index].name));
  select(open.find((index) => index > current) ?? open[0] ?? current + 1);
}

function undo() {
  const name = history.pop();
  if (name === undefined) return open(number - 1 < 0 ? 0 : number - 1);
  votes.delete(name);
  const index = item.questions.findIndex((question) => question.name === name);
  mark(rows()[index], name);
  leave();
  select(index);
}

function save() {
  const missing = item.questions.findIndex((question) => !votes.has(question.name));
  if (missing !== -1) {
    select(missing);
    const open = item.questions.filter((question) => !votes.has(question.name)).length;
    return say(open === 1 ? "Answer this question first; ? counts as an answer." : `Answer ${open} more questions first; ? counts as an answer.`);
  }
  count();
  refused = "";
  const ordered = Object.fromEntries(item.questions.map((question) => [question.name, votes.get(question.name)]));
  const answer = { votes: ordered, comment: $("comment").value.trim() };
  waiting.push({ item: item.id, id: newId(), ...answer, seconds: Math.round(spent / 100) / 10 });
  keepWaiting();
  store(`draft/${item.id}`, null);
  item.answer = answer;
  done[number] = true;
  item = null;
  send();
  const later = done.findIndex((isDone, index) => !isDone && index > number);
  const next = later === -1 ? done.indexOf(false) : later;
  return open(next === -1 ? done.length : next);
}

function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function finish() {
  number = asked = done.length;
  item = null;
  document.body.classList.remove("loading");
  $("task").hidden = $("bar").hidden = true;
  $("finished").hidden = false;
  const open = done.filter((isDone) => !isDone).length;
  const left = open ? `${open} texts have no answer yet.` : "All texts have an answer. Thank you.";
  $("summary").textContent = waiting.length ? `${waiting.length} answers are not sent yet. Keep this page open.` : left;
  progress();
  $("look").focus({ preventScroll: true });
}

/* Keys */

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target === $("comment")) {
    if (event.key === "Escape" || (event.key === "Enter" && !event.shiftKey)) {
      event.preventDefault();
      leave();
      select(current);
    }
    return;
  }
  if (event.key === "Enter" && event.target.closest("button, summary")) return;  // Enter presses that button
  const action = item ? ACTIONS[event.key] : number === done.length && done.length ? AT_THE_END[event.key] : undefined;
  if (!action) return;
  event.preventDefault();
  action();
}

const ACTIONS = {
  1: () => press(1),
  0: () => press(0),
  "?": () => press(null),
  Enter: save,
  Backspace: undo,
  ArrowUp: () => select(current - 1),
  ArrowDown: () => select(current + 1),
  ArrowLeft: () => open(number - 1),
  ArrowRight: () => open(number + 1),
  c: () => $("comment").focus(),
};
const AT_THE_END = {
  Backspace: () => open(done.length - 1),
  ArrowLeft: () => open(done.length - 1),
};

async function begin() {
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => { if (item) count(); });
  addEventListener("pagehide", leave);
  addEventListener("resize", () => { if (item) measure(); });
  $("save").addEventListener("click", save);
  $("back").addEventListener("click", () => open(number - 1));
  $("look").addEventListener("click", () => open(0));
  $("comment").addEventListener("change", leave);
  await send();  // answers from an earlier visit that were not confirmed
  await reload();
  const first = done.indexOf(false);
  const named = Number.parseInt(location.hash.slice(1), 10) - 1;  // "#17" opens the 17th text
  if (named >= 0 && named < done.length) await open(named);
  else await open(first === -1 ? done.length : first);
}

begin();
